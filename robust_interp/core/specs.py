"""Parse spec strings of users: ``pgd(eps=2/255, alpha=eps/4, steps=20)``. No code is evaluated."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field

from robust_interp.core.errors import UserError
from robust_interp.core.numeric import is_real

LONGEST_SPEC = 500  # characters; too short for nesting that Python's parser cannot handle

Scalar = bool | int | float | str


@dataclass(frozen=True)
class OfEps:
    """A parameter given as a share of eps: ``alpha=eps/4`` is ``OfEps(0.25)``."""

    factor: float

    def __str__(self) -> str:
        return f"{self.factor!r}*eps"


@dataclass(frozen=True)
class Spec:
    """A name with its parameters, as the user wrote them; `params` keeps their order."""

    name: str
    params: dict[str, Scalar | OfEps] = field(default_factory=dict)

    def __str__(self) -> str:
        params = ", ".join(f"{key}={value}" for key, value in self.params.items())
        return f"{self.name}({params})" if params else self.name


def split_specs(text: str) -> list[str]:
    """Split a text at the commas outside brackets; drop empty parts and surrounding spaces."""
    return [part.strip() for part in parts_of(text) if part.strip()]


def parts_of(text: str) -> list[str]:
    """Split a text at the commas outside brackets; keep the parts unchanged."""
    parts, depth, start = [], 0, 0
    for found in re.finditer("[(),]", text):
        depth += (found[0] == "(") - (found[0] == ")")
        if found[0] == "," and depth == 0:
            parts.append(text[start : found.start()])
            start = found.end()
    return [*parts, text[start:]]


def parse_spec(text: str) -> Spec:
    """Parse ``name`` or ``name(key=value, ...)``. Values are numbers, fractions, shares of eps or words.

    No code is evaluated: the text is parsed and only these forms are accepted.

    Raises:
        UserError: if the text is anything else.
    """
    if len(text) > LONGEST_SPEC or "#" in text:
        raise UserError(f"cannot read {text[:40]!r}: expected name or name(key=value, ...)")
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"cannot read {text!r}: expected name or name(key=value, ...)") from error
    if isinstance(node, ast.Name):
        return Spec(node.id)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name) or node.args:
        raise UserError(f"cannot read {text!r}: expected name or name(key=value, ...)")
    params: dict[str, Scalar | OfEps] = {}
    for keyword in node.keywords:
        if keyword.arg is None:
            raise UserError(f"cannot read {text!r}: expected name or name(key=value, ...)")
        if keyword.arg in params:
            raise UserError(f"cannot read {text!r}: {keyword.arg} is given twice")
        try:
            params[keyword.arg] = _bounded(_value(keyword.value, text))
        except OverflowError as error:
            raise UserError(f"a number is too large in {text[:40]!r}") from error
    return Spec(node.func.id, params)


def _bounded(value: Scalar | OfEps) -> Scalar | OfEps:
    """Return the value unchanged.

    Raises:
        OverflowError: if it is an integer that does not fit in 64 bits.
    """
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise OverflowError(value)
    return value


def _value(node: ast.expr, text: str) -> Scalar | OfEps:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.Name(id="eps"):
            return OfEps(1.0)
        case ast.Name(id=word):
            return word
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            number = _value(operand, text)
            if is_real(number):
                return -number
        case ast.BinOp(op=ast.Div() | ast.Mult() as op, left=left, right=right):
            return _arithmetic(op, _value(left, text), _value(right, text), text)
    raise UserError(f"cannot read {ast.unparse(node)!r} in {text!r}: expected a number such as 2/255")


def _arithmetic(op: ast.operator, left: Scalar | OfEps, right: Scalar | OfEps, text: str) -> float | OfEps:
    if isinstance(op, ast.Mult):
        if isinstance(right, OfEps):
            left, right = right, left
        if isinstance(left, OfEps) and is_real(right):
            return OfEps(left.factor * right)
        if is_real(left) and is_real(right):
            return left * right
    elif is_real(right) and right != 0:
        if isinstance(left, OfEps):
            return OfEps(left.factor / right)
        if is_real(left):
            return left / right
    raise UserError(f"cannot compute a value in {text!r}: expected a number such as 2/255 or eps/4")

"""Named plug-ins, and the spec strings that call them: ``pgd(eps=2/255, alpha=eps/4, steps=20)``.

Nothing here imports torch, so that listing names and reading a command line stay fast.
"""

from __future__ import annotations

import ast
import difflib
import fnmatch
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from robust_interp.errors import UserError

T = TypeVar("T")
LONGEST_SPEC = 500  # characters; Python's parser gives up on deep nesting only far beyond
Scalar = bool | int | float | str


@dataclass(frozen=True)
class OfEps:
    """A parameter given as a share of eps: ``alpha=eps/4`` is ``OfEps(0.25)``."""

    factor: float

    def __str__(self) -> str:
        return f"{self.factor!r}*eps"


@dataclass(frozen=True)
class Spec:
    """A name with its parameters, as written by a user; `params` keeps their order."""

    name: str
    params: dict[str, Scalar | OfEps] = field(default_factory=dict)

    def __str__(self) -> str:
        params = ", ".join(f"{key}={value}" for key, value in self.params.items())
        return f"{self.name}({params})" if params else self.name


def split_specs(text: str) -> list[str]:
    """Split at the commas that stand outside brackets; empty parts are dropped."""
    parts, depth, start = [], 0, 0
    for at, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if char == "," and depth == 0:
            parts.append(text[start:at])
            start = at + 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def parse_spec(text: str) -> Spec:
    """Read ``name`` or ``name(key=value, ...)``. Values are numbers, fractions, shares of eps or words.

    Nothing is evaluated: the text is parsed and only these forms are accepted.

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
            params[keyword.arg] = _value(keyword.value, text)
        except OverflowError as error:
            raise UserError(f"a number is too large in {text[:40]!r}") from error
    return Spec(node.func.id, params)


def _value(node: ast.expr, text: str) -> Scalar | OfEps:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() as value):
            return value
        case ast.Name(id="eps"):
            return OfEps(1.0)
        case ast.Name(id=word):
            return word
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            value = _value(operand, text)
            if _is_number(value):
                return -value
        case ast.BinOp(op=ast.Div() | ast.Mult() as op, left=left, right=right):
            return _arithmetic(op, _value(left, text), _value(right, text), text)
    raise UserError(f"cannot read {ast.unparse(node)!r} in {text!r}: expected a number such as 2/255")


def _arithmetic(op: ast.operator, left, right, text: str) -> float | OfEps:
    if isinstance(op, ast.Mult):
        if isinstance(right, OfEps):
            left, right = right, left
        if isinstance(left, OfEps) and _is_number(right):
            return OfEps(left.factor * right)
        if _is_number(left) and _is_number(right):
            return left * right
    elif _is_number(right) and right != 0:
        if isinstance(left, OfEps):
            return OfEps(left.factor / right)
        if _is_number(left):
            return left / right
    raise UserError(f"cannot work out a value in {text!r}: expected a number such as 2/255 or eps/4")


def _is_number(value) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


class Registry(Generic[T]):
    """Named things of one kind. Unknown names are answered with the near ones."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def add(self, name: str, entry: T) -> T:
        """Register `entry`; a name can be taken once.

        Raises:
            ValueError: if the name is taken.
        """
        if name in self._entries:
            raise ValueError(f"{self.kind} {name!r} is already registered as {self._entries[name]!r}")
        self._entries[name] = entry
        return entry

    def __getitem__(self, name: str) -> T:
        if name not in self._entries:
            raise unknown(self.kind, name, self._entries)
        return self._entries[name]

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """The error for a name that is not there: near names if there are any, else all of them."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=4, cutoff=0.5)
    hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(known) or 'none'}"
    return UserError(f"unknown {kind} {name!r}; {hint}")


def is_glob(pattern: str) -> bool:
    return bool(re.search(r"[*?\[]", pattern))


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """The names that a shell-style pattern matches, case-sensitively, in their own order."""
    return [name for name in names if fnmatch.fnmatchcase(name, pattern)]

"""Read JSON from untrusted sources safely, and check its structure."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeGuard

from robust_interp.core.errors import UserError
from robust_interp.core.texts import quoted

DEEPEST = 50  # largest nesting: far more than this package writes, far less than Python's recursion limit

_HALF = re.compile("[\ud800-\udfff]")

Form = Callable[[Any], bool]


def loads(text: str | bytes) -> Any:
    """Parse a JSON text.

    Raises:
        ValueError: if it is not JSON, or nested too deeply.
    """
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for outer in level for inner in _inner(outer)]
        if not level:
            return value
    raise ValueError("it is nested too deeply")


def _inner(value: Any) -> list:
    return [*value.values()] if isinstance(value, dict) else value if isinstance(value, list) else []


def read_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that contains an object.

    Raises:
        UserError: if it cannot be read, or contains anything else.
    """
    try:
        value = loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise UserError(f"{path} does not contain a JSON object")
    return value


def check(
    where: object,
    content: Mapping,
    needed: Mapping[str, Form],
    known: Mapping[str, Form] = MappingProxyType({}),
) -> None:
    """Check the fields of an object. Fields that are in neither mapping are ignored.

    Args:
        where: Name of the object in messages.
        content: The object.
        needed: Checks of the required fields.
        known: Checks of the optional fields.

    Raises:
        UserError: if a required field is missing or a check fails.
    """
    if missing := [key for key in needed if key not in content]:
        raise UserError(f"{where} lacks {', '.join(missing)}")
    for key, is_valid in {**needed, **known}.items():
        if key in content and not is_valid(content[key]):
            raise UserError(f"{where}: {key} cannot be {quoted(content[key])}")


def is_text(value: Any) -> bool:
    """Return whether a value is a text that UTF-8 can encode: one without lone surrogates."""
    return isinstance(value, str) and not _HALF.search(value)


def is_count(value: Any) -> bool:
    """Return whether a value is a whole number of at least 0 that fits in 64 bits."""
    return type(value) is int and 0 <= value < 2**63


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether a value is a finite number; a whole number must fit in 64 bits."""
    return math.isfinite(value) if type(value) is float else type(value) is int and abs(value) < 2**63


def is_object(value: Any) -> bool:
    return isinstance(value, dict)


def or_null(form: Form) -> Form:
    return lambda value: value is None or form(value)


def list_of(form: Form, length: int | None = None) -> Form:
    """Return a check for lists whose items pass `form`; `length` None allows any length."""
    return lambda value: isinstance(value, list) and all(map(form, value)) and length in (None, len(value))


def object_of(form: Form) -> Form:
    """Return a check for objects whose values pass `form`; any names are allowed."""
    return lambda value: isinstance(value, dict) and all(map(form, value.values()))

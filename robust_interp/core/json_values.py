"""JSON that others wrote: read without surprises, and held against the form that it must have."""

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

DEEPEST = 50  # lists and objects within one another: far beyond what is written, far below what Python takes

_HALF = re.compile("[\ud800-\udfff]")

Form = Callable[[Any], bool]


def loads(text: str | bytes) -> Any:
    """The value that a JSON text stands for.

    Raises:
        ValueError: if it is none, or nested too deeply.
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
    """The object in a JSON file.

    Raises:
        UserError: if it cannot be read, or is none.
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
    """Refuse an object that lacks what is needed, or holds it, or what is known, in another form.

    Args:
        where: What it is of, as a message says it.

    Raises:
        UserError: then.
    """
    if missing := [key for key in needed if key not in content]:
        raise UserError(f"{where} lacks {', '.join(missing)}")
    for key, is_valid in {**needed, **known}.items():
        if key in content and not is_valid(content[key]):
            raise UserError(f"{where}: {key} cannot be {quoted(content[key])}")


def is_text(value: Any) -> bool:
    """Whether it is a text that can be written: one without half of a character."""
    return isinstance(value, str) and not _HALF.search(value)


def is_count(value: Any) -> bool:
    """Whether it is a whole number from 0 that fits 64 bits."""
    return type(value) is int and 0 <= value < 2**63


def is_number(value: Any) -> TypeGuard[float]:
    """Whether it is a number: no NaN, not infinite, and a whole one fits 64 bits."""
    return math.isfinite(value) if type(value) is float else type(value) is int and abs(value) < 2**63


def is_object(value: Any) -> bool:
    return isinstance(value, dict)


def or_null(form: Form) -> Form:
    return lambda value: value is None or form(value)


def list_of(form: Form, length: int | None = None) -> Form:
    """A form of lists, of any length or of one."""
    return lambda value: isinstance(value, list) and all(map(form, value)) and length in (None, len(value))


def object_of(form: Form) -> Form:
    """A form of objects by the values, whatever their names."""
    return lambda value: isinstance(value, dict) and all(map(form, value.values()))

"""Texts of others, made safe to print: no character of theirs commands the terminal."""

from __future__ import annotations

import re

# Control characters but for line ends and tabs, and those that turn the direction of writing around.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

LONGEST = 80  # characters of a value that a message quotes


def plain(text: str) -> str:
    r"""The same with control characters written out: an escape character becomes ``\x1b``."""
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """The same in one line, and plain."""
    return " ".join(plain(text).splitlines())


def first_line_of(error: BaseException) -> str:
    """The first line of what an exception says; its type where it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def reason_of(error: BaseException) -> str:
    """All that an exception says, in one line; its type where it says nothing."""
    return " ".join(str(error).split()) or type(error).__name__


def quoted(value: object) -> str:
    """A value as Python writes it, cut where it is long."""
    try:
        said = repr(value)
    except (ValueError, RecursionError):  # a number of too many digits; lists in lists
        return f"a {type(value).__name__} too large to show"
    return said if len(said) <= LONGEST else f"{said[:LONGEST]}..."


def plain_json(text: str) -> str:
    """A JSON text with the same characters written out as JSON does it."""
    return _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)

"""Make untrusted texts safe to print: escape characters that control the terminal."""

from __future__ import annotations

import re

# Control characters except newline and tab, and those that change the writing direction.
_COMMANDS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")

LONGEST = 80  # largest number of characters of a quoted value


def plain(text: str) -> str:
    r"""Escape control characters: an escape character becomes ``\x1b``."""
    return _COMMANDS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """Escape control characters, and join all lines to one."""
    return " ".join(plain(text).splitlines())


def first_line_of(error: BaseException) -> str:
    """Return the first line of an exception's message; its type if there is none, or before a bare key."""
    return next(iter(_told(error).splitlines()))


def reason_of(error: BaseException) -> str:
    """Return an exception's message in one line; its type if there is none, or before a bare key."""
    return " ".join(_told(error).split())


def _told(error: BaseException) -> str:
    name, text = type(error).__name__, str(error).strip()
    return f"{name}: {text}" if text and type(error) is KeyError else text or name


def failure_of(error: BaseException) -> str:
    """Return what the system says of a failure; for other exceptions, the same as `first_line_of`."""
    return error.strerror if isinstance(error, OSError) and error.strerror else first_line_of(error)


def quoted(value: object) -> str:
    """Return the repr of a value, cut if it is long."""
    try:
        said = repr(value)
    except (ValueError, RecursionError):  # too many digits; nested too deeply
        return f"a {type(value).__name__} too large to show"
    return said if len(said) <= LONGEST else f"{said[:LONGEST]}..."


def plain_json(text: str) -> str:
    """Escape the same characters in a JSON text, in the syntax of JSON."""
    return _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)

"""Print text on the terminal, with control characters escaped. Imports no large package."""

from __future__ import annotations

import sys

from robust_interp.core.texts import plain


def say(text: object, end: str = "\n") -> None:
    """Print a text on standard output and flush it."""
    print(plain(str(text)), end=end, flush=True)


def warn(text: object) -> None:
    """Print a text on standard error."""
    print(plain(str(text)), file=sys.stderr)

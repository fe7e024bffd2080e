"""Lines on the terminal, in which what others named commands nothing. Imports nothing heavy."""

from __future__ import annotations

import sys

from robust_interp.core.texts import plain


def say(text: object, end: str = "\n") -> None:
    """Print a text on standard output, at once."""
    print(plain(str(text)), end=end, flush=True)


def warn(text: object) -> None:
    """Print a text on standard error."""
    print(plain(str(text)), file=sys.stderr)

"""Paths as users name them."""

from __future__ import annotations

from pathlib import Path

from robust_interp.core.errors import UserError


def resolved(path: Path) -> Path:
    """The path that this one is, without links.

    Raises:
        UserError: if its links lead around in a circle.
    """
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise UserError(f"{path} cannot be used: its links lead around in a circle") from error

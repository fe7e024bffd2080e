"""Paths given by the user."""

from __future__ import annotations

from pathlib import Path

from robust_interp.core.errors import UserError


def resolved(path: Path) -> Path:
    """Return the absolute path with all symbolic links resolved.

    Raises:
        UserError: if the links form a loop.
    """
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise UserError(f"{path} cannot be used: its links lead around in a circle") from error

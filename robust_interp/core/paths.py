"""Paths given by the user."""

from __future__ import annotations

import os
from pathlib import Path

from robust_interp.core.errors import UserError


def expanded(path: str | os.PathLike) -> Path:
    """Return a path with ``~`` or ``~user`` at its beginning replaced by the home folder.

    Raises:
        UserError: if there is no such home folder.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError as error:
        raise UserError(f"{path} cannot be used: there is no such home folder") from error


def resolved(path: Path) -> Path:
    """Return the absolute path with all symbolic links resolved.

    Raises:
        UserError: if the links form a loop.
    """
    try:
        return path.resolve()
    except (OSError, RuntimeError) as error:
        raise UserError(f"{path} cannot be used: its links lead around in a circle") from error

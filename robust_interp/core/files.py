"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from robust_interp.core.errors import UserError


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step, so that a reader or a kill never meets half of it."""
    part = path.with_name(f".{path.name}.part{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error}") from error

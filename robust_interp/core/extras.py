"""The command that installs an extra of this package, from a clone or from an index."""

from __future__ import annotations

import shlex
from pathlib import Path

import robust_interp


def install(extra: str) -> str:
    """Return the command that installs an extra: from the clone of the package if it is one, else by name.

    Args:
        extra: Name of the extra, such as ``hf``.
    """
    clone = Path(robust_interp.__file__).resolve().parents[1]
    if (clone / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{clone}[{extra}]')}"
    return f"pip install 'robust-interp[{extra}]'"

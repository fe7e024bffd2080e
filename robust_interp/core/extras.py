"""How to install an extra of this package, wherever the package came from."""

from __future__ import annotations

import shlex
from pathlib import Path

import robust_interp


def install(extra: str) -> str:
    """The command that installs an extra: from the clone that the package lies in, else by its name.

    Args:
        extra: Such as ``hf``.
    """
    clone = Path(robust_interp.__file__).resolve().parents[1]
    if (clone / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{clone}[{extra}]')}"
    return f"pip install 'robust-interp[{extra}]'"

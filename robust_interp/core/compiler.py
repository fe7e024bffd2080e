"""torch.compile on this machine: whether it works, and what compiling and running took before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from robust_interp.core.errors import UserError
from robust_interp.core.files import write_text

FILE_NAME = "robust_interp_compile_times.json"  # beside what was compiled: both are lost together


class CompileTime(NamedTuple):
    """What was seen of a compilation.

    Attributes:
        seconds: That it took; less the next time, since the compiled code is kept.
        gain: How many times as fast the compiled code was.
    """

    seconds: float
    gain: float


def why_not() -> str:
    """Why nothing can be compiled on this machine, in one line; empty if it can."""
    import torch

    try:
        torch.compile(_half)(torch.ones(8))
    except Exception as error:  # what is raised without a compiler depends on torch's version and system
        return " ".join(str(error).split())[:200] or type(error).__name__
    return ""


def _half(x: Any) -> Any:
    return x / 2


def learned(key: str) -> CompileTime | None:
    """What was seen the last time of what is named so; None if nothing was, or the file cannot be read."""
    try:
        return CompileTime(*map(float, json.loads(_file().read_text(encoding="utf-8"))[key]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def learn(key: str, seen: CompileTime) -> None:
    """Remember it; where the file cannot be written, nothing is remembered."""
    path = _file()
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        known = {}
    known = known if isinstance(known, dict) else {}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(known | {key: [round(seen.seconds, 2), round(seen.gain, 3)]}, indent=1))
    except (OSError, UserError):
        return


def _file() -> Path:
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir()) / FILE_NAME

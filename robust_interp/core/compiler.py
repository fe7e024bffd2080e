"""torch.compile on this machine: whether it works, and the compile times and gains measured before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from robust_interp.core.errors import UserError
from robust_interp.core.files import write_text
from robust_interp.core.texts import reason_of
from robust_interp.core.torch_internals import compile_cache

FILE_NAME = "robust_interp_compile_times.json"  # in the cache folder of torch.compile: cleared together


class CompileTime(NamedTuple):
    """Measured time and gain of a compilation.

    Attributes:
        seconds: Time of compiling; the next time is shorter, since torch caches the compiled code.
        gain: Speed-up of the compiled code, a factor.
    """

    seconds: float
    gain: float


def why_not() -> str:
    """Return in one line why torch.compile does not work on this machine; empty if it works."""
    import torch

    try:
        torch.compile(_half)(torch.ones(8))
    except Exception as error:  # what is raised without a compiler depends on torch's version and system
        return reason_of(error)[:200]
    return ""


def _half(x: Any) -> Any:
    return x / 2


def recorded_compile_time(key: str) -> CompileTime | None:
    """Return the last measurement of a key; None if there is none, or the file cannot be read."""
    try:
        return CompileTime(*map(float, json.loads(_file().read_text(encoding="utf-8"))[key]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def record_compile_time(key: str, seen: CompileTime) -> None:
    """Store the measurement of a key. If the file cannot be written, nothing is stored."""
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
    return compile_cache() / FILE_NAME

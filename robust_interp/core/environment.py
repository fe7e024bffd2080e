"""The machine and the software versions of a run, for `environment.json` beside its tables."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

import robust_interp
from robust_interp.core.files import write_text

FILE_NAME = "environment.json"
PACKAGES = (
    "torch",
    "torchvision",
    "torchattacks",
    "timm",
    "robustbench",
    "numpy",
    "scipy",
    "pandas",
    "pillow",
)
CPU_FEATURES = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "amx_bf16",
    "amx_tile",
)  # features that affect the speed


def describe(command: Sequence[str], more: Mapping[str, object]) -> dict:
    """Return the facts about this process as JSON values.

    Args:
        command: The command line, beginning with the name of the program.
        more: Further facts, such as the device and the threads.
    """
    return {
        "command": shlex.join(command),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "robust_interp": robust_interp.__version__,
        "git": git_state(Path(robust_interp.__file__).parents[1]),
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "libjpeg": libjpeg(),
        "platform": platform.platform(),
        "cpu": cpu(),
        **more,
    }


def write(folder: Path, command: Sequence[str], more: Mapping[str, object], *, measured: bool) -> None:
    """Write the result of `describe` to `environment.json` in an existing folder.

    That of an earlier run stays if this one has measured nothing, since the numbers are the earlier one's.
    """
    if not measured and (folder / FILE_NAME).exists():
        return
    text = json.dumps(describe(command, more), indent=1, ensure_ascii=False)
    write_text(folder / FILE_NAME, text + "\n")


def libjpeg() -> str | None:
    """Return name and version of Pillow's JPEG library; None without Pillow or JPEG."""
    try:
        from PIL import features
    except ImportError:
        return None
    turbo = features.version("libjpeg_turbo")
    plain = features.version("jpg")
    return f"libjpeg-turbo {turbo}" if turbo else plain and f"libjpeg {plain}"


def git_state(folder: Path) -> str | None:
    """Return the commit of a git checkout, with a plus if files differ from it; None for any other folder."""
    try:
        if Path(_git(folder, "rev-parse", "--show-toplevel")) != folder.resolve():
            return None  # the package is installed inside a repository of the user
        commit = _git(folder, "rev-parse", "--short=12", "HEAD")
        return commit + ("+" if _git(folder, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError, ValueError):  # ValueError: a path that is not UTF-8
        return None


def _git(folder: Path, *arguments: str) -> str:
    command = ["git", "-C", str(folder), *arguments]
    done = subprocess.run(command, capture_output=True, check=True, timeout=5)
    return os.fsdecode(done.stdout).strip()  # git writes UTF-8 on Windows, too


def cpu(root: Path = Path("/")) -> dict:
    """Return the CPU model and, on Linux, its features that affect the speed of reduced precision.

    Args:
        root: Parent folder of /proc.
    """
    try:
        lines = (root / "proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {"model": platform.processor() or platform.machine()}
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    flags = facts.get("flags", "").split()
    return {
        "model": facts.get("model name", platform.machine()),
        "features": [feature for feature in CPU_FEATURES if feature in flags],
    }


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def gpu(device: str) -> str | None:
    """Return the name of a CUDA device; None for another device, or if torch is not imported."""
    torch = sys.modules.get("torch")
    if torch is None or not device.startswith("cuda") or not torch.cuda.is_available():
        return None
    return torch.cuda.get_device_name(device)

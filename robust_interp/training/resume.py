"""The state of an unfinished training, beside its destination; and the signals that ask it to stop."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from robust_interp.core.errors import UserError
from robust_interp.core.files import write_bytes


def state_file(folder: Path) -> Path:
    """Where the unfinished training of a checkpoint folder is kept; its name is no checkpoint's."""
    return folder.with_name(f".{folder.name}.resume.safetensors")


def write(path: Path, tensors: dict[str, Tensor], values: dict) -> None:
    """Replace a file at once by these tensors, with the values as JSON in its header; never a pickle.

    Raises:
        UserError: if it cannot be written; the one that was there is kept.
    """
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_bytes(path, to_bytes(content, {"values": json.dumps(values)}))


def read(path: Path) -> tuple[dict[str, Tensor], dict] | None:
    """What `write` was given for `path`, or None if there is no such file.

    Raises:
        UserError: if the file is damaged.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            values = json.loads(file.metadata()["values"])
            return {name: file.get_tensor(name) for name in file.keys()}, values  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"cannot read {path}: {error}; remove it to start over") from error


class Stopped(KeyboardInterrupt):
    """A training was asked to stop and has kept its state."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class StopSignals:
    """Within it Ctrl-C and SIGTERM only set `caught`, so that a state can be kept; a second one interrupts.

    Outside the main thread, where Python takes no signals, it does nothing.
    """

    caught: int | None = None

    def __enter__(self) -> StopSignals:
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for signum in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(signum) not in (signal.SIG_IGN, None):  # as under nohup
                    self._before[signum] = signal.signal(signum, self._catch)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)

    def _catch(self, signum: int, frame: FrameType | None) -> None:
        if self.caught is not None:
            raise KeyboardInterrupt
        self.caught = signum

    def __bool__(self) -> bool:
        return self.caught is not None

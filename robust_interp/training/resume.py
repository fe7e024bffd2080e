"""The state of an unfinished training beside its destination, its lock, and the signals that stop it."""

from __future__ import annotations

import hashlib
import json
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save as to_bytes
from torch import Tensor

from robust_interp.core.errors import UserError
from robust_interp.core.files import lock_file, remove_unlocked, write_bytes


def state_file(folder: Path) -> Path:
    """Where the unfinished training of a checkpoint folder is kept; its name is no checkpoint's."""
    return folder.with_name(f".{folder.name}.resume.safetensors")


def write(path: Path, tensors: dict[str, Tensor], values: dict) -> None:
    """Replace a file at once by these tensors, with the values as JSON in its header; never a pickle.

    Raises:
        UserError: if it cannot be written; the one that was there is kept.
    """
    content = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(values)
    write_bytes(path, to_bytes(content, {"values": text, "digest": _digest(content, text)}))


def read(path: Path) -> tuple[dict[str, Tensor], dict] | None:
    """What `write` was given for `path`, or None if there is no such file.

    Raises:
        UserError: if the file is damaged.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            said = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        # Older states have the values alone. A damaged name of the digest must not pass for one of them.
        if said.keys() != {"values"} and said["digest"] != _digest(tensors, said["values"]):
            raise ValueError("it is damaged: its digest does not match")
        return tensors, json.loads(said["values"])
    except (
        OSError,
        SafetensorError,
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
    ) as error:
        raise UserError(f"cannot read {path}: {error}; remove it to start over") from error


def _digest(tensors: dict[str, Tensor], text: str) -> str:
    """SHA-256 of the values' JSON, and of each tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\0{name!r} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Keep other processes from training the same checkpoint folder; what a killed one left does not count.

    Where the system has no flock, as on Windows, nothing is locked.

    Raises:
        UserError: if another process trains it.
    """
    for left_over in folder.parent.glob(".*_seed*.lock"):
        remove_unlocked(left_over)
    with lock_file(folder.with_name(f".{folder.name}.lock")) as is_ours:
        if not is_ours:
            raise UserError(f"{folder.name} is being trained by another process; wait for it or stop it")
        yield


def forget(folder: Path) -> None:
    """Remove the state of a training that is finished, where it can be."""
    with suppress(OSError):
        state_file(folder).unlink(missing_ok=True)


class StopSignals:
    """Within it Ctrl-C, SIGTERM and SIGHUP only set `caught`, so that a state can be kept.

    A second one interrupts. Outside the main thread, where Python takes no signals, it does nothing.
    """

    caught: int | None = None

    def __enter__(self) -> StopSignals:
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for signum in {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}:
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

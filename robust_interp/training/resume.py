"""Save and load the state of an unfinished training, lock its folder, and handle stop signals."""

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
    """Return the path of the saved state for a checkpoint folder. It does not look like a checkpoint."""
    return folder.with_name(f".{folder.name}.resume.safetensors")


def write(path: Path, tensors: dict[str, Tensor], values: dict) -> None:
    """Write a state atomically, as a safetensors file with the values as JSON in its header.

    Args:
        path: Path of the file; an existing one is replaced.
        tensors: Tensors by name.
        values: JSON values.

    Raises:
        UserError: if the file cannot be written; an existing one is kept.
    """
    # Copies, because safetensors refuses tensors that share memory, as layers with the same weights do.
    content = {
        name: tensor.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    text = json.dumps(values)
    write_bytes(path, to_bytes(content, {"values": text, "digest": _digest(content, text)}))


def read(path: Path) -> tuple[dict[str, Tensor], dict] | None:
    """Read the tensors and values of a file from `write`; None if there is no such file.

    Raises:
        UserError: if the file is damaged.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            said = file.metadata()
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        # Older states have no digest; only a header with nothing but the values counts as one of them.
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
    """Return the SHA-256 of the values' JSON and of each tensor's name, type, shape and bytes."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\0{name!r} {tensor.dtype} {tuple(tensor.shape)}\0".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


@contextmanager
def lock(folder: Path) -> Iterator[None]:
    """Lock a checkpoint folder against training by another process.

    Lock files of killed processes have no effect. Without flock, as on Windows, nothing is locked.

    Raises:
        UserError: if another process is training it.
    """
    for left_over in folder.parent.glob(".*_seed*.lock"):
        remove_unlocked(left_over)
    with lock_file(folder.with_name(f".{folder.name}.lock")) as is_ours:
        if not is_ours:
            raise UserError(f"{folder.name} is being trained by another process; wait for it or stop it")
        yield


def forget(folder: Path) -> None:
    """Remove the saved state of a finished training; errors are ignored."""
    with suppress(OSError):
        state_file(folder).unlink(missing_ok=True)


class StopSignals:
    """A context in which Ctrl-C, SIGTERM and SIGHUP only set `caught`, so that the state can be saved.

    A second signal raises KeyboardInterrupt. Outside the main thread, where Python handles no signals, the
    context does nothing.

    Attributes:
        caught: Number of the signal; None if there was none.
    """

    caught: int | None = None

    def __enter__(self) -> StopSignals:
        self._before: dict[int, Any] = {}
        if threading.current_thread() is threading.main_thread():
            for signum in {signal.SIGINT, signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM)}:
                if signal.getsignal(signum) not in (signal.SIG_IGN, None):  # not if ignored, as under nohup
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

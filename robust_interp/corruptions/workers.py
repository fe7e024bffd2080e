"""Processes that make generated images for this one, which speaks to them through their pipes.

A request is a line of JSON and the bytes of clean images; the answer is a line of JSON and the bytes of the
corrupted ones. A process imports nothing of the program that starts it, is silent, and ends when its input
does: none outlives what started it, however that ended.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import IO

import numpy as np

from robust_interp.core.environment import libjpeg
from robust_interp.corruptions.table import corrupt

BYTES: dict[str, np.dtype] = {
    "uint8": np.dtype(np.uint8),
    "float32": np.dtype(np.float32),
}  # what clean images may be
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@cache
def made_by() -> str:
    """What makes generated images, in a digest: the code of this room and the libraries that it calls.

    Nobody has to think of counting up a version for images on disk to be made anew.
    """
    sha = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        sha.update(path.read_bytes())
    versions = [importlib.metadata.version(name) for name in ("numpy", "scipy", "pillow")]
    sha.update(json.dumps([*versions, libjpeg()]).encode())
    return sha.hexdigest()


class WorkerGone(Exception):  # noqa: N818, no mistake: a state
    """A worker cannot do what it is asked to; the images are then made here."""


class Worker:
    """One such process.

    Attributes:
        pid: Of the process.

    Raises:
        WorkerGone: if it cannot be started, or is not of this very code.
    """

    def __init__(self) -> None:
        package = Path(__file__).parents[2]
        path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH", "")]))
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=os.environ | ONE_THREAD | {"PYTHONPATH": path},
                start_new_session=True,  # Ctrl-C is for the program alone, which then ends this one
            )
        except (OSError, ValueError) as error:
            raise WorkerGone from error
        self.pid = self._process.pid
        if self._read_line().get("made_by") != made_by():
            self.end()
            raise WorkerGone

    def make(self, clean: np.ndarray, name: str, severity: int, start: int, seed: int) -> np.ndarray:
        """What `corrupt` makes of clean images, the first of which has the id `start`.

        Raises:
            WorkerGone: if the process has ended, or failed.
        """
        clean = np.ascontiguousarray(clean)
        request = {"name": name, "severity": severity, "start": start, "seed": seed}
        request |= {"shape": clean.shape, "dtype": clean.dtype.name}
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")  # type: ignore[union-attr]
            self._process.stdin.write(clean.tobytes())  # type: ignore[union-attr]
            self._process.stdin.flush()  # type: ignore[union-attr]
            if not self._read_line().get("done"):
                raise WorkerGone
            body = self._process.stdout.read(clean.size)  # type: ignore[union-attr]
        except (OSError, ValueError) as error:
            raise WorkerGone from error
        if len(body) != clean.size:
            raise WorkerGone
        return np.frombuffer(body, np.uint8).reshape(clean.shape)

    def end(self) -> None:
        """End the process, whatever it is doing."""
        self._process.kill()
        self._process.wait()

    def _read_line(self) -> dict:
        try:
            return json.loads(self._process.stdout.readline())  # type: ignore[union-attr]
        except (OSError, ValueError):  # it has ended
            return {}


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until there are no more: what the process does."""
    _answer(answers, {"made_by": made_by()})
    while line := requests.readline():
        request = json.loads(line)
        shape, dtype = request["shape"], BYTES[request["dtype"]]
        clean = np.frombuffer(requests.read(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)
        ids = range(request["start"], request["start"] + len(clean))
        try:
            made = corrupt(clean, request["name"], request["severity"], ids, request["seed"])
        except Exception:  # it is made again where it was asked for, which tells why
            _answer(answers, {"done": False})
        else:
            _answer(answers, {"done": True}, made.tobytes())


def _answer(answers: IO[bytes], head: dict, body: bytes = b"") -> None:
    answers.write(json.dumps(head).encode() + b"\n" + body)
    answers.flush()


def main() -> None:
    """Speak through the pipes that this process was given; what it prints goes nowhere."""
    import robust_interp.corruptions  # noqa: F401  (they register)

    answers = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        serve(sys.stdin.buffer, answers)
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(0)


if __name__ == "__main__":
    main()

"""Worker processes that generate corrupted images. The main process talks to them through pipes.

A request is a line of JSON, followed by the bytes of the clean images. The answer is a line of JSON, followed
by the bytes of the corrupted images. A worker does not import the program that started it, prints nothing,
and exits when its standard input is closed. So no worker outlives the main process, however that one ended.
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
}  # possible types of the clean images
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


@cache
def made_by() -> str:
    """Return a hash of this subpackage's code and of the versions of the libraries that it calls.

    The keys of cached images contain it, so images are generated again after a change of the code.
    """
    sha = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        sha.update(path.read_bytes())
    versions = [importlib.metadata.version(name) for name in ("numpy", "scipy", "pillow")]
    sha.update(json.dumps([*versions, libjpeg()]).encode())
    return sha.hexdigest()


class WorkerGone(Exception):  # noqa: N818, the caller can go on without the worker
    """A worker did not start, has ended or failed. The main process then generates the images itself."""


class Worker:
    """A worker process.

    Attributes:
        pid: Id of the process.

    Raises:
        WorkerGone: if the process cannot be started, or has other code than this one.
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
                start_new_session=True,  # Ctrl-C reaches only the main process, which ends this one
            )
        except (OSError, ValueError) as error:
            raise WorkerGone from error
        self.pid = self._process.pid
        if self._read_line().get("made_by") != made_by():
            self.end()
            raise WorkerGone

    def make(self, clean: np.ndarray, name: str, severity: int, start: int, seed: int) -> np.ndarray:
        """Corrupt images in the worker, with the same result as `corrupt`.

        Args:
            clean: Clean images (N, C, H, W), uint8, or float32 in [0, 1].
            name: Name of the corruption.
            severity: Severity, 1 to 5.
            start: Id of the first image; the others follow.
            seed: Seed of the generated corruptions.

        Returns:
            Corrupted images (N, C, H, W), uint8.

        Raises:
            WorkerGone: if the process has ended or failed.
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
        """Kill the process, even if it is working."""
        self._process.kill()
        self._process.wait()

    def _read_line(self) -> dict:
        try:
            return json.loads(self._process.stdout.readline())  # type: ignore[union-attr]
        except (OSError, ValueError):  # the process has ended
            return {}


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Answer requests until the input ends: the main loop of the worker process."""
    _answer(answers, {"made_by": made_by()})
    while line := requests.readline():
        request = json.loads(line)
        shape, dtype = request["shape"], BYTES[request["dtype"]]
        clean = np.frombuffer(requests.read(int(np.prod(shape)) * dtype.itemsize), dtype).reshape(shape)
        ids = range(request["start"], request["start"] + len(clean))
        try:
            made = corrupt(clean, request["name"], request["severity"], ids, request["seed"])
        except Exception:  # the main process generates the images again and reports the error
            _answer(answers, {"done": False})
        else:
            _answer(answers, {"done": True}, made.tobytes())


def _answer(answers: IO[bytes], head: dict, body: bytes = b"") -> None:
    answers.write(json.dumps(head).encode() + b"\n" + body)
    answers.flush()


def main() -> None:
    """Run the worker process on standard input and output; discard what other code prints."""
    import robust_interp.corruptions  # noqa: F401  (registers the corruptions)

    answers = os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        serve(sys.stdin.buffer, answers)
    except (BrokenPipeError, KeyboardInterrupt):
        os._exit(0)


if __name__ == "__main__":
    main()

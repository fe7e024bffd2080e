"""Take over what the worker processes of torch's DataLoader make, in files.

A worker sends the name of a file alone. A large message would not fit into the pipe at once: if the worker is
killed in the middle of it, who reads it waits for ever, and if the reader is killed, so does the worker. And
where shared memory is full, as in a container with 64 MB of it, torch drops a tensor, and the reader waits.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from robust_interp.core.errors import UserError
from robust_interp.core.torch_internals import stop_workers

PREFETCHED = 2  # batches of a worker that are made and not taken yet

SLOTS = PREFETCHED + 2  # files of a worker: also for the batch that is read, and one to spare

GUARD = 'call evaluate below if __name__ == "__main__"'  # for a script that workers run again


class FromWorkers:
    """What a data set returns, in order, made by worker processes.

    Attributes:
        folder: The temporary folder of the files. It is removed when this object and its workers are gone.
        has_sent: Whether a worker has sent anything yet.

    Args:
        source: A map-style data set.
        workers: Number of worker processes, at least 1.
        convert: Called in a worker with what is sent, before it is written.
        options: Further arguments of torch's DataLoader.

    Raises:
        OSError: if the system allows no temporary folder.
    """

    def __init__(
        self, source: Any, workers: int, convert: Callable[[Any], Any] | None = None, **options: Any
    ) -> None:
        from torch.utils.data import DataLoader

        self.folder = Path(tempfile.mkdtemp(prefix="robust-interp-"))
        sender = Sender(self.folder, convert)
        # Whatever has workers refers to the sender. When it is collected, they have ended, and write no more.
        weakref.finalize(sender, _remove, self.folder, os.getpid())
        self.has_sent = False
        self._loader: DataLoader = DataLoader(
            source, num_workers=workers, prefetch_factor=PREFETCHED, collate_fn=sender, **options
        )

    def __iter__(self) -> Iterator[Any]:
        """Start the workers, or start them again, and yield what they make.

        Raises:
            OSError: if they cannot be started.
            Exception: any exception of a worker, all of which are stopped then.
        """
        made = iter(self._loader)
        try:
            for message in made:
                yield self._taken(message)
        except GeneratorExit:  # persistent workers may be asked for something else
            raise
        except BaseException:
            stop_workers(made)
            raise

    @property
    def lacks_a_guard(self) -> bool:
        """Whether workers that ended have probably run the user's script again, as those not forked do."""
        return not self.has_sent and multiprocessing.get_start_method() != "fork"

    def _taken(self, message: tuple[str, str]) -> Any:
        self.has_sent = True
        name, trouble = message
        if trouble:
            raise UserError(trouble)
        try:
            content = (self.folder / name).read_bytes()
        except OSError as error:
            raise UserError(_lacks(self.folder, error)) from error
        return pickle.loads(content)  # no other user can write to this folder


class Sender:
    """Writes what a worker has made to the next of its files, and returns the name and an error message.

    One of the two is ''. A worker begins with a batch only after what it made PREFETCHED batches before has
    been taken, so a file is never written while it is read.
    """

    def __init__(self, folder: Path, convert: Callable[[Any], Any] | None) -> None:
        self._folder, self._convert, self._made = folder, convert, 0

    def __call__(self, found: Any) -> tuple[str, str]:
        from torch.utils.data import get_worker_info

        if self._convert:
            found = self._convert(found)
        worker = get_worker_info()
        content = pickle.dumps(found, pickle.HIGHEST_PROTOCOL)  # may raise anything, such as of a lazy image
        name = f"{worker.id if worker else 0}-{self._made % SLOTS}"
        self._made += 1
        try:
            (self._folder / name).write_bytes(content)
        except OSError as error:
            return "", _lacks(self._folder, error)
        return name, ""


def _lacks(folder: Path, error: OSError) -> str:
    return (
        f"cannot use the temporary folder {folder}: {error.strerror}; choose another with TMPDIR, or "
        "--decode-workers 0"
    )


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked worker has the folder of its parent
        shutil.rmtree(folder, ignore_errors=True)

"""Several processes at work on one store: which part of a cell each has taken.

A process takes a part before it measures it, so that two on one store do half of the work each. It gives a
sign of life every few seconds. What a process had taken is free again once it is gone: at once where its
number can be looked up, else when it has given no sign for a while. Nothing rests on that: a process that was
only asleep adds what it has measured, and samples that are there already are left as they are.

Times are told by the reader's own clock, from the moment when it first saw a sign: clocks of two machines may
differ.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable
from contextlib import closing, suppress
from pathlib import Path

from robust_interp.store.connection import lightly

BEAT = 5.0  # seconds between two signs of life
EXPIRY = 60.0  # seconds without one, after which a process is taken for gone
LOOK = 1.0  # seconds between two looks at the other processes

_SIGN = """INSERT INTO holders VALUES (?, ?, ?, 0)
ON CONFLICT (name) DO UPDATE SET beat = holders.beat + 1"""

Part = tuple[int, int]  # the first sample, and the first one that is left out


class Leases:
    """What this process has taken in one database, and what others have.

    Args:
        db: In its transactions the methods are called, `close` apart.
        path: Of the database; None for one in memory, which nobody else sees.
    """

    def __init__(self, db: sqlite3.Connection, path: Path | None) -> None:
        self._db, self._path = db, path
        self._holder = (uuid.uuid4().hex, machine(), os.getpid())
        self._signs: dict[str, tuple[object, float]] = {}  # by process, its last sign and when it was seen
        self._looked = -LOOK
        self._heart: _Heart | None = None

    def take(
        self, cell: str, first: int, n: int, done: Iterable[Part], cut: Callable[[int], int]
    ) -> Part | None:
        """Take the first part of a cell that is free.

        Args:
            cell: Its key.
            first: How many of the first samples are finished.
            n: How many are to be.
            done: Parts beyond these that are finished, too.
            cut: Where a part that begins at a sample would end.

        Returns:
            None if there is none: it is finished, or others are at work on what is left.
        """
        self._begin()
        self._bury()
        found = self._db.execute("SELECT start, stop FROM leases WHERE cell = ?", (cell,)).fetchall()
        at = first
        for start, stop in sorted([*found, *done, (n, n)]):
            if at < min(start, n):
                end = min(cut(at), start, n)
                values = (cell, at, end, self._holder[0])
                self._db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)", values)
                return at, end
            at = max(at, stop)
        return None

    def holds(self, cell: str, start: int) -> bool:
        """Whether this process has taken the part of a cell that begins there."""
        query = "SELECT 1 FROM leases WHERE (cell, start, holder) = (?, ?, ?)"
        return bool(self._db.execute(query, (cell, start, self._holder[0])).fetchall())

    def release(self, cell: str, start: int) -> None:
        """Give back the part of a cell that begins there, if this process has it."""
        where = "WHERE (cell, start, holder) = (?, ?, ?)"
        self._db.execute(f"DELETE FROM leases {where}", (cell, start, self._holder[0]))

    def close(self) -> None:
        """Give everything back."""
        if self._heart:
            self._heart.stop()
            with suppress(sqlite3.Error):  # then it expires
                self._forget(self._holder[0])
            self._heart = None

    def _begin(self) -> None:
        """Be known as alive."""
        if self._heart or not self._path:
            return
        self._db.execute(_SIGN, self._holder)
        self._heart = _Heart(self._path, self._holder)
        self._heart.start()

    def _bury(self) -> None:
        """Free what processes that are gone had taken."""
        if time.monotonic() - self._looked < LOOK:
            return
        self._looked = now = time.monotonic()
        alive = {self._holder[0]}
        known = self._db.execute("SELECT name, machine, pid, beat FROM holders").fetchall()
        for name, place, pid, beat in known:
            if self._signs.get(name, (None, 0.0))[0] != beat:
                self._signs[name] = beat, now
            is_silent = now - self._signs[name][1] > EXPIRY
            if not is_silent and not (place == self._holder[1] and _is_gone(pid)):
                alive.add(name)
        holders = self._db.execute("SELECT name FROM holders UNION SELECT holder FROM leases").fetchall()
        for (name,) in holders:
            if name not in alive:
                self._forget(name)

    def _forget(self, name: str) -> None:
        self._db.execute("DELETE FROM leases WHERE holder = ?", (name,))
        self._db.execute("DELETE FROM holders WHERE name = ?", (name,))


class _Heart(threading.Thread):
    """Gives the signs of life of a process, while it is at work on what takes long."""

    def __init__(self, path: Path, holder: tuple[str, str, int]) -> None:
        super().__init__(name="signs of life", daemon=True)
        self._path, self._holder, self._end = path, holder, threading.Event()

    def stop(self) -> None:
        self._end.set()
        self.join()

    def run(self) -> None:
        where = f"{self._path.resolve().as_uri()}?mode=rw"  # not to make one that was removed
        with suppress(sqlite3.Error), closing(sqlite3.connect(where, uri=True, isolation_level=None)) as db:
            while not self._end.wait(BEAT):
                with suppress(sqlite3.Error), lightly(db):  # busy, or full: the next one may succeed
                    db.execute(_SIGN, self._holder)


def machine() -> str:
    """Where a number means one process: the machine since it was started, and the namespace."""
    found = [platform.node()]
    with suppress(OSError):
        found.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        found.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(found)


def _is_gone(pid: object) -> bool:
    """Whether there is surely no process of this number on this machine."""
    if sys.platform == "win32" or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        pass  # of another user
    return False

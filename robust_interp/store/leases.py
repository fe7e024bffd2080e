"""Leases: which process measures which part of a cell, when several processes share a store.

A process leases a part before it measures it, so that two processes share the work. It writes a heartbeat
every few seconds. The leases of a process that has ended are freed: at once if its process id can be checked
on this machine, otherwise when its heartbeat has stopped for a while. Correctness does not depend on leases:
a process that was only suspended can still store its results, and stored images are not changed.

The age of a heartbeat is measured by the reader's clock, from the moment when the reader first saw it, since
clocks of two machines may differ.
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

from robust_interp.store.connection import relaxed_durability, uri_of

BEAT = 5.0  # seconds between two heartbeats
EXPIRY = 60.0  # seconds without a heartbeat after which a process is considered ended
LOOK = 1.0  # seconds between two checks of the other processes

_SIGN = """INSERT INTO holders VALUES (?, ?, ?, 0)
ON CONFLICT (name) DO UPDATE SET beat = holders.beat + 1"""

Part = tuple[int, int]  # a range of images: index of the first one, index after the last one


class Leases:
    """The leases of this process in one database, and those of other processes.

    Args:
        db: The database. All methods except `close` must be called inside a transaction.
        path: Path of the database; None for a database in memory.
    """

    def __init__(self, db: sqlite3.Connection, path: Path | None) -> None:
        self._db, self._path = db, path
        self._holder = (uuid.uuid4().hex, machine(), os.getpid())
        self._claimed: dict[tuple[str, int], int] = {}  # cell, start -> stop of each part it is measuring
        self._signs: dict[str, tuple[object, float]] = {}  # process -> its last heartbeat, time it was seen
        self._looked = -LOOK
        self._heart: _Heart | None = None

    def acquire(
        self, cell: str, first: int, n: int, done: Iterable[Part], part_end: Callable[[int], int]
    ) -> Part | None:
        """Lease the first free part of a cell.

        Args:
            cell: Key of the cell.
            first: Number of its first images that are finished.
            n: Number of images to measure.
            done: Finished parts behind them.
            part_end: Maps the first image of a part to the index after its last image.

        Returns:
            The part; None if none is free: all are finished, or are being measured by this process or others.
        """
        self._begin()
        self._bury()
        found = self._db.execute("SELECT start, stop FROM leases WHERE cell = ?", (cell,)).fetchall()
        # If this process was suspended, its leases may be gone, but it still measures their parts.
        own = [(start, stop) for (of, start), stop in self._claimed.items() if of == cell]
        at = first
        for start, stop in sorted([*found, *own, *done, (n, n)]):
            if at < min(start, n):
                end = min(part_end(at), start, n)
                values = (cell, at, end, self._holder[0])
                self._db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?)", values)
                self._claimed[cell, at] = end
                return at, end
            at = max(at, stop)
        return None

    def owns(self, cell: str, start: int) -> bool:
        """Return whether this process measures the part of a cell that begins at `start`.

        It still does if others have freed its lease, since it was suspended.
        """
        return (cell, start) in self._claimed

    def release(self, cell: str, start: int) -> None:
        """Release the part of a cell that begins at `start`, if this process has leased it."""
        self._claimed.pop((cell, start), None)
        where = "WHERE (cell, start, holder) = (?, ?, ?)"
        self._db.execute(f"DELETE FROM leases {where}", (cell, start, self._holder[0]))

    def close(self) -> None:
        """Release all leases of this process."""
        if self._heart:
            self._heart.stop()
            with suppress(sqlite3.Error):  # the leases will expire
                self._forget(self._holder[0])
            self._heart = None

    def _begin(self) -> None:
        """Start the heartbeat, unless it is running."""
        if self._heart or not self._path:
            return
        self._db.execute(_SIGN, self._holder)
        self._heart = _Heart(self._path, self._holder)
        self._heart.start()

    def _bury(self) -> None:
        """Free the leases of processes that have ended."""
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
        self._signs.pop(name, None)  # if it was only suspended, its heartbeats are counted from 0 again
        self._db.execute("DELETE FROM leases WHERE holder = ?", (name,))
        self._db.execute("DELETE FROM holders WHERE name = ?", (name,))


class _Heart(threading.Thread):
    """A thread that writes the heartbeat of this process while it measures."""

    def __init__(self, path: Path, holder: tuple[str, str, int]) -> None:
        super().__init__(name="signs of life", daemon=True)
        self._path, self._holder, self._end = path, holder, threading.Event()

    def stop(self) -> None:
        self._end.set()
        self.join()

    def run(self) -> None:
        where = f"{uri_of(self._path.resolve())}?mode=rw"  # does not create a file that was removed
        with suppress(sqlite3.Error), closing(sqlite3.connect(where, uri=True, isolation_level=None)) as db:
            while not self._end.wait(BEAT):
                # if busy or full, the next heartbeat may succeed
                with suppress(sqlite3.Error), relaxed_durability(db):
                    db.execute(_SIGN, self._holder)


def machine() -> str:
    """Return the scope in which a process id is unique: host name, boot id and process namespace."""
    found = [platform.node()]
    with suppress(OSError):
        found.append(Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip())
        found.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(found)


def _is_gone(pid: object) -> bool:
    """Return whether certainly no process on this machine has this id."""
    if sys.platform == "win32" or not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except OSError:
        pass  # it belongs to another user
    return False

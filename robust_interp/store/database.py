"""Every finished chunk of a cell, durable at once: one SQLite file in WAL mode.

A cell always covers the first samples of its dataset, without gaps. `append` checks inside one transaction
what is there already, so that two processes on one store, or a run that was killed, can neither lose a
finished chunk nor count a sample twice; a larger n goes on where the smaller one ended.
"""

from __future__ import annotations

import math
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from robust_interp.core.errors import UserError
from robust_interp.store.cells import Plan
from robust_interp.store.outcome import Outcome

FILE_NAME = "cells.sqlite"

CHUNK = 250  # samples stored at a time, at most: what a kill can cost

PATIENCE = 60  # seconds to wait for another process that writes

_SCHEMA = """
CREATE TABLE IF NOT EXISTS chunks (
    cell TEXT NOT NULL, start INTEGER NOT NULL, count INTEGER NOT NULL,
    predictions BLOB NOT NULL, flags BLOB NOT NULL,
    deltas BLOB, seconds REAL NOT NULL, device TEXT NOT NULL,
    PRIMARY KEY (cell, start)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS labels (dataset TEXT PRIMARY KEY, labels BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS runs (
    plan TEXT PRIMARY KEY, dataset TEXT NOT NULL, finished INTEGER NOT NULL, text TEXT NOT NULL
);
CREATE TABLE IF NOT EXISTS audits (
    victim TEXT NOT NULL, dataset TEXT NOT NULL, verdict TEXT NOT NULL, text TEXT NOT NULL,
    PRIMARY KEY (victim, dataset)
) WITHOUT ROWID;
"""


def _row(cell: str, start: int, part: Outcome) -> tuple:
    predictions = part.predictions.astype("<i2").tobytes()
    flags = part.flags.astype(np.uint8).tobytes()
    deltas = None if part.deltas is None else part.deltas.astype("<f4").tobytes()
    return cell, start, len(part), predictions, flags, deltas, part.seconds, part.device


def _outcome(predictions: bytes, flags: bytes, deltas: bytes | None, seconds: float, device: str) -> Outcome:
    return Outcome(
        np.frombuffer(predictions, "<i2"),
        np.frombuffer(flags, np.uint8),
        None if deltas is None else np.frombuffer(deltas, "<f4"),
        seconds,
        device,
    )


def _connect(path: Path | str) -> sqlite3.Connection:
    """Open a database in WAL mode. To switch to it is the one thing that SQLite does not wait for itself."""
    db = sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)
    give_up = time.monotonic() + PATIENCE
    while True:
        try:
            db.execute("PRAGMA journal_mode=WAL")
            return db
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > give_up:
                raise
            time.sleep(0.01)


def _connect_to_read(path: Path) -> sqlite3.Connection:
    """Open a database that is there; where nothing can be written, not even beside it, as it lies on disk."""
    where = path.resolve().as_uri()
    try:
        # Not mode=ro: that would leave behind the file of WAL's shared memory.
        return _probed(sqlite3.connect(f"{where}?mode=rw", uri=True, timeout=PATIENCE))
    except sqlite3.OperationalError:
        return _probed(sqlite3.connect(f"{where}?immutable=1", uri=True))


def _probed(db: sqlite3.Connection) -> sqlite3.Connection:
    db.execute("SELECT cell FROM chunks LIMIT 1").fetchall()
    return db


class Store:
    """The finished cells in one folder; ``Store(None)`` keeps them in memory.

    Args:
        read_only: Write nothing, so that the folder need not be writable. The store must be there.

    Raises:
        UserError: if the folder cannot be written or the file is not a store.
    """

    def __init__(self, folder: Path | None, read_only: bool = False) -> None:
        self.path: Path | str = folder / FILE_NAME if folder else ":memory:"
        try:
            if read_only:
                self._db = _connect_to_read(Path(self.path))
                return
            if folder:
                folder.mkdir(parents=True, exist_ok=True)
            self._db = _connect(self.path)
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.executescript(_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise UserError(f"cannot use {self.path} as a store: {error}") from error

    def close(self) -> None:
        """Use it no more; what was written is on the disk already."""
        self._db.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _write(self) -> Iterator[sqlite3.Connection]:
        try:
            self._db.execute("BEGIN IMMEDIATE")
            yield self._db
            self._db.execute("COMMIT")
        except BaseException as error:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise UserError(f"cannot write to {self.path}: {error}; finished results are kept") from error
            raise

    def _rows(self, query: str, *values: object) -> list[tuple]:
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.Error as error:
            raise UserError(f"cannot read {self.path}: {error}") from error

    def covered(self, cell: str) -> int:
        """How many of the first samples of a cell, named by its key, are finished."""
        return self._rows("SELECT COALESCE(SUM(count), 0) FROM chunks WHERE cell = ?", cell)[0][0]

    def append(self, cell: str, start: int, outcome: Outcome) -> None:
        """Add samples from `start` on; those that are there already are left as they are.

        Args:
            cell: Its key.
            start: Of the first sample, counted from 0.
            outcome: Of that sample and those that follow it.

        Raises:
            ValueError: if that would leave a gap.
            UserError: if it cannot be written.
        """
        with self._write() as db:
            covered = self.covered(cell)
            if start > covered:
                raise ValueError(f"cell {cell} covers {covered} samples: cannot append from {start}")
            for at in range(covered - start, len(outcome), CHUNK):
                db.execute(
                    "INSERT INTO chunks VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                    _row(cell, start + at, outcome[at : at + CHUNK]),
                )

    def read(self, cell: str, n: int) -> Outcome | None:
        """The first `n` samples of a cell, or None if not all of them are finished."""
        rows = self._rows(
            "SELECT start, predictions, flags, deltas, seconds, device FROM chunks"
            " WHERE cell = ? AND start < ? ORDER BY start",
            cell,
            n,
        )
        chunks = [_outcome(*columns)[: n - start] for start, *columns in rows]
        if sum(map(len, chunks)) < n:
            return None
        attacked = chunks[0].deltas is not None
        return Outcome(
            np.concatenate([chunk.predictions for chunk in chunks]),
            np.concatenate([chunk.flags for chunk in chunks]),
            np.concatenate([chunk.deltas for chunk in chunks]) if attacked else None,
            math.fsum(chunk.seconds for chunk in chunks),
            "+".join(sorted({chunk.device for chunk in chunks})),
        )

    def put_labels(self, fingerprint: str, labels: np.ndarray) -> None:
        """Keep all labels (N,) of a dataset, named by its fingerprint."""
        with self._write() as db:
            db.execute(
                "INSERT OR IGNORE INTO labels VALUES (?, ?)", (fingerprint, labels.astype("<i2").tobytes())
            )

    def labels(self, fingerprint: str) -> np.ndarray:
        """All labels of a dataset that was measured here, named by its fingerprint; (N,) int16."""
        ((labels,),) = self._rows("SELECT labels FROM labels WHERE dataset = ?", fingerprint)
        return np.frombuffer(labels, "<i2")

    def put_plan(self, plan: Plan) -> None:
        """Remember a finished run, so that its tables can be rebuilt without a model or the data."""
        with self._write() as db:
            db.execute(
                "INSERT OR REPLACE INTO runs SELECT ?, ?, COALESCE(MAX(finished), 0) + 1, ? FROM runs",
                (plan.key, plan.dataset, plan.to_json()),
            )

    def plans(self) -> list[Plan]:
        """The finished runs, oldest first.

        Raises:
            UserError: if one was made by a version that this one cannot read.
        """
        rows = self._rows("SELECT text FROM runs ORDER BY finished")
        try:
            return [Plan.from_json(text) for (text,) in rows]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{self.path} contains runs that this version cannot read: use the version that wrote them"
            ) from error

    def put_audit(self, classifier: str, fingerprint: str, verdict: str, text: str) -> None:
        """Keep what an audit came to; an older one of the same classifier and dataset is replaced.

        Args:
            classifier: Its hash.
            fingerprint: Of the dataset.
            verdict: One word for a table.
            text: As JSON, what that rests on.
        """
        with self._write() as db:
            db.execute(
                "INSERT OR REPLACE INTO audits VALUES (?, ?, ?, ?)", (classifier, fingerprint, verdict, text)
            )

    def audits(self) -> list[str]:
        """What was kept of every audit, by dataset and classifier."""
        return [text for (text,) in self._rows("SELECT text FROM audits ORDER BY dataset, victim")]

    def verdict(self, classifier: str, fingerprint: str) -> str:
        """What a classifier's audit on a dataset came to, by their hashes; empty if it was not audited."""
        if not self._rows("SELECT 1 FROM sqlite_master WHERE name = 'audits'"):
            return ""  # a store from before there were audits, opened to read
        query = "SELECT verdict FROM audits WHERE victim = ? AND dataset = ?"
        return next((verdict for (verdict,) in self._rows(query, classifier, fingerprint)), "")

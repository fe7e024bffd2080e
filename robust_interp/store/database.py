"""The store: the finished chunks of all cells, in one SQLite file.

The stored images of a cell are always the first ones of its data set, without gaps. `append` checks inside
one transaction what is stored already. So neither a second process nor a killed run can lose a finished chunk
or count an image twice, and a run with a larger n continues where the smaller one ended. Concurrent processes
measure different parts of a cell (`claim`). A part that is finished before the parts ahead of it waits in the
table `waiting`.

Every row is checked when it is read. A damaged chunk and all later chunks of its cell are ignored until they
are measured again. Damage is reported when the store is closed, in one line per kind.
"""

from __future__ import annotations

import hashlib
import math
import os
import sqlite3
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

import numpy as np

from robust_interp.core.errors import DamageWarning, UserError
from robust_interp.core.texts import reason_of
from robust_interp.store import connection, log
from robust_interp.store.cells import Cell, Plan
from robust_interp.store.connection import put, transaction
from robust_interp.store.damage import Damage, Fault
from robust_interp.store.integers import packed, packed_labels, unpacked, unpacked_labels
from robust_interp.store.leases import Leases, Part
from robust_interp.store.outcome import Outcome
from robust_interp.store.seal import COLUMNS, is_sound, read_plan
from robust_interp.store.verdicts import with_radii

FILE_NAME = "cells.sqlite"

CHUNK = 250  # largest number of images in a row of the table `chunks`

_DAMAGED = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CONSTRAINT)


class ChangedError(Exception):
    """An image has changed since it was measured.

    Attributes:
        at: Index of the image, counted from 0.
    """

    def __init__(self, at: int) -> None:
        super().__init__(f"image {at} has changed")
        self.at = at


def _refuse_changed(start: int, known: np.ndarray, hashes: np.ndarray) -> None:
    """Raise ChangedError at the first image whose two hashes (n,) differ; 0 stands for an unknown one."""
    if (changed := (known != 0) & (hashes != 0) & (known != hashes)).any():
        raise ChangedError(start + int(changed.argmax()))


def _row(cell: str, start: int, part: Outcome) -> tuple:
    predictions = packed(part.predictions)
    flags = part.flags.astype(np.uint8).tobytes()
    deltas = None if part.deltas is None else part.deltas.astype("<f4").tobytes()
    return cell, start, len(part), predictions, flags, deltas, float(part.seconds), part.device


def _outcome(row: tuple) -> Outcome:
    """Inverse of `_row`."""
    _, _, count, predictions, flags, deltas, seconds, device, _ = row
    return Outcome(
        unpacked(predictions, count),
        np.frombuffer(flags, np.uint8),
        None if deltas is None else np.frombuffer(deltas, "<f4"),
        seconds,
        device,
    )


class Store:
    """The finished cells in one folder; ``Store(None)`` keeps them in memory.

    Args:
        folder: The results folder; None keeps the store in memory.
        read_only: Whether nothing is written. The store must exist; the folder need not be writable.
        journal: Journal mode of SQLite: ``auto``, ``wal`` or ``delete``; see `connection`.

    Attributes:
        damage: Damage that was found so far.

    Raises:
        UserError: if the folder cannot be written, the file is not a store, or a newer version wrote it.
    """

    def __init__(self, folder: Path | None, read_only: bool = False, journal: str = "auto") -> None:
        self.path: Path | str = folder / FILE_NAME if folder else ":memory:"
        self.damage = Damage()
        self._sound: dict[str, int] = {}  # key of a cell -> number of its first images that were checked
        self._counted: set[str] = set()  # tables whose number of rows was checked
        try:
            if folder and not read_only:
                folder.mkdir(parents=True, exist_ok=True)
            if folder and (trouble := log.unreadable(folder / FILE_NAME)):
                self.damage.note(Fault.LOG, trouble)
            if folder and read_only:
                self._db = connection.open_for_reading(folder / FILE_NAME)
            else:
                self._db = connection.open_for_writing(self.path, journal)
            self._sealed = connection.format_of(self._db, self.path) > 0
            self._file = self._place()
            self._leases = Leases(self._db, self.path if isinstance(self.path, Path) else None)
        except (OSError, sqlite3.Error, UnicodeError) as error:
            raise self._refusal(f"cannot use {self.path} as a store", error) from error

    def close(self) -> None:
        """Close the store. Everything written is on the disk already.

        Warns:
            DamageWarning: one line for each kind of damage that was found.
        """
        self._leases.close()
        self._db.close()
        found, self.damage = self.damage, Damage()
        for line in found.lines(self.path):
            warnings.warn(line, DamageWarning, stacklevel=2)

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _place(self) -> tuple[int, int] | None:
        """Return the identity of the file at the path; None for a store in memory."""
        if isinstance(self.path, str):
            return None
        found = os.stat(self.path)
        return found.st_dev, found.st_ino

    def _refusal(self, what: str, error: Exception) -> UserError:
        """Make a one-line error from an exception, with a hint if the file is damaged."""
        # Other exceptions than those of SQLite and the system are caused by a damaged file.
        code = getattr(error, "sqlite_errorcode", 0 if isinstance(error, OSError) else sqlite3.SQLITE_CORRUPT)
        hint = ""
        if code & 0xFF in _DAMAGED and isinstance(self.path, Path):
            hint = f"; robust-interp store repair {self.path.parent} keeps what can be read"
        return UserError(f"{what}: {reason_of(error)}{hint}")

    @contextmanager
    def _write(self, durably: bool = True) -> Iterator[sqlite3.Connection]:
        try:
            with nullcontext() if durably else connection.relaxed_durability(self._db), transaction(self._db):
                self._check_place()
                yield self._db
        except sqlite3.Error as error:
            refusal = self._refusal(f"cannot write to {self.path}", error)
            raise UserError(f"{refusal}; finished results are kept") from error

    def _check_place(self) -> None:
        try:
            if self._place() == self._file:
                return
        except OSError:
            pass
        raise UserError(f"{self.path} was removed or replaced during the run: repeat the command")

    def _rows(self, query: str, *values: object) -> list[tuple]:
        try:
            return self._db.execute(query, values).fetchall()
        except (sqlite3.Error, UnicodeError) as error:
            raise self._refusal(f"cannot read {self.path}", error) from error

    def _has(self, table: str) -> bool:
        """Return whether a table exists; a store of an older format that is opened read-only may lack it."""
        return bool(self._rows("SELECT 1 FROM sqlite_master WHERE name = ?", table))

    def _select(self, table: str, where: str = "", *values: object) -> list[tuple]:
        """Return rows of a table, each with its digest as the last value; None in a store without digests."""
        columns = ", ".join(COLUMNS[table]) + (", digest" if self._sealed else ", NULL")
        return self._rows(f"SELECT {columns} FROM {table} {where}", *values)

    def _chunks(self, cell: str, begin: int, end: int) -> list[tuple]:
        """Return the sound rows of a cell from image `begin` up to `end`, without gaps.

        The rows after a damaged or missing one are left out.
        """
        where = "WHERE cell = ? AND start < ? ORDER BY start" if not begin else ""
        where = where or "WHERE cell = ? AND start < ? AND start >= ? ORDER BY start"
        found, at = [], begin
        for row in self._select("chunks", where, cell, end, *([begin] if begin else [])):
            if row[0] != cell or row[1] != at or not is_sound("chunks", row, self._sealed):
                self.damage.note(Fault.CHUNK, f"cell {cell[:12]} from image {at + 1} on")
                break
            found.append(row)
            at += row[2]
        return found

    def covered(self, cell: str) -> int:
        """Return how many of the first images of a cell, given by its key, are finished and undamaged."""
        known = self._sound.get(cell, 0)  # checked before; only whether they were removed is checked again
        if known:
            query = "SELECT COALESCE(SUM(count), 0) FROM chunks WHERE cell = ? AND start < ?"
            known = known if self._rows(query, cell, known) == [(known,)] else 0
        more = self._chunks(cell, known, _ALL)
        self._sound[cell] = more[-1][1] + more[-1][2] if more else known
        return self._sound[cell]

    def covered_by(self, cell: Cell) -> int:
        """Return how many of the first images are finished for a cell, or for the same cell without skips."""
        return max(map(self.covered, {cell.key, cell.without_skips.key}))

    def claim(self, cell: str, n: int, part_end: Callable[[int], int]) -> Part | None:
        """Claim a part of a cell that is neither finished nor claimed by another process.

        The claim ends when the part is appended or released, the store is closed, or this process ends. If
        it is suspended for long, other processes no longer see its claims; its results are still stored.

        Args:
            cell: Key of the cell.
            n: Number of images to measure.
            part_end: Maps the first image of a part to the index after its last image.

        Returns:
            The index of the first image and the index after the last one; None if no part is free.

        Raises:
            UserError: if the store cannot be written.
        """
        if self.covered(cell) >= n:
            return None
        with self._write(durably=False) as db:
            waiting = self._connected(db, cell)
            return self._leases.acquire(cell, self.covered(cell), n, waiting, part_end)

    def release(self, cell: str, start: int) -> None:
        """Give up the claim to the part of a cell that begins at `start`. Others may then measure it.

        Raises:
            UserError: if the store cannot be written.
        """
        with self._write(durably=False):
            self._leases.release(cell, start)

    def append(self, cell: str, start: int, outcome: Outcome) -> None:
        """Add the outcome of images from `start` on; images that are stored already are not changed.

        Damaged chunks, and those after them in the cell, are replaced. A part that this process has claimed
        may be appended before the parts ahead of it, even if its claim was lost while it was suspended.

        Args:
            cell: Key of the cell.
            start: Index of the first image, counted from 0.
            outcome: Outcome of this image and those that follow.

        Raises:
            UserError: if an unclaimed part would leave a gap, or the store cannot be written.
        """
        with self._write() as db:
            covered = self.covered(cell)
            if start > covered and self._leases.owns(cell, start):
                self._let_wait(db, cell, start, outcome)
                self._leases.release(cell, start)
                return
            if start > covered:
                raise UserError(
                    f"cell {cell} covers {covered} images: cannot append from {start}; if damaged ones were "
                    "removed meanwhile, repeat the command"
                )
            self._add(db, cell, covered, start, outcome)
            self._leases.release(cell, start)
            self._connected(db, cell)

    def _add(self, db: sqlite3.Connection, cell: str, covered: int, start: int, outcome: Outcome) -> None:
        """Add images to a cell whose first `covered` images are stored; `start` is at most `covered`."""
        if covered >= start + len(outcome):
            return
        self._remove_beyond(cell, covered)
        for at in range(covered - start, len(outcome), CHUNK):
            put(db, "chunks", *_row(cell, start + at, outcome[at : at + CHUNK]))

    def _let_wait(self, db: sqlite3.Connection, cell: str, start: int, outcome: Outcome) -> None:
        """Keep images until those ahead of them are finished; images that wait already are not changed.

        If this process was suspended, another one may have measured some of them meanwhile.
        """
        is_new = np.ones(len(outcome), bool)
        for row in self._waiting(cell):
            if is_sound("waiting", row, True):
                is_new[max(0, row[1] - start) : max(0, row[1] + row[2] - start)] = False
        edges = np.flatnonzero(np.diff(is_new, prepend=False, append=False))
        for begin, end in edges.reshape(-1, 2).tolist():
            for at in range(begin, end, CHUNK):
                put(db, "waiting", *_row(cell, start + at, outcome[at : min(at + CHUNK, end)]))

    def _waiting(self, cell: str) -> list[tuple]:
        """Return the rows of a cell that wait, each with its digest; damaged ones, too."""
        columns = ", ".join(COLUMNS["chunks"])
        return self._rows(f"SELECT {columns}, digest FROM waiting WHERE cell = ? ORDER BY start", cell)

    def _connected(self, db: sqlite3.Connection, cell: str) -> list[Part]:
        """Add waiting parts that now follow the finished ones. Return the parts that still wait."""
        parts = []
        for row in self._waiting(cell):
            start, is_whole, covered = row[1], is_sound("waiting", row, True), self.covered(cell)
            if is_whole and start > covered:
                parts.append((start, start + row[2]))
                continue
            if is_whole:
                self._add(db, cell, covered, start, _outcome(row))
            db.execute("DELETE FROM waiting WHERE (cell, start) = (?, ?)", row[:2])
        return parts

    def _remove_beyond(self, cell: str, covered: int) -> None:
        """Remove all rows of a cell except the sound ones of its first `covered` images."""
        ((there,),) = self._rows("SELECT COUNT(*) FROM chunks WHERE cell = ?", cell)
        sound = self._chunks(cell, 0, covered) if covered else []
        if there == len(sound):
            return
        self._db.execute("DELETE FROM chunks WHERE cell = ?", (cell,))
        for *values, _ in sound:
            put(self._db, "chunks", *values)

    def read(self, cell: str, n: int) -> Outcome | None:
        """Return the outcome of the first `n` images of a cell; None unless all are stored and undamaged."""
        rows = self._chunks(cell, 0, n)
        if not rows or rows[-1][1] + rows[-1][2] < n:
            return None
        _, starts, counts, predictions, flags, deltas, seconds, devices, _ = zip(*rows, strict=True)
        attacked = deltas[0] is not None
        if any((delta is not None) != attacked for delta in deltas):
            return None  # chunks with and without deltas cannot be joined
        share = (n - starts[-1]) / counts[-1]
        return Outcome(
            np.concatenate([*map(unpacked, predictions, counts)])[:n],
            np.frombuffer(b"".join(flags), np.uint8, n),
            np.frombuffer(b"".join(deltas), "<f4", n) if attacked else None,
            math.fsum([*seconds[:-1], seconds[-1] * share]),
            "+".join(sorted(set(devices))),
        )

    def put_labels(self, fingerprint: str, labels: np.ndarray) -> None:
        """Store all labels (N,) of a data set, given by its fingerprint; different ones are replaced."""
        values = fingerprint, packed_labels(labels)
        there = self._select("labels", "WHERE dataset = ?", fingerprint)
        if there and there[0][:2] == values and is_sound("labels", there[0], self._sealed):
            return
        if there:
            self.damage.note(Fault.LABELS, _short(fingerprint))
        with self._write() as db:
            self._put(db, "labels", "dataset", *values)

    def labels(self, fingerprint: str, n: int = 1) -> np.ndarray:
        """Return all labels (N,) of a measured data set.

        Args:
            fingerprint: Fingerprint of the data set.
            n: Smallest valid number of labels.

        Raises:
            UserError: if they are missing or damaged.
        """
        for row in self._select("labels", "WHERE dataset = ?", fingerprint):
            is_there = row[0] == fingerprint and is_sound("labels", row, self._sealed)
            if is_there and len(found := unpacked_labels(row[1])) >= n:
                return found
        raise UserError(
            f"{self.path} has lost the labels of the data set {_short(fingerprint)}, or they are damaged: "
            "the next robust-interp bench on it writes them again"
        )

    def put_pixels(self, fingerprint: str, start: int, hashes: np.ndarray) -> None:
        """Store the hashes of measured images, and compare them with those stored before, which are kept.

        Args:
            fingerprint: Fingerprint of the data set, which does not cover the content of the images.
            start: Index of the first image.
            hashes: Hashes of consecutive images, (n,) uint64; 0 for an image that was not read.

        Raises:
            ChangedError: if an image is stored with another hash.
        """
        known = self.pixels(fingerprint, start + len(hashes))[start:]
        _refuse_changed(start, known, hashes)
        if not ((hashes != 0) & (known == 0)).any():
            return
        with self._write() as db:
            row = self._known_row(fingerprint, start, len(hashes))
            known = row[: len(hashes)]
            _refuse_changed(start, known, hashes)  # another process may have stored them since
            row[: len(hashes)] = np.where(known != 0, known, hashes)
            put(db, "pixels", fingerprint, start, row.astype("<u8").tobytes())

    def _known_row(self, fingerprint: str, start: int, n: int) -> np.ndarray:
        """Return the stored hashes of at least `n` images from `start`, as many as a row there has."""
        rows = self._select("pixels", "WHERE dataset = ? AND start = ?", fingerprint, start)
        sizes = [len(row[2]) // 8 for row in rows if is_sound("pixels", row, self._sealed)]
        return self.pixels(fingerprint, start + max([n, *sizes]))[start:]

    def pixels(self, fingerprint: str, n: int) -> np.ndarray:
        """Return the hashes of the first `n` images of a data set, (n,) uint64; 0 if unknown."""
        found = np.zeros(n, np.uint64)
        if not self._has("pixels"):
            return found  # a store of an older format, opened read-only
        for row in self._select("pixels", "WHERE dataset = ? AND start < ?", fingerprint, n):
            if not is_sound("pixels", row, self._sealed):
                self.damage.note(Fault.PIXELS, _short(fingerprint))
                continue
            hashes = np.frombuffer(row[2], "<u8")[: n - row[1]]
            there = found[row[1] : row[1] + len(hashes)]
            there[hashes != 0] = hashes[hashes != 0]
        return found

    def content(self, fingerprint: str, n: int) -> str:
        """Return a hash of the content of the first `n` images; '' unless it is known for all of them."""
        found = self.pixels(fingerprint, n)
        return hashlib.sha256(found.tobytes()).hexdigest() if found.all() else ""

    def _put(self, db: sqlite3.Connection, table: str, key: str, *values: object) -> None:
        """Write a row of a table in COUNTED, and count it; `key` names its key columns, joined by commas."""
        named = values[: len(key.split(","))]
        marks = ", ".join("?" * len(named))
        is_new = not self._rows(f"SELECT 1 FROM {table} WHERE ({key}) = ({marks})", *named)
        put(db, table, *values)
        for row in self._select("counts", "WHERE name = ?", table):
            # A damaged count is not changed: it is reported until the store is repaired.
            if is_new and is_sound("counts", row, self._sealed):
                put(db, "counts", table, row[1] + 1)

    def _check_count(self, table: str) -> None:
        """Check the number of rows of a table, since a damaged page can hide rows from every query."""
        if table in self._counted or not self._sealed:
            return
        self._counted.add(table)
        # One query for both numbers, since other processes may write. The index may be sound while the table
        # is damaged, so it is not used.
        query = f"SELECT *, (SELECT COUNT(*) FROM {table} NOT INDEXED) FROM counts WHERE name = ?"
        told = self._rows(query, table)
        if not told or not is_sound("counts", told[0][:-1], True):
            self.damage.note(Fault.COUNT, table)
        elif told[0][1] != told[0][-1]:
            self.damage.note(Fault.LOST, f"{table}: {told[0][-1]} of {told[0][1]} are there")

    def put_plan(self, plan: Plan) -> None:
        """Store the plan of a finished run, so that its tables can be rebuilt without models and data."""
        with self._write() as db:
            self._put(db, "runs", "plan", plan.key, plan.dataset, self.newest_run() + 1, plan.to_json())

    def newest_run(self) -> int:
        """Return the number of the run that finished last, as in `runs`; 0 without any."""
        # A damaged row may hold any number.
        ((newest,),) = self._rows("SELECT COALESCE(MAX(finished), 0) FROM runs WHERE finished < 1 << 53")
        return newest

    def plans(self) -> list[Plan]:
        """Return the plans of finished runs that can be read, oldest first."""
        return [plan for _, plan in self.runs()]

    def runs(self) -> list[tuple[int, Plan]]:
        """Return the finished runs that can be read, oldest first: numbers that rise with time, and plans."""
        self._check_count("runs")
        found = []
        for row in self._select("runs"):
            key, dataset, finished, text, _ = row
            if not is_sound("runs", row, self._sealed):
                self.damage.note(Fault.RUN, _short(key))
            elif (plan := read_plan(key, dataset, text)) is None:
                self.damage.note(Fault.FOREIGN, _short(key))
            else:
                found.append((finished, plan))
        return sorted(found, key=lambda one: one[0])

    def put_audit(self, classifier: str, fingerprint: str, verdict: str, text: str) -> None:
        """Store the result of an audit; an older one of the same classifier and data set is replaced.

        Args:
            classifier: Hash of the classifier.
            fingerprint: Fingerprint of the data set.
            verdict: Conclusion without radii, such as ``pass(n=200)``; they are those of the findings.
            text: The lines of the audit as JSON.
        """
        with self._write() as db:
            self._put(db, "audits", "victim, dataset", classifier, fingerprint, verdict, text)

    def audits(self) -> list[str]:
        """Return the JSON texts of all audits, ordered by data set and classifier."""
        return [row[3] for row in self._audits("ORDER BY dataset, victim")]

    def verdict(self, classifier: str, fingerprint: str) -> str:
        """Return the conclusion of the audit of a classifier on a data set, with the audited radii.

        It is empty if the classifier was not audited.
        """
        found = self._audits("WHERE victim = ? AND dataset = ?", classifier, fingerprint)
        return next((with_radii(*row[2:4]) for row in found if row[:2] == (classifier, fingerprint)), "")

    def _audits(self, where: str, *values: object) -> Iterator[tuple]:
        if not self._has("audits"):
            return  # a store of an older format, opened read-only
        self._check_count("audits")
        for row in self._select("audits", where, *values):
            if is_sound("audits", row, self._sealed):
                yield row
            else:
                self.damage.note(Fault.AUDIT, f"of the model {_short(row[0])}")

    def note_missing(self, cell: Cell, n: int) -> None:
        """Note that a finished run asked for the first `n` images of a cell, and some of them are missing."""
        self.damage.note(Fault.MISSING, f"{cell.classifier.label} {cell.perturbation.column}, n = {n}")

    def check(self) -> None:
        """Read the whole store; note damage, and measurements of finished runs that are missing."""
        for (cell,) in self._rows("SELECT DISTINCT cell FROM chunks"):
            self.covered(cell)
        self._check_count("labels")
        for row in self._select("labels"):
            if not is_sound("labels", row, self._sealed):
                self.damage.note(Fault.LABELS, _short(row[0]))
        for row in self._select("pixels") if self._has("pixels") else ():
            if not is_sound("pixels", row, self._sealed):
                self.damage.note(Fault.PIXELS, _short(row[0]))
        for _ in self._audits(""):
            pass
        for plan in (part for whole in self.plans() for part in whole.parts):
            for cell in plan.cells:
                if self.covered_by(cell) < plan.n:
                    self.note_missing(cell, plan.n)


_ALL = 2**62  # larger than the index of any image


def _short(text: object) -> str:
    """Return the beginning of a hash, which may be damaged, safe to print."""
    return ascii(text).strip("'")[:12]

"""Check a whole store for damage, and rebuild it from its sound rows."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from robust_interp.core.errors import UserError
from robust_interp.core.files import flush_to_disk, scratch_folder
from robust_interp.store import connection, log
from robust_interp.store.connection import put, transaction
from robust_interp.store.damage import Damage, Fault
from robust_interp.store.database import FILE_NAME, Store
from robust_interp.store.pages import records
from robust_interp.store.seal import COLUMNS, COUNTED, KEYS, is_sound

# Tables that are copied; `counts` is computed again. The table `waiting` has the form of `chunks`.
KEPT = ("chunks", "waiting", "labels", "runs", "audits", "pixels")
_COLUMNS = COLUMNS | {"waiting": COLUMNS["chunks"]}
_KEYS = KEYS | {"waiting": KEYS["chunks"]}

# Faults that rebuilding cannot repair. What SQLite drops from a damaged log is lost once it opens the file.
NOT_IN_THE_FILE = (Fault.MISSING, Fault.FOREIGN, Fault.LOG)

_FAULTS_SHOWN = 100  # largest number of faults of a file's structure that are listed

_SPOILT = (sqlite3.Error, UnicodeError)


class Repaired(NamedTuple):
    """The result of a repair.

    Attributes:
        damage: Damage before the repair.
        kept: Number of rows kept of each table; empty if the file was not rebuilt.
        old: Path of the damaged file, which is kept; None if the file was not rebuilt.
        left: Damage after the repair.
    """

    damage: Damage
    kept: dict[str, int]
    old: Path | None
    left: Damage


def check(folder: Path) -> Damage:
    """Read a whole store and check it.

    Returns:
        What is damaged or missing; empty if the store is sound.

    Raises:
        UserError: if there is no store, or a newer version wrote it.
    """
    path = _there(folder)
    damage = Damage()
    if trouble := log.unreadable(path):
        damage.note(Fault.LOG, trouble)
    try:
        with closing(connection.open_for_reading(path)) as db:
            for (line,) in db.execute(f"PRAGMA integrity_check({_FAULTS_SHOWN})"):
                if line != "ok":
                    damage.note(Fault.FILE, " ".join(str(line).split()))
    except _SPOILT as error:
        damage.note(Fault.FILE, str(error))
        return damage
    with Store(folder, read_only=True) as store:
        try:
            store.check()
        except UserError as error:  # a page that cannot be read
            damage.note(Fault.FILE, str(error))
        damage.take(store.damage)
    return damage


def repair(folder: Path) -> Repaired:
    """Rebuild a damaged store from its sound rows. The damaged file is kept beside it.

    Other processes that have the store open get an error at their next write.

    Raises:
        UserError: as in `check`; or if another process is writing, or the folder is read-only or full.
    """
    path, damage = _there(folder), check(folder)
    if not damage.beyond(*NOT_IN_THE_FILE):
        return Repaired(damage, {}, None, damage)
    with _locked(path), scratch_folder(path) as place:
        new = place / "new.sqlite"
        try:
            kept = _build(path, place / FILE_NAME, new)
        except sqlite3.OperationalError as error:  # such as no room on the disk
            raise UserError(f"{folder} cannot be repaired: {error}; it is unchanged") from error
        old = _put_aside(path)
        new.replace(path)
    return Repaired(damage, kept, old, check(folder))


def _there(folder: Path) -> Path:
    path = folder / FILE_NAME
    if path.is_file():
        return path
    raise UserError(f"there is no store in {folder}: {_why_not(folder)}")


def _why_not(folder: Path) -> str:
    """Return why there is no store in a folder, with a suggestion."""
    if folder.is_file():
        return "it is a file, and a results folder is needed"
    if not folder.is_dir():
        return "there is no such folder"
    try:
        nearby = sorted(path.parent for path in folder.glob(f"*/{FILE_NAME}"))
    except OSError as error:
        return f"it cannot be read: {error.strerror}"
    if nearby:
        return f"did you mean {nearby[0]}?"
    return f"it has no {FILE_NAME}, which robust-interp bench --out {folder} writes"


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the database against other writers, if SQLite still can. The log is not merged into the file."""
    with closing(sqlite3.connect(path, timeout=connection.PATIENCE, isolation_level=None)) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                raise UserError(f"another process is writing to {path}: let it end first") from error
        yield


def _build(path: Path, copy: Path, new: Path) -> dict[str, int]:
    """Make a new store from the readable rows of a damaged one.

    Args:
        path: The damaged file, which is not changed.
        copy: Path for a copy of it, which SQLite reads.
        new: Path of the new file.

    Returns:
        Number of rows of each table in the new file.
    """
    for end in ("", "-wal"):
        if Path(f"{path}{end}").exists():
            shutil.copyfile(f"{path}{end}", f"{copy}{end}")
    journal = "delete" if connection.chose_rollback(path) else "auto"
    with closing(connection.open_for_writing(new, journal)) as db:
        with transaction(db):
            is_sealed = _copy_by_query(copy, db)
            if is_sealed:
                _copy_by_page(path, db)
            _remove_unreachable(db)
            _connect(db)
            kept = {table: _count(db, table) for table in KEPT}
            for table in COUNTED:
                put(db, "counts", table, kept[table])
        db.execute("PRAGMA journal_mode=DELETE")  # leaves a single file without a log
    flush_to_disk(new)
    return kept


def _copy_by_query(copy: Path, db: sqlite3.Connection) -> bool:
    """Copy the sound rows that SQLite can read. Return whether the store has digests; True if unknown."""
    try:
        source = connection.open_for_reading(copy)
        is_sealed = connection.format_of(source, copy) > 0
    except _SPOILT:
        return True
    with closing(source):
        for table in KEPT:
            columns = ", ".join(_COLUMNS[table]) + (", digest" if is_sealed else ", NULL")
            key = ", ".join(f"{name} DESC" for name in _COLUMNS[table][: _KEYS[table]])
            # In both directions: rows behind an unreadable page can be reached from the other end.
            for order in ("", f" ORDER BY {key}"):
                with suppress(*_SPOILT):  # older stores lack some tables
                    for row in source.execute(f"SELECT {columns} FROM {table}{order}"):
                        if is_sound(table, row, is_sealed):
                            _keep(db, table, row[:-1])
                    break
    return is_sealed


def _copy_by_page(path: Path, db: sqlite3.Connection) -> None:
    """Copy the sound rows of all pages; not those of audits, since a page may hold an outdated one."""
    seconds = COLUMNS["chunks"].index("seconds")
    for row in records(path):
        for table in ("chunks", "waiting", "labels", "runs"):
            if len(row) != len(_COLUMNS[table]) + 1:
                continue
            if table == "chunks" and isinstance(row[seconds], int):
                row[seconds] = float(row[seconds])  # SQLite stores whole REALs as integers
            if is_sound(table, row, True):  # the digest covers the table's name
                _keep(db, table, row[:-1])


def _keep(db: sqlite3.Connection, table: str, values: Sequence) -> None:
    """Add a row. Of several rows with the same key the first is kept; of runs, the one finished last."""
    named = " AND ".join(f"{name} = ?" for name in _COLUMNS[table][: _KEYS[table]])
    order = COLUMNS["runs"].index("finished")
    there = db.execute(f"SELECT * FROM {table} WHERE {named}", values[: _KEYS[table]]).fetchone()
    if there is None or (table == "runs" and there[order] < values[order]):
        put(db, table, *values)


def _remove_unreachable(db: sqlite3.Connection) -> None:
    """Remove the chunks behind a gap in their cell."""
    covered: dict[str, int] = {}
    for cell, start, count in db.execute(
        "SELECT cell, start, count FROM chunks ORDER BY cell, start"
    ).fetchall():
        if start == covered.setdefault(cell, 0):
            covered[cell] += count
        else:
            db.execute("DELETE FROM chunks WHERE cell = ? AND start = ?", (cell, start))


def _connect(db: sqlite3.Connection) -> None:
    """Make chunks of the waiting parts that follow the chunks of their cell; remove those that are chunks.

    A part that overlaps the chunks still waits: the next run adds its other images.
    """
    covered = dict(db.execute("SELECT cell, SUM(count) FROM chunks GROUP BY cell").fetchall())
    for *values, _ in db.execute("SELECT * FROM waiting ORDER BY cell, start").fetchall():
        cell, start, count = values[:3]
        done = covered.get(cell, 0)
        if start == done:
            put(db, "chunks", *values)
            covered[cell] = done = done + count
        if start + count <= done:
            db.execute("DELETE FROM waiting WHERE (cell, start) = (?, ?)", (cell, start))


def _count(db: sqlite3.Connection, table: str) -> int:
    return db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]


def _put_aside(path: Path) -> Path:
    """Copy or link the database to a new name, and move its log there."""
    number = 1
    while (old := path.with_name(f"{path.name}.damaged{number}")).exists():
        number += 1
    try:
        os.link(path, old)
    except OSError:  # the file system has no hard links
        shutil.copyfile(path, old)
    # SQLite would take a remaining log for that of the new database.
    with suppress(FileNotFoundError):
        Path(f"{path}-wal").replace(f"{old}-wal")
    Path(f"{path}-shm").unlink(missing_ok=True)
    return old

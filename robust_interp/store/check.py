"""A store read from end to end: all that is damaged; and built anew of what is sound."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from robust_interp.core.errors import UserError
from robust_interp.core.files import scratch_folder
from robust_interp.store import connection, log
from robust_interp.store.connection import put, transaction
from robust_interp.store.damage import Damage, Fault
from robust_interp.store.database import FILE_NAME, Store
from robust_interp.store.pages import records
from robust_interp.store.seal import COLUMNS, COUNTED, KEYS, is_sound

KEPT = ("chunks", "labels", "runs", "audits", "pixels")  # tables, but for what is counted anew

# What a file built anew has no cure for. What SQLite leaves out of its log is lost once that was opened.
NOT_IN_THE_FILE = (Fault.MISSING, Fault.FOREIGN, Fault.LOG)

_FAULTS_SHOWN = 100  # of a file's structure, at most

_SPOILT = (sqlite3.Error, UnicodeError)


class Repaired(NamedTuple):
    """What a repair came to.

    Attributes:
        damage: What was found.
        kept: How many rows of each table were kept; empty if nothing had to be built anew.
        old: Where the damaged file is kept; None likewise.
        left: What the store still lacks.
    """

    damage: Damage
    kept: dict[str, int]
    old: Path | None
    left: Damage


def check(folder: Path) -> Damage:
    """Read all of a store.

    Returns:
        What is damaged or missing: nothing if the store is sound.

    Raises:
        UserError: if there is no store, or it is of a newer version.
    """
    path = _there(folder)
    damage = Damage()
    if trouble := log.unreadable(path):
        damage.note(Fault.LOG, trouble)
    try:
        with closing(connection.to_read(path)) as db:
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
    """Build a damaged store anew of all rows that are sound; the damaged file is kept beside it.

    Other processes that write to the store meanwhile are refused at their next write.

    Raises:
        UserError: as `check` does; or if another process is writing, or the folder cannot be written.
    """
    path, damage = _there(folder), check(folder)
    if not damage.beyond(*NOT_IN_THE_FILE):
        return Repaired(damage, {}, None, damage)
    with _locked(path), scratch_folder(path) as place:
        new = place / "new.sqlite"
        kept = _build(path, place / FILE_NAME, new)
        old = _put_aside(path)
        new.replace(path)
    return Repaired(damage, kept, old, check(folder))


def _there(folder: Path) -> Path:
    path = folder / FILE_NAME
    if path.is_file():
        return path
    raise UserError(f"there is no store in {folder}: {_why_not(folder)}")


def _why_not(folder: Path) -> str:
    """What stands where a results folder should be, and what may have been meant."""
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
    """Keep others from writing, as far as SQLite can still tell; what it has not merged yet is left alone."""
    with closing(sqlite3.connect(path, timeout=connection.PATIENCE, isolation_level=None)) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
                raise UserError(f"another process is writing to {path}: let it end first") from error
        yield


def _build(path: Path, copy: Path, new: Path) -> dict[str, int]:
    """Make a new store of what can be read of one.

    Args:
        path: The damaged one; its bytes are read, and left as they are.
        copy: Where a copy for SQLite to read may be made.
        new: The new one.

    Returns:
        How many rows of each table it has.
    """
    for end in ("", "-wal"):
        if Path(f"{path}{end}").exists():
            shutil.copyfile(f"{path}{end}", f"{copy}{end}")
    with closing(connection.to_write(new)) as db:
        with transaction(db):
            is_sealed = _copy_by_query(copy, db)
            if is_sealed:
                _copy_by_page(path, db)
            _remove_unreachable(db)
            kept = {table: _count(db, table) for table in KEPT}
            for table in COUNTED:
                put(db, "counts", table, kept[table])
        db.execute("PRAGMA journal_mode=DELETE")  # one file, with no log to be left behind
    with new.open("rb") as file:
        os.fsync(file.fileno())
    return kept


def _copy_by_query(copy: Path, db: sqlite3.Connection) -> bool:
    """Take over the sound rows that SQLite finds; whether the store has digests, which is so if in doubt."""
    try:
        source = connection.to_read(copy)
        is_sealed = connection.format_of(source, copy) > 0
    except _SPOILT:
        return True
    with closing(source):
        for table in KEPT:
            columns = ", ".join(COLUMNS[table]) + (", digest" if is_sealed else ", NULL")
            key = ", ".join(f"{name} DESC" for name in COLUMNS[table][: KEYS[table]])
            # From both ends: what lies behind a page that cannot be read is found from the other one.
            for order in ("", f" ORDER BY {key}"):
                with suppress(*_SPOILT):
                    for row in source.execute(f"SELECT {columns} FROM {table}{order}"):
                        if is_sound(table, row, is_sealed):
                            _keep(db, table, row[:-1])
                    break
    return is_sealed


def _copy_by_page(path: Path, db: sqlite3.Connection) -> None:
    """Take over the sound rows of any page; not of audits: what is found may be an older one."""
    tables = {len(COLUMNS[table]) + 1: table for table in ("chunks", "labels", "runs")}
    for row in records(path):
        table = tables.get(len(row))
        if table == "chunks" and isinstance(row[6], int):
            row[6] = float(row[6])  # as its column says
        if table and is_sound(table, row, True):
            _keep(db, table, row[:-1])


def _keep(db: sqlite3.Connection, table: str, values: Sequence) -> None:
    """Add a row; of several with one key the first, and of runs the last that finished."""
    named = " AND ".join(f"{name} = ?" for name in COLUMNS[table][: KEYS[table]])
    order = COLUMNS["runs"].index("finished")
    there = db.execute(f"SELECT * FROM {table} WHERE {named}", values[: KEYS[table]]).fetchone()
    if there is None or (table == "runs" and there[order] < values[order]):
        put(db, table, *values)


def _remove_unreachable(db: sqlite3.Connection) -> None:
    """Remove the chunks that do not follow one another from the first sample of their cell on."""
    covered: dict[str, int] = {}
    for cell, start, count in db.execute(
        "SELECT cell, start, count FROM chunks ORDER BY cell, start"
    ).fetchall():
        if start == covered.setdefault(cell, 0):
            covered[cell] += count
        else:
            db.execute("DELETE FROM chunks WHERE cell = ? AND start = ?", (cell, start))


def _count(db: sqlite3.Connection, table: str) -> int:
    return db.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]


def _put_aside(path: Path) -> Path:
    """Give a database another name besides its own, and its log no other than that."""
    number = 1
    while (old := path.with_name(f"{path.name}.damaged{number}")).exists():
        number += 1
    try:
        os.link(path, old)
    except OSError:  # not every file system can
        shutil.copyfile(path, old)
    # A log that stayed would be taken for one of the new database.
    with suppress(FileNotFoundError):
        Path(f"{path}-wal").replace(f"{old}-wal")
    Path(f"{path}-shm").unlink(missing_ok=True)
    return old

"""The database file: how it is opened, which format it has, and how an older one becomes the newest.

It is in WAL mode, in which readers and a writer are not in each other's way. Its processes then share memory,
so they must be on one machine. On a file system of several machines a rollback journal is used, which needs
locks only, and so it is where memory cannot be shared.
"""

from __future__ import annotations

import mmap
import sqlite3
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from operator import methodcaller
from pathlib import Path

from robust_interp.core.errors import UserError
from robust_interp.core.paths import resolved
from robust_interp.store.seal import COLUMNS, COUNTED, KEYS, has_form, seal

PATIENCE = 60  # seconds to wait for another process that writes

PATIENCE_WITH_WAL = 5  # seconds to wait for those that have the file open in WAL mode, which may take hours

NETWORK = {
    "9p", "afs", "beegfs", "ceph", "cephfs", "cifs", "davfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs",
    "nfs4", "pvfs2", "s3fs", "smb3", "smbfs", "sshfs", "weka", "wekafs",
}  # file systems, as Linux calls them  # fmt: skip

_AT_ONCE, _AT_TIMES = 1, 1000  # pages of the log after which they are moved into the file

_CHOSEN = 0x52494A44  # PRAGMA application_id of a file whose rollback journal was asked for

FORMAT = 2  # PRAGMA user_version; 0 are stores from before rows had digests, 1 those without `pixels`

OLDEST = {"chunks", "labels", "runs"}  # the tables that every store of format 0 has

_SCHEMA = {
    "chunks": """CREATE TABLE chunks (
    cell TEXT NOT NULL, start INTEGER NOT NULL, count INTEGER NOT NULL,
    predictions BLOB NOT NULL, flags BLOB NOT NULL,
    deltas BLOB, seconds REAL NOT NULL, device TEXT NOT NULL, digest BLOB,
    PRIMARY KEY (cell, start)
) WITHOUT ROWID""",
    "labels": "CREATE TABLE labels (dataset TEXT PRIMARY KEY, labels BLOB NOT NULL, digest BLOB)",
    "runs": """CREATE TABLE runs (
    plan TEXT PRIMARY KEY, dataset TEXT NOT NULL, finished INTEGER NOT NULL, text TEXT NOT NULL, digest BLOB
)""",
    "audits": """CREATE TABLE audits (
    victim TEXT NOT NULL, dataset TEXT NOT NULL, verdict TEXT NOT NULL, text TEXT NOT NULL, digest BLOB,
    PRIMARY KEY (victim, dataset)
) WITHOUT ROWID""",
    "pixels": """CREATE TABLE pixels (
    dataset TEXT NOT NULL, start INTEGER NOT NULL, hashes BLOB NOT NULL, digest BLOB,
    PRIMARY KEY (dataset, start)
) WITHOUT ROWID""",
    "counts": "CREATE TABLE counts (name TEXT PRIMARY KEY, rows INTEGER NOT NULL, digest BLOB) WITHOUT ROWID",
}

# Tables that any store may be given besides: they are of work that is under way, and hold no result.
BESIDE = (
    """CREATE TABLE IF NOT EXISTS holders (
    name TEXT PRIMARY KEY, machine TEXT NOT NULL, pid INTEGER NOT NULL, beat INTEGER NOT NULL
) WITHOUT ROWID""",
    """CREATE TABLE IF NOT EXISTS leases (
    cell TEXT NOT NULL, start INTEGER NOT NULL, stop INTEGER NOT NULL, holder TEXT NOT NULL,
    PRIMARY KEY (cell, start)
) WITHOUT ROWID""",
    _SCHEMA["chunks"].replace("CREATE TABLE chunks", "CREATE TABLE IF NOT EXISTS waiting"),
)


def to_write(path: Path | str, journal: str = "auto") -> sqlite3.Connection:
    """Open a database in the newest format; one that is not there is made.

    Args:
        path: Of the file, or ``:memory:``.
        journal: ``wal`` or ``delete`` (SQLite's rollback journal); ``auto`` is ``delete`` on a network file
            system, where it was chosen before and where memory cannot be shared, else ``wal``.

    Raises:
        UserError: if it is of a newer version or no store, is open elsewhere with another journal, or is on
            a file system without locks.
        sqlite3.Error: if it cannot be used.
    """
    if isinstance(path, Path):
        _check_locks(path.parent)
    db = _plain(sqlite3.connect(path, timeout=PATIENCE, isolation_level=None))
    try:
        format_of(db, path)  # before anything is written to what may be no store
        _use_journal(db, path, journal)
        db.execute("PRAGMA synchronous=FULL")
        with transaction(db):
            if (version := format_of(db, path)) < FORMAT:
                _renew(db, version)
            for statement in BESIDE:
                db.execute(statement)
            if journal == "delete":
                db.execute(f"PRAGMA application_id = {_CHOSEN}")
            elif journal == "wal":
                db.execute("PRAGMA application_id = 0")
    except BaseException:
        db.close()
        raise
    return db


def to_read(path: Path) -> sqlite3.Connection:
    """Open a database that is there; where nothing can be written, not even beside it, as it lies on disk.

    Raises:
        UserError: if it is of a newer version or no store.
        sqlite3.Error: if it cannot be used.
    """
    where = resolved(path).as_uri()
    try:
        # Not mode=ro: that would leave behind the file of WAL's shared memory.
        return _probed(f"{where}?mode=rw", path)
    except sqlite3.OperationalError:
        return _probed(f"{where}?immutable=1", path)


def _probed(uri: str, path: Path) -> sqlite3.Connection:
    db = _plain(sqlite3.connect(uri, uri=True, timeout=PATIENCE, isolation_level=None))
    try:
        if not format_of(db, path) and not _tables(db):
            raise UserError(f"{path} is not a store: it is empty")
        db.execute("SELECT cell FROM chunks LIMIT 1").fetchall()
    except BaseException:
        db.close()
        raise
    return db


def _plain(db: sqlite3.Connection) -> sqlite3.Connection:
    """Texts that are damaged can be read, to be found damaged."""
    db.text_factory = methodcaller("decode", "utf-8", "surrogateescape")
    return db


def _use_journal(db: sqlite3.Connection, path: Path | str, journal: str) -> None:
    """Switch to WAL mode or from it: the one thing that SQLite does not wait for itself."""
    if journal == "auto":
        was_chosen = db.execute("PRAGMA application_id").fetchone() == (_CHOSEN,)
        is_apart = isinstance(path, Path) and (on_network(path) or not _shares_memory(path.parent))
        journal = "delete" if was_chosen or is_apart else "wal"
    patience = PATIENCE if journal == "wal" else PATIENCE_WITH_WAL
    give_up = time.monotonic() + patience
    while True:
        try:
            db.execute(f"PRAGMA journal_mode={journal}")
            # People copy the file and leave the log: it holds no more than what is just being written.
            db.execute(f"PRAGMA wal_autocheckpoint={_AT_ONCE}")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                raise
            if time.monotonic() > give_up:
                if journal == "wal":
                    raise
                raise UserError(
                    f"{path} is open in another process in WAL mode, which is not safe on a network file "
                    "system: end that process first, or give both --store-journal delete"
                ) from error
            time.sleep(0.01)


def _check_locks(folder: Path) -> None:
    """Refuse a file system without locks, which SQLite would take for another process that writes.

    Raises:
        UserError: if no file can be locked there.
    """
    if sys.platform == "win32":
        return
    import fcntl

    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise UserError(
                f"cannot keep results in {folder}: no file can be locked there ({error.strerror}): choose a "
                "folder on another disk"
            ) from error


def _shares_memory(folder: Path) -> bool:
    """Whether processes can share the memory that a file in a folder stands for, as the log needs it."""
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            file.truncate(mmap.PAGESIZE)
            mmap.mmap(file.fileno(), mmap.PAGESIZE).close()
        except OSError:
            return False
    return True


def on_network(path: Path, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Whether a path is on a file system that several machines may share, where the system tells.

    Args:
        path: It need not be there.
        mounts: The table of what is mounted, as Linux has it.
    """
    try:
        lines = mounts.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
        resolved = path.resolve()
    except OSError:
        return False
    found = (len(Path("/").parts) - 1, "")
    for line in lines:
        _, place, kind, *_ = [*line.split(), "", "", ""]
        folder = Path(place.replace("\\040", " "))
        if resolved.is_relative_to(folder) and len(folder.parts) >= found[0]:
            found = len(folder.parts), kind
    return found[1].removeprefix("fuse.") in NETWORK


@contextmanager
def lightly(db: sqlite3.Connection) -> Iterator[None]:
    """Within, WAL mode waits for no disk: for what a power cut may take, and only that."""
    is_log = db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    db.execute(f"PRAGMA synchronous={'NORMAL' if is_log else 'FULL'}")
    db.execute(f"PRAGMA wal_autocheckpoint={_AT_TIMES}")
    try:
        yield
    finally:
        db.execute("PRAGMA synchronous=FULL")
        db.execute(f"PRAGMA wal_autocheckpoint={_AT_ONCE}")


@contextmanager
def transaction(db: sqlite3.Connection, kind: str = "IMMEDIATE") -> Iterator[None]:
    """All that is done within, or nothing of it; `kind` DEFERRED is for reading what belongs together."""
    db.execute(f"BEGIN {kind}")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def format_of(db: sqlite3.Connection, path: Path | str) -> int:
    """The format of a store; 0 for a database without tables.

    Raises:
        UserError: if it is of a newer version, damaged, or no store.
    """
    ((version,),) = db.execute("PRAGMA user_version")
    if version > FORMAT:
        raise UserError(
            f"{path} was written by a newer version of robust-interp (format {version}; this one reads up to "
            f"{FORMAT}): use that version"
        )
    tables = _tables(db)
    of_format = {FORMAT: set(COLUMNS), 1: set(COLUMNS) - {"pixels"}, 0: OLDEST if tables else set()}.get(
        version
    )
    digest = ("digest",) if version else ()
    if of_format is None or not of_format <= tables.keys():
        raise sqlite3.DatabaseError("it is damaged, or no store: tables are missing")
    for name, columns in tables.items():
        if name in COLUMNS and columns != COLUMNS[name] + digest:
            raise sqlite3.DatabaseError(f"it is damaged, or no store: the columns of {name} are others")
    return version


def _tables(db: sqlite3.Connection) -> dict[str, tuple[str, ...]]:
    """The columns of each table."""
    names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {
        name: tuple(column for (column,) in db.execute("SELECT name FROM pragma_table_info(?)", (name,)))
        for name in names
    }


def _renew(db: sqlite3.Connection, version: int) -> None:
    """Make the tables that are missing, and seal the rows of format 0, if they have the right form."""
    there = _tables(db)
    for table, statement in _SCHEMA.items():
        if table not in there:
            db.execute(statement)
        if version or table not in there:
            continue
        db.execute(f"ALTER TABLE {table} ADD COLUMN digest BLOB")
        key, columns = COLUMNS[table][: KEYS[table]], COLUMNS[table]
        rows = db.execute(f"SELECT {', '.join(columns)} FROM {table}")
        digests = [(seal(table, row), *row[: len(key)]) for row in rows if has_form(table, row)]
        named = " AND ".join(f"{name} = ?" for name in key)
        db.executemany(f"UPDATE {table} SET digest = ? WHERE {named}", digests)
    for table in () if version else COUNTED:
        ((rows,),) = db.execute(f"SELECT COUNT(*) FROM {table}")
        put(db, "counts", table, rows)
    db.execute(f"PRAGMA user_version = {FORMAT}")


def put(db: sqlite3.Connection, table: str, *values: object) -> None:
    """Write a row with its digest; one of the same key is replaced."""
    marks = ", ".join("?" * (len(values) + 1))
    db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", (*values, seal(table, values)))

"""The database file: open it, find its format, and upgrade older formats.

It is in WAL mode, in which readers and a writer do not block each other. WAL mode needs memory that the
processes share, so they must be on one machine. On a network file system, or where memory cannot be shared, a
rollback journal is used, which only needs file locks.
"""

from __future__ import annotations

import mmap
import sqlite3
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from operator import methodcaller
from pathlib import Path, PurePath

from robust_interp.core.errors import IgnoredWarning, UserError
from robust_interp.core.paths import resolved
from robust_interp.store.seal import COLUMNS, COUNTED, KEYS, has_form, seal

PATIENCE = 60  # seconds to wait for another process that is writing

PATIENCE_WITH_WAL = 5  # seconds to wait for processes in WAL mode, which may keep the file open for hours

NETWORK = {
    "9p", "afs", "beegfs", "ceph", "cephfs", "cifs", "davfs", "glusterfs", "gpfs", "lustre", "ncpfs", "nfs",
    "nfs4", "pvfs2", "s3fs", "smb3", "smbfs", "sshfs", "weka", "wekafs",
}  # names of file systems in Linux  # fmt: skip

_AT_ONCE, _AT_TIMES = 1, 1000  # WAL checkpoint after this many pages: durable writes; light writes

_CHOSEN = 0x52494A44  # PRAGMA application_id of a file whose rollback journal the user asked for

FORMAT = 2  # PRAGMA user_version; format 0 has no digests, format 1 has no table `pixels`

OLDEST = {"chunks", "labels", "runs"}  # tables of every store of format 0

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

# Tables of work in progress, which hold no results. They are created in stores of every format.
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


def chose_rollback(path: Path) -> bool:
    """Return whether the user asked for a rollback journal, by the header of a file that may be damaged."""
    with path.open("rb") as file:
        return file.read(72)[68:] == _CHOSEN.to_bytes(4, "big")


def open_for_writing(path: Path | str, journal: str = "auto") -> sqlite3.Connection:
    """Open a database for writing; create it or upgrade it to the newest format if needed.

    Args:
        path: Path of the file, or ``:memory:``.
        journal: ``wal`` or ``delete`` (SQLite's rollback journal). ``auto`` is ``delete`` on a network file
            system, if it was chosen before, or if memory cannot be shared; otherwise ``wal``.

    Raises:
        UserError: if a newer version wrote it, it is not a store, another process has it open with another
            journal, or the file system has no locks.
        sqlite3.Error: if it cannot be used.
    """
    if isinstance(path, Path):
        _check_locks(path.parent)
    db = _plain(sqlite3.connect(path, timeout=PATIENCE, isolation_level=None))
    try:
        format_of(db, path)  # checked before writing, since the file may not be a store
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


def uri_of(path: PurePath) -> str:
    """Return an absolute path as SQLite's URI; in that of a Windows share it takes no server."""
    uri = path.as_uri()
    return uri.replace("file://", "file:////", 1) if uri.startswith("file://") and uri[7] != "/" else uri


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Open an existing database for reading. In a read-only folder it is opened as immutable.

    SQLite then ignores its log and its rollback journal, which a warning says if they are not empty.

    Raises:
        UserError: if a newer version wrote it, or it is not a store.
        sqlite3.Error: if it cannot be used, or another process has kept it locked.
    """
    where = uri_of(resolved(path))
    try:
        # Not mode=ro: it would leave the shared-memory file of WAL mode behind.
        return _probed(f"{where}?mode=rw", path)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            raise
        _warn_of_the_rest(path)
        return _probed(f"{where}?immutable=1", path)


def _warn_of_the_rest(path: Path) -> None:
    for end, what in (("-wal", "the last results"), ("-journal", "what undoes an interrupted write")):
        beside = Path(f"{path}{end}")
        if beside.exists() and beside.stat().st_size:
            said = f"{beside} is ignored, which has {what}: it is read only where {path} can be written"
            warnings.warn(said, IgnoredWarning, stacklevel=2)


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
    """Let damaged texts be read without an error, so that they are found by their digest."""
    db.text_factory = methodcaller("decode", "utf-8", "surrogateescape")
    return db


def _use_journal(db: sqlite3.Connection, path: Path | str, journal: str) -> None:
    """Set the journal mode. Wait for other processes here, since SQLite does not wait for this switch."""
    if journal == "auto":
        was_chosen = db.execute("PRAGMA application_id").fetchone() == (_CHOSEN,)
        is_apart = isinstance(path, Path) and (on_network(path) or not _shares_memory(path.parent))
        journal = "delete" if was_chosen or is_apart else "wal"
    patience = PATIENCE if journal == "wal" else PATIENCE_WITH_WAL
    give_up = time.monotonic() + patience
    while True:
        try:
            db.execute(f"PRAGMA journal_mode={journal}")
            # Users may copy the file without its log. So the log is emptied after each write.
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
    """Check that files in a folder can be locked. Otherwise SQLite reports that another process is writing.

    Raises:
        UserError: if no file can be locked.
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
    """Return whether files in a folder can be mapped into memory, which WAL mode needs."""
    with tempfile.TemporaryFile(dir=folder) as file:
        try:
            file.truncate(mmap.PAGESIZE)
            mmap.mmap(file.fileno(), mmap.PAGESIZE).close()
        except OSError:
            return False
    return True


def on_network(path: Path, mounts: Path = Path("/proc/self/mounts")) -> bool:
    """Return whether a path is on a network file system; False if the system does not say.

    Args:
        path: A path, which need not exist.
        mounts: Linux's table of mounted file systems.
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
def relaxed_durability(db: sqlite3.Connection) -> Iterator[None]:
    """Context of writes that need not survive a power cut: in WAL mode they do not wait for the disk."""
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
    """Run the context as one transaction; `kind` DEFERRED is for several reads at one moment."""
    db.execute(f"BEGIN {kind}")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def format_of(db: sqlite3.Connection, path: Path | str) -> int:
    """Return the format of a store; 0 for a database without tables.

    Raises:
        UserError: if a newer version wrote it.
        sqlite3.DatabaseError: if it is damaged or not a store.
    """
    # The number and the columns are of one moment: another process may be creating or upgrading the store.
    with nullcontext() if db.in_transaction else transaction(db, "DEFERRED"):
        ((version,),) = db.execute("PRAGMA user_version")
        tables = _tables(db)
    if version > FORMAT:
        raise UserError(
            f"{path} was written by a newer version of robust-interp (format {version}; this one reads up to "
            f"{FORMAT}): use that version"
        )
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
    """Return the columns of each table."""
    names = [name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
    return {
        name: tuple(column for (column,) in db.execute("SELECT name FROM pragma_table_info(?)", (name,)))
        for name in names
    }


def _renew(db: sqlite3.Connection, version: int) -> None:
    """Create missing tables, and add digests to the rows of format 0 that have a valid form."""
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
    """Write a row with its digest; a row of the same key is replaced."""
    marks = ", ".join("?" * (len(values) + 1))
    db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", (*values, seal(table, values)))

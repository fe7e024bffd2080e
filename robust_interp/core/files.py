"""Atomic writing of files and folders, and the hash of a file.

A file is first written under a temporary name in the same folder and then renamed. So no reader sees half of
a file, even if the writing process is killed. The temporary name begins with a dot and contains a random
number, so that two processes never use the same name. (Two containers may have equal process ids.) The
temporary file is removed on every error. Temporary files of a killed process are no longer locked; the next
process that writes to the folder removes them.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from robust_interp.core.errors import UserError

_TEMPORARY = re.compile(r"\.part\d+\..+", re.DOTALL)
_GLANCES, _GLANCE = 5, 0.01  # attempts, s: `remove_unlocked` of another process holds a lock for a moment
_UNTOUCHED = 0  # modification time of a temporary file until it is written


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file as a hexadecimal text.

    Raises:
        OSError: if it cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_text(path: Path, text: str) -> None:
    """Write a text file as UTF-8, replacing an existing file atomically.

    Args:
        path: Path of the file. Its folder must exist.
        text: Content, written unchanged, including line ends.

    Raises:
        UserError: if it cannot be written; an existing file is kept.
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"))  # a file name in it may not be valid UTF-8


def make_folder(path: Path) -> Path:
    """Create a folder and its parents unless they exist. Return the folder.

    Raises:
        UserError: if it cannot be created.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error}") from error
    return path


def write_bytes(path: Path, content: bytes) -> None:
    """Write bytes to a file, see `write_text`."""
    with new_file(path) as part, part.open("wb") as file:
        file.write(content)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """Yield a temporary path to write to, which is renamed to `path` at the end of the context.

    It has the same extension as `path`, for libraries that choose the format by the extension.

    Args:
        path: Path of the file, which is replaced if it exists. Its folder must exist.

    Raises:
        UserError: if it cannot be written; an existing file is kept.
    """
    part = _temporary(path)
    try:
        _check_replaceable(path)
        _remove_left_over(path.parent)
        with _locked(part, _made_file):
            try:
                yield part
                if part.stat().st_mtime == _UNTOUCHED:
                    raise FileNotFoundError(errno.ENOENT, "nothing was written")
                flush_to_disk(part)
                part.replace(path)
            finally:
                with suppress(OSError):  # it was renamed
                    part.unlink()
    except OSError as error:
        raise _refusal(path, error) from error


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder to fill, which is renamed to `path` at the end of the context.

    Args:
        path: Path of the folder. Missing parents are created.

    Raises:
        UserError: if it cannot be written, or `path` is a file or a folder that is not empty, which is kept.
    """
    with scratch_folder(path) as part:
        yield part
        for file in filter(Path.is_file, part.rglob("*")):
            flush_to_disk(file)
        with suppress(OSError):
            path.rmdir()  # an empty folder, which Windows does not replace
        part.rename(path)


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder beside `path`, which is removed at the end of the context.

    Args:
        path: Path of the final file or folder. Missing parents are created.

    Raises:
        UserError: if the folder cannot be created.
    """
    part = _temporary(path)
    try:
        _remove_left_over(path.parent)
        with _locked(part, _made_folder):
            try:
                yield part
            finally:
                shutil.rmtree(part, ignore_errors=True)
    except OSError as error:
        raise _refusal(path, error) from error


def _temporary(path: Path) -> Path:
    return path.with_name(f".part{secrets.randbelow(10**8)}.{path.name}")


def _check_replaceable(path: Path) -> None:
    """Raise OSError if `path` is a folder, a device or another special file, which must not be replaced."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "there is a folder of that name")
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "there is something of that name that is no file")


def _refusal(path: Path, error: OSError) -> UserError:
    if isinstance(error, FileNotFoundError) and not path.parent.is_dir():
        return UserError(f"cannot write {path}: there is no folder {path.parent}, or no longer")
    return UserError(f"cannot write {path}: {error.strerror or error}")


def flush_to_disk(path: Path) -> None:
    """Flush a file to disk. Otherwise its new name may survive a power cut while its content is lost."""
    with path.open("rb+") as file:  # Windows can flush only what is open for writing
        os.fsync(file.fileno())


def _made_file(path: Path) -> int | None:
    """Create a file marked as unwritten. Return its descriptor, or None on Windows, where it is closed.

    Windows cannot rename an open file.
    """
    file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    os.utime(path, (_UNTOUCHED, _UNTOUCHED))
    if sys.platform == "win32":
        os.close(file)
        return None
    return file


def _made_folder(path: Path) -> int | None:
    """Create an empty folder. Return its descriptor; None on Windows, which cannot open folders."""
    path.mkdir(parents=True)
    return None if sys.platform == "win32" else os.open(path, os.O_RDONLY)


@contextmanager
def lock_file(path: Path, wait: bool = False) -> Iterator[bool]:
    """Lock a file until the end of the context, when it is removed. Yield False if another process holds it.

    The lock of a killed process is released by the system. On Windows, which has no flock, nothing is locked.

    Args:
        path: Path of the lock file, which is created if needed. Its folder must exist.
        wait: Whether to wait until the other process releases it.

    Raises:
        UserError: if it cannot be created.
    """
    if sys.platform == "win32":
        yield True
        return
    try:
        file = _held(path, lambda path: os.open(path, os.O_RDWR | os.O_CREAT, 0o666), wait)
    except BlockingIOError:
        yield False
        return
    except OSError as error:
        raise _refusal(path, error) from error
    try:
        yield True
    finally:
        with suppress(OSError):
            path.unlink()
        if file is not None:
            os.close(file)


@contextmanager
def _locked(part: Path, make: Callable[[Path], int | None]) -> Iterator[None]:
    """Create a temporary file or folder, and hold its lock, which shows that it is still in use."""
    file = _held(part, make, wait=True)
    try:
        yield
    finally:
        if file is not None:
            os.close(file)


def _held(path: Path, make: Callable[[Path], int | None], wait: bool) -> int | None:
    """Create and lock a file or folder; return its descriptor. It stays unlocked if the system has no locks.

    Raises:
        BlockingIOError: if another process holds the lock and `wait` is False.
    """
    glances = _GLANCES
    while True:
        file = make(path)
        if file is None:
            return None
        try:
            if not _is_locked(file, wait) or _is_at(path, file):
                return file
        except BlockingIOError:
            glances -= 1
            if not glances:
                os.close(file)
                raise
            time.sleep(_GLANCE)
        os.close(file)  # another process has just removed it, or looks at it


def _is_locked(file: int, wait: bool) -> bool:
    """Lock an open file. Return whether the file system supports locks.

    Raises:
        BlockingIOError: if another process holds the lock and `wait` is False.
    """
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError:  # some network file systems have no locks
        return False
    return True


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.lstat())
    except OSError:
        return False


def _remove_left_over(folder: Path) -> None:
    """Remove the temporary files that killed processes left in a folder."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name):
                remove_unlocked(Path(entry.path))


def remove_unlocked(path: Path) -> None:
    """Remove a file or folder if no process has locked it. Without support for locks nothing is removed."""
    with suppress(OSError):
        # Do not follow links, and do not wait for the other end of a pipe.
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        try:
            if _is_locked(file, wait=False) and _is_at(path, file):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        finally:
            os.close(file)

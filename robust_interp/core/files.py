"""Files and folders that appear whole or not at all.

What is written first has a temporary name in the same folder, and takes its own in one step: no reader, and
no process that is killed, ever meets half of it. The temporary name begins with a dot and carries a
random number, so that two processes never write to the same one, not even those of two containers, whose ids
may be equal; it is removed again whatever goes wrong. What a killed process left is removed by the next one
that writes to the folder: it is known by not being locked.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from robust_interp.core.errors import UserError

_TEMPORARY = re.compile(r"\.part\d+\..+", re.DOTALL)
_UNTOUCHED = 0  # seconds since 1970 that a temporary file says it was changed at, until it is written


def write_text(path: Path, text: str) -> None:
    """Replace a file by this text, as UTF-8.

    Args:
        path: In a folder that exists.
        text: Written as it is, line ends included.

    Raises:
        UserError: if it cannot be written; the file that was there is kept.
    """
    write_bytes(path, text.encode("utf-8", "backslashreplace"))  # a file's name need not be UTF-8


def make_folder(path: Path) -> Path:
    """The folder, made with those above it where they are missing.

    Raises:
        UserError: if it cannot be made.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error}") from error
    return path


def write_bytes(path: Path, content: bytes) -> None:
    """The same as `write_text`, for bytes."""
    with new_file(path) as part, part.open("wb") as file:
        file.write(content)


@contextmanager
def new_file(path: Path) -> Iterator[Path]:
    """A temporary path, for what writes its files itself; in the end it takes the place of `path`.

    It ends like `path`, for writers that go by the ending.

    Args:
        path: In a folder that exists. A file of that name is replaced.

    Raises:
        UserError: if it cannot be written; the file that was there is kept.
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
                _settle(part)
                part.replace(path)
            finally:
                with suppress(OSError):  # it has its own name now
                    part.unlink()
    except OSError as error:
        raise _refusal(path, error) from error


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to fill, which at the end is called `path`.

    Args:
        path: The folders above it are made if they are missing.

    Raises:
        UserError: if it cannot be written, or `path` holds something already, which is kept.
    """
    with scratch_folder(path) as part:
        yield part
        for file in filter(Path.is_file, part.rglob("*")):
            _settle(file)
        part.rename(path)


@contextmanager
def scratch_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to fill beside `path`, for which it is meant; it is removed at the end.

    Args:
        path: The folders above it are made if they are missing.

    Raises:
        UserError: if nothing can be written there.
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
    """Refuse a folder, and a device, which a file of that name would take the place of."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "there is a folder of that name")
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "there is something of that name that is no file")


def _refusal(path: Path, error: OSError) -> UserError:
    if isinstance(error, FileNotFoundError) and not path.parent.is_dir():
        return UserError(f"cannot write {path}: there is no folder {path.parent}, or no longer")
    return UserError(f"cannot write {path}: {error.strerror or error}")


def _settle(path: Path) -> None:
    """Wait until a file is on the disk: its new name may otherwise outlive a power cut, and its bytes not."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _made_file(path: Path) -> int | None:
    """A file that says that nothing was written to it yet, open unless that keeps it from being renamed."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
    os.utime(path, (_UNTOUCHED, _UNTOUCHED))
    if sys.platform == "win32":
        os.close(file)
        return None
    return file


def _made_folder(path: Path) -> int | None:
    """An empty folder, open where the system can open one."""
    path.mkdir(parents=True)
    return None if sys.platform == "win32" else os.open(path, os.O_RDONLY)


@contextmanager
def lock_file(path: Path) -> Iterator[bool]:
    """Whether a file is locked by this process alone, until the end, when it is removed.

    What a killed process left locks nothing. Where the system has no flock, as on Windows, nothing is locked.

    Args:
        path: In a folder that exists; made where it is missing.

    Raises:
        UserError: if it cannot be made.
    """
    if sys.platform == "win32":
        yield True
        return
    try:
        file = _held(path, lambda path: os.open(path, os.O_RDWR | os.O_CREAT, 0o666), wait=False)
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
    """Make something temporary, and hold the lock by which it is known not to be left over."""
    file = _held(part, make, wait=True)
    try:
        yield
    finally:
        if file is not None:
            os.close(file)


def _held(path: Path, make: Callable[[Path], int | None], wait: bool) -> int | None:
    """What was made, open and locked; unlocked where the file system has no locks.

    Raises:
        BlockingIOError: if another process holds it and is not to be waited for.
    """
    while True:
        file = make(path)
        if file is None:
            return None
        try:
            if not _is_locked(file, wait) or _is_at(path, file):
                return file
        except BlockingIOError:
            os.close(file)
            raise
        os.close(file)  # another process has just removed it


def _is_locked(file: int, wait: bool) -> bool:
    """Lock an open file; whether the file system can.

    Raises:
        BlockingIOError: if another process holds it and is not to be waited for.
    """
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        raise
    except OSError:  # as on some network file systems
        return False
    return True


def _is_at(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.lstat())
    except OSError:
        return False


def _remove_left_over(folder: Path) -> None:
    """Remove what killed processes left in a folder."""
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if _TEMPORARY.fullmatch(entry.name):
                remove_unlocked(Path(entry.path))


def remove_unlocked(path: Path) -> None:
    """Remove a file or a folder that no process holds locked, where that can be told."""
    with suppress(OSError):
        # Never by way of a link, and without waiting for the other end of a pipe.
        file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        try:
            if _is_locked(file, wait=False) and _is_at(path, file):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        finally:
            os.close(file)

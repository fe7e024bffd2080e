"""Files and folders that appear whole or not at all.

What is written first has a temporary name in the same folder, and takes its own in one step: no reader, and
no process that is killed, ever meets half of it. The temporary name begins with a dot and carries the process
id, so that two processes never write to the same one; it is removed again whatever goes wrong.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from robust_interp.core.errors import UserError


def write_text(path: Path, text: str) -> None:
    """Replace a file by this text, as UTF-8.

    Args:
        path: In a folder that exists.
        text: Written as it is, line ends included.

    Raises:
        UserError: if it cannot be written; the file that was there is kept.
    """
    write_bytes(path, text.encode("utf-8"))


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
        yield part
        _settle(part)
        part.replace(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error}") from error
    finally:
        with suppress(OSError):  # it is not there, or there is no such folder
            part.unlink()


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A temporary folder to fill, which at the end is called `path`.

    Args:
        path: The folders above it are made if they are missing.

    Raises:
        UserError: if it cannot be written, or `path` holds something already, which is kept.
    """
    part = _temporary(path)
    try:
        shutil.rmtree(part, ignore_errors=True)  # of a process of the same id that was killed
        part.mkdir(parents=True)
        yield part
        for file in filter(Path.is_file, part.rglob("*")):
            _settle(file)
        part.rename(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error}") from error
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _temporary(path: Path) -> Path:
    return path.with_name(f".part{os.getpid()}.{path.name}")


def _settle(path: Path) -> None:
    """Wait until a file is on the disk: its new name may otherwise outlive a power cut, and its bytes not."""
    with path.open("rb") as file:
        os.fsync(file.fileno())

"""Generated images kept on disk, once for all models and runs: a file holds a block of one corruption.

A file begins with a line of JSON that says what it holds, with a digest. One that is damaged, or holds
anything else, counts as absent. Files appear whole or not at all, so processes may share a folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import numpy as np

from robust_interp.core.errors import UserError
from robust_interp.core.files import make_folder, new_file

OFF = "off"
ENDING = ".images"
LIMIT = 10 * 2**30  # bytes of all files together
LEFT_FREE = 2 * 2**30  # bytes that stay free on the disk
UNUSED = 30 * 24 * 3600  # seconds after which a file makes room for others


def cache_folder(asked: str | os.PathLike | None = None) -> Path | None:
    """The folder asked for, else $ROBUST_INTERP_CACHE, else ``~/.cache/robust-interp/corruptions``.

    Returns:
        None for ``off``, and for a user who has no home folder.
    """
    chosen = asked or os.environ.get("ROBUST_INTERP_CACHE") or "~/.cache/robust-interp/corruptions"
    if chosen == OFF:
        return None
    try:
        return Path(chosen).expanduser()
    except RuntimeError:
        return None


def size_of(folder: Path) -> int:
    """Bytes of the images in a folder; 0 if there is none."""
    return sum(size for _, size, _ in _files(folder))


def clear(folder: Path) -> int:
    """Remove all images in a folder, and nothing else.

    Returns:
        How many bytes that were.

    Raises:
        UserError: if one cannot be removed.
    """
    freed = 0
    for path, size, _ in _files(folder):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"cannot remove {path}: {error.strerror}") from error
        freed += size
        with suppress(OSError):  # there is more in it
            path.parent.rmdir()
    return freed


class Cache:
    """The images in one folder.

    Args:
        folder: Made with the first file.

    Attributes:
        trouble: Why no more is kept, in one line; empty while it is.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trouble = ""
        self._bytes: int | None = None  # of all files; None before the first is written

    def has(self, key: Mapping[str, object]) -> bool:
        """Whether there is a file for a key; what it holds, `get` tells."""
        return self._path(key).is_file()

    def get(self, key: Mapping[str, object], shape: tuple[int, ...]) -> np.ndarray | None:
        """The images kept for a key, uint8; None where there are none, or of another shape (C, H, W).

        Args:
            key: Of JSON values: all that they depend on.
            shape: Of one image.
        """
        path = self._path(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        head, _, body = content.partition(b"\n")
        one = int(np.prod(shape))
        if head != _head(key, body) or not one or len(body) % one:
            return None
        with suppress(OSError):
            os.utime(path)  # used today
        return np.frombuffer(body, np.uint8).reshape(-1, *shape)

    def put(self, key: Mapping[str, object], images: np.ndarray) -> None:
        """Keep images, uint8 (N, C, H, W), in place of what was kept for the key; a full disk ends it."""
        if self.trouble:
            return
        body = images.tobytes()
        path = self._path(key)
        try:
            make_folder(path.parent)
            if self._has_room(len(body)):
                with new_file(path) as part:
                    part.write_bytes(_head(key, body) + b"\n" + body)
        except (UserError, OSError) as error:
            self.trouble = f"generated images are not kept on disk: {error}"

    def _path(self, key: Mapping[str, object]) -> Path:
        text = _text(key)
        name = f"{key['corruption']}_{key['severity']}_{key['start']:06}_{_digest(text)[:20]}{ENDING}"
        return self.folder / str(key["dataset"])[:16] / name

    def _has_room(self, more: int) -> bool:
        if self._bytes is None:
            self._bytes = size_of(self.folder)
        free = shutil.disk_usage(self.folder).free
        if self._bytes + more > LIMIT or free < LEFT_FREE + more:
            self._bytes -= _remove_unused(self.folder)
            free = shutil.disk_usage(self.folder).free
        self._bytes += more
        if self._bytes > LIMIT:
            self.trouble = (
                f"{self.folder} is full ({LIMIT / 2**30:.0f} GiB): no more generated images are kept; "
                "robust-interp data --clear-cache empties it"
            )
        elif free < LEFT_FREE + more:
            self.trouble = f"the disk of {self.folder} is nearly full: no more generated images are kept"
        return not self.trouble


def _head(key: Mapping[str, object], body: bytes) -> bytes:
    text = _text(key)
    return json.dumps({"robust-interp": "images", "key": text, "digest": _digest(text, body)}).encode()


def _text(key: Mapping[str, object]) -> str:
    return json.dumps(key, sort_keys=True)


def _digest(text: str, body: bytes = b"") -> str:
    sha = hashlib.blake2b(text.encode(), digest_size=32)
    sha.update(body)
    return sha.hexdigest()


def _files(folder: Path) -> list[tuple[Path, int, float]]:
    """Path, bytes and last use of the files of images, and of those that a killed process left unfinished."""
    found = []
    with suppress(OSError):
        for path in folder.glob(f"*/*{ENDING}"):
            with suppress(OSError):  # it is gone
                state = path.stat()
                found.append((path, state.st_size, state.st_mtime))
    return found


def _remove_unused(folder: Path) -> int:
    freed, now = 0, time.time()
    for path, size, used in _files(folder):
        if now - used > UNUSED:
            with suppress(OSError):
                path.unlink()
                freed += size
    return freed

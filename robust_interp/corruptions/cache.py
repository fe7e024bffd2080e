"""Cache on disk of generated images, shared by all models and runs. A file holds a block of one corruption.

A file begins with a line of JSON that contains its key and a hash. A file that is damaged, or has another
key, counts as missing. Files are written atomically, so several processes may use one folder.
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
from robust_interp.core.paths import expanded

OFF = "off"
ENDING = ".images"
LIMIT = 10 * 2**30  # bytes of all files together
LEFT_FREE = 2 * 2**30  # bytes that stay free on the disk
UNUSED = 30 * 24 * 3600  # seconds without use after which a file may be removed


def cache_folder(asked: str | os.PathLike | None = None) -> Path | None:
    """Return the cache folder: `asked`, $ROBUST_INTERP_CACHE or ``~/.cache/robust-interp/corruptions``.

    Returns:
        The first of these that is set; None if it is ``off``, or if the last is in a missing home folder.

    Raises:
        UserError: if another one is in a home folder that does not exist.
    """
    chosen = asked or os.environ.get("ROBUST_INTERP_CACHE")
    if chosen == OFF:
        return None
    if chosen:
        return expanded(chosen)
    try:
        return expanded("~/.cache/robust-interp/corruptions")
    except UserError:
        return None


def size_of(folder: Path) -> int:
    """Return the total size of the cached images in a folder, in bytes; 0 if there is no folder."""
    return sum(size for _, size, _ in _files(folder))


def clear(folder: Path) -> int:
    """Remove all cached images in a folder, and nothing else.

    Returns:
        Number of bytes removed.

    Raises:
        UserError: if a file cannot be removed.
    """
    freed = 0
    for path, size, _ in _files(folder):
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise UserError(f"cannot remove {path}: {error.strerror}") from error
        freed += size
        with suppress(OSError):  # it is not empty
            path.parent.rmdir()
    return freed


class Cache:
    """Cached images in one folder.

    Args:
        folder: The folder; it is created for the first file.

    Attributes:
        trouble: One line that says why no more images are written; empty as long as they are.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trouble = ""
        self._bytes: int | None = None  # size of all files; None before the first one is written

    def has(self, key: Mapping[str, object]) -> bool:
        """Return whether there is a file for a key; only `get` checks its content."""
        return self._path(key).is_file()

    def get(self, key: Mapping[str, object], shape: tuple[int, ...]) -> np.ndarray | None:
        """Return the cached images of a key, uint8 (N, C, H, W); None if there are none of this shape.

        Args:
            key: All that the images depend on, as JSON values.
            shape: Shape (C, H, W) of one image.
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
            os.utime(path)  # marks the last use
        return np.frombuffer(body, np.uint8).reshape(-1, *shape)

    def put(self, key: Mapping[str, object], images: np.ndarray) -> None:
        """Write images, uint8 (N, C, H, W), in place of those with the same key.

        If this fails, or the cache or the disk is full, `trouble` says so and nothing more is written.
        """
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
        text = json.dumps(key, sort_keys=True)
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
    text = json.dumps(key, sort_keys=True)
    return json.dumps({"robust-interp": "images", "key": text, "digest": _digest(text, body)}).encode()


def _digest(text: str, body: bytes = b"") -> str:
    sha = hashlib.blake2b(text.encode(), digest_size=32)
    sha.update(body)
    return sha.hexdigest()


def _files(folder: Path) -> list[tuple[Path, int, float]]:
    """Return path, bytes and last use of all image files, also of unfinished ones of a killed process."""
    found = []
    with suppress(OSError):
        for path in folder.glob(f"*/*{ENDING}"):
            with suppress(OSError):  # another process has removed it
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

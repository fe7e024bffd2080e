"""Check that SQLite's write-ahead log can be read to its end.

At the first page with a wrong checksum SQLite silently ignores the rest of the log, and the newest results
are lost. So the checksums are verified here before SQLite opens the file. The format is described at
https://www.sqlite.org/fileformat2.html#walformat.
"""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

_HEADER, _FRAME = 32, 24  # bytes of the log's header, and of the header of each page in it

_TRIES, _PAUSE = 3, 0.02  # read several times, since another process may be writing


class DamagedFrame(NamedTuple):
    """Position at which a log cannot be read (-1: its header), and the bytes there, for comparison."""

    frame: int
    seen: bytes

    def __str__(self) -> str:
        return f"from page {self.frame + 1} of the log on" if self.frame >= 0 else "its header is damaged"


def unreadable(database: Path) -> str:
    """Return from where on the log of a database cannot be read; empty if it is sound or does not exist."""
    first = _damaged_frame(database)
    for _ in range(_TRIES - 1):
        if first is None:
            return ""
        time.sleep(_PAUSE)
        first = again if (again := _damaged_frame(database)) != first else first
    return str(first) if first else ""


def _damaged_frame(database: Path) -> DamagedFrame | None:
    try:
        log = Path(f"{database}-wal").read_bytes()
        with database.open("rb") as file:
            begin = file.read(20)
    except OSError:
        return None
    if len(log) < _HEADER or not any(log[:_HEADER]):
        return None
    if len(begin) == 20 and begin[18:20] != b"\x02\x02":
        return DamagedFrame(-1, begin)  # the database is not marked as WAL, so SQLite would ignore the log
    magic, _, size, _, salt1, salt2, sum1, sum2 = struct.unpack(">8I", log[:_HEADER])
    words = np.dtype(">u4" if magic & 1 else "<u4")
    if magic & ~1 != 0x377F0682 or _sums(np.frombuffer(log[:24], words)[None], (0, 0))[0] != (sum1, sum2):
        return DamagedFrame(-1, log[:_HEADER])
    if size < 512 or size & (size - 1):
        return DamagedFrame(-1, log[:_HEADER])
    length = _FRAME + size
    frames = np.frombuffer(log, np.uint8, (len(log) - _HEADER) // length * length, _HEADER).reshape(
        -1, length
    )
    if not len(frames):
        return None  # another process has created the log and written nothing yet
    heads = np.ascontiguousarray(frames[:, :_FRAME]).view(">u4")
    ours = (heads[:, 2] == salt1) | (heads[:, 3] == salt2)  # in pages of an older log both salts differ
    whole = (heads[:, 2] == salt1) & (heads[:, 3] == salt2)
    content = np.ascontiguousarray(np.concatenate([frames[:, :8], frames[:, _FRAME:]], axis=1)).view(words)
    sums = _sums(content, (sum1, sum2))
    sound = whole & [found == (int(head[4]), int(head[5])) for found, head in zip(sums, heads, strict=True)]
    end = len(sound) if sound.all() else int(np.argmin(sound))
    if not ours[end:].any():
        return None
    return DamagedFrame(end, frames[end].tobytes())


def _sums(content: np.ndarray, before: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the running checksums after each row of 32-bit words (k, m), m even; modulo 2**32.

    A pair of words (x, y) maps (a, b) to (a + x + b, b + y + a + x + b). This is linear, so a row adds its
    words weighted by Fibonacci numbers.
    """
    count = content.shape[1]
    fibonacci = [0, 1]
    while len(fibonacci) < count + 2:
        fibonacci.append((fibonacci[-1] + fibonacci[-2]) & 0xFFFFFFFF)
    series = np.array(fibonacci, np.uint64)
    left = np.arange(count, 0, -1)  # number of words from each one to the end of the row
    values = content.astype(np.uint64)
    to_a, to_b = ((values * series[at] & np.uint64(0xFFFFFFFF)).sum(1) for at in (left - 1, left))
    (a, b), found = before, []
    f, g, h = fibonacci[count - 1], fibonacci[count], fibonacci[count + 1]
    for more_a, more_b in zip(to_a.tolist(), to_b.tolist(), strict=True):
        a, b = (f * a + g * b + more_a) & 0xFFFFFFFF, (g * a + h * b + more_b) & 0xFFFFFFFF
        found.append((a, b))
    return found

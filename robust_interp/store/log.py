"""SQLite's write-ahead log: whether it can be read to its end.

SQLite ends the log, without a word, at the first page whose checksum does not fit: what was stored after
that is gone. So the checksums are worked out here before it is opened. The format is SQLite's, see
https://www.sqlite.org/fileformat2.html#walformat.
"""

from __future__ import annotations

import struct
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

_HEADER, _FRAME = 32, 24  # bytes ahead of the log, and ahead of each page in it

_TRIES, _PAUSE = 3, 0.02  # another process may be writing: only what stays as it is is damaged


class Trouble(NamedTuple):
    """Where a log cannot be read, and the bytes there, by which it is known again."""

    frame: int
    seen: bytes

    def __str__(self) -> str:
        return f"from page {self.frame + 1} of the log on" if self.frame >= 0 else "its header is damaged"


def unreadable(database: Path) -> str:
    """Where the log of a database cannot be read any further; empty if it is sound or there is none."""
    first = _trouble(database)
    for _ in range(_TRIES - 1):
        if first is None:
            return ""
        time.sleep(_PAUSE)
        first = again if (again := _trouble(database)) != first else first
    return str(first) if first else ""


def _trouble(database: Path) -> Trouble | None:
    try:
        log = Path(f"{database}-wal").read_bytes()
        with database.open("rb") as file:
            begin = file.read(20)
    except OSError:
        return None
    if len(log) < _HEADER or not any(log[:_HEADER]):
        return None
    if len(begin) == 20 and begin[18:20] != b"\x02\x02":
        return Trouble(-1, begin)  # it does not say that it has a log, and SQLite would not look at it
    magic, _, size, _, salt1, salt2, sum1, sum2 = struct.unpack(">8I", log[:_HEADER])
    words = np.dtype(">u4" if magic & 1 else "<u4")
    if magic & ~1 != 0x377F0682 or _sums(np.frombuffer(log[:24], words)[None], (0, 0))[0] != (sum1, sum2):
        return Trouble(-1, log[:_HEADER])
    if size < 512 or size & (size - 1):
        return Trouble(-1, log[:_HEADER])
    length = _FRAME + size
    frames = np.frombuffer(log, np.uint8, (len(log) - _HEADER) // length * length, _HEADER).reshape(
        -1, length
    )
    if not len(frames):
        return None  # begun by another process, which has written nothing yet
    heads = np.ascontiguousarray(frames[:, :_FRAME]).view(">u4")
    ours = (heads[:, 2] == salt1) | (heads[:, 3] == salt2)  # one of an older log has both otherwise
    whole = (heads[:, 2] == salt1) & (heads[:, 3] == salt2)
    content = np.ascontiguousarray(np.concatenate([frames[:, :8], frames[:, _FRAME:]], axis=1)).view(words)
    sums = _sums(content, (sum1, sum2))
    sound = whole & [found == (int(head[4]), int(head[5])) for found, head in zip(sums, heads, strict=True)]
    end = len(sound) if sound.all() else int(np.argmin(sound))
    if not ours[end:].any():
        return None
    return Trouble(end, frames[end].tobytes())


def _sums(content: np.ndarray, before: tuple[int, int]) -> list[tuple[int, int]]:
    """The running checksums after each row of 32-bit words (k, m), m even; modulo 2**32.

    A pair of words (x, y) takes (a, b) to (a + x + b, b + y + a + x + b). That is linear, so that a row adds
    its words weighted by Fibonacci numbers.
    """
    count = content.shape[1]
    fibonacci = [0, 1]
    while len(fibonacci) < count + 2:
        fibonacci.append((fibonacci[-1] + fibonacci[-2]) & 0xFFFFFFFF)
    series = np.array(fibonacci, np.uint64)
    left = np.arange(count, 0, -1)  # words from each one on, itself included
    values = content.astype(np.uint64)
    to_a, to_b = ((values * series[at] & np.uint64(0xFFFFFFFF)).sum(1) for at in (left - 1, left))
    (a, b), found = before, []
    f, g, h = fibonacci[count - 1], fibonacci[count], fibonacci[count + 1]
    for more_a, more_b in zip(to_a.tolist(), to_b.tolist(), strict=True):
        a, b = (f * a + g * b + more_a) & 0xFFFFFFFF, (g * a + h * b + more_b) & 0xFFFFFFFF
        found.append((a, b))
    return found

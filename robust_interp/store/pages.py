"""Read rows directly from the pages of a damaged database, without SQLite.

Neither the file header nor the parent pages are needed, so that a flipped bit in them loses no row. The
format is described at https://www.sqlite.org/fileformat2.html.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR = 0x0D, 0x0A, 0x02
_USUAL_SIZE = 4096
_LONGEST = 1 << 30  # largest number of bytes of a row, SQLite's limit
_INTEGERS = {1: 1, 2: 2, 3: 3, 4: 4, 5: 6, 6: 8}  # serial type -> number of bytes


def records(database: Path) -> Iterator[list]:
    """Yield every readable row of all tables and indexes, with its columns as they are stored.

    SQLite stores a REAL without a fraction as an integer. Rows of unused pages may be included.

    Args:
        database: Path of the database; its log is read, too. No process may be writing to it.
    """
    pages = _pages(database)
    for number in pages:
        yield from _of_page(pages, number)


def _pages(database: Path) -> dict[int, bytes]:
    """Return the newest version of each page by its number, counted from 1."""
    content = database.read_bytes()
    size = int.from_bytes(content[16:18], "big")  # 0 of a file that ends before
    size = 65536 if size == 1 else size
    if size < 512 or size & (size - 1):
        size = _USUAL_SIZE
    pages = {at // size + 1: content[at : at + size] for at in range(0, len(content) - size + 1, size)}
    log = Path(f"{database}-wal")
    frames = log.read_bytes()[32:] if log.exists() else b""
    for at in range(0, len(frames) - size - 23, size + 24):
        if frames[at + 8 : at + 16] == frames[8:16]:  # other salts mark pages of an older log
            pages[int.from_bytes(frames[at : at + 4], "big")] = frames[at + 24 : at + 24 + size]
    return pages


def _of_page(pages: dict[int, bytes], number: int) -> Iterator[list]:
    page, head = pages[number], 100 if number == 1 else 0
    if page[head] not in (_TABLE_LEAF, _INDEX_LEAF, _INDEX_INTERIOR):
        return
    (cells,) = struct.unpack_from(">H", page, head + 3)
    pointers = head + (12 if page[head] == _INDEX_INTERIOR else 8)
    for at in range(pointers, min(pointers + 2 * cells, len(page) - 1), 2):
        try:
            yield _record(_payload(pages, page, page[head], struct.unpack_from(">H", page, at)[0]))
        except (LookupError, ValueError, struct.error):
            continue  # not a row, or a damaged one


def _payload(pages: dict[int, bytes], page: bytes, kind: int, at: int) -> bytes:
    """Return the bytes of the row that begins at `at`, including those on overflow pages."""
    at += 4 if kind == _INDEX_INTERIOR else 0  # number of the child page
    length, at = _varint(page, at)
    if kind == _TABLE_LEAF:
        _, at = _varint(page, at)  # row id
    if length > _LONGEST:
        raise ValueError("longer than any row")
    usable = len(page)
    least = (usable - 12) * 32 // 255 - 23
    most = usable - 35 if kind == _TABLE_LEAF else (usable - 12) * 64 // 255 - 23
    if length <= most:
        return page[at : at + length]
    here = least + (length - least) % (usable - 4)
    here = here if here <= most else least
    parts, left = [page[at : at + here]], length - here
    (following,) = struct.unpack_from(">I", page, at + here)
    while left > 0:
        further = pages[following]
        parts.append(further[4 : 4 + left])
        left -= usable - 4
        (following,) = struct.unpack_from(">I", further)
    return b"".join(parts)


def _record(payload: bytes) -> list:
    end, at = _varint(payload, 0)
    values: list = []
    content = end
    while at < end:
        kind, at = _varint(payload, at)
        value, content = _value(payload, kind, content)
        values.append(value)
    return values


def _value(payload: bytes, kind: int, at: int) -> tuple[object, int]:
    """Decode a value of a serial type; return it and the position of the next one."""
    if kind == 0:
        return None, at
    if kind in (8, 9):
        return kind - 8, at
    if kind == 7:
        return struct.unpack_from(">d", payload, at)[0], at + 8
    length = _INTEGERS.get(kind, (kind - 12) // 2)
    raw = payload[at : at + length]
    if len(raw) < length or kind in (10, 11):
        raise ValueError("cut off")
    if kind in _INTEGERS:
        return int.from_bytes(raw, "big", signed=True), at + length
    return (raw.decode() if kind % 2 else raw), at + length


def _varint(content: bytes, at: int) -> tuple[int, int]:
    """Decode a number of one to nine bytes; return it and the position behind it."""
    number = 0
    for place in range(8):
        byte = content[at + place]
        number = number << 7 | byte & 0x7F
        if byte < 0x80:
            return number, at + place + 1
    return number << 8 | content[at + 8], at + 9

"""Progress of long work, reported by a callback, so that the work does not depend on how it is displayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

# called with the finished share, in [0, 1], and the name of the item
ProgressCallback = Callable[[float, str], None]


def no_progress(share: float, what: str) -> None:
    """Ignore the progress; the default callback."""


def with_progress(
    items: Sequence[T], progress: ProgressCallback, name: Callable[[T], str] = str
) -> Iterator[T]:
    """Yield the items and report the progress, as if each took equally long.

    Args:
        items: The items.
        progress: Called before each item, and after the last one.
        name: Returns the name of an item.
    """
    what = ""
    for at, item in enumerate(items):
        what = name(item)
        progress(at / len(items), what)
        yield item
    if items:
        progress(1.0, what)


def part_of_progress(
    progress: ProgressCallback, start: float, stop: float, name: str = ""
) -> ProgressCallback:
    """Return the progress callback of one part of the work.

    Args:
        progress: Progress callback of the whole work.
        start: Share of the whole work, in [0, 1], that is finished before the part.
        stop: Share that is finished after the part.
        name: Prefix of the names of the part's items.
    """
    return lambda share, what: progress(start + share * (stop - start), f"{name} {what}".strip())

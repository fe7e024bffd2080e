"""Progress of long work, reported by a callback, so that the work does not depend on how it is displayed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

Tell = Callable[[float, str], None]  # called with the finished share, in [0, 1], and the name of the item


def untold(share: float, what: str) -> None:
    """Ignore the progress; the default callback."""


def each(items: Sequence[T], tell: Tell, name: Callable[[T], str] = str) -> Iterator[T]:
    """Yield the items and report the progress, as if each took equally long.

    Args:
        items: The items.
        tell: Called before each item, and after the last one.
        name: Returns the name of an item.
    """
    what = ""
    for at, item in enumerate(items):
        what = name(item)
        tell(at / len(items), what)
        yield item
    if items:
        tell(1.0, what)


def portion(tell: Tell, start: float, stop: float, name: str = "") -> Tell:
    """Return the progress callback of one part of the work.

    Args:
        tell: Progress callback of the whole work.
        start: Share of the whole work, in [0, 1], that is finished before the part.
        stop: Share that is finished after the part.
        name: Prefix of the names of the part's items.
    """
    return lambda share, what: tell(start + share * (stop - start), f"{name} {what}".strip())

"""How far long work is. It is told through a plain function: the work does not know what shows it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

T = TypeVar("T")

Tell = Callable[[float, str], None]  # called with the share that is done, in [0, 1], and what is at hand


def untold(share: float, what: str) -> None:
    """Tells nobody."""


def each(items: Sequence[T], tell: Tell, name: Callable[[T], str] = str) -> Iterator[T]:
    """The items one by one, as work of which each is an equal part.

    Args:
        tell: Told before each item, and after the last one.
        name: What an item is called.
    """
    what = ""
    for at, item in enumerate(items):
        what = name(item)
        tell(at / len(items), what)
        yield item
    if items:
        tell(1.0, what)


def portion(tell: Tell, start: float, stop: float, name: str = "") -> Tell:
    """What a part of the work tells: its own share is that between two shares of the whole.

    Args:
        tell: Of the whole.
        start: The share of the whole, in [0, 1], that is done before the part; `stop` after it.
        name: Put before what the part has at hand.
    """
    return lambda share, what: tell(start + share * (stop - start), f"{name} {what}".strip())

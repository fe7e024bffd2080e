"""Arguments in the forms that users write, and what several commands share."""

from __future__ import annotations

import argparse
import math


def picked(arguments: argparse.Namespace, names: str) -> dict:
    return {name: getattr(arguments, name) for name in names.split()}


def name_list(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def eps_list(text: str) -> tuple[float, ...]:
    """Radii in units of 1/255 as [0, 1] pixels."""
    try:
        values = [float(part) for part in text.split(",") if part.strip()]
        if not text.isascii() or "_" in text:  # which float would take
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 1,2,4") from None
    if not values:
        raise argparse.ArgumentTypeError("give at least one radius, e.g. 1,2,4")
    if not all(math.isfinite(value) and 0 < value <= 255 for value in values):
        raise argparse.ArgumentTypeError(f"{text}: a radius is in units of 1/255, above 0 and at most 255")
    if all(value < 0.1 for value in values):
        as_255 = ",".join(f"{value * 255:.3g}" for value in values)
        raise argparse.ArgumentTypeError(
            f"{text} looks like [0, 1] pixels; eps is in units of 1/255: did you mean {as_255}?"
        )
    return tuple(value / 255 for value in values)


def sample_count(text: str) -> int | str:
    return text if text == "all" else positive(text)


def positive(text: str) -> int:
    value = natural(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def natural(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def percentage(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage from 0 to 100")
    return value


def seed_list(text: str) -> tuple[int, ...]:
    """``3`` means 0, 1, 2; ``0,4`` means those, and ``4,`` that one."""
    if "," not in text:
        return tuple(range(positive(text)))
    seeds = {natural(part.strip()) for part in text.split(",") if part.strip()}
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} names no seed")
    return tuple(sorted(seeds))


def interval(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an interval such as 0.2,0.25") from None
    return low, high

"""Write percentages for people."""

from __future__ import annotations

from decimal import Decimal


def percent(value: float, *, signed: bool = False) -> str:
    """Return a percentage with one decimal, rounded once, halves to the even digit.

    A half is a half whether it is computed or read: a mean of 58.15 is 58.150000000000006 when it is computed
    and 58.1499... when it is read from a file, and both give 58.2.
    """
    rounded = Decimal(f"{value:.6f}").quantize(Decimal("0.1"))
    return f"{rounded:+}" if signed else str(rounded)

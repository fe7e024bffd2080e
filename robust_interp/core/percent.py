"""Write percentages for people; files have two decimals."""

from __future__ import annotations

from decimal import Decimal


def percent(value: float, *, signed: bool = False) -> str:
    """Return a percentage with one decimal, the same for a number and for its two decimals in a file.

    A mean of 58.15 is 58.150000000000006 when it is computed and 58.1499... when it is read. Both give 58.2.
    """
    rounded = Decimal(f"{value:.2f}").quantize(Decimal("0.1"))
    return f"{rounded:+}" if signed else str(rounded)

"""What counts as a number. A bool does not, although it is an int for Python."""

from __future__ import annotations

from numbers import Integral, Real
from typing import TypeGuard


def is_real(value: object) -> TypeGuard[float]:
    """Return whether a value is a real number of any type, also NumPy's; NaN is one."""
    return isinstance(value, Real) and not isinstance(value, bool)


def whole_number(value: object) -> int | None:
    """Convert an integer of any type, also NumPy's, to int; return None for anything else."""
    return None if isinstance(value, bool) or not isinstance(value, Integral) else int(value)

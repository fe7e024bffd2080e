"""The parameters of attacks: which names have another meaning, and which default values are possible."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from robust_interp.core.errors import UserError
from robust_interp.core.specs import OfEps
from robust_interp.core.texts import quoted

# Keywords that this package reads in the parameters of every attack, or passes itself.
RESERVED = ("model", "restarts", "severity", "stop", "target")

_LARGEST = 2**63  # stored plans hold smaller numbers
_ANY = "a number of at least 0, True, False, a word or a fraction of eps"
_OF_ONE = {
    "alpha": "a number above 0 or a fraction of eps",
    "norm": "Linf or L2",
    "steps": "a whole number of at least 1",
}


def plain(value: Any) -> Any:
    """Return Python's number for NumPy's, also in a fraction of eps; anything else unchanged."""
    if isinstance(value, OfEps):
        return replace(value, factor=plain(value.factor))
    return value.item() if isinstance(value, np.generic) else value


def check_default(named: str, key: str, value: object) -> None:
    """Check the default value of a parameter.

    Args:
        named: What declares it, for the message.
        key: Name of the parameter.
        value: The value; of ``norm`` Linf or L2, of ``steps`` a whole number.

    Raises:
        UserError: if no attack could be run with it.
    """
    if not _is_possible(key, value):
        what = _OF_ONE.get(key, _ANY)
        raise UserError(f"{named}: the default value of {key} must be {what}, not {quoted(value)}")


def _is_possible(key: str, value: object) -> bool:
    if key == "norm":
        return value in ("Linf", "L2")
    if isinstance(value, bool | str):
        return key not in ("alpha", "steps")
    if key == "steps":
        return isinstance(value, int) and 1 <= value < _LARGEST
    number = value.factor if isinstance(value, OfEps) else value
    if not isinstance(number, int | float):
        return False
    return 0 <= number < _LARGEST and (key != "alpha" or number > 0)

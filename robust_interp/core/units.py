"""Parse radii of users: texts are in units of 1/255, numbers in [0, 1] pixels."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from robust_interp.core.errors import UserError
from robust_interp.core.numeric import is_real

LEAST_255 = 0.5  # smaller numbers are probably meant in [0, 1] pixels, such as MNIST's 0.3, and refused

_NUMBER = r"(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
_FRACTION = re.compile(rf"({_NUMBER})\s*/\s*({_NUMBER})", re.ASCII)
_SIGNED = re.compile(rf"[+-]?{_NUMBER}|nan|inf", re.ASCII)


def read_eps(text: str) -> tuple[float, ...]:
    """Read Linf radii separated by commas; return them in [0, 1] pixels. ``8`` and ``8/255`` are the same.

    Args:
        text: The radii; each is a number in units of 1/255, or a fraction with denominator 255.

    Raises:
        UserError: for anything else, with a suggestion. Plain numbers that are all below 0.5 are refused,
            too, since they are probably meant in [0, 1] pixels; write 0.3/255 for such a radius.
    """
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise UserError("give at least one radius, e.g. 1,2,4")
    values = [_in_255(part, text) for part in parts]
    if 0 in values:
        raise UserError(f"{text}: a radius of 0 is a control: name it in a spec, such as pgd(eps=0)")
    if not all(math.isfinite(value) and 0 < value <= 255 for value in values):
        raise UserError(f"{text}: a radius is in units of 1/255, above 0 and at most 255")
    plain = [value for value, part in zip(values, parts, strict=True) if "/" not in part]
    if plain and all(value < LEAST_255 for value in plain):
        meant = ",".join(f"{value * 255:.3g}" for value in plain)
        raise UserError(
            f"{text} looks like [0, 1] pixels; eps is in units of 1/255: did you mean {meant}? If not, write "
            f"{plain[0]:g}/255"
        )
    return tuple(value / 255 for value in values)


def _in_255(part: str, text: str) -> float:
    if found := _FRACTION.fullmatch(part):
        if float(found[2]) != 255:
            raise UserError(f"{part}: a radius is a number in units of 1/255 or a fraction such as 8/255")
        return float(found[1])
    if not _SIGNED.fullmatch(part):
        raise UserError(f"{text!r} is not a list of numbers such as 1,2,4 or 8/255")
    return float(part)


def eps_in_pixels(eps: object) -> tuple[float, ...]:
    """Return Linf radii given in Python code, in [0, 1] pixels.

    Args:
        eps: A number in [0, 1] pixels, a text as on the command line, or several of them.

    Raises:
        UserError: if one is not a valid radius; for a number above 1 it suggests the same number over 255.
    """
    if isinstance(eps, str):
        return read_eps(eps)
    if not is_real(eps) and getattr(eps, "ndim", None) == 0 and hasattr(eps, "item"):
        return eps_in_pixels(eps.item())  # an array or a tensor of one number
    if isinstance(eps, Iterable):
        found = tuple(value for each in eps for value in eps_in_pixels(each))
        if not found:
            raise UserError("give at least one radius, e.g. eps=(1/255, 2/255, 4/255)")
        return found
    value = float(eps) if is_real(eps) else math.nan
    if not 0 < value <= 255:  # also false for NaN
        raise UserError(f"eps must be above 0 and at most 1 in [0, 1] pixels (such as 8/255), not {eps}")
    if value > 1:
        raise UserError(
            f"eps must be above 0 and at most 1 in [0, 1] pixels, not {eps}: did you mean {value:.10g}/255?"
        )
    return (value,)

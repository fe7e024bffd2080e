"""The limits of the audit's checks; imports nothing heavy, for the command line."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from robust_interp.benchmark import forms
from robust_interp.benchmark.request import declared

# Percentage points by which the interval of a passing check may exceed its limit. With 0 of n images correct,
# `large_eps` passes from 61 images on: Wilson's interval then ends below its limit of 1 % plus REACH.
REACH = 5.0


def _limit(default: float, help: str) -> Any:
    return field(default=default, metadata=declared(forms.PERCENTAGE, help))


@dataclass(frozen=True)
class Thresholds:
    """Limits of the checks; a check passes if its interval exceeds the limit by at most REACH points.

    Attributes:
        large_eps_255: Radius of the check `large_eps`, in units of 1/255.
        more: Factor of the steps in `more_steps`, and of the random starts in `restarts`.
        standing: Largest accuracy at that radius, in %.
        gain: Largest loss of accuracy under more steps, restarts or a stronger attack, compared with the
            audited attack, in percentage points.
        blind: Largest share of the images whose gradients are all zero or not all finite, in %.
        saturated: Largest share of the images whose largest probability is 1 in float32, in %.
        flat: Largest share of the images whose loss is not higher at the end of the attack, in %.
        falls: Largest share of the attack's steps in which the loss falls, in %.
    """

    large_eps_255: float = field(
        default=64.0,
        metadata=declared(
            forms.RADIUS, "Linf radius at which nearly all images must be broken", unit="units of 1/255"
        ),
    )
    more: int = field(
        default=5,
        metadata=declared(forms.FACTOR, "factor for the steps and random starts of the longer attacks"),
    )
    standing: float = _limit(1.0, "largest % of images that may be correct at the large eps")
    gain: float = _limit(2.0, "largest gain in points from more steps, restarts or a stronger attack")
    blind: float = _limit(1.0, "largest % of images with a zero or non-finite gradient")
    saturated: float = _limit(5.0, "largest % of images that start with a probability of 1 in float32")
    flat: float = _limit(5.0, "largest % of images whose loss does not increase from start to end")
    falls: float = _limit(50.0, "largest % of steps in which the loss falls")

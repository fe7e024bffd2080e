"""The limits of the audit's checks; imports nothing heavy, for the command line."""

from __future__ import annotations

from dataclasses import dataclass

# Percentage points by which the interval of a passing check may exceed its limit. With 0 of n images correct,
# `large_eps` passes from 61 images on: Wilson's interval then ends below its limit of 1 % plus REACH.
REACH = 5.0


@dataclass(frozen=True)
class Thresholds:
    """Limits of the checks; a check passes if its interval exceeds the limit by at most REACH points.

    Attributes:
        large_eps_255: Radius of the check `large_eps`, in units of 1/255.
        standing: Largest accuracy at that radius, in %.
        more: Factor of the steps in `more_steps`, and number of restarts in `restarts`.
        gain: Largest loss of accuracy under more steps, restarts or a stronger attack, compared with the
            audited attack, in percentage points.
        blind: Largest share of the images whose gradients are all zero or not all finite, in %.
        saturated: Largest share of the images whose largest probability is 1 in float32, in %.
        flat: Largest share of the images whose loss is not higher at the end of the attack, in %.
        falls: Largest share of the attack's steps in which the loss falls, in %.
    """

    large_eps_255: float = 64.0
    standing: float = 1.0
    more: int = 5
    gain: float = 2.0
    blind: float = 1.0
    saturated: float = 5.0
    flat: float = 5.0
    falls: float = 50.0

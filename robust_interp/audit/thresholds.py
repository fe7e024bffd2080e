"""The limits of the audit's checks; imports nothing heavy, for the command line."""

from __future__ import annotations

from dataclasses import dataclass

# Points by which the interval of what passes may reach beyond its limit. That takes 61 samples at least, for
# Wilson's interval of none of n to end at the 1 % that may stand and these.
REACH = 5.0


@dataclass(frozen=True)
class Thresholds:
    """What a check lets pass at most, where the interval does not reach more than REACH points further.

    Attributes:
        large_eps_255: The radius, in units of 1/255, at which nearly nothing may stand.
        standing: Percent of the samples that may stand there.
        more: How many times the steps, and how many restarts, the row's attack is given besides.
        gain: Points that those, or a stronger attack, may take from what stands under the row's attack.
        blind: Percent of the samples whose gradients may all be zero, or one of them not finite.
        saturated: Percent of the samples whose largest probability may be 1 in float32.
        flat: Percent of the samples whose loss may end no higher than it began.
        falls: Percent of the attack's steps in which the loss may fall.
    """

    large_eps_255: float = 64.0
    standing: float = 1.0
    more: int = 5
    gain: float = 2.0
    blind: float = 1.0
    saturated: float = 5.0
    flat: float = 5.0
    falls: float = 50.0

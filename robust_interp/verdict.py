"""What an audit concludes, and the limits it goes by: light, for the command line and the leaderboard."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

PASS, OPEN, WARN, FAIL = VERDICTS = ("pass", "open", "warn", "fail")  # from good to bad
NOT_RUN = "not run"
PARTIAL = "partial"  # of an audit that found nothing, with checks left out
CONCLUSIONS = (PASS, PARTIAL, OPEN, WARN, FAIL)  # from good to bad
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
        flat: Percent of the samples whose loss may end no higher than it began.
        falls: Percent of the attack's steps in which the loss may fall.
    """

    large_eps_255: float = 64.0
    standing: float = 1.0
    more: int = 5
    gain: float = 2.0
    blind: float = 1.0
    flat: float = 5.0
    falls: float = 50.0


def worst(verdicts: Iterable[str]) -> str:
    """The worst verdict of a model's checks; those that were not run say nothing."""
    return max((verdict for verdict in verdicts if verdict in VERDICTS), key=VERDICTS.index, default="")


@dataclass(frozen=True)
class Conclusion:
    """What an audit comes to, with what that rests on: ``pass(n=200)``, ``partial(n=200,checks=11/13)``.

    Attributes:
        verdict: One of CONCLUSIONS.
        n: How many samples it is of.
        checks: How many of all checks were run; empty if they were.
    """

    verdict: str
    n: int
    checks: str = ""

    def __str__(self) -> str:
        return f"{self.verdict}(n={self.n}{f',checks={self.checks}' if self.checks else ''})"


def joint(texts: Iterable[str]) -> str:
    """What the audits of several models, one at least, come to together: no more than each of them does.

    Args:
        texts: Of each the conclusion; empty where there was none.

    Returns:
        A conclusion, or nothing where one of them is none, as the bare verdicts of older versions are.
    """
    form = rf"({'|'.join(CONCLUSIONS)})\(n=(\d+)(?:,checks=((\d+)/\d+))?\)"
    found = [re.fullmatch(form, text) for text in texts]
    if not all(found):
        return ""
    incomplete = [one for one in found if one[3]]
    fewest = min(incomplete, key=lambda one: int(one[4]))[3] if incomplete else ""
    verdict = max((one[1] for one in found), key=CONCLUSIONS.index)
    return str(Conclusion(verdict, min(int(one[2]) for one in found), fewest))

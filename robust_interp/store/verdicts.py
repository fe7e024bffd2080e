"""What an audit concludes, as it is stored: light, for the leaderboard."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

PASS, OPEN, WARN, FAIL = VERDICTS = ("pass", "open", "warn", "fail")  # from good to bad

NOT_RUN = "not run"

PARTIAL = "partial"  # of an audit that found nothing, with checks left out

CONCLUSIONS = (PASS, PARTIAL, OPEN, WARN, FAIL)  # from good to bad


def worst(verdicts: Iterable[str]) -> str:
    """The worst verdict of a model's checks; those that were not run say nothing."""
    return max((verdict for verdict in verdicts if verdict in VERDICTS), key=VERDICTS.index, default="")


@dataclass(frozen=True)
class Conclusion:
    """What an audit comes to, with what that rests on: ``pass(n=200)``, ``partial(n=200,checks=12/14)``.

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
    texts = list(texts)
    found = [match for text in texts if (match := re.fullmatch(form, text))]
    if len(found) < len(texts):
        return ""
    incomplete = [one for one in found if one[3]]
    fewest = min(incomplete, key=lambda one: int(one[4]))[3] if incomplete else ""
    verdict = max((one[1] for one in found), key=CONCLUSIONS.index)
    return str(Conclusion(verdict, min(int(one[2]) for one in found), fewest))

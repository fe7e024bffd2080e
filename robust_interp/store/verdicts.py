"""Verdicts of audits in their stored form. Imports little, since the leaderboard needs it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

PASS, OPEN, WARN, FAIL = VERDICTS = ("pass", "open", "warn", "fail")  # from good to bad

NOT_RUN = "not run"

PARTIAL = "partial"  # an audit that found nothing, but did not run all checks

CONCLUSIONS = (PASS, PARTIAL, OPEN, WARN, FAIL)  # from good to bad


def worst(verdicts: Iterable[str]) -> str:
    """Return the worst of some verdicts; checks that were not run are ignored. Empty if none is left."""
    return max((verdict for verdict in verdicts if verdict in VERDICTS), key=VERDICTS.index, default="")


@dataclass(frozen=True)
class Conclusion:
    """The result of an audit, with its basis: ``pass(n=200)``, ``partial(n=200,checks=12/14)``.

    Attributes:
        verdict: One of CONCLUSIONS.
        n: Number of images.
        checks: Share of the checks that were run, such as ``12/14``; empty if all were run.
    """

    verdict: str
    n: int
    checks: str = ""

    def __str__(self) -> str:
        return f"{self.verdict}(n={self.n}{f',checks={self.checks}' if self.checks else ''})"


def join_conclusions(texts: Iterable[str]) -> str:
    """Join the conclusions of several models: the worst verdict, the smallest n, the fewest checks.

    Args:
        texts: The conclusion of each model, at least one; empty for a model without an audit.

    Returns:
        The joint conclusion; empty if one of the texts is not a conclusion, such as a bare verdict of an
        older version.
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

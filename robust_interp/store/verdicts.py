"""Verdicts of audits in their stored form. Imports little, since the leaderboard needs it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

PASS, OPEN, WARN, FAIL = VERDICTS = ("pass", "open", "warn", "fail")  # from good to bad

NOT_RUN = "not run"
OF_CHECKS = (PASS, NOT_RUN, OPEN, WARN, FAIL)  # from good to bad

PARTIAL = "partial"  # an audit that found nothing, but did not run all checks

CONCLUSIONS = (PASS, PARTIAL, OPEN, WARN, FAIL)  # from good to bad


def worst(verdicts: Iterable[str]) -> str:
    """Return the worst of some verdicts; checks that were not run are ignored. Empty if none is left."""
    return max((verdict for verdict in verdicts if verdict in VERDICTS), key=VERDICTS.index, default="")


@dataclass(frozen=True)
class Conclusion:
    """The result of an audit, with its basis: ``pass(n=200 eps=1,2)``, ``partial(n=200 eps=2 checks=12/14)``.

    Without radii, which is also the form in a store, the parts are separated by commas: ``pass(n=200)``,
    ``fail(n=8,checks=1/14)``.

    Attributes:
        verdict: One of CONCLUSIONS.
        n: Number of images.
        checks: Share of the checks that were run, such as ``12/14``; empty if all were run.
        eps: Linf radii at which the attack was audited, in units of 1/255, in ascending order; empty if they
            are unknown, or if no attack was run.
    """

    verdict: str
    n: int
    checks: str = ""
    eps: tuple[float, ...] = ()

    def __str__(self) -> str:
        radii = f"eps={','.join(f'{eps:.10g}' for eps in self.eps)}" if self.eps else ""
        parts = [f"n={self.n}", radii, f"checks={self.checks}" if self.checks else ""]
        return f"{self.verdict}({(' ' if radii else ',').join(filter(None, parts))})"


_FORM = re.compile(
    rf"({'|'.join(CONCLUSIONS)})\(n=(\d+)(?: eps=([\d.e+-]+(?:,[\d.e+-]+)*))?(?:[ ,]checks=(\d+/\d+))?\)"
)


def read_conclusion(text: str) -> Conclusion | None:
    """Return the conclusion that a text contains; None for any other text, such as a bare ``pass``."""
    if (match := _FORM.fullmatch(text)) is None:
        return None
    eps = tuple(map(float, match[3].split(","))) if match[3] else ()
    return Conclusion(match[1], int(match[2]), match[4] or "", eps)


def audited_radii(findings: Iterable[tuple[str, float | None]]) -> tuple[float, ...]:
    """Return the radii at which an attack was audited, in the unit and the form of `Conclusion.eps`.

    Args:
        findings: Name of the check and radius of each finding; None for a finding without a radius.
    """
    # These two checks also have a finding at the large radius, where the audited attack is not run.
    return tuple(sorted({eps for check, eps in findings if eps and check not in ("monotone", "large_eps")}))


def with_radii(conclusion: str, text: str) -> str:
    """Return a stored conclusion with the audited radii.

    Args:
        conclusion: The conclusion as it is stored, without radii. Any other text is returned unchanged.
        text: The findings of the audit as JSON, as they are stored.
    """
    if (found := read_conclusion(conclusion)) is None:
        return conclusion
    radii = audited_radii((line["check"], line.get("eps_255")) for line in json.loads(text))
    return str(replace(found, eps=radii))


def join_conclusions(texts: Iterable[str]) -> str:
    """Join the conclusions of several models: the worst verdict, the smallest n, the fewest checks.

    The radii of a pass are those that all models have in common. Those of another verdict are all at which
    the models with that verdict were audited.

    Args:
        texts: The conclusion of each model, at least one; empty for a model without an audit.

    Returns:
        The joint conclusion. It is empty if one of the texts is not a conclusion, such as a bare verdict of
        an older version, or if the models were audited at radii of which none is common to all.
    """
    texts = list(texts)
    found = [one for text in texts if (one := read_conclusion(text))]
    if len(found) < len(texts):
        return ""
    common = set.intersection(*(set(one.eps) for one in found))
    if not common and all(one.eps for one in found):
        return ""
    incomplete = [one.checks for one in found if one.checks]
    fewest = min(incomplete, key=lambda checks: int(checks.partition("/")[0]), default="")
    verdict = max((one.verdict for one in found), key=CONCLUSIONS.index)
    if verdict not in (PASS, PARTIAL):
        common = set().union(*(one.eps for one in found if one.verdict == verdict))
    return str(Conclusion(verdict, min(one.n for one in found), fewest, tuple(sorted(common))))

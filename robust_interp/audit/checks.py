"""Signs that a robust accuracy is worth less than it seems, judged from what stands under which attack.

Each check yields a finding: pass, open, warn or fail, with its number, interval and n. A fail says that the
model hides from gradients, so that no accuracy under a gradient attack means much; a warn, that the attack of
the row is tuned too weakly. Where the interval reaches too far for any of them the check is open: so few
samples do not tell. Plain arrays only: no torch here.

Everything is judged by what an attack really did: a sample whose gradient vanished counts as standing here,
whereas the leaderboard does not count it as robust. What to look for is in A. Athalye, N. Carlini, D. Wagner,
*Obfuscated Gradients Give a False Sense of Security* (2018), and N. Carlini et al., *On Evaluating
Adversarial Robustness* (2019).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from robust_interp.audit.thresholds import REACH, Thresholds
from robust_interp.core.statistics import Interval, paired_difference, wilson
from robust_interp.store.cells import ModelCard
from robust_interp.store.verdicts import FAIL, NOT_RUN, OPEN, PARTIAL, PASS, VERDICTS, WARN, Conclusion, worst

CHECKS = (
    "deterministic",
    "gradients",
    "logits",
    "loss_rises",
    "loss_steps",
    "step_size",
    "one_step",
    "monotone",
    "large_eps",
    "more_steps",
    "restarts",
    "strongest",
    "black_box",
    "transfer",
)


@dataclass(frozen=True)
class Finding:
    """What one check says at one radius.

    Attributes:
        value: The number that is judged, in percent or percentage points, with its 95 % interval.
        threshold: What `value` may be at most.
        detail: The same for a reader, with the accuracies that it was made of.
    """

    check: str
    verdict: str
    detail: str
    n: int
    eps_255: float | None = None
    value: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None
    threshold: float | None = None


@dataclass(frozen=True)
class Audited:
    """A model with what the checks found."""

    card: ModelCard
    findings: list[Finding]

    @property
    def verdict(self) -> str:
        """The worst of the checks'."""
        return worst(finding.verdict for finding in self.findings)

    @property
    def conclusion(self) -> Conclusion:
        """The verdict with what it rests on: how many samples, and which share of the checks."""
        return concluded((finding.check, finding.verdict, finding.n) for finding in self.findings)


def concluded(findings: Iterable[tuple[str, str, int]]) -> Conclusion:
    """What a model's findings, as (check, verdict, n), come to.

    Args:
        findings: At least one that ran. Those that did not run count for nothing but the share of the checks.

    Returns:
        The worst verdict, `partial` for a pass of fewer checks than there are; and the samples it rests on.
    """
    ran = [finding for finding in findings if finding[1] != NOT_RUN]
    checks = {check for check, _, _ in ran}
    complete = checks >= set(CHECKS)
    verdict = worst(verdict for _, verdict, _ in ran)
    # Whether a model is deterministic is tried on as few images as that takes, whatever n is.
    by_samples = [n for check, _, n in ran if check != "deterministic"] or [n for _, _, n in ran]
    return Conclusion(
        PARTIAL if verdict == PASS and not complete else verdict,
        max(by_samples),
        "" if complete else f"{len(checks)}/{len(CHECKS)}",
    )


@dataclass(frozen=True)
class Measured:
    """What one attack left at one radius.

    Attributes:
        name: The attack as a column names it, without the radius.
        eps_255: The radius; 0 for clean images.
        stands: Which samples are still classified right, (n,) bool.
        blind: Which had a zero or not finite gradient, (n,) bool.
    """

    name: str
    eps_255: float
    stands: np.ndarray
    blind: np.ndarray

    @property
    def accuracy(self) -> float:
        """Of the samples those that stand, in percent."""
        return 100 * float(self.stands.mean())

    def __str__(self) -> str:
        low, high = wilson(int(self.stands.sum()), len(self.stands))
        return f"accuracy under {self.name}: {self.accuracy:.1f} % ({low:.1f} to {high:.1f})"


def challenge(check: str, challenger: Measured, row: Measured, white_box: Sequence[Measured]) -> Finding:
    """An attack that should not be stronger than those that know the gradient at every step.

    It fails where the challenger leaves less than each of `white_box` beyond the interval, as a model does
    that hides its gradients; it warns where only the row's own attack is beaten.

    Args:
        check: One of CHECKS.
        challenger: What it left, of the same samples as the others.
        row: What the row's own attack left.
        white_box: What each attack left that knows the gradient at every step, at least one.
    """
    strongest = min(white_box, key=lambda measured: measured.accuracy)
    judged = []
    for other, beyond in ((strongest, FAIL), (row, WARN)):
        ahead = paired_difference(other.stands, challenger.stands)
        judged.append((_compared(ahead, beyond), ahead, other))
    verdict, ahead, other = max(judged, key=lambda one: VERDICTS.index(one[0]))
    return Finding(
        check,
        verdict,
        f"{challenger}, {other}",
        len(row.stands),
        row.eps_255,
        ahead.points,
        ahead.low,
        ahead.high,
        threshold=0.0,
    )


def gain(check: str, stronger: Measured, row: Measured, thresholds: Thresholds) -> Finding:
    """A costlier attack that should not take much from what stands under the row's.

    That it took more than it may is a fact about these samples; that it took anything must not be chance.

    Args:
        check: One of CHECKS.
        stronger: What the costlier attack left, of the same samples as `row`, what the row's left.
        thresholds: Whose `gain` it may take, in points.
    """
    gained, n = paired_difference(row.stands, stronger.stands), len(row.stands)
    detail = f"{stronger}, {row}"
    return _limited(check, WARN, detail, n, row.eps_255, gained, thresholds.gain, sure_above=0)


def monotone(series: Sequence[Measured]) -> list[Finding]:
    """Accuracy must not rise with the radius, by more than the interval.

    Args:
        series: What was left of the same samples, clean ones among it, in any order.

    Returns:
        A finding for each but the one of the smallest radius, against the next smaller one.
    """
    found = []
    for small, large in itertools.pairwise(sorted(series, key=lambda measured: measured.eps_255)):
        rise = paired_difference(large.stands, small.stands)
        found.append(
            Finding(
                "monotone",
                _compared(rise, FAIL),
                f"{large}; at {small.eps_255:g}/255: {small}",
                len(large.stands),
                large.eps_255,
                rise.points,
                rise.low,
                rise.high,
                threshold=0.0,
            )
        )
    return found


def large_eps(measured: Measured, thresholds: Thresholds) -> Finding:
    """In a ball so large that the image in it can be made another, next to nothing may stand.

    Args:
        measured: What an attack left at that radius.
        thresholds: Whose `standing` percent may stand.
    """
    return _share("large_eps", FAIL, str(measured), measured.stands, measured.eps_255, thresholds.standing)


def gradients(row: Measured, thresholds: Thresholds) -> Finding:
    """An attack whose gradient is zero or not finite has nothing to follow.

    Args:
        row: What the row's attack left, and which samples had no gradient.
        thresholds: Of whose samples `blind` percent may be so.
    """
    detail = f"{row.name}: {int(row.blind.sum())} samples with a zero or non-finite gradient"
    return _share("gradients", FAIL, detail, row.blind, row.eps_255, thresholds.blind)


def logits(
    name: str, eps_255: float, saturated: np.ndarray, probabilities: str, thresholds: Thresholds
) -> Finding:
    """Cross-entropy needs logits: where float32 rounds their probability to 1, its gradient is rounded, too.

    Losses that do not depend on the scale of the logits, such as APGD-DLR's, then see more.

    Args:
        name: The attack.
        eps_255: Its radius, in units of 1/255.
        saturated: Which samples have a probability that is 1 in float32 where the attack starts, (n,) bool.
        probabilities: What the outputs are where they are no logits but probabilities, in a phrase; else ''.
        thresholds: Of whose samples `saturated` percent may be so.
    """
    if probabilities:
        return Finding("logits", FAIL, f"{name}: the outputs are {probabilities}", len(saturated), eps_255)
    detail = f"{name}: {int(saturated.sum())} samples start with a probability that is 1 in float32"
    return _share("logits", FAIL, detail, saturated, eps_255, thresholds.saturated)


def loss(name: str, eps_255: float, losses: np.ndarray, thresholds: Thresholds) -> list[Finding]:
    """The loss along the row's attack: it must end higher than it began, and rise in most steps.

    Args:
        name: The attack.
        eps_255: Its radius, in units of 1/255.
        losses: (steps + 1, n), per-sample cross-entropy from the start to the last iterate.
    """
    flat = ~(losses[-1] > losses[0])  # a NaN has not risen either
    falls = np.diff(losses, axis=0) < 0
    detail = f"{name}: mean loss {losses[0].mean():.3g} at the start, {losses[-1].mean():.3g} at the end"
    n = losses.shape[1]
    # The steps of a sample are no draws of their own: its share of them counts as one, at most as uncertain
    # as a yes or no.
    fallen = falls.mean(axis=0).sum()
    falling = Interval(100 * float(fallen / n), *wilson(fallen, n))
    told = f"{name}: the loss falls in {falling.points:.1f} % of the steps"
    return [
        _share("loss_rises", FAIL, detail, flat, eps_255, thresholds.flat),
        _limited("loss_steps", WARN, told, n, eps_255, falling, thresholds.falls),
    ]


def _share(
    check: str, beyond: str, detail: str, which: np.ndarray, eps_255: float, threshold: float
) -> Finding:
    count, n = int(which.sum()), len(which)
    share = Interval(100 * count / n, *wilson(count, n))
    return _limited(check, beyond, detail, n, eps_255, share, threshold)


def _limited(
    check: str,
    beyond: str,
    detail: str,
    n: int,
    eps_255: float,
    found: Interval,
    threshold: float,
    sure_above: float | None = None,
) -> Finding:
    """A number that may be as large as `threshold`.

    It is `beyond` only if the interval lies above `sure_above`, by default the threshold, and passes only if
    the interval reaches at most REACH points past the threshold.
    """
    sure_above = threshold if sure_above is None else sure_above
    if found.points > threshold:
        verdict = beyond if found.low > sure_above else OPEN
    else:
        verdict = PASS if found.high <= threshold + REACH else OPEN
    return Finding(check, verdict, detail, n, eps_255, found.points, found.low, found.high, threshold)


def _compared(found: Interval, beyond: str) -> str:
    """The verdict on a difference that should not be above 0, where chance may bring a few points."""
    if found.low > 0:
        return beyond
    return PASS if found.high <= REACH else OPEN

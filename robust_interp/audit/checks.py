"""The checks of the audit: signs that a robust accuracy is too high, judged from accuracies under attacks.

Each check yields a finding: pass, open, warn or fail, with its number, interval and n. A fail means masked
gradients, so accuracies under gradient attacks mean little. A warn means that the audited attack is too
weak. A check is open if the interval is too wide to decide, because there are too few images. This module
uses only numpy arrays, not torch.

The checks use the predictions on the attacked images. An image without a gradient can therefore count as
correct here, whereas the leaderboard does not count it as robust. The checks follow A. Athalye, N. Carlini,
D. Wagner, *Obfuscated Gradients Give a False Sense of Security* (2018), and N. Carlini et al., *On Evaluating
Adversarial Robustness* (2019).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from robust_interp.audit.thresholds import REACH, Thresholds
from robust_interp.core.percent import percent
from robust_interp.core.statistics import Interval, paired_difference, wilson
from robust_interp.store.cells import ModelCard
from robust_interp.store.verdicts import (
    FAIL,
    NOT_RUN,
    OPEN,
    PARTIAL,
    PASS,
    VERDICTS,
    WARN,
    Conclusion,
    audited_radii,
    worst,
)

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
    """The result of one check at one radius.

    Attributes:
        check: Name of the check, one of CHECKS.
        verdict: ``pass``, ``open``, ``warn``, ``fail`` or ``not run``.
        detail: Description for a reader, with the accuracies that were compared.
        n: Number of images.
        eps_255: Radius in units of 1/255; None if the check has none.
        value: The judged number; in most checks in percent or percentage points.
        ci_low: Lower end of its 95 % interval.
        ci_high: Upper end of its 95 % interval.
        threshold: Limit of `value`.
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
class AuditedModel:
    """A model with the findings of its checks."""

    card: ModelCard
    findings: list[Finding]

    @property
    def verdict(self) -> str:
        """The worst verdict of the checks."""
        return worst(finding.verdict for finding in self.findings)

    @property
    def conclusion(self) -> Conclusion:
        """The verdict with the number of images, the radii and the share of the checks it is based on."""
        return conclude((found.check, found.verdict, found.n, found.eps_255) for found in self.findings)


def conclude(findings: Iterable[tuple[str, str, int, float | None]]) -> Conclusion:
    """Combine the findings of a model into one conclusion.

    Args:
        findings: Tuples (check, verdict, n, radius in units of 1/255 or None), of which at least one check
            ran. Checks that did not run only lower the share of the checks.

    Returns:
        The worst verdict, or `partial` for a pass if some checks did not run; the number of images; the share
        of the checks that ran, '' if all did; and the audited radii.
    """
    ran = [finding for finding in findings if finding[1] != NOT_RUN]
    checks = {check for check, *_ in ran}
    complete = checks >= set(CHECKS)
    verdict = worst(verdict for _, verdict, *_ in ran)
    # The check `deterministic` always uses a few images, so its n is left out if possible.
    by_images = [n for check, _, n, _ in ran if check != "deterministic"] or [n for _, _, n, _ in ran]
    return Conclusion(
        PARTIAL if verdict == PASS and not complete else verdict,
        max(by_images),
        "" if complete else f"{len(checks)}/{len(CHECKS)}",
        audited_radii((check, eps) for check, _, _, eps in ran),
    )


@dataclass(frozen=True)
class MeasuredAttack:
    """The result of one attack at one radius.

    Attributes:
        name: Name of the attack in column names, without the radius.
        eps_255: Radius in units of 1/255; 0 for clean images.
        stands: Whether each image is classified correctly under the attack, (n,) bool.
        blind: Whether each image had only zero gradients or a non-finite value, (n,) bool.
    """

    name: str
    eps_255: float
    stands: np.ndarray
    blind: np.ndarray

    @property
    def accuracy(self) -> float:
        """Accuracy under the attack, in %."""
        return 100 * float(self.stands.mean())

    def __str__(self) -> str:
        low, high = wilson(int(self.stands.sum()), len(self.stands))
        return f"accuracy under {self.name}: {percent(self.accuracy)} % ({percent(low)} to {percent(high)})"


def deterministic(n: int, passes: int, error: str = "") -> Finding:
    """Check that the model gives the same outputs each time.

    Args:
        n: Number of images.
        passes: Number of forward passes that were compared.
        error: What differs; empty if nothing does.
    """
    same = f"{n} images: same predictions {passes} times, and with a gradient as without"
    return Finding("deterministic", FAIL if error else PASS, error or same, n)


def no_gradient(n: int, thresholds: Thresholds) -> Finding:
    """Return the finding of the check `gradients` on a model that no attack can follow.

    Args:
        n: Number of images of the audit.
        thresholds: Limits, as for `gradients`.
    """
    detail = "the model lets no gradient through to its input"
    return Finding("gradients", FAIL, detail, n, value=100.0, threshold=thresholds.blind)


def step_size(
    column: str, eps_255: float | None, alpha_255: float, steps: int, warning: str | None
) -> Finding:
    """Check that a step is not larger than the ball and that all steps together can reach its boundary.

    Args:
        column: The audited attack with its radius.
        eps_255: The radius, in units of 1/255.
        alpha_255: Length of a step, in the same unit.
        steps: Number of steps.
        warning: What is wrong with the steps; None if nothing is.
    """
    detail = warning or f"{column}: {steps} steps of {alpha_255:g}/255"
    verdict = WARN if warning else PASS
    return Finding("step_size", verdict, detail, 0, eps_255, value=alpha_255, threshold=eps_255)


def comparisons(at: Mapping[str, MeasuredAttack], thresholds: Thresholds) -> list[Finding]:
    """Return the findings of the checks that compare attacks at one radius.

    Args:
        at: The results by part of the audit; ``row`` and ``one_step`` must be among them.
        thresholds: Limits, as for `gain`.
    """
    row, one_step = at["row"], at["one_step"]
    iterative = [
        at[part] for part in ("row", "iterative", "more_steps", "restarts", "strongest") if part in at
    ]
    found = [challenge("one_step", one_step, row, iterative)]
    for part in ("more_steps", "restarts", "strongest"):
        if part in at:
            found.append(gain(part, at[part], row, thresholds))
    for part in ("black_box", "transfer"):
        if part in at:
            found.append(challenge(part, at[part], row, [one_step, *iterative]))
    return found


def challenge(
    check: str, challenger: MeasuredAttack, row: MeasuredAttack, white_box: Sequence[MeasuredAttack]
) -> Finding:
    """Check that an attack is not stronger than the white-box attacks.

    It fails if the challenger gives a significantly lower accuracy than all white-box attacks, which is a
    sign of masked gradients. It warns if the accuracy is significantly lower only than under the audited
    attack.

    Args:
        check: Name of the check, one of CHECKS.
        challenger: Result of the attack that should not be stronger, on the same images as the others.
        row: Result of the audited attack.
        white_box: Results of the white-box attacks, at least one.
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


def gain(check: str, stronger: MeasuredAttack, row: MeasuredAttack, thresholds: Thresholds) -> Finding:
    """Check that a costlier attack does not give a much lower accuracy than the audited attack.

    It warns if the difference on these images exceeds the limit and is significantly above 0.

    Args:
        check: Name of the check, one of CHECKS.
        stronger: Result of the costlier attack, on the same images as `row`.
        row: Result of the audited attack.
        thresholds: Limits; `thresholds.gain` is the largest difference, in percentage points.
    """
    gained, n = paired_difference(row.stands, stronger.stands), len(row.stands)
    detail = f"{stronger}, {row}"
    return _limited(check, WARN, detail, n, row.eps_255, gained, thresholds.gain, sure_above=0)


def monotone(series: Sequence[MeasuredAttack]) -> list[Finding]:
    """Check that the accuracy does not rise significantly with the radius.

    Args:
        series: Results on the same images at several radii, including the clean images, in any order.

    Returns:
        One finding for each radius but the smallest, compared with the next smaller radius.
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


def large_eps(measured: MeasuredAttack, thresholds: Thresholds) -> Finding:
    """Check that the accuracy is almost 0 at a radius so large that an attack can make any image another one.

    Args:
        measured: Result of the attack at that radius.
        thresholds: Limits; `thresholds.standing` is the largest accuracy, in %.
    """
    return _share("large_eps", FAIL, str(measured), measured.stands, measured.eps_255, thresholds.standing)


def gradients(row: MeasuredAttack, thresholds: Thresholds) -> Finding:
    """Check that the gradients are finite and not zero, since the attack cannot follow them otherwise.

    Args:
        row: Result of the audited attack.
        thresholds: Limits; `thresholds.blind` is the percentage of images that may have no usable gradient.
    """
    detail = f"{row.name}: {int(row.blind.sum())} images with a zero or non-finite gradient"
    return _share("gradients", FAIL, detail, row.blind, row.eps_255, thresholds.blind)


def logits(
    name: str, eps_255: float, saturated: np.ndarray, probabilities: str, thresholds: Thresholds
) -> Finding:
    """Check that the outputs are logits of a moderate scale, as the cross-entropy needs.

    If float32 rounds a probability to 1, the gradient of the cross-entropy is rounded, too. A loss that
    does not depend on the scale of the logits, such as that of APGD-DLR, is not affected.

    Args:
        name: Name of the attack.
        eps_255: Its radius, in units of 1/255.
        saturated: Whether each image has a probability of 1 in float32 at the start of the attack, (n,) bool.
        probabilities: Phrase that describes outputs that are probabilities; '' if they are logits.
        thresholds: Limits; `thresholds.saturated` is the percentage of images that may be saturated.
    """
    if probabilities:
        return Finding("logits", FAIL, f"{name}: the outputs are {probabilities}", len(saturated), eps_255)
    detail = f"{name}: {int(saturated.sum())} images start with a probability that is 1 in float32"
    return _share("logits", FAIL, detail, saturated, eps_255, thresholds.saturated)


def loss(
    name: str, eps_255: float, losses: np.ndarray, thresholds: Thresholds, steps: int | None = None
) -> list[Finding]:
    """Check that the loss ends higher than it started, and that it falls in few steps of the attack.

    The second check is not run for an attack that does not compute one gradient in each step: several are not
    all at its iterates, so it is not known how the loss changes from step to step.

    Args:
        name: Name of the attack.
        eps_255: Its radius, in units of 1/255.
        losses: Cross-entropy of each image at each gradient and at the last iterate, (gradients + 1, n).
        thresholds: Limits; `thresholds.flat` is the percentage of images whose loss may not rise, and
            `thresholds.falls` is the percentage of steps in which the loss may fall.
        steps: Number of steps of the attack; None for as many as gradients.
    """
    flat = ~(losses[-1] > losses[0])  # NaN counts as not risen
    detail = f"{name}: mean loss {losses[0].mean():.3g} at the start, {losses[-1].mean():.3g} at the end"
    rises = _share("loss_rises", FAIL, detail, flat, eps_255, thresholds.flat)
    gradients, n = len(losses) - 1, losses.shape[1]
    if steps is not None and gradients != steps:
        reason = f"{name} computes {gradients} gradients in {steps} steps, not one in each"
        if gradients == 1:  # or another number for each image
            reason = f"{name} does not compute one gradient in each of its {steps} steps"
        return [rises, Finding("loss_steps", NOT_RUN, reason, n, eps_255)]
    return [rises, _falls(name, eps_255, losses, thresholds)]


def _falls(name: str, eps_255: float, losses: np.ndarray, thresholds: Thresholds) -> Finding:
    falls, n = np.diff(losses, axis=0) < 0, losses.shape[1]
    # The steps of an image are not independent, so the image counts as one observation: its share of falling
    # steps. Such a share varies at most as much as a yes or no, so the interval is wide enough.
    fallen = falls.mean(axis=0).sum()
    falling = Interval(100 * float(fallen / n), *wilson(fallen, n))
    told = f"{name}: the loss falls in {percent(falling.points)} % of the steps"
    return _limited("loss_steps", WARN, told, n, eps_255, falling, thresholds.falls)


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
    """Return the finding for a number that may be at most `threshold`.

    The verdict is `beyond` if the number exceeds the threshold and the interval lies above `sure_above` (by
    default the threshold). It is PASS if the number is within the threshold and the interval exceeds it by at
    most REACH points. Otherwise it is OPEN.
    """
    sure_above = threshold if sure_above is None else sure_above
    if found.points > threshold:
        verdict = beyond if found.low > sure_above else OPEN
    else:
        verdict = PASS if found.high <= threshold + REACH else OPEN
    return Finding(check, verdict, detail, n, eps_255, found.points, found.low, found.high, threshold)


def _compared(found: Interval, beyond: str) -> str:
    """Return the verdict on a difference that should not be significantly above 0."""
    if found.low > 0:
        return beyond
    return PASS if found.high <= REACH else OPEN

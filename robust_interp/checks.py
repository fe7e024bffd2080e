"""Signs that a robust accuracy is worth less than it seems, judged from what stands under which attack.

Each check yields a finding: pass, warn or fail, with its number, interval and n. A fail says that the model
hides from gradients, so that no accuracy under a gradient attack means much; a warn, that the attack of the
row is tuned too weakly. Plain arrays only: no torch here.

Everything is judged by what an attack really did: a sample whose gradient vanished counts as standing here,
whereas the leaderboard does not count it as robust. What to look for is in A. Athalye, N. Carlini, D. Wagner,
*Obfuscated Gradients Give a False Sense of Security* (2018), and N. Carlini et al., *On Evaluating
Adversarial Robustness* (2019).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from robust_interp.cells import VictimCard
from robust_interp.metrics import paired_difference, wilson
from robust_interp.verdict import FAIL, PASS, WARN, Thresholds, worst

CHECKS = (
    "deterministic",
    "gradients",
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

    card: VictimCard
    findings: list[Finding]

    @property
    def verdict(self) -> str:
        return worst(finding.verdict for finding in self.findings)


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
        return 100 * float(self.stands.mean())

    def __str__(self) -> str:
        low, high = wilson(int(self.stands.sum()), len(self.stands))
        return f"{self.name} leaves {self.accuracy:.1f} % ({low:.1f} to {high:.1f})"


def challenge(check: str, challenger: Measured, row: Measured, white_box: Sequence[Measured]) -> Finding:
    """An attack that should not be stronger than those that know the gradient at every step.

    It fails where the challenger leaves less than each of `white_box` beyond the interval, as a model does
    that hides its gradients; it warns where only the row's own attack is beaten.
    """
    strongest = min(white_box, key=lambda measured: measured.accuracy)
    ahead = paired_difference(strongest.stands, challenger.stands)
    ahead_of_row = paired_difference(row.stands, challenger.stands)
    other, verdict = strongest, PASS
    if ahead.low > 0:
        verdict = FAIL
    elif ahead_of_row.low > 0:
        ahead, other, verdict = ahead_of_row, row, WARN
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
    """A costlier attack that should not take much from what stands under the row's."""
    gained = paired_difference(row.stands, stronger.stands)
    return Finding(
        check,
        WARN if gained.points > thresholds.gain else PASS,
        f"{stronger}, {row}",
        len(row.stands),
        row.eps_255,
        gained.points,
        gained.low,
        gained.high,
        thresholds.gain,
    )


def monotone(series: Sequence[Measured]) -> list[Finding]:
    """Accuracy must not rise with the radius, by more than the interval; `series` begins with clean."""
    found = []
    for small, large in itertools.pairwise(sorted(series, key=lambda measured: measured.eps_255)):
        rise = paired_difference(large.stands, small.stands)
        found.append(
            Finding(
                "monotone",
                FAIL if rise.low > 0 else PASS,
                f"{large}; at {small.eps_255:g}/255 {small}",
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
    """In a ball so large that the image in it can be made another, next to nothing may stand."""
    return _share("large_eps", FAIL, str(measured), measured.stands, measured.eps_255, thresholds.standing)


def gradients(row: Measured, thresholds: Thresholds) -> Finding:
    """An attack whose gradient is zero or not finite has nothing to follow."""
    detail = f"{row.name}: {int(row.blind.sum())} samples with a zero or not finite gradient"
    return _share("gradients", FAIL, detail, row.blind, row.eps_255, thresholds.blind)


def loss(name: str, eps_255: float, losses: np.ndarray, thresholds: Thresholds) -> list[Finding]:
    """The loss along the row's attack: it must end higher than it began, and rise in most steps.

    Args:
        losses: (steps + 1, n), per-sample cross-entropy from the start to the last iterate.
    """
    flat = ~(losses[-1] > losses[0])  # a NaN has not risen either
    falls = np.diff(losses, axis=0) < 0
    detail = f"{name}: mean loss {losses[0].mean():.3g} at the start, {losses[-1].mean():.3g} at the end"
    n = losses.shape[1]
    share = 100 * float(falls.mean())
    return [
        _share("loss_rises", FAIL, detail, flat, eps_255, thresholds.flat),
        Finding(
            "loss_steps",
            WARN if share > thresholds.falls else PASS,
            f"{name}: the loss falls in {share:.1f} % of the steps",
            n,
            eps_255,
            share,
            threshold=thresholds.falls,
        ),
    ]


def _share(check: str, beyond: str, detail: str, which: np.ndarray, eps_255: float, threshold: float):
    share = 100 * float(which.mean())
    low, high = wilson(int(which.sum()), len(which))
    verdict = beyond if share > threshold else PASS
    return Finding(check, verdict, detail, len(which), eps_255, share, low, high, threshold)

"""What a reader of a table must be told: signs that a number does not mean what it seems to."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from robust_interp.cells import VictimCard
from robust_interp.leaderboard import Score

CHANCE_MARGIN = 2.0  # percentage points above chance that still look like chance
CLEAN_MARGIN = 5.0  # percentage points that a checkpoint's recorded clean accuracy may be missed by
NOISE_MARGIN = 2.0  # percentage points by which an order may be reversed before it is remarked on


def findings(scored: Iterable[Score], classes: int) -> list[str]:
    """One line each for what looks wrong in a run, grouped by victim."""
    by_victim: dict[str, list[Score]] = {}
    for score in scored:
        by_victim.setdefault(score.victim.label + score.victim.recipe, []).append(score)
    return [line for scores in by_victim.values() for line in _of_victim(scores, classes)]


def _of_victim(scores: list[Score], classes: int) -> list[str]:
    card = scores[0].victim
    accuracy = {score.column: score.accuracy for score in scores}
    lines = _clean(card, accuracy, classes)
    for score in scores:
        if score.row.get("zero_grad"):
            lines.append(
                f"{card.label}, {score.column}: the gradient is exactly zero for "
                f"{score.row['zero_grad']:.1%} of the samples, which are not counted as robust"
            )
        if score.not_finite:
            lines.append(
                f"{card.label}, {score.column}: {score.not_finite} samples with values that are not finite, "
                "counted as wrong"
            )
    return lines + _masking(card, scores, accuracy)


def _clean(card: VictimCard, accuracy: dict[str, float], classes: int) -> list[str]:
    clean = accuracy.get("clean")
    if clean is None:
        return []
    if clean <= 100 / classes + CHANCE_MARGIN:
        return [
            f"{card.label}: clean accuracy {clean:.1f} % is chance: are the normalisation, the label order "
            "and the BatchNorm statistics those it was trained with?"
        ]
    if card.recorded_clean is not None and clean < card.recorded_clean - CLEAN_MARGIN:
        return [
            f"{card.label}: clean accuracy {clean:.1f} %, but its record says {card.recorded_clean:.1f} %"
        ]
    return []


def _masking(card: VictimCard, scores: list[Score], accuracy: dict[str, float]) -> list[str]:
    """Signs of masked gradients: one step beats many, or a larger ball helps the model."""
    rows = [score.row for score in scores if score.row["norm"] and score.row["perturbation"] != "worst"]
    radii = sorted({row["eps_255"] for row in rows})
    series = dict.fromkeys(score.column.rpartition("_")[0] for score in scores if score.row in rows)
    lines = []
    for name in series:
        for radius in radii:
            many, one = accuracy.get(f"{name}_{radius:g}"), accuracy.get(f"fgsm_{radius:g}")
            if many is not None and one is not None and many > one + NOISE_MARGIN:
                lines.append(
                    f"{card.label}: {name}_{radius:g} leaves {many:.1f} %, one FGSM step {one:.1f} %: "
                    "the iterative attack is badly tuned, or gradients are masked"
                )
        for small, large in itertools.pairwise(radii):
            low, high = accuracy.get(f"{name}_{small:g}"), accuracy.get(f"{name}_{large:g}")
            if low is not None and high is not None and high > low + NOISE_MARGIN:
                lines.append(
                    f"{card.label}: {name} leaves {high:.1f} % at eps {large:g}/255 and {low:.1f} % at "
                    f"{small:g}/255: gradients may be masked"
                )
    return lines

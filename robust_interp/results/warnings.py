"""Warnings shown with a table: signs that a number is misleading."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

from robust_interp.core.percent import percent
from robust_interp.results.chance import chance_level, guessing, is_at_chance
from robust_interp.results.columns import Kind
from robust_interp.results.scores import Score
from robust_interp.store.cells import labels

CLEAN_MARGIN = 5.0  # percentage points that clean accuracy may lie below the recorded one
NOISE_MARGIN = 2.0  # percentage points by which an order may be reversed without a warning

ZERO_GRADIENT_RISE = 0.001  # share of additional zero gradients that a lower precision may have


def findings(scored: Iterable[Score]) -> list[str]:
    """Return one line per warning about the scores of a run, grouped by classifier.

    Args:
        scored: Scores of the run.
    """
    scored = list(scored)
    by_classifier: dict[str, list[Score]] = {}
    for name, score in zip(labels([score.classifier for score in scored]), scored, strict=True):
        by_classifier.setdefault(name, []).append(score)
    return [line for name, scores in by_classifier.items() for line in _of_classifier(name, scores)]


def _of_classifier(name: str, scores: list[Score]) -> list[str]:
    by_column = {score.column: score for score in scores}
    lines = _clean(name, by_column["clean"]) if "clean" in by_column else []
    for score in scores:
        if score.row.get("zero_grad"):
            lines.append(
                f"{name}, {score.column}: the gradient is exactly zero for "
                f"{score.row['zero_grad']:.1%} of the images, which are not counted as robust"
            )
        check = score.precision_check
        if check and check.zero_gradient_rise > ZERO_GRADIENT_RISE:
            lines.append(
                f"{name}, {score.column}: in {score.attack_precision} the gradient is exactly "
                f"zero for {check.zero_gradient_rise:.1%} more of the images than in float32: use float32"
            )
        if score.not_finite:
            lines.append(
                f"{name}, {score.column}: {score.not_finite} images with values that are not finite, "
                "counted as wrong"
            )
    if scores[0].classifier.attacked_as:
        return lines  # no signs of masking in transfer attacks: one step often transfers best
    return lines + _masking(name, by_column)


def _clean(name: str, clean: Score) -> list[str]:
    recorded = clean.classifier.recorded_clean
    if is_at_chance(clean):
        return [f"{name}: {_at_chance(clean)}"]
    if recorded is not None and recorded > clean.accuracy + _slack(clean, CLEAN_MARGIN):
        return [
            f"{name}: clean accuracy {percent(clean.accuracy)} %, but train.json records "
            f"{percent(recorded)} %"
        ]
    return []


def _at_chance(clean: Score) -> str:
    """Say what a clean accuracy at chance level may come from."""
    chance, n = guessing(clean), len(clean.right)
    said = f"clean accuracy {percent(clean.accuracy)} %"
    if (clean.labels == clean.labels[0]).all():
        return (
            f"{said} of images that are all of one class, as a constant classifier may have: use other images"
        )
    if clean.accuracy > chance_level(clean):
        return f"{said} of {n} images is not clearly above chance ({percent(chance)} %): use more images"
    where = "below" if clean.row["ci_high"] < chance else "at"
    return (
        f"{said} is {where} chance level ({percent(chance)} % for these labels and predictions): check "
        "normalisation, label order and BatchNorm statistics"
    )


def _slack(score: Score, margin: float) -> float:
    """Return how far another accuracy may lie above this one: the margin, or the interval if it is wider."""
    return max(margin, score.row["ci_high"] - score.accuracy)


def _follows_the_loss(score: Score) -> bool:
    """Return whether no attack is black-box or targeted. Those may be weaker than one FGSM step."""
    return not any(key in p.params for p in score.perturbations for key in ("queries", "target"))


def _masking(name: str, by_column: dict[str, Score]) -> list[str]:
    """Warn of masked gradients: one step is stronger than many, or accuracy rises with the radius."""
    attacked: dict[tuple[str, float], Score] = {}  # by attack and Linf radius in units of 1/255
    for score in by_column.values():
        column = score.measured
        if column.kind is Kind.ATTACK and score.row["eps_255"] and _follows_the_loss(score):
            attacked[column.series, score.row["eps_255"]] = score
    lines = []
    for (_, eps_255), many in attacked.items():
        one = attacked.get(("fgsm", eps_255))
        if one and many.accuracy > one.accuracy + _slack(one, NOISE_MARGIN):
            lines.append(
                f"{name}: accuracy under {many.column} is {percent(many.accuracy)} %, under one FGSM step "
                f"{percent(one.accuracy)} %: it is badly tuned, as with an alpha that is too small for "
                "this eps, or gradients are masked"
            )
    for attack in dict.fromkeys(series for series, _ in attacked):
        by_radius = sorted(
            (eps_255, score) for (series, eps_255), score in attacked.items() if series == attack
        )
        for (small_eps, small), (large_eps, large) in itertools.pairwise(by_radius):
            if large.accuracy > small.accuracy + _slack(small, NOISE_MARGIN):
                lines.append(
                    f"{name}: accuracy under {attack} is {percent(large.accuracy)} % at eps "
                    f"{large_eps:g}/255 and {percent(small.accuracy)} % at {small_eps:g}/255: gradients may "
                    "be masked"
                )
    return lines

"""Scores, each one row of results.csv, computed from stored cells."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import pandas as pd

from robust_interp.core import statistics
from robust_interp.results import rows
from robust_interp.results.column_names import MeasuredColumn, parse
from robust_interp.results.columns import (
    OF_IMAGES,
    OF_PRECISION,
    ON_REQUEST,
    RESULTS,
    STRONG,
    WORST,
    Kind,
    Type,
)
from robust_interp.results.frames import frame_of, whole_numbers
from robust_interp.results.precision import PrecisionCheck, check
from robust_interp.store import Outcome, Store
from robust_interp.store.cells import FLOAT32, Cell, ModelCard, Perturbation, Plan, attack_column, digest
from robust_interp.store.finished import find_outcome


@dataclass(frozen=True)
class Score:
    """One row of results.csv.

    Attributes:
        classifier: Description of the classifier.
        column: Leaderboard column of the accuracy.
        accuracy: Accuracy in percent.
        row: Values of the row, by column name.
        right: Which images count as correct, (n,) bool; the accuracy is their share.
        labels: Labels of the images, (n,).
        predictions: Predicted classes, (n,), -1 without a prediction; None for several perturbations.
        not_finite: Number of images with values that are not finite.
        perturbations: The perturbation of the images, or several under ``worst`` and ``strong``.
        audit: Conclusion of the classifier's audit on this data set; empty if there was none.
        code: Version of the plug-in code that computed the perturbations; empty without plug-ins.
        precision_check: Comparison with the same attack in float32; None if there is none.
        rounded_accuracy: Accuracy in percent with images rounded to multiples of 1/255; None if not measured.
        engine: Engine that ran the model in the attack, if not only the model's own code; else empty.
        class_names: Name of each class of own images, if known.
        incomplete: Cells of the entry that are finished, of those that its unfinished run planned, such as
            ``12/33``; empty if all are.
    """

    classifier: ModelCard
    column: str
    accuracy: float
    row: dict
    right: np.ndarray = field(repr=False, compare=False)
    labels: np.ndarray = field(repr=False, compare=False, default_factory=lambda: np.zeros(0, int))
    predictions: np.ndarray | None = field(repr=False, compare=False, default=None)
    not_finite: int = 0
    perturbations: tuple[Perturbation, ...] = ()
    audit: str = ""
    code: str = ""
    precision_check: PrecisionCheck | None = None
    rounded_accuracy: float | None = None
    engine: str = ""
    class_names: tuple[str, ...] = ()
    incomplete: str = ""

    @property
    def attack_precision(self) -> str:
        """Precision of the attacks' gradients, float32 only if all have it; empty without an attack."""
        found = [made.precision for made in self.perturbations if made.kind == "attack"]
        return next((each for each in found if each != FLOAT32), FLOAT32) if found else ""

    @property
    def is_attack(self) -> bool:
        return any(perturbation.kind == "attack" for perturbation in self.perturbations)

    @property
    def measured(self) -> MeasuredColumn:
        """The parsed column name."""
        return parse(self.column, {made.name for made in self.perturbations if made.kind == "corruption"})


_Done: TypeAlias = tuple[Cell, Outcome]
_Attacked: TypeAlias = tuple[list[_Done], np.ndarray]  # attacks in one ball; correct under all of them


def scores(plan: Plan, store: Store, unfinished: bool = False) -> list[Score]:
    """Score the finished cells of a plan. Missing cells of a finished run are noted in the store's damage.

    Under protocol ``final``, the accuracy of a cell is that of the final iterate over all images. Under
    ``worst``, an image must also be correct when clean. A score ``worst`` per norm and eps then requires that
    it is correct under all attacks there. An attack that skipped images broken by other attacks has no
    separate score. Under both protocols, a score ``strong`` per norm and eps is the ``worst`` of stronger
    attacks, on a different number of images.

    Args:
        plan: The plan of the run.
        store: The store with its cells.
        unfinished: Whether the run of the plan has not finished, so that cells may be missing.

    Returns:
        The scores, grouped by classifier; those of the strong attacks are last.
    """
    scored: list[Score] = []
    for cells in _by_classifier(plan.cells):
        card = cells[0].classifier  # an audit attacks the classifier itself, not another one in its place
        verdict = "" if card.attacked_as else store.verdict(digest(card.identity), cells[0].fingerprint)
        of_classifier = _scores_of_classifier(plan, cells, store, unfinished)
        _add_success_rates(of_classifier)
        scored += [replace(score, audit=verdict) for score in of_classifier]
    _add_improvements(scored)
    scored += _strong(plan.strong, store, unfinished) if plan.strong else []
    return [replace(score, class_names=plan.class_names) for score in scored]


def _by_classifier(cells: Iterable[Cell]) -> list[list[Cell]]:
    grouped: dict[str, list[Cell]] = {}
    for cell in cells:
        card = cell.classifier
        grouped.setdefault(digest([card.model, card.train_seed, card.identity]), []).append(cell)
    return list(grouped.values())


def _scores_of_classifier(plan: Plan, cells: list[Cell], store: Store, unfinished: bool) -> list[Score]:
    found = [find_outcome(cell, store, plan.n) for cell in cells]
    outcomes = [(cell, outcome) for cell, outcome in found if outcome]
    missing = [cell for cell, outcome in found if outcome is None]
    for cell in [] if unfinished else missing:
        store.note_missing(cell, plan.n)
    labels = store.labels(cells[0].fingerprint, plan.n)[: plan.n] if outcomes else np.zeros(0, int)
    right = [outcome.correct(labels) for _, outcome in outcomes]
    content = store.content(cells[0].fingerprint, plan.n)
    clean = None
    derived: list[_Attacked] = []
    if plan.protocol == "worst":
        if all(cell.perturbation.kind != "clean" for cell, _ in outcomes):
            return []  # without clean predictions, no image can count as correct
        clean = right[[cell.perturbation.kind for cell, _ in outcomes].index("clean")]
        right, derived = _worst(outcomes, right, {cell.perturbation.ball for cell in missing})
    own = [
        replace(_score(plan, *done, correct, labels, content), rounded_accuracy=_rounded(*done, clean))
        for done, correct in zip(outcomes, right, strict=True)
        if done[0].has_own_number(plan.protocol)
    ]
    scored = own + [_worst_score(plan, attacked, correct, labels, content) for attacked, correct in derived]
    return [_self_checked(score, plan, cells, store) for score in scored]


def _rounded(cell: Cell, outcome: Outcome, clean: np.ndarray | None) -> float | None:
    """Return the accuracy in percent with images rounded to multiples of 1/255; None if not measured.

    Args:
        cell: The cell.
        outcome: Its outcome.
        clean: Which images are correct when clean, (n,) bool; None if that is not required.
    """
    if not cell.perturbation.rounded:
        return None
    right = outcome.correct_rounded if clean is None else clean & outcome.correct_rounded
    return 100 * float(right.mean())


def _self_checked(score: Score, plan: Plan, cells: Sequence[Cell], store: Store) -> Score:
    """Add the comparison with float32 to a score, if the store has a part of the same attack in float32.

    A score of several attacks gets the comparison of the last attack that has one.
    """
    by_perturbation = {id(cell.perturbation): cell for cell in cells}
    found = [by_perturbation[id(made)] for made in score.perturbations if made.precision != FLOAT32]
    checks = [checked for cell in found if (checked := check(cell, store, plan.n))]
    return replace(score, precision_check=checks[-1]) if checks else score


def _worst(
    outcomes: list[_Done], right: list[np.ndarray], incomplete: Collection[tuple[str, float] | None]
) -> tuple[list[np.ndarray], list[_Attacked]]:
    """Combine the attacks with the clean images, and with the other attacks of the same norm and eps.

    Args:
        outcomes: Cells and outcomes of one classifier.
        right: Which images each outcome has correct, each (n,) bool.
        incomplete: Norms and eps with missing attacks. They are left out, as the worst of fewer attacks is a
            different number.

    Returns:
        `right`, where images under attack must also be correct when clean; and the attacks of each norm and
        eps, with the images that are correct under all of them.
    """
    kinds = [cell.perturbation.kind for cell, _ in outcomes]
    clean = right[kinds.index("clean")]
    right = [
        clean & correct if kind == "attack" else correct for kind, correct in zip(kinds, right, strict=True)
    ]
    by_ball: dict[tuple, _Attacked] = {}
    for done, correct in zip(outcomes, right, strict=True):
        if ball := done[0].perturbation.ball:
            attacked, sofar = by_ball.get(ball, ([], clean))
            by_ball[ball] = ([*attacked, done], sofar & correct)
    return right, [joint for ball, joint in by_ball.items() if ball not in incomplete]


def _score(
    plan: Plan, cell: Cell, outcome: Outcome, right: np.ndarray, labels: np.ndarray, content: str
) -> Score:
    row = rows.row_of_cell(plan, cell, outcome, right, content)
    return Score(
        cell.classifier,
        cell.perturbation.column,
        row["accuracy"],
        row,
        right,
        labels,
        outcome.predictions,
        rows.not_finite([outcome]),
        (cell.perturbation,),
        code=cell.environment.get("plugin", ""),
        engine=outcome.engine,
    )


def _worst_score(
    plan: Plan, outcomes: list[_Done], right: np.ndarray, labels: np.ndarray, content: str
) -> Score:
    cells = [cell for cell, _ in outcomes]
    row = rows.worst_case_row(plan, WORST, outcomes, right, content)
    return Score(
        cells[0].classifier,
        attack_column(WORST, *rows.norm_and_radius(cells[0].perturbation)),
        row["accuracy"],
        row,
        right,
        labels,
        None,
        rows.not_finite(rows.without_own_line(plan, outcomes)),
        tuple(cell.perturbation for cell in cells),
        code="+".join(cell.environment["plugin"] for cell in cells if "plugin" in cell.environment),
    )


def _strong(plan: Plan, store: Store, unfinished: bool) -> list[Score]:
    """Return the `worst` scores of the plan of the strong attacks, renamed to `strong`."""
    return [
        replace(
            score,
            column=attack_column(STRONG, *rows.norm_and_radius(score.perturbations[0])),
            row=score.row | {"perturbation": rows.name_of_worst(STRONG, score.perturbations)},
        )
        for score in scores(plan, store, unfinished)
        if score.measured.kind is Kind.WORST
    ]


def _add_success_rates(of_classifier: list[Score]) -> None:
    """Add `asr` to the attacks on one classifier: broken images in % of those correct when clean."""
    clean = next((score.right for score in of_classifier if score.column == "clean"), None)
    for score in of_classifier:
        if score.is_attack and clean is not None:
            score.row["asr"] = statistics.attack_success(clean, score.right)


def _add_improvements(scored: list[Score]) -> None:
    """Add `improvement` to each ensemble: its accuracy minus the mean of its members, for each column.

    A transfer attack on the ensemble has none, as its members were attacked differently.
    """
    single = {
        (digest(s.classifier.identity), s.column): s.accuracy for s in scored if s.classifier.members == 1
    }
    for score in scored:
        members = score.classifier.identity.get("ensemble", ())
        known = [single.get((digest(member), score.column)) for member in members]
        alone = [accuracy for accuracy in known if accuracy is not None]
        is_alike = not (score.is_attack and score.classifier.attacked_as)
        if alone and len(alone) == len(known) and is_alike:
            score.row["improvement"] = score.accuracy - math.fsum(alone) / len(alone)


def results_frame(scored: Iterable[Score]) -> pd.DataFrame:
    """Return results.csv as a table, one row per score. Columns not in `RESULTS` exist only if filled."""
    scored = list(scored)
    frame = frame_of([score.row for score in scored], RESULTS)
    if any(score.attack_precision not in ("", FLOAT32) for score in scored):
        told = {column.name: [column.of(score) for score in scored] for column in OF_PRECISION if column.of}
        frame = frame.assign(**told)
    more = (*OF_IMAGES, *ON_REQUEST)
    for column in more:
        values = [column.of(score) if column.of else score.row.get(column.name) for score in scored]
        if any(value is not None for value in values):
            frame[column.name] = whole_numbers(values) if column.type is Type.INTEGER else values
    return frame

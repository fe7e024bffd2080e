"""Stored cells -> scores, each a line of results.csv."""

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
    RESULT_COLUMNS,
    RESULTS,
    STRONG,
    WORST,
    Kind,
    integers,
)
from robust_interp.results.precision import PrecisionCheck, check
from robust_interp.store import Outcome, Store
from robust_interp.store.cells import FLOAT32, Cell, ModelCard, Perturbation, Plan, attack_column, digest
from robust_interp.store.finished import finished


@dataclass(frozen=True)
class Score:
    """One line of results.csv.

    Attributes:
        column: The leaderboard's column that its accuracy (percent) goes into.
        right: Which samples count as right, (n,) bool: the accuracy is their share.
        labels: Their labels, (n,).
        predictions: What they were predicted as, (n,), -1 where nothing was; None of several perturbations.
        perturbations: What the samples went through: one perturbation, or under ``worst`` several.
        audit: What the classifier's audit on this dataset came to; empty if there was none.
        precision_check: What the precision of the attack changed, where that is known and not float32.
        rounded_accuracy: The accuracy with whole pixel values, percent; None where that was not measured.
        engine: What ran the model, where in an attack that was not its own code alone; else empty.
        code: What the code of the plug-ins is known by that made the perturbations; empty without any.
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

    @property
    def attack_precision(self) -> str:
        """What the attacks' gradients are computed in; an attack of the run may be without, in float32."""
        found = [made.precision for made in self.perturbations if made.kind == "attack"]
        return next((each for each in found if each != FLOAT32), FLOAT32) if found else ""

    @property
    def is_attack(self) -> bool:
        return any(perturbation.kind == "attack" for perturbation in self.perturbations)

    @property
    def measured(self) -> MeasuredColumn:
        """What its column is of."""
        return parse(self.column, {made.name for made in self.perturbations if made.kind == "corruption"})


_Done: TypeAlias = tuple[Cell, Outcome]
_Attacked: TypeAlias = tuple[list[_Done], np.ndarray]  # in one ball; which samples are right under all of it


def scores(plan: Plan, store: Store) -> list[Score]:
    """Score the cells of a plan that are finished; those that are not are noted in the store's damage.

    Under protocol ``final`` a cell's accuracy is that of the final iterate over all samples. Under ``worst``
    a sample must also be right when clean, and a line ``worst`` per norm and eps asks for all attacks there.
    An attack that left out what others had broken has no line of its own. A line ``strong`` per norm and eps
    is a ``worst`` of stronger attacks over samples of its own, whatever the protocol.
    """
    scored: list[Score] = []
    for cells in _by_classifier(plan.cells):
        verdict = store.verdict(digest(cells[0].classifier.identity), cells[0].fingerprint)
        of_classifier = _scores_of_classifier(plan, cells, store)
        _add_success_rates(of_classifier)
        scored += [replace(score, audit=verdict) for score in of_classifier]
    _add_improvements(scored)
    return scored + (_strong(plan.strong, store) if plan.strong else [])


def _by_classifier(cells: Iterable[Cell]) -> list[list[Cell]]:
    grouped: dict[str, list[Cell]] = {}
    for cell in cells:
        card = cell.classifier
        grouped.setdefault(digest([card.model, card.train_seed, card.identity]), []).append(cell)
    return list(grouped.values())


def _scores_of_classifier(plan: Plan, cells: list[Cell], store: Store) -> list[Score]:
    found = [finished(cell, store, plan.n) for cell in cells]
    outcomes = [(cell, outcome) for cell, outcome in found if outcome]
    missing = [cell for cell, outcome in found if outcome is None]
    for cell in missing:
        store.note_missing(cell, plan.n)
    labels = store.labels(cells[0].fingerprint, plan.n)[: plan.n] if outcomes else np.zeros(0, int)
    right = [outcome.correct(labels) for _, outcome in outcomes]
    content = store.content(cells[0].fingerprint, plan.n)
    clean = None
    derived: list[_Attacked] = []
    if plan.protocol == "worst":
        if all(cell.perturbation.kind != "clean" for cell, _ in outcomes):
            return []  # of no sample can it be said yet that it survives everything
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
    """Accuracy in percent with whole pixel values; `clean` says what must be right when clean, (n,) bool."""
    if not cell.perturbation.rounded:
        return None
    right = outcome.correct_rounded if clean is None else statistics.robust(clean, [outcome.correct_rounded])
    return 100 * float(right.mean())


def _self_checked(score: Score, plan: Plan, cells: Sequence[Cell], store: Store) -> Score:
    """The score with what its attack's precision changed, where the store has some of it in float32, too.

    Under ``worst`` that is told in the line of an attack, and of what has no line in that of the worst.
    """
    by_perturbation = {id(cell.perturbation): cell for cell in cells}
    found = [by_perturbation[id(made)] for made in score.perturbations if made.precision != FLOAT32]
    checks = [checked for cell in found if (checked := check(cell, store, plan.n))]
    return replace(score, precision_check=checks[-1]) if checks else score


def _worst(
    outcomes: list[_Done], right: list[np.ndarray], incomplete: Collection[tuple[str, float] | None]
) -> tuple[list[np.ndarray], list[_Attacked]]:
    """Per attack: right when clean and under it; and per norm and eps: right under all of them too.

    Those norms and eps that are `incomplete` are left out: of fewer attacks it would be another number.
    """
    kinds = [cell.perturbation.kind for cell, _ in outcomes]
    clean = right[kinds.index("clean")]
    right = [
        statistics.robust(clean, [correct]) if kind == "attack" else correct
        for kind, correct in zip(kinds, right, strict=True)
    ]
    by_ball: dict[tuple, _Attacked] = {}
    for done, correct in zip(outcomes, right, strict=True):
        if ball := done[0].perturbation.ball:
            attacked, sofar = by_ball.get(ball, ([], clean))
            by_ball[ball] = ([*attacked, done], statistics.robust(sofar, [correct]))
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
    row = rows.row_of_worst(plan, WORST, outcomes, right, content)
    return Score(
        cells[0].classifier,
        attack_column(WORST, *rows.ball_of(cells[0].perturbation)),
        row["accuracy"],
        row,
        right,
        labels,
        None,
        rows.not_finite(rows.without_own_line(plan, outcomes)),
        tuple(cell.perturbation for cell in cells),
        code="+".join(cell.environment["plugin"] for cell in cells if "plugin" in cell.environment),
    )


def _strong(plan: Plan, store: Store) -> list[Score]:
    """The same as the worst of a plan of stronger attacks, under a name of its own."""
    return [
        replace(
            score,
            column=attack_column(STRONG, *rows.ball_of(score.perturbations[0])),
            row=score.row | {"perturbation": rows.name_of_worst(STRONG, score.perturbations)},
        )
        for score in scores(plan, store)
        if score.measured.kind is Kind.WORST
    ]


def _add_success_rates(of_classifier: list[Score]) -> None:
    """`asr` of each attack on one classifier: broken of what is right when clean, in percent."""
    clean = next((score.right for score in of_classifier if score.column == "clean"), None)
    for score in of_classifier:
        if score.is_attack and clean is not None:
            score.row["asr"] = statistics.attack_success(clean, score.right)


def _add_improvements(scored: list[Score]) -> None:
    """`improvement` of each ensemble: its accuracy less the mean of its members' under the same perturbation.

    An attack that was made elsewhere than on the ensemble is not what its members went through.
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
    """results.csv as a table: a line a score, with the columns of `RESULTS`, and others where filled."""
    scored = list(scored)
    frame = pd.DataFrame([score.row for score in scored]).reindex(columns=RESULT_COLUMNS)
    frame = frame.astype(dict.fromkeys(integers(RESULTS), "Int64"))
    if any(score.attack_precision not in ("", FLOAT32) for score in scored):
        told = {column.name: [column.of(score) for score in scored] for column in OF_PRECISION if column.of}
        frame = frame.assign(**told)
    more = (*OF_IMAGES, *ON_REQUEST)
    for column in more:
        values = [column.of(score) if column.of else score.row.get(column.name) for score in scored]
        if any(value is not None for value in values):
            frame[column.name] = values
    return frame.astype({name: "Int64" for name in integers(more) if name in frame})

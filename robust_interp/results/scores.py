"""Stored cells -> scores, each a line of results.csv."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from robust_interp.core import statistics
from robust_interp.store import NOT_FINITE, ZERO_GRADIENT, Outcome, Store
from robust_interp.store.cells import Cell, ModelCard, Perturbation, Plan, digest, in_255

RESULT_COLUMNS = [
    "model",
    "weights_sha256",
    "recipe",
    "lambda_init",
    "train_seed",
    "members",
    "dataset",
    "subset_hash",
    "n",
    "perturbation",
    "norm",
    "eps_255",
    "alpha_255",
    "steps",
    "restarts",
    "severity",
    "attack_seed",
    "protocol",
    "accuracy",
    "ci_low",
    "ci_high",
    "max_delta_255",
    "zero_grad",
    "asr",
    "agreement",
    "improvement",
    "corruption_source",
    "precision",
    "torch",
    "torchattacks",
    "device",
    "seconds",
]

WORST, STRONG = "worst", "strong"


@dataclass(frozen=True)
class Score:
    """One line of results.csv.

    Attributes:
        column: Where the accuracy (percent) stands in the leaderboard.
        right: Which samples count as right, (n,) bool: the accuracy is their share.
        perturbations: What the samples went through: one perturbation, or under ``worst`` several.
        audit: What the classifier's audit on this dataset came to; empty if there was none.
        code: What the code of the plug-ins is known by that made the perturbations; empty without any.
    """

    classifier: ModelCard
    column: str
    accuracy: float
    row: dict
    not_finite: int = 0
    right: np.ndarray | None = field(default=None, repr=False, compare=False)
    perturbations: tuple[Perturbation, ...] = ()
    audit: str = ""
    code: str = ""

    @property
    def is_attack(self) -> bool:
        return any(perturbation.kind == "attack" for perturbation in self.perturbations)


def scores(plan: Plan, store: Store) -> list[Score]:
    """Score the cells of a plan that are finished.

    Under protocol ``final`` a cell's accuracy is that of the final iterate over all samples. Under ``worst``
    a sample must also be right when clean, and a line ``worst`` per norm and eps asks for all attacks there.
    An attack that left out what others had broken has no line of its own. A line ``strong`` per norm and eps
    is a ``worst`` of stronger attacks over samples of its own, whatever the protocol.
    """
    scored: list[Score] = []
    for cells in _by_classifier(plan.cells):
        verdict = store.verdict(digest(cells[0].classifier.identity), cells[0].fingerprint)
        outcomes = [finished(cell, store, plan.n) for cell in cells]
        outcomes = [(cell, outcome) for cell, outcome in outcomes if outcome]
        right = [outcome.correct(store.labels(cell.fingerprint)) for cell, outcome in outcomes]
        if plan.protocol == "worst":
            if all(cell.perturbation.kind != "clean" for cell, _ in outcomes):
                continue  # of no sample can it be said yet that it survives everything
            right, derived = _worst(outcomes, right)
        else:
            derived = []
        found = [
            _score(plan, *done, correct)
            for done, correct in zip(outcomes, right, strict=True)
            if done[0].has_own_number(plan.protocol)
        ]
        found += [_worst_score(plan, attacked, correct) for attacked, correct in derived]
        _add_success_rates(found)
        scored += [replace(score, audit=verdict) for score in found]
    _add_improvements(scored)
    return scored + (_strong(plan.strong, store) if plan.strong else [])


def _strong(plan: Plan, store: Store) -> list[Score]:
    return [
        replace(
            score,
            column=score.column.replace(WORST, STRONG, 1),
            row=score.row | {"perturbation": _name_of_all(STRONG, score.perturbations)},
        )
        for score in scores(plan, store)
        if score.column.startswith(f"{WORST}_")
    ]


def _name_of_all(name: str, perturbations: Sequence[Perturbation]) -> str:
    """What is the worst of several attacks, with their parameters."""
    names = dict.fromkeys(split_column(perturbation.column)[0] for perturbation in perturbations)
    norm, radius = perturbations[0].ball
    return f"{name}({'+'.join(names)}{'' if norm == 'Linf' else f',eps={radius:.10g}'})"


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
        alone = [single.get((digest(member), score.column)) for member in members]
        if alone and None not in alone and not (score.is_attack and score.classifier.attacked_as):
            score.row["improvement"] = score.accuracy - math.fsum(alone) / len(alone)


def finished(cell: Cell, store: Store, n: int) -> tuple[Cell, Outcome | None]:
    """What is stored of a cell, and as which: the whole cell where that is there, else with what it skips."""
    outcome = store.read(cell.whole.key, n)
    return (cell.whole, outcome) if outcome else (cell, store.read(cell.key, n))


def _by_classifier(cells: Iterable[Cell]) -> list[list[Cell]]:
    grouped: dict[str, list[Cell]] = {}
    for cell in cells:
        card = cell.classifier
        grouped.setdefault(digest([card.model, card.train_seed, card.identity]), []).append(cell)
    return list(grouped.values())


def _worst(outcomes: list[tuple[Cell, Outcome]], right: list[np.ndarray]):
    """Per attack: right when clean and under it; and per norm and eps: right under all of them too."""
    kinds = [cell.perturbation.kind for cell, _ in outcomes]
    clean = right[kinds.index("clean")]
    right = [
        statistics.robust(clean, [correct]) if kind == "attack" else correct
        for kind, correct in zip(kinds, right, strict=True)
    ]
    by_ball: dict[tuple, tuple[list[tuple[Cell, Outcome]], np.ndarray]] = {}
    for done, correct in zip(outcomes, right, strict=True):
        if ball := done[0].perturbation.ball:
            attacked, sofar = by_ball.get(ball, ([], clean))
            by_ball[ball] = ([*attacked, done], statistics.robust(sofar, [correct]))
    return right, list(by_ball.values())


def _score(plan: Plan, cell: Cell, outcome: Outcome, right: np.ndarray) -> Score:
    perturbation, params = cell.perturbation, cell.perturbation.params
    attacked = perturbation.kind == "attack"
    alpha = params.get("alpha") if perturbation.norm == "Linf" else None
    row = _row(plan, cell, right) | {
        "perturbation": _named(perturbation),
        "norm": perturbation.norm if attacked else None,
        "eps_255": perturbation.eps_255,
        "alpha_255": None if alpha is None else in_255(alpha),
        "steps": _steps(perturbation) if attacked else None,
        "restarts": params.get("restarts", 1) if attacked else None,
        "severity": params.get("severity"),
        "attack_seed": perturbation.seed,
        "max_delta_255": _in_255ths(outcome.max_delta, perturbation.norm),
        "zero_grad": round(float((outcome.flags & ZERO_GRADIENT).astype(bool).mean()), 4)
        if attacked
        else None,
        "agreement": outcome.agreement if cell.classifier.members > 1 else None,
        "corruption_source": perturbation.source,
        "device": outcome.device,
        "seconds": round(outcome.seconds, 3),
    }
    not_finite = int((outcome.flags & NOT_FINITE).astype(bool).sum())
    return Score(
        cell.classifier,
        perturbation.column,
        row["accuracy"],
        row,
        not_finite,
        right,
        (perturbation,),
        code=cell.environment.get("plugin", ""),
    )


def _named(perturbation: Perturbation) -> str:
    """The name, with the parameters that have no column of their own."""
    columns = ["norm", "steps", "restarts", "severity"]
    if perturbation.norm == "Linf":  # others are not told in units of 1/255
        columns += ["eps", "alpha"]
    extra = {key: value for key, value in perturbation.params.items() if key not in columns}
    listed = ",".join(f"{key}={value}" for key, value in extra.items())
    return f"{perturbation.name}({listed})" if extra else perturbation.name


def _in_255ths(delta: float | None, norm: str) -> float | None:
    """The size of a change in its norm; a number of pixels (L0) is no distance."""
    return None if delta is None or norm == "L0" else round(255 * delta, 4)


def _steps(perturbation: Perturbation) -> int | None:
    """An attack without steps takes one; one that counts queries, or whose steps are its own affair, none."""
    counted = "queries" in perturbation.params or perturbation.name == "autoattack"
    return None if counted else perturbation.params.get("steps", 1)


def _worst_score(plan: Plan, outcomes: list[tuple[Cell, Outcome]], right: np.ndarray) -> Score:
    cell, perturbations = outcomes[0][0], tuple(cell.perturbation for cell, _ in outcomes)
    norm, radius = cell.perturbation.ball
    linf = norm == "Linf"
    row = _row(plan, cell, right) | {
        "perturbation": _name_of_all(WORST, perturbations),
        "norm": norm,
        "eps_255": radius if linf else None,
    }
    if without_line := [
        outcome.flags for cell, outcome in outcomes if not cell.has_own_number(plan.protocol)
    ]:
        seen = np.bitwise_or.reduce(without_line)  # what is to be told of attacks that have no line
        row["zero_grad"] = round(float((seen & ZERO_GRADIENT).astype(bool).mean()), 4)
        not_finite = int((seen & NOT_FINITE).astype(bool).sum())
    else:
        not_finite = 0
    column = f"{WORST}_{radius:.10g}" if linf else f"{WORST}_{norm.lower()}_{radius:.10g}"
    code = "+".join(cell.environment["plugin"] for cell, _ in outcomes if "plugin" in cell.environment)
    return Score(cell.classifier, column, row["accuracy"], row, not_finite, right, perturbations, code=code)


def _row(plan: Plan, cell: Cell, right: np.ndarray) -> dict:
    low, high = statistics.wilson(int(right.sum()), len(right))
    card = cell.classifier
    return {
        "model": card.model,
        "weights_sha256": card.weights_sha256,
        "recipe": card.recipe,
        "lambda_init": card.lambda_init,
        "train_seed": card.train_seed,
        "members": card.members,
        "dataset": cell.dataset,
        "subset_hash": digest([cell.fingerprint, plan.n])[:12],
        "n": plan.n,
        "protocol": plan.protocol,
        "accuracy": 100 * float(right.mean()),
        "ci_low": low,
        "ci_high": high,
        "precision": cell.environment["precision"],
        "torch": cell.environment["torch"],
        "torchattacks": cell.environment.get("torchattacks"),
    }


def results_frame(scored: Iterable[Score]) -> pd.DataFrame:
    """results.csv as a table: one line a cell. Accuracies, intervals, `asr` and `agreement` are percentages.

    `asr`, of attacks: 100 x broken / right when clean, counted on the same samples.
    `agreement`, of ensembles: on how many of the perturbed images all members predict the same class.
    `improvement`, of ensembles: accuracy less the mean accuracy of the members, in percentage points.
    """
    frame = pd.DataFrame([score.row for score in scored]).reindex(columns=RESULT_COLUMNS)
    whole = ["train_seed", "members", "n", "steps", "restarts", "severity", "attack_seed"]
    return frame.astype(dict.fromkeys(whole, "Int64"))


def is_strong(column: str) -> bool:
    return column.startswith(f"{STRONG}_")


def split_column(column: str) -> tuple[str, float]:
    """``pgd_2`` is pgd and 2.0; a name without a number is all name."""
    name, _, number = column.rpartition("_")
    try:
        return name, float(number)
    except ValueError:
        return column, 0.0

"""Rows of results.csv, as values by column name. The columns are declared in `columns.RESULTS`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from robust_interp.core import statistics
from robust_interp.results.column_names import parse
from robust_interp.results.columns import OF_IMAGES_COLUMNS
from robust_interp.store import NOT_FINITE, ZERO_GRADIENT, Outcome
from robust_interp.store.cells import Cell, ModelCard, Perturbation, Plan, digest, in_255


def row_of_cell(plan: Plan, cell: Cell, outcome: Outcome, right: np.ndarray, content: str) -> dict:
    """Return the row of one measurement.

    Args:
        plan: The plan of the run.
        cell: The measured cell.
        outcome: Outcome of the cell.
        right: Which images count as correct under the plan's protocol, (n,) bool.
        content: Hash of the images, if the fingerprint does not cover their content; else empty.
    """
    made = cell.perturbation
    return _shared(plan, cell, right, content) | {
        "perturbation": _named(made),
        **parameters(made).columns,
        "max_delta_255": _in_255ths(outcome.max_delta, made.norm),
        "zero_grad": _zero_gradients([outcome]) if made.kind == "attack" else None,
        "agreement": outcome.agreement if cell.classifier.members > 1 else None,
        "corruption_source": made.source,
        "device": outcome.places,
        "seconds": round(outcome.seconds, 3),
    }


def worst_case_row(
    plan: Plan,
    name: str,
    outcomes: Sequence[tuple[Cell, Outcome]],
    right: np.ndarray,
    content: str,
) -> dict:
    """Return the row of the worst of several attacks in one ball.

    Each attack has a separate row with more columns, unless it skipped images that were broken already. The
    zero gradients of such attacks are counted here.

    Args:
        plan: The plan of the run.
        name: Name of the perturbation, ``worst`` or ``strong``.
        outcomes: The cells of the attacks and their outcomes, at least one.
        right: Which images are correct under all attacks, (n,) bool.
        content: Hash of the images, as for `row_of_cell`.
    """
    cell = outcomes[0][0]
    norm, radius = norm_and_radius(cell.perturbation)
    row = _shared(plan, cell, right, content) | {
        "perturbation": name_of_worst(name, [cell.perturbation for cell, _ in outcomes]),
        "norm": norm,
        "eps_255": radius if norm == "Linf" else None,
    }
    hidden = without_own_line(plan, outcomes)
    return row | ({"zero_grad": _zero_gradients(hidden)} if hidden else {})


def _shared(plan: Plan, cell: Cell, right: np.ndarray, content: str) -> dict:
    return {
        **of_model(cell.classifier),
        "dataset": cell.dataset,
        "subset_hash": digest([cell.fingerprint, plan.n, *filter(None, [content])])[:12],
        "n": plan.n,
        "protocol": plan.protocol,
        **accuracy_of(right),
        "precision": cell.environment.get("precision"),
        "torch": cell.environment.get("torch"),
        "torchattacks": cell.environment.get("torchattacks"),
        **{name: cell.metadata[name] for name in OF_IMAGES_COLUMNS if name in cell.metadata},
    }


def of_model(card: ModelCard) -> dict:
    """Return the values that describe a classifier."""
    return {
        "model": card.model,
        "weights_sha256": card.weights_sha256,
        "recipe": card.recipe,
        "lambda_init": card.lambda_init,
        "train_seed": card.train_seed,
        "members": card.members,
    }


def accuracy_of(right: np.ndarray) -> dict:
    """Return accuracy and 95 % interval in percent; `right` says which images are correct, (n,) bool."""
    low, high = statistics.wilson(int(right.sum()), len(right))
    return {"accuracy": 100 * float(right.mean()), "ci_low": low, "ci_high": high}


def norm_and_radius(perturbation: Perturbation) -> tuple[str, float]:
    """Return norm and radius of an attack that has a radius."""
    ball = perturbation.ball
    assert ball is not None, f"{perturbation.name} has no radius"
    return ball


def name_of_worst(name: str, perturbations: Sequence[Perturbation]) -> str:
    """Return the name of the worst of several attacks, with their parameters: ``worst(fgsm+pgd)``."""
    series = dict.fromkeys(parse(perturbation.column).series for perturbation in perturbations)
    norm, radius = norm_and_radius(perturbations[0])
    return f"{name}({'+'.join(series)}{'' if norm == 'Linf' else f',eps={radius:.10g}'})"


def without_own_line(plan: Plan, outcomes: Iterable[tuple[Cell, Outcome]]) -> list[Outcome]:
    """Return the outcomes of attacks that skipped images and so have no accuracy alone."""
    return [outcome for cell, outcome in outcomes if not cell.has_own_number(plan.protocol)]


def not_finite(outcomes: Sequence[Outcome]) -> int:
    """Count the images with values that are not finite in any of the outcomes."""
    return int(_flagged(outcomes, NOT_FINITE).sum()) if outcomes else 0


def _zero_gradients(outcomes: Sequence[Outcome]) -> float:
    return round(float(_flagged(outcomes, ZERO_GRADIENT).mean()), 4)


def _flagged(outcomes: Sequence[Outcome], flag: int) -> np.ndarray:
    """Return which images have a flag in any of the outcomes, (n,) bool."""
    return (np.bitwise_or.reduce([outcome.flags for outcome in outcomes]) & flag).astype(bool)


class Parameters(NamedTuple):
    """The parameters of a perturbation in tables.

    Attributes:
        columns: Those with a column of results.csv, by its name; None where a column does not apply.
        others: All others, by name.
    """

    columns: dict
    others: dict


def parameters(perturbation: Perturbation) -> Parameters:
    """Return which parameters of a perturbation have a column, and which have none."""
    attacked, params = perturbation.kind == "attack", perturbation.params
    in_columns = ["norm", "steps", "restarts", "severity"]
    alpha = None
    if perturbation.norm == "Linf":  # radii of other norms are not in units of 1/255
        in_columns += ["eps", "alpha"]
        alpha = perturbation.number("alpha")
    columns = {
        "norm": perturbation.norm if attacked else None,
        "eps_255": perturbation.eps_255,
        "alpha_255": None if alpha is None else in_255(alpha),
        "steps": _steps(perturbation) if attacked else None,
        "restarts": params.get("restarts", 1) if attacked else None,
        "severity": params.get("severity"),
        "attack_seed": perturbation.seed,
    }
    return Parameters(columns, {key: value for key, value in params.items() if key not in in_columns})


def _named(perturbation: Perturbation) -> str:
    """Return the name with the parameters that have no separate column."""
    extra = parameters(perturbation).others
    listed = ",".join(f"{key}={value}" for key, value in extra.items())
    return f"{perturbation.name}({listed})" if extra else perturbation.name


def _in_255ths(delta: float | None, norm: str) -> float | None:
    """Return the size of a change in units of 1/255; None for L0, which counts pixels."""
    return None if delta is None or norm == "L0" else round(255 * delta, 4)


def _steps(perturbation: Perturbation) -> int | None:
    """Return the number of steps (default 1); None if an attack counts queries or has its own schedule."""
    counted = "queries" in perturbation.params or perturbation.name == "autoattack"
    return None if counted else perturbation.integer("steps")

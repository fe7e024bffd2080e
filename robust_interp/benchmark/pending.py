"""What of a plan is still to be measured: by what the store has, and what earlier attacks have broken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from robust_interp.classifiers.target import Target
from robust_interp.store import Outcome, Store
from robust_interp.store.cells import Cell, Plan
from robust_interp.store.finished import finished


def missing(plan: Plan, store: Store) -> list[Cell]:
    """The cells that the store does not have for all samples, nor the whole ones, each once.

    An ensemble that is attacked in several ways has its other cells in common.
    """
    todo: dict[str, Cell] = {}
    for cell in plan.cells:
        if max(store.covered(cell.key), store.covered(cell.whole.key)) < plan.n:
            todo.setdefault(cell.key, cell)
    return list(todo.values())


def by_target(cells: Iterable[Cell], targets: Sequence[Target]) -> list[tuple[Target, list[Cell]]]:
    """The cells of each target that has some; the cells are of a plan made of these targets' cards."""
    cells = list(cells)
    found = [(target, [cell for cell in cells if cell.classifier is target.card]) for target in targets]
    return [(target, of_target) for target, of_target in found if of_target]


def left(plan: Plan, cell: Cell, store: Store, labels: np.ndarray) -> tuple[int, bool]:
    """At how many samples a cell is still to be measured, and whether no more will be left out."""
    before = outcomes_before(plan, cell, store)
    standing = still_standing([outcome for outcome in before if outcome], labels)
    start = store.covered(cell.key)
    count = plan.n - start if standing is None else int(standing[start:].sum())
    return count, None not in before


def outcomes_before(plan: Plan, cell: Cell, store: Store) -> list[Outcome | None]:
    """What is stored of the cells that this one follows; None for one that is not finished."""
    followed = [
        other for other in plan.cells if other.classifier is cell.classifier and other.whole.key in cell.skips
    ]
    return [finished(other, store, plan.n)[1] for other in followed]


def still_standing(before: Sequence[Outcome], labels: np.ndarray) -> np.ndarray | None:
    """Which samples none of these has broken, (n,) bool; None for all."""
    if not before:
        return None
    return np.logical_and.reduce([outcome.correct(labels) for outcome in before])

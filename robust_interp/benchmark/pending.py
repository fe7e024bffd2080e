"""Which cells and images of a plan are still to be measured, given the results that are stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from robust_interp import attacks
from robust_interp.classifiers.target import Target
from robust_interp.store import Outcome, Store
from robust_interp.store.cells import FLOAT32, Cell, Plan
from robust_interp.store.finished import find_outcome, is_finished


def missing(plan: Plan, store: Store) -> list[Cell]:
    """Return the unfinished cells of a plan, each once.

    An ensemble that is attacked in several ways shares its other cells among them.

    Args:
        plan: The plan; the cells of its strong plan are left out.
        store: The store with the results so far.
    """
    todo: dict[str, Cell] = {}
    for cell in plan.cells:
        if not is_finished(cell, store, plan.n):
            todo.setdefault(cell.key, cell)
    return list(todo.values())


def group_by_target(cells: Iterable[Cell], targets: Sequence[Target]) -> list[tuple[Target, list[Cell]]]:
    """Group cells by target. Targets without cells are left out.

    Args:
        cells: The cells; their model cards are the same objects as those of the targets.
        targets: The targets, in the order of the result.
    """
    of_card: dict[int, list[Cell]] = {}
    for cell in cells:
        of_card.setdefault(id(cell.classifier), []).append(cell)
    return [(target, of_card[id(target.card)]) for target in targets if id(target.card) in of_card]


def remaining_images(plan: Plan, cell: Cell, store: Store, labels: np.ndarray) -> tuple[int, bool]:
    """Return how many images of a cell are still to be measured.

    Args:
        plan: The plan of the cell.
        cell: A cell of the plan.
        store: The store with the results so far.
        labels: Labels of the whole data set, (N,).

    Returns:
        The number of images, and whether it is exact. It is an upper bound while a cell that this one
        follows is not finished.
    """
    before = [find_outcome(other, store, plan.n)[1] for other in prerequisites(plan, cell)]
    unbroken = unbroken_mask([outcome for outcome in before if outcome], labels)
    start = store.covered(cell.key)
    count = plan.n - start if unbroken is None else int(unbroken[start:].sum())
    return count, None not in before


def self_check(plan: Plan, cell: Cell) -> Cell | None:
    """Return the cell that an attack in another precision is compared with: the same attack in float32.

    For each target one such attack is checked, on the first batch and at the middle radius: PGD if it is
    among them, otherwise the most expensive one.

    Args:
        plan: The plan of the cell.
        cell: A cell of the plan.

    Returns:
        The float32 cell; None if `cell` is not checked.
    """
    if cell.perturbation.precision == FLOAT32:
        return None
    faster = [other for other in plan.cells_of(cell.classifier) if other.perturbation.precision != FLOAT32]
    name = max(faster, key=_place_in_check).perturbation.name
    radii = [other for other in faster if other.perturbation.name == name]
    return cell.in_float32 if cell is radii[len(radii) // 2] else None


def _place_in_check(cell: Cell) -> tuple[bool, int]:
    return cell.perturbation.name == "pgd", attacks.passes(cell.perturbation)


def prerequisites(plan: Plan, cell: Cell) -> list[Cell]:
    """Return the cells that this one follows: images that they broke are not attacked again."""
    return [other for other in plan.cells_of(cell.classifier) if other.without_skips.key in cell.skips]


def unbroken_mask(before: Sequence[Outcome], labels: np.ndarray) -> np.ndarray | None:
    """Return which images are correct in all outcomes, (n,) bool; None if there are no outcomes.

    Args:
        before: Outcomes of the same n images.
        labels: Labels of at least these n images, (N,).
    """
    if not before:
        return None
    return np.logical_and.reduce([outcome.correct(labels) for outcome in before])

"""What of a plan is still to be measured: by what the store has, and what earlier attacks have broken."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from robust_interp import attacks
from robust_interp.classifiers.target import Target
from robust_interp.store import Outcome, Store
from robust_interp.store.cells import FLOAT32, Cell, Plan
from robust_interp.store.finished import finished


def missing(plan: Plan, store: Store) -> list[Cell]:
    """The cells that the store does not have for all samples, nor the whole ones, each once.

    An ensemble that is attacked in several ways has its other cells in common.

    Args:
        plan: Whose own cells are looked for, not those of its strong plan.
        store: Where.
    """
    todo: dict[str, Cell] = {}
    for cell in plan.cells:
        if not is_finished(cell, store, plan.n):
            todo.setdefault(cell.key, cell)
    return list(todo.values())


def is_finished(cell: Cell, store: Store, n: int) -> bool:
    """Whether the store has the first `n` samples of a cell, or of the whole one."""
    return max(store.covered(cell.key), store.covered(cell.whole.key)) >= n


def by_target(cells: Iterable[Cell], targets: Sequence[Target]) -> list[tuple[Target, list[Cell]]]:
    """The cells of each target that has some.

    Args:
        cells: Each of the card of one of the targets, which is the same object.
        targets: In the order of what is returned.
    """
    of_card: dict[int, list[Cell]] = {}
    for cell in cells:
        of_card.setdefault(id(cell.classifier), []).append(cell)
    return [(target, of_card[id(target.card)]) for target in targets if id(target.card) in of_card]


def left(plan: Plan, cell: Cell, store: Store, labels: np.ndarray) -> tuple[int, bool]:
    """At how many samples a cell is still to be measured, and whether no more will be left out.

    Args:
        plan: Which the cell is of.
        cell: Any of its cells.
        store: What it and those that it follows are looked for in.
        labels: (N,) of the whole dataset.

    Returns:
        The number, an upper bound as long as a cell that this one follows is not finished; and whether it is
        exact.
    """
    before = [finished(other, store, plan.n)[1] for other in followed(plan, cell)]
    standing = still_standing([outcome for outcome in before if outcome], labels)
    start = store.covered(cell.key)
    count = plan.n - start if standing is None else int(standing[start:].sum())
    return count, None not in before


def self_check(plan: Plan, cell: Cell) -> Cell | None:
    """The cell that this one is held against, on the first batch: the same attack in float32.

    Of each target one attack in another precision is checked, at the middle one of its radii: PGD where that
    is among them, else the costliest.

    Args:
        plan: Which the cell is of.
        cell: Any of its cells.

    Returns:
        None where the cell is not the one that is checked.
    """
    if cell.perturbation.precision == FLOAT32:
        return None
    faster = [other for other in plan.cells_of(cell.classifier) if other.perturbation.precision != FLOAT32]
    name = max(faster, key=_place_in_check).perturbation.name
    radii = [other for other in faster if other.perturbation.name == name]
    return cell.in_float32 if cell is radii[len(radii) // 2] else None


def _place_in_check(cell: Cell) -> tuple[bool, int]:
    return cell.perturbation.name == "pgd", attacks.passes(cell.perturbation)


def followed(plan: Plan, cell: Cell) -> list[Cell]:
    """The cells of the same target that this one follows: what they broke is not attacked again."""
    return [other for other in plan.cells_of(cell.classifier) if other.whole.key in cell.skips]


def still_standing(before: Sequence[Outcome], labels: np.ndarray) -> np.ndarray | None:
    """Which samples none of these has broken, (n,) bool; None for all.

    Args:
        before: Outcomes of the same n samples.
        labels: (N,) of these samples and any that follow.
    """
    if not before:
        return None
    return np.logical_and.reduce([outcome.correct(labels) for outcome in before])

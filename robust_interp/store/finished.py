"""What is stored of a cell that was measured before."""

from __future__ import annotations

from robust_interp.store.cells import Cell
from robust_interp.store.database import Store
from robust_interp.store.outcome import Outcome


def finished(cell: Cell, store: Store, n: int) -> tuple[Cell, Outcome | None]:
    """The first `n` samples of a cell, and which cell they are of.

    Returns:
        The cell that measures every sample where that is stored, else the cell with what it skips; and its
        outcome, None where it is not finished.
    """
    outcome = store.read(cell.whole.key, n)
    return (cell.whole, outcome) if outcome else (cell, store.read(cell.key, n))


def outcome_of(cell: Cell, store: Store, n: int) -> Outcome:
    """The first `n` samples of a cell that must be finished, as `finished` finds them.

    Raises:
        LookupError: if it is not finished.
    """
    _, outcome = finished(cell, store, n)
    if outcome is None:
        raise LookupError(
            f"{cell.classifier.label} {cell.perturbation.column} has fewer than {n} finished samples"
        )
    return outcome

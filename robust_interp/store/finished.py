"""Read the stored outcomes of cells."""

from __future__ import annotations

from robust_interp.store.cells import Cell
from robust_interp.store.database import Store
from robust_interp.store.outcome import Outcome


def find_outcome(cell: Cell, store: Store, n: int) -> tuple[Cell, Outcome | None]:
    """Return the stored outcome of the first `n` images of a cell.

    Returns:
        The same cell without skips if that is stored, otherwise the cell itself; and its outcome, None if it
        is not finished.
    """
    outcome = store.read(cell.without_skips.key, n)
    return (cell.without_skips, outcome) if outcome else (cell, store.read(cell.key, n))


def is_finished(cell: Cell, store: Store, n: int) -> bool:
    """Return whether the first `n` images of a cell are stored, or those of the same cell without skips."""
    return store.covered_by(cell) >= n


def require_outcome(cell: Cell, store: Store, n: int) -> Outcome:
    """Return the outcome of the first `n` images of a cell, see `find_outcome`.

    Raises:
        LookupError: if it is not finished.
    """
    _, outcome = find_outcome(cell, store, n)
    if outcome is None:
        raise LookupError(
            f"{cell.classifier.label} {cell.perturbation.column} has fewer than {n} finished images"
        )
    return outcome

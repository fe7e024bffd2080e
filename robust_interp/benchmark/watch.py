"""The listener for the progress of a measurement."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from robust_interp.core.work import ProgressCallback
from robust_interp.store.cells import Cell


class Watch:
    """Listener for the progress of a measurement. This one ignores it; subclasses override what they need."""

    def __call__(self, cell: Cell, images: int) -> None:
        """Called with a cell and the number of its images that this process or its workers just finished."""

    def step(self, cell: Cell, images: float) -> None:
        """Called after each pass of an attack in this process, with its share of the work in images."""

    def compiling(self, cell: Cell, begins: bool) -> None:
        """Called before (`begins`) and after the network of a cell is compiled, which takes long."""

    def elsewhere(self, cell: Cell, images: int) -> None:
        """Called with a cell and the number of its images that another process on the same store finished."""

    def skipped(self, cell: Cell, images: int) -> None:
        """Called with a cell and the number of its images that need no measurement: others broke them."""

    def alive(self, alive: int, workers: int) -> None:
        """Called with the number of workers that are ready, and the number requested."""


UNWATCHED = Watch()


def work_per_image(cell: Cell, cost: Callable[[Cell], int]) -> float:
    """Return the work per image of a cell: forward passes times millions of parameters."""
    card = cell.classifier
    return cost(cell) * (card.params_m or 1) / card.members


class Shares(Watch):
    """Reports the finished share of the work after each batch.

    Args:
        work: The cells to measure, each with its number of images.
        cost: Returns the number of forward passes per image of a cell, summed over members.
        progress: Called with the share, and the names of the classifier and of the column.
    """

    def __init__(
        self, work: Iterable[tuple[Cell, int]], cost: Callable[[Cell], int], progress: ProgressCallback
    ) -> None:
        self._cost, self._progress = cost, progress
        self._total = sum(images * work_per_image(cell, cost) for cell, images in work)
        self._done = 0.0

    def __call__(self, cell: Cell, images: int) -> None:
        self._done += images * work_per_image(cell, self._cost)
        share = min(1.0, self._done / self._total) if self._total > 0 else 1.0
        self._progress(share, f"{cell.classifier.label} {cell.perturbation.column}")

    def elsewhere(self, cell: Cell, images: int) -> None:
        self(cell, images)

    def skipped(self, cell: Cell, images: int) -> None:
        self._total -= images * work_per_image(cell, self._cost)

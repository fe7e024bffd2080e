"""The listener for the progress of a measurement."""

from __future__ import annotations

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

"""Progress of long work: a bar on a terminal, plain lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from robust_interp.cells import Cell

PLAIN_EVERY = 10.0  # seconds between plain lines


class Reporter:
    """Counts finished work and says how fast it goes. `total` and `cost` are forward passes per sample."""

    def __init__(self, total: int, cost, show) -> None:
        self.total, self.done, self.images = total, 0, 0
        self._cost, self._show = cost, show
        self._started = time.perf_counter()

    def __call__(self, cell: Cell, samples: int) -> None:
        self.done += samples * self._cost(cell)
        self.images += samples
        elapsed = time.perf_counter() - self._started
        rate = self.images / elapsed
        left = elapsed / self.done * (self.total - self.done)
        self._show(self, f"{cell.victim.label}  {cell.perturbation.column}", rate, left)


@contextmanager
def reporter(console: Console, total: int, cost, quiet: bool) -> Iterator[Reporter]:
    """A Reporter that suits the console."""
    if quiet or not total:
        yield Reporter(total, cost, lambda *_: None)
    elif console.is_terminal:
        columns = [
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=True),
        ]
        with Progress(*columns, console=console) as bar:
            task = bar.add_task("", total=total, rate="")

            def show(state: Reporter, what: str, rate: float, left: float) -> None:
                bar.update(task, completed=state.done, description=what, rate=f"{rate:.0f} images/s")

            yield Reporter(total, cost, show)
    else:
        yield Reporter(total, cost, _plain_lines(console))


def _plain_lines(console: Console):
    last = time.perf_counter()

    def show(state: Reporter, what: str, rate: float, left: float) -> None:
        nonlocal last
        if time.perf_counter() - last >= PLAIN_EVERY or state.done == state.total:
            last = time.perf_counter()
            share = state.done / state.total
            console.print(f"{share:4.0%}  {what}  {rate:.0f} images/s  {left:.0f} s left", highlight=False)

    return show

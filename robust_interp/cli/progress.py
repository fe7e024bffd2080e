"""Progress of long work: a bar on a terminal, plain lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
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

from robust_interp.store.cells import Cell

PLAIN_EVERY = 10.0  # seconds between plain lines of a benchmark
PLAIN_EVERY_IN_EPOCH = 60.0  # and of an epoch that takes long

# (share done in [0, 1], what is done, its numbers, seconds left, whether the line must be seen)
Show = Callable[[float, str, str, float, bool], None]
NewShow = Callable[[], Show]  # of another piece of work, side by side with those that are shown


class Reporter:
    """Counts finished work and says how fast it goes. `total` and `cost` are forward passes per sample."""

    def __init__(self, total: int, cost, show: Show) -> None:
        self.total, self.done, self.images = total, 0, 0
        self._cost, self._show = cost, show
        self._started = time.perf_counter()

    def __call__(self, cell: Cell, samples: int) -> None:
        self.done += samples * self._cost(cell)
        self.images += samples
        elapsed = time.perf_counter() - self._started
        left = elapsed / self.done * (self.total - self.done)
        what, rate = (
            f"{cell.classifier.label}  {cell.perturbation.column}",
            f"{self.images / elapsed:.0f} images/s",
        )
        self._show(self.done / self.total, what, rate, left, self.done == self.total)


@contextmanager
def reporter(console: Console, total: int, cost, quiet: bool) -> Iterator[Reporter]:
    """A Reporter that suits the console."""
    with _display(console, quiet or not total, PLAIN_EVERY) as new_show:
        yield Reporter(total, cost, new_show())


@contextmanager
def training_reporter(console: Console, quiet: bool) -> Iterator[Callable]:
    """A function of a training's label and `fit.Status` that shows it as suits the console.

    That is a bar for each label, or a line for each of its epochs.
    """
    with _display(console, quiet, PLAIN_EVERY_IN_EPOCH) as new_show:
        shows = defaultdict(new_show)

        def report(label: str, status) -> None:
            numbers = (
                f"loss {status.loss:.4f}  accuracy {status.accuracy:.2f} %  lr {status.lr:g}  "
                f"{status.images_per_second:.0f} images/s"
            )
            what = f"{label}  epoch {status.epoch}/{status.epochs}"
            shows[label](status.share, what, numbers, status.seconds_left, status.line is not None)

        yield report


@contextmanager
def _display(console: Console, quiet: bool, plain_every: float) -> Iterator[NewShow]:
    if quiet:
        yield lambda: lambda *_: None
    elif console.is_terminal:
        columns = [
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=True),
        ]
        with Progress(*columns, console=console) as bar:
            yield lambda: _task(bar)
    else:
        yield lambda: _plain_lines(console, plain_every)


def _task(bar: Progress) -> Show:
    task = bar.add_task("", total=1.0, numbers="")
    return lambda share, what, numbers, left, must: bar.update(
        task, completed=share, description=what, numbers=numbers
    )


def _plain_lines(console: Console, every: float) -> Show:
    last = time.perf_counter()

    def show(share: float, what: str, numbers: str, left: float, must: bool) -> None:
        nonlocal last
        if time.perf_counter() - last >= every or must:
            last = time.perf_counter()
            console.print(f"{share:4.0%}  {what}  {numbers}  {duration(left)} left", highlight=False)

    return show


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"

"""Count finished work and report its progress to a display on stderr; nothing is shown with --quiet."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

from robust_interp.benchmark.watch import Watch, work_per_image
from robust_interp.cli.display import Clock, Display, NoDisplay, PlainDisplay, ProgressState, TerminalDisplay
from robust_interp.cli.terminal import warn
from robust_interp.cli.time_left import Kind, TimeLeft
from robust_interp.core.work import ProgressCallback
from robust_interp.store.cells import Cell

if TYPE_CHECKING:
    from robust_interp.core.worker_pool import Workers
    from robust_interp.training.job import Start, Training
    from robust_interp.training.trainer import Status

SHOWN_AFTER = 5.0  # seconds before progress is shown for work that is usually short


class Bar:
    """Progress of all the work of a command, shown as one bar or as plain lines.

    Attributes:
        time: Estimator that counts the work and the time left.
    """

    def __init__(self, display: Display, clock: Clock) -> None:
        self.time, self._display, self._clock = TimeLeft(), display, clock
        self._last = clock()

    def begin(self) -> None:
        """Restart the clock: the time until now was not spent on counted work."""
        self._last = self._clock()

    def finish(self, kind: Kind, units: float) -> None:
        """Record the units done since the last call. Call `show` to display them."""
        now = self._clock()
        self.time.finish(kind, units, now - self._last)
        self._last = now

    def show(self, what: str, numbers: Sequence[str] = (), ends: bool = False, must: bool = False) -> None:
        """Display the current work.

        Args:
            what: Description of the current work.
            numbers: Further texts, the most important first.
            ends: Whether a part of the work, such as an epoch, is done; a plain line is then due earlier.
            must: Whether to print a plain line even if none is due.
        """
        left = self.time.seconds
        state = ProgressState(self.time.share, what, tuple(numbers), math.nan if left is None else left)
        self._display.show(state, ends, must)


@contextmanager
def progress_bar(
    console: Console, quiet: bool, after: float = 0.0, clock: Clock = time.perf_counter
) -> Iterator[Bar]:
    """Show one bar for all work inside the context, from the first finished work on.

    Args:
        console: Console of standard error.
        quiet: Whether to show nothing.
        after: Seconds before progress is shown.
        clock: Returns the time in seconds.
    """
    kind = NoDisplay if quiet else TerminalDisplay if console.is_terminal else PlainDisplay
    display = kind(console, after, clock)
    try:
        yield Bar(display, clock)
    finally:
        display.close()


@contextmanager
def track(
    console: Console, name: str, quiet: bool, after: float = SHOWN_AFTER, clock: Clock = time.perf_counter
) -> Iterator[ProgressCallback]:
    """Yield a function to report progress with; it is shown only if the work takes long.

    Args:
        console: Console of standard error.
        name: Name of the work.
        quiet: Whether to show nothing.
        after: Seconds before progress is shown.
        clock: Returns the time in seconds.
    """
    kind, reported = ("", name), 0.0
    with progress_bar(console, quiet, after, clock) as bar:
        bar.time.expect({kind: 1.0})

        def progress(share: float, what: str) -> None:
            nonlocal reported
            if share > reported and not reported:  # the first part includes imports, so it is not timed
                bar.time.skip(kind, share)
                bar.begin()
            elif share > reported:
                bar.finish(kind, share - reported)
            reported = max(reported, share)
            bar.show(name if share >= 1 else f"{name} {what}".strip(), ends=True)

        yield progress
        if 0 < reported < 1:
            progress(1.0, "")


def tell_start(workers: Workers | None, quiet: bool) -> None:
    """Say that workers are started, before they take half a minute for it."""
    if workers is not None and not quiet:
        count = f"{workers.count} workers" if workers.count else "workers"
        warn(f"starting {count}: each imports PyTorch and reads the data, which may take half a minute")


# --- what is counted ----------------------------------------------------------------------------------


def work_kind(cell: Cell) -> Kind:
    return cell.classifier.label, cell.perturbation.kind


def total_work(work: Iterable[tuple[Cell, int]], cost: Callable[[Cell], int]) -> dict[Kind, float]:
    """Sum the work of pairs (cell, number of images), by kind, in the units of `work_per_image`."""
    found: dict[Kind, float] = defaultdict(float)
    for cell, samples in work:
        found[work_kind(cell)] += samples * work_per_image(cell, cost)
    return found


class Reporter(Watch):
    """Counter and display of the finished work of cells, for `benchmark` and `audit`.

    Args:
        bar: Bar that already expects the work.
        cost: Returns the number of forward passes per image of a cell, summed over members.

    Attributes:
        own: Keys of the cells with images measured by this process or its workers.
        others: Keys of the cells with images measured by another process on the same store.
    """

    def __init__(self, bar: Bar, cost: Callable[[Cell], int], clock: Clock = time.perf_counter) -> None:
        self._bar, self._cost, self._clock = bar, cost, clock
        self._started, self._images = clock(), 0
        self._workers: list[str] = []
        self.own: set[str] = set()
        self.others: set[str] = set()
        self._counted = 0.0  # units of the current batch that `step` has already counted
        bar.begin()

    def __call__(self, cell: Cell, images: int) -> None:
        """Count images of a cell as finished by this process or its workers."""
        self._bar.finish(work_kind(cell), images * work_per_image(cell, self._cost) - self._counted)
        self._counted = 0.0
        self._images += images
        self.own.add(cell.key)
        self._show(cell, ends=True)

    def compiling(self, cell: Cell, begins: bool) -> None:
        """Show that a model is being compiled, and leave the time this takes out of the speed."""
        if begins:
            self._bar.show(f"{cell.classifier.label} compiling", ends=True)
        else:
            self._bar.begin()

    def step(self, cell: Cell, images: float) -> None:
        """Count the work of an attack step, given as a (fractional) number of images."""
        units = images * work_per_image(cell, self._cost)
        self._bar.finish(work_kind(cell), units)
        self._counted += units
        self._show(cell, ends=False)

    def alive(self, alive: int, workers: int) -> None:
        """Set the number of workers that can do tasks now."""
        self._workers = [f"{alive} of {workers} workers"]

    def elsewhere(self, cell: Cell, images: int) -> None:
        """Count images of a cell as finished by another process on the same store."""
        self._bar.time.skip(work_kind(cell), images * work_per_image(cell, self._cost))
        self.others.add(cell.key)
        self._show(cell, ends=True)

    def skipped(self, cell: Cell, images: int) -> None:
        """Drop images of a cell that need no measurement."""
        self._bar.time.drop(work_kind(cell), images * work_per_image(cell, self._cost))

    def _show(self, cell: Cell, ends: bool) -> None:
        elapsed = self._clock() - self._started
        rate = [f"{self._images / elapsed:.0f} images/s"] if self._images and elapsed else []
        self._bar.show(f"{cell.classifier.label} {cell.perturbation.column}", rate + self._workers, ends)


@contextmanager
def reporter(
    console: Console, work: Iterable[tuple[Cell, int]], cost: Callable[[Cell], int], quiet: bool
) -> Iterator[Reporter]:
    """Yield a Reporter of these cells with a new bar."""
    with progress_bar(console, quiet) as bar:
        bar.time.expect(total_work(work, cost))
        yield Reporter(bar, cost)


class Trainings:
    """Counter and display of the progress of trainings.

    Args:
        bar: Bar to which the work is added.
        groups: Groups of networks; those of one group are trained side by side.
        units: Work of each training, as `training.job.work` returns it.
    """

    def __init__(
        self, bar: Bar, groups: Sequence[Sequence[Training]], units: Mapping[Training, float]
    ) -> None:
        self._bar, self._units = bar, units
        self._groups = {what: group for group in groups for what in group}
        self._shares = dict.fromkeys(self._groups, 0.0)
        self._labels = _labels(list(self._groups))
        self._workers: list[str] = []
        self._is_silent = True  # until the first status: a plain line is not due for a minute
        for what in self._groups:
            bar.time.expect({self._kind(what): units[what]})

    def begin(self) -> None:
        """Start the clock for a group of trainings."""
        self._bar.begin()

    def resumed(self, what: Training, start: Start) -> None:
        """Count the steps of a resumed training as done, and print where it resumes."""
        self._set_back(what, start.step / start.steps)
        line = f"goes on from epoch {start.epoch}/{start.epochs}, step {start.step}/{start.steps}"
        other = f", with {start.changed}: the weights will be those of neither" if start.changed else ""
        warn(f"{self._labels[what]} {line}{other}")

    def begins(self, what: Training) -> None:
        """Reset a training that a worker starts, or restarts after another worker was lost."""
        if not self._bar.time.has_begun:
            self._bar.begin()
        self._set_back(what, 0.0)

    def alive(self, alive: int, workers: int) -> None:
        """Set the number of workers that can train now."""
        self._workers = [f"{alive} of {workers} workers"]

    def __call__(self, what: Training, status: Status) -> None:
        """Update the progress of a training."""
        self._bar.finish(self._kind(what), (status.share - self._shares[what]) * self._units[what])
        self._shares[what] = status.share
        ends = status.line is not None
        is_over = ends and status.share >= 1
        if is_over or what is next((one for one in self._groups[what] if self._shares[one] < 1), None):
            self._show(what, status, ends, must=is_over or self._is_silent)
            self._is_silent = False

    def failed(self, what: Training) -> None:
        """Drop the remaining work of a failed training."""
        self._bar.time.drop(self._kind(what), (1 - self._shares[what]) * self._units[what])
        self._shares[what] = 1.0
        if self._bar.time.has_begun:
            self._bar.show(f"{self._labels[what]}  failed")

    def _set_back(self, what: Training, share: float) -> None:
        """Set the finished share of a training without timing it."""
        self._bar.time.skip(self._kind(what), (share - self._shares[what]) * self._units[what])
        self._shares[what] = share

    def _kind(self, what: Training) -> Kind:
        return "+".join(dict.fromkeys(one.architecture for one in self._groups[what])), "training"

    def _show(self, what: Training, status: Status, ends: bool, must: bool) -> None:
        order = list(self._groups)
        place = [f"{order.index(what) + 1} of {len(order)}"] if len(order) > 1 else []
        numbers = [
            *place,
            f"loss {status.loss:.4f}",
            f"accuracy {status.accuracy:.2f} %",
            f"lr {status.lr:g}",
            f"{status.images_per_second:.0f} images/s",
            *self._workers,
        ]
        name = f"{self._labels[what]}  epoch {status.epoch}/{status.epochs}"
        self._bar.show(name, numbers, ends, must)


def _labels(trainings: Sequence[Training]) -> dict[Training, str]:
    """Return a label for each training, with the recipe if the recipes differ."""
    one_recipe = len({what.recipe.name for what in trainings}) == 1
    recipe = {what: "" if one_recipe else f" {what.recipe.name}" for what in trainings}
    return {what: f"{what.architecture}{recipe[what]} seed {what.seed}" for what in trainings}

"""Progress of long work: a bar on a terminal, plain lines elsewhere, nothing with --quiet."""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task
from rich.text import Text

from robust_interp.store.cells import Cell

if TYPE_CHECKING:  # it imports torch
    from robust_interp.training.trainer import Status

PLAIN_EVERY = 10.0  # seconds between plain lines of a benchmark
PLAIN_EVERY_IN_EPOCH = 60.0  # and of an epoch that takes long
MEMORY = 20.0  # seconds over which a speed is averaged
SHORTEST_NAME, SHORTEST_BAR, LONGEST_BAR = 12, 8, 40  # characters

# (share done in [0, 1], what is done, its numbers, seconds left, whether the line must be seen)
Show = Callable[[float, str, str, float, bool], None]
NewShow = Callable[[], Show]  # of another piece of work, side by side with those that are shown
Kind = tuple[str, str]  # of work of one speed: a classifier, and what its images go through


class TimeLeft:
    """How long cells will still take, from how long those before them took.

    Work is counted in forward passes, weighed by the parameters of the model. Each model and each kind of
    perturbation has a speed of its own, known once it was met; before that the mean of others is taken.

    Args:
        work: Cells, and how many samples of each are still to be done.
        cost: Forward passes of one member's worth of work that a sample of a cell takes.
    """

    def __init__(self, work: Iterable[tuple[Cell, int]], cost: Callable[[Cell], int]) -> None:
        self._cost = cost
        self.left: defaultdict[Kind, float] = defaultdict(float)
        for cell, samples in work:
            self.left[_kind(cell)] += samples * self.units(cell)
        self.total = math.fsum(self.left.values())
        self._speeds: dict[Kind, float] = {}  # seconds a unit

    def units(self, cell: Cell) -> float:
        """Work of one sample."""
        card = cell.classifier
        return self._cost(cell) * (card.params_m or 1) / card.members

    def finish(self, cell: Cell, samples: int, seconds: float) -> None:
        """So many samples were done, in so much time."""
        kind, units = _kind(cell), samples * self.units(cell)
        self.left[kind] = max(0.0, self.left[kind] - units)
        if units:
            known = self._speeds.get(kind, seconds / units)
            newness = 1 - math.exp(-seconds / MEMORY)
            self._speeds[kind] = known + newness * (seconds / units - known)

    @property
    def share(self) -> float:
        """What is done of all, in [0, 1]."""
        return 1 - math.fsum(self.left.values()) / self.total if self.total else 1.0

    @property
    def seconds(self) -> float | None:
        """Of what is left; None before anything was done."""
        if not self._speeds:
            return None
        return math.fsum(units * self._speed(kind) for kind, units in self.left.items() if units)

    def _speed(self, kind: Kind) -> float:
        if kind in self._speeds:
            return self._speeds[kind]
        alike = [speed for (_, what), speed in self._speeds.items() if what == kind[1]]
        speeds = alike or list(self._speeds.values())
        return math.fsum(speeds) / len(speeds)


def _kind(cell: Cell) -> Kind:
    return cell.classifier.label, cell.perturbation.kind


class Reporter:
    """Counts finished work and says how far it is, how fast it goes and how long it will take."""

    def __init__(self, work: Iterable[tuple[Cell, int]], cost: Callable[[Cell], int], show: Show) -> None:
        self._time, self._show, self._images = TimeLeft(work, cost), show, 0
        self._started = self._finished = time.perf_counter()
        self._within = 0.0  # work of the batch at hand

    def __call__(self, cell: Cell, samples: int) -> None:
        """So many samples of a cell are finished."""
        now = time.perf_counter()
        self._time.finish(cell, samples, now - self._finished)
        self._finished, self._within = now, 0.0
        self._images += samples
        self._tell(cell, must=self._time.share >= 1)

    def step(self, cell: Cell, samples: float) -> None:
        """An attack on a batch of a cell has done so many more samples' worth of work."""
        self._within += samples * self._time.units(cell)
        self._tell(cell, must=False)

    def _tell(self, cell: Cell, must: bool) -> None:
        elapsed = time.perf_counter() - self._started
        within = min(self._within, self._time.left[_kind(cell)]) / (self._time.total or 1)
        left = self._time.seconds
        if left is None and within:
            left = elapsed * (1 - within) / within
        what = f"{cell.classifier.label} {cell.perturbation.column}"
        rate = f"{self._images / elapsed:.0f} images/s" if self._images else ""
        self._show(min(1.0, self._time.share + within), what, rate, math.nan if left is None else left, must)


@contextmanager
def reporter(
    console: Console, work: Sequence[tuple[Cell, int]], cost: Callable[[Cell], int], quiet: bool
) -> Iterator[Reporter]:
    """A Reporter that suits the console."""
    with _display(console, quiet or not work, PLAIN_EVERY) as new_show:
        yield Reporter(work, cost, new_show())


@contextmanager
def training_reporter(console: Console, quiet: bool) -> Iterator[Callable[[str, Status], None]]:
    """A function of a training's label and `trainer.Status` that shows it as suits the console.

    That is a bar for each label, or a line for each of its epochs.
    """
    with _display(console, quiet, PLAIN_EVERY_IN_EPOCH) as new_show:
        shows: defaultdict[str, Show] = defaultdict(new_show)

        def report(label: str, status: Status) -> None:
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
        with Progress(_Line(console), console=console) as bar:
            yield lambda: _task(bar)
    else:
        yield lambda: _plain_lines(console, plain_every)


class _Line(ProgressColumn):
    """One line a task, as `bar_line` fits it into the terminal."""

    def __init__(self, console: Console) -> None:
        super().__init__()
        self._console = console

    def render(self, task: Task) -> Text:
        done, fields = task.completed, task.fields
        left = max(fields["left"] - (time.perf_counter() - fields["told"]), 0.0)  # NaN stays NaN
        text = bar_line(
            task.description, done, left, task.elapsed or 0, fields["numbers"], self._console.width
        )
        return Text(text, no_wrap=True, overflow="crop")


def bar_line(what: str, share: float, left: float, elapsed: float, numbers: str, width: int) -> str:
    """What is done, how much of it and the time left; then, while there is room, its numbers and a bar.

    Args:
        share: In [0, 1].
        left: Seconds; NaN if not known yet.
        width: Characters.
    """
    if share >= 1:
        time_left = f"took {duration(elapsed)}"
    else:
        time_left = "estimating" if math.isnan(left) else f"{duration(left)} left"
    numbered = f"  {share:4.0%}  {time_left}"
    name = what if len(what) + len(numbered) <= width else _shortened(what, width - len(numbered))
    line = name + numbered
    if numbers and len(line) + 2 + len(numbers) <= width:
        line += f"  {numbers}"
    room = min(width - len(line) - 2, LONGEST_BAR)
    if room >= SHORTEST_BAR:
        full = round(share * room)
        line += f"  {'━' * full}{'─' * (room - full)}"
    return line


def _shortened(text: str, room: int) -> str:
    room = max(room, SHORTEST_NAME)
    return text if len(text) <= room else f"{text[: room - 1]}…"


def _task(bar: Progress) -> Show:
    task = bar.add_task("", total=1.0, numbers="", left=math.nan, told=time.perf_counter())
    return lambda share, what, numbers, left, must: bar.update(
        task, completed=share, description=what, numbers=numbers, left=left, told=time.perf_counter()
    )


def _plain_lines(console: Console, every: float) -> Show:
    started = last = time.perf_counter()

    def show(share: float, what: str, numbers: str, left: float, must: bool) -> None:
        nonlocal last
        now = time.perf_counter()
        if now - last < every and not must:
            return
        last = now
        if share >= 1:
            time_left = f"took {duration(now - started)}"
        else:
            time_left = "estimating" if math.isnan(left) else f"{duration(left)} left"
        parts = [f"{share:4.0%}", what, numbers, time_left]
        console.print("  ".join(filter(None, parts)), highlight=False, markup=False)

    return show


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"

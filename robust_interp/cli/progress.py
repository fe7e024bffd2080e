"""Progress of long work: a bar on a terminal, plain lines elsewhere, nothing with --quiet; on stderr."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task, TaskID
from rich.text import Text

from robust_interp.cli.terminal import warn
from robust_interp.core.work import Tell
from robust_interp.store.cells import Cell

if TYPE_CHECKING:
    from robust_interp.training.train import Start, Training
    from robust_interp.training.trainer import Status

SHOWN_AFTER = 5.0  # seconds that work may take without a word, where it usually takes less
PLAIN_EVERY = 10.0  # seconds between plain lines
PLAIN_EVERY_IN_EPOCH = 60.0  # and between those within an epoch that takes long
MEMORY = 20.0  # seconds over which a speed is averaged, at least
MEMORY_SHARE = 0.25  # of the time since the start, over which it is averaged later
KNOWN_AFTER = 2.0  # seconds of work after which a speed can be told: the first pass of a model takes longer
ROUNDING = 1e-6  # of all work: that nothing is left
SHORTEST_NAME, SHORTEST_BAR, LONGEST_BAR = 12, 8, 40  # characters

Kind = tuple[str, str]  # of work of one speed: a classifier or a network, and what is done with it
Clock = Callable[[], float]  # seconds


class Pace:
    """Seconds that a unit of work takes, of which old ones count less and less."""

    def __init__(self) -> None:
        self._units = self._seconds = self._age = 0.0

    def add(self, units: float, seconds: float) -> None:
        """So much work was done, in so much time."""
        self._age += seconds
        kept = math.exp(-seconds / max(MEMORY, MEMORY_SHARE * self._age))
        self._units = kept * self._units + units
        self._seconds = kept * self._seconds + seconds

    @property
    def seconds_a_unit(self) -> float | None:
        """None before anything was done."""
        return self._seconds / self._units if self._units > 0 else None


class TimeLeft:
    """How long work will still take, from how long that before it took.

    Work is counted in units that take about as long in any kind of it. Each kind has a speed of its own,
    known once it was met; before that the mean of others is taken, of those that do the same if there are
    any.
    """

    def __init__(self) -> None:
        self.left: dict[Kind, float] = defaultdict(float)
        self._done = self._counted = 0.0  # units; and seconds
        self._paces: dict[Kind, Pace] = defaultdict(Pace)

    def expect(self, work: Mapping[Kind, float]) -> None:
        """So much more is to be done."""
        for kind, units in work.items():
            self.left[kind] += units

    def forget(self) -> None:
        """Nothing is left of what was to be done."""
        self.left.clear()

    def finish(self, kind: Kind, units: float, seconds: float) -> None:
        """So much was done, in so much time."""
        self.skip(kind, units)
        self._paces[kind].add(units, seconds)
        self._counted += seconds

    def skip(self, kind: Kind, units: float) -> None:
        """So much was done before, which says nothing of the speed."""
        self.left[kind] -= units
        self._done += units

    def drop(self, kind: Kind, units: float) -> None:
        """So much will not be done."""
        self.left[kind] -= units

    @property
    def has_begun(self) -> bool:
        """Whether any of it was done."""
        return self._done > 0

    @property
    def share(self) -> float:
        """What is done of all, in [0, 1]."""
        left = math.fsum(units for units in self.left.values() if units > 0)
        return self._done / (self._done + left) if left > ROUNDING * self._done else 1.0

    @property
    def seconds(self) -> float | None:
        """Of what is left; None while too little was done to tell."""
        known = {kind: pace for kind, one in self._paces.items() if (pace := one.seconds_a_unit) is not None}
        if not known or self._counted < KNOWN_AFTER:
            return None
        return math.fsum(units * _pace(kind, known) for kind, units in self.left.items() if units > 0)


def _pace(kind: Kind, known: Mapping[Kind, float]) -> float:
    if kind in known:
        return known[kind]
    alike = [pace for (_, what), pace in known.items() if what == kind[1]] or list(known.values())
    return math.fsum(alike) / len(alike)


class Bar:
    """One bar, or one run of plain lines, for the whole of a command's work.

    Attributes:
        time: Which expects the work.
    """

    def __init__(self, shown: _Shown, clock: Clock) -> None:
        self.time, self._shown, self._clock = TimeLeft(), shown, clock
        self._last = clock()

    def begin(self) -> None:
        """What follows is work; the time until now was not spent on any that is counted."""
        self._last = self._clock()

    def finish(self, kind: Kind, units: float) -> None:
        """So much work was done since the last time; `show` then tells of it."""
        now = self._clock()
        self.time.finish(kind, units, now - self._last)
        self._last = now

    def show(self, what: str, numbers: Sequence[str] = (), ends: bool = False, must: bool = False) -> None:
        """What is at hand, and its numbers, the most important first.

        Args:
            ends: Whether a part of the work, such as an epoch, is done: a good place for a plain line.
            must: Whether a plain line must be seen.
        """
        left = self.time.seconds
        told = Told(self.time.share, what, tuple(numbers), math.nan if left is None else left)
        self._shown.show(told, ends, must)


@contextmanager
def whole(
    console: Console, quiet: bool, after: float = 0.0, clock: Clock = time.perf_counter
) -> Iterator[Bar]:
    """One bar for all that is done inside; nothing is shown before some work is.

    Args:
        console: Of standard error.
        quiet: Whether to show nothing.
        after: Seconds that the work may take without a word.
        clock: What tells the time.
    """
    kind = _Nothing if quiet else _OnTerminal if console.is_terminal else _PlainLines
    shown = kind(console, after, clock)
    try:
        yield Bar(shown, clock)
    finally:
        shown.close()


@contextmanager
def track(
    console: Console, name: str, quiet: bool, after: float = SHOWN_AFTER, clock: Clock = time.perf_counter
) -> Iterator[Tell]:
    """A function that work tells how far it is: it is shown where it takes long.

    Args:
        console: Of standard error.
        name: Of the work.
        quiet: Whether to show nothing.
        after: Seconds that the work may take without a word.
        clock: What tells the time.
    """
    kind, told = ("", name), 0.0
    with whole(console, quiet, after, clock) as bar:
        bar.time.expect({kind: 1.0})

        def tell(share: float, what: str) -> None:
            nonlocal told
            if share > told and not told:  # the first part pays for what is imported with it
                bar.time.skip(kind, share)
                bar.begin()
            elif share > told:
                bar.finish(kind, share - told)
            told = max(told, share)
            bar.show(name if share >= 1 else f"{name} {what}".strip(), ends=True)

        yield tell
        if 0 < told < 1:
            tell(1.0, "")


# --- what is counted ----------------------------------------------------------------------------------


def units_of(cell: Cell, cost: Callable[[Cell], int]) -> float:
    """Work of one sample of a cell: forward passes, weighed by the millions of parameters of the model."""
    card = cell.classifier
    return cost(cell) * (card.params_m or 1) / card.members


def kind_of(cell: Cell) -> Kind:
    return cell.classifier.label, cell.perturbation.kind


def cells_work(work: Iterable[tuple[Cell, int]], cost: Callable[[Cell], int]) -> dict[Kind, float]:
    """The work of cells, of each at so many samples, in the units of `units_of`."""
    found: dict[Kind, float] = defaultdict(float)
    for cell, samples in work:
        found[kind_of(cell)] += samples * units_of(cell, cost)
    return found


class Reporter:
    """Counts the finished work of cells, and shows it: a watch of `benchmark` and of `audit`.

    Args:
        bar: Which expects the work.
        cost: Forward passes of one member's worth of work that a sample of a cell takes.

    Attributes:
        own: Keys of the cells of which this process or its workers have measured samples.
        others: Keys of those of which another process on the same store has.
    """

    def __init__(self, bar: Bar, cost: Callable[[Cell], int], clock: Clock = time.perf_counter) -> None:
        self._bar, self._cost, self._clock = bar, cost, clock
        self._started, self._images = clock(), 0
        self._workers: list[str] = []
        self.own: set[str] = set()
        self.others: set[str] = set()
        self._told = 0.0  # units of the batch at hand that were counted by its steps
        bar.begin()

    def __call__(self, cell: Cell, samples: int) -> None:
        """So many samples of a cell are finished."""
        self._bar.finish(kind_of(cell), samples * units_of(cell, self._cost) - self._told)
        self._told = 0.0
        self._images += samples
        self.own.add(cell.key)
        self._show(cell, ends=True)

    def compiling(self, cell: Cell, begins: bool) -> None:
        """The model of a cell is about to be compiled, or was: that is no work on samples."""
        if begins:
            self._bar.show(f"{cell.classifier.label} compiling", ends=True)
        else:
            self._bar.begin()

    def step(self, cell: Cell, samples: float) -> None:
        """An attack on a batch of a cell has done so many more samples' worth of work."""
        units = samples * units_of(cell, self._cost)
        self._bar.finish(kind_of(cell), units)
        self._told += units
        self._show(cell, ends=False)

    def alive(self, alive: int, workers: int) -> None:
        """So many of the workers can do tasks now."""
        self._workers = [f"{alive} of {workers} workers"]

    def elsewhere(self, cell: Cell, samples: int) -> None:
        """So many samples of a cell were finished by another process on the same store."""
        self._bar.time.skip(kind_of(cell), samples * units_of(cell, self._cost))
        self.others.add(cell.key)
        self._show(cell, ends=True)

    def _show(self, cell: Cell, ends: bool) -> None:
        elapsed = self._clock() - self._started
        rate = [f"{self._images / elapsed:.0f} images/s"] if self._images and elapsed else []
        self._bar.show(f"{cell.classifier.label} {cell.perturbation.column}", rate + self._workers, ends)


@contextmanager
def reporter(
    console: Console, work: Iterable[tuple[Cell, int]], cost: Callable[[Cell], int], quiet: bool
) -> Iterator[Reporter]:
    """A Reporter of these cells with a bar of its own."""
    with whole(console, quiet) as bar:
        bar.time.expect(cells_work(work, cost))
        yield Reporter(bar, cost)


class Trainings:
    """Counts what trainings have done, and shows it.

    Args:
        bar: Which is to expect their work.
        groups: What is trained side by side, group by group.
        units: Work of each training, as `training.train.work` gives it.
    """

    def __init__(
        self, bar: Bar, groups: Sequence[Sequence[Training]], units: Mapping[Training, float]
    ) -> None:
        self._bar, self._units = bar, units
        self._groups = {what: group for group in groups for what in group}
        self._shares = dict.fromkeys(self._groups, 0.0)
        self._labels = _labels(list(self._groups))
        self._workers: list[str] = []
        for what in self._groups:
            bar.time.expect({self._kind(what): units[what]})

    def begin(self) -> None:
        """A group is about to be trained."""
        self._bar.begin()

    def resumed(self, what: Training, start: Start) -> None:
        """A training goes on from a state that was kept; prints from where."""
        self._set_back(what, start.step / start.steps)
        line = f"goes on from epoch {start.epoch}/{start.epochs}, step {start.step}/{start.steps}"
        warn(f"{self._labels[what]} {line}")

    def begins(self, what: Training) -> None:
        """A worker begins with a training, or again, as another one was lost."""
        if not self._bar.time.has_begun:
            self._bar.begin()
        self._set_back(what, 0.0)

    def alive(self, alive: int, workers: int) -> None:
        """So many of the workers can train now."""
        self._workers = [f"{alive} of {workers} workers"]

    def __call__(self, what: Training, status: Status) -> None:
        """Where a training is."""
        self._bar.finish(self._kind(what), (status.share - self._shares[what]) * self._units[what])
        self._shares[what] = status.share
        ends = status.line is not None
        is_over = ends and status.share >= 1
        if is_over or what is next((one for one in self._groups[what] if self._shares[one] < 1), None):
            self._show(what, status, ends, is_over)

    def failed(self, what: Training) -> None:
        """A training goes no further."""
        self._bar.time.drop(self._kind(what), (1 - self._shares[what]) * self._units[what])
        self._shares[what] = 1.0
        if self._bar.time.has_begun:
            self._bar.show(f"{self._labels[what]}  failed")

    def _set_back(self, what: Training, share: float) -> None:
        """A training is where it is without having been trained to there just now."""
        self._bar.time.skip(self._kind(what), (share - self._shares[what]) * self._units[what])
        self._shares[what] = share

    def _kind(self, what: Training) -> Kind:
        return "+".join(dict.fromkeys(one.architecture for one in self._groups[what])), "training"

    def _show(self, what: Training, status: Status, ends: bool, is_over: bool) -> None:
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
        self._bar.show(name, numbers, ends, must=is_over)


def _labels(trainings: Sequence[Training]) -> dict[Training, str]:
    """A name for each, with its recipe where they differ in that, as in a sweep of intervals."""
    one_recipe = len({what.recipe.name for what in trainings}) == 1
    recipe = {what: "" if one_recipe else f" {what.recipe.name}" for what in trainings}
    return {what: f"{what.architecture}{recipe[what]} seed {what.seed}" for what in trainings}


# --- what is shown ------------------------------------------------------------------------------------


class Told(NamedTuple):
    """How far the work is.

    Attributes:
        share: That is done, in [0, 1].
        what: Is at hand.
        numbers: The most important first.
        left: Seconds; NaN if not known yet.
    """

    share: float
    what: str
    numbers: tuple[str, ...]
    left: float


class _Shown(Protocol):
    def show(self, told: Told, ends: bool, must: bool) -> None: ...

    def close(self) -> None: ...


class _Nothing:
    def __init__(self, console: Console, after: float, clock: Clock) -> None: ...

    def show(self, told: Told, ends: bool, must: bool) -> None: ...

    def close(self) -> None: ...


class _OnTerminal:
    """A line that changes, shown once there is something to show and the time has come."""

    def __init__(self, console: Console, after: float, clock: Clock) -> None:
        self._clock, self._after, self._started = clock, after, clock()
        # What is printed to a terminal goes above the bar; what is sent elsewhere is none of rich's business.
        is_terminal = sys.stdout.isatty()
        line = _Line(console, clock, self._started)
        self._progress = Progress(line, console=console, get_time=clock, redirect_stdout=is_terminal)
        self._task: TaskID | None = None
        self._is_shown, self._lock = False, threading.Lock()
        self._timer = threading.Timer(after, self._begin)  # the first piece of the work may take long
        self._timer.daemon = True
        if after:
            self._timer.start()

    def show(self, told: Told, ends: bool, must: bool) -> None:
        fields: dict[str, Any] = {"told": told, "at": self._clock()}
        if self._task is None:
            self._task = self._progress.add_task("", total=1.0, **fields)
        self._progress.update(self._task, completed=told.share, **fields)
        if self._clock() - self._started >= self._after:
            self._begin()

    def _begin(self) -> None:
        with self._lock:
            if self._task is not None and not self._is_shown:
                self._is_shown = True
                self._progress.start()

    def close(self) -> None:
        self._timer.cancel()
        with self._lock:
            if self._is_shown:
                self._progress.stop()
            self._is_shown = True


class _PlainLines:
    """A line now and then, best where a part of the work ends, and one at the end."""

    def __init__(self, console: Console, after: float, clock: Clock) -> None:
        self._console, self._clock, self._after, self._started = console, clock, after, clock()
        self._last = self._started + after - PLAIN_EVERY if after else self._started
        self._is_over = False

    def show(self, told: Told, ends: bool, must: bool) -> None:
        now, is_over = self._clock(), told.share >= 1
        every = PLAIN_EVERY if ends else PLAIN_EVERY_IN_EPOCH
        is_due = now - self._last >= every or must or is_over
        if not is_due or now - self._started < self._after or (is_over and self._is_over):
            return
        self._last, self._is_over = now, is_over
        parts = [_percentage(told.share), told.what, *told.numbers]
        line = "  ".join(filter(None, [*parts, _time_told(told, now - self._started)]))
        self._console.print(line, highlight=False, markup=False)

    def close(self) -> None: ...


class _Line(ProgressColumn):
    """One line, as `bar_line` fits it into the terminal."""

    def __init__(self, console: Console, clock: Clock, started: float) -> None:
        super().__init__()
        self._console, self._clock, self._started = console, clock, started

    def render(self, task: Task) -> Text:
        told: Told = task.fields["told"]
        now = self._clock()
        left = max(told.left - (now - task.fields["at"]), 0.0)  # NaN stays NaN
        text = bar_line(told._replace(left=left), now - self._started, self._console.width)
        return Text(text, no_wrap=True, overflow="crop")


def bar_line(told: Told, elapsed: float, width: int) -> str:
    """What is at hand, the share and the time left; then, while there is room, its numbers and a bar.

    Args:
        told: What the line says.
        elapsed: Seconds since the start.
        width: Characters.
    """
    counted = f"  {_percentage(told.share)}  {_time_told(told, elapsed)}"
    name = told.what
    if len(name) + len(counted) > width:
        name = _shortened(name, width - len(counted))
    line = name + counted
    for number in told.numbers:
        if len(line) + 2 + len(number) > width:
            break
        line += f"  {number}"
    room = min(width - len(line) - 2, LONGEST_BAR)
    if room >= SHORTEST_BAR:
        full = round(told.share * room)
        line += f"  {'━' * full}{'─' * (room - full)}"
    return line


def _percentage(share: float) -> str:
    """Four characters; 100 % only at the end."""
    return f"{math.floor(100 * share + ROUNDING):3}%"


def _time_told(told: Told, elapsed: float) -> str:
    if told.share >= 1:
        return f"took {duration(elapsed)}"
    return "estimating" if math.isnan(told.left) else f"{duration(told.left)} left"


def _shortened(text: str, room: int) -> str:
    room = max(room, SHORTEST_NAME)
    return text if len(text) <= room else f"{text[: room - 1]}…"


def duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"

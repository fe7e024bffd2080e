"""Show progress on stderr: a bar on a terminal, plain lines elsewhere, nothing with --quiet."""

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
from robust_interp.core.work import ProgressCallback
from robust_interp.store.cells import Cell

if TYPE_CHECKING:
    from robust_interp.core.worker_pool import Workers
    from robust_interp.training.train import Start, Training
    from robust_interp.training.trainer import Status

SHOWN_AFTER = 5.0  # seconds before progress is shown for work that is usually short
PLAIN_EVERY = 10.0  # seconds between plain lines
PLAIN_EVERY_IN_EPOCH = 60.0  # seconds between plain lines within a long epoch
MEMORY = 20.0  # seconds; shortest time over which a speed is averaged
MEMORY_SHARE = 0.25  # the averaging time grows to this share of the elapsed time
KNOWN_AFTER = 2.0  # seconds of work before a speed is reliable: the first pass of a model is slower
KNOWN_SHARE = 0.5  # share of the work left whose operations must be measured before there is an estimate
ROUNDING = 1e-6  # less work left than this share counts as none
SHORTEST_NAME, SHORTEST_BAR, LONGEST_BAR = 12, 8, 40  # characters

Kind = tuple[str, str]  # work of one speed: the classifier or network, and the operation
Clock = Callable[[], float]  # returns seconds


class Pace:
    """Exponential moving average of the seconds per unit of work."""

    def __init__(self) -> None:
        self._units = self._seconds = self._age = 0.0

    def add(self, units: float, seconds: float) -> None:
        """Record finished work and the seconds it took."""
        self._age += seconds
        kept = math.exp(-seconds / max(MEMORY, MEMORY_SHARE * self._age))
        self._units = kept * self._units + units
        self._seconds = kept * self._seconds + seconds

    @property
    def seconds_a_unit(self) -> float | None:
        """Average seconds per unit; None before any work is done."""
        return self._seconds / self._units if self._units > 0 else None


class TimeLeft:
    """Estimator of the remaining time, based on the speed of the finished work.

    Work is counted in units that take a similar time in every kind of work. The speed is measured for each
    kind separately. A kind not measured yet uses the mean speed of the kinds with the same operation, or of
    all kinds if there are none. The first work of each operation includes start-up, such as reading the
    data: its speed is discarded as soon as there is more, and no estimate rests on it.
    """

    def __init__(self) -> None:
        self.left: dict[Kind, float] = defaultdict(float)
        self._done = self._counted = 0.0  # units; seconds
        self._paces: dict[Kind, Pace] = defaultdict(Pace)
        self._first: dict[str, Kind] = {}  # the kind that was first, by operation
        self._settled: set[str] = set()  # operations with more work than the first

    def expect(self, work: Mapping[Kind, float]) -> None:
        """Add work that is still to do, in units by kind."""
        for kind, units in work.items():
            self.left[kind] += units

    def forget(self) -> None:
        """Discard all remaining work."""
        self.left.clear()

    def finish(self, kind: Kind, units: float, seconds: float) -> None:
        """Record finished units of a kind and the seconds they took."""
        self.skip(kind, units)
        _, operation = kind
        if operation not in self._first:
            self._first[operation] = kind
        elif operation not in self._settled and units > 0:
            self._settled.add(operation)
            del self._paces[self._first[operation]]
        self._paces[kind].add(units, seconds)
        self._counted += seconds

    def skip(self, kind: Kind, units: float) -> None:
        """Count units as done without using them to measure the speed."""
        self.left[kind] -= units
        self._done += units

    def drop(self, kind: Kind, units: float) -> None:
        """Remove units that will not be done."""
        self.left[kind] -= units

    @property
    def has_begun(self) -> bool:
        """Whether any work is done."""
        return self._done > 0

    @property
    def share(self) -> float:
        """Finished share of all work, in [0, 1]."""
        left = math.fsum(units for units in self.left.values() if units > 0)
        return self._done / (self._done + left) if left > ROUNDING * self._done else 1.0

    @property
    def seconds(self) -> float | None:
        """Estimated seconds left; None while little is done, or most of what is left is unlike it."""
        known = {kind: pace for kind, one in self._paces.items() if (pace := one.seconds_a_unit) is not None}
        if not known or self._counted < KNOWN_AFTER:
            return None
        left = {kind: units for kind, units in self.left.items() if units > 0}
        alike = math.fsum(units for (_, what), units in left.items() if what in self._settled)
        if alike < KNOWN_SHARE * math.fsum(left.values()):
            return None
        return math.fsum(units * _pace(kind, known) for kind, units in left.items())


def _pace(kind: Kind, known: Mapping[Kind, float]) -> float:
    if kind in known:
        return known[kind]
    alike = [pace for (_, what), pace in known.items() if what == kind[1]] or list(known.values())
    return math.fsum(alike) / len(alike)


class Bar:
    """Progress of all the work of a command, shown as one bar or as plain lines.

    Attributes:
        time: Estimator that counts the work and the time left.
    """

    def __init__(self, display: _Display, clock: Clock) -> None:
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
    kind = _NoDisplay if quiet else _TerminalDisplay if console.is_terminal else _PlainDisplay
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


def work_per_image(cell: Cell, cost: Callable[[Cell], int]) -> float:
    """Return the work per image of a cell: forward passes times millions of parameters."""
    card = cell.classifier
    return cost(cell) * (card.params_m or 1) / card.members


def work_kind(cell: Cell) -> Kind:
    return cell.classifier.label, cell.perturbation.kind


def total_work(work: Iterable[tuple[Cell, int]], cost: Callable[[Cell], int]) -> dict[Kind, float]:
    """Sum the work of pairs (cell, number of images), by kind, in the units of `work_per_image`."""
    found: dict[Kind, float] = defaultdict(float)
    for cell, samples in work:
        found[work_kind(cell)] += samples * work_per_image(cell, cost)
    return found


class Reporter:
    """Counter and display of the finished work of cells, used as a watch by `benchmark` and `audit`.

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

    def __call__(self, cell: Cell, samples: int) -> None:
        """Count images of a cell as finished by this process or its workers."""
        self._bar.finish(work_kind(cell), samples * work_per_image(cell, self._cost) - self._counted)
        self._counted = 0.0
        self._images += samples
        self.own.add(cell.key)
        self._show(cell, ends=True)

    def compiling(self, cell: Cell, begins: bool) -> None:
        """Show that a model is being compiled, and leave the time this takes out of the speed."""
        if begins:
            self._bar.show(f"{cell.classifier.label} compiling", ends=True)
        else:
            self._bar.begin()

    def step(self, cell: Cell, samples: float) -> None:
        """Count the work of an attack step, given as a (fractional) number of images."""
        units = samples * work_per_image(cell, self._cost)
        self._bar.finish(work_kind(cell), units)
        self._counted += units
        self._show(cell, ends=False)

    def alive(self, alive: int, workers: int) -> None:
        """Set the number of workers that can do tasks now."""
        self._workers = [f"{alive} of {workers} workers"]

    def elsewhere(self, cell: Cell, samples: int) -> None:
        """Count images of a cell as finished by another process on the same store."""
        self._bar.time.skip(work_kind(cell), samples * work_per_image(cell, self._cost))
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
    """Yield a Reporter of these cells with a new bar."""
    with progress_bar(console, quiet) as bar:
        bar.time.expect(total_work(work, cost))
        yield Reporter(bar, cost)


class Trainings:
    """Counter and display of the progress of trainings.

    Args:
        bar: Bar to which the work is added.
        groups: Groups of networks; those of one group are trained side by side.
        units: Work of each training, as `training.train.work` returns it.
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
        """Start the clock for a group of trainings."""
        self._bar.begin()

    def resumed(self, what: Training, start: Start) -> None:
        """Count the steps of a resumed training as done, and print where it resumes."""
        self._set_back(what, start.step / start.steps)
        line = f"goes on from epoch {start.epoch}/{start.epochs}, step {start.step}/{start.steps}"
        warn(f"{self._labels[what]} {line}")

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
            self._show(what, status, ends, is_over)

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
    """Return a label for each training, with the recipe if the recipes differ."""
    one_recipe = len({what.recipe.name for what in trainings}) == 1
    recipe = {what: "" if one_recipe else f" {what.recipe.name}" for what in trainings}
    return {what: f"{what.architecture}{recipe[what]} seed {what.seed}" for what in trainings}


# --- what is shown ------------------------------------------------------------------------------------


class ProgressState(NamedTuple):
    """State of the work that is displayed.

    Attributes:
        share: Finished share, in [0, 1].
        what: Description of the current work.
        numbers: Further texts, the most important first.
        left: Estimated seconds left; NaN if not known yet.
    """

    share: float
    what: str
    numbers: tuple[str, ...]
    left: float


class _Display(Protocol):
    def show(self, state: ProgressState, ends: bool, must: bool) -> None: ...

    def close(self) -> None: ...


class _NoDisplay:
    def __init__(self, console: Console, after: float, clock: Clock) -> None: ...

    def show(self, state: ProgressState, ends: bool, must: bool) -> None: ...

    def close(self) -> None: ...


class _TerminalDisplay:
    """Line that is updated in place, shown after `after` seconds if there is something to show."""

    def __init__(self, console: Console, after: float, clock: Clock) -> None:
        self._clock, self._after, self._started = clock, after, clock()
        # rich moves what is printed to a terminal above the bar; redirected output must not pass through it.
        is_terminal = sys.stdout.isatty()
        line = _Line(console, clock, self._started)
        self._progress = Progress(line, console=console, get_time=clock, redirect_stdout=is_terminal)
        self._task: TaskID | None = None
        self._is_shown, self._lock = False, threading.Lock()
        self._timer = threading.Timer(after, self._begin)  # shows the bar even if no new progress is reported
        self._timer.daemon = True
        if after:
            self._timer.start()

    def show(self, state: ProgressState, ends: bool, must: bool) -> None:
        fields: dict[str, Any] = {"state": state, "at": self._clock()}
        if self._task is None:
            self._task = self._progress.add_task("", total=1.0, **fields)
        self._progress.update(self._task, completed=state.share, **fields)
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


class _PlainDisplay:
    """Plain lines at intervals, preferably when a part of the work ends, and one at the end."""

    def __init__(self, console: Console, after: float, clock: Clock) -> None:
        self._console, self._clock, self._after, self._started = console, clock, after, clock()
        self._last = self._started + after - PLAIN_EVERY if after else self._started
        self._is_over = False

    def show(self, state: ProgressState, ends: bool, must: bool) -> None:
        now, is_over = self._clock(), state.share >= 1
        every = PLAIN_EVERY if ends else PLAIN_EVERY_IN_EPOCH
        is_due = now - self._last >= every or must or is_over
        if not is_due or now - self._started < self._after or (is_over and self._is_over):
            return
        self._last, self._is_over = now, is_over
        parts = [_percentage(state.share), state.what, *state.numbers]
        line = "  ".join(filter(None, [*parts, _time_text(state, now - self._started)]))
        self._console.print(line, highlight=False, markup=False)

    def close(self) -> None: ...


class _Line(ProgressColumn):
    """Column with the text of `bar_line`."""

    def __init__(self, console: Console, clock: Clock, started: float) -> None:
        super().__init__()
        self._console, self._clock, self._started = console, clock, started

    def render(self, task: Task) -> Text:
        state: ProgressState = task.fields["state"]
        now = self._clock()
        left = max(state.left - (now - task.fields["at"]), 0.0)  # NaN stays NaN
        text = bar_line(state._replace(left=left), now - self._started, self._console.width)
        return Text(text, no_wrap=True, overflow="crop")


def bar_line(state: ProgressState, elapsed: float, width: int) -> str:
    """Format work, share and time left in one line; then, if they fit, its numbers and a bar.

    Args:
        state: State of the work.
        elapsed: Seconds since the start.
        width: Width of the terminal in characters.
    """
    counted = f"  {_percentage(state.share)}  {_time_text(state, elapsed)}"
    name = state.what
    if len(name) + len(counted) > width:
        name = _shortened(name, width - len(counted))
    line = name + counted
    for number in state.numbers:
        if len(line) + 2 + len(number) > width:
            break
        line += f"  {number}"
    room = min(width - len(line) - 2, LONGEST_BAR)
    if room >= SHORTEST_BAR:
        full = round(state.share * room)
        line += f"  {'━' * full}{'─' * (room - full)}"
    return line


def _percentage(share: float) -> str:
    """Format a share in four characters; rounds down, so that 100% means finished."""
    return f"{math.floor(100 * share + ROUNDING):3}%"


def _time_text(state: ProgressState, elapsed: float) -> str:
    if state.share >= 1:
        return f"took {duration(elapsed)}"
    return "estimating" if math.isnan(state.left) else f"{duration(state.left)} left"


def _shortened(text: str, room: int) -> str:
    room = max(room, SHORTEST_NAME)
    return text if len(text) <= room else f"{text[: room - 1]}…"


def duration(seconds: float) -> str:
    """Format a time in seconds, minutes or hours."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"

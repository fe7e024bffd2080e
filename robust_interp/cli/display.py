"""Draw the progress of work on stderr: a bar on a terminal, plain lines elsewhere, or nothing."""

from __future__ import annotations

import math
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

from rich.console import Console
from rich.progress import Progress, ProgressColumn, Task, TaskID
from rich.text import Text

from robust_interp.cli.time_left import ROUNDING

PLAIN_EVERY = 10.0  # seconds between plain lines
PLAIN_EVERY_IN_EPOCH = 60.0  # seconds between plain lines within a long epoch
SHORTEST_NAME, SHORTEST_BAR, LONGEST_BAR = 12, 8, 40  # characters

Clock = Callable[[], float]  # returns seconds


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


class Display(Protocol):
    """Shows states of the work until it is closed."""

    def show(self, state: ProgressState, ends: bool, must: bool) -> None: ...

    def close(self) -> None: ...


class NoDisplay:
    """Shows nothing."""

    def __init__(self, console: Console, after: float, clock: Clock) -> None: ...

    def show(self, state: ProgressState, ends: bool, must: bool) -> None: ...

    def close(self) -> None: ...


class TerminalDisplay:
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


class PlainDisplay:
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
        self._console.print(line)

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

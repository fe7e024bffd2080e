"""Which parts of cells are to be measured next: by what the store has, what is taken, and what follows what.

A task is a part of a cell, of some consecutive samples. It carries names and ranges, and so can be done in
this process or in any other that knows the same targets.
"""

from __future__ import annotations

import heapq
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from robust_interp.benchmark.pending import is_finished, still_standing
from robust_interp.store import Store
from robust_interp.store.cells import Cell, Perturbation, Plan
from robust_interp.store.finished import finished

PAUSE = 0.2  # seconds between two looks at what other processes have finished


@dataclass(frozen=True, eq=False)
class Task:
    """What is measured at once.

    Attributes:
        target: Key of the target that the cell is of.
        cell: Of which it is a part.
        start: The first sample, counted from 0; `stop` is the first one that is left out.
        standing: Which of these samples no earlier attack has broken, (stop - start,) bool; None for all.
        source: Key of the target that the attack is made on; empty for the one that is measured.
    """

    target: str
    cell: Cell
    start: int
    stop: int
    standing: np.ndarray | None = None
    source: str = ""


@dataclass(eq=False)
class Job:
    """The first `n` samples of a cell.

    Attributes:
        plan: Says how many samples have the cells that this one follows.
        target: As of its tasks; `source` likewise.
        follows: The cells whose broken samples are not attacked again.
        is_ready: Whether these are finished, so that it is known which samples still stand.
        standing: Which of the samples do, (n,) bool; None for all.
        elsewhere: Samples that other processes have measured, once it is finished.
    """

    plan: Plan
    cell: Cell
    n: int
    target: str
    source: str = ""
    follows: Sequence[Cell] = ()
    is_ready: bool = False
    standing: np.ndarray | None = None
    elsewhere: int = 0


# Where a part of a cell ends: of its perturbation, the first sample, n, and which samples still stand.
Cut = Callable[[Perturbation, int, int, np.ndarray | None], int]


class Agenda:
    """The tasks of some jobs, each given out once what it follows is finished.

    Other processes may be at work on the same store; what they have taken is left to them, and taken over
    from one that is gone.

    Args:
        jobs: In the order in which they are given out, as far as one can be done.
        store: What has some of it already, and says what is taken.
        labels: (N,) of the dataset.
        cut: Where a part of a cell ends that is measured at once.

    Attributes:
        given_up: Why each task that was given up could not be done.
        elsewhere: Cells with the number of their samples that other processes have measured meanwhile.
    """

    def __init__(self, jobs: Sequence[Job], store: Store, labels: np.ndarray, cut: Cut) -> None:
        self._jobs, self._store, self._labels, self._cut = list(jobs), store, labels, cut
        self._open = list(range(len(self._jobs)))  # a heap: may have a task
        self._later: set[int] = set()  # have none until something else is finished
        self._after: dict[str, set[int]] = defaultdict(set)  # which of them, by the cell that they wait for
        self._at_hand: dict[Task, int] = {}
        self._pause, self._looked = PAUSE, time.monotonic()
        self.given_up: list[str] = []
        self.elsewhere: list[tuple[Cell, int]] = []
        for job in self._jobs:
            job.elsewhere = job.n - max(store.covered(key) for key in {job.cell.key, job.cell.whole.key})

    @property
    def is_over(self) -> bool:
        """Whether everything is finished or given up."""
        return not self._open and not self._later

    def next(self) -> Task | None:
        """A task that can be done now; None if there is none before another one is finished."""
        if not self._open and self._later and time.monotonic() - self._looked > self._pause:
            self._look()
        while self._open:
            number = self._open[0]
            job = self._jobs[number]
            if task := self._task(number, job):
                self._at_hand[task] = number
                return task
            heapq.heappop(self._open)
            if not self._is_finished(job):
                self._later.add(number)
                continue
            self._reopen(self._after.pop(job.cell.whole.key, set()))
            if job.elsewhere > 0:
                self.elsewhere.append((job.cell, job.elsewhere))
        return None

    def finish(self, task: Task) -> None:
        """A task is done, and its outcome stored."""
        number = self._at_hand.pop(task)
        job = self._jobs[number]
        job.elsewhere -= task.stop - task.start
        if number in self._later and self._is_finished(job):
            self._reopen({number})

    def give_up(self, task: Task, why: str) -> None:
        """A task cannot be done: its cell, and what follows that, are left out."""
        given_up = self._jobs[self._at_hand.pop(task)]
        self.given_up.append(why)
        lost = {given_up.cell.key}
        for number, job in enumerate(self._jobs):
            if job.target == given_up.target and lost & {job.cell.key, *(one.key for one in job.follows)}:
                lost.add(job.cell.key)
                self._later.discard(number)
                self._open = [one for one in self._open if one != number]
        heapq.heapify(self._open)

    def _look(self) -> None:
        """See whether other processes have finished something, or left it."""
        began = time.monotonic()
        self._reopen(set(self._later))
        for number in list(self._open):
            job = self._jobs[number]
            if not job.is_ready and not self._prepare(number, job):
                self._open.remove(number)
                self._later.add(number)
        heapq.heapify(self._open)
        self._looked = time.monotonic()
        self._pause = max(
            PAUSE, 10 * (self._looked - began)
        )  # a long list is not looked through all the time

    def _reopen(self, numbers: set[int]) -> None:
        for number in numbers & self._later:
            heapq.heappush(self._open, number)
        self._later -= numbers

    def _is_finished(self, job: Job) -> bool:
        return is_finished(job.cell, self._store, job.n)

    def _task(self, number: int, job: Job) -> Task | None:
        if not job.is_ready and not self._prepare(number, job):
            return None
        kind = job.cell.perturbation
        part = self._store.claim(job.cell.key, job.n, lambda at: self._cut(kind, at, job.n, job.standing))
        if part is None:
            return None
        start, stop = part
        standing = None if job.standing is None else job.standing[start:stop]
        return Task(job.target, job.cell, start, stop, standing, job.source)

    def _prepare(self, number: int, job: Job) -> bool:
        """Find out which samples still stand; whether that is known already."""
        before = []
        for cell in job.follows:
            _, outcome = finished(cell, self._store, job.plan.n)
            if outcome is None:
                self._after[cell.whole.key].add(number)
                return False
            before.append(outcome)
        standing = still_standing(before, self._labels)
        job.standing = None if standing is None else standing[: job.n]
        job.is_ready = True
        return True

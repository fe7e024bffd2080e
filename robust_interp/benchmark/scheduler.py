"""Scheduling: which part of which cell is measured next.

It depends on what is stored, what other processes have claimed, and which cells must be finished first.
A task is a range of consecutive images of one cell. It holds only names and ranges, so that any process with
the same targets can measure it.
"""

from __future__ import annotations

import heapq
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from robust_interp.benchmark.pending import unbroken_mask
from robust_interp.store import Store
from robust_interp.store.cells import Cell, Perturbation, Plan
from robust_interp.store.finished import find_outcome, is_finished

PAUSE = 0.2  # seconds between two checks of what other processes have finished


@dataclass(frozen=True, eq=False)
class Task:
    """A unit of work: consecutive images of one cell.

    Attributes:
        target: Key of the target that is measured.
        cell: The cell this task is a part of.
        start: Index of the first image, counted from 0.
        stop: Index after the last image.
        unbroken: Mask of the images that no earlier attack has broken, (stop - start,) bool; None means all.
        source: Key of the target that the attack is computed on; empty means the measured target.
    """

    target: str
    cell: Cell
    start: int
    stop: int
    unbroken: np.ndarray | None = None
    source: str = ""

    @property
    def attacked(self) -> int:
        """Number of its images that are measured; the others are broken already."""
        return self.stop - self.start if self.unbroken is None else int(self.unbroken.sum())


@dataclass(eq=False)
class Job:
    """The first `n` images of a cell, which are measured as one or more tasks.

    Attributes:
        plan: The plan of the cell; the cells in `prerequisites` are finished at `plan.n` images.
        cell: The cell to measure.
        n: Number of images.
        target: Key of the target that is measured.
        source: Key of the target that the attack is computed on; empty means the measured target.
        prerequisites: Cells that must be finished first; images that they broke are not attacked again.
        is_ready: Whether these cells are finished and `unbroken` is set.
        unbroken: Mask of the images that they did not break, (n,) bool; None means all.
        elsewhere: Number of images that were to be measured at the start and that this process has not
            measured. For a finished job, these are the images that other processes measured.
    """

    plan: Plan
    cell: Cell
    n: int
    target: str
    source: str = ""
    prerequisites: Sequence[Cell] = ()
    is_ready: bool = False
    unbroken: np.ndarray | None = None
    elsewhere: int = 0


# (perturbation, first image, n, mask of the images not broken yet) -> index after the last image of a task
TaskEnd = Callable[[Perturbation, int, int, np.ndarray | None], int]


class Scheduler:
    """A scheduler: hands out the tasks of jobs, each after the cells it depends on are finished.

    Several processes may measure into the same store. Tasks that another process has claimed are not handed
    out, unless that process has ended.

    Args:
        jobs: The jobs in order of priority.
        store: The store with the results so far and the claims of all processes.
        labels: Labels of the data set, (N,).
        task_end: Returns the index after the last image of a task.

    Attributes:
        failures: For each failed task, the reason.
        elsewhere: Finished cells, each with the number of its images that other processes measured.
        skipped: Cells whose prerequisites are finished, each with the number of its images that these broke.
    """

    def __init__(self, jobs: Sequence[Job], store: Store, labels: np.ndarray, task_end: TaskEnd) -> None:
        self._jobs, self._store, self._labels, self._task_end = list(jobs), store, labels, task_end
        self._open = list(range(len(self._jobs)))  # a heap of the jobs that may have a task now
        self._later: set[int] = set()  # jobs that have none before something else is finished
        self._after: dict[str, set[int]] = defaultdict(set)  # key of a cell -> jobs that wait for it
        self._at_hand: dict[Task, int] = {}
        self._pause, self._looked = PAUSE, time.monotonic()
        self.failures: list[str] = []
        self.elsewhere: list[tuple[Cell, int]] = []
        self.skipped: list[tuple[Cell, int]] = []
        for job in self._jobs:
            job.elsewhere = job.n - store.covered_by(job.cell)
        self._set_aside()

    @property
    def is_done(self) -> bool:
        """Whether every job is finished or given up."""
        return not self._open and not self._later

    def next(self) -> Task | None:
        """Return a task that can be measured now; None if all others wait for an unfinished one."""
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
            self._reopen(self._after.pop(job.cell.without_skips.key, set()))
            if job.elsewhere > 0:
                self.elsewhere.append((job.cell, job.elsewhere))
        return None

    def finish(self, task: Task) -> None:
        """Mark a task as finished. Its outcome must be stored already."""
        number = self._at_hand.pop(task)
        job = self._jobs[number]
        job.elsewhere -= task.attacked
        if number in self._later and self._is_finished(job):
            self._reopen({number})

    def fail(self, task: Task, why: str) -> None:
        """Mark a task as failed, and drop its cell and all cells that depend on it.

        They may be of other targets: an ensemble that is attacked in several ways shares its clean images.
        Other processes may measure it.
        """
        self._store.release(task.cell.key, task.start)
        failed = self._jobs[self._at_hand.pop(task)]
        self.failures.append(why)
        lost = {failed.cell.key}
        for number, job in enumerate(self._jobs):
            needed = {job.cell.key, *(one.key for one in job.prerequisites)}
            if lost & needed:
                lost.add(job.cell.key)
                self._later.discard(number)
                self._open = [one for one in self._open if one != number]
        heapq.heapify(self._open)

    def _look(self) -> None:
        """Check what other processes have finished or abandoned."""
        began = time.monotonic()
        self._reopen(set(self._later))
        self._set_aside()
        self._looked = time.monotonic()
        self._pause = max(
            PAUSE, 10 * (self._looked - began)
        )  # checking a long list must not take most of the time

    def _set_aside(self) -> None:
        """Prepare the open jobs; those whose prerequisites are not finished have no task now."""
        waiting = {number for number in self._open if not self._is_prepared(number, self._jobs[number])}
        self._later |= waiting
        self._open = [number for number in self._open if number not in waiting]
        heapq.heapify(self._open)

    def _reopen(self, numbers: set[int]) -> None:
        for number in numbers & self._later:
            heapq.heappush(self._open, number)
        self._later -= numbers

    def _is_finished(self, job: Job) -> bool:
        return is_finished(job.cell, self._store, job.n)

    def _task(self, number: int, job: Job) -> Task | None:
        if not self._is_prepared(number, job):
            return None
        kind = job.cell.perturbation
        part = self._store.claim(
            job.cell.key, job.n, lambda at: self._task_end(kind, at, job.n, job.unbroken)
        )
        if part is None:
            return None
        start, stop = part
        unbroken = None if job.unbroken is None else job.unbroken[start:stop]
        return Task(job.target, job.cell, start, stop, unbroken, job.source)

    def _is_prepared(self, number: int, job: Job) -> bool:
        """Set `job.unbroken` once. Return False while a cell that the job follows is not finished."""
        if job.is_ready:
            return True
        before = []
        for cell in job.prerequisites:
            _, outcome = find_outcome(cell, self._store, job.plan.n)
            if outcome is None:
                self._after[cell.without_skips.key].add(number)
                return False
            before.append(outcome)
        unbroken = unbroken_mask(before, self._labels)
        job.is_ready = True
        if unbroken is not None:
            job.unbroken = unbroken[: job.n]
            skipped = int((~job.unbroken[job.n - job.elsewhere :]).sum())
            job.elsewhere -= skipped
            self.skipped.append((job.cell, skipped))
        return True

"""Measure the cells of a plan that are not stored yet, task by task, in this process or in workers."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Protocol

from torch import nn

from robust_interp import attacks
from robust_interp.benchmark.attack_backends import AttackBackends
from robust_interp.benchmark.pending import group_by_target, missing, prerequisites, self_check
from robust_interp.benchmark.runner import Runner
from robust_interp.benchmark.scheduler import Job, Scheduler, Task
from robust_interp.benchmark.watch import UNWATCHED, Watch
from robust_interp.classifiers.ensemble import Ensemble
from robust_interp.classifiers.isolation import measurement_mode
from robust_interp.classifiers.target import Target
from robust_interp.classifiers.validation import ChangeDetector
from robust_interp.core.errors import UserError
from robust_interp.store import Outcome, Store
from robust_interp.store.cells import CLEAN, Cell, Perturbation, Plan

IDLE = 0.05  # seconds to sleep while all remaining tasks are claimed by other processes

StoreOutcome = Callable[[Task, Outcome], None]  # stores the outcome of a task


class Executor(Protocol):
    """An executor of tasks: one worker or a pool of workers."""

    @property
    def has_capacity(self) -> bool:
        """Whether it can accept another task."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether a task was submitted and not returned yet."""
        ...

    @property
    def alive(self) -> tuple[int, int] | None:
        """Number of workers that are ready, and number requested; None for an executor without workers."""
        ...

    def submit(self, task: Task) -> None:
        """Submit a task."""
        ...

    def next_result(self) -> tuple[Task, Outcome | str]:
        """Wait for a task to finish; return it with its outcome, or with the reason why it failed.

        Raises:
            UserError: if its target cannot be measured.
        """
        ...


class LocalWorker:
    """An executor that measures tasks one after the other in this process.

    The classifier and the attack are kept until a task needs others.

    Args:
        runner: Computes the predictions of a task.
        targets: The targets by key.
        watch: Listener for the passes of attacks and for compilations.
    """

    def __init__(self, runner: Runner, targets: Mapping[str, Target], watch: Watch = UNWATCHED) -> None:
        self._runner, self._targets, self._watch = runner, targets, watch
        self._conditions = ExitStack()
        self._keys: tuple[str, str] | None = None
        self._classifier: nn.Module
        self._judge: nn.Module | None  # the classifier, if another one is attacked
        self._backends: AttackBackends  # the forms of the classifier for attacks
        self._change_detector: ChangeDetector
        self._attack: tuple[str, attacks.AttackRunner, str] | None = None  # key of the cell, attack, engine
        self._task: Task | None = None

    def __enter__(self) -> LocalWorker:
        return self

    def __exit__(self, *_: object) -> None:
        self._keys = self._attack = None
        self._conditions.close()

    alive = None

    @property
    def has_capacity(self) -> bool:
        return self._task is None

    @property
    def is_busy(self) -> bool:
        return self._task is not None

    def submit(self, task: Task) -> None:
        self._task = task

    def next_result(self) -> tuple[Task, Outcome | str]:
        task, self._task = self._task, None
        if task is None:
            raise LookupError("no task was given")
        return task, self.measure(task)

    def measure(self, task: Task) -> Outcome:
        """Measure a task.

        Raises:
            UserError: if its target cannot be measured, or was modified in the meantime.
        """
        if self._keys != (task.target, task.source):
            self.__exit__()
            self._set_up(task)
            self._keys = task.target, task.source
        view = self._runner.for_dataset(self._targets[task.target].dataset)
        found = view.outcome(task, self._classifier, *self._attack_of(task))
        self._change_detector.check()
        return found

    def _set_up(self, task: Task) -> None:
        classifier, *others = (self._load(key) for key in (task.target, task.source) if key)
        target = self._targets[task.target]
        view = self._runner.for_dataset(target.dataset)
        self._change_detector = ChangeDetector(classifier, view.pixels(CLEAN, 0, 1), target.card.label)
        own = classifier.attacked_as if isinstance(classifier, Ensemble) else classifier
        self._classifier = classifier
        attacked = others[0] if others else own
        self._judge = None if attacked is classifier else classifier
        self._backends = AttackBackends(attacked, self._runner, view, self._watch)

    def _load(self, key: str) -> nn.Module:
        classifier = self._runner.load(self._targets[key])
        self._conditions.enter_context(measurement_mode(classifier))
        return classifier

    def _attack_of(self, task: Task) -> tuple[attacks.AttackRunner | None, str]:
        """Return the attack of a task, and the engine that runs the model in the attack."""
        cell = task.cell
        if cell.perturbation.kind != "attack":
            return None, ""
        if self._attack is None or self._attack[0] != cell.key:
            self._runner.check_precisions([cell])
            seen, engine = self._backends.of(task)
            attack = attacks.AttackRunner(cell.perturbation, seen, self._step_callback(cell), self._judge)
            self._attack = cell.key, attack, engine
        return self._attack[1:]

    def _step_callback(self, cell: Cell) -> Callable[[int], None]:
        """Return the progress callback of an attack, which converts passes to a fractional image count."""
        passes = attacks.passes(cell.perturbation)
        return lambda done: self._watch.step(cell, done / passes)


def run(
    plan: Plan,
    targets: Sequence[Target],
    runner: Runner,
    store: Store,
    watch: Watch = UNWATCHED,
    executor: Executor | None = None,
) -> None:
    """Measure the cells of a plan that are not stored yet, chunk by chunk.

    Args:
        plan: The plan; the cells of its strong plan are not measured.
        targets: The targets of the cells.
        runner: Measures in this process, and sets the size of a chunk.
        store: The store for the results; it also holds the claims of other processes.
        watch: Listener for the progress.
        executor: Executes the tasks; None measures in this process.

    Raises:
        UserError: if a target cannot be measured; without `executor`, before anything is measured.
    """
    cells = missing(plan, store)
    todo = group_by_target(cells, targets)
    runner.expect((target for target, _ in todo), plan.n)
    if executor is None:
        runner.check_precisions(cells)
        for target, _ in todo:  # load all first: a broken model fails at once, not after hours
            runner.load(target)
    jobs = [job for target, of_target in todo for job in make_jobs(plan, of_target, target, runner)]
    with ExitStack() as beside:
        for view, of_view in _by_view(todo, runner).items() if executor is None else ():
            beside.enter_context(view.prefetch(_corrupted(of_view, store, plan.n)))
        run_jobs(jobs, targets, runner, store, watch, executor)


def _by_view(todo: Iterable[tuple[Target, Iterable[Cell]]], runner: Runner) -> dict[Runner, list[Cell]]:
    """Group cells by the runner of the images that they are measured on."""
    found: dict[Runner, list[Cell]] = {}
    for target, cells in todo:
        found.setdefault(runner.for_dataset(target.dataset), []).extend(cells)
    return found


def _corrupted(cells: Iterable[Cell], store: Store, n: int) -> list[tuple[Perturbation, int, int]]:
    """Return each corruption of these cells once, with the range [start, n) of images that are not stored."""
    starts: dict[str, int] = {}
    found: dict[str, Perturbation] = {}
    for cell in cells:
        if cell.perturbation.kind == "corruption":
            column = cell.perturbation.column
            found.setdefault(column, cell.perturbation)
            starts[column] = min(starts.get(column, n), store.covered(cell.key))
    return [(found[column], start, n) for column, start in starts.items()]


def make_jobs(
    plan: Plan, cells: Iterable[Cell], target: Target, runner: Runner, source: Target | None = None
) -> list[Job]:
    """Return the jobs for cells of one target, including the self-checks of attacks in another precision.

    Args:
        plan: The plan of the cells; it gives the number of images and the cells that each one follows.
        cells: The cells; each comes after those that it follows.
        target: The target of the cells.
        runner: Gives the number of images of a self-check, one batch.
        source: The target that the attacks are computed on; None means `target`.
    """
    found, key = [], target.key
    for cell in cells:
        before = prerequisites(plan, cell)
        if reference := self_check(plan, cell):
            first = min(plan.n, runner.batch_size)
            found.append(Job(plan, reference, first, key, prerequisites=before))
        found.append(Job(plan, cell, plan.n, key, source.key if source else "", before))
    return found


def run_jobs(
    jobs: Sequence[Job],
    targets: Iterable[Target],
    runner: Runner,
    store: Store,
    watch: Watch = UNWATCHED,
    executor: Executor | None = None,
) -> None:
    """Measure jobs until all of them are stored, by this or by other processes; store the labels, too.

    Args:
        jobs: The jobs; each comes after those that it follows.
        targets: All targets that the jobs name, and maybe more.
        runner, store, watch, executor: See `run`.

    Raises:
        UserError: if a target cannot be measured; or, after all other jobs, if a task failed in the workers.
    """
    for view in runner.views_of(targets):
        store.put_labels(view.dataset.fingerprint, view.dataset.labels)
    scheduler = Scheduler(jobs, store, runner.dataset.labels, runner.task_end)
    by_key = {target.key: target for target in targets}

    def store_outcome(task: Task, outcome: Outcome) -> None:
        runner.for_dataset(by_key[task.target].dataset).keep_content(store, task, outcome)
        store.append(task.cell.key, task.start, outcome)

    with LocalWorker(runner, by_key, watch) as worker:
        _run_tasks(scheduler, executor or worker, store_outcome, watch)
    if scheduler.failures:
        more = f" (and {len(scheduler.failures) - 1} more)" if len(scheduler.failures) > 1 else ""
        raise UserError(f"{scheduler.failures[0]}{more}; all other results are saved")


def _run_tasks(scheduler: Scheduler, executor: Executor, store_outcome: StoreOutcome, watch: Watch) -> None:
    while True:
        while executor.has_capacity and (task := scheduler.next()):
            executor.submit(task)
        while scheduler.elsewhere:
            watch.elsewhere(*scheduler.elsewhere.pop())
        while scheduler.skipped:
            watch.skipped(*scheduler.skipped.pop())
        if executor.is_busy:
            done = executor.next_result()
            if executor.alive:
                watch.alive(*executor.alive)
            _finish(scheduler, *done, store_outcome, watch)
        elif scheduler.is_done:
            return
        else:
            time.sleep(IDLE)


def _finish(
    scheduler: Scheduler, task: Task, outcome: Outcome | str, store_outcome: StoreOutcome, watch: Watch
) -> None:
    if isinstance(outcome, str):
        scheduler.fail(task, outcome)
        return
    store_outcome(task, outcome)
    scheduler.finish(task)
    watch(task.cell, task.attacked)

"""Measures what the store lacks of a plan: task by task, in this process or by a crew of others."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Protocol

from torch import nn

from robust_interp import attacks
from robust_interp.benchmark.agenda import Agenda, Job, Task
from robust_interp.benchmark.engines import Engines
from robust_interp.benchmark.pending import by_target, followed, missing, self_check
from robust_interp.benchmark.runner import Runner
from robust_interp.classifiers.ensemble import Ensemble
from robust_interp.classifiers.isolation import undisturbed
from robust_interp.classifiers.target import Target
from robust_interp.classifiers.validation import Unchanged
from robust_interp.core.errors import UserError
from robust_interp.store import Outcome, Store
from robust_interp.store.cells import CLEAN, Cell, Perturbation, Plan

IDLE = 0.05  # seconds to wait where nothing can be done before another process has finished something

Keep = Callable[[Task, Outcome], None]  # puts what a task yielded into a store

Watch = Callable[[Cell, int], None]  # called with a cell and how many of its samples were just finished


def unwatched(cell: Cell, samples: int) -> None:
    """Nobody is told."""


def _nobody_is_told(alive: int, workers: int) -> None:
    """Nor of workers."""


class Crew(Protocol):
    """What does tasks, several at once or one after the other."""

    @property
    def has_room(self) -> bool:
        """Whether it can take one more task."""
        ...

    @property
    def is_busy(self) -> bool:
        """Whether a task is at hand."""
        ...

    @property
    def alive(self) -> tuple[int, int] | None:
        """How many workers can do tasks now, and how many there are to be; None where there are none."""
        ...

    def give(self, task: Task) -> None:
        """Begin with a task."""
        ...

    def take(self) -> tuple[Task, Outcome | str]:
        """Wait for a task that is done; its outcome, or why it cannot be done by anyone.

        Raises:
            UserError: if its target cannot be measured.
        """
        ...


class Station:
    """Does tasks one after the other in this process; a classifier and an attack are kept while they last.

    Args:
        runner: With what.
        targets: By their keys.
        watch: Told of the steps of attacks, where it wants to know.
    """

    def __init__(self, runner: Runner, targets: Mapping[str, Target], watch: Watch = unwatched) -> None:
        self._runner, self._targets, self._watch = runner, targets, watch
        self._conditions = ExitStack()
        self._keys: tuple[str, str] | None = None
        self._classifier: nn.Module
        self._engines: Engines  # what the attacks see
        self._unchanged: Unchanged
        self._attack: tuple[str, attacks.AttackRunner, str] | None = None  # of this cell's key, by an engine
        self._task: Task | None = None

    def __enter__(self) -> Station:
        return self

    def __exit__(self, *_: object) -> None:
        self._keys = self._attack = None
        self._conditions.close()

    alive = None

    @property
    def has_room(self) -> bool:
        return self._task is None

    @property
    def is_busy(self) -> bool:
        return self._task is not None

    def give(self, task: Task) -> None:
        self._task = task

    def take(self) -> tuple[Task, Outcome | str]:
        task, self._task = self._task, None
        if task is None:
            raise LookupError("no task was given")
        return task, self.measure(task)

    def measure(self, task: Task) -> Outcome:
        """Do a task.

        Raises:
            UserError: if its target cannot be measured, or has changed meanwhile.
        """
        if self._keys != (task.target, task.source):
            self.__exit__()
            self._set_up(task)
            self._keys = task.target, task.source
        view = self._runner.on(self._targets[task.target].dataset)
        found = view.outcome(task, self._classifier, *self._attack_of(task))
        self._unchanged.check()
        return found

    def _set_up(self, task: Task) -> None:
        classifier, *others = (self._undisturbed(key) for key in (task.target, task.source) if key)
        target = self._targets[task.target]
        view = self._runner.on(target.dataset)
        self._unchanged = Unchanged(classifier, view.pixels(CLEAN, 0, 1), target.card.label)
        own = classifier.attacked_as if isinstance(classifier, Ensemble) else classifier
        self._classifier = classifier
        self._engines = Engines(others[0] if others else own, self._runner, view, self._watch)

    def _undisturbed(self, key: str) -> nn.Module:
        classifier = self._runner.load(self._targets[key])
        self._conditions.enter_context(undisturbed(classifier))
        return classifier

    def _attack_of(self, task: Task) -> tuple[attacks.AttackRunner | None, str]:
        """The attack of a task, and the engine that runs the model in it."""
        cell = task.cell
        if cell.perturbation.kind != "attack":
            return None, ""
        if self._attack is None or self._attack[0] != cell.key:
            self._runner.check([cell])
            seen, engine = self._engines.of(task)
            attack = attacks.AttackRunner(cell.perturbation, seen, self._teller(cell))
            self._attack = cell.key, attack, engine
        return self._attack[1:]

    def _teller(self, cell: Cell) -> Callable[[int], None]:
        """What tells of the steps within a batch: in samples' worth of work."""
        step, passes = getattr(self._watch, "step", None), attacks.passes(cell.perturbation)
        return (lambda done: step(cell, done / passes)) if step else (lambda done: None)


def run(
    plan: Plan,
    targets: Sequence[Target],
    runner: Runner,
    store: Store,
    watch: Watch = unwatched,
    crew: Crew | None = None,
) -> None:
    """Measure what is missing of a plan of these targets, chunk by chunk.

    Args:
        plan: Whose own cells are measured, not those of its strong plan.
        targets: Which the cells are of.
        runner: Measures in this process, and says where a chunk ends.
        store: What keeps them, and tells what other processes have taken.
        watch: Told of each batch that was finished.
        crew: Does the tasks; None is this process.

    Raises:
        UserError: if a target cannot be measured; where this process measures, before any is.
    """
    cells = missing(plan, store)
    todo = by_target(cells, targets)
    runner.expect((target for target, _ in todo), plan.n)
    if crew is None:
        runner.check(cells)
        for target, _ in todo:  # all: a bad one fails before the hours
            runner.load(target)
    for view in dict.fromkeys(runner.on(target.dataset) for target in targets):
        store.put_labels(view.dataset.fingerprint, view.dataset.labels)
    jobs = [job for target, of_target in todo for job in jobs_of(plan, of_target, target, runner)]
    with ExitStack() as beside:
        for view, of_view in _by_view(todo, runner).items() if crew is None else ():
            beside.enter_context(view.ahead(_corrupted(of_view, store, plan.n)))
        carry_out(jobs, [target for target, _ in todo], runner, store, watch, crew)


def _by_view(todo: Iterable[tuple[Target, Iterable[Cell]]], runner: Runner) -> dict[Runner, list[Cell]]:
    """Cells by the images that they are measured on."""
    found: dict[Runner, list[Cell]] = {}
    for target, cells in todo:
        found.setdefault(runner.on(target.dataset), []).extend(cells)
    return found


def _corrupted(cells: Iterable[Cell], store: Store, n: int) -> list[tuple[Perturbation, int, int]]:
    """The corruptions of cells, each once, and the samples [start, n) that one of the cells lacks."""
    starts: dict[str, int] = {}
    found: dict[str, Perturbation] = {}
    for cell in cells:
        if cell.perturbation.kind == "corruption":
            column = cell.perturbation.column
            found.setdefault(column, cell.perturbation)
            starts[column] = min(starts.get(column, n), store.covered(cell.key))
    return [(found[column], start, n) for column, start in starts.items()]


def jobs_of(
    plan: Plan, cells: Iterable[Cell], target: Target, runner: Runner, source: Target | None = None
) -> list[Job]:
    """What is to be done for cells of one target, the self-checks of attacks in another precision included.

    Args:
        plan: Which the cells are of: it says how many samples, and what a cell follows.
        cells: In an order in which each comes after those that it follows.
        target: Which the cells are of.
        runner: Says how many samples a self-check takes.
        source: What the attacks are made on; None is the target itself.
    """
    found, key = [], target.key
    for cell in cells:
        before = followed(plan, cell)
        if reference := self_check(plan, cell):
            first = min(plan.n, runner.batch_size)
            found.append(Job(plan, reference, first, key, follows=before))
        found.append(Job(plan, cell, plan.n, key, source.key if source else "", before))
    return found


def carry_out(
    jobs: Sequence[Job],
    targets: Iterable[Target],
    runner: Runner,
    store: Store,
    watch: Watch = unwatched,
    crew: Crew | None = None,
) -> None:
    """Do jobs until the store has all of them, whoever does them.

    Args:
        jobs: In an order in which each comes after those that it follows.
        targets: All that their tasks name.
        runner, store, watch, crew: As of `run`.

    Raises:
        UserError: if a target cannot be measured; or, when all others are done, if a crew could not do one.
    """
    agenda = Agenda(jobs, store, runner.dataset.labels, runner.cut)
    by_key = {target.key: target for target in targets}

    def keep(task: Task, outcome: Outcome) -> None:
        runner.on(by_key[task.target].dataset).keep_content(store, task, outcome)
        store.append(task.cell.key, task.start, outcome)

    with Station(runner, by_key, watch) as station:
        _do(agenda, crew or station, keep, watch)
    if agenda.given_up:
        more = f" (and {len(agenda.given_up) - 1} more)" if len(agenda.given_up) > 1 else ""
        raise UserError(f"{agenda.given_up[0]}{more}; all other results are saved")


def _do(agenda: Agenda, crew: Crew, keep: Keep, watch: Watch) -> None:
    elsewhere, alive = getattr(watch, "elsewhere", unwatched), getattr(watch, "alive", _nobody_is_told)
    while True:
        while crew.has_room and (task := agenda.next()):
            crew.give(task)
        while agenda.elsewhere:
            elsewhere(*agenda.elsewhere.pop())
        if crew.is_busy:
            done = crew.take()
            if crew.alive:
                alive(*crew.alive)
            _finish(agenda, *done, keep, watch)
        elif agenda.is_over:
            return
        else:
            time.sleep(IDLE)


def _finish(agenda: Agenda, task: Task, outcome: Outcome | str, keep: Keep, watch: Watch) -> None:
    if isinstance(outcome, str):
        agenda.give_up(task, outcome)
        return
    keep(task, outcome)
    agenda.finish(task)
    watch(task.cell, task.stop - task.start)

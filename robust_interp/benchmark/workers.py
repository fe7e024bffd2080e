"""Measuring in worker processes.

Each worker gets the request and resolves its model names once; a task names one of the targets. Only the main
process writes to the store.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from robust_interp import data
from robust_interp.benchmark.compiling import Architecture
from robust_interp.benchmark.measure import LocalWorker
from robust_interp.benchmark.request import Request
from robust_interp.benchmark.runner import Runner
from robust_interp.benchmark.scheduler import Task
from robust_interp.benchmark.settings import load_dataset, threads_of
from robust_interp.classifiers.resolve import ResolveOptions, resolve
from robust_interp.classifiers.selection import Selection
from robust_interp.classifiers.target import Target
from robust_interp.core.errors import UserError
from robust_interp.core.worker_pool import WorkerPool, Workers, cluster, log_in
from robust_interp.plugins import load_same, loaded
from robust_interp.store import Outcome
from robust_interp.store.cells import digest

Models = Sequence[str] | Mapping[str, nn.Module] | None
# of a selection: what to resolve, and the errors of the checkpoints that were left out, by their keys
Asked = tuple[Models, ResolveOptions, Mapping[str, UserError]]


@dataclass(frozen=True)
class ExpectedInputs:
    """Data and targets of the main process, which every worker must find, too.

    Attributes:
        fingerprint: Fingerprint of the data set.
        targets: The keys of the targets, by their ids from `marks`.
    """

    fingerprint: str
    targets: Mapping[str, str]


class TaskRunner:
    """Measures tasks in a worker.

    Args:
        request: The settings of the run, with the device and the batch size of a worker.
        asked: The models to resolve, for each selection of the main process.
        known: The data and the targets that the main process found.
        plugins: Plug-in files to load, with their hashes.
        compiles: The networks to compile for attacks.
    """

    def __init__(
        self,
        request: Request,
        asked: Sequence[Asked],
        known: ExpectedInputs,
        plugins: Mapping[Path, str],
        compiles: Container[Architecture],
    ) -> None:
        load_same(plugins)
        dataset = load_dataset(request)
        dataset.check_same(known.fingerprint)
        self._runner = Runner.for_request(request, dataset)
        self._runner.compiles = compiles
        found: dict[str, Target] = {}
        for models, options, failed in asked:
            targets = resolve(models, options, dataset, on_random=_ignored, tried=failed)
            found |= marks(targets, isinstance(models, Mapping))
        self._targets = {key: found[name] for name, key in known.targets.items() if name in found}
        self._local = LocalWorker(self._runner, self._targets)

    def __call__(self, task: Task) -> tuple[Outcome, list[str]]:
        """Measure a task; return its outcome and the notes of the runner."""
        if task.target not in self._targets or (task.source and task.source not in self._targets):
            label = task.cell.classifier.label
            raise UserError(
                f"a worker finds no {label} with the weights that it has here: all must see the same folders"
            )
        return self._local.measure(task), self._runner.notes


def marks(targets: Iterable[Target], are_objects: bool) -> dict[str, Target]:
    """Return targets by an id that is the same in every process.

    The id leaves out the hash of the logits, since another CPU or number of threads may round differently. A
    model object is identified by its name only: the object is sent to the worker, but its source code is not.
    """
    return {
        digest(
            [
                target.card.label,
                target.card.attacked_as,
                None if are_objects else _without_bits(target.card.identity),
            ]
        ): target
        for target in targets
    }


def _without_bits(identity: dict) -> dict:
    kept = {key: value for key, value in identity.items() if key != "behaviour"}
    if "ensemble" in kept:
        kept["ensemble"] = [_without_bits(member) for member in kept["ensemble"]]
    return kept


def name_of(task: Task) -> str:
    """Return the name of a task in the log."""
    cell = task.cell
    return f"{cell.classifier.label} {cell.perturbation.column}, images {task.start + 1} to {task.stop}"


class MeasurementPool:
    """A pool of worker processes that measure tasks.

    Attributes:
        workers: Number and resources of the workers.
        notes: Notes of the workers for the report, as the keys of a dict.
    """

    def __init__(self, workers: Workers, pool: WorkerPool[Task, tuple[Outcome, list[str]]]) -> None:
        self.workers, self._pool = workers, pool
        self.notes: dict[str, None] = {}

    @property
    def has_capacity(self) -> bool:
        return self._pool.has_capacity

    @property
    def is_busy(self) -> bool:
        return self._pool.is_busy

    @property
    def alive(self) -> tuple[int, int]:
        return self._pool.alive

    def wait(self) -> None:
        """Wait until a worker is ready."""
        self._pool.wait()

    def submit(self, task: Task) -> None:
        self._pool.submit(task)

    def next_result(self) -> tuple[Task, Outcome | str]:
        task, found = self._pool.next_result()
        if isinstance(found, str):
            return task, found
        outcome, notes = found
        self.notes |= dict.fromkeys(notes)
        return task, outcome


@contextmanager
def measurement_pool(
    workers: Workers,
    request: Request,
    selections: Sequence[Selection],
    runner: Runner,
    folder: Path | None,
    worth_compiling: Callable[[int], Container[Architecture]] = lambda count: (),
) -> Iterator[MeasurementPool]:
    """Start workers that measure these targets, and stop them at the end of the context.

    They load the plug-in files that this process has loaded.

    Args:
        workers: Number and place of the workers.
        request: The settings of the run.
        selections: The targets to measure; either all are made of objects, or all of names.
        runner: Runner of this process; the workers use its batch size.
        folder: Folder of the log of the workers; None writes no log.
        worth_compiling: Returns the networks to compile, for a number of workers that run on CPUs.

    Raises:
        UserError: if the workers cannot be started, or not on the requested device, or a model object cannot
            be sent to them.
    """
    workers = replace(workers, threads=threads_of(request))
    targets = [target for selection in selections for target in selection.targets]
    are_objects = any(isinstance(selection.models, Mapping) for selection in selections)
    keys = {name: target.key for name, target in marks(targets, are_objects).items()}
    known = ExpectedInputs(runner.dataset.fingerprint, keys)
    sent = [(_on_cpu(one.models), one.options, one.failed) for one in selections]
    with cluster(workers.on(request.device)) as filled:
        there = replace(
            request,
            modules={},
            decode_workers=0,
            device=filled.device,
            batch_size=runner.batch_size,
            data_dir=data.root_for_workers(request.data_dir),
        )
        compiles = () if filled.gpus else worth_compiling(filled.count or 1)
        arguments = (there, sent, known, loaded(), compiles)
        try:
            pool = WorkerPool(filled, TaskRunner, arguments, name_of, log_in(folder))
        except UserError as error:
            raise UserError(f"model objects {error}; name them instead, as package.module:factory") from error
        with pool:
            yield MeasurementPool(filled, pool)


def _on_cpu(models: Models) -> Any:
    """Copy modules to the CPU, since a worker may not have their device; names are returned unchanged."""
    if not isinstance(models, Mapping):
        return models
    found = {}
    for name, module in models.items():
        tensors = [*module.parameters(), *module.buffers()]
        is_here = all(tensor.device.type == "cpu" for tensor in tensors)
        found[name] = module if is_here else copy.deepcopy(module).cpu()
    return found


def _ignored(name: str, error: UserError) -> None:
    """Ignore a refused model: no task names it."""

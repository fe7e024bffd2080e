"""Measuring in worker processes: what a worker knows, and a crew that does the tasks of a plan.

A worker is given the request, and resolves the names in it once; a task names one of the targets. Only the
process that gives the tasks writes to the store.
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
from robust_interp.benchmark.agenda import Task
from robust_interp.benchmark.compiling import Architecture
from robust_interp.benchmark.measure import Station
from robust_interp.benchmark.request import Request
from robust_interp.benchmark.runner import Runner
from robust_interp.benchmark.settings import load_dataset
from robust_interp.classifiers.resolve import ResolveOptions, resolve
from robust_interp.classifiers.target import Target
from robust_interp.core.crew import Crew, Workers, cluster, log_in
from robust_interp.core.errors import UserError
from robust_interp.store import Outcome
from robust_interp.store.cells import digest

Asked = tuple[Sequence[str] | Mapping[str, nn.Module] | None, ResolveOptions]  # what is resolved, and how


@dataclass(frozen=True)
class Known:
    """What a worker must find as it is here.

    Attributes:
        fingerprint: Of the dataset.
        targets: The key of each target, by what a worker knows it by.
    """

    fingerprint: str
    targets: Mapping[str, str]


class Measuring:
    """Measures tasks in a worker.

    Args:
        request: With the device and the batches of a worker.
        asked: What was resolved, and with which options.
        known: What came of it.
        plugins: Files of plug-ins.
        compiles: The networks whose passes under attack are compiled.
    """

    def __init__(
        self,
        request: Request,
        asked: Sequence[Asked],
        known: Known,
        plugins: Sequence[str],
        compiles: Container[Architecture],
    ) -> None:
        if plugins:
            from robust_interp.plugins import load

            for file in plugins:
                load(file)
        dataset = load_dataset(request)
        if dataset.fingerprint != known.fingerprint:
            raise UserError(
                f"a worker finds other data under the name {dataset.name}: give the same --data-dir"
            )
        self._runner = Runner.for_request(request, dataset)
        self._runner.compiles = compiles
        found: dict[str, Target] = {}
        for models, options in asked:
            targets = resolve(models, options, dataset, on_random=_ignored)
            found |= marks(targets, isinstance(models, Mapping))
        self._targets = {key: found[name] for name, key in known.targets.items() if name in found}
        self._station = Station(self._runner, self._targets)

    def __call__(self, task: Task) -> tuple[Outcome, list[str]]:
        """Measure a task; its outcome, and what is to be told of how it was measured."""
        if task.target not in self._targets or (task.source and task.source not in self._targets):
            label = task.cell.classifier.label
            raise UserError(
                f"a worker finds no {label} with the weights that it has here: all must see the same folders"
            )
        return self._station.measure(task), self._runner.notes


def marks(targets: Iterable[Target], are_objects: bool) -> dict[str, Target]:
    """Targets by what they are known by in every process.

    The bits of its logits are left out, which another CPU or number of threads may round otherwise. An object
    is known by its name: it is sent from here, and its source code stays here.
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
    """What a log calls it."""
    cell = task.cell
    return f"{cell.classifier.label} {cell.perturbation.column}, images {task.start + 1} to {task.stop}"


class MeasuringCrew:
    """A crew that measures.

    Attributes:
        workers: How many there are, with what.
        notes: What is to be told of how it was measured.
    """

    def __init__(self, workers: Workers, crew: Crew[Task, tuple[Outcome, list[str]]]) -> None:
        self.workers, self._crew = workers, crew
        self.notes: dict[str, None] = {}

    @property
    def has_room(self) -> bool:
        return self._crew.has_room

    @property
    def is_busy(self) -> bool:
        return self._crew.is_busy

    @property
    def alive(self) -> tuple[int, int]:
        return self._crew.alive

    def wait(self) -> None:
        """Wait until a worker can measure."""
        self._crew.wait()

    def give(self, task: Task) -> None:
        self._crew.give(task)

    def take(self) -> tuple[Task, Outcome | str]:
        task, found = self._crew.take()
        if isinstance(found, str):
            return task, found
        outcome, notes = found
        self.notes |= dict.fromkeys(notes)
        return task, outcome


@contextmanager
def measuring(
    workers: Workers,
    request: Request,
    asked: Sequence[Asked],
    targets: Sequence[Target],
    runner: Runner,
    plugins: Sequence[str | Path] = (),
    folder: Path | None = None,
    worth_compiling: Callable[[int], Container[Architecture]] = lambda count: (),
) -> Iterator[MeasuringCrew]:
    """Workers that measure these targets, until the end.

    Args:
        workers: How many, and where.
        request: What is asked for.
        asked: What was resolved, and with which options; model objects alone, or names.
        targets: What came of it.
        runner: Of this process, whose batches they measure in.
        plugins: Files of plug-ins.
        folder: Where a log says which worker did what; None for none.
        worth_compiling: The networks that so many workers are to compile, if they compute on CPUs.

    Raises:
        UserError: if there can be no such workers, or a model that is an object cannot be sent to them.
    """
    if runner.device.type == "cpu" and request.device is not None and workers.gpus is None:
        workers = replace(workers, gpus=0)
    are_objects = any(isinstance(models, Mapping) for models, _ in asked)
    keys = {name: target.key for name, target in marks(targets, are_objects).items()}
    known = Known(runner.dataset.fingerprint, keys)
    sent = [(_on_cpu(models), options) for models, options in asked]
    with cluster(workers) as filled:
        device = "cuda" if filled.gpus else "cpu"
        there = replace(
            request,
            modules={},
            decode_workers=0,
            device=device,
            batch_size=runner.batch_size,
            data_dir=str(data.data_root(request.data_dir)),
        )
        files = [str(Path(file).resolve()) for file in plugins]
        compiles = () if filled.gpus else worth_compiling(filled.count or 1)
        arguments = (there, sent, known, files, compiles)
        try:
            crew = Crew(filled, Measuring, arguments, name_of, log_in(folder))
        except UserError as error:
            raise UserError(f"model objects {error}; name them instead, as package.module:factory") from error
        with crew:
            yield MeasuringCrew(filled, crew)


def _on_cpu(models: Sequence[str] | Mapping[str, nn.Module] | None) -> Any:
    """Names as they are; of a module that is elsewhere a copy: a worker may not have that device."""
    if not isinstance(models, Mapping):
        return models
    found = {}
    for name, module in models.items():
        tensors = [*module.parameters(), *module.buffers()]
        is_here = all(tensor.device.type == "cpu" for tensor in tensors)
        found[name] = module if is_here else copy.deepcopy(module).cpu()
    return found


def _ignored(name: str, error: UserError) -> None:
    """A model that is refused has no task."""

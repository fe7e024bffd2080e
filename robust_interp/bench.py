"""Plan the cells of a benchmark, run the ones that are missing, and score them all.

cells -> data -> victim -> perturbation -> per-sample predictions -> store -> leaderboard
"""

from __future__ import annotations

import copy
import os
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, fields, replace
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import nn

from robust_interp import attacks, corruptions, data, leaderboard, sanity, sources, subjects
from robust_interp.cells import CLEAN, Cell, Perturbation, Plan, digest
from robust_interp.core import threads
from robust_interp.core.threads import Threads
from robust_interp.errors import UserError
from robust_interp.store import (
    AGREE,
    CHUNK,
    DISAGREE,
    INHERITED,
    NOT_FINITE,
    ZERO_GRADIENT,
    Outcome,
    Store,
)
from robust_interp.subjects import Averaging, Subject
from robust_interp.victim import (
    CHECKED_ON,
    GRAPHS_KEPT,
    Ensemble,
    check_victim,
    on_its_device,
    resolve_device,
    undisturbed,
)

PROTOCOLS = ("final", "worst")
STRONG_N = 200
DEFAULT_SEEDS = (0, 1, 2)  # of the embedded default run
TRIED_ON = 64  # images whose gradient is taken to find the fastest number of threads
TIMED_ON, TIMED_FOR = 64, 0.5  # images at once, and at least so many seconds: one pass alone may be held up
LONGEST = 10  # batches' worth of images that one batch of still standing ones may be picked from


@dataclass(frozen=True)
class Request:
    """What to measure. None stands for the dataset's or the machine's default.

    Attributes:
        models: Zoo names, globs or 'all', ``timm:NAME``, ``package.module:factory``, checkpoint folders;
            None is 'all' with three seeds.
        modules: Models that came as objects, by name; measured instead of `models`.
        mean: What the images of models not from the zoo are normalised with, in [0, 1] pixels; None is
            what comes with the model, such as a timm model's ``pretrained_cfg``, and nothing for any other.
        std: Likewise.
        dataset: A registered name, or a dataset made by `data.from_arrays`.
        eps: Linf radii in [0, 1] pixels.
        seeds: Train seeds to take from the zoo (3 means 0, 1, 2); None is every one.
        ensembles: Whether the seeds of a model are also measured as one averaged classifier.
        ensemble: More ensembles, each of what its ``+`` joins among the measured models: names, full names of
            checkpoints, globs or 'all', such as ``in_resnet20+preact_resnet20``.
        ensemble_average: What the ensembles average: ``probabilities`` (None) or ``logits``.
        ensemble_attack: What attacks on the ensembles are made on, one ensemble each: ``white-box`` (None),
            ``member:0``, ``mean-gradient``.
        n: How many of the first samples, or 'all'.
        seed: Seed of every random draw of the measurement: attack starts and generated corruptions.
        checkpoint: A weights file for the one registered name, ``timm:NAME`` or factory in `models`.
        strong: Attack specs that, with the PGD of the row, make the columns ``strong_<eps>``; None leaves
            them out.
        strong_n: How many of the first samples those are measured on; None is STRONG_N, or `n` if that is
            less.
        threads: CPU threads of one operation; None is $OMP_NUM_THREADS, else the fastest number in a short
            test on the largest of the models.
    """

    models: tuple[str, ...] | None = None
    modules: Mapping[str, nn.Module] = field(default_factory=dict)
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    dataset: str | data.Dataset = "digits"
    attacks: str = "fgsm,ifgsm,pgd"
    eps: tuple[float, ...] | None = None
    corruptions: str = "noise"
    seeds: int | Sequence[int] | None = None
    ensembles: bool = True
    ensemble: Sequence[str] = ()
    ensemble_average: str | None = None
    ensemble_attack: Sequence[str] | None = None
    n: int | str | None = None
    protocol: str = "final"
    batch_size: int | None = None
    device: str | None = None
    seed: int = 0
    data_dir: str | None = None
    corruptions_dir: str | None = None
    zoo: str | None = None
    checkpoint: str | None = None
    strong: str | None = None
    strong_n: int | None = None
    threads: int | None = None


@dataclass(frozen=True)
class Report:
    """What a run measured: results.csv and the leaderboard as tables, and what a reader should be told.

    Attributes:
        notes: Lines that are no reason to worry.
    """

    results: pd.DataFrame
    leaderboard: pd.DataFrame
    warnings: list[str]
    notes: list[str] = field(default_factory=list)


class Estimate(NamedTuple):
    """How long a run takes; `is_bound` if it may be less, since samples that prove broken are left out."""

    seconds: float
    is_bound: bool


Watch = Callable[[Cell, int], None]  # called with a cell and how many of its samples were just finished


class Benchmark:
    """A request worked out: data read, names resolved, every cell known. Nothing is measured yet.

    Raises:
        UserError: for anything in the request that cannot be measured.
    """

    def __init__(self, request: Request) -> None:
        self.device = _device(request)
        self.batch_size = _batch_size(request.batch_size, self.device)
        if request.protocol not in PROTOCOLS:
            raise UserError(f"protocol must be one of {', '.join(PROTOCOLS)}, not {request.protocol!r}")
        self.protocol = request.protocol
        seed = _seed(request.seed)
        self.dataset = load_dataset(request)
        self.corruptor = corruptions.Corruptor(self.dataset, seed, _path(request.corruptions_dir))
        self.subjects = _subjects(request, self.dataset)
        perturbations = _perturbations(request, seed, self.dataset, self.corruptor)
        n = _sample_count(request.n, self.dataset)
        self.plan = Plan(self.dataset.name, n, request.protocol, tuple(self._cells(perturbations)))
        if request.strong_n is not None and request.strong is None:
            raise UserError("strong_n goes with strong alone")
        self._threads: Threads | None = None
        self._asked_threads = None if request.threads is None else threads.checked(request.threads)
        self.strong = self._strong(request, perturbations) if request.strong else None
        if self.strong:
            self.plan = replace(self.plan, strong=self.strong.plan)

    def _strong(self, request: Request, perturbations: list[Perturbation]) -> Benchmark:
        """The same models under the row's PGD and stronger attacks, on samples of their own."""
        eps, defaults = radii(request, self.dataset)
        rows = [
            perturbation
            for perturbation in perturbations
            if perturbation.name == leaderboard.RANKED_BY["final"]
        ]
        rows = rows or attacks.resolve(leaderboard.RANKED_BY["final"], eps, defaults, request.seed)
        stronger = attacks.resolve(request.strong, eps, defaults, request.seed)
        for perturbation in stronger:
            attacks.check_fits(perturbation, self.dataset.classes, self.dataset.images[0].size)
        n = min(STRONG_N, self.plan.n) if request.strong_n is None else request.strong_n
        benchmark = copy.copy(self)
        benchmark.protocol, benchmark.strong = "worst", None
        once = {perturbation.column: perturbation for perturbation in [CLEAN, *rows, *stronger]}
        cells = tuple(benchmark._cells(once.values()))
        benchmark.plan = Plan(self.dataset.name, _sample_count(n, self.dataset), "worst", cells)
        return benchmark

    def _cells(self, perturbations: Iterable[Perturbation]) -> Iterator[Cell]:
        for subject in self.subjects:
            cells = [self.cell(subject, perturbation) for perturbation in perturbations]
            yield from cells if self.protocol == "final" else _cheap_first(cells)

    def cell(self, subject: Subject, perturbation: Perturbation) -> Cell:
        environment = {"precision": "float32", "torch": str(torch.__version__)}
        if perturbation.kind == "attack":
            environment |= attacks.environment(perturbation)
        environment |= _plugin(perturbation)
        return Cell(subject.card, self.dataset.name, self.dataset.fingerprint, perturbation, environment)

    def missing(self, store: Store) -> list[tuple[Subject, list[Cell]]]:
        """The cells of each subject that the store does not have for all samples, nor the whole ones."""
        todo, met = [], set()
        for subject in self.subjects:
            cells = [cell for cell in self.plan.cells if cell.victim is subject.card]
            # An ensemble that is attacked in several ways has its other cells in common.
            cells = [
                cell
                for cell in cells
                if cell.key not in met
                and max(store.covered(cell.key), store.covered(cell.whole.key)) < self.plan.n
            ]
            met.update(cell.key for cell in cells)
            if cells:
                todo.append((subject, cells))
        return todo

    def run(self, store: Store, watch: Watch = lambda cell, samples: None) -> Report:
        """Measure what is missing, chunk by chunk, and score everything that was asked for."""
        with threads.used(self.choose_threads(store).count):
            for part in self.parts:
                part._run(store, watch)
        store.put_plan(self.plan)
        return self.report(store)

    @property
    def parts(self) -> list[Benchmark]:
        """This benchmark and, if there is one, that of the columns ``strong_<eps>``."""
        return [self, self.strong] if self.strong else [self]

    def _run(self, store: Store, watch: Watch) -> None:
        todo = self.missing(store)
        victims = [self.load(subject) for subject, _ in todo]  # all: a bad one fails before the hours
        store.put_labels(self.dataset.fingerprint, self.dataset.labels)
        for victim, (_, cells) in zip(victims, todo, strict=True):
            self.measure(victim, cells, store, watch)

    def choose_threads(self, store: Store) -> Threads:
        """How many CPU threads suit what is still to be measured: tried out on the largest of the models."""
        if self._threads is None:
            todo = [subject for part in self.parts for subject, _ in part.missing(store)]
            self._threads = self.choose_threads_for(todo)
        return self._threads

    def choose_threads_for(self, subjects: Sequence[Subject]) -> Threads:
        """How many CPU threads suit these, tried out on a gradient of the largest of them."""
        if self.device.type != "cpu" or not subjects:
            return threads.choose(self._asked_threads, None)
        victim = self.load(max(subjects, key=lambda subject: subject.card.params_m or 0))
        images = self._pixels(CLEAN, 0, min(TRIED_ON, self.batch_size, self.plan.n))
        with undisturbed(victim):
            return threads.choose(self._asked_threads, lambda: _take_gradient(victim, images))

    def measure(
        self,
        victim: nn.Module,
        cells: Iterable[Cell],
        store: Store,
        watch: Watch,
        attacked: nn.Module | None = None,
    ) -> None:
        """Measure what is missing of a victim's cells; `attacked` is what attacks see, by default itself."""
        if attacked is None:
            attacked = victim.attacked_as if isinstance(victim, Ensemble) else victim
        with undisturbed(victim):
            for cell in cells:
                self._measure(cell, victim, attacked, store, watch)

    def load(self, subject: Subject) -> nn.Module:
        """The subject's victim on this benchmark's device, checked on a few samples."""
        victim = subject.load().to(self.device)
        with undisturbed(victim):
            check_victim(
                victim, self._pixels(CLEAN, 0, min(CHECKED_ON, len(self.dataset))), self.dataset.classes
            )
        return victim

    def report(self, store: Store) -> Report:
        scored = leaderboard.scores(self.plan, store)
        return Report(
            leaderboard.results_frame(scored),
            leaderboard.entries_frame(scored),
            [
                *(note for subject in self.subjects for note in subject.notes),
                *self.corruptor.notes,
                *self._attack_warnings(),
                *sanity.findings(scored, self.dataset.classes),
            ],
            self._saved(store),
        )

    def _saved(self, store: Store) -> list[str]:
        """How much of the attacks' work was left out because a sample was broken already."""
        work = saved = 0
        for cell in (cell for cell in self.plan.cells if cell.skips):
            _, outcome = leaderboard.finished(cell, store, self.plan.n)
            work += cost(cell) * len(outcome)
            saved += cost(cell) * int((outcome.flags & INHERITED).astype(bool).sum())
        if not work:
            return []
        return [f"protocol worst: {saved / work:.0%} of the attacks' sample-steps were saved"]

    def _attack_warnings(self) -> list[str]:
        attacked = {cell.perturbation.column: cell.perturbation for cell in self.plan.cells}
        found = (
            warning(perturbation)
            for perturbation in attacked.values()
            for warning in (attacks.step_warning, attacks.pace_warning)
        )
        return [line for line in found if line]

    def work(self, store: Store) -> int:
        """Forward passes, over samples and members, that are still to be done, if no sample is left out."""
        return sum(
            cost(cell) * (part.plan.n - store.covered(cell.key)) for part, _, cell in self._remaining(store)
        )

    def estimate(self, store: Store) -> Estimate:
        """How long `run` would take, from timed passes of each model."""
        seconds, is_bound = 0.0, False
        for part, subject, cell in self._remaining(store):
            samples, is_known = part._left(cell, store)
            at_once = 1 if attacks.is_alone(cell.perturbation) else min(TIMED_ON, self.plan.n)
            per_pass = self._seconds_per_pass(subject, at_once) / subject.card.members
            seconds += per_pass * cost(cell) * samples
            if samples:
                is_bound |= not is_known or attacks.may_stop_early(cell.perturbation)
        return Estimate(seconds, is_bound)

    def _remaining(self, store: Store) -> Iterator[tuple[Benchmark, Subject, Cell]]:
        """What is still to be measured, and as part of which plan: this one, or the strong one."""
        for subject, cells in self.missing(store):
            for cell in cells:
                yield self, subject, cell
        if self.strong:
            shared = {cell.key for cell in self.plan.cells} if self.plan.n >= self.strong.plan.n else set()
            for remaining in self.strong._remaining(store):
                if shared.isdisjoint((remaining[2].key, remaining[2].whole.key)):
                    yield remaining

    def _left(self, cell: Cell, store: Store) -> tuple[int, bool]:
        """At how many samples a cell is still to be measured, and whether no more will be left out."""
        before = self._before(cell, store)
        standing = self._standing([outcome for outcome in before if outcome])
        start = store.covered(cell.key)
        left = self.plan.n - start if standing is None else int(standing[start:].sum())
        return left, None not in before

    @cache  # noqa: B019  one benchmark, one command
    def _seconds_per_pass(self, subject: Subject, at_once: int) -> float:
        victim, images = self.load(subject), self._pixels(CLEAN, 0, at_once)
        with undisturbed(victim), torch.no_grad():
            victim(images)
            started, passes = time.perf_counter(), 0
            while (seconds := time.perf_counter() - started) < TIMED_FOR:
                victim(images)[0, 0].item()
                passes += len(images)
        return seconds / passes

    def _before(self, cell: Cell, store: Store) -> list[Outcome | None]:
        """What is stored of the cells that this one follows; None for one that is not finished."""
        cells = [other for other in self.plan.cells if other.victim is cell.victim]
        return [
            leaderboard.finished(other, store, self.plan.n)[1]
            for other in cells
            if other.whole.key in cell.skips
        ]

    def _standing(self, before: list[Outcome]) -> np.ndarray | None:
        """Which samples none of these has broken, (n,) bool; None for all."""
        if not before:
            return None
        return np.logical_and.reduce([outcome.correct(self.dataset.labels) for outcome in before])

    def _measure(
        self, cell: Cell, victim: nn.Module, attacked: nn.Module, store: Store, watch: Watch
    ) -> None:
        attack = None
        if cell.perturbation.kind == "attack":
            attack = attacks.BoundAttack(cell.perturbation, attacked)
        standing = self._standing(self._before(cell, store))
        start = store.covered(cell.key)
        while start < self.plan.n:
            stop = self._stop(start, standing)
            began = time.perf_counter()
            if standing is None:
                found = self._batch(cell.perturbation, victim, attack, np.arange(start, stop))
            else:
                found = self._spread(cell.perturbation, victim, attack, start, standing[start:stop])
            seconds = time.perf_counter() - began
            store.append(cell.key, start, Outcome(*found, seconds, str(self.device)))
            watch(cell, stop - start)
            start = stop

    def _stop(self, start: int, standing: np.ndarray | None) -> int:
        """Where the batch from `start` on ends."""
        if standing is None:
            # At multiples of the batch size: a run that goes on cuts as one that never stopped.
            return min(self.plan.n, (start // self.batch_size + 1) * self.batch_size)
        left = np.flatnonzero(standing[start : start + LONGEST * self.batch_size])
        if len(left) > self.batch_size:
            return start + int(left[self.batch_size])
        return min(self.plan.n, start + LONGEST * self.batch_size)

    def _spread(
        self, perturbation: Perturbation, victim: nn.Module, attack, start: int, standing: np.ndarray
    ):
        """A batch of those samples from `start` on that still stand; the others are inherited as broken."""
        predictions = np.full(len(standing), -1, np.int16)
        flags = np.full(len(standing), INHERITED, np.uint8)
        deltas = np.zeros(len(standing), np.float32)
        if standing.any():
            ids = start + np.flatnonzero(standing)
            predictions[standing], flags[standing], deltas[standing] = self._batch(
                perturbation, victim, attack, ids
            )
        return predictions, flags, deltas

    def _batch(self, perturbation: Perturbation, victim: nn.Module, attack, ids: np.ndarray):
        first = int(ids[0])
        images = self._pixels(perturbation, first, int(ids[-1]) + 1)[ids - first]
        flags = np.zeros(len(ids), dtype=np.uint8)
        deltas = None
        if attack:
            labels = torch.from_numpy(self.dataset.labels[ids]).to(self.device)
            attacked = attack(images, labels, ids)
            images, deltas = attacked.images, attacked.deltas
            flags |= np.where(attacked.zero_gradient, ZERO_GRADIENT, 0).astype(np.uint8)
            flags |= np.where(attacked.not_finite, NOT_FINITE, 0).astype(np.uint8)
        with torch.no_grad():
            if isinstance(victim, Ensemble):
                logits, agreed = victim.with_agreement(images)
                flags |= np.where(agreed.cpu().numpy(), AGREE, DISAGREE).astype(np.uint8)
            else:
                logits = victim(images.clone())  # which a model may work on in place
        finite = torch.isfinite(logits).all(1)
        flags |= np.where(finite.cpu().numpy(), 0, NOT_FINITE).astype(np.uint8)
        predictions = torch.where(finite, logits.argmax(1), -1).cpu().numpy().astype(np.int16)
        return predictions, flags, deltas

    def _pixels(self, perturbation: Perturbation, start: int, stop: int) -> torch.Tensor:
        if perturbation.kind == "corruption":
            pixels = self.corruptor.pixels(perturbation, start, stop)
        else:
            pixels = self.dataset.pixels(start, stop)
        return torch.from_numpy(pixels).to(self.device)


def _take_gradient(model: nn.Module, images: torch.Tensor) -> None:
    pixels = images.clone().requires_grad_()
    logits = model(pixels.clone())
    if logits.requires_grad:
        torch.autograd.grad(logits.logsumexp(1).sum(), pixels, allow_unused=True)


def evaluate(
    models: str | Sequence[str] | nn.Module | Mapping[str, nn.Module] | None = None,
    dataset: str | tuple = "digits",
    *,
    out: str | os.PathLike | None = None,
    **options,
) -> pd.DataFrame:
    """Measure models and return results.csv as a table, one line a cell.

    Args:
        models: Zoo names, globs or 'all', ``timm:NAME``, ``package.module:factory``, checkpoint folders; a
            torch module, or several by name, that map images to logits.
        dataset: A registered name, or (images, labels) or (images, labels, number of classes): images are
            (N, C, H, W) in [0, 1] or uint8, labels (N,).
        out: Folder of the store and the CSV files; by default nothing is kept.
        options: The other fields of `Request`: mean, std, attacks, eps (in [0, 1] pixels, e.g.
            ``(2/255, 4/255)``), corruptions, seeds, ensembles, ensemble, ensemble_average,
            ensemble_attack, n, protocol, batch_size, device, seed, data_dir, corruptions_dir, zoo,
            checkpoint, strong, strong_n, threads.

    Raises:
        UserError: for anything that cannot be measured as asked.
    """
    for name in ("attacks", "corruptions"):
        if name in options and not isinstance(options[name], str):
            options[name] = ",".join(map(str, options[name] or ["none"]))
    if unexpected := options.keys() - {option.name for option in fields(Request)}:
        raise TypeError(f"evaluate() got an unexpected keyword argument {min(unexpected)!r}")
    request = Request(**_named(models), dataset=_given(dataset), **options)
    folder = Path(out) if out is not None else None
    with ExitStack() as stack:
        for module in request.modules.values():
            stack.enter_context(on_its_device(module))
        # Building a model draws random numbers.
        stack.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
        benchmark = Benchmark(request)
        report = benchmark.run(stack.enter_context(Store(folder)))
    if folder:
        leaderboard.write(folder, report.results, report.leaderboard)
    for line in report.warnings:
        warnings.warn(line, stacklevel=2)
    return report.results


def _named(models) -> dict:
    """The field of a Request that what was given as `models` belongs in."""
    if isinstance(models, nn.Module):
        return {"modules": {type(models).__name__: models}}
    if isinstance(models, Mapping) and all(
        isinstance(name, str) and isinstance(model, nn.Module) for name, model in models.items()
    ):
        if unfit := [name for name in models if not name.isprintable() or not name.strip()]:
            raise UserError(f"a model's name must be one line of text, not {unfit[0]!r}")
        return {"modules": models} if models else {"models": ()}
    names = (models,) if isinstance(models, str) else models
    if names is not None and not (isinstance(names, Sequence) and all(isinstance(n, str) for n in names)):
        raise UserError(
            f"models must be names, torch modules or a dict of modules, not {type(models).__name__}"
        )
    return {"models": names and tuple(names)}


def _given(dataset) -> str | data.Dataset:
    if isinstance(dataset, str):
        return dataset
    if not isinstance(dataset, tuple | list) or len(dataset) not in (2, 3):
        raise UserError("dataset must be a name, (images, labels) or (images, labels, classes)")
    return data.from_arrays(*dataset)


def cost(cell: Cell) -> int:
    """Forward passes of one member's worth of work that a sample of this cell takes."""
    members, view = cell.victim.members, cell.victim.attacked_as
    attacked = 1 if view.startswith("member:") else members
    again = attacks.gradients(cell.perturbation) * max(0, attacked - GRAPHS_KEPT)
    return (attacks.passes(cell.perturbation) - 1) * attacked + again + members  # these to predict


def _cheap_first(cells: list[Cell]) -> list[Cell]:
    """Protocol ``worst``: the cheap attacks first, each following those before it in the same ball.

    Only what still stands is attacked: what counts is whether a sample survives all of them.
    """
    (clean,) = (cell for cell in cells if cell.perturbation.kind == "clean")
    before: dict[tuple | None, tuple[str, ...]] = {}
    ordered = []
    for cell in sorted(cells, key=_place_by_cost):
        if cell.perturbation.kind == "attack":
            ball = cell.perturbation.ball
            skips = (clean.key, *before.get(ball, ()))
            if ball:
                before[ball] = (*before.get(ball, ()), cell.key)
            cell = replace(cell, skips=skips)
        ordered.append(cell)
    return ordered


def _place_by_cost(cell: Cell) -> tuple[bool, int]:
    """By passes and not by `cost`, so that single models and ensembles have one order."""
    return cell.perturbation.kind == "attack", attacks.passes(cell.perturbation)


def _device(request: Request) -> torch.device:
    """The one asked for, else the one that the modules are on, else the machine's best."""
    places = [_place(module) for module in request.modules.values()]
    return resolve_device(request.device or next((str(place) for place in places if place), None))


def _place(module: nn.Module) -> torch.device | None:
    """The device that a module is on; None if it has no parameters with data."""
    return next((parameter.device for parameter in module.parameters() if not parameter.is_meta), None)


def load_dataset(request: Request) -> data.Dataset:
    if isinstance(request.dataset, str):
        return data.load(request.dataset, "test", request.data_dir)
    return request.dataset


def _path(folder: str | None) -> Path | None:
    return Path(folder) if folder else None


def _batch_size(batch_size: int | None, device: torch.device) -> int:
    if batch_size is None:
        return 4 * CHUNK if device.type == "cuda" else CHUNK
    if not isinstance(batch_size, Integral) or isinstance(batch_size, bool) or batch_size < 1:
        raise UserError(f"batch size must be a whole number from 1, not {batch_size}")
    return int(batch_size)


def _seed(seed: int) -> int:
    if not isinstance(seed, Integral) or isinstance(seed, bool) or not 0 <= seed < 2**63:
        raise UserError(f"seed must be a whole number from 0 to 2**63 - 1, not {seed}")
    return int(seed)


def _sample_count(n: int | str | None, dataset: data.Dataset) -> int:
    if n is None and dataset.name in data.DATASETS:
        n = data.DATASETS[dataset.name].default_n
    if n in (None, "all"):
        return len(dataset)
    if not isinstance(n, Integral) or isinstance(n, bool) or not 1 <= n <= len(dataset):
        raise UserError(f"n must be 1 to {len(dataset)}, the size of the {dataset.name} test set, not {n}")
    return int(n)


def radii(request: Request, dataset: data.Dataset) -> tuple[list[float], Mapping]:
    """The radii in [0, 1] pixels, and the parameters of attacks that the dataset sets otherwise."""
    kind = data.DATASETS[dataset.name] if dataset.name in data.DATASETS else data.DATASETS["cifar10"]
    eps = tuple(value / 255 for value in kind.eps_255) if request.eps is None else request.eps
    if isinstance(eps, str) or not isinstance(eps, Sequence) or not eps:
        raise UserError(f"eps must be a list of radii in [0, 1] pixels such as (2/255, 4/255), not {eps!r}")
    for value in eps:
        attacks.check_eps(value)
    return sorted(set(eps)), kind.attack_defaults


def _perturbations(request: Request, seed: int, dataset: data.Dataset, corruptor) -> list[Perturbation]:
    eps, defaults = radii(request, dataset)
    attacked = attacks.resolve(request.attacks, eps, defaults, seed)
    for perturbation in attacked:
        attacks.check_fits(perturbation, dataset.classes, dataset.images[0].size)
    return [CLEAN, *corruptions.resolve(request.corruptions, corruptor), *attacked]


def _plugin(perturbation: Perturbation) -> dict[str, str]:
    """The code of the plug-in that an attack or a corruption is of, if it is of one."""
    registries = {"attack": attacks.ATTACKS, "corruption": corruptions.CORRUPTIONS}
    registry = registries.get(perturbation.kind)
    return registry.code(perturbation.name) if registry else {}


def _subjects(request: Request, dataset: data.Dataset) -> list[Subject]:
    averaging = _averaging(request)
    found = _found(request, dataset, averaging)
    for named in _listed(request.ensemble):
        found += subjects.joined(named, found, averaging, dataset.name)
    chosen = request.ensemble_average or request.ensemble_attack
    own = request.modules and not request.ensemble  # an Ensemble that is an object says it itself
    if chosen and (own or all(subject.card.members == 1 for subject in found)):
        raise UserError("ensemble_average and ensemble_attack need an ensemble of models named here")
    return found


def _found(request: Request, dataset: data.Dataset, averaging: Averaging) -> list[Subject]:
    if request.models is not None and not request.models:
        raise UserError("no model named; say all for every checkpoint of the dataset")
    if request.modules:
        _refuse_idle(request, ("zoo", "checkpoint", "seeds"), "models that are objects")
        return subjects.from_modules(request.modules, request.mean, request.std, dataset)
    joined = tuple(name for named in _listed(request.ensemble) for name in subjects.member_names(named))
    named = request.models or joined
    names = sources.with_weights(named) if request.checkpoint else named or ("all",)
    of_the_zoo = [name for name in names if sources.is_of_the_zoo(name)]
    others = [name for name in names if name not in of_the_zoo]
    if not of_the_zoo:
        _refuse_idle(request, ("seeds",), "models that are not from the zoo")
    elif not others:
        _refuse_idle(request, ("mean", "std"), "models from the zoo")
    context = sources.Context(dataset, _path(request.checkpoint), request.mean, request.std)
    found = _from_zoo(of_the_zoo, request, dataset, averaging) if of_the_zoo else []
    found += sources.find(others, context)
    once: dict[str, Subject] = {}
    for subject in found:  # a folder that is named may be one of the zoo's, too
        once.setdefault(digest([subject.card.label, subject.card.identity]), subject)
    return list(once.values())


def _refuse_idle(request: Request, options: Sequence[str], what: str) -> None:
    """Refuse an option that would be ignored."""
    if given := [name for name in options if getattr(request, name) is not None]:
        raise UserError(f"{given[0]} does not go with {what}")


def _from_zoo(
    names: Sequence[str], request: Request, dataset: data.Dataset, averaging: Averaging
) -> list[Subject]:
    by_default = request.models is None and not request.ensemble and request.seeds is None
    seeds = DEFAULT_SEEDS if by_default else request.seeds
    seeds = range(seeds) if isinstance(seeds, int) else seeds
    if seeds is not None and not len(seeds):
        raise UserError("no train seed named: 3 means 0, 1, 2; None every one")
    made = averaging if request.ensembles else None
    return subjects.from_zoo(names, request.zoo, seeds, made, dataset.name)


def _averaging(request: Request) -> Averaging:
    default = Averaging()
    views = default.attacks if request.ensemble_attack is None else _listed(request.ensemble_attack)
    if not views:
        raise UserError("ensemble_attack names nothing; white-box is the ensemble itself")
    return Averaging(request.ensemble_average or default.average, views)


def _listed(names: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([names] if isinstance(names, str) else names))

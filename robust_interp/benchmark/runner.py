"""Plan the cells of a benchmark, run the ones that are missing, and score them all.

cells -> data -> classifier -> perturbation -> per-sample predictions -> store -> leaderboard
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from numbers import Integral
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import nn

from robust_interp import attacks, corruptions, data
from robust_interp.benchmark.cost import cheap_first, cost
from robust_interp.benchmark.request import DEFAULT_SEEDS, PROTOCOLS, STRONG_N, Request
from robust_interp.classifiers import resolve, targets
from robust_interp.classifiers.ensemble import Ensemble
from robust_interp.classifiers.isolation import undisturbed
from robust_interp.classifiers.targets import Averaging, Target
from robust_interp.classifiers.validation import CHECKED_ON, check_classifier
from robust_interp.core import threads
from robust_interp.core.devices import resolve_device
from robust_interp.core.errors import UserError
from robust_interp.core.threads import Threads
from robust_interp.results import leaderboard
from robust_interp.results.scores import results_frame, scores
from robust_interp.results.warnings import findings
from robust_interp.store import AGREE, CHUNK, DISAGREE, INHERITED, NOT_FINITE, ZERO_GRADIENT, Outcome, Store
from robust_interp.store.cells import CLEAN, Cell, Perturbation, Plan, digest
from robust_interp.store.finished import finished

TRIED_ON = 64  # images whose gradient is taken to find the fastest number of threads

TIMED_ON, TIMED_FOR = 64, 0.5  # images at once, and at least so many seconds: one pass alone may be held up

LONGEST = 10  # batches' worth of images that one batch of still standing ones may be picked from


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
        self.targets = _targets(request, self.dataset)
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
        for target in self.targets:
            cells = [self.cell(target, perturbation) for perturbation in perturbations]
            yield from cells if self.protocol == "final" else cheap_first(cells)

    def cell(self, target: Target, perturbation: Perturbation) -> Cell:
        environment = {"precision": "float32", "torch": str(torch.__version__)}
        if perturbation.kind == "attack":
            environment |= attacks.environment(perturbation)
        environment |= _plugin(perturbation)
        return Cell(target.card, self.dataset.name, self.dataset.fingerprint, perturbation, environment)

    def missing(self, store: Store) -> list[tuple[Target, list[Cell]]]:
        """The cells of each target that the store does not have for all samples, nor the whole ones."""
        todo, met = [], set()
        for target in self.targets:
            cells = [cell for cell in self.plan.cells if cell.classifier is target.card]
            # An ensemble that is attacked in several ways has its other cells in common.
            cells = [
                cell
                for cell in cells
                if cell.key not in met
                and max(store.covered(cell.key), store.covered(cell.whole.key)) < self.plan.n
            ]
            met.update(cell.key for cell in cells)
            if cells:
                todo.append((target, cells))
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
        classifiers = [self.load(target) for target, _ in todo]  # all: a bad one fails before the hours
        store.put_labels(self.dataset.fingerprint, self.dataset.labels)
        for classifier, (_, cells) in zip(classifiers, todo, strict=True):
            self.measure(classifier, cells, store, watch)

    def choose_threads(self, store: Store) -> Threads:
        """How many CPU threads suit what is still to be measured: tried out on the largest of the models."""
        if self._threads is None:
            todo = [target for part in self.parts for target, _ in part.missing(store)]
            self._threads = self.choose_threads_for(todo)
        return self._threads

    def choose_threads_for(self, targets: Sequence[Target]) -> Threads:
        """How many CPU threads suit these, tried out on a gradient of the largest of them."""
        if self.device.type != "cpu" or not targets:
            return threads.choose(self._asked_threads, None)
        classifier = self.load(max(targets, key=lambda target: target.card.params_m or 0))
        images = self._pixels(CLEAN, 0, min(TRIED_ON, self.batch_size, self.plan.n))
        with undisturbed(classifier):
            return threads.choose(self._asked_threads, lambda: _take_gradient(classifier, images))

    def measure(
        self,
        classifier: nn.Module,
        cells: Iterable[Cell],
        store: Store,
        watch: Watch,
        attacked: nn.Module | None = None,
    ) -> None:
        """Measure what is missing of these cells; `attacked` is what attacks see, by default `classifier`."""
        if attacked is None:
            attacked = classifier.attacked_as if isinstance(classifier, Ensemble) else classifier
        with undisturbed(classifier):
            for cell in cells:
                self._measure(cell, classifier, attacked, store, watch)

    def load(self, target: Target) -> nn.Module:
        """The target's classifier on this benchmark's device, checked on a few samples."""
        classifier = target.load().to(self.device)
        with undisturbed(classifier):
            check_classifier(
                classifier, self._pixels(CLEAN, 0, min(CHECKED_ON, len(self.dataset))), self.dataset.classes
            )
        return classifier

    def report(self, store: Store) -> Report:
        scored = scores(self.plan, store)
        return Report(
            results_frame(scored),
            leaderboard.entries_frame(scored),
            [
                *(note for target in self.targets for note in target.notes),
                *self.corruptor.notes,
                *self._attack_warnings(),
                *findings(scored, self.dataset.classes),
            ],
            self._saved(store),
        )

    def _saved(self, store: Store) -> list[str]:
        """How much of the attacks' work was left out because a sample was broken already."""
        work = saved = 0
        for cell in (cell for cell in self.plan.cells if cell.skips):
            _, outcome = finished(cell, store, self.plan.n)
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

    def work(self, store: Store) -> list[tuple[Cell, int]]:
        """The cells that are still to be measured, and at how many samples, if none is left out."""
        return [(cell, part.plan.n - store.covered(cell.key)) for part, _, cell in self._remaining(store)]

    def estimate(self, store: Store) -> Estimate:
        """How long `run` would take, from timed passes of each model."""
        seconds, is_bound = 0.0, False
        for part, target, cell in self._remaining(store):
            samples, is_known = part._left(cell, store)
            at_once = 1 if attacks.is_alone(cell.perturbation) else min(TIMED_ON, self.plan.n)
            per_pass = self._seconds_per_pass(target, at_once) / target.card.members
            seconds += per_pass * cost(cell) * samples
            if samples:
                is_bound |= not is_known or attacks.may_stop_early(cell.perturbation)
        return Estimate(seconds, is_bound)

    def _remaining(self, store: Store) -> Iterator[tuple[Benchmark, Target, Cell]]:
        """What is still to be measured, and as part of which plan: this one, or the strong one."""
        for target, cells in self.missing(store):
            for cell in cells:
                yield self, target, cell
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
    def _seconds_per_pass(self, target: Target, at_once: int) -> float:
        classifier, images = self.load(target), self._pixels(CLEAN, 0, at_once)
        with undisturbed(classifier), torch.no_grad():
            classifier(images)
            started, passes = time.perf_counter(), 0
            while (seconds := time.perf_counter() - started) < TIMED_FOR:
                classifier(images)[0, 0].item()
                passes += len(images)
        return seconds / passes

    def _before(self, cell: Cell, store: Store) -> list[Outcome | None]:
        """What is stored of the cells that this one follows; None for one that is not finished."""
        cells = [other for other in self.plan.cells if other.classifier is cell.classifier]
        return [finished(other, store, self.plan.n)[1] for other in cells if other.whole.key in cell.skips]

    def _standing(self, before: list[Outcome]) -> np.ndarray | None:
        """Which samples none of these has broken, (n,) bool; None for all."""
        if not before:
            return None
        return np.logical_and.reduce([outcome.correct(self.dataset.labels) for outcome in before])

    def _measure(
        self, cell: Cell, classifier: nn.Module, attacked: nn.Module, store: Store, watch: Watch
    ) -> None:
        attack = None
        if cell.perturbation.kind == "attack":
            attack = attacks.AttackRunner(cell.perturbation, attacked)
        standing = self._standing(self._before(cell, store))
        start = store.covered(cell.key)
        while start < self.plan.n:
            stop = self._stop(start, standing)
            began = time.perf_counter()
            if standing is None:
                found = self._batch(cell.perturbation, classifier, attack, np.arange(start, stop))
            else:
                found = self._spread(cell.perturbation, classifier, attack, start, standing[start:stop])
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
        self, perturbation: Perturbation, classifier: nn.Module, attack, start: int, standing: np.ndarray
    ):
        """A batch of those samples from `start` on that still stand; the others are inherited as broken."""
        predictions = np.full(len(standing), -1, np.int16)
        flags = np.full(len(standing), INHERITED, np.uint8)
        deltas = np.zeros(len(standing), np.float32)
        if standing.any():
            ids = start + np.flatnonzero(standing)
            predictions[standing], flags[standing], deltas[standing] = self._batch(
                perturbation, classifier, attack, ids
            )
        return predictions, flags, deltas

    def _batch(self, perturbation: Perturbation, classifier: nn.Module, attack, ids: np.ndarray):
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
            if isinstance(classifier, Ensemble):
                logits, agreed = classifier.with_agreement(images)
                flags |= np.where(agreed.cpu().numpy(), AGREE, DISAGREE).astype(np.uint8)
            else:
                logits = classifier(images.clone())  # which a model may work on in place
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


def _targets(request: Request, dataset: data.Dataset) -> list[Target]:
    averaging = _averaging(request)
    found = _found(request, dataset, averaging)
    for named in _listed(request.ensemble):
        found += targets.joined(named, found, averaging, dataset.name)
    chosen = request.ensemble_average or request.ensemble_attack
    own = request.modules and not request.ensemble  # an Ensemble that is an object says it itself
    if chosen and (own or all(target.card.members == 1 for target in found)):
        raise UserError("ensemble_average and ensemble_attack need an ensemble of models named here")
    return found


def _found(request: Request, dataset: data.Dataset, averaging: Averaging) -> list[Target]:
    if request.models is not None and not request.models:
        raise UserError("no model named; say all for every checkpoint of the dataset")
    if request.modules:
        _refuse_idle(request, ("zoo", "checkpoint", "seeds"), "models that are objects")
        return targets.from_modules(request.modules, request.mean, request.std, dataset)
    joined = tuple(name for named in _listed(request.ensemble) for name in targets.member_names(named))
    named = request.models or joined
    names = resolve.with_weights(named) if request.checkpoint else named or ("all",)
    of_the_zoo = [name for name in names if resolve.is_of_the_zoo(name)]
    others = [name for name in names if name not in of_the_zoo]
    if not of_the_zoo:
        _refuse_idle(request, ("seeds",), "models that are not from the zoo")
    elif not others:
        _refuse_idle(request, ("mean", "std"), "models from the zoo")
    context = resolve.Context(dataset, _path(request.checkpoint), request.mean, request.std)
    found = _from_zoo(of_the_zoo, request, dataset, averaging) if of_the_zoo else []
    found += resolve.find(others, context)
    once: dict[str, Target] = {}
    for target in found:  # a folder that is named may be one of the zoo's, too
        once.setdefault(digest([target.card.label, target.card.identity]), target)
    return list(once.values())


def _refuse_idle(request: Request, options: Sequence[str], what: str) -> None:
    """Refuse an option that would be ignored."""
    if given := [name for name in options if getattr(request, name) is not None]:
        raise UserError(f"{given[0]} does not go with {what}")


def _from_zoo(
    names: Sequence[str], request: Request, dataset: data.Dataset, averaging: Averaging
) -> list[Target]:
    by_default = request.models is None and not request.ensemble and request.seeds is None
    seeds = DEFAULT_SEEDS if by_default else request.seeds
    seeds = range(seeds) if isinstance(seeds, int) else seeds
    if seeds is not None and not len(seeds):
        raise UserError("no train seed named: 3 means 0, 1, 2; None every one")
    made = averaging if request.ensembles else None
    return targets.from_zoo(names, request.zoo, seeds, made, dataset.name)


def _averaging(request: Request) -> Averaging:
    default = Averaging()
    views = default.attacks if request.ensemble_attack is None else _listed(request.ensemble_attack)
    if not views:
        raise UserError("ensemble_attack names nothing; white-box is the ensemble itself")
    return Averaging(request.ensemble_average or default.average, views)


def _listed(names: str | Sequence[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys([names] if isinstance(names, str) else names))

"""Measures the cells of a plan that the store lacks.

data -> classifier -> perturbation -> per-sample predictions -> store
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import nn

from robust_interp import attacks, data
from robust_interp.attacks.precision import check as check_precision
from robust_interp.benchmark.compiling import Architecture, architecture, can_be_compiled, key, passes_of
from robust_interp.benchmark.pending import by_target, followed, missing, self_check, still_standing
from robust_interp.benchmark.request import Request
from robust_interp.benchmark.settings import checked_batch_size, corruptor_of, device_of
from robust_interp.classifiers.engine import (
    COMPILED,
    CannotCompile,
    Pass,
    compiled,
    with_folded_norms,
)
from robust_interp.classifiers.ensemble import Ensemble
from robust_interp.classifiers.isolation import undisturbed
from robust_interp.classifiers.target import Target
from robust_interp.core.compiler import learn
from robust_interp.core.errors import UserError
from robust_interp.core.memory import give_back, is_out_of_memory
from robust_interp.corruptions import Corruptor
from robust_interp.store import AGREE, DISAGREE, INHERITED, NOT_FINITE, ZERO_GRADIENT, Outcome, Store
from robust_interp.store.cells import CLEAN, Cell, Perturbation, Plan
from robust_interp.store.finished import outcome_of

AT_RISK = {"cpu": 1e5, "cuda": 1e7}  # passes of one image that a kill may cost, if one batch takes fewer
WORTH_A_COPY = 2e4  # passes of one image, from which on BatchNorm is folded for them
COMPARED_ON = 16  # images, on which a copy must do what the model does
NEW = 1.0  # seconds: what compiles faster was compiled before in this process

R = TypeVar("R")

Watch = Callable[[Cell, int], None]  # called with a cell and how many of its samples were just finished


def unwatched(cell: Cell, samples: int) -> None:
    """Nobody is told."""


class Batch(NamedTuple):
    """What was found of a batch of samples, as an `Outcome` holds it."""

    predictions: np.ndarray
    flags: np.ndarray
    deltas: np.ndarray | None


class Part(NamedTuple):
    """The same of a part of them, by their ids."""

    ids: np.ndarray
    predictions: np.ndarray
    flags: np.ndarray
    deltas: np.ndarray | None


class Attacked(NamedTuple):
    """What attacks see: the same function as the classifier, but for rounding.

    Attributes:
        plain: Runs as Python code.
        compiled: Runs compiled in passes of some kinds; None where nothing is compiled.
        passes: These kinds.
    """

    plain: nn.Module
    compiled: nn.Module | None = None
    passes: frozenset[Pass] = frozenset()

    def engine(self, cell: Cell) -> str:
        """What a cell is marked with in the store, where it ran otherwise than as Python code."""
        return COMPILED if self.compiled and self.passes & passes_of(cell.perturbation) else ""

    def by(self, cell: Cell) -> nn.Module:
        """What the attack of a cell sees."""
        return self.compiled if self.compiled and can_be_compiled(cell) else self.plain


class Runner:
    """Measures the cells of any plan of one dataset, on one device.

    Attributes:
        compiles: The networks whose passes under attack are compiled; None for all.
        backend: Of torch.compile.

    Args:
        dataset: Whose images are classified.
        corruptor: Where the corrupted images come from.
        device: Where it is measured.
        batch_size: Samples at once.
    """

    def __init__(
        self, dataset: data.Dataset, corruptor: Corruptor, device: torch.device, batch_size: int
    ) -> None:
        self.dataset, self.corruptor = dataset, corruptor
        self.device, self.batch_size = device, batch_size
        self.compiles: Container[Architecture] | None = frozenset()
        self.backend: str | Callable = "inductor"
        self._at_once = batch_size
        self._uncompiled: dict[str, dict[str, None]] = {}  # names by the reason

    @property
    def notes(self) -> list[str]:
        """What a reader must be told of how it was measured.

        A line if memory did not do for the batches, and one for what could not be compiled.
        """
        lines = [
            f"{', '.join(names)}: not compiled, so attacks are slower: {reason}"
            for reason, names in self._uncompiled.items()
        ]
        if self._at_once == self.batch_size:
            return lines
        return [
            *lines,
            f"{self.device} ran out of memory with batches of {self.batch_size}: at most {self._at_once} "
            f"images were taken at once; --batch-size {self._at_once} starts there",
        ]

    def in_parts(self, ids: np.ndarray, work: Callable[[np.ndarray], R], batches: int = 1) -> list[R]:
        """What `work` returns for each part of some samples, as large as there is memory for.

        Args:
            ids: Of the samples, in any number.
            work: Is given the ids of a part.
            batches: How many batches a part is made of, which `work` takes one after the other.

        Raises:
            UserError: if there is not even memory for one image.
        """
        found: list[R] = []
        at = 0
        while at < len(ids):
            part = ids[at : at + batches * self._at_once]
            try:
                found.append(work(part))
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if min(len(part), self._at_once) == 1:
                    raise UserError(
                        f"{self.device} has no memory for one image at a time, which is --batch-size 1; "
                        "finished work is saved"
                    ) from error
            else:
                at += len(part)
                continue
            give_back()
            self._at_once = max(1, min(len(part), self._at_once) // 2)
        return found

    @classmethod
    def for_request(cls, request: Request, dataset: data.Dataset) -> Runner:
        """One with the device, batch size and corruptions that a request asks for.

        Args:
            request: What is asked for; None in it stands for the machine's best.
            dataset: The one that it names.

        Raises:
            UserError: if one of them cannot be.
        """
        device = device_of(request)
        batch_size = checked_batch_size(request.batch_size, device)
        return cls(dataset, corruptor_of(request, dataset), device, batch_size)

    def run(self, plan: Plan, targets: Sequence[Target], store: Store, watch: Watch) -> None:
        """Measure what is missing of a plan of these targets, chunk by chunk.

        Args:
            plan: Whose own cells are measured, not those of its strong plan.
            targets: Which the cells are of.
            store: What keeps them.
            watch: Told of each batch that was finished.

        Raises:
            UserError: if a target cannot be measured, before any is.
        """
        cells = missing(plan, store)
        self.check(cells)
        todo = by_target(cells, targets)
        classifiers = [self.load(target) for target, _ in todo]  # all: a bad one fails before the hours
        store.put_labels(self.dataset.fingerprint, self.dataset.labels)
        for classifier, (_, cells) in zip(classifiers, todo, strict=True):
            self.measure(plan, cells, classifier, store, watch)

    def check(self, cells: Iterable[Cell]) -> None:
        """Refuse cells that are in a precision that the device is no good at; a short test may tell.

        Raises:
            UserError: if there is one.
        """
        for precision in dict.fromkeys(cell.perturbation.precision for cell in cells):
            check_precision(precision, self.device)

    def load(self, target: Target) -> nn.Module:
        """The target's classifier on this runner's device.

        Raises:
            UserError: if it cannot be measured there.
        """
        return target.load(self.device)

    def measure(
        self,
        plan: Plan,
        cells: Iterable[Cell],
        classifier: nn.Module,
        store: Store,
        watch: Watch,
        attacked: nn.Module | None = None,
    ) -> None:
        """Measure what is missing of these cells of a plan.

        Args:
            plan: Which the cells are of: it says how many samples, and what a cell follows.
            cells: In an order in which each comes after those that it follows.
            classifier: Which the cells are of.
            store: What keeps them.
            watch: Told of each batch that was finished.
            attacked: What attacks see; by default what the classifier says, itself.

        Raises:
            LookupError: if a cell that one of them follows is not finished.
        """
        if attacked is None:
            attacked = classifier.attacked_as if isinstance(classifier, Ensemble) else classifier
        cells = list(cells)
        with undisturbed(classifier):
            seen = self._faster(cells, plan.n, attacked, store, watch)
            for cell in cells:
                before = [outcome_of(other, store, plan.n) for other in followed(plan, cell)]
                standing = still_standing(before, self.dataset.labels)
                if reference := self_check(plan, cell):
                    first = min(plan.n, self.batch_size)
                    there = None if standing is None else standing[:first]
                    if store.covered(reference.whole.key) < first:
                        self._measure(reference, first, there, classifier, seen, store, watch)
                self._measure(cell, plan.n, standing, classifier, seen, store, watch)

    def _faster(
        self, cells: Sequence[Cell], n: int, attacked: nn.Module, store: Store, watch: Watch
    ) -> Attacked:
        """What attacks see of a classifier, as fast as their work is worth."""
        made = [cell for cell in cells if cell.perturbation.kind == "attack"]
        compilable = [cell for cell in made if can_be_compiled(cell)]
        compiles = compilable and (
            self.compiles is None or architecture(compilable[0].classifier) in self.compiles
        )
        work = sum(attacks.passes(cell.perturbation) * (n - store.covered(cell.key)) for cell in made)
        if not compiles and work < WORTH_A_COPY:
            return Attacked(attacked)
        plain = with_folded_norms(attacked, self.pixels(CLEAN, 0, min(COMPARED_ON, n)))
        if not compiles:
            return Attacked(plain)
        passes = frozenset[Pass]().union(*(passes_of(cell.perturbation) for cell in compilable))
        return self._compiled(compilable[0], plain, passes, min(n, self._at_once), watch)

    def _compiled(
        self, cell: Cell, plain: nn.Module, passes: frozenset[Pass], size: int, watch: Watch
    ) -> Attacked:
        """The same compiled for batches of a size; as it is, and noted, where that is not possible."""
        card, images = cell.classifier, self.pixels(CLEAN, 0, size)
        with _compiling(watch, cell):
            try:
                made, seen = compiled(plain, images, sorted(passes), self.backend)
            except CannotCompile as error:
                self._uncompiled.setdefault(str(error), {})[card.model] = None
                return Attacked(plain)
        if seen.seconds > NEW:
            learn(key(card, passes, images), seen)
        if seen.gain < 1 and self.compiles is not None:  # nobody insists on it
            return Attacked(plain)
        return Attacked(plain, made, passes)

    def pixels(self, perturbation: Perturbation, start: int, stop: int) -> torch.Tensor:
        """Images (N, C, H, W) in [0, 1] on this runner's device, corrupted if the perturbation says so.

        Args:
            perturbation: Any; an attack is not made here.
            start: The first image, counted from 0.
            stop: The first one that is left out.
        """
        if perturbation.kind == "corruption":
            pixels = self.corruptor.pixels(perturbation, start, stop)
        else:
            pixels = self.dataset.pixels(start, stop)
        return torch.from_numpy(pixels).to(self.device)

    def _measure(
        self,
        cell: Cell,
        n: int,
        standing: np.ndarray | None,
        classifier: nn.Module,
        seen: Attacked,
        store: Store,
        watch: Watch,
    ) -> None:
        attack = None
        if cell.perturbation.kind == "attack":
            attack = attacks.AttackRunner(cell.perturbation, seen.by(cell), _step_teller(cell, watch))
        device = f"{self.device} {seen.engine(cell)}".strip()
        start = store.covered(cell.key)
        while start < n:
            stop = self._stop(start, n, standing, self._batches(cell.perturbation) * self.batch_size)
            began = time.perf_counter()
            there = np.ones(stop - start, bool) if standing is None else standing[start:stop]
            found = self._chunk(cell.perturbation, classifier, attack, start, there)
            seconds = time.perf_counter() - began
            store.append(cell.key, start, Outcome(*found, seconds=seconds, device=device))
            watch(cell, stop - start)
            start = stop

    def _batches(self, perturbation: Perturbation) -> int:
        """How many batches are taken as one: several where some of their samples are done before others."""
        if attacks.is_alone(perturbation) or not attacks.may_stop_early(perturbation):
            return 1
        lost = self.batch_size * attacks.passes(perturbation)
        return max(1, int(AT_RISK.get(self.device.type, AT_RISK["cpu"]) // lost))

    @staticmethod
    def _stop(start: int, n: int, standing: np.ndarray | None, size: int) -> int:
        """Where what is taken from `start` on ends, which is of `size` samples that still stand."""
        if standing is None:
            # At multiples of the size: a run that goes on cuts as one that never stopped.
            return min(n, (start // size + 1) * size)
        left = np.flatnonzero(standing[start:])
        return start + int(left[size]) if len(left) > size else n

    def _chunk(
        self,
        perturbation: Perturbation,
        classifier: nn.Module,
        attack: attacks.AttackRunner | None,
        start: int,
        standing: np.ndarray,
    ) -> Batch:
        """Those samples from `start` on that still stand; the others are inherited as broken."""
        predictions = np.full(len(standing), -1, np.int16)
        flags = np.full(len(standing), INHERITED, np.uint8)
        deltas = np.zeros(len(standing), np.float32) if attack else None
        ids = start + np.flatnonzero(standing)
        parts = self.in_parts(
            ids,
            lambda part: self._part(perturbation, classifier, attack, part),
            self._batches(perturbation),
        )
        for part in parts:
            at = part.ids - start
            predictions[at], flags[at] = part.predictions, part.flags
            if deltas is not None:
                deltas[at] = part.deltas
        return Batch(predictions, flags, deltas)

    def _part(
        self,
        perturbation: Perturbation,
        classifier: nn.Module,
        attack: attacks.AttackRunner | None,
        ids: np.ndarray,
    ) -> Part:
        images = self._pixels_of(perturbation, ids)
        flags = np.zeros(len(ids), dtype=np.uint8)
        deltas = None
        if attack:
            labels = torch.from_numpy(self.dataset.labels[ids]).to(self.device)
            attacked = attack(images, labels, ids, self._at_once)
            images, deltas = attacked.images, attacked.deltas
            flags |= np.where(attacked.zero_gradient, ZERO_GRADIENT, 0).astype(np.uint8)
            flags |= np.where(attacked.not_finite, NOT_FINITE, 0).astype(np.uint8)
        parts = range(0, len(ids), self._at_once)
        judged = [
            self.predictions(classifier, batch, ids[at : at + self._at_once])
            for at, batch in zip(parts, images.split(self._at_once), strict=True)
        ]
        predictions, found = map(np.concatenate, zip(*judged, strict=True))
        return Part(ids, predictions, flags | found, deltas)

    def _pixels_of(self, perturbation: Perturbation, ids: np.ndarray) -> torch.Tensor:
        """As `pixels`, of ids in rising order, which may be far apart: so many are loaded at a time."""
        found = []
        for low in range(int(ids[0]), int(ids[-1]) + 1, len(ids)):
            here = ids[(ids >= low) & (ids < low + len(ids))]
            if len(here):
                first = int(here[0])
                found.append(self.pixels(perturbation, first, int(here[-1]) + 1)[here - first])
        return torch.cat(found)

    def predictions(
        self, classifier: nn.Module, images: torch.Tensor, ids: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """What a classifier takes images for, as an `Outcome` holds it: predictions and flags, (n,) each.

        Args:
            classifier: On this runner's device.
            images: (n, C, H, W) in [0, 1] there.
            ids: Of the samples, (n,).
        """
        flags = np.zeros(len(ids), dtype=np.uint8)
        with torch.no_grad():
            if isinstance(classifier, Ensemble):
                logits, agreed = classifier.with_agreement(images)
                flags |= np.where(agreed.cpu().numpy(), AGREE, DISAGREE).astype(np.uint8)
            else:
                logits = classifier(images.clone())  # which a model may work on in place
        finite = _are_numbers(logits, torch.from_numpy(self.dataset.labels[ids]).to(logits.device))
        flags |= np.where(finite.cpu().numpy(), 0, NOT_FINITE).astype(np.uint8)
        return torch.where(finite, logits.argmax(1), -1).cpu().numpy().astype(np.int16), flags


def _are_numbers(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Whose logits (N, classes) are finite, (N,) bool; -inf is the mask of a class that is not the label."""
    is_label = torch.zeros_like(logits, dtype=torch.bool).scatter(1, labels[:, None], value=True)
    return (torch.isfinite(logits) | ((logits == -torch.inf) & ~is_label)).all(1)


@contextmanager
def _compiling(watch: Watch, cell: Cell) -> Iterator[None]:
    """Tells a watch of a compilation, where it wants to know: that is no work on samples, and takes long."""
    tell = getattr(watch, "compiling", lambda cell, begins: None)
    tell(cell, True)
    yield
    tell(cell, False)


def _step_teller(cell: Cell, watch: Watch) -> Callable[[int], None]:
    """What tells a watch of the steps within a batch, where it wants to know: in samples' worth of work."""
    step, passes = getattr(watch, "step", None), attacks.passes(cell.perturbation)
    return (lambda done: step(cell, done / passes)) if step else (lambda done: None)

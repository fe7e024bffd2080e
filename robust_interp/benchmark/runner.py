"""Measures tasks on one device: data -> classifier -> perturbation -> per-sample predictions."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import nn

from robust_interp import attacks, data
from robust_interp.attacks.expectation import Randomised
from robust_interp.attacks.precision import check as check_precision
from robust_interp.benchmark.agenda import Task
from robust_interp.benchmark.compiling import Architecture
from robust_interp.benchmark.request import Request
from robust_interp.benchmark.settings import (
    checked_batch_size,
    checked_compile,
    corruptor_of,
    device_of,
    sample_count,
)
from robust_interp.classifiers.ensemble import Ensemble
from robust_interp.classifiers.target import Target
from robust_interp.core.errors import UserError
from robust_interp.core.memory import is_out_of_memory, with_fewer
from robust_interp.core.threads import spare_cpus
from robust_interp.corruptions import Corruptor
from robust_interp.store import (
    AGREE,
    DISAGREE,
    INHERITED,
    NOT_FINITE,
    ROUNDED_RIGHT,
    ROUNDED_WRONG,
    ZERO_GRADIENT,
    ChangedError,
    Outcome,
    Store,
)
from robust_interp.store.cells import Cell, Perturbation

AT_RISK = {"cpu": 1e5, "cuda": 1e7}  # passes of one image that a kill may cost, if one batch takes fewer

R = TypeVar("R")


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


class Runner:
    """Measures tasks of one dataset, on one device.

    Attributes:
        compiles: The networks whose passes under attack are compiled.
        compiles_all: Whether all networks are compiled.
        backend: Of torch.compile.

    Args:
        dataset: Whose images are classified.
        corruptor: Where the corrupted images come from.
        device: Where it is measured.
        batch_size: Samples at once.
        n: How many of them are measured; None is all.
    """

    def __init__(
        self,
        dataset: data.Dataset,
        corruptor: Corruptor,
        device: torch.device,
        batch_size: int,
        n: int | None = None,
    ) -> None:
        self.dataset, self.corruptor = dataset, corruptor
        self.device, self.batch_size = device, batch_size
        self.compiles: Container[Architecture] = frozenset()
        self.compiles_all = False
        self.backend: str | Callable = "inductor"
        self._at_once, self._n = batch_size, len(dataset) if n is None else n
        self._uncompiled: dict[str, dict[str, None]] = {}  # names by the reason
        self._views: dict[data.Dataset, Runner] = {}

    def on(self, dataset: data.Dataset | None) -> Runner:
        """This runner for the images as a model takes them; itself for those of the run."""
        if dataset is None or dataset is self.dataset:
            return self
        if dataset not in self._views:
            self._views[dataset] = Runner(
                dataset, self.corruptor.on(dataset), self.device, self.batch_size, self._n
            )
        return self._views[dataset]

    @property
    def views(self) -> list[Runner]:
        """This one, and those of the images as models take them."""
        return [self, *self._views.values()]

    @property
    def at_once(self) -> int:
        """How many images go through a model together, at most."""
        return min(self._at_once, self._n)

    def note_uncompiled(self, name: str, reason: str) -> None:
        """A network of this name cannot be compiled."""
        self._uncompiled.setdefault(reason, {})[name] = None

    @property
    def notes(self) -> list[str]:
        """What a reader must be told of how it was measured.

        A line if memory did not do for the batches, and one for what could not be compiled.
        """
        lines = [
            f"{', '.join(names)}: not compiled, so attacks are slower: {reason}"
            for reason, names in self._uncompiled.items()
        ]
        return [*lines, *(line for view in self.views for line in view._own_notes)]

    @property
    def _own_notes(self) -> list[str]:
        if self._at_once == self.batch_size:
            return []
        return [
            f"{self.device} ran out of memory with batches of {self.batch_size}: at most {self._at_once} "
            f"images were taken at once; --batch-size {self._at_once} starts there"
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
        while len(ids):
            size, of_part = self._first_part(ids, work, batches)
            found.append(of_part)
            ids = ids[size:]
        return found

    def _first_part(self, ids: np.ndarray, work: Callable[[np.ndarray], R], batches: int) -> tuple[int, R]:
        """How many samples the first part is made of, and what `work` returns for it; as of `in_parts`."""
        most = min(self._at_once, len(ids))

        def first(count: int) -> tuple[int, R]:
            if count < most:  # there was no memory for more
                self._at_once = count
            part = ids[: batches * self._at_once]
            return len(part), work(part)

        try:
            return with_fewer(first, most)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise UserError(
                f"{self.device} has no memory for one image at a time, which is --batch-size 1; "
                "finished work is saved"
            ) from error

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
        n = sample_count(request.n, dataset)
        runner = cls(dataset, corruptor_of(request, dataset), device, batch_size, n)
        runner.compiles_all = checked_compile(request.compile) == "on"
        return runner

    def ahead(self, wanted: Iterable[tuple[Perturbation, int, int]]) -> AbstractContextManager[None]:
        """Inside, corrupted images may be made beside the measuring, on CPUs that it leaves free.

        Args:
            wanted: As of `Corruptor.ahead`.
        """
        busy = torch.get_num_threads() if self.device.type == "cpu" else 1
        return self.corruptor.ahead(wanted, spare_cpus(busy))

    def check(self, cells: Iterable[Cell]) -> None:
        """Refuse cells that are in a precision that the device is no good at; a short test may tell.

        Raises:
            UserError: if there is one.
        """
        for precision in dict.fromkeys(cell.perturbation.precision for cell in cells):
            check_precision(precision, self.device)

    def expect(self, targets: Iterable[Target], n: int) -> None:
        """Tell the images of these targets that the first `n` are going to be measured.

        Raises:
            UserError: if one of them cannot be read.
        """
        for dataset in {self.on(target.dataset).dataset for target in targets}:
            dataset.expect(n)

    def load(self, target: Target) -> nn.Module:
        """The target's classifier on this runner's device.

        Raises:
            UserError: if it cannot be measured there.
        """
        return target.load(self.device)

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

    def outcome(
        self, task: Task, classifier: nn.Module, attack: attacks.AttackRunner | None, engine: str = ""
    ) -> Outcome:
        """Measure a task.

        Args:
            task: What is measured.
            classifier: Its target's, on this runner's device, undisturbed.
            attack: Its cell's, set up for what is attacked; None where nothing is.
            engine: What runs the model within the attack; empty for Python code.
        """
        began = time.perf_counter()
        there = np.ones(task.stop - task.start, bool) if task.standing is None else task.standing
        found = self._chunk(task.cell.perturbation, classifier, attack, task.start, there)
        seconds = time.perf_counter() - began
        content = self.dataset.content(np.arange(task.start, task.stop))
        device = f"{self.device} {engine}".strip()
        return Outcome(*found, seconds=seconds, device=device, content=content)

    def cut(self, perturbation: Perturbation, start: int, n: int, standing: np.ndarray | None) -> int:
        """Where the part of a cell from `start` on ends that is measured, and stored, at once.

        Args:
            perturbation: Of the cell.
            start: Its first sample.
            n: How many samples of the cell are measured.
            standing: Which of them still stand, (n,) bool; None for all.
        """
        size = self._batches(perturbation) * self.batch_size
        if standing is None:
            # At multiples of the size: a run that goes on cuts as one that never stopped.
            return min(n, (start // size + 1) * size)
        left = np.flatnonzero(standing[start:])
        return start + int(left[size]) if len(left) > size else n

    def keep_content(self, store: Store, task: Task, outcome: Outcome) -> None:
        """Keep what the images of a task were, or refuse them if they are not what was measured before.

        Raises:
            UserError: naming one that has changed.
        """
        if outcome.content is None:
            return
        try:
            store.put_pixels(self.dataset.fingerprint, task.start, outcome.content)
        except ChangedError as changed:
            raise UserError(
                f"{self.dataset.name_of(changed.at)} is not the image that was measured before into "
                f"{store.path}: it has changed, or this version of Pillow decodes it otherwise; measure into "
                "another folder with --out"
            ) from changed

    def _batches(self, perturbation: Perturbation) -> int:
        """How many batches are taken as one: several where some of their samples are done before others."""
        if attacks.is_alone(perturbation) or not attacks.may_stop_early(perturbation):
            return 1
        lost = self.batch_size * attacks.passes(perturbation)
        return max(1, int(AT_RISK.get(self.device.type, AT_RISK["cpu"]) // lost))

    def _chunk(
        self,
        perturbation: Perturbation,
        classifier: nn.Module,
        attack: attacks.AttackRunner | None,
        start: int,
        standing: np.ndarray,
    ) -> Batch:
        """Those samples from `start` on that still stand; the others are inherited as broken."""
        predictions = np.full(len(standing), -1, np.int32)
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
        if perturbation.rounded:
            flags |= self._rounded(classifier, images, ids)
        return Part(ids, predictions, flags | found, deltas)

    def _rounded(self, classifier: nn.Module, images: torch.Tensor, ids: np.ndarray) -> np.ndarray:
        """Which images (n, C, H, W) are right once their pixels are multiples of 1/255, as flags (n,)."""
        whole, right = (255 * images).round() / 255, []
        for at in range(0, len(ids), self._at_once):
            part = ids[at : at + self._at_once]
            predictions, _ = self.predictions(classifier, whole[at : at + self._at_once], part)
            right.append(predictions == self.dataset.labels[part])
        return np.where(np.concatenate(right), ROUNDED_RIGHT, ROUNDED_WRONG).astype(np.uint8)

    def _pixels_of(self, perturbation: Perturbation, ids: np.ndarray) -> torch.Tensor:
        """As `pixels`, of ids in rising order; they may be far apart, and no more are loaded at once."""
        if perturbation.kind != "corruption":
            return torch.from_numpy(data.as_pixels(self.dataset.at(ids))).to(self.device)
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
            if isinstance(classifier, Randomised):
                logits = classifier.votes(images, ids)
            elif isinstance(classifier, Ensemble):
                logits, agreed = classifier.with_agreement(images)
                flags |= np.where(agreed.cpu().numpy(), AGREE, DISAGREE).astype(np.uint8)
            else:
                logits = classifier(images.clone())  # which a model may work on in place
        finite = _are_numbers(logits, torch.from_numpy(self.dataset.labels[ids]).to(logits.device))
        flags |= np.where(finite.cpu().numpy(), 0, NOT_FINITE).astype(np.uint8)
        return torch.where(finite, logits.argmax(1), -1).cpu().numpy().astype(np.int32), flags


def _are_numbers(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Whose logits (N, classes) are finite, (N,) bool; -inf is the mask of a class that is not the label."""
    is_label = torch.zeros_like(logits, dtype=torch.bool).scatter(1, labels[:, None], value=True)
    return (torch.isfinite(logits) | ((logits == -torch.inf) & ~is_label)).all(1)

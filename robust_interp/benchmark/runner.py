"""Measure tasks on one device: images -> perturbation -> classifier -> prediction per image."""

from __future__ import annotations

import time
from collections.abc import Callable, Container, Iterable
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import nn

from robust_interp import attacks, data
from robust_interp.attacks.expectation import EOTClassifier
from robust_interp.attacks.precision import check as check_precision
from robust_interp.benchmark.compiling import Architecture
from robust_interp.benchmark.request import Request
from robust_interp.benchmark.scheduler import Task
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
from robust_interp.core.memory import retry_with_smaller_batch
from robust_interp.core.model_errors import reported_for
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

COMPARED = 32  # largest number of images that are read again to see whether the files are still the same

AT_RISK = {"cpu": 1e5, "cuda": 1e7}  # image passes lost at most by a kill, unless a single batch takes more

R = TypeVar("R")


class Part(NamedTuple):
    """Results of some images, with their ids."""

    ids: np.ndarray
    predictions: np.ndarray
    flags: np.ndarray
    deltas: np.ndarray | None


class Runner:
    """Measures tasks of one data set on one device.

    Attributes:
        compiles: Architectures that are compiled for attacks.
        compiles_all: Whether all networks are compiled.
        backend: Backend of torch.compile.

    Args:
        dataset: The data set whose images are classified.
        corruptor: Gives the corrupted images.
        device: Device that computes.
        batch_size: Number of images per batch.
        n: Number of images that are measured; None is all.
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
        self._max_batch, self._n = batch_size, len(dataset) if n is None else n
        self._uncompiled: dict[str, dict[str, None]] = {}  # reason -> names of networks
        self._views: dict[data.Dataset, Runner] = {}

    def for_dataset(self, dataset: data.Dataset | None) -> Runner:
        """Return the runner for a data set in a model's preprocessing; None is the data set of the run."""
        if dataset is None or dataset is self.dataset:
            return self
        if dataset not in self._views:
            self._views[dataset] = Runner(
                dataset, self.corruptor.for_dataset(dataset), self.device, self.batch_size, self._n
            )
        return self._views[dataset]

    @property
    def views(self) -> list[Runner]:
        """This runner, and those for the preprocessing of single models."""
        return [self, *self._views.values()]

    @property
    def max_batch(self) -> int:
        """Largest number of images that go through a model at once."""
        return min(self._max_batch, self._n)

    def note_uncompiled(self, name: str, reason: str) -> None:
        """Note that a network cannot be compiled."""
        self._uncompiled.setdefault(reason, {})[name] = None

    @property
    def notes(self) -> list[str]:
        """Notes for the report: networks that were not compiled, and batches that did not fit in memory."""
        lines = [
            f"{', '.join(names)}: not compiled, so attacks are slower: {reason}"
            for reason, names in self._uncompiled.items()
        ]
        return [*lines, *(line for view in self.views for line in view._own_notes)]

    def views_of(self, targets: Iterable[Target]) -> list[Runner]:
        """Return the runners for the images that these targets take, each once."""
        return list(dict.fromkeys(self.for_dataset(target.dataset) for target in targets))

    @property
    def _own_notes(self) -> list[str]:
        if self._max_batch == self.batch_size:
            return []
        return [
            f"{self.device} ran out of memory with batches of {self.batch_size}: at most {self._max_batch} "
            f"images were taken at once; --batch-size {self._max_batch} starts there"
        ]

    def in_parts(self, ids: np.ndarray, work: Callable[[np.ndarray], R], batches: int = 1) -> list[R]:
        """Apply `work` to parts of some images, and return its results. Out of memory halves the batch size.

        Args:
            ids: Ids of the images, (n,).
            work: Called with the ids of a part.
            batches: Number of batches per part; `work` processes them one after the other.

        Raises:
            UserError: if memory does not suffice for one image.
        """
        found: list[R] = []
        while len(ids):
            size, of_part = self._first_part(ids, work, batches)
            found.append(of_part)
            ids = ids[size:]
        return found

    def _first_part(self, ids: np.ndarray, work: Callable[[np.ndarray], R], batches: int) -> tuple[int, R]:
        """Return the number of images of the first part, and what `work` returns for it; see `in_parts`."""
        most = min(self._max_batch, len(ids))

        def first(count: int) -> tuple[int, R]:
            if count < most:  # there was no memory for more
                self._max_batch = count
            part = ids[: batches * self._max_batch]
            return len(part), work(part)

        return retry_with_smaller_batch(first, most, self.device)

    @classmethod
    def for_request(cls, request: Request, dataset: data.Dataset) -> Runner:
        """Make a runner with the device, batch size and corruptions of a request.

        Args:
            request: The settings of the run.
            dataset: The data set of the request.

        Raises:
            UserError: if a setting is invalid.
        """
        device = device_of(request)
        batch_size = checked_batch_size(request.batch_size, device)
        n = sample_count(request.n, dataset)
        runner = cls(dataset, corruptor_of(request, dataset), device, batch_size, n)
        runner.compiles_all = checked_compile(request.compile) == "on"
        return runner

    def prefetch(self, wanted: Iterable[tuple[Perturbation, int, int]]) -> AbstractContextManager[None]:
        """Return a context in which free CPUs compute corrupted images in the background.

        Args:
            wanted: The corruptions, each with its range [start, stop) of images; see `Corruptor.prefetch`.
        """
        busy = torch.get_num_threads() if self.device.type == "cpu" else 1
        return self.corruptor.prefetch(wanted, spare_cpus(busy))

    def check_precisions(self, cells: Iterable[Cell]) -> None:
        """Check that the device supports the precision of all cells.

        Raises:
            UserError: if it does not.
        """
        for precision in dict.fromkeys(cell.perturbation.precision for cell in cells):
            check_precision(precision, self.device)

    def expect(self, targets: Iterable[Target], n: int) -> None:
        """Announce to the data sets of these targets that their first `n` images will be measured.

        Raises:
            UserError: if an image cannot be read.
        """
        for view in self.views_of(targets):
            view.dataset.expect(n)

    def load(self, target: Target) -> nn.Module:
        """Load the classifier of a target on this runner's device.

        Raises:
            UserError: if it cannot be measured on this device.
        """
        return target.load(self.device)

    def pixels(self, perturbation: Perturbation, start: int, stop: int) -> torch.Tensor:
        """Return images (N, C, H, W) in [0, 1] on this runner's device, corrupted for a corruption.

        Args:
            perturbation: A corruption, or any other, which gives the clean images.
            start: Index of the first image, counted from 0.
            stop: Index after the last image.
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
            task: The task.
            classifier: Classifier of its target, on this runner's device, inside `measurement_mode`.
            attack: Attack of its cell, set up for the attacked classifier; None without an attack.
            engine: Name of the engine that runs the model in the attack; empty for Python code.
        """
        began = time.perf_counter()
        there = np.ones(task.stop - task.start, bool) if task.unbroken is None else task.unbroken
        found = self._chunk(task.cell.perturbation, classifier, attack, task.start, there)
        seconds = time.perf_counter() - began
        content = self.dataset.content(np.arange(task.start, task.stop))
        device = f"{self.device} {engine}".strip()
        return Outcome(*found, seconds=seconds, device=device, content=content)

    def task_end(self, perturbation: Perturbation, start: int, n: int, unbroken: np.ndarray | None) -> int:
        """Return the index after the last image of a task that begins at `start`.

        Args:
            perturbation: Perturbation of the cell.
            start: Index of the first image of the task.
            n: Number of images of the cell.
            unbroken: Mask of the images that are not broken yet, (n,) bool; None means all.
        """
        size = self._batches(perturbation) * self.batch_size
        if unbroken is None:
            # Cut at multiples of the size, so that a resumed run has the same tasks as an uninterrupted one.
            return min(n, (start // size + 1) * size)
        left = np.flatnonzero(unbroken[start:])
        return start + int(left[size]) if len(left) > size else n

    def keep_content(self, store: Store, task: Task, outcome: Outcome) -> None:
        """Store the hashes of the images of a task, or compare them with those stored before.

        Raises:
            UserError: if an image has changed, naming it.
        """
        if outcome.content is None:
            return
        try:
            store.put_pixels(self.dataset.fingerprint, task.start, outcome.content)
        except ChangedError as changed:
            raise self._other_image(store, changed.at) from changed

    def compare_content(self, store: Store, n: int) -> None:
        """Read some of the first n images again, and compare them with those that were measured before.

        The results of a run may all be stored, or its missing images may be others. Then `keep_content` does
        not see that a fingerprint, which does not cover the content of files, now belongs to other images.

        Raises:
            UserError: if an image has changed, naming it, or cannot be read.
        """
        known = store.pixels(self.dataset.fingerprint, n)
        ids = np.flatnonzero(known)
        if not len(ids):
            return
        ids = ids[np.unique(np.linspace(0, len(ids) - 1, COMPARED).astype(int))]
        found = self.dataset.read_content(ids)
        if found is not None and (changed := found != known[ids]).any():
            raise self._other_image(store, int(ids[changed.argmax()]))

    def _other_image(self, store: Store, at: int) -> UserError:
        return UserError(
            f"{self.dataset.name_of(at)} is not the image that was measured before into {store.path}: it has "
            "changed, or this version of Pillow decodes it otherwise; measure into another folder with --out"
        )

    def _batches(self, perturbation: Perturbation) -> int:
        """Return the number of batches per part: several if an attack may stop early for some images."""
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
        unbroken: np.ndarray,
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
        """Measure the images from `start` on that are in the mask; flag the others as INHERITED.

        Returns:
            Predictions, flags and deltas, as in `Outcome`.
        """
        predictions = np.full(len(unbroken), -1, np.int32)
        flags = np.full(len(unbroken), INHERITED, np.uint8)
        deltas = np.zeros(len(unbroken), np.float32) if attack else None
        ids = start + np.flatnonzero(unbroken)
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
        return predictions, flags, deltas

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
            attacked = attack(images, labels, ids, self._max_batch)
            images, deltas = attacked.images, attacked.deltas
            flags |= np.where(attacked.zero_gradient, ZERO_GRADIENT, 0).astype(np.uint8)
            flags |= np.where(attacked.not_finite, NOT_FINITE, 0).astype(np.uint8)
        predictions, found = self._in_batches(classifier, images, ids)
        if perturbation.rounded:
            rounded, _ = self._in_batches(classifier, (255 * images).round() / 255, ids)
            is_right = rounded == self.dataset.labels[ids]
            flags |= np.where(is_right, ROUNDED_RIGHT, ROUNDED_WRONG).astype(np.uint8)
        return Part(ids, predictions, flags | found, deltas)

    def _in_batches(
        self, classifier: nn.Module, images: torch.Tensor, ids: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Classify images as `predictions`, at most `_max_batch` at once."""
        starts = range(0, len(ids), self._max_batch)
        parts = [
            self.predictions(classifier, batch, ids[at : at + self._max_batch])
            for at, batch in zip(starts, images.split(self._max_batch), strict=True)
        ]
        predictions, flags = map(np.concatenate, zip(*parts, strict=True))
        return predictions, flags

    def _pixels_of(self, perturbation: Perturbation, ids: np.ndarray) -> torch.Tensor:
        """Return the images of ascending ids, see `pixels`. At most len(ids) images are loaded at once."""
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
        """Classify images. Return predictions and flags in the form of `Outcome`, (n,) each.

        Args:
            classifier: The classifier, on this runner's device.
            images: Images in [0, 1] on the same device, (n, C, H, W).
            ids: Ids of the images, (n,).
        """
        flags = np.zeros(len(ids), dtype=np.uint8)
        with torch.no_grad(), reported_for(classifier):
            if isinstance(classifier, EOTClassifier):
                logits = classifier.votes(images, ids)
            elif isinstance(classifier, Ensemble):
                logits, agreed = classifier.with_agreement(images)
                flags |= np.where(agreed.cpu().numpy(), AGREE, DISAGREE).astype(np.uint8)
            else:
                logits = classifier(images.clone())  # a model may modify its input in place
        finite = _are_numbers(logits, torch.from_numpy(self.dataset.labels[ids]).to(logits.device))
        flags |= np.where(finite.cpu().numpy(), 0, NOT_FINITE).astype(np.uint8)
        return torch.where(finite, logits.argmax(1), -1).cpu().numpy().astype(np.int32), flags


def _are_numbers(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return which rows of logits (N, classes) are valid, (N,) bool; -inf is valid except for the label."""
    is_label = torch.zeros_like(logits, dtype=torch.bool).scatter(1, labels[:, None], value=True)
    return (torch.isfinite(logits) | ((logits == -torch.inf) & ~is_label)).all(1)

"""The cost of measuring in forward passes and in seconds, and the fastest number of threads."""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import nn

from robust_interp import attacks
from robust_interp.benchmark import compiling
from robust_interp.benchmark.compiling import (
    LEAST_WORK,
    Architecture,
    architecture,
    can_be_compiled,
    passes_of,
    saves_time,
)
from robust_interp.benchmark.pending import missing, remaining_images, self_check
from robust_interp.benchmark.plan import make_plan
from robust_interp.benchmark.request import Request
from robust_interp.benchmark.runner import Runner
from robust_interp.benchmark.settings import checked_batch_size, corruptor_of, device_of
from robust_interp.classifiers.engine import Pass
from robust_interp.classifiers.ensemble import GRAPHS_KEPT
from robust_interp.classifiers.isolation import measurement_mode
from robust_interp.classifiers.target import Target
from robust_interp.core import threads
from robust_interp.core.compiler import CompileTime
from robust_interp.core.memory import retry_with_smaller_batch
from robust_interp.core.threads import Threads
from robust_interp.core.work import ProgressCallback, no_progress, with_progress
from robust_interp.data import Dataset
from robust_interp.store import Store
from robust_interp.store.cells import CLEAN, FLOAT32, Cell, ModelCard, Plan, digest

TRIED_ON = 64  # images in the gradient that is timed to find the fastest number of threads

TIMED_ON, TIMED_FOR = 64, 0.5  # images per timed pass; seconds of timing, since a single pass may be delayed


class Estimate(NamedTuple):
    """Seconds that a run takes. If `is_bound`, they are an upper bound, since broken images are skipped."""

    seconds: float
    is_bound: bool


def cost(cell: Cell) -> int:
    """Return the cost of one image of a cell, in forward passes of a single network."""
    members, view = cell.classifier.members, cell.classifier.attacked_as
    attacked = 1 if view.startswith("member:") else members
    again = attacks.gradients(cell.perturbation) * max(0, attacked - GRAPHS_KEPT)
    return (attacks.passes(cell.perturbation) - 1) * attacked + again + members  # `members`: to predict


def _in_batches(cell: Cell) -> int:
    """Return the part of the cost of an image that is computed on batches, not on one image at a time."""
    alone, whole = attacks.passes_alone(cell.perturbation), attacks.passes(cell.perturbation)
    return cost(cell) * (whole - alone) // whole


def _by_pass_size(cell: Cell, n: int) -> dict[int, int]:
    """Return the cost of an image, by how many of `n` images go through the model at once."""
    together = _in_batches(cell)
    return Counter({1: cost(cell) - together}) + Counter({min(TIMED_ON, n): together})


def work(plan: Plan, store: Store, batch_size: int) -> list[tuple[Cell, int]]:
    """Return the cells to measure, each with the number of its missing images (an upper bound).

    This includes the float32 cells of the first batch that check attacks in another precision.
    """
    return [(cell, part.n - store.covered(cell.key)) for part, cell in _remaining(plan, store, batch_size)]


def expected_work(
    request: Request, dataset: Dataset, cards: Sequence[ModelCard], store: Store
) -> list[tuple[Cell, int]]:
    """Return the same as `work` for models that need not exist yet, from their model cards alone.

    Args:
        request: The settings of the run.
        dataset: The data set of the request.
        cards: The model cards.
        store: The store; what it holds is not counted.

    Raises:
        UserError: for anything in the request that cannot be measured.
    """
    plan = make_plan(request, dataset, corruptor_of(request, dataset), cards)
    return work(plan, store, checked_batch_size(request.batch_size, device_of(request)))


def estimate(
    plan: Plan,
    targets: Sequence[Target],
    runner: Runner,
    store: Store,
    asked: str = "off",
    progress: ProgressCallback = no_progress,
) -> Estimate:
    """Estimate how long a run of this plan takes, from timed passes of one model of each architecture.

    Args:
        plan: The plan, including its strong plan if it has one.
        targets: The targets of the cells.
        runner: Gives the device and the images of the timed passes.
        store: The store; what it holds is not counted.
        asked: Whether networks are compiled: ``auto``, ``on`` or ``off``.
        progress: Called with the progress, 0 to 1, and the name of the model.

    Raises:
        UserError: if a model cannot be measured on the device.
    """
    timing, remaining = _Timing(targets, runner), list(_remaining(plan, store, runner.batch_size))
    runner.check_precisions(cell for _, cell in remaining)
    # Progress counts timings, not cells: only the first cell of an architecture takes time.
    timed = {
        (cell.classifier.model, size): cell.classifier
        for _, cell in remaining
        for size in _by_pass_size(cell, plan.n)
    }
    for (_, images), card in with_progress(list(timed.items()), progress, lambda one: one[0][0]):
        timing.seconds(card, images)
    worth = _worth_compiling(remaining, timing, runner, store, asked)
    seconds, is_bound = math.fsum(seen.seconds for seen in worth.values()), False
    for part, cell in remaining:
        samples, is_known = remaining_images(part, cell, store, runner.dataset.labels)
        seen = worth.get(architecture(cell.classifier)) if can_be_compiled(cell) else None
        for size, passes in _by_pass_size(cell, plan.n).items():
            gain = seen.gain if seen and size > 1 else 1  # passes on one image are not compiled
            seconds += timing.seconds(cell.classifier, size) * passes * samples / gain
        if samples:
            in_float32 = cell.perturbation.precision == FLOAT32  # timed passes are in float32
            is_bound |= not is_known or attacks.may_stop_early(cell.perturbation) or not in_float32
    return Estimate(seconds, is_bound)


def worth_compiling(
    plan: Plan, targets: Sequence[Target], runner: Runner, store: Store, processes: int = 1
) -> dict[Architecture, CompileTime]:
    """Return the networks for which compiling saves time, with the expected time and gain of compiling.

    Args:
        plan: The plan, including its strong plan if it has one.
        targets: The targets of the cells.
        runner: Gives the device and the images of the timed passes.
        store: The store; what it holds is not counted.
        processes: Number of processes that share the work; each compiles for itself.

    Raises:
        UserError: if a model cannot be measured on the device.
    """
    remaining = list(_remaining(plan, store, runner.batch_size))
    return _worth_compiling(remaining, _Timing(targets, runner), runner, store, "auto", processes)


def _worth_compiling(
    remaining: Sequence[tuple[Plan, Cell]],
    timing: _Timing,
    runner: Runner,
    store: Store,
    asked: str,
    processes: int = 1,
) -> dict[Architecture, CompileTime]:
    of_each: dict[Architecture, list[tuple[Plan, Cell, int]]] = defaultdict(list)
    for part, cell in remaining:
        # It has not been measured when compiling pays on CUDA.
        if can_be_compiled(cell) and (asked == "on" or (asked == "auto" and runner.device.type == "cpu")):
            samples, _ = remaining_images(part, cell, store, runner.dataset.labels)
            of_each[architecture(cell.classifier)].append((part, cell, samples))
    found = {}
    for network, parts in of_each.items():
        if (
            asked == "auto"
            and sum(_in_batches(cell) * samples for _, cell, samples in parts) < LEAST_WORK * processes
        ):
            continue
        part, cell, _ = parts[0]
        passes = frozenset[Pass]().union(*(passes_of(one.perturbation) for _, one, _ in parts))
        images = timing.view(cell.classifier).pixels(CLEAN, 0, min(part.n, runner.batch_size))
        seen = compiling.expected_compile_time(cell.classifier, passes, images, timing.load(cell.classifier))
        a_pass = timing.seconds(cell.classifier, min(TIMED_ON, part.n))
        seconds = math.fsum(a_pass * _in_batches(one) * samples for _, one, samples in parts)
        if asked == "on" or saves_time(seconds / processes, seen):
            found[network] = seen
    return found


class _Timing:
    """Seconds of the forward passes of models; each architecture is timed once."""

    def __init__(self, targets: Sequence[Target], runner: Runner) -> None:
        self._runner, self._timed = runner, dict[tuple, float]()
        self._targets = {id(target.card): target for target in targets}
        self._singles = {digest(one.card.identity): one.card for one in targets if one.card.members == 1}

    def seconds(self, card: ModelCard, images_per_pass: int) -> float:
        """Return the seconds per image and member of a forward pass of `images_per_pass` images."""
        members = [self._singles.get(digest(one)) for one in card.identity.get("ensemble", ())]
        if members and None not in members:  # from the times of its members, without loading the ensemble
            return math.fsum(self.seconds(one, images_per_pass) for one in members if one) / len(members)
        alike = card.model, card.params_m, images_per_pass  # other train seeds and recipes take equally long
        if alike not in self._timed:
            classifier, images = self.load(card), self.view(card).pixels(CLEAN, 0, images_per_pass)
            self._timed[alike] = seconds_per_pass(classifier, images) / card.members
        return self._timed[alike]

    def view(self, card: ModelCard) -> Runner:
        """Return the runner of the images in the preprocessing of this model."""
        return self._runner.for_dataset(self._targets[id(card)].dataset)

    def load(self, card: ModelCard) -> nn.Module:
        """Return the classifier that a model card describes."""
        return self._runner.load(self._targets[id(card)])


def seconds_per_pass(classifier: nn.Module, images: torch.Tensor) -> float:
    """Measure the seconds of a forward pass per image.

    Args:
        classifier: The classifier, on the device of the images.
        images: One batch of pixels in [0, 1], (N, C, H, W); fewer are used if memory runs out.
    """
    with measurement_mode(classifier), torch.no_grad():
        count = retry_with_smaller_batch(
            lambda count: len(classifier(images[:count])), len(images), images.device
        )
        images = images[:count]
        started, passes = time.perf_counter(), 0
        while (seconds := time.perf_counter() - started) < TIMED_FOR:
            classifier(images)[0, 0].item()
            passes += len(images)
    return seconds / passes


def choose_threads(targets: Sequence[Target], runner: Runner, n: int, asked: int | None) -> Threads:
    """Choose the number of CPU threads, by timing a gradient of the largest target.

    Args:
        targets: The targets to measure.
        runner: Gives the device and the batch size.
        n: Number of images of the run.
        asked: Number of threads that the user set, which is used as it is; None chooses by timing.

    Raises:
        UserError: if the largest target cannot be measured.
    """
    if runner.device.type != "cpu" or not targets:
        return threads.choose(asked, None)
    largest = max(targets, key=lambda target: target.card.params_m or 0)
    classifier = runner.load(largest)
    images = runner.for_dataset(largest.dataset).pixels(CLEAN, 0, min(TRIED_ON, runner.batch_size, n))
    with measurement_mode(classifier):
        return retry_with_smaller_batch(
            lambda count: threads.choose(asked, lambda: _take_gradient(classifier, images[:count])),
            len(images),
            runner.device,
        )


def _take_gradient(model: nn.Module, images: torch.Tensor) -> None:
    pixels = images.clone().requires_grad_()
    logits = model(pixels.clone())
    if logits.requires_grad:
        torch.autograd.grad(logits.logsumexp(1).sum(), pixels, allow_unused=True)


def _remaining(plan: Plan, store: Store, batch_size: int) -> Iterator[tuple[Plan, Cell]]:
    """Yield the cells to measure, each with its plan: this one, its strong one, or the one of a check."""
    for cell in missing(plan, store):
        yield from _with_check(plan, cell, store, batch_size)
    if plan.strong:
        shared = {cell.key for cell in plan.cells} if plan.n >= plan.strong.n else set()
        for cell in missing(plan.strong, store):
            if shared.isdisjoint((cell.key, cell.without_skips.key)):
                yield from _with_check(plan.strong, cell, store, batch_size)


def _with_check(plan: Plan, cell: Cell, store: Store, batch_size: int) -> Iterator[tuple[Plan, Cell]]:
    """Yield a cell, and before it the float32 cell that checks its precision, if that one is missing."""
    first = min(plan.n, batch_size)
    if (reference := self_check(plan, cell)) and store.covered(reference.without_skips.key) < first:
        yield replace(plan, n=first), reference
    yield plan, cell

"""What measuring costs: in forward passes, in seconds, and with how many threads it is fastest."""

from __future__ import annotations

import math
import time
from collections import defaultdict
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
    pays,
)
from robust_interp.benchmark.pending import left, missing, self_check
from robust_interp.benchmark.plan import make_plan
from robust_interp.benchmark.request import Request
from robust_interp.benchmark.runner import Runner
from robust_interp.benchmark.settings import checked_batch_size, corruptor_of, device_of
from robust_interp.classifiers.engine import Pass
from robust_interp.classifiers.ensemble import GRAPHS_KEPT
from robust_interp.classifiers.isolation import undisturbed
from robust_interp.classifiers.target import Target
from robust_interp.core import threads
from robust_interp.core.compiler import CompileTime
from robust_interp.core.memory import with_fewer
from robust_interp.core.threads import Threads
from robust_interp.core.work import Tell, each, untold
from robust_interp.data import Dataset
from robust_interp.store import Store
from robust_interp.store.cells import CLEAN, FLOAT32, Cell, ModelCard, Plan, digest

TRIED_ON = 64  # images whose gradient is taken to find the fastest number of threads

TIMED_ON, TIMED_FOR = 64, 0.5  # images at once, and at least so many seconds: one pass alone may be held up


class Estimate(NamedTuple):
    """How long a run takes; `is_bound` if it may be less, since samples that prove broken are left out."""

    seconds: float
    is_bound: bool


def cost(cell: Cell) -> int:
    """Forward passes of one member's worth of work that a sample of this cell takes."""
    members, view = cell.classifier.members, cell.classifier.attacked_as
    attacked = 1 if view.startswith("member:") else members
    again = attacks.gradients(cell.perturbation) * max(0, attacked - GRAPHS_KEPT)
    return (attacks.passes(cell.perturbation) - 1) * attacked + again + members  # these to predict


def at_once(cell: Cell, n: int) -> int:
    """How many of `n` images go through the model at once while a cell is measured, TIMED_ON at most."""
    return 1 if attacks.is_alone(cell.perturbation) else min(TIMED_ON, n)


def work(plan: Plan, store: Store, batch_size: int) -> list[tuple[Cell, int]]:
    """The cells that are still to be measured, and at how many samples, if none is left out.

    Those are among them that the precision of attacks is checked with, at the first batch.
    """
    return [(cell, part.n - store.covered(cell.key)) for part, cell in _remaining(plan, store, batch_size)]


def expected(
    request: Request, dataset: Dataset, cards: Sequence[ModelCard], store: Store
) -> list[tuple[Cell, int]]:
    """`work` for models that need not be there yet, of which only what is told of them is known.

    Args:
        request: What is asked for of them.
        dataset: The one that it names.
        cards: The models.
        store: What it has is not counted.

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
    tell: Tell = untold,
) -> Estimate:
    """How long a run of this plan would take, from timed passes of one model of each architecture.

    Args:
        plan: With its strong plan, if there is one.
        targets: Which the cells are of.
        runner: Whose device and dataset the passes are timed with.
        store: What it has is not counted.
        asked: Whether networks are compiled: ``auto``, ``on`` or ``off``.
        tell: Told how far it is.

    Raises:
        UserError: if a model cannot be measured on the device.
    """
    timing, remaining = _Timing(targets, runner), list(_remaining(plan, store, runner.batch_size))
    runner.check(cell for _, cell in remaining)
    # Told by what is timed, not by cells: the first cell of an architecture takes seconds, the others none.
    timed = {(cell.classifier.model, at_once(cell, plan.n)): cell.classifier for _, cell in remaining}
    for (_, images), card in each(list(timed.items()), tell, lambda one: one[0][0]):
        timing.seconds(card, images)
    worth = _worth_compiling(remaining, timing, runner, store, asked)
    seconds, is_bound = math.fsum(seen.seconds for seen in worth.values()), False
    for part, cell in remaining:
        samples, is_known = left(part, cell, store, runner.dataset.labels)
        seen = worth.get(architecture(cell.classifier)) if can_be_compiled(cell) else None
        alone = timing.seconds(cell.classifier, at_once(cell, plan.n)) * cost(cell) * samples
        seconds += alone / (seen.gain if seen else 1)
        if samples:
            in_float32 = cell.perturbation.precision == FLOAT32  # as the passes are timed
            is_bound |= not is_known or attacks.may_stop_early(cell.perturbation) or not in_float32
    return Estimate(seconds, is_bound)


def worth_compiling(
    plan: Plan, targets: Sequence[Target], runner: Runner, store: Store, processes: int = 1
) -> dict[Architecture, CompileTime]:
    """The networks whose attacks would take longer uncompiled, and what compiling them is expected to take.

    Args:
        plan: With its strong plan, if there is one.
        targets: Which the cells are of.
        runner: Whose device and dataset passes are timed with.
        store: What it has is not counted.
        processes: That share the work, of which each has to compile for itself.

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
        # On CUDA nobody has measured yet when it pays.
        if can_be_compiled(cell) and (asked == "on" or (asked == "auto" and runner.device.type == "cpu")):
            samples, _ = left(part, cell, store, runner.dataset.labels)
            of_each[architecture(cell.classifier)].append((part, cell, samples))
    found = {}
    for network, parts in of_each.items():
        if (
            asked == "auto"
            and sum(cost(cell) * samples for _, cell, samples in parts) < LEAST_WORK * processes
        ):
            continue
        part, cell, _ = parts[0]
        passes = frozenset[Pass]().union(*(passes_of(one.perturbation) for _, one, _ in parts))
        images = timing.view(cell.classifier).pixels(CLEAN, 0, min(part.n, runner.batch_size))
        seen = compiling.expected(cell.classifier, passes, images, timing.load(cell.classifier))
        a_pass = timing.seconds(cell.classifier, at_once(cell, part.n))
        seconds = math.fsum(a_pass * cost(one) * samples for _, one, samples in parts)
        if asked == "on" or pays(seconds / processes, seen):
            found[network] = seen
    return found


class _Timing:
    """Seconds of a forward pass of models, each architecture timed once."""

    def __init__(self, targets: Sequence[Target], runner: Runner) -> None:
        self._runner, self._timed = runner, dict[tuple, float]()
        self._targets = {id(target.card): target for target in targets}
        self._singles = {digest(one.card.identity): one.card for one in targets if one.card.members == 1}

    def seconds(self, card: ModelCard, at_once: int) -> float:
        """A pass of one image through one member, of so many images at once."""
        members = [self._singles.get(digest(one)) for one in card.identity.get("ensemble", ())]
        if members and None not in members:  # an ensemble is as slow as its members: they need not be loaded
            return math.fsum(self.seconds(one, at_once) for one in members if one) / len(members)
        alike = card.model, card.params_m, at_once  # other seeds and recipes take as long
        if alike not in self._timed:
            classifier, images = self.load(card), self.view(card).pixels(CLEAN, 0, at_once)
            self._timed[alike] = seconds_per_pass(classifier, images) / card.members
        return self._timed[alike]

    def view(self, card: ModelCard) -> Runner:
        """The runner of the images as it takes them."""
        return self._runner.on(self._targets[id(card)].dataset)

    def load(self, card: ModelCard) -> nn.Module:
        """The classifier that a card is of."""
        return self._runner.load(self._targets[id(card)])


def seconds_per_pass(classifier: nn.Module, images: torch.Tensor) -> float:
    """Seconds that a forward pass takes for each of these images.

    Args:
        classifier: On the device of the images.
        images: (N, C, H, W) pixels in [0, 1], taken at once.
    """
    with undisturbed(classifier), torch.no_grad():
        count = with_fewer(lambda count: len(classifier(images[:count])), len(images))
        images = images[:count]
        started, passes = time.perf_counter(), 0
        while (seconds := time.perf_counter() - started) < TIMED_FOR:
            classifier(images)[0, 0].item()
            passes += len(images)
    return seconds / passes


def choose_threads(targets: Sequence[Target], runner: Runner, n: int, asked: int | None) -> Threads:
    """How many CPU threads suit these targets on `n` samples, tried out on a gradient of the largest.

    Args:
        targets: What is to be measured.
        runner: Where, and in batches of which size.
        n: The samples of the run.
        asked: What the user said, who is obeyed; None tries it out.

    Raises:
        UserError: if the largest cannot be measured.
    """
    if runner.device.type != "cpu" or not targets:
        return threads.choose(asked, None)
    largest = max(targets, key=lambda target: target.card.params_m or 0)
    classifier = runner.load(largest)
    images = runner.on(largest.dataset).pixels(CLEAN, 0, min(TRIED_ON, runner.batch_size, n))
    with undisturbed(classifier):
        return with_fewer(
            lambda count: threads.choose(asked, lambda: _take_gradient(classifier, images[:count])),
            len(images),
        )


def _take_gradient(model: nn.Module, images: torch.Tensor) -> None:
    pixels = images.clone().requires_grad_()
    logits = model(pixels.clone())
    if logits.requires_grad:
        torch.autograd.grad(logits.logsumexp(1).sum(), pixels, allow_unused=True)


def _remaining(plan: Plan, store: Store, batch_size: int) -> Iterator[tuple[Plan, Cell]]:
    """What is still to be measured, and as part of which plan: this one, its strong one, or of a check."""
    for cell in missing(plan, store):
        yield from _with_check(plan, cell, store, batch_size)
    if plan.strong:
        shared = {cell.key for cell in plan.cells} if plan.n >= plan.strong.n else set()
        for cell in missing(plan.strong, store):
            if shared.isdisjoint((cell.key, cell.whole.key)):
                yield from _with_check(plan.strong, cell, store, batch_size)


def _with_check(plan: Plan, cell: Cell, store: Store, batch_size: int) -> Iterator[tuple[Plan, Cell]]:
    """A cell, behind the one that its precision is checked with, if that is to be measured, too."""
    first = min(plan.n, batch_size)
    if (reference := self_check(plan, cell)) and store.covered(reference.whole.key) < first:
        yield replace(plan, n=first), reference
    yield plan, cell

"""What measuring costs: in forward passes, in seconds, and with how many threads it is fastest."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn

from robust_interp import attacks
from robust_interp.benchmark.pending import by_target, left, missing
from robust_interp.benchmark.runner import Runner
from robust_interp.classifiers.ensemble import GRAPHS_KEPT
from robust_interp.classifiers.isolation import undisturbed
from robust_interp.classifiers.target import Target
from robust_interp.core import threads
from robust_interp.core.memory import with_fewer
from robust_interp.core.threads import Threads
from robust_interp.store import Store
from robust_interp.store.cells import CLEAN, Cell, Plan

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


def work(plan: Plan, store: Store) -> list[tuple[Cell, int]]:
    """The cells that are still to be measured, and at how many samples, if none is left out."""
    return [(cell, part.n - store.covered(cell.key)) for part, cell in _remaining(plan, store)]


def estimate(plan: Plan, targets: Sequence[Target], runner: Runner, store: Store) -> Estimate:
    """How long a run of this plan would take, from timed passes of one model of each architecture.

    Args:
        plan: With its strong plan, if there is one.
        targets: Which the cells are of.
        runner: Whose device and dataset the passes are timed with.
        store: What it has is not counted.

    Raises:
        UserError: if a model cannot be measured on the device.
    """
    timed: dict[tuple, float] = {}

    def seconds_of(target: Target, at_once: int) -> float:
        card = target.card
        alike = card.model, card.params_m, at_once  # other seeds and recipes take as long
        if alike not in timed:
            timed[alike] = seconds_per_pass(runner.load(target), runner.pixels(CLEAN, 0, at_once))
        return timed[alike]

    seconds, is_bound = 0.0, False
    for part, cell in _remaining(plan, store):
        ((target, _),) = by_target([cell], targets)
        samples, is_known = left(part, cell, store, runner.dataset.labels)
        at_once = 1 if attacks.is_alone(cell.perturbation) else min(TIMED_ON, plan.n)
        seconds += seconds_of(target, at_once) / target.card.members * cost(cell) * samples
        if samples:
            is_bound |= not is_known or attacks.may_stop_early(cell.perturbation)
    return Estimate(seconds, is_bound)


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
    classifier = runner.load(max(targets, key=lambda target: target.card.params_m or 0))
    images = runner.pixels(CLEAN, 0, min(TRIED_ON, runner.batch_size, n))
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


def _remaining(plan: Plan, store: Store) -> Iterator[tuple[Plan, Cell]]:
    """What is still to be measured, and as part of which plan: this one, or its strong one."""
    for cell in missing(plan, store):
        yield plan, cell
    if plan.strong:
        shared = {cell.key for cell in plan.cells} if plan.n >= plan.strong.n else set()
        for cell in missing(plan.strong, store):
            if shared.isdisjoint((cell.key, cell.whole.key)):
                yield plan.strong, cell

"""The loss along an attack."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from robust_interp.attacks import AttackRunner
from robust_interp.attacks.random_draws import PartOfABatch
from robust_interp.attacks.table import type_of
from robust_interp.benchmark.runner import Runner
from robust_interp.classifiers.isolation import measurement_mode
from robust_interp.store.cells import Perturbation


class _LossTrace(nn.Module):
    """A wrapper of a classifier that records each image's cross-entropy at every gradient of an attack.

    It raises PartOfABatch if a pass is not for all images.
    """

    def __init__(self, classifier: nn.Module, labels: Tensor) -> None:
        super().__init__()
        self.classifier, self.labels = classifier, labels
        self.losses: list[Tensor] = []
        self.training = False

    def forward(self, images: Tensor) -> Tensor:
        logits = self.classifier(images)
        if images.requires_grad:
            self.look(logits)
        return logits

    def look(self, logits: Tensor) -> None:
        if len(logits) < len(self.labels):
            raise PartOfABatch
        self.losses.append(cross_entropy(logits.detach().double(), self.labels, reduction="none").cpu())


def trace(perturbation: Perturbation, classifier: nn.Module, runner: Runner, n: int) -> np.ndarray:
    """Return each image's loss at every gradient of an attack and at its end, (gradients + 1, n).

    Most attacks compute one gradient in each step.

    Args:
        perturbation: The attack; it must compute the same number of gradients for every image.
        classifier: The attacked classifier, on the runner's device.
        runner: The runner with the data set, the device and the batch size.
        n: Number of images, counted from the first of the data set.
    """
    size = 1 if type_of(perturbation.name).alone else runner.batch_size

    def losses(ids: np.ndarray) -> np.ndarray:
        start, stop = int(ids[0]), int(ids[-1]) + 1
        images = torch.from_numpy(runner.dataset.pixels(start, stop)).to(runner.device)
        labels = torch.from_numpy(runner.dataset.labels[start:stop]).to(runner.device)
        traced = _LossTrace(classifier, labels)
        try:
            attacked = AttackRunner(perturbation, traced)(images, labels, ids)
        except PartOfABatch:  # the runner has changed to one image at a time
            return np.concatenate([losses(ids[[at]]) for at in range(len(ids))], axis=1)
        with torch.no_grad():
            traced.look(classifier(attacked.images.clone()))
        return torch.stack(traced.losses).numpy()

    with measurement_mode(classifier):
        batches = [np.arange(start, min(n, start + size)) for start in range(0, n, size)]
        parts = [part for ids in batches for part in runner.in_parts(ids, losses)]
    return np.concatenate(parts, axis=1)

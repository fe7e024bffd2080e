"""The loss along an attack."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from robust_interp.attacks import AttackRunner, is_alone
from robust_interp.benchmark.runner import Runner
from robust_interp.classifiers.isolation import measurement_mode
from robust_interp.store.cells import CLEAN, Perturbation


class _NotOnceEach(BaseException):
    """A pass of an attack on several images was not for each of them once.

    It is no `PartOfABatch`, after which the runner would go on: with the labels of all images.
    """


class _LossTrace(nn.Module):
    """A wrapper of a classifier that records each image's cross-entropy at every gradient of an attack.

    It raises `_NotOnceEach`. Of several copies of one image it records the mean.
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
        count = len(self.labels)
        if len(logits) != count > 1:
            raise _NotOnceEach
        if len(logits):
            labels = self.labels if len(logits) == count else self.labels.expand(len(logits))
            found = cross_entropy(logits.detach().double(), labels, reduction="none")
            self.losses.append(found.view(count, -1).mean(1).cpu())


def trace(perturbation: Perturbation, classifier: nn.Module, runner: Runner, n: int) -> np.ndarray:
    """Return each image's loss at every gradient of an attack and at its end, (gradients + 1, n).

    Most attacks compute one gradient in each step. If the number differs between images, only the losses at
    the first gradient and at the end are returned, (2, n).

    Args:
        perturbation: The attack.
        classifier: The attacked classifier, on the runner's device.
        runner: The runner with the data set, the device and the batch size.
        n: Number of images, counted from the first of the data set.
    """
    size = 1 if is_alone(perturbation) else runner.batch_size

    def losses(ids: np.ndarray) -> np.ndarray:
        start, stop = int(ids[0]), int(ids[-1]) + 1
        images = runner.pixels(CLEAN, start, stop)
        labels = torch.from_numpy(runner.dataset.labels[start:stop]).to(runner.device)
        traced = _LossTrace(classifier, labels)
        try:
            attacked = AttackRunner(perturbation, traced)(images, labels, ids)
        except _NotOnceEach:
            return _joined([losses(ids[[at]]) for at in range(len(ids))])
        with torch.no_grad():
            traced.look(classifier(attacked.images.clone()))
        return torch.stack(traced.losses).numpy()

    with measurement_mode(classifier):
        batches = [np.arange(start, min(n, start + size)) for start in range(0, n, size)]
        parts = [part for ids in batches for part in runner.in_parts(ids, losses)]
    return _joined(parts)


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    if len({len(part) for part in parts}) > 1:
        parts = [part[[0, -1]] for part in parts]
    return np.concatenate(parts, axis=1)

"""The classifier as an attack sees it, with a record of its gradients."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from robust_interp.attacks import precision
from robust_interp.attacks.excluded_classes import finite
from robust_interp.attacks.random_draws import KeyedDraws, PartOfABatch
from robust_interp.core.errors import UserError
from robust_interp.core.model_errors import reported_for
from robust_interp.core.torch_internals import without_function_modes


class GradientProbe(torch.nn.Module):
    """A wrapper of the classifier that records which images get zero or non-finite gradients.

    The gradients are made contiguous, which attacks rely on; a model in channels-last format would return
    them in its own layout. A pass never waits for the GPU.

    Attributes:
        max_batch: Largest number of images in a pass, for rounds with `refills`.
        judge: The measured classifier; None if it is the attacked one.

    Args:
        classifier: Maps images (N, C, H, W) in [0, 1] to logits (N, classes).
        looks: Whether to record gradients; False for attacks that do not depend on them.
        on_pass: Called at each pass with its cost, in forward passes of one image.
        precision: Precision of the gradients, ``float32``, ``tf32`` or ``bf16``.
        judge: The measured classifier; None if it is `classifier`.
    """

    def __init__(
        self,
        classifier: torch.nn.Module,
        looks: bool,
        on_pass: Callable[[int], None],
        precision: str,
        judge: torch.nn.Module | None,
    ) -> None:
        super().__init__()
        self.classifier, self.judge = classifier, judge
        self.training = False  # torchattacks restores the mode it finds here, in all submodules
        self._looks, self._on_pass, self._precision = looks, on_pass, precision
        self.max_batch = 0
        self.start(0)

    def train(self, mode: bool = True) -> GradientProbe:
        """Do nothing: the classifier stays in eval mode, and programs of torch.export have no modes."""
        return self

    def start(self, count: int) -> None:
        """Clear the record before a run over `count` images."""
        self._count = count
        self._seen: tuple[Tensor, Tensor] | None = None  # zero and not finite, (N,) bool each
        self._rows: Tensor | None = None

    def set_rows(self, rows: Tensor) -> None:
        """Set which images of the run the next pass contains.

        Args:
            rows: Distinct indices of images, (n,).
        """
        self._rows = rows

    def findings(self) -> tuple[np.ndarray, np.ndarray]:
        """Return which images had only zero gradients and which had a non-finite gradient, (N,) bool each."""
        if self._seen is None:
            return np.zeros(self._count, bool), np.zeros(self._count, bool)
        zero, not_finite = self._seen
        return zero.cpu().numpy(), not_finite.cpu().numpy()

    def forward(self, images: Tensor) -> Tensor:
        """Map images (N, C, H, W) in [0, 1] to logits (N, classes).

        Raises:
            UserError: if a gradient is needed and the classifier passes none to its input.
        """
        follows = images.requires_grad and torch.is_grad_enabled()
        self._on_pass(len(images) * (3 if follows else 1))  # a gradient counts as two more
        # Protect the attack's images: a model may change its input in place.
        spares = getattr(self.classifier, "spares_its_images", False)
        images = images.view_as(images) if spares else images.clone()
        if follows:
            images.register_hook(_as_images_are)
            if self._looks:
                images.register_hook(self._look)
        with without_function_modes(KeyedDraws):  # the model's random numbers are not those of the attack
            logits = self._logits(images, follows)
        if follows and not logits.requires_grad:
            raise self._impenetrable()
        return finite(logits)

    def _logits(self, images: Tensor, follows: bool) -> Tensor:
        with reported_for(self.classifier):
            if follows:
                return precision.logits_of(self.classifier, images, self._precision)
            return self.classifier(images)

    def _impenetrable(self) -> UserError:
        name = getattr(self.classifier, "name", "the model")
        return UserError(
            f"{name} lets no gradient through to its input, so it cannot be attacked by gradients: use square"
        )

    def _look(self, gradient: Tensor | None) -> None:
        if gradient is None:  # the logits have one, but it ends before the images
            raise self._impenetrable()
        if not len(gradient):  # of a pass without images
            return
        if self._rows is not None:
            self._look_at(self._rows, _largest(gradient.detach(), len(self._rows)))
            return
        largest = _largest(gradient.detach(), self._count)
        zero, not_finite = largest == 0, ~torch.isfinite(largest)
        if self._seen is not None:
            zero, not_finite = self._seen[0] & zero, self._seen[1] | not_finite
        self._seen = zero, not_finite

    def _look_at(self, rows: Tensor, largest: Tensor) -> None:
        if self._seen is None:
            nobody = torch.zeros(self._count, dtype=torch.bool, device=largest.device)
            self._seen = ~nobody, nobody
        zero, not_finite = self._seen
        zero[rows] &= largest == 0
        not_finite[rows] |= ~torch.isfinite(largest)


def _as_images_are(gradient: Tensor | None) -> Tensor | None:
    """Return the gradient as a contiguous tensor; None if it does not reach the images."""
    return None if gradient is None else gradient.contiguous()


def _largest(gradient: Tensor, count: int) -> Tensor:
    """Return the largest absolute value of each image's gradient, (count,), including NaN and infinity.

    A single image may have several rows in the gradient.

    Raises:
        PartOfABatch: if it is not clear which rows are those of which image.
    """
    if len(gradient) != count > 1:
        raise PartOfABatch
    return torch.linalg.vector_norm(gradient.reshape(count, -1), torch.inf, dim=1)

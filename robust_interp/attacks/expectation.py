"""Randomised classifiers: attacked through the mean of several draws, judged by the majority of several.

The expectation over transformation of Athalye et al. (2018): the gradient of the mean logits of K draws is
the mean of their gradients. Every draw is keyed by seed, sample and pass, so that a result can be had again.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from robust_interp.attacks.random_draws import seed_all
from robust_interp.core.random_state import undisturbed_generators

_PASS, _VERDICT = (zlib.crc32(name) for name in (b"pass of a random model", b"verdict of a random model"))


class Randomised(torch.nn.Module):
    """A classifier that draws random numbers from the global generators: K draws of it as one.

    Its logits (N, classes) for images (N, C, H, W) are the mean over K draws. It is given one image at a
    time, so that what an image gets depends on no other one. Draws for verdicts are others than those for
    attacks.

    Args:
        classifier: With a `name`.
        draws: K.
        seed: Of the draws.
    """

    def __init__(self, classifier: torch.nn.Module, draws: int, seed: int) -> None:
        super().__init__()
        self.classifier, self.draws, self.seed = classifier, draws, seed
        self.name = classifier.name
        self._run: tuple[int, int] | None = None  # a sample and the round of an attack on it
        self._passes = 0

    @contextmanager
    def attacked(self, sample: int, number: int) -> Iterator[None]:
        """Inside, passes are those of an attack's round on this sample: each has draws of its own."""
        self._run = int(sample), number
        try:
            yield
        finally:
            self._run, self._passes = None, 0

    def forward(self, images: Tensor) -> Tensor:
        key = (_PASS, *(self._run or ()), self._passes)
        self._passes += self._run is not None
        return torch.cat([self._drawn(image[None], key).mean(0, keepdim=True) for image in images])

    @torch.no_grad()
    def votes(self, images: Tensor, ids: np.ndarray) -> Tensor:
        """How many of K draws take each image for each class, (N, classes); more confidence breaks a tie.

        Args:
            images: (N, C, H, W) in [0, 1].
            ids: Of the samples, (N,), which key the draws.

        Returns:
            The counts plus half the mean probability; NaN where the logits of a draw are not finite.
        """
        return torch.stack(
            [
                _counted(self._drawn(image[None], (_VERDICT, int(key))))
                for image, key in zip(images, ids, strict=True)
            ]
        )

    def _drawn(self, image: Tensor, key: tuple[int, ...]) -> Tensor:
        """The logits of each draw for one image (1, C, H, W), (K, classes)."""
        with undisturbed_generators():
            found = []
            for draw in range(self.draws):
                seed_all(self.seed, *key, draw)
                found.append(self.classifier(image.clone()))
        return torch.cat(found)


def _counted(logits: Tensor) -> Tensor:
    """The votes of draws (K, classes) for one image, (classes,); as of `Randomised.votes`."""
    if (logits.isnan() | (logits == torch.inf)).any():
        return torch.full_like(logits[0], torch.nan)
    counts = F.one_hot(logits.argmax(1), logits.shape[1]).sum(0)
    return counts + logits.softmax(1).mean(0) / 2

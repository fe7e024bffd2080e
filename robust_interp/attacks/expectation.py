"""Randomised classifiers: attacked through the mean of several draws, judged by their majority vote.

This is the expectation over transformation of Athalye et al. (2018): the gradient of the mean logits of K
draws is the mean of their gradients. Every draw is keyed by seed, image and pass, so results are
reproducible.
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
from robust_interp.core.random_state import preserved_rng_state

_PASS, _VERDICT = (zlib.crc32(name) for name in (b"pass of a random model", b"verdict of a random model"))


class EOTClassifier(torch.nn.Module):
    """A wrapper that averages K draws of a classifier which uses the global random generators.

    The logits (N, classes) for images (N, C, H, W) are the mean over K draws. The classifier gets one image
    at a time, so the random numbers for an image do not depend on the other images. Predictions and attacks
    use different draws.

    Args:
        classifier: The random classifier, with an attribute `name`.
        draws: Number of draws K.
        seed: Seed of the draws.
    """

    def __init__(self, classifier: torch.nn.Module, draws: int, seed: int) -> None:
        super().__init__()
        self.classifier, self.draws, self.seed = classifier, draws, seed
        self.name = classifier.name
        self._run: tuple[int, int] | None = None  # image id and round number of the attack that runs
        self._passes = 0

    @contextmanager
    def attack_round(self, sample: int, number: int) -> Iterator[None]:
        """Key the passes inside this context by an attack's round on one image; each pass has new draws.

        Args:
            sample: Id of the image.
            number: Number of the round, from 0.
        """
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
        """Count for each image how many of the K draws predict each class; the confidence breaks ties.

        Args:
            images: Images, (N, C, H, W) in [0, 1].
            ids: Image ids, (N,); they key the draws.

        Returns:
            The counts plus half the mean probability, (N, classes). All classes of an image are NaN if the
            logits of a draw contain NaN or +infinity.
        """
        return torch.stack(
            [
                _counted(self._drawn(image[None], (_VERDICT, int(key))))
                for image, key in zip(images, ids, strict=True)
            ]
        )

    def _drawn(self, image: Tensor, key: tuple[int, ...]) -> Tensor:
        """Return the logits of each draw for one image (1, C, H, W), as (K, classes)."""
        with preserved_rng_state():
            found = []
            for draw in range(self.draws):
                seed_all(self.seed, *key, draw)
                found.append(self.classifier(image.clone()))
        return torch.cat(found)


def _counted(logits: Tensor) -> Tensor:
    """Return the votes (classes,) for one image from the logits (K, classes); see `EOTClassifier.votes`."""
    if (logits.isnan() | (logits == torch.inf)).any():
        return torch.full_like(logits[0], torch.nan)
    counts = F.one_hot(logits.argmax(1), logits.shape[1]).sum(0)
    return counts + logits.softmax(1).mean(0) / 2

"""Training batches: the whole set in memory as pixels, cropped, mirrored and normalised on the fly.

What is random is drawn on the CPU; a batch is then cut on the device by one indexing operation. The padding
is added before the normalisation, as torchvision's transforms would.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from robust_interp.core.normalize import Normalize
from robust_interp.training.recipe import Recipe

_NUMPY_MODES: dict[str, Literal["constant", "reflect"]] = {"zeros": "constant", "reflect": "reflect"}


class Loader:
    """Shuffled, augmented, normalised batches, drawn from a generator of its own.

    `left` is empty where an epoch ends.

    Args:
        images: (N, C, H, W), uint8 or float32 in [0, 1].
        labels: (N,) int64.
        recipe: Filled for the dataset. Says the batch size, how far a random crop may move an image, what
            then shows at its border, and the normalisation.
        flip: Whether images are mirrored, half of them.
        seed: Of the order, the crops and the flips.
    """

    def __init__(
        self,
        images: np.ndarray,
        labels: np.ndarray,
        recipe: Recipe,
        flip: bool,
        seed: int,
        device: torch.device | str,
    ) -> None:
        self.padding, self.flip, self.batch_size = recipe.crop_padding, flip, recipe.batch_size
        border = ((0, 0), (self.padding,) * 2, (self.padding,) * 2, (0, 0))
        # channels last, and so is every batch cut from it
        pixels = np.pad(images.transpose(0, 2, 3, 1), border, _NUMPY_MODES[recipe.padding_mode])
        self.padded = torch.from_numpy(np.ascontiguousarray(pixels)).to(device)
        self.labels = torch.from_numpy(labels).to(device)
        self.scale = 255.0 if images.dtype == np.uint8 else 1.0
        self.normalize = Normalize(*recipe.normalisation, device)
        self.generator = torch.Generator().manual_seed(seed)
        self.left = torch.empty(0, dtype=torch.int64)  # the samples still to come in this epoch

    def __len__(self) -> int:
        """Batches of an epoch; the last, smaller one is kept."""
        return math.ceil(len(self.labels) / self.batch_size)

    def draw(self) -> Tensor:
        """What is random of the next batch, (n, 4) int64 on the CPU: sample, top, left, and 1 if mirrored."""
        if not len(self.left):
            self.left = torch.randperm(len(self.labels), generator=self.generator)
        index, self.left = self.left[: self.batch_size], self.left[self.batch_size :]
        top, left = torch.randint(2 * self.padding + 1, (2, len(index)), generator=self.generator)
        mirrored = torch.rand(len(index), generator=self.generator) < (0.5 if self.flip else 0.0)
        return torch.stack([index, top, left, mirrored.long()], dim=1)

    def cut(self, draws: Tensor) -> tuple[Tensor, Tensor]:
        """The normalised images (n, C, H, W) and labels (n,) of what was drawn.

        Args:
            draws: (n, 4), of `draw`, moved to the device.
        """
        index, top, left, mirrored = draws.unbind(1)
        across = torch.arange(self.padded.shape[1] - 2 * self.padding, device=draws.device)
        rows = top[:, None] + across
        columns = left[:, None] + torch.where(mirrored[:, None] == 1, across.flip(0), across)
        pixels = self.padded[index[:, None, None], rows[:, :, None], columns[:, None, :]]
        return self.normalize((pixels.float() / self.scale).permute(0, 3, 1, 2)), self.labels[index]

    def state(self) -> dict[str, Tensor]:
        """What `restore` needs to go on with the next batch."""
        return {"left": self.left.clone(), "generator": self.generator.get_state()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go on where `state` was asked for."""
        self.left = state["left"]
        self.generator.set_state(state["generator"])

"""Training batches: all images are kept on the device, and cropped, flipped and normalised per batch.

Random numbers are drawn on the CPU; a batch is then gathered on the device by one indexing operation. The
padding is added before the normalisation, as in torchvision's transforms.
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
    """Shuffled, augmented, normalised batches, with a separate random generator.

    Args:
        images: Images (N, C, H, W), uint8 or float32 in [0, 1].
        labels: Class indices (N,), int64.
        recipe: A recipe filled for the data set: batch size, padding and its mode, and normalisation.
        flip: Whether to mirror each image with probability 0.5.
        seed: Seed of the order, the crops and the flips.
        device: Device of the batches.

    Attributes:
        left: Indices of the images still to come in this epoch; empty at the end of an epoch.
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
        # Channels last, so that the batches are, too.
        pixels = np.pad(images.transpose(0, 2, 3, 1), border, _NUMPY_MODES[recipe.padding_mode])
        self.padded = torch.from_numpy(np.ascontiguousarray(pixels)).to(device)
        self.labels = torch.from_numpy(labels).to(device)
        self.scale = 255.0 if images.dtype == np.uint8 else 1.0
        self.normalize = Normalize(*recipe.normalisation, device)
        self.generator = torch.Generator().manual_seed(seed)
        self.left = torch.empty(0, dtype=torch.int64)

    def __len__(self) -> int:
        """Number of batches in an epoch, including the last, smaller one."""
        return math.ceil(len(self.labels) / self.batch_size)

    def draw(self) -> Tensor:
        """Draw the next batch: (n, 4) int64 on the CPU with image index, top, left, and 1 if mirrored."""
        if not len(self.left):
            self.left = torch.randperm(len(self.labels), generator=self.generator)
        index, self.left = self.left[: self.batch_size], self.left[self.batch_size :]
        top, left = torch.randint(2 * self.padding + 1, (2, len(index)), generator=self.generator)
        mirrored = torch.rand(len(index), generator=self.generator) < (0.5 if self.flip else 0.0)
        return torch.stack([index, top, left, mirrored.long()], dim=1)

    def cut(self, draws: Tensor) -> tuple[Tensor, Tensor]:
        """Return the normalised images (n, C, H, W) and labels (n,) of a drawn batch.

        Args:
            draws: Result (n, 4) of `draw`, moved to the device.
        """
        index, top, left, mirrored = draws.unbind(1)
        height, width = (side - 2 * self.padding for side in self.padded.shape[1:3])
        down, across = (torch.arange(side, device=draws.device) for side in (height, width))
        rows = top[:, None] + down
        columns = left[:, None] + torch.where(mirrored[:, None] == 1, across.flip(0), across)
        pixels = self.padded[index[:, None, None], rows[:, :, None], columns[:, None, :]]
        return self.normalize((pixels.float() / self.scale).permute(0, 3, 1, 2)), self.labels[index]

    def state(self) -> dict[str, Tensor]:
        """Return the state for `restore`."""
        return {"left": self.left.clone(), "generator": self.generator.get_state()}

    def restore(self, state: dict[str, Tensor]) -> None:
        """Continue from a result of `state`."""
        self.left = state["left"]
        self.generator.set_state(state["generator"])

"""The normalisation of images as a layer."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Normalize(nn.Module):
    """Computes (images - mean) / std per channel. Its constants are not part of the state dict.

    Args:
        mean: Mean in [0, 1] pixels, one value per channel.
        std: Standard deviation in [0, 1] pixels, one value per channel.
        device: Device of the constants.
        dtype: Type of the constants.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        mean: Sequence[float],
        std: Sequence[float],
        device: str | torch.device | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        for name, values in (("mean", mean), ("std", std)):
            constant = torch.tensor(values, device=device, dtype=dtype).view(-1, 1, 1)
            self.register_buffer(name, constant, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        """Normalise pixels in [0, 1], (N, C, H, W)."""
        return (x - self.mean) / self.std

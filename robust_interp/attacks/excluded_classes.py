"""Classes that a model excludes by a logit of -inf, in the logits that an attack gets."""

from __future__ import annotations

import torch
from torch import Tensor

MASKED_BELOW = 1e4  # distance of excluded classes below others; from 104 on, a probability is 0 in float32


def finite(logits: Tensor) -> Tensor:
    """Replace logits (N, classes) of -inf by a value far below the others.

    Losses subtract logits, and -inf - (-inf) is NaN.
    """
    masked = logits == -torch.inf
    return torch.where(masked, _floor(logits.detach(), masked), logits)


def excluded(logits: Tensor) -> Tensor:
    """Return which classes are excluded in the result of `finite`, (N, classes) bool."""
    return logits == _floor(logits, logits == logits.amin(1, keepdim=True))


def _floor(logits: Tensor, masked: Tensor) -> Tensor:
    """Return the value of masked classes, (N, 1): far below the lowest of the others."""
    return logits.masked_fill(masked, torch.inf).amin(1, keepdim=True) - MASKED_BELOW

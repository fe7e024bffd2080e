"""The precision that an attack's gradients are computed in. What an attack returns is judged in float32."""

from __future__ import annotations

import statistics
import time
from contextlib import AbstractContextManager, nullcontext
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from robust_interp.core.errors import UserError
from robust_interp.core.precision import float32

PROBES, PROBED_FOR = 15, 1.0  # pairs of passes, and seconds, at most


def arithmetic(precision: str) -> AbstractContextManager[None]:
    """TF32 for what runs inside, if that is the precision: a way back runs outside of the model's forward."""
    return float32(tf32=True) if precision == "tf32" else nullcontext()


def logits_of(classifier: torch.nn.Module, images: Tensor, precision: str) -> Tensor:
    """A pass forward in this precision; the logits (N, classes) come back in float32, as losses need them."""
    if precision != "bf16":
        return classifier(images)
    with torch.autocast(images.device.type, torch.bfloat16):
        return classifier(images).float()


def check(precision: str, device: torch.device) -> None:
    """Refuse a precision that the device has no units for.

    Raises:
        UserError: for tf32 without CUDA, and for bf16 on a CPU that is slower in it than in float32.
    """
    if precision == "tf32" and device.type != "cuda":
        raise UserError("attack precision tf32 needs a CUDA device: use float32")
    if precision == "bf16" and device.type == "cpu" and (ratio := slowdown()) > 1:
        raise UserError(
            f"attack precision bf16 is slower than float32 on this CPU ({ratio:.1f} times the time for a "
            "convolution): use float32"
        )


@cache
def slowdown() -> float:
    """How many times as long a convolution and its gradient take on this CPU in bf16, as in float32."""
    ratios: list[float] = []
    started = time.perf_counter()
    _convolve(torch.float32), _convolve(torch.bfloat16)  # the first are slower
    while not ratios or (len(ratios) < PROBES and time.perf_counter() - started < PROBED_FOR):
        alone = _convolve(torch.float32)
        ratios.append(_convolve(torch.bfloat16) / alone)
    return statistics.median(ratios)


def _convolve(dtype: torch.dtype) -> float:
    """Seconds of a convolution in this type, and of the gradient that comes back to its images."""
    with torch.inference_mode(False), torch.enable_grad():
        images = torch.ones(32, 32, 16, 16, dtype=dtype, requires_grad=True)
        weights = torch.ones(32, 32, 3, 3, dtype=dtype)
        started = time.perf_counter()
        F.conv2d(images, weights, padding=1).sum().backward()
        return time.perf_counter() - started

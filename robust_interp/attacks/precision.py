"""Precision of an attack's gradients. The attacked images are always classified in float32."""

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

PROBES, PROBED_FOR = 15, 1.0  # largest number of pairs of passes, and time limit in seconds


def arithmetic(precision: str) -> AbstractContextManager[None]:
    """Return a context that allows TF32 if `precision` is ``tf32``.

    It must enclose the whole attack, because the backward pass runs outside the model's forward.
    """
    return float32(tf32=True) if precision == "tf32" else nullcontext()


def logits_of(classifier: torch.nn.Module, images: Tensor, precision: str) -> Tensor:
    """Run a forward pass in this precision and return the logits (N, classes), for bf16 as float32."""
    if precision != "bf16":
        return classifier(images)
    with torch.autocast(images.device.type, torch.bfloat16):
        return classifier(images).float()


def check(precision: str, device: torch.device) -> None:
    """Refuse a precision that the device does not support or computes slowly.

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
    """Return the time of a convolution and its gradient on this CPU in bf16, divided by that in float32."""
    ratios: list[float] = []
    started = time.perf_counter()
    _convolve(torch.float32), _convolve(torch.bfloat16)  # warm up: the first calls are slower
    while not ratios or (len(ratios) < PROBES and time.perf_counter() - started < PROBED_FOR):
        alone = _convolve(torch.float32)
        ratios.append(_convolve(torch.bfloat16) / alone)
    return statistics.median(ratios)


def _convolve(dtype: torch.dtype) -> float:
    """Return the seconds that a convolution of this type and the gradient of its images take."""
    with torch.inference_mode(False), torch.enable_grad():
        images = torch.ones(32, 32, 16, 16, dtype=dtype, requires_grad=True)
        weights = torch.ones(32, 32, 3, 3, dtype=dtype)
        started = time.perf_counter()
        F.conv2d(images, weights, padding=1).sum().backward()
        return time.perf_counter() - started

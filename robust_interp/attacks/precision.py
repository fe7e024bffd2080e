"""Precision of an attack's gradients. The attacked images are always classified in float32."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from robust_interp.core.errors import UserError
from robust_interp.core.precision import float32


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
    """Raise UserError if the device does not support a precision: tf32 needs CUDA."""
    if precision == "tf32" and device.type != "cuda":
        raise UserError("attack precision tf32 needs a CUDA device: use float32")

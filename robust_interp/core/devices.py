"""The device that torch computes on."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

from robust_interp.core.errors import UserError


def resolve_device(name: str | None) -> torch.device:
    """The device called `name`; by default CUDA where there is one, else the CPU.

    Raises:
        UserError: if there is no such device here.
    """
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    if str(name).partition(":")[0] == "mps":
        raise UserError("device 'mps' is not supported, because it computes nothing in float64: use cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # which a meta device cannot do
    except (TypeError, RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"cannot use device {name!r}: {str(error).splitlines()[0]}") from error
    return device


def by_default(device: torch.device) -> AbstractContextManager:
    """Inside, what names no device is made on this one, if the user has set another default than the CPU."""
    return nullcontext() if torch.get_default_device().type == "cpu" else device

"""The torch device: the choice of one, and where a module is."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn

from robust_interp.core.errors import UserError
from robust_interp.core.texts import first_line_of


def resolve_device(name: str | None) -> torch.device:
    """Return the device called `name`; None means CUDA if available, otherwise the CPU.

    Raises:
        UserError: if this machine has no such device.
    """
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    if str(name).partition(":")[0] == "mps":
        raise UserError("device 'mps' is not supported, because it computes nothing in float64: use cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # fails on a meta device
    except (TypeError, RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"cannot use device {name!r}: {first_line_of(error)}") from error
    return device


def of_module(module: nn.Module) -> torch.device | None:
    """Return the device of a module's parameters; None if it has none, or none with data."""
    return next((parameter.device for parameter in module.parameters() if not parameter.is_meta), None)


def by_default(device: torch.device) -> AbstractContextManager:
    """Return a context with `device` as torch's default device; no effect while the default is the CPU."""
    return nullcontext() if torch.get_default_device().type == "cpu" else device

"""How exactly torch computes in float32: its settings, old and new, set and put back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_BACKENDS, _PARTS = ("cuda", "mkldnn"), ("matmul", "conv", "rnn")  # of the switches that torch 2.9 brought

Switch = tuple[str, str]  # what torch calls its backend, and its operation


@contextmanager
def float32(*, tf32: bool = False, deterministic: bool = True) -> Iterator[None]:
    """Inside, products and convolutions of float32 are computed in it, whatever torch is set to outside.

    Args:
        tf32: Whether TF32 may stand in on CUDA.
        deterministic: Whether cuDNN must compute the same each time; otherwise it looks for what is fastest.
    """
    old_ones = _old_ones_can_be_read()
    before = {} if old_ones else _switched({"cuda": "tf32" if tf32 else "ieee", "mkldnn": "ieee"})
    cudnn = torch.backends.cudnn
    flags = cudnn.enabled, cudnn.benchmark, cudnn.deterministic
    if old_ones:
        allow, precision = cudnn.allow_tf32, torch.get_float32_matmul_precision()
        cudnn.allow_tf32 = tf32
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        cudnn.enabled, cudnn.benchmark, cudnn.deterministic = True, not deterministic, deterministic
        yield
    finally:
        cudnn.enabled, cudnn.benchmark, cudnn.deterministic = flags
        if old_ones:
            torch.set_float32_matmul_precision(precision)
            cudnn.allow_tf32 = allow
        for switch, value in before.items():
            _set(switch, value)


@contextmanager
def float32_by_default() -> Iterator[None]:
    """Inside, new tensors are float32, as those of attacks and models are, whatever is set outside."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _old_ones_can_be_read() -> bool:
    """Whether the settings that all of torch has can be read: not once the new switches were used."""
    try:
        torch.get_float32_matmul_precision()
        return torch.backends.cudnn.allow_tf32 is not None
    except RuntimeError:
        return False


def _switched(values: dict[str, str]) -> dict[Switch, str]:
    """Set the switches of each backend.

    A switch that was never set follows the one above it, which reading does not show; so one is set only if
    those above it were not enough.

    Returns:
        What those that were changed must be set to afterwards.
    """
    whole = ("generic", "all")
    before = {whole: _get(whole)}
    _set(whole, "none")
    before |= {(backend, "all"): _get((backend, "all")) for backend in _BACKENDS}
    for backend in _BACKENDS:
        _set((backend, "all"), values[backend])
        for switch in [(backend, part) for part in _PARTS]:
            if (found := _get(switch)) != values[backend]:
                before[switch] = found
                _set(switch, values[backend])
    return before


def _get(switch: Switch) -> str:
    return torch._C._get_fp32_precision_getter(*switch)


def _set(switch: Switch, value: str) -> None:
    torch._C._set_fp32_precision_setter(*switch, value)

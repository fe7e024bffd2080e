"""Set and restore what torch computes with: the precision of float32, the default dtype, the threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from robust_interp.core.threads import used
from robust_interp.core.torch_internals import fp32_precision, set_fp32_precision

_BACKENDS, _PARTS = ("cuda", "mkldnn"), ("matmul", "conv", "rnn")  # of the new settings, from torch 2.9 on

Switch = tuple[str, str]  # torch's names of a backend and an operation


@contextmanager
def float32(*, tf32: bool = False, deterministic: bool = True) -> Iterator[None]:
    """Context in which float32 products and convolutions are really computed in float32.

    Args:
        tf32: Whether CUDA may use TF32 instead.
        deterministic: Whether cuDNN must be deterministic; otherwise it searches for the fastest algorithm.
    """
    old_ones, wanted = _old_ones_can_be_read(), {"cuda": "tf32" if tf32 else "ieee", "mkldnn": "ieee"}
    by_operation = _by_operation()
    before = {} if old_ones else _switched(wanted)
    cudnn = torch.backends.cudnn
    flags = cudnn.enabled, cudnn.benchmark, cudnn.deterministic
    if old_ones:
        allow, precision = cudnn.allow_tf32, torch.get_float32_matmul_precision()
        cudnn.allow_tf32 = tf32
        torch.set_float32_matmul_precision("high" if tf32 else "highest")
        for backend, part in by_operation:  # an old setting may leave a new one to its parent, which is TF32
            if fp32_precision(backend, part) != wanted[backend]:
                set_fp32_precision(backend, part, wanted[backend])
    try:
        cudnn.enabled, cudnn.benchmark, cudnn.deterministic = True, not deterministic, deterministic
        yield
    finally:
        cudnn.enabled, cudnn.benchmark, cudnn.deterministic = flags
        if old_ones:
            torch.set_float32_matmul_precision(precision)
            cudnn.allow_tf32 = allow
        for switch, value in before.items():
            set_fp32_precision(*switch, value)
        for switch, value in by_operation.items():  # torch.compile sets some that followed their parents
            if fp32_precision(*switch) != value:
                set_fp32_precision(*switch, value)


@contextmanager
def float32_by_default() -> Iterator[None]:
    """Context in which new tensors are float32, as attacks and models expect."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def preserved_settings() -> Iterator[None]:
    """Restore default dtype, gradient mode and number of threads when the block ends, also by an error."""
    dtype = torch.get_default_dtype()
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled()), used(torch.get_num_threads()):
            yield
    finally:
        torch.set_default_dtype(dtype)


def _old_ones_can_be_read() -> bool:
    """Return whether the old settings can be read; torch refuses that once the new ones were used."""
    try:
        torch.get_float32_matmul_precision()
        return torch.backends.cudnn.allow_tf32 is not None
    except RuntimeError:
        return False


def _by_operation() -> dict[Switch, str]:
    """Return the new settings of each operation; empty before torch 2.9, which has none."""
    if not hasattr(torch.backends, "fp32_precision"):
        return {}
    return {(backend, part): fp32_precision(backend, part) for backend in _BACKENDS for part in _PARTS}


def _switched(values: dict[str, str]) -> dict[Switch, str]:
    """Set the new settings of each backend.

    A setting that was never set follows its parent, and reading does not show whether it was set. So a
    setting is changed only if changing its parents was not enough.

    Returns:
        The old values of the settings that were changed.
    """
    whole = ("generic", "all")
    before = {whole: fp32_precision(*whole)}
    set_fp32_precision(*whole, "none")
    before |= {(backend, "all"): fp32_precision(backend, "all") for backend in _BACKENDS}
    for backend in _BACKENDS:
        set_fp32_precision(backend, "all", values[backend])
        for switch in [(backend, part) for part in _PARTS]:
            if (found := fp32_precision(*switch)) != values[backend]:
                before[switch] = found
                set_fp32_precision(*switch, values[backend])
    return before

"""What the package uses of torch that torch does not promise to keep: texts of errors, and private parts.

Only this module depends on them; tests/core/test_torch_internals.py fails if a version of torch differs.
Torch is imported within the functions, since some of their callers must not import it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robust_interp.core.texts import first_line_of

if TYPE_CHECKING:
    from torch import nn

# messages of CUDA, HIP and MPS, and of torch's allocator on a CPU
_LACK_OF_MEMORY = (
    *("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory"),
    *("cublas_status_alloc_failed", "cudnn_status_alloc_failed"),  # of libraries, where a GPU is nearly full
)
_REFUSED = re.compile(r"Unsupported global: GLOBAL (\S+)")  # torch.load(..., weights_only=True) on a class
_REFUSED_OR_BLOCKED = re.compile(
    r"GLOBAL ([\w.]+)"
)  # or on what no setting of the loader allows, as os.system


def reports_lack_of_memory(error: BaseException) -> bool:
    """Return whether an error of torch reports a lack of memory, on any device."""
    if not isinstance(error, RuntimeError):
        return False
    if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True
    text = str(error).lower()
    return any(words in text for words in _LACK_OF_MEMORY)


def dead_worker(error: BaseException) -> str:
    """Return the line for an error of a DataLoader whose worker process has ended; empty for any other.

    Where processes are forked, torch raises it in the main thread, whatever that is doing at the moment.
    """
    if not isinstance(error, RuntimeError) or "DataLoader worker (pid" not in str(error):
        return ""
    reason = first_line_of(error)
    return f"a process that decodes images has ended ({reason}); use fewer with --decode-workers"


def stop_workers(iterator: Any) -> None:
    """Stop the worker processes of a DataLoader's iterator now.

    torch does it when the iterator is collected. The traceback of an error delays that, and a worker that is
    forked meanwhile has a copy, whose destructor fails there.
    """
    iterator._shutdown_workers()


def error_in_worker(error: BaseException) -> str | None:
    """Return the type and message of an error, in one line, that a DataLoader worker has passed on.

    torch raises an error of the same type whose message contains the traceback in the worker. None for any
    other error.
    """
    text = str(error.args[0]) if error.args else ""
    if "in DataLoader worker process" not in text:
        return None
    if "\n" not in text:  # a UserError has joined the lines of the traceback
        return text.partition(f" {type(error).__module__}.{type(error).__qualname__}: ")[2] or None
    lines = text.rpartition("Traceback (most recent call last):\n")[2].splitlines()
    return next((line for line in lines if line and not line.startswith(" ")), None)


def refused_classes(error: BaseException) -> set[str]:
    """Return the full names of classes that the weights-only loader refuses but could be told to allow."""
    return set(_REFUSED.findall(str(error)))


def pickled_name(error: BaseException) -> str | None:
    """Return the full name of the class or function that the weights-only loader refuses; None if none."""
    found = _REFUSED_OR_BLOCKED.search(str(error))
    return found[1] if found else None


def suggests_unsafe_loading(message: str) -> bool:
    """Return whether a message of the weights-only loader suggests weights_only=False, which runs code."""
    return "weights_only" in message


def fp32_precision(backend: str, operation: str) -> str:
    """Return a setting of float32 precision, such as ``ieee`` or ``none``, of those from torch 2.9 on."""
    import torch

    return torch._C._get_fp32_precision_getter(backend, operation)


def set_fp32_precision(backend: str, operation: str, value: str) -> None:
    """Change a setting of float32 precision, of those from torch 2.9 on."""
    import torch

    torch._C._set_fp32_precision_setter(backend, operation, value)


def compile_cache() -> Path:
    """Return the folder in which torch.compile caches compiled code; it is created if it is missing."""
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    return Path(cache_dir())


@contextmanager
def without_function_modes(kind: type | None = None) -> Iterator[None]:
    """Disable the active torch function modes, such as that of an attack's random draws.

    Args:
        kind: The class of modes to disable; None disables all. A default device of the user is a mode, too.
    """
    from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode

    modes = _get_current_function_mode_stack()
    kept = [mode for mode in modes if kind and not isinstance(mode, kind)]
    for _ in modes:
        _pop_mode()
    for mode in kept:
        _push_mode(mode)
    try:
        yield
    finally:
        for _ in kept:
            _pop_mode()
        for mode in modes:
            _push_mode(mode)


@contextmanager
def compilation_limit(most: int) -> Iterator[None]:
    """Let torch.compile compile one function up to `most` times; beyond its limit it runs uncompiled."""
    import torch._dynamo.config as dynamo

    with dynamo.patch(recompile_limit=most, accumulated_recompile_limit=most):
        yield


@contextmanager
def kept_buffers() -> Iterator[None]:
    """Let torch.compile keep the buffers of a pass for a second backward pass through it.

    Some attacks backpropagate through one pass several times, so its buffers must not be donated.
    """
    import torch._functorch.config as functorch

    with functorch.patch(donated_buffer=False):
        yield


def uncompiled(model: nn.Module) -> nn.Module:
    """Return the module that torch.compile was given, or the model itself if it is not from torch.compile."""
    if not type(model).__module__.startswith("torch._dynamo"):  # others may have a part named _orig_mod
        return model
    return getattr(model, "_orig_mod", model)


def is_quantised(module: nn.Module) -> bool:
    """Return whether a module is one of torch's quantised ones."""
    return "quantized" in type(module).__module__


def is_quantised_by_batch(module: nn.Module) -> bool:
    """Return whether a module is dynamically quantised: it rounds its input by the range of the batch."""
    return "quantized.dynamic" in type(module).__module__


def has_hooks(module: nn.Module) -> bool:
    """Return whether a module has hooks of its forward or backward pass."""
    forward = module._forward_hooks or module._forward_pre_hooks
    return bool(forward or module._backward_hooks or module._backward_pre_hooks)

"""Detect out-of-memory errors, and retry with smaller batches. Imports no torch."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import TypeVar

from robust_interp.core.errors import UserError

R = TypeVar("R")

# messages of CUDA, HIP and MPS, and of torch's allocator on a CPU
_WORDING = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception reports a lack of memory, on any device."""
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):  # torch's
        return True
    text = str(error).lower()
    return any(words in text for words in _WORDING)


def _free_memory() -> None:
    """Free the memory of a failed attempt. Call it outside the `except` block, which holds the frames."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def retry_with_smaller_batch(work: Callable[[int], R], count: int, device: object) -> R:
    """Call `work` for `count` images, and halve the number until memory suffices. Return its result.

    Args:
        work: Called with the number of images to process at once.
        count: Number of images, at least 1.
        device: The device that computes, for the message.

    Raises:
        UserError: if memory does not suffice for one image.
    """
    while True:
        try:
            return work(count)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            if count == 1:
                raise UserError(
                    f"{device} has no memory for one image at a time, which is --batch-size 1; "
                    "finished work is saved"
                ) from error
        _free_memory()
        count //= 2

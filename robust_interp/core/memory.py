"""Detect out-of-memory errors, and retry with smaller batches. Imports no torch."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import TypeVar

from robust_interp.core.errors import UserError
from robust_interp.core.torch_internals import reports_lack_of_memory

R = TypeVar("R")


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an exception reports a lack of memory, on any device."""
    return isinstance(error, MemoryError) or reports_lack_of_memory(error)


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

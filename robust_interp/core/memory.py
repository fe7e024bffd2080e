"""Detect out-of-memory errors, and retry with smaller batches. Imports no torch."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import TypeVar

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


def retry_with_smaller_batch(work: Callable[[int], R], count: int) -> R:
    """Call `work` for `count` images, and halve the number until memory suffices. Return its result.

    Args:
        work: Called with the number of images to process at once.
        count: Number of images, at least 1.

    Raises:
        RuntimeError, MemoryError: the error of `work`, if memory does not suffice for one image.
    """
    while True:
        try:
            return work(count)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or count == 1:
                raise
        _free_memory()
        count //= 2

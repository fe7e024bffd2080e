"""Running out of memory: what it looks like, and going on with less at once. No torch here."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")

# of CUDA, HIP and MPS; of torch's allocator on a CPU
_WORDING = ("out of memory", "not enough memory", "can't allocate memory", "cannot allocate memory")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that there was not enough memory, on whatever device."""
    if isinstance(error, MemoryError):
        return True
    if not isinstance(error, RuntimeError):
        return False
    if any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):  # torch's
        return True
    text = str(error).lower()
    return any(words in text for words in _WORDING)


def _give_back() -> None:
    """Free what a failed try has left behind. Call it outside the `except`, which holds the frames."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def with_fewer(work: Callable[[int], R], count: int) -> R:
    """What `work` returns for `count` images, or for half as many until there is memory for them.

    Args:
        work: Is given how many images it may use at once.
        count: From 1.

    Raises:
        RuntimeError, MemoryError: as `work` raised it, if one image does not fit.
    """
    while True:
        try:
            return work(count)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error) or count == 1:
                raise
        _give_back()
        count //= 2

"""Settings of torch for the whole process, which foreign code may change."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def preserved_settings() -> Iterator[None]:
    """Restore default dtype, gradient mode and number of threads when the block ends, also by an error."""
    dtype, gradients, threads = torch.get_default_dtype(), torch.is_grad_enabled(), torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradients)
        if torch.get_num_threads() != threads:
            torch.set_num_threads(threads)

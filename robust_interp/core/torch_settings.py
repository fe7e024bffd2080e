"""Settings of torch for the whole process, which foreign code may change."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from robust_interp.core.threads import used


@contextmanager
def preserved_settings() -> Iterator[None]:
    """Restore default dtype, gradient mode and number of threads when the block ends, also by an error."""
    dtype = torch.get_default_dtype()
    try:
        with torch.set_grad_enabled(torch.is_grad_enabled()), used(torch.get_num_threads()):
            yield
    finally:
        torch.set_default_dtype(dtype)

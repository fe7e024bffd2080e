"""Settings of torch for the whole process, which foreign code may change."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def preserved_settings() -> Iterator[None]:
    """Restore the default dtype and the gradient mode when the block ends, also by an error."""
    dtype, gradients = torch.get_default_dtype(), torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_default_dtype(dtype)
        torch.set_grad_enabled(gradients)

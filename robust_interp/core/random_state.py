"""The global random generators, left as they were."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def undisturbed_generators() -> Iterator[None]:
    """Puts the global generators of torch (on every device), numpy and Python back as they were."""
    numpys, pythons = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        np.random.set_state(numpys)
        random.setstate(pythons)

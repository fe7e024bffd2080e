"""The global random generators, left as they were, and what keeps threads out of each other's way."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

# The generators, torch's precision and its number of threads belong to the process, and a model may be shared
# by threads, whole or in part. So it is one lock for all: two measurements run one after the other. It may be
# taken again by the thread that has it.
_ONE_AT_A_TIME = threading.RLock()


@contextmanager
def one_at_a_time() -> Iterator[None]:
    """Inside, no other thread measures: it waits at the entrance until this one leaves."""
    with _ONE_AT_A_TIME:
        yield


@contextmanager
def undisturbed_generators() -> Iterator[None]:
    """Puts the global generators of torch (on every device), numpy and Python back as they were.

    One thread at a time: what another one sets in between would be lost.
    """
    with one_at_a_time(), _restored():
        yield


@contextmanager
def _restored() -> Iterator[None]:
    numpys, pythons = np.random.get_state(), random.getstate()
    try:
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        np.random.set_state(numpys)
        random.setstate(pythons)

"""Restore the global random generators, and let one thread measure at a time."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

# The generators, torch's precision and its number of threads are global to the process, and threads may share
# models or parts of them. So one lock serialises all measurements. It is reentrant.
_LOCK = threading.RLock()


@contextmanager
def measurement_lock() -> Iterator[None]:
    """Context that only one thread can be in at a time; other threads wait."""
    with _LOCK:
        yield


@contextmanager
def preserved_rng_state() -> Iterator[None]:
    """Context that restores the global generators of torch (on every device), NumPy and Python at its end.

    Only one thread can be in it at a time, since changes by other threads would be lost.
    """
    with measurement_lock(), _restored():
        yield


@contextmanager
def _restored() -> Iterator[None]:
    numpys, pythons = np.random.get_state(), random.getstate()
    # Where the driver does not suit PyTorch, GPUs are counted, but none is available.
    devices = range(torch.cuda.device_count()) if torch.cuda.is_available() else ()
    try:
        with torch.random.fork_rng(devices=devices):
            yield
    finally:
        np.random.set_state(numpys)
        random.setstate(pythons)


def generator_states() -> tuple:
    """Return the states of the global generators of torch, NumPy and Python, to be compared."""
    numpys = np.random.get_state(legacy=False)["state"]
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    torchs = [state.numpy().tobytes() for state in (torch.get_rng_state(), *devices)]
    return random.getstate(), numpys["pos"], numpys["key"].tobytes(), torchs

"""The global generators are left as they were found."""

import random

import numpy as np
import torch

from robust_interp.core.random_state import generator_states, preserved_rng_state


def test_they_are_left_as_they_were_where_gpus_are_counted_and_none_is_usable(monkeypatch):
    """With a driver that is too old for PyTorch, device_count() is 1, and is_available() False."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: 1 / 0)
    before = generator_states()
    with preserved_rng_state():
        torch.rand(3), np.random.rand(3), random.random()
        assert generator_states() != before
    assert generator_states() == before

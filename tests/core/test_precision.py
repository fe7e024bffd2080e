"""What foreign code changes in torch's settings does not outlast it."""

import pytest
import torch

from robust_interp.core.precision import preserved_settings


def foreign_code(threads):
    with preserved_settings():
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.set_num_threads(threads)
        raise ValueError("stop")


def test_they_are_as_before_also_after_an_error():
    before = torch.get_num_threads()
    with pytest.raises(ValueError, match="stop"):
        foreign_code(before + 1)
    assert torch.get_num_threads() == before
    assert torch.get_default_dtype() == torch.float32
    assert torch.is_grad_enabled()

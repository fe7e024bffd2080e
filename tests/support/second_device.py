"""Run a command of this package where PyTorch has a device ``second``.

    python -m support.second_device BUILD bench --device second ...

BUILD is the folder in which the C++ code of the device is compiled; without a command, nothing else is done.
PyTorch takes one such device in a process, for good, so the tests run this in processes of its own.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

import torch
from torch.utils.cpp_extension import load


def register(build: Path) -> None:
    """Add the device ``second`` to PyTorch; see second_device.cpp."""
    source = Path(__file__).with_suffix(".cpp")
    load("second_device", [str(source)], extra_cflags=["-O1"], build_directory=str(build)).register_hooks()
    torch.utils.rename_privateuse1_backend("second")
    module = types.ModuleType("torch.second")
    answers = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "_is_in_bad_fork": lambda: False,
        "manual_seed_all": lambda seed: None,  # it draws from the CPU's generator
        "get_rng_state": lambda device=None: torch.get_rng_state(),
        "set_rng_state": lambda state, device=None: torch.set_rng_state(state),
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
    }
    vars(module).update(answers)
    torch._register_device_module("second", module)
    torch.utils.generate_methods_for_privateuse1_backend()
    torch.Tensor.__deepcopy__ = _deepcopy(torch.Tensor.__deepcopy__)


def _deepcopy(original):
    """PyTorch cannot copy storages of such a device."""

    def copied(tensor, memo):
        if tensor.device.type != "second" or type(tensor) is not torch.Tensor:
            return original(tensor, memo)
        return memo.setdefault(id(tensor), tensor.detach().clone())

    return copied


if __name__ == "__main__":
    register(Path(sys.argv[1]))
    if words := sys.argv[2:]:
        from robust_interp.cli.main import main

        sys.exit(main(words))

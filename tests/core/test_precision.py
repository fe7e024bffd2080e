"""What torch computes with: float32 is float32, and what foreign code changes does not outlast it."""

import subprocess
import sys

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


INSIDE = """
import os, sys, traceback
import torch
from robust_interp.core.precision import float32
from robust_interp.core.torch_internals import fp32_precision

PARTS = [(backend, part) for backend in ("cuda", "mkldnn") for part in ("matmul", "conv", "rnn")]

def look(preparation):
    exec(preparation)
    before = [fp32_precision(*part) for part in PARTS]
    with float32():
        assert {fp32_precision(*part) for part in PARTS} == {"ieee"}
    assert [fp32_precision(*part) for part in PARTS] == before
    with float32(tf32=True):
        assert [fp32_precision(*part) for part in PARTS] == ["tf32"] * 3 + ["ieee"] * 3

for preparation in sys.argv[1:]:
    if not os.fork():  # a process of its own: what is set is set for good
        try:
            look(preparation)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(os.wait()[1], preparation, flush=True)
"""


COMPILED = """
import torch
from robust_interp.core.precision import float32
torch.backends.fp32_precision = "tf32"
with float32():
    torch.compile(lambda x: x @ x, backend="eager")(torch.ones(3, 3))
print(torch.backends.cuda.matmul.fp32_precision, torch.backends.cudnn.conv.fp32_precision)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="torch before 2.9")
def test_what_was_set_before_is_set_after_a_compilation():
    """It saves and restores settings, by which one that followed its parent becomes its own."""
    found = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True)
    assert found.stdout == "tf32 tf32\n", found.stderr


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="torch before 2.9")
def test_every_operation_is_in_float32_whatever_was_set_before():
    new = 'torch.backends.fp32_precision = "tf32"'
    preparations = [
        "pass",
        new,
        f"with float32(): pass\n{new}",
        f'torch.set_float32_matmul_precision("high"); {new}',
        f'torch.set_float32_matmul_precision("highest"); {new}',
        'torch.set_float32_matmul_precision("high"); torch.backends.cudnn.fp32_precision = "tf32"',
        "torch.backends.cudnn.allow_tf32 = True",
        'torch.backends.cudnn.conv.fp32_precision = "tf32"',
        'torch.backends.mkldnn.conv.fp32_precision = "bf16"',
    ]
    found = subprocess.run([sys.executable, "-c", INSIDE, *preparations], capture_output=True, text=True)
    assert found.stdout == "".join(f"0 {each}\n" for each in preparations), found.stderr

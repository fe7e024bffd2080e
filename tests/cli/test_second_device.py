"""On a device that is not the CPU, every command computes what it computes on the CPU.

The device is simulated: its numbers are the CPU's bit for bit, and an operation that mixes the two devices
fails, as on a GPU. What only CUDA has (graphs, streams, TF32) is not tested by it.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.prerequisites import missing

pytestmark = pytest.mark.exhaustive

TESTS = Path(__file__).parents[1]
ATTACKS = (
    "fgsm,ifgsm,mifgsm,pgd(restarts=2),pgd(target=least_likely),pgd(stop=broken),pgd(eps=0),pgd_l2(eps=0.5),"
    "apgd_ce(steps=3),apgd_ce(norm=L2, eps=0.5, steps=3),apgd_dlr(steps=3),apgd_t(steps=3, targets=2),"
    "square(queries=20),square(norm=L2, eps=0.5, queries=20),cw(steps=3),deepfool(steps=3)"
)
MODEL = ("--models", "in_resnet20", "--seeds")
PART = (*MODEL, "1", "--n", "8", "--eps", "16")
COMMANDS = {
    "bench": ("bench", *PART, "--attacks", ATTACKS, "--corruptions", "shot_noise,fog", "--round-to-8-bit"),
    "autoattack": (
        "bench",
        *MODEL,
        "1",
        "--n",
        "3",
        "--eps",
        "32",
        "--attacks",
        "autoattack",
        "--corruptions",
        "none",
    ),
    "worst": ("bench", *PART, "--protocol", "worst", "--strong", "--strong-n", "4", "--corruptions", "none"),
    "bf16": ("bench", *PART, "--attacks", "pgd", "--corruptions", "none", "--attack-precision", "bf16"),
    "ensembles": (
        *("bench", *MODEL, "2", "--n", "8", "--eps", "16", "--attacks", "pgd", "--corruptions", "none"),
        *("--ensemble-attack", "white-box,member:0,mean-gradient"),
    ),
    "random": (
        *("bench", "--models", "nets:random", "--n", "8", "--eps", "16", "--attacks", "pgd"),
        *("--corruptions", "none", "--eot", "2"),
    ),
    "audit": ("audit", *PART, "--strongest", "apgd_ce(steps=5)", "--black-box", "square(queries=20)"),
    "train": ("train", "--models", "in_resnet14,lambda_in_resnet14", "--epochs", "1", "--seeds", "2"),
    "stability": ("stability", *MODEL, "1", "--n", "2"),
    "landscape": ("plot", "landscape", "--models", "in_resnet20", "--n", "4", "--points", "5"),
}
NETS = """
import torch
from torch import nn

class Noisy(nn.Module):
    def forward(self, x):
        return x + 0.05 * torch.randn_like(x)

class Mixed(nn.Module):
    def forward(self, x):
        return x - torch.full((1, 1, 8, 8), 0.5)

def net(first):
    torch.manual_seed(0)
    return nn.Sequential(first, nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 10))

def random():
    return net(Noisy())

def mixed():
    return net(Mixed())
"""


@pytest.fixture(scope="module")
def on_second(tmp_path_factory):
    """Run a command on the device ``second``, with the given working directory; return what ended."""
    for program in ("c++", "ninja"):
        if not shutil.which(program):
            missing(f"the device is compiled, and there is no {program}")
    start = [sys.executable, "-m", "support.second_device", tmp_path_factory.mktemp("build")]
    compiled = _run(start, TESTS)
    assert compiled.returncode == 0, compiled.stdout + compiled.stderr

    def run(words, folder):
        return _run([*start, *words, "--device", "second"], folder)

    return run


def _run(words, folder):
    paths = os.pathsep.join(map(str, (TESTS, TESTS.parent)))
    env = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        list(map(str, words)), cwd=folder, env=env, capture_output=True, text=True, timeout=600
    )


def _numbers(folder: Path) -> dict[str, bytes]:
    """Return the files of results, weights and figures' numbers; not those that tell the time or device."""
    wanted = ("leaderboard.csv", "audit.csv", "stability.csv", "stability_growth.csv", "landscape_line.csv")
    found = [
        path for path in folder.rglob("*") if path.name in wanted or path.suffix in (".safetensors", ".npz")
    ]
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(found)}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_computes_the_same_there(on_second, tmp_path, name):
    (tmp_path / "nets.py").write_text(NETS)
    command = (*COMMANDS[name], "--out")
    there = on_second([*command, "there"], tmp_path)
    here = _run([sys.executable, "-m", "robust_interp", *command, "here", "--device", "cpu"], tmp_path)
    assert (there.returncode, here.returncode) == (0, 0), there.stderr + here.stderr
    numbers = _numbers(tmp_path / "here")
    assert numbers
    assert _numbers(tmp_path / "there") == numbers


def test_a_model_that_mixes_devices_is_refused_there(on_second, tmp_path):
    (tmp_path / "nets.py").write_text(NETS)
    command = [
        "bench",
        "--models",
        "nets:mixed",
        "--n",
        "4",
        "--attacks",
        "fgsm",
        "--corruptions",
        "none",
        "--out",
    ]
    assert _run([sys.executable, "-m", "robust_interp", *command, "here"], tmp_path).returncode == 0
    refused = on_second([*command, "there"], tmp_path)
    assert refused.returncode == 1
    assert "Expected all tensors to be on the same device" in refused.stderr.splitlines()[-1]

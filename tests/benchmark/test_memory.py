"""Memory: what is freed after a measurement, and what happens where there is too little."""

import gc
import weakref

import numpy as np
import pytest
import torch
from torch import nn

import robust_interp
from robust_interp.cli.main import main

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Linear(nn.Module):
    """Refuses more than `most` images at once, as a device without memory does."""

    def __init__(self, most=10**9, error=None):
        super().__init__()
        self.inner = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
        with torch.no_grad():
            weights = np.random.default_rng(0).normal(size=(10, 64))
            self.inner[1].weight.copy_(torch.from_numpy(weights))
            self.inner[1].bias.zero_()
        self._most, self._error = most, error

    def forward(self, images):
        if len(images) > self._most:
            raise self._error
        return self.inner(images)


ATTACKS = [
    "none",
    "fgsm",
    "pgd(steps=2,restarts=2)",
    "apgd_ce(steps=2)",
    "apgd_t(steps=2)",
    "square(queries=3)",
    "cw(eps=1,steps=2)",
    "deepfool(eps=1,steps=2)",
    "autoattack",
]


@pytest.mark.slow
@pytest.mark.parametrize("attack", ATTACKS)
def test_nothing_large_is_alive_after_a_measurement_without_the_garbage_collector(attack):
    def measure():
        images = np.random.default_rng(0).random((4, 1, 8, 8), dtype=np.float32)
        model = Linear()
        corruptions = "gaussian_noise(severity=1)" if attack == "none" else "none"
        robust_interp.evaluate(
            model, (images, [0, 1, 2, 3], 10), attacks=attack, corruptions=corruptions, eps="8/255"
        )
        return weakref.ref(model), weakref.ref(images)

    measure()  # what is imported on the way may keep frames
    gc.collect()
    gc.disable()
    try:
        assert [alive() for alive in measure()] == [None, None]
    finally:
        gc.enable()


OUT_OF_MEMORY = [
    torch.OutOfMemoryError("no room"),
    RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    RuntimeError("MPS backend out of memory (MPS allocated: 1 GB, max allowed: 1 GB)"),
    RuntimeError("[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory"),
    RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 1 bytes."),
    MemoryError(),
]


def measured_in_batches(model):
    options = {"corruptions": "none", "attacks": "pgd(steps=3),square(queries=5)", "seed": 3}
    return robust_interp.evaluate({"m": model}, "digits", eps=(16 / 255,), n=13, batch_size=12, **options)


@pytest.fixture(scope="module")
def with_enough_memory():
    return measured_in_batches(Linear())


@pytest.mark.slow
@pytest.mark.parametrize("error", OUT_OF_MEMORY, ids=range(len(OUT_OF_MEMORY)))
def test_too_little_memory_halves_the_batch_and_changes_no_number(error, with_enough_memory):
    with pytest.warns(UserWarning, match="ran out of memory with batches of 12: at most 3 images") as told:
        found = measured_in_batches(Linear(5, error))
    assert sum("memory" in str(one.message) for one in told) == 1
    expected = with_enough_memory
    same = [column for column in found if column not in ("seconds", "weights_sha256")]
    assert found[same].equals(expected[same])


@pytest.mark.slow
def test_a_model_for_which_one_image_is_too_much_is_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "greedy.py").write_text(
        "import torch\n"
        "def make():\n    torch.manual_seed(0)\n"
        "    class Net(torch.nn.Sequential):\n"
        "        def forward(self, images):\n"
        "            if images.requires_grad and self.told > 20: raise torch.OutOfMemoryError('no room')\n"
        "            self.told += 1\n"
        "            return super().forward(images)\n"
        "    net = Net(torch.nn.Flatten(), torch.nn.Linear(64, 10))\n"
        "    net.told = 0\n"
        "    return net\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = [
        "bench",
        "--models",
        "greedy:make",
        "--dataset",
        "digits",
        "--n",
        "8",
        "--out",
        "out",
        "--quiet",
        "--corruptions",
        "none",
    ]
    assert main([*arguments, "--attacks", "pgd"]) == 1
    told = capsys.readouterr().err.splitlines()
    assert sum("--batch-size" in line for line in told) == 1
    assert main([*arguments, "--attacks", "none"]) == 0
    assert "nothing new to measure" in capsys.readouterr().out


@pytest.mark.slow
def test_too_little_memory_for_one_image_in_the_first_check_is_one_line_too():
    with pytest.raises(robust_interp.UserError, match="cpu has no memory for one image at a time"):
        robust_interp.evaluate(Linear(0, MemoryError()), "digits", n=4, corruptions="none", attacks="none")


@pytest.mark.parametrize("size", [1, 4, 8, 32])
def test_a_model_of_a_fixed_batch_size_is_one_line(size):
    class Fixed(Linear):
        def forward(self, images):
            return self.inner(images.view(size, 1, 8, 8))

    with pytest.raises(robust_interp.UserError, match=f"takes batches of {size} image"):
        robust_interp.evaluate(Fixed(), "digits", n=8, corruptions="none", attacks="fgsm")


@pytest.mark.slow
def test_a_program_of_torch_export_has_the_numbers_of_its_model():
    model = Linear().inner.eval()
    batch = torch.export.Dim("batch", min=1, max=1024)
    program = torch.export.export(model, (torch.rand(4, 1, 8, 8),), dynamic_shapes=({0: batch},)).module()
    found, expected = (
        robust_interp.evaluate(one, "digits", n=16, corruptions="none", attacks="fgsm,pgd(steps=2)")
        for one in (program, model)
    )
    assert found["accuracy"].tolist() == expected["accuracy"].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("attack", ["square(queries=5)", "apgd_ce(steps=2)", "autoattack"])
def test_float64_by_default_changes_no_number_and_stays(attack):
    options = {"corruptions": "none", "n": 8, "attacks": attack, "eps": "8/255"}
    expected = robust_interp.evaluate({"m": Linear()}, "digits", **options)
    torch.set_default_dtype(torch.float64)
    try:
        model = Linear()
        found = robust_interp.evaluate({"m": model}, "digits", **options)
        assert torch.get_default_dtype() == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    assert found["accuracy"].tolist() == expected["accuracy"].tolist()

"""What surrounds a measurement does not change it, and a measurement changes nothing around it."""

import contextlib
import random
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pandas as pd
import pytest
import torch
from support.one_pixel import IMAGES, LABELS, Net, evaluate, measured, numbers
from support.stored import chunks
from torch import nn

import robust_interp
from robust_interp.classifiers.isolation import measurement_mode

# The networks here are untrained or built to mislead, which evaluate remarks on.
pytestmark = [pytest.mark.usefixtures("elsewhere"), pytest.mark.filterwarnings("ignore::UserWarning")]


def around():
    """Everything in torch that changes how a number is computed."""
    return (
        torch.is_autocast_enabled("cpu"),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.get_float32_matmul_precision(),
    )


class Matmul(nn.Module):
    """Class 1 above one half, by a product that half precision rounds to a tie; notes its surroundings."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(2, 2, bias=False)
        self.linear.weight.data = torch.tensor([[-1.0, 1.0], [1.0, -1.0]])
        self.seen = set()

    def forward(self, images):
        self.seen.add(around()[::3])
        pixels = images.flatten(1)
        return self.linear(torch.cat([pixels, torch.full_like(pixels, 0.5)], dim=1))


@contextlib.contextmanager
def medium_precision():
    torch.set_float32_matmul_precision("medium")
    yield


AROUND = {
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "medium precision": medium_precision,
}


@pytest.fixture
def precision():
    before = torch.get_float32_matmul_precision()
    yield
    torch.set_float32_matmul_precision(before)


@pytest.mark.slow
@pytest.mark.usefixtures("precision")
@pytest.mark.parametrize("surroundings", AROUND)
def test_what_surrounds_a_measurement_does_not_change_it_and_is_not_changed(surroundings):
    near = np.float32(2**-12)  # bfloat16 keeps 8 bits: 0.5 + near is 0.5 to it
    images = np.array([0.5 + near, 0.5 - near, 0.9, 0.1], np.float32).reshape(-1, 1, 1, 1)
    model, dataset = Matmul(), (images, [1, 0, 1, 0])
    with AROUND[surroundings]():
        before = around()
        assert before != (False, True, False, "highest")
        table = evaluate(model, dataset, attacks="fgsm,ifgsm(steps=2),pgd(steps=2)")
        assert around() == before
    # near + 0.1 goes across, and so do two steps of 2/255; 0.9 and 0.1 stay. A start of PGD may lie anywhere
    # in the ball, and two steps from it undo at most 4/255 of 0.1.
    assert table["accuracy"][:3].tolist() == [100, 50, 50]
    assert measured(table).equals(
        measured(evaluate(model, dataset, attacks="fgsm,ifgsm(steps=2),pgd(steps=2)"))
    )
    assert model.seen == {(False, "highest")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "attack", ["pgd(steps=2)", "square(queries=3)", "apgd_ce(steps=3)", "VNIFGSM(steps=2)"]
)
@pytest.mark.parametrize("models", ["in_resnet14", Net()], ids=["zoo", "module"])
def test_a_default_device_of_the_user_changes_no_number_and_stays(tiny_zoo, models, attack):
    def table():
        if isinstance(models, str):
            options = {"zoo": tiny_zoo, "eps": (0.1,), "corruptions": "none", "n": 4}
            return robust_interp.evaluate(models, attacks=attack, **options)
        return evaluate(models, attacks=attack)

    expected = measured(table())
    with torch.device("meta"):
        found = table()
        assert torch.get_default_device().type == "meta"
    assert measured(found).equals(expected)


RANDOM = {"attacks": "pgd(steps=2)", "corruptions": "shot_noise(severity=1)", "n": 10}


@pytest.mark.slow
@pytest.mark.parametrize("models", ["in_resnet14", Net()], ids=["zoo", "module"])
def test_every_random_state_is_left_alone(tiny_zoo, models):
    def drawn():
        return torch.rand(3).tolist(), np.random.rand(3).tolist(), [random.random() for _ in range(3)]

    def seed():
        torch.manual_seed(5)
        np.random.seed(5)
        random.seed(5)

    seed()
    expected = drawn()
    seed()
    if isinstance(models, str):
        robust_interp.evaluate(models, zoo=tiny_zoo, eps=(0.1,), **RANDOM)
    else:
        evaluate(models, **RANDOM)
    assert drawn() == expected


class Counts(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.tensor(0))
        self.register_buffer("average", torch.tensor([0.25]), persistent=False)


class InPlace(Counts):
    def above(self, pixels):
        self.calls += 1
        self.average.mul_(0.9).add_(0.1 * pixels.detach().mean())
        return pixels - 0.5


class Anew(Counts):
    def above(self, pixels):
        self.calls = self.calls + 1
        self.average = 0.9 * self.average + 0.1 * pixels.detach().mean()
        return pixels - 0.5


class Nested(Net):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(1)
        self.inner = Anew()

    def above(self, pixels):
        self.norm.running_mean = self.norm.running_mean + 1  # of no consequence: it is not called
        return self.inner.above(pixels)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [InPlace, Anew, Nested])
def test_buffers_that_a_forward_pass_changes_are_left_alone(tmp_path, kind):
    model = kind()
    before = {name: buffer.clone() for name, buffer in model.named_buffers()}
    assert numbers(evaluate({"net": model}, out=tmp_path)) == {"net": (100, 80)}
    after = dict(model.named_buffers())
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], buffer) for name, buffer in before.items())
    measured_once = chunks(tmp_path)
    assert numbers(evaluate({"net": model}, out=tmp_path)) == {"net": (100, 80)}
    assert chunks(tmp_path) == measured_once


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is one device here")
@pytest.mark.parametrize(("home", "away"), [("cpu", "cuda"), ("cuda", "cpu"), ("cuda", None)])
def test_a_module_is_left_on_its_device(home, away):
    model = Counts().to(home)
    table = evaluate({"net": model}, device=away)
    assert numbers(table) == {"net": (100, 80)}
    assert set(table["device"]) == {away or "cuda"}
    assert {tensor.device.type for tensor in [*model.parameters(), *model.buffers()]} == {home}


class Subtracts(Net):
    def __init__(self, in_place):
        super().__init__()
        self.in_place = in_place

    def forward(self, images):
        images = images.sub_(0.5) if self.in_place else images - 0.5
        return super().forward(images + 0.5)


class Clamps(Subtracts):
    def forward(self, images):
        images = images.clamp_(0.2, 0.8) if self.in_place else images.clamp(0.2, 0.8)
        return Net.forward(self, images)


def rectified(in_place):
    return nn.Sequential(nn.ReLU(inplace=in_place), Net())


# 0.05, 0.15, 0.85 and 0.95 have no gradient through the clamp, and so do not count under attack.
@pytest.mark.parametrize(("make", "attacked"), [(Subtracts, 80), (rectified, 80), (Clamps, 40)])
def test_a_model_that_works_in_place_on_its_input_has_the_numbers_of_one_that_does_not(make, attacked):
    options = {"attacks": "fgsm,ifgsm(steps=3),pgd(steps=3)", "corruptions": "gaussian_noise"}
    images = IMAGES.copy()
    one, twin = (evaluate(make(in_place), (images, LABELS), **options) for in_place in (True, False))
    assert one["accuracy"][[0, 6]].tolist() == [100, attacked]
    assert measured(one).equals(measured(twin))
    assert np.array_equal(images, IMAGES)


class WithDropout(Net):
    """Its buffer counts the images that pass; half of the pixels are lost in train mode."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(0.5)
        self.register_buffer("passed", torch.zeros(()))

    def above(self, pixels):
        self.passed += len(pixels)
        return self.dropout(pixels) - 0.5


class Shares(nn.Module):
    def __init__(self, part):
        super().__init__()
        self.part = part

    def forward(self, images):
        return self.part(images)


@pytest.mark.slow
@pytest.mark.parametrize("shared", ["the model", "a part of it"])
def test_two_threads_measure_one_model_as_one_after_the_other(tmp_path, shared):
    model = WithDropout().train()
    other = model if shared == "the model" else Shares(model).train()
    asked = ((model, {"attacks": "pgd"}), (other, {"attacks": "fgsm", "n": 6}))
    alone = [measured(evaluate({"net": each}, **options)) for each, options in asked]
    torch.manual_seed(3)
    before = (around(), torch.get_num_threads(), torch.get_rng_state(), np.random.get_state()[1].tolist())
    barrier = threading.Barrier(2)

    def run(place):
        each, options = asked[place]
        barrier.wait()
        return measured(evaluate({"net": each}, out=tmp_path / str(place), **options))

    with ThreadPoolExecutor(2) as pool:
        for _ in range(4):
            for found, expected in zip(pool.map(run, (0, 1)), alone, strict=True):
                pd.testing.assert_frame_equal(found, expected)
            for folder in tmp_path.iterdir():
                shutil.rmtree(folder)  # so that it is measured again
    assert all(module.training for module in other.modules())
    assert all(parameter.requires_grad for parameter in other.parameters())
    assert model.passed == 0
    after = (around(), torch.get_num_threads(), torch.get_rng_state(), np.random.get_state()[1].tolist())
    assert after[:2] == before[:2]
    assert torch.equal(after[2], before[2])
    assert after[3] == before[3]


SWITCHED = """
import os, sys, traceback
import numpy, torch, robust_interp
import robust_interp.benchmark.api, timm, torchattacks, torchvision

SWITCHES = ["", "cudnn", "cudnn.conv", "cudnn.rnn", "cuda.matmul", "mkldnn", "mkldnn.matmul", "mkldnn.conv"]
def switch(name):
    found = torch.backends
    for part in filter(None, name.split(".")):
        found = getattr(found, part)
    return found
near = numpy.float32(2**-12)
images = numpy.array([0.5 + near, 0.5 - near, 0.9, 0.1], numpy.float32).reshape(-1, 1, 1, 1)
class Seeing(torch.nn.Module):
    seen = set()
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2, bias=False)
        self.inner.weight.data = torch.tensor([[-1.0, 1.0], [1.0, -1.0]])
    def forward(self, images):
        self.seen.add(switch("cuda.matmul").fp32_precision + switch("mkldnn.matmul").fp32_precision)
        pixels = images.flatten(1)
        return self.inner(torch.cat([pixels, torch.full_like(pixels, 0.5)], dim=1))
def measure(name, value):
    switch(name).fp32_precision = value
    before = [switch(each).fp32_precision for each in SWITCHES]
    table = robust_interp.evaluate(Seeing(), (images, [1, 0, 1, 0]), attacks="none", corruptions="none")
    assert list(table["accuracy"]) == [100.0], table
    assert Seeing.seen == {"ieeeieee"}, Seeing.seen
    assert [switch(each).fp32_precision for each in SWITCHES] == before

for name, value in zip(sys.argv[1::2], sys.argv[2::2]):
    if not os.fork():  # a process of its own: what is set is set for good
        try:
            measure(name, value)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(name, value, os.wait()[1], flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="torch before 2.9")
def test_the_new_precision_switches_are_taken_and_left_as_they_were():
    settings = ["cuda.matmul tf32", " ieee", " tf32", "mkldnn.matmul bf16"]
    argv = [sys.executable, "-c", SWITCHED, *(word for each in settings for word in each.split(" "))]
    found = subprocess.run(argv, capture_output=True, text=True)
    assert found.stdout.splitlines() == [f"{each} 0" for each in settings], found.stderr


class WithBuffer(Net):
    def __init__(self, buffer):
        super().__init__()
        self.register_buffer("threshold", buffer)

    def above(self, pixels):
        return pixels - self.threshold.to_dense().sum().real / self.threshold.numel()


@pytest.mark.parametrize(
    "odd",
    [
        torch.tensor(0.5).expand(3, 1, 1),
        torch.full((3, 1, 1), 0.5).to_sparse(),
        torch.full((3, 1, 1), 0.5, dtype=torch.complex64).conj(),
        torch.inference_mode()(torch.full)((3, 1, 1), 0.5),
        torch.inference_mode()(torch.tensor(0.5).expand)(3, 1, 1),
    ],
    ids=["expanded", "sparse", "conjugated", "inference", "expanded inference"],
)
def test_buffers_that_cannot_be_written_are_measured_as_others(odd):
    options = {"attacks": "fgsm", "corruptions": "none"}
    plain = evaluate(WithBuffer(torch.full((3, 1, 1), 0.5)), (IMAGES, LABELS), **options)
    assert measured(evaluate(WithBuffer(odd), (IMAGES, LABELS), **options)).equals(measured(plain))


class Writes(Net):
    """Writes into a buffer whose items share memory: by fill_, and by index."""

    def __init__(self, buffer):
        super().__init__()
        self.register_buffer("shared", buffer)

    def forward(self, images):
        if self.shared.numel():
            self.shared.fill_(float(self.shared.max()) + 1)
            self.shared[(0,) * self.shared.dim()] += 1
        return super().forward(images)


SHARED = {
    "expanded number": lambda: torch.tensor(0.5).expand(4),
    "expanded row": lambda: torch.arange(3.0).expand(2, 3),
    "expanded column": lambda: torch.arange(2.0)[:, None].expand(2, 3),
    "expanded in the middle": lambda: torch.arange(6.0).reshape(2, 1, 3).expand(2, 4, 3),
    "expanded part": lambda: torch.arange(12.0).reshape(3, 4)[1:, :1].expand(2, 3),
    "overlapping": lambda: torch.arange(6.0).as_strided((3, 4), (1, 1)),
    "overlapping windows": lambda: torch.arange(9.0).unfold(0, 4, 2),
    "overlapping and expanded": lambda: torch.arange(6.0).as_strided((3, 2, 4), (1, 0, 1)),
    "empty": lambda: torch.zeros(0, 1).expand(0, 3),
}


@pytest.mark.parametrize("shared", SHARED.values(), ids=SHARED)
def test_a_buffer_whose_items_share_memory_is_restored(shared):
    model, before = Writes(shared()), shared().clone()
    with measurement_mode(model):
        model(torch.from_numpy(IMAGES))
        assert not before.numel() or not torch.equal(model.shared, before)  # it can be written
    assert torch.equal(model.shared, before)
    assert model.shared.stride() == shared().stride()


def test_an_expanded_buffer_of_nan_is_no_obstacle():
    model = Net()
    model.register_buffer("unused", torch.tensor(float("nan")).expand(5))
    options = {"attacks": "fgsm", "corruptions": "none"}
    found, plain = (evaluate(one, (IMAGES, LABELS), **options) for one in (model, Net()))
    assert measured(found).equals(measured(plain))

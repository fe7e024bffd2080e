"""Kinds of faults that were found once, each held against numbers worked out by hand, one test a kind."""

import contextlib
import csv
import hashlib
import html
import io
import json
import os
import random
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import time
import warnings
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from support.hand_made import attack, card, first, run
from torch import nn

import robust_interp
from robust_interp import attacks, corruptions, data, zoo
from robust_interp.classifiers.classifier import Classifier
from robust_interp.classifiers.ensemble import Ensemble
from robust_interp.cli.main import main
from robust_interp.core.errors import UserError
from robust_interp.corruptions import Corruptor
from robust_interp.store import FILE_NAME, Store
from robust_interp.store.cells import CLEAN
from robust_interp.training import recipe, train

# The networks here are untrained or built to mislead, which evaluate remarks on.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


# One-pixel images of two classes, class 1 above one half; the nearest are 0.05 from it, the next 0.15.
PIXELS = (0.05, 0.95, 0.15, 0.85, 0.25, 0.75, 0.35, 0.65, 0.45, 0.55)
IMAGES = np.array(PIXELS, dtype=np.float32).reshape(-1, 1, 1, 1)
LABELS = (IMAGES.ravel() > 0.5).astype(np.int64)
QUICK = {"attacks": "fgsm", "eps": (0.1,), "corruptions": "none"}
SMALL = "--n 10 --attacks none --corruptions none --device cpu --quiet"


class Net(nn.Module):
    """Class 1 where `above` of the pixel is positive: by default, where the pixel is above one half."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(4.0))

    def above(self, pixels):
        return pixels - 0.5

    def forward(self, images):
        signed = self.scale * self.above(images.flatten(1))
        return torch.cat([-signed, signed], dim=1)


def evaluate(models, dataset=(IMAGES, LABELS), **options):
    return robust_interp.evaluate(models, dataset, **QUICK | options)


def numbers(table):
    """The accuracies of each model, in the order of the table."""
    return {name: tuple(lines["accuracy"]) for name, lines in table.groupby("model", sort=False)}


def measured(table):
    """All that a table says, without what differs from run to run or by name."""
    return table.drop(columns=["seconds", "model", "weights_sha256"])


def chunks(folder):
    with closing(sqlite3.connect(folder / FILE_NAME)) as db:
        return db.execute("SELECT * FROM chunks ORDER BY cell, start").fetchall()


def one_line(message, *parts):
    message = str(message)
    assert message.strip()
    assert "\n" not in message.strip()
    for part in parts:
        assert str(part) in message
    return message


@pytest.fixture
def own_zoo(tiny_zoo, tmp_path):
    return Path(shutil.copytree(tiny_zoo, tmp_path / "zoo"))


# --- different modules never share a cell ------------------------------------------------------------


class Calls(Net):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def above(self, pixels):
        return self.function(pixels)


class Private(Net):
    def __init__(self, threshold):
        super().__init__()
        self._threshold = threshold

    def above(self, pixels):
        return pixels - self._threshold


class Holds(Net):
    """Keeps its threshold where neither state dict nor constructor arguments of plain types show it."""

    def __init__(self, held, get):
        super().__init__()
        self.held, self._get = held, get

    def above(self, pixels):
        return pixels - self._get(self.held)


class Shift(nn.Module):
    def __init__(self, by):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(by))

    def forward(self, pixels):
        return pixels - self.weight


class InAList(Net):
    def __init__(self, threshold):
        super().__init__()
        self.parts = [Shift(threshold)]

    def above(self, pixels):
        return self.parts[0](pixels)


def first_of(held):
    return next(iter(held.values())) if isinstance(held, dict) else held


def with_a_hook(threshold):
    net = Net()
    net.register_forward_pre_hook(lambda module, inputs: (inputs[0] + (0.5 - threshold),))
    return net


def with_an_output_hook(threshold):
    net = Net()
    net.register_forward_hook(lambda module, inputs, out: out + 4 * (0.5 - threshold) * torch.tensor([-1, 1]))
    return net


def patched(threshold):
    net = Net()
    unpatched = net.forward
    net.forward = lambda images: unpatched(images + (0.5 - threshold))
    return net


def closed_over(threshold):
    class Closed(Net):
        def above(self, pixels):
            return pixels - threshold

    return Closed()


class Turned(torch.autograd.Function):
    """The identity, with another gradient than it has."""

    @staticmethod
    def forward(ctx, pixels, factor):
        ctx.factor = factor
        return pixels.clone()

    @staticmethod
    def backward(ctx, gradient):
        return ctx.factor * gradient, None


def with_a_backward(factor):
    class Turns(Net):
        def above(self, pixels):
            return Turned.apply(pixels, factor) - 0.5

    return Turns()


# Clean, and after one step of 0.1. With the threshold at 0.5 that step takes 0.45 and 0.55 across it. With it
# at 0.3, the pixels 0.35 and 0.45 are wrong already, and it takes 0.25 across. A gradient of the wrong sign
# leads away from the threshold.
THRESHOLDS = {0.5: (100, 80), 0.3: (80, 70)}
GRADIENTS = {1.0: (100, 80), -1.0: (100, 100)}
HIDDEN = {
    "a lambda": (lambda t: Calls(lambda pixels: pixels - t), THRESHOLDS),
    "a private attribute": (Private, THRESHOLDS),
    "a tensor": (lambda t: Holds(torch.tensor(t), first_of), THRESHOLDS),
    "a dict": (lambda t: Holds({"threshold": t}, first_of), THRESHOLDS),
    "modules in a list": (InAList, THRESHOLDS),
    "a hook before": (with_a_hook, THRESHOLDS),
    "a hook after": (with_an_output_hook, THRESHOLDS),
    "a patched forward": (patched, THRESHOLDS),
    "a closure": (closed_over, THRESHOLDS),
    "a backward": (with_a_backward, GRADIENTS),
}


@pytest.mark.parametrize("hidden", HIDDEN)
def test_modules_that_differ_anywhere_have_numbers_of_their_own(tmp_path, hidden):
    make, expected = HIDDEN[hidden]
    models = {str(value): make(value) for value in expected}
    wanted = {str(value): accuracies for value, accuracies in expected.items()}
    assert numbers(evaluate(models, out=tmp_path / "at once")) == wanted

    for name, model in models.items():
        assert numbers(evaluate({name: model}, out=tmp_path / "in turn")) == {name: wanted[name]}
    before = chunks(tmp_path / "in turn")
    assert len(before) == 2 * 2
    again = {f"{name} again": model for name, model in models.items()}
    found = numbers(evaluate(again, out=tmp_path / "in turn"))
    assert found == {f"{name} again": wanted[name] for name in models}
    assert chunks(tmp_path / "in turn") == before  # read, not measured again


class Capped(Net):
    """Class 1 if its capped logit is above 0.2."""

    def __init__(self, cap):
        super().__init__()
        self.cap = cap

    def forward(self, images):
        signed = self.cap(self.scale * (images.flatten(1) - 0.5))
        return torch.cat([torch.full_like(signed, 0.2), signed], dim=1)


def test_modules_that_differ_on_later_images_only_have_numbers_of_their_own(tmp_path):
    # Sorted by class, as many datasets are: the cap touches none of the first ten images.
    images = np.array([0.1, 0.2, 0.3, 0.4, 0.45] * 2 + [0.6, 0.7, 0.8, 0.9, 1.0] * 2, dtype=np.float32)
    dataset = images.reshape(-1, 1, 1, 1), (images > 0.5).astype(np.int64)
    models = {str(cap): Capped(lambda logit, cap=cap: logit.clamp(max=cap)) for cap in (9.0, 0.1)}
    options = {"attacks": "none", "dataset": dataset}
    assert numbers(evaluate(models, **options)) == {"9.0": (100,), "0.1": (50,)}
    for name, accuracy in (("9.0", 100), ("0.1", 50)):
        assert numbers(evaluate({name: models[name]}, out=tmp_path, **options)) == {name: (accuracy,)}


# --- the normalisation of a wrapped timm model -------------------------------------------------------

TIMM_MEAN, TIMM_STD = (0.6, 0.5, 0.4), (0.3, 0.2, 0.1)


def timm_model(mean=TIMM_MEAN, std=TIMM_STD):
    model = zoo.create("preact_resnet14", num_classes=10).eval()
    model.pretrained_cfg = dict(model.pretrained_cfg) | {"mean": mean, "std": std}
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
    return model


def colours(n=60):
    return np.random.default_rng(0).random((n, 3, 8, 8), dtype=np.float32)


@torch.no_grad()
def probabilities(model, images, mean=(0, 0, 0), std=(1, 1, 1)):
    """Of a model on images that are normalised in float64, without any of the package."""
    columns = [(images[:, c].astype(np.float64) - mean[c]) / std[c] for c in range(3)]
    return model(torch.from_numpy(np.stack(columns, axis=1)).float()).double().softmax(1).numpy()


def told(models, dataset):
    """The table, and what was said of mean and std."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = evaluate(models, dataset, eps=(8 / 255,))
    return table, [str(w.message) for w in caught if "mean" in str(w.message)]


def test_a_wrapped_timm_model_is_normalised_once_or_says_that_it_is_not():
    model, images = timm_model(), colours()
    right = probabilities(model, images, TIMM_MEAN, TIMM_STD).argmax(1)
    raw = 100 * (probabilities(model, images).argmax(1) == right).mean()
    assert raw < 90  # it matters here
    dataset = images, right, 10

    normalised = {
        "alone": model,
        "parallel": nn.DataParallel(model),
        "classifier": Classifier(model, TIMM_MEAN, TIMM_STD),
        "classifier in parallel": nn.DataParallel(Classifier(model, TIMM_MEAN, TIMM_STD)),
    }
    tables = {}
    for name, wrapped in normalised.items():
        tables[name], said = told({name: wrapped}, dataset)
        assert not said, name
        assert tables[name]["accuracy"][0] == 100, name
        assert measured(tables[name]).equals(measured(tables["alone"])), name

    for wrapped in (
        nn.Sequential(model),
        nn.Sequential(nn.Identity(), nn.Sequential(model)),
        Classifier(model),
    ):
        table, said = told(wrapped, dataset)
        assert table["accuracy"][0] == pytest.approx(raw)
        assert len(said) == 1
        one_line(said[0], type(wrapped).__name__, "not applied", "0.6", "0.1")


def test_an_ensemble_of_normalised_classifiers_normalises_each_and_warns_of_nothing():
    means, stds = (TIMM_MEAN, (0.1, 0.2, 0.3)), (TIMM_STD, (0.2, 0.2, 0.2))
    models, images = [timm_model(mean, std) for mean, std in zip(means, stds, strict=True)], colours()
    each = [
        probabilities(model, images, mean, std) for model, mean, std in zip(models, means, stds, strict=True)
    ]
    right = (each[0] + each[1]).argmax(1)
    ensemble = Ensemble(
        [Classifier(model, mean, std) for model, mean, std in zip(models, means, stds, strict=True)]
    )
    table, said = told(ensemble, (images, right, 10))
    assert not said
    assert table["accuracy"][0] == 100
    assert (probabilities(models[0], images).argmax(1) == right).mean() < 0.9


# --- what surrounds a measurement --------------------------------------------------------------------


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


# --- released arrays ---------------------------------------------------------------------------------


class ReadsRed(nn.Module):
    """Predicts a tenth of the first red value."""

    def forward(self, images):
        red = images[:, 0, 0, 0] * 255 / 10
        return -((torch.arange(10.0) - red[:, None]) ** 2)


def released(folder, labels, wrong):
    """Arrays on which ReadsRed is wrong on the first `wrong` samples of each severity."""
    folder.mkdir(exist_ok=True)
    rows = np.zeros((5 * len(labels), 32, 32, 3), np.uint8)
    shown = np.where(np.arange(len(labels)) < wrong, (labels + 1) % 10, labels)
    rows[:, 0, 0, 0] = np.tile(10 * shown, 5)
    np.save(folder / "labels.npy", np.tile(labels, 5).astype(np.uint8))
    np.save(folder / "gaussian_noise.npy", rows)
    return folder


@pytest.mark.parametrize("place", ["another folder", "the same folder"])
def test_other_arrays_without_an_official_md5_have_numbers_of_their_own(tmp_path, monkeypatch, place):
    labels = np.arange(20) * 7 % 10
    images = np.zeros((20, 3, 32, 32), np.uint8)
    images[:, 0, 0, 0] = 10 * labels
    monkeypatch.setattr(data, "load", lambda *_: data.from_arrays(images, labels, 10, name="cifar10"))
    model = nn.Sequential(ReadsRed())

    def accuracies(folder):
        table = robust_interp.evaluate(
            model,
            "cifar10",
            attacks="none",
            corruptions="gaussian_noise(severity=2)",
            corruptions_dir=folder,
            n=20,
            out=tmp_path / "results",
        )
        return table["accuracy"].tolist()

    assert accuracies(released(tmp_path / "one", labels, wrong=5)) == [100, 75]
    other = tmp_path / ("two" if place == "another folder" else "one")
    assert accuracies(released(other, labels, wrong=8)) == [100, 60]


# --- a smaller n after a larger one ------------------------------------------------------------------


def test_a_smaller_n_has_its_own_largest_change_and_its_share_of_the_time(tmp_path):
    # The first four are wrong and 0.02 from the border, which stops the attack; the others move by 0.1.
    pixels = np.array([0.02, 0.98, 0.02, 0.98, 0.3, 0.7, 0.3, 0.7, 0.3, 0.7], np.float32)
    dataset = pixels.reshape(-1, 1, 1, 1), [1, 0, 1, 0, 0, 1, 0, 1, 0, 1]
    model = Net()
    whole = evaluate(model, dataset, out=tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as db, db:
        db.execute("UPDATE chunks SET seconds = 20")
    few = evaluate(model, dataset, n=4, out=tmp_path)
    assert whole["max_delta_255"][1] == pytest.approx(25.5, abs=1e-3)
    assert few["max_delta_255"][1] == pytest.approx(5.1, abs=1e-3)
    assert few["seconds"].tolist() == [8, 8]
    assert evaluate(model, dataset, out=tmp_path)["seconds"].tolist() == [20, 20]
    assert few["accuracy"].tolist() == [0, 0]
    assert whole["accuracy"].tolist() == [60, 60]


# --- the weights' hash -------------------------------------------------------------------------------


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
def test_the_hash_of_a_weights_file_is_that_of_the_file(command, tiny_zoo, tmp_path, suffix):
    source = tiny_zoo / "in_resnet14.digits_none_seed1" / "model.safetensors"
    path = tmp_path / f"mine{suffix}"
    if suffix == ".pth":
        torch.save({"state_dict": load_file(source)}, path)
    else:
        shutil.copy(source, path)
    assert command("bench", "--models", "in_resnet14", "--checkpoint", path, *SMALL.split())[0] == 0
    found = pd.read_csv(tmp_path / "results" / "results.csv")["weights_sha256"]
    assert set(found) == {hashlib.sha256(path.read_bytes()).hexdigest()}


# --- close radii and tiny steps ----------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["final", "worst"])
def test_close_radii_have_columns_of_their_own(command, tiny_zoo, tmp_path, protocol):
    chosen = ["--models", "preact_resnet14", "--zoo", tiny_zoo, "--protocol", protocol]
    radii = ["--attacks", "fgsm", "--eps", "100.0001,100.0002"]
    assert command("bench", *SMALL.split(), *chosen, *radii)[0] == 0
    board = pd.read_csv(tmp_path / "results" / "leaderboard.csv")
    names = ["fgsm"] + (["worst"] if protocol == "worst" else [])
    columns = [f"{name}_{eps}" for name in names for eps in ("100.0001", "100.0002")]
    assert [c for c in board if c.startswith(tuple(names)) and not c.endswith("_std")] == columns
    assert not board[columns].isna().any().any()
    results = pd.read_csv(tmp_path / "results" / "results.csv")
    for name in (name.replace("worst", "worst(fgsm)") for name in names):
        assert results.loc[results["perturbation"] == name, "eps_255"].tolist() == [100.0001, 100.0002]


def test_tiny_steps_keep_their_digits(tmp_path):
    steps = {"1e-9": 2.55e-7, "2e-9": 5.1e-7, "3e-9": 7.65e-7}
    spec = ",".join(f"ifgsm(alpha={alpha},steps=1)" for alpha in steps)
    found = attacks.resolve(spec, [0.1], {}, 0)
    shown = [perturbation.column.partition("alpha=")[2].partition("/255")[0] for perturbation in found]
    assert [float(text) for text in shown] == pytest.approx(list(steps.values()), rel=1e-2)
    table = evaluate(Net(), attacks=spec, out=tmp_path)
    assert table["alpha_255"].tolist()[1:] == pytest.approx(list(steps.values()), rel=1e-2)
    written = pd.read_csv(tmp_path / "results.csv")["alpha_255"]
    assert written.tolist()[1:] == pytest.approx(list(steps.values()), rel=1e-2)


# --- state that is left alone ------------------------------------------------------------------------

RANDOM = {"attacks": "pgd(steps=2)", "corruptions": "shot_noise(severity=1)", "n": 10}


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


# --- options of the wrong kind -----------------------------------------------------------------------

LAMBDA = lambda images: images  # noqa: E731


@pytest.mark.parametrize(
    ("models", "options", "parts"),
    [
        (None, {"seed": 2**64}, ["seed", 2**64]),
        (None, {"seed": True}, ["seed", "True"]),
        (None, {"seed": 1.5}, ["seed", "1.5"]),
        (None, {"n": True}, ["n must be", "True"]),
        (None, {"n": 2.5}, ["n must be", "2.5"]),
        (None, {"n": "ten"}, ["n must be", "ten"]),
        (None, {"eps": 0.1}, ["eps must be a list", "0.1"]),
        (None, {"eps": (True,)}, ["eps", "True"]),
        (None, {"batch_size": True}, ["batch size", "True"]),
        (None, {"batch_size": 1.5}, ["batch size", "1.5"]),
        ({1: Net()}, {}, ["models must be names"]),
        ({"net": LAMBDA}, {}, ["models must be names"]),
        (LAMBDA, {}, ["models must be names", "function"]),
        ([Net()], {}, ["models must be names"]),
        (None, {"checkpoint": "weights.pt"}, ["checkpoint does not go with models that are objects"]),
        (None, {"seeds": 3}, ["seeds does not go with models that are objects"]),
        (None, {"zoo": "model_zoo"}, ["zoo does not go with models that are objects"]),
        ("in_resnet14", {"mean": (0.5,), "std": (0.5,)}, ["mean does not go with models from the zoo"]),
        ("in_resnet14", {"std": (0.5,)}, ["std does not go with models from the zoo"]),
    ],
)
def test_an_option_of_the_wrong_kind_is_one_line_and_writes_nothing(
    tmp_path, tiny_zoo, models, options, parts
):
    if models == "in_resnet14":
        dataset, options = "digits", options | {"zoo": tiny_zoo, "n": 10}
    else:
        dataset, models = (IMAGES, LABELS), Net() if models is None else models
    with pytest.raises(UserError) as refusal:
        evaluate(models, dataset, out=tmp_path / "results", **options)
    one_line(refusal.value, *parts)
    assert not (tmp_path / "results").exists()


def test_an_unknown_option_is_named_with_the_function(tmp_path):
    with pytest.raises(TypeError) as refusal:
        evaluate(Net(), epsilon=(0.1,), out=tmp_path / "results")
    one_line(refusal.value, "evaluate()", "'epsilon'")
    assert not (tmp_path / "results").exists()


# --- spec strings ------------------------------------------------------------------------------------

SPECS = {
    "nested": "(" * 5000 + "pgd" + ")" * 5000,
    "nested in a value": "pgd(steps=" + "(" * 5000 + "1" + ")" * 5000 + ")",
    "nested as far as is read": "pgd(steps=" + "(" * 240 + "1" + ")" * 240 + ")",
    "calls": "pgd(" * 5000,
    "signs": "pgd(steps=" + "-" * 5000 + "1)",
    "signs as far as are read": "pgd(steps=" + "-" * 471 + "1)",
    "a comment": "pgd # (steps=2)",
    "a comment inside": "pgd(steps=2 #)",
    "fullwidth digits": "pgd(steps=２)",
    "arabic digits": "pgd(steps=٣)",
    "a superscript": "pgd(steps=²)",
    "infinite": "pgd(alpha=1e400)",
    "infinite steps": "pgd(steps=1e400)",
    "infinite eps": "pgd(eps=1e400)",
    "infinite by product": "pgd(alpha=1e300*1e300)",
    "a quotient beyond floats": "pgd(alpha=" + "9" * 400 + "/3)",
    "a share beyond floats": "pgd(alpha=eps*" + "9" * 400 + ")",
    "a share by what floats lack": "pgd(alpha=eps/" + "9" * 400 + ")",
    "a long number": "pgd(steps=" + "9" * 5000 + ")",
    "an import": "__import__('os').system('exit 1')",
    "an import as a value": "pgd(steps=__import__('os').getpid())",
    "very long": "pgd" * 1_000_000,
    "a null": "pgd\0",
    "half a character": "pgd(steps='\ud800')",
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["attacks", "corruptions"])
@pytest.mark.parametrize("spec", SPECS)
def test_a_hostile_spec_is_one_short_line_and_soon(kind, spec):
    text = SPECS[spec] if kind == "attacks" else SPECS[spec].replace("pgd", "shot_noise")
    text = text if kind == "attacks" else text.replace("steps", "severity").replace("alpha", "severity")
    corruptor = Corruptor(data.from_arrays(IMAGES, LABELS), 0)
    began = time.process_time()
    with pytest.raises(UserError) as refusal:
        attacks.resolve(text, [0.1], {}, 0) if kind == "attacks" else corruptions.resolve(text, corruptor)
    assert time.process_time() - began < 2
    assert len(one_line(refusal.value)) < 1500


# --- descriptions of the wrong types -----------------------------------------------------------------


def spoilt(file, **values):
    """Replaces values in a description; ``pretrained_cfg`` is changed, not replaced, by a dict."""

    def spoil(folder):
        content = json.loads((folder / file).read_text())
        for key, value in values.items():
            inner = key == "pretrained_cfg" and isinstance(value, dict)
            content[key] = content[key] | value if inner else value
        (folder / file).write_text(json.dumps(content))

    return spoil


def cut(folder):
    content = (folder / "train.json").read_text()
    (folder / "train.json").write_text(content[: len(content) // 2])


SPOILT = {
    "clean_accuracy a text": spoilt("train.json", clean_accuracy="x"),
    "clean_accuracy null": spoilt("train.json", clean_accuracy=None),
    "parameters null": spoilt("train.json", parameters=None),
    "lambda_init a text": spoilt("train.json", lambda_init="x"),
    "lambda_init of one": spoilt("train.json", lambda_init=[0.2]),
    "weights_sha256 a number": spoilt("train.json", weights_sha256=5),
    "a truncated train.json": cut,
    "model_args a list": spoilt("config.json", model_args=[]),
    "model_args a text": spoilt("config.json", model_args="x"),
    "model_args twice": spoilt("config.json", model_args={"num_classes": 10}),
    "model_args unknown": spoilt("config.json", model_args={"no_such_argument": 1}),
    "architecture null": spoilt("config.json", architecture=None),
    "pretrained_cfg a list": spoilt("config.json", pretrained_cfg=[]),
    "std a text": spoilt("config.json", pretrained_cfg={"std": "x"}),
    "std a number": spoilt("config.json", pretrained_cfg={"std": 0}),
    "std zero": spoilt("config.json", pretrained_cfg={"std": [0]}),
    "std of none": spoilt("config.json", pretrained_cfg={"std": []}),
    "std of texts": spoilt("config.json", pretrained_cfg={"std": ["0.5"]}),
    "mean null": spoilt("config.json", pretrained_cfg={"mean": None}),
    "mean nan": spoilt("config.json", pretrained_cfg={"mean": [float("nan")]}),
    "mean of three": spoilt("config.json", pretrained_cfg={"mean": [0.5] * 3, "std": [0.5] * 3}),
    "input_size of none": spoilt("config.json", pretrained_cfg={"input_size": []}),
    "num_classes a text": spoilt("config.json", pretrained_cfg={"num_classes": "ten"}),
}
BROKEN = "in_resnet14.digits_none_seed0"


@pytest.mark.parametrize("fault", SPOILT)
def test_a_description_of_the_wrong_types_is_one_line_that_names_the_checkpoint(
    command, own_zoo, tmp_path, fault
):
    SPOILT[fault](own_zoo / BROKEN)
    status, out, err = command("bench", "--models", "in_resnet14", "--zoo", own_zoo, *SMALL.split())
    assert (status, out) == (1, "")
    one_line(err, BROKEN)
    assert not list((tmp_path / "results").glob("*.csv"))

    _, out, err = command("models", "--zoo", own_zoo)
    assert "in_resnet14.digits_none_seed1 " in out
    assert "preact_resnet14.digits_none_seed0 " in out
    assert BROKEN in out + err


# --- names of models ---------------------------------------------------------------------------------

NAMES = ["[red]markup[/red]", "[/]", "a|b", "|", '"quoted", and more', "*bold* <b>_x_</b>", "λ=0.5 ✓"]


def test_names_stand_literally_in_every_table(command, tmp_path):
    evaluate({name: Net() for name in NAMES}, out=tmp_path)

    def shown(form):
        status, out, err = command("leaderboard", tmp_path, "--format", form)
        assert (status, err) == (0, "")
        return out

    table = shown("table")
    assert all(name in table for name in NAMES)
    assert len(table.splitlines()) == 2 + len(NAMES)
    header, *rows = csv.reader(io.StringIO(shown("csv")))
    assert sorted(row[1] for row in rows) == sorted(NAMES)
    assert {len(row) for row in rows} == {len(header)}
    lines = shown("markdown").splitlines()
    assert len(lines) == 2 + len(NAMES)
    assert {line.count("|") for line in lines} == {len(header) + 1}
    found = [html.unescape(line.split("|")[2].strip().replace("\\", "")) for line in lines[2:]]
    assert sorted(found) == sorted(NAMES)
    assert sorted(entry["model"] for entry in json.loads(shown("json"))) == sorted(NAMES)
    assert len(shown("latex").splitlines()) == 6 + len(NAMES)
    for file in ("leaderboard.csv", "results.csv"):
        assert set(pd.read_csv(tmp_path / file)["model"]) == set(NAMES)


@pytest.mark.parametrize("name", ["two\nlines", "carriage\rreturn", "\x1b[2J", "", " "], ids=repr)
def test_a_name_that_is_not_one_line_of_text_is_refused(tmp_path, name):
    with pytest.raises(UserError) as refusal:
        evaluate({name: Net()}, out=tmp_path / "results")
    one_line(refusal.value, "name", repr(name))
    assert not (tmp_path / "results").exists()


# --- names of checkpoints ----------------------------------------------------------------------------


@pytest.mark.parametrize("there", [False, True], ids=["new", "folder there"])
@pytest.mark.parametrize("name", ["resnet18.a1_in1k", "in_resnet20.digits_digits_seed0"])
def test_a_name_that_no_folder_could_have_is_refused_before_the_training(
    command, tmp_path, monkeypatch, name, there
):
    monkeypatch.setattr(data, "load", None)  # a training would read its data first
    out = tmp_path / "zoo"
    if there:
        (out / f"{name}.digits_digits_seed0").mkdir(parents=True)
    status, _, err = command("train", name, "--out", out, "--quiet", "--device", "cpu")
    assert status != 0
    one_line(err, name)
    assert not [path for path in out.rglob("*") if path.is_file()]
    if not there:
        with pytest.raises(UserError) as refusal:
            train.train(name, "digits", recipe.load("digits", name, "digits"), 0, out)
        one_line(refusal.value, name)
        assert not [path for path in out.rglob("*") if path.is_file()]


# --- where it is printed, and what may not be written ------------------------------------------------


@pytest.fixture
def results(tmp_path):
    """A results folder whose tables hold a ± and a model's name beyond ASCII."""
    folder = tmp_path / "results"
    with Store(folder) as store:
        lines = [(card("λ-net", seed), CLEAN, first(7 + seed)) for seed in (0, 1)]
        lines += [(card("λ-net", seed), attack("pgd", 2), first(4 + seed)) for seed in (0, 1)]
        lines += [(card("net", 0), CLEAN, first(9)), (card("net", 0), attack("pgd", 2), first(3))]
        run(store, lines)
    return folder


ASCII = [
    ["--help"],
    ["bench", "--help"],
    ["train", "--help"],
    ["leaderboard", "--help"],
    ["leaderboard", "compare", "--help"],
    ["leaderboard", "results"],
    *(["leaderboard", "results", "--format", form] for form in ("csv", "markdown", "latex", "json")),
    ["leaderboard", "compare", "λ-net", "net"],
    ["leaderboard", "compare", "λ-net", "µ-net"],
    ["models"],
    ["bench", "--models", "λ-net"],
    ["bench", "--attacks", "λ"],
]


@pytest.mark.usefixtures("results")
@pytest.mark.parametrize("argv", ASCII, ids=" ".join)
def test_a_terminal_without_unicode_ends_no_command(monkeypatch, argv):
    streams = {name: io.TextIOWrapper(io.BytesIO(), encoding="ascii") for name in ("stdout", "stderr")}
    for name, stream in streams.items():
        monkeypatch.setattr(sys, name, stream)
    try:
        status = main(argv)
    except SystemExit as stop:
        status = stop.code
    for stream in streams.values():
        stream.flush()
    shown = {name: stream.buffer.getvalue().decode("ascii") for name, stream in streams.items()}
    monkeypatch.undo()
    if (argv[0] == "bench" and "--help" not in argv) or "µ-net" in argv:
        assert (status, shown["stdout"]) == (1, "")
        one_line(shown["stderr"], "robust-interp: ")
    else:
        assert status == 0
        assert shown["stdout"]
        assert "Traceback" not in shown["stderr"]


def test_a_real_process_prints_to_ascii(results):
    environment = os.environ | {"PYTHONIOENCODING": "ascii", "PYTHONPATH": str(Path(zoo.__file__).parents[2])}
    done = subprocess.run(
        [sys.executable, "-m", "robust_interp", "leaderboard", str(results)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "net" in done.stdout


@contextlib.contextmanager
def without_privileges():
    """For root, whom no permission binds: another user's rights for a while."""
    if not hasattr(os, "geteuid"):
        pytest.skip("permissions are of another kind here")
    if os.geteuid() != 0:
        yield
        return
    try:
        os.seteuid(65534)
    except OSError as error:
        pytest.skip(f"root cannot give up its rights here: {error}")
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def read_only():
    """Makes a copy of a results folder that cannot be written, where any user can read it."""
    with contextlib.ExitStack() as stack:

        def make(folder):
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            place.chmod(0o755)
            copy = Path(shutil.copytree(folder, place / "results"))
            stack.callback(copy.chmod, 0o755)
            for file in copy.iterdir():
                file.chmod(stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH)
            copy.chmod(0o555)
            with without_privileges(), contextlib.suppress(OSError):
                (copy / "probe").write_text("")
                pytest.skip("a folder cannot be made read-only here")
            return copy

        yield make


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_results_that_cannot_be_written_can_be_shown_and_compared(command, results, read_only, end):
    with Store(results) as store:
        if end == "killed":  # what was finished last then lies in SQLite's own log beside the database
            run(store, [(card("late"), CLEAN, first(6))])
            copy = read_only(results)
    if end == "closed":
        copy = read_only(results)
    expected = command("leaderboard", results, "--format", "csv")
    compared = command("leaderboard", "compare", "λ-net", "net", "--results", results)
    assert ("late" in expected[1]) == (end == "killed")
    before = sorted(path.name for path in copy.iterdir())
    with without_privileges():
        found = command("leaderboard", copy, "--format", "csv")
        again = command("leaderboard", "compare", "λ-net", "net", "--results", copy)
    assert expected[0] == compared[0] == 0
    assert (found, again) == (expected, compared)
    assert sorted(path.name for path in copy.iterdir()) == before


# --- the same weights under two seeds ----------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["final", "worst"])
def test_a_copied_checkpoint_has_all_its_rows(own_zoo, tmp_path, protocol):
    shutil.copytree(own_zoo / BROKEN, own_zoo / "in_resnet14.digits_none_seed7")
    options = {"attacks": "fgsm,pgd(steps=2)", "eps": (0.1,), "corruptions": "none", "n": 20}
    robust_interp.evaluate("in_resnet14", zoo=own_zoo, protocol=protocol, out=tmp_path, **options)
    table = pd.read_csv(tmp_path / "results.csv")
    each = ["clean", "fgsm", "worst(fgsm+pgd(steps=2))" if protocol == "worst" else "pgd"]
    assert len(table) == 4 * len(each)
    by_seed = {seed: lines for seed, lines in table.groupby(table["train_seed"].fillna(-1))}
    assert sorted(by_seed) == [-1, 0, 1, 7]
    for lines in by_seed.values():
        assert lines["perturbation"].tolist() == each
    assert by_seed[0]["accuracy"].tolist() == by_seed[7]["accuracy"].tolist()
    assert set(by_seed[-1]["members"]) == {3}
    board = pd.read_csv(tmp_path / "leaderboard.csv").set_index("members")
    assert board["seeds"].to_dict() == {1: 3, 3: 3}
    mean = np.mean([by_seed[seed]["accuracy"].iloc[0] for seed in (0, 1, 7)])
    assert board.loc[1, "clean"] == pytest.approx(mean, abs=0.005)

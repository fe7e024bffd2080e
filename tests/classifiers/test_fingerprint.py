"""Different modules never share a cell, wherever they differ; the same module finds its own."""

import argparse
import dataclasses
import functools
import importlib
import logging
import sys
import threading
import time

import numpy as np
import pytest
import torch
from support.one_pixel import IMAGES, Net, evaluate, numbers
from support.stored import chunks
from torch import nn

from robust_interp.classifiers.fingerprint import identity
from robust_interp.core.errors import UserError

# The networks here are untrained or built to mislead, which evaluate remarks on.
pytestmark = [pytest.mark.usefixtures("elsewhere"), pytest.mark.filterwarnings("ignore::UserWarning")]


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


@pytest.mark.slow
@pytest.mark.parametrize("hidden", HIDDEN)
def test_modules_that_differ_anywhere_have_numbers_of_their_own(tmp_path, hidden):
    make, expected = HIDDEN[hidden]
    models = {f"at {value}": make(value) for value in expected}
    wanted = {f"at {value}": accuracies for value, accuracies in expected.items()}
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


@pytest.mark.slow
def test_modules_that_differ_on_later_images_only_have_numbers_of_their_own(tmp_path):
    # Sorted by class, as many datasets are: the cap touches none of the first ten images.
    images = np.array([0.1, 0.2, 0.3, 0.4, 0.45] * 2 + [0.6, 0.7, 0.8, 0.9, 1.0] * 2, dtype=np.float32)
    dataset = images.reshape(-1, 1, 1, 1), (images > 0.5).astype(np.int64)
    models = {str(cap): Capped(lambda logit, cap=cap: logit.clamp(max=cap)) for cap in (9.0, 0.1)}
    options = {"attacks": "none", "dataset": dataset}
    assert numbers(evaluate(models, **options)) == {"9.0": (100,), "0.1": (50,)}
    for name, accuracy in (("9.0", 100), ("0.1", 50)):
        assert numbers(evaluate({name: models[name]}, out=tmp_path, **options)) == {name: (accuracy,)}


class Flips(Net):
    """Turns the logits of the listed images round: those by their place, in thousandths, from 1,000 on."""

    def __init__(self, held, listed):
        super().__init__()
        self.held, self.listed = held, lambda held: {float(place) for place in listed(held)}

    def forward(self, images):
        logits = super().forward(images)
        places = (images.flatten(1)[:, 0] * 1000).round()
        turned = torch.tensor([float(place) in self.listed(self.held) for place in places])
        return torch.where(turned[:, None], logits.flip(1), logits)


class Config:
    def __init__(self, flip):
        self.flip = flip


@dataclasses.dataclass
class Nested:
    config: Config


# How a model may hold the places of images, and how it reads them.
HELD = {
    "a dict": (lambda ids: {"flip": ids}, lambda held: held["flip"]),
    "a set": (set, lambda held: held),
    "an object": (Config, lambda held: held.flip),
    "an object in a dataclass": (lambda ids: Nested(Config(ids)), lambda held: held.config.flip),
    "a namespace": (lambda ids: argparse.Namespace(flip=ids), lambda held: held.flip),
    "an array": (lambda ids: np.array(ids, dtype=np.int16), lambda held: held.tolist()),
    "a tensor in a list": (lambda ids: [torch.tensor(ids)], lambda held: held[0].tolist()),
    "a partial": (lambda ids: functools.partial(print, flip=ids), lambda held: held.keywords["flip"]),
}


@pytest.mark.slow
@pytest.mark.parametrize("how", HELD)
def test_what_a_model_holds_tells_it_apart_on_images_that_are_not_looked_at(tmp_path, how):
    make, read = HELD[how]
    images = (np.arange(64, dtype=np.float32) + 1).reshape(-1, 1, 1, 1) / 100
    dataset = (images, (images.ravel() > 0.5).astype(np.int64))
    # 32 evenly spaced ones of 64 are looked at; of the first three these are the first and the third.
    clean = {"attacks": "none", "out": tmp_path}
    for flip, accuracy in (([], 100.0), ([20], 100 * 63 / 64)):
        assert numbers(evaluate({"net": Flips(make(flip), read)}, dataset, **clean)) == {"net": (accuracy,)}
    before = chunks(tmp_path)
    assert numbers(evaluate({"net": Flips(make([]), read)}, dataset, **clean)) == {"net": (100.0,)}
    assert chunks(tmp_path) == before  # read, not measured again


def test_what_cannot_be_seen_into_changes_no_key():
    def known(**attributes):
        net = Net()
        for key, value in attributes.items():
            setattr(net, key, value)
        return identity(net)["state_sha256"]

    assert known() == known(lock=threading.Lock(), log=logging.getLogger("x"), call=lambda: 1, kind=Net)
    assert known(own={"a": [1]}) == known(own={"a": [1]}) != known(own={"a": [2]})
    ring = [1]
    ring.append(ring)
    assert known(own=ring) == known(own=ring)
    assert known(own={"a": 1}) != known(own={"a": True})


class Keeps(Net):
    """Keeps of each call what `keep` says; its threshold moves with the number of calls, if it learns."""

    def __init__(self, keep, learns=0.0):
        super().__init__()
        self.keep, self.learns, self.calls, self.log, self.last = keep, learns, 0, [], None

    def forward(self, images):
        self.keep(self, images)
        return super().forward(images + self.learns * max(0, self.calls - AFTER_CHECKS))


AFTER_CHECKS = 60  # calls: more than it takes to check a model


def count(net, images):
    net.calls += 1


KEPT = {
    "a count": count,
    "a log": lambda net, images: net.log.append(float(images.mean())),
    "the last images": lambda net, images: setattr(net, "last", images.detach().numpy()),
    "their number": lambda net, images: setattr(net, "last", len(images)),
    "a first call": lambda net, images: setattr(net, "built", True),
    "when it is called": lambda net, images: setattr(net, "last", {"at": time.perf_counter()}),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", KEPT)
def test_what_a_model_writes_down_of_its_calls_is_no_part_of_it(tmp_path, what):
    net = Keeps(KEPT[what])
    first = evaluate({"net": net}, out=tmp_path)
    before = chunks(tmp_path)
    again = evaluate({"net": net}, out=tmp_path)
    fresh = evaluate({"net": Keeps(KEPT[what])}, out=tmp_path)
    assert numbers(first) == numbers(again) == numbers(fresh) == {"net": THRESHOLDS[0.5]}
    assert chunks(tmp_path) == before  # read, not measured again


@pytest.mark.slow
def test_a_model_that_changes_while_it_is_measured_is_refused_and_not_stored(tmp_path):
    learning = {"attacks": "pgd(steps=100)", "out": tmp_path}
    for _ in range(2):
        with pytest.raises(UserError, match="net changes while it is measured"):
            evaluate({"net": Keeps(count, learns=0.01)}, **learning)
        assert [row[1:3] for row in chunks(tmp_path)] == [(0, len(IMAGES))]  # the clean images, before that
    steady = evaluate({"net": Keeps(count)}, **learning)
    assert numbers(steady)["net"][0] == 100


def test_classes_of_one_name_are_hashed_in_one_order(tmp_path, monkeypatch):
    """As LayerNorm of torch and of timm. Sets have an order by address, which differs between processes."""
    monkeypatch.syspath_prepend(str(tmp_path))
    names = [f"norms_{at}" for at in range(6)]
    for at, name in enumerate(names):
        source = f"from torch import nn\n\n\nclass Norm(nn.Identity):\n    number = {at}\n"
        (tmp_path / f"{name}.py").write_text(source)
    found, kept = set(), []
    for _ in range(8):
        for name in names:
            monkeypatch.delitem(sys.modules, name, raising=False)
        kept.append([importlib.import_module(name).Norm for name in names])
        found.add(identity(nn.Sequential(*(kind() for kind in kept[-1])))["state_sha256"])
    assert len(found) == 1

"""Channels last where a model that came as an object does the same in it."""

import copy

import pytest
import torch
from support.attacked import Tiny, tiny_batch
from torch import nn

from robust_interp import data, evaluate
from robust_interp.classifiers.classifier import Classifier
from robust_interp.classifiers.fingerprint import output_hash
from robust_interp.classifiers.isolation import measurement_mode
from robust_interp.classifiers.layout import ChannelsLast, use_channels_last
from robust_interp.classifiers.target import Context, from_module

# The networks here are untrained, which evaluate remarks on.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Layouts(nn.Module):
    """Notes the layout of its images and of a convolution's output; `then` makes logits of that."""

    def __init__(self, then=lambda found: found.mean((2, 3)), channels=3):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.then, self.seen = nn.Conv2d(channels, 5, 3), then, []

    def forward(self, images):
        found = self.conv(images)
        self.seen.append([is_last(images), is_last(found)])
        return self.then(found)


class Linear(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(108, 5)

    def forward(self, images):
        return self.head(images.flatten(1))


def is_last(tensor):
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def decided(model, images=None):
    classifier = Classifier(model, [0.5] * 3, [0.2] * 3).eval()
    with measurement_mode(classifier):
        return use_channels_last(classifier, tiny_batch(4)[0] if images is None else images), classifier


def test_convolutions_keep_the_layout_of_the_images():
    model = Layouts()
    used, classifier = decided(model)
    assert used
    assert model.seen[-1] == [True, True]
    assert model.seen[0] == [False, False]
    assert not is_last(model.conv.weight)  # the model itself is not touched
    images, _ = tiny_batch(7)
    with torch.no_grad():
        classifier(images)
    assert model.seen[-1] == [True, True]


STRIDES = {
    "a view that fails": lambda found: found.view(len(found), -1)[:, :5],
    "not a number": lambda found: found.mean((2, 3)) * float("nan"),
    "a masked class": lambda found: found.mean((2, 3)) + torch.tensor([0, 0, 0, 0, -torch.inf]),
    "a view of strides": lambda found: torch.as_strided(found, (len(found), 5), (80, 1)),
}


@pytest.mark.parametrize("then", STRIDES.values(), ids=STRIDES)
def test_a_model_that_fails_or_cannot_be_held_against_itself_is_left_as_it_was(then):
    model = Layouts(then)
    used, classifier = decided(model)
    assert not used
    images, _ = tiny_batch(4)
    with torch.no_grad():
        found, expected = classifier(images), model((images - 0.5) / 0.2)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5, equal_nan=True)
    assert not any(isinstance(module, ChannelsLast) for module in classifier.modules())


def test_what_cannot_gain_is_not_tried():
    assert not decided(Linear())[0]
    assert not decided(torch.jit.script(Tiny().eval()))[0]
    assert not decided(torch.jit.trace(Tiny().eval(), tiny_batch(4)[0]))[0]
    assert not decided(Tiny().to(memory_format=torch.channels_last))[0]
    grey = Classifier(Layouts(channels=1)).eval()
    with measurement_mode(grey):
        assert not use_channels_last(grey, torch.rand(4, 1, 6, 6))


def test_a_measured_model_runs_in_it_and_is_the_same_afterwards():
    model, (images, labels) = Layouts(), tiny_batch(12)
    before = copy.deepcopy(model.state_dict())
    table = evaluate(model, (images, labels, 5), attacks="fgsm", eps="8", corruptions="none")
    assert model.seen[-1] == [True, True]
    with torch.no_grad():
        expected = 100 * (model(images).argmax(1) == labels).double().mean().item()
    assert table["accuracy"][0] == pytest.approx(expected)
    assert model.seen[-1] == [False, False]
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())
    assert not is_last(model.conv.weight)


def test_the_layout_does_not_change_what_a_model_is_known_by():
    images, labels = tiny_batch(12)
    model, dataset = Tiny().eval(), data.from_arrays(images, labels, 5)
    first = from_module("net", model, Context(dataset)).card.identity
    classifier = Classifier(model)
    with measurement_mode(classifier):
        assert first["behaviour"] == output_hash(classifier, images)  # as it is without

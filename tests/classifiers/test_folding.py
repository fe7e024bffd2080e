"""BatchNorm folded into convolutions: the same function, in a copy, and only where it is one."""

import copy

import pytest
import timm
import torch
from support.attacked import Tiny, tiny, tiny_batch
from torch import nn

from robust_interp import zoo
from robust_interp.classifiers.engine import with_folded_norms
from robust_interp.classifiers.folding import fold_batch_norm


class Pair(nn.Module):
    """A convolution, its BatchNorm, and what else may be done with them."""

    def __init__(self, then=lambda self, x: self.norm(self.conv(x)), norm=None):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.norm = nn.Conv2d(3, 3, 3, padding=1), norm or nn.BatchNorm2d(3)
        if self.norm.running_mean is not None:
            nn.init.uniform_(self.norm.running_mean, -0.5, 0.5)
            nn.init.uniform_(self.norm.running_var, 0.5, 2)
        self.then = then

    def forward(self, images):
        return self.then(self, images).mean((2, 3))


def norms(model):
    return sum(isinstance(module, nn.BatchNorm2d) for module in model.modules())


def test_it_is_the_same_function_and_the_model_is_not_touched():
    model = Tiny().eval()
    before, images = copy.deepcopy(model.state_dict()), tiny_batch(5)[0]
    found = fold_batch_norm(model)
    assert (norms(model), norms(found)) == (1, 0)
    with torch.no_grad():
        expected = model.double()(images.double())
        torch.testing.assert_close(found(images), expected.float(), rtol=1e-4, atol=1e-5)
    model.float()
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in before.items())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "left"),
    [
        # pre-activation: what stands before a convolution stays, and the last one
        (lambda: zoo.create("in_resnet14", num_classes=10), 9),
        (lambda: timm.create_model("resnet18", num_classes=10), 0),
    ],
    ids=["in_resnet14", "timm resnet18"],
)
def test_networks(make, left):
    model = make().eval()
    assert norms(fold_batch_norm(model)) == left < norms(model)


def twice(self, x):
    return self.norm(self.conv(self.norm(self.conv(x))))


LEFT_ALONE = {
    "called twice": Pair(twice),
    "used besides": Pair(lambda self, x: (y := self.conv(x)) + self.norm(y)),
    "no running statistics": Pair(norm=nn.BatchNorm2d(3, track_running_stats=False)),
    "read besides": Pair(lambda self, x: self.norm(self.conv(x)) * self.norm.weight.view(1, -1, 1, 1)),
    "control flow": Pair(lambda self, x: self.norm(self.conv(x)) if x.sum() > 0 else x),
    "something between": Pair(lambda self, x: self.norm(self.conv(x).relu())),
    "no BatchNorm": nn.Sequential(nn.Conv2d(3, 3, 1), nn.Flatten()),
    "TorchScript": torch.jit.script(Tiny().eval()),
}


@pytest.mark.parametrize("model", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_what_is_no_such_pair_is_left_alone(model):
    assert fold_batch_norm(model.eval()) is None


def test_hooks_and_training_are_left_alone():
    hooked = Pair().eval()
    hooked.conv.register_forward_hook(lambda module, inputs, output: output * 2)
    assert fold_batch_norm(hooked) is None
    assert fold_batch_norm(Pair().train()) is None


def test_a_model_does_not_see_that_it_is_read():
    model = Pair(lambda self, x: setattr(self, "last", x) or self.norm(self.conv(x))).eval()
    assert fold_batch_norm(model) is not None
    assert not hasattr(model, "last")


def test_a_classifier_is_folded_with_its_normalisation():
    classifier = tiny().requires_grad_(False)
    images, _ = tiny_batch(4)
    found = with_folded_norms(classifier, images)
    assert found is not classifier
    assert norms(found) == 0
    assert (found.name, found.normalisation) == (classifier.name, classifier.normalisation)
    other = nn.Linear(2, 2)
    assert with_folded_norms(other, images) is other

"""The checks for authors of plug-ins: what keeps to the rules passes, and each rule broken is named."""

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from robust_interp import testing
from robust_interp.attacks import AttackType
from robust_interp.corruptions import CORRUPTIONS
from robust_interp.plugins import attack, dataset

# Models.


class Net(nn.Module):
    """An honest classifier; the broken ones change one thing of it."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4, 10)

    def forward(self, images):
        return self.head(self.norm(self.conv(images)).relu().mean(dim=(2, 3)))


class Noisy(Net):
    def forward(self, images):
        return super().forward(images) + torch.randn(len(images), 10)


class AlwaysDropping(Net):
    def forward(self, images):
        return F.dropout(super().forward(images), training=True)


class Pair(Net):
    def forward(self, images):
        return super().forward(images), images


class OfTheBatch(Net):
    def forward(self, images):
        return super().forward(images - images.mean(0))


class FewClasses(Net):
    def forward(self, images):
        return super().forward(images)[:, :7]


class NoGradient(Net):
    def forward(self, images):
        return super().forward(images.detach())


class FlatGradient(Net):
    def forward(self, images):
        return super().forward(images.round() + 0 * images)


class NotFinite(Net):
    def forward(self, images):
        return super().forward(images) / 0


class MasksEverything(Net):
    def forward(self, images):
        return super().forward(images) * 0 - torch.inf


class MasksOne(Net):
    def forward(self, images):
        return super().forward(images).index_fill(1, torch.tensor([3]), -torch.inf)


class Counting(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1))

    def forward(self, images):
        self.seen += 1
        return super().forward(images)


class HiddenState(Net):
    """Part of it is neither a parameter nor a buffer, and drawn anew each time."""

    def __init__(self):
        super().__init__()
        self.weights = [torch.randn(10)]

    def forward(self, images):
        return super().forward(images) * self.weights[0]


class Double(Net):
    def forward(self, images):
        return super().forward(images).double()


@pytest.mark.slow
def test_an_honest_model_passes_however_it_is_given():
    testing.check_model(Net)
    testing.check_model(Net())
    testing.check_model(MasksOne)  # as bench measures it, where the class is not the label
    testing.check_model("in_resnet14", classes=7, shape=(1, 8, 8))


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (Noisy, "is random"),
        (AlwaysDropping, "is random"),
        (Pair, "returns a tuple"),
        (OfTheBatch, "depend on the others in the batch"),
        (FewClasses, r"shape \(8, 7\)"),
        (NoGradient, "lets no gradient through"),
        (FlatGradient, "gradient at its input is zero"),
        (NotFinite, "not finite"),
        (MasksEverything, "mask every class"),
        (Counting, "changes its parameters, buffers or mode"),
        (HiddenState, "its state dict is incomplete"),
        (Double, r"torch.float64"),
        (dict, "it is a dict, not a torch module"),
    ],
)
def test_a_broken_model_is_named_with_the_rule(model, why):
    with pytest.raises(AssertionError, match=why) as failure:
        testing.check_model(model)
    assert model.__name__ in str(failure.value)


def test_a_model_comes_back_as_it_was():
    model = Net().train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    testing.check_model(model)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# Attacks.


def step(model, images, labels, size):
    """One signed gradient step, by hand."""
    pixels = images.clone().requires_grad_()
    loss = F.cross_entropy(model(pixels), labels, reduction="sum")
    return images + size * torch.autograd.grad(loss, pixels)[0].sign()


@attack()
def honest(model, images, labels, *, eps):
    return step(model, images, labels, eps).clamp(0, 1)


@attack(random=True)
def honest_start(model, images, labels, *, eps):
    started = (images + torch.empty_like(images).uniform_(-eps, eps)).clamp(0, 1)
    return (images + (step(model, started, labels, eps) - images).clamp(-eps, eps)).clamp(0, 1)


@attack(norm="L2")
def honest_euclidean(model, images, labels, *, eps):
    """Along the gradient to half the radius, so that clamping cannot matter much."""
    direction = (step(model, images, labels, 1.0) - images).flatten(1)
    change = 0.5 * eps * direction / direction.norm(dim=1, keepdim=True)
    return (images + change.view_as(images)).clamp(0, 1)


@attack(norm="L2")
def too_far_euclidean(model, images, labels, *, eps):
    """In the Linf ball, which here is not the one that counts."""
    return step(model, images, labels, eps).clamp(0, 1)


@attack()
def too_far(model, images, labels, *, eps):
    return step(model, images, labels, 1.01 * eps).clamp(0, 1)


@attack()
def unclamped(model, images, labels, *, eps):
    return step(model, images, labels, eps)


@attack()
def undeclared_draw(model, images, labels, *, eps):
    return (images + torch.empty_like(images).uniform_(-eps, eps)).clamp(0, 1)


@attack(random=True)
def numpy_draw(model, images, labels, *, eps):
    noise = torch.from_numpy(np.random.uniform(-eps, eps, tuple(images.shape))).float()
    return (images + noise).clamp(0, 1)


@attack(random=True)
def own_draw(model, images, labels, *, eps):
    noise = torch.from_numpy(np.random.default_rng().uniform(-eps, eps, tuple(images.shape))).float()
    return (images + noise).clamp(0, 1)


@attack(random=True)
def own_seed(model, images, labels, *, eps):
    noise = torch.from_numpy(np.random.default_rng(0).uniform(-eps, eps, tuple(images.shape))).float()
    return (images + noise).clamp(0, 1)


@attack()
def of_the_batch(model, images, labels, *, eps):
    """Steps away from the mean image."""
    return (images + eps * (images - images.mean(0)).sign()).clamp(0, 1)


@attack()
def of_the_last(model, images, labels, *, eps):
    """A scale over the batch, as of a gradient that is normalised wrongly."""
    pixels = images.clone().requires_grad_()
    gradient = torch.autograd.grad(F.cross_entropy(model(pixels), labels), pixels)[0]
    return (images + eps * gradient / gradient.abs().max()).clamp(0, 1)


@attack()
def in_place(model, images, labels, *, eps):
    return images.add_(eps).clamp_(0, 1)


@attack()
def changes_labels(model, images, labels, *, eps):
    labels.zero_()
    return (images + eps).clamp(0, 1)


@attack()
def marks_images(model, images, labels, *, eps):
    images.requires_grad_()
    return (images + eps).clamp(0, 1).detach()


@attack()
def leaves_train_mode(model, images, labels, *, eps):
    model.train()
    return (images + eps).clamp(0, 1)


@attack()
def updates_statistics(model, images, labels, *, eps):
    model.train()
    found = step(model, images, labels, eps).clamp(0, 1)
    model.eval()
    return found


@attack()
def thaws(model, images, labels, *, eps):
    model.requires_grad_(True)
    return honest_step(model, images, labels, eps)


def honest_step(model, images, labels, eps):
    return step(model, images, labels, eps).clamp(0, 1)


@attack()
def not_finite(model, images, labels, *, eps):
    return images / 0 * 0


@attack()
def does_nothing(model, images, labels, *, eps):
    return images.clone()


@attack()
def of_another_shape(model, images, labels, *, eps):
    return images[:1]


@attack()
def returns_a_pair(model, images, labels, *, eps):
    return images, labels


@attack()
def fails(model, images, labels, *, eps):
    raise KeyError("missing")


@attack()
def other_precision(model, images, labels, *, eps):
    return images.double()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [honest, honest_start, honest_euclidean, numpy_draw, "fgsm", "deepfool"], ids=range(6)
)
def test_an_honest_attack_passes(kind):
    testing.check_attack(kind)


def test_an_attack_is_checked_with_other_parameters_and_on_ones_own_model():
    model = nn.Sequential(nn.Flatten(), nn.Linear(16, 3))
    testing.check_attack("pgd", {"steps": 3}, eps=(0.1,), model=model, images=torch.rand(5, 1, 4, 4))


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (too_far, "exceeds its radius"),
        (too_far_euclidean, "exceeds its radius: the L2 size"),
        (unclamped, r"returns values outside \[0, 1\]"),
        (undeclared_draw, "draws random numbers: declare it with random=True"),
        (own_draw, "must draw from the global generators of torch, NumPy or Python"),
        (own_seed, "must not depend on the others"),
        (of_the_batch, "must not depend on the others"),
        (of_the_last, "must not depend on the others"),
        (in_place, "changes its input images or labels"),
        (changes_labels, "changes its input images or labels"),
        (marks_images, "changes its input images or labels"),
        (leaves_train_mode, "changes the mode, parameters, buffers or gradients"),
        (updates_statistics, "changes the mode, parameters, buffers or gradients"),
        (thaws, "changes the mode, parameters, buffers or gradients"),
        (not_finite, "not finite"),
        (does_nothing, "changes no image"),
        (of_another_shape, r"returns shape \(1, 3, 32, 32\) for \(8, 3, 32, 32\)"),
        (returns_a_pair, "returns a tuple"),
        (fails, "KeyError: 'missing'"),
        (other_precision, r"returns torch.float64 for torch.float32"),
        (lambda model, images, labels: images, "its type is function, not AttackType"),
    ],
    ids=lambda value: getattr(getattr(value, "torchattacks_class", None), "__name__", ""),
)
def test_a_broken_attack_is_named_with_the_rule(kind, why):
    with pytest.raises(AssertionError, match=why) as failure:
        testing.check_attack(kind)
    if isinstance(kind, AttackType):
        assert kind.torchattacks_class.__name__ in str(failure.value)


# Corruptions.


def noise(image, severity, rng):
    return image + rng.normal(scale=0.02 * severity, size=image.shape)


def from_global_numpy(image, severity, rng):
    return image + np.random.normal(scale=0.02 * severity, size=image.shape)


def from_python(image, severity, rng):
    return image + 0.01 * severity * random.random()


def from_torch(image, severity, rng):
    return image + 0.01 * severity * torch.rand(()).item()


def from_the_system(image, severity, rng):
    return image + np.random.default_rng().normal(scale=0.02 * severity, size=image.shape)


def reseeding(image, severity, rng):
    np.random.seed(0)
    return image + np.random.normal(scale=0.02 * severity, size=image.shape)


class Neighbourly:
    """Mixes in what it saw last."""

    __name__ = "Neighbourly"
    last = 0.0

    def __call__(self, image, severity, rng):
        mixed = image + severity / 10 * self.last
        self.last = image
        return mixed


def cropping(image, severity, rng):
    return image[:, 1:, 1:]


def one_value(image, severity, rng):
    return image.mean(keepdims=True)


def nan(image, severity, rng):
    return np.where(image < severity / 10, np.nan, image)


def idle(image, severity, rng):
    """Its parameters lack the last severity."""
    return image * (0.9, 0.8, 0.7, 0.6, 1.0)[severity - 1]


def a_list(image, severity, rng):
    return image.tolist()


def from_0_to_255(image, severity, rng):
    return 255 * noise(image, severity, rng).clip(0, 1)


def normalised(image, severity, rng):
    return (noise(image, severity, rng) - 0.45) / 0.25


def from_minus_1_to_1(image, severity, rng):
    return 2 * noise(image, severity, rng) - 1


def whole_numbers(image, severity, rng):
    return (255 * noise(image, severity, rng).clip(0, 1)).astype(int)


def cast_to_bytes(image, severity, rng):
    return noise(image, severity, rng).clip(0, 1).astype(np.uint8)


def heavy_noise(image, severity, rng):
    """As strong as any that is published."""
    return image + rng.normal(scale=0.076 * severity, size=image.shape)


def brightest(image, severity, rng):
    return image + 0.1 * severity


@pytest.mark.parametrize("kind", [heavy_noise, brightest, noise, "gaussian_noise", "saturate"], ids=range(5))
def test_an_honest_corruption_passes(kind):
    testing.check_corruption(kind)


def test_a_corruption_that_cannot_be_generated_says_why():
    with pytest.raises(AssertionError, match="spatter: it cannot be generated here: it needs colour images"):
        testing.check_corruption("spatter", shape=(1, 8, 8))


def test_a_corruption_may_return_bytes():
    testing.check_corruption(
        lambda image, severity, rng: (image * 255 * (1 - severity / 10)).astype(np.uint8)
    )


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (from_global_numpy, "global random generator"),
        (from_python, "global random generator"),
        (from_torch, "global random generator"),
        (reseeding, "global random generator"),
        (from_the_system, "different results when repeated"),
        (Neighbourly(), "different results when repeated"),
        (cropping, r"returns shape \(3, 31, 31\) for \(3, 32, 32\)"),
        (one_value, r"returns shape \(1, 1, 1\) for \(3, 32, 32\)"),
        (nan, "not finite"),
        (idle, "severity 5 changes no image"),
        (a_list, "returns a list"),
        (from_0_to_255, "returns no pixels"),
        (normalised, "returns no pixels"),
        (from_minus_1_to_1, "returns no pixels"),
        (whole_numbers, "returns no pixels"),
        (cast_to_bytes, "returns no pixels"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_broken_corruption_is_named_with_the_rule(kind, why):
    with pytest.raises(AssertionError, match=why) as failure:
        testing.check_corruption(kind)
    assert kind.__name__ in str(failure.value)


def test_what_was_checked_is_not_left_registered():
    testing.check_corruption(noise)
    assert not [name for name in CORRUPTIONS if "noise" in name and name.startswith("given")]


@pytest.mark.slow
def test_a_check_leaves_the_global_generators_as_they_were():
    np.random.seed(5)
    random.seed(5)
    torch.manual_seed(5)
    testing.check_corruption(noise)
    testing.check_attack(honest_start)
    testing.check_model(Net)
    after = np.random.random(), random.random(), torch.rand(1).item()
    np.random.seed(5)
    random.seed(5)
    torch.manual_seed(5)
    assert after == (np.random.random(), random.random(), torch.rand(1).item())


# Datasets.


def declared(change=lambda images, labels: (images, labels), **about):
    """A dataset of two classes; `change` breaks what it loads."""
    about = {"mean": (0.5,), "std": (0.2887,)} | about

    @dataset(classes=2, shape=(1, 8, 8), **({"eps_255": (8,), "default_n": 60} | about))
    def noise2(split, root):
        rng = np.random.default_rng(split == "test")
        images = rng.random((60, 1, 8, 8), dtype=np.float32)  # U[0, 1): mean 1/2, std 12 ** -1/2
        return change(images, np.arange(60) % 2)

    return noise2


def test_an_honest_dataset_passes():
    testing.check_dataset(declared())
    testing.check_dataset(declared(default_n=None))
    testing.check_dataset("digits")


def shuffled(images, labels):
    order = np.random.permutation(len(labels))
    return images[order], labels[order]


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        (declared(lambda x, y: (x * 255, y)), r"inputs must be in \[0, 1\]"),
        (declared(lambda x, y: ((x - 0.5) / 0.2887, y)), r"inputs must be in \[0, 1\]"),
        (declared(lambda x, y: (x, y + 1)), "labels run from 1 to 2, outside 0 to 1"),
        (declared(lambda x, y: (x, y[:-1])), "labels must be 60 class indices"),
        (declared(lambda x, y: (x, y * 0)), "has no image of class 1"),
        (declared(lambda x, y: (x, y / 1)), "labels must be 60 class indices"),
        (declared(shuffled), "changes when it is loaded again"),
        (declared(lambda x, y: (x.transpose(0, 2, 3, 1), y)), r"must be \(N, C, H, W\)"),
        (declared(lambda x, y: (x[..., :7], y)), r"shape \(1, 8, 7\), not \(1, 8, 8\)"),
        (declared(mean=(0.3,)), "its mean is"),
        (declared(std=(0.1,)), "its std is"),
        (declared(eps_255=(8 / 255,)), "is not in units of 1/255"),
        (declared(default_n=61), "but the test set has 60 images"),
        (declared(lambda x, y: x.nothing), "AttributeError"),
    ],
    ids=range(14),
)
def test_a_broken_dataset_is_named_with_the_rule(kind, why):
    with pytest.raises(AssertionError, match=why) as failure:
        testing.check_dataset(kind)
    assert "noise2" in str(failure.value)

"""Gradients of an attack in another precision: where it holds, and where it is refused."""

import pytest
import torch
import torch.nn.functional as F
from support.attacked import EPS, Tiny, tiny, tiny_batch
from torch import nn

from robust_interp import attacks
from robust_interp.attacks import AttackRunner, precision
from robust_interp.classifiers.classifier import Classifier
from robust_interp.classifiers.ensemble import Ensemble
from robust_interp.classifiers.isolation import measurement_mode
from robust_interp.core.errors import UserError

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


class Watched(nn.Module):
    """Notes for each pass whether a gradient is wanted, and in what it and its way back are computed."""

    def __init__(self):
        super().__init__()
        self.model, self.forwards, self.backwards = Tiny(), [], []

    def forward(self, images):
        wanted = images.requires_grad and torch.is_grad_enabled()
        self.forwards.append((wanted, self.model.conv(images).dtype, torch.get_float32_matmul_precision()))
        logits = self.model(images)
        if wanted:
            logits.register_hook(lambda _: self.backwards.append(torch.get_float32_matmul_precision()))
        return logits


def attacked(spec, given, model):
    (perturbation,) = attacks.parse_attacks(spec, [EPS], {}, 0, given)
    images, _ = tiny_batch(6)
    classifier = Classifier(model).eval()
    with measurement_mode(classifier):
        labels = classifier(images).argmax(1)  # some attacks are made only on what is right
        model.forwards.clear()
        return AttackRunner(perturbation, classifier)(images, labels, range(6)).images


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["pgd(steps=2)", "pgd(steps=2,restarts=2)", "apgd_ce(steps=5)", "deepfool"])
def test_only_passes_of_gradients_are_in_bf16(spec):
    model = Watched()
    attacked(spec, "bf16", model)
    found = {(wanted, dtype) for wanted, dtype, _ in model.forwards}
    assert (True, torch.bfloat16) in found
    assert found <= {(True, torch.bfloat16), (False, torch.float32)}


@pytest.mark.parametrize("given", ["tf32", "bf16"])
def test_an_attack_without_gradients_stays_in_float32(given):
    model = Watched()
    attacked("square(queries=5)", given, model)
    assert {(dtype, matmul) for _, dtype, matmul in model.forwards} == {(torch.float32, "highest")}


def test_tf32_holds_on_the_way_back_too_and_not_between_restarts():
    torch.set_float32_matmul_precision("highest")
    model = Watched()
    attacked("pgd(steps=2,restarts=2)", "tf32", model)
    assert set(model.backwards) == {"high"}
    assert {(wanted, matmul) for wanted, _, matmul in model.forwards} == {(True, "high"), (False, "highest")}
    assert torch.get_float32_matmul_precision() == "highest"


def test_a_step_in_bf16_follows_the_gradient_of_a_loss_in_float32():
    classifier = tiny()
    (images, labels), (fgsm,) = tiny_batch(20), attacks.parse_attacks("fgsm", [EPS], {}, 0, "bf16")
    with measurement_mode(classifier):
        found = AttackRunner(fgsm, classifier)(images, labels, range(20)).images
        pixels = images.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            logits = classifier(pixels)
        assert logits.dtype == torch.bfloat16
        (gradient,) = torch.autograd.grad(F.cross_entropy(logits.float(), labels), pixels)
    assert torch.equal(found, (images + EPS * gradient.sign()).clamp(0, 1))


def test_members_of_an_ensemble_are_averaged_in_float32():
    members = [tiny(seed) for seed in (0, 1)]
    images, _ = tiny_batch(8)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        each = torch.stack([member(images).float() for member in members])
        found = Ensemble(members, average="logits")(images)
    assert found.dtype == torch.float32
    assert torch.equal(found, each.mean(0))


def test_attacks_without_gradients_are_named_float32():
    specs = "fgsm, square, autoattack, pgd(steps=3), deepfool"
    found = attacks.parse_attacks(specs, [EPS], {}, 0, "bf16")
    assert {one.name: one.precision for one in found} == {
        "fgsm": "bf16",
        "square": "float32",
        "autoattack": "bf16",
        "pgd": "bf16",
        "deepfool": "bf16",
    }


def test_the_key_says_the_precision_where_it_is_not_float32():
    described = [
        attacks.parse_attacks("fgsm", [0.1], {}, 0, each)[0].describe() for each in ("float32", "bf16")
    ]
    assert described[0] == {"kind": "attack", "name": "fgsm", "params": {"eps": 0.1}}
    assert described[1] == described[0] | {"precision": "bf16"}


def test_tf32_is_refused_without_cuda():
    for given, device in (("float32", CPU), ("bf16", CPU), ("bf16", CUDA), ("tf32", CUDA)):
        precision.check(given, device)
    with pytest.raises(UserError, match="attack precision tf32 needs a CUDA device: use float32"):
        precision.check("tf32", CPU)

"""What an attack returns is checked, and the model is left as it was found."""

import hashlib
import math
import random

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
import torchattacks
from support.attacked import EPS, Through, attack, perturbation, predict, tiny, tiny_batch
from torch import nn
from torch.utils.checkpoint import checkpoint

import robust_interp
from robust_interp import attacks
from robust_interp.attacks import AttackRunner
from robust_interp.attacks.probe import GradientProbe
from robust_interp.classifiers.classifier import Classifier
from robust_interp.classifiers.isolation import measurement_mode
from robust_interp.core.errors import UserError
from robust_interp.results.ranks import ranked_by

# The networks here are untrained or built to mislead, which evaluate remarks on.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.mark.parametrize("spec", ["pgd_l2(eps=0.5,steps=2)", "SparseFool(steps=1)"])
def test_attacks_that_flatten_gradients_take_models_in_channels_last(spec):
    """torchattacks' view(N, -1) fails on the layout that such a model gives its gradients."""
    images, labels = tiny_batch(4)
    laid_out = tiny().to(memory_format=torch.channels_last)
    expected = attack(tiny(), spec, images, labels).images
    assert attack(laid_out, spec, images, labels).images == pytest.approx(expected, abs=1e-4)


# --- ball and range ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("eps", [0.5 / 255, 8 / 255, 0.3, 1.0])
@pytest.mark.parametrize("name", ["ifgsm", "pgd"])
def test_a_hundred_steps_of_alpha_eps_stay_in_the_ball_and_in_range(name, eps):
    images, labels = tiny_batch(12)
    images[0], images[1] = 0, 1
    result = attack(tiny(), f"{name}(alpha=eps, steps=100)", images, labels, eps=eps)
    moved = (result.images.double() - images.double()).abs().max().item()
    assert moved <= eps + 1e-6
    assert result.images.min() >= 0
    assert result.images.max() <= 1
    assert result.deltas.max() == pytest.approx(moved, abs=1e-7)


def test_the_largest_change_is_eps_where_nothing_is_clipped():
    images, labels = torch.full((4, 3, 6, 6), 0.5), torch.tensor([0, 1, 2, 3])
    assert attack(tiny(), "fgsm", images, labels, eps=8 / 255).deltas.max() == pytest.approx(
        8 / 255, abs=1e-7
    )


@pytest.mark.slow
def test_the_largest_change_in_the_table_is_eps_whatever_the_normalisation():
    images, labels = tiny_batch(30)
    for mean, std in (((0.5,) * 3, (0.5,) * 3), ((0.2, 0.4, 0.6), (0.01, 3.0, 20.0))):
        table = robust_interp.evaluate(
            tiny().model,
            (images, labels, 5),
            mean=mean,
            std=std,
            attacks="fgsm,pgd",
            eps=(0.031,),
            corruptions="none",
        )
        attacked = table[table["norm"] == "Linf"]
        assert attacked["eps_255"].tolist() == [7.905, 7.905]
        assert attacked["max_delta_255"].tolist() == pytest.approx([7.905, 7.905], abs=2e-4)


@pytest.mark.parametrize(
    ("delta", "message"),
    [
        (lambda images: torch.full_like(images, 8 / 255 + 3e-6), "exceeds its radius"),
        (lambda images: 1.01 - images, r"returns values outside \[0, 1\]"),
        (lambda images: -images - 1e-4, r"returns values outside \[0, 1\]"),
    ],
)
def test_an_attack_that_leaves_the_ball_or_the_range_raises(monkeypatch, delta, message):
    monkeypatch.setattr(torchattacks.FGSM, "forward", lambda self, images, labels: images + delta(images))
    monkeypatch.setattr(GradientProbe, "findings", nothing_found)
    with pytest.raises(RuntimeError, match=message):
        attack(tiny(), "fgsm", torch.full((2, 3, 6, 6), 0.5), torch.tensor([0, 1]), eps=8 / 255)


CONTROLS = ["fgsm", "ifgsm", "pgd", "mifgsm", "pgd_l2", "apgd_ce", "apgd_dlr", "apgd_t", "square", "cw"]


@pytest.mark.slow
@pytest.mark.parametrize("name", CONTROLS)
def test_at_a_radius_of_zero_the_images_are_the_clean_ones(name, digits_classifier, digits_test):
    images, labels = digits_test[0][:6], digits_test[1][:6].clone()
    labels[3] = (labels[3] + 1) % 10  # one that is wrong when clean
    few = {"apgd_ce": ",steps=3", "apgd_dlr": ",steps=3", "apgd_t": ",steps=2", "square": ",queries=9"}
    (perturbation,) = attacks.parse_attacks(f"{name}(eps=0{few.get(name, '')})", [], {}, seed=0)
    found = AttackRunner(perturbation, digits_classifier)(images, labels, range(6))
    assert torch.equal(found.images, images)
    assert not found.zero_gradient.any()
    assert not found.not_finite.any()


def test_at_a_radius_of_zero_no_rounding_is_accepted(monkeypatch):
    monkeypatch.setattr(torchattacks.FGSM, "forward", lambda self, images, labels: images + 5e-7)
    monkeypatch.setattr(GradientProbe, "findings", nothing_found)
    (perturbation,) = attacks.parse_attacks("fgsm(eps=0)", [], {}, seed=0)
    with pytest.raises(RuntimeError, match="fgsm_0 exceeds its radius"):
        AttackRunner(perturbation, tiny())(torch.zeros(2, 3, 6, 6), torch.tensor([0, 1]), range(2))


@pytest.mark.slow
def test_a_control_is_a_row_and_no_rank_goes_by_it(tiny_zoo, tmp_path):
    options = {"zoo": tiny_zoo, "n": 8, "corruptions": "none", "out": tmp_path}
    asked = "pgd(eps=0),pgd(eps=0.1,steps=2)"
    table = robust_interp.evaluate("preact_resnet14", attacks=asked, **options)
    assert table["eps_255"].dropna().tolist() == [0, 25.5]
    assert table["accuracy"][1] == table["accuracy"][0]
    board = pd.read_csv(tmp_path / "leaderboard.csv")
    assert board["pgd_0"].tolist() == board["clean"].tolist()
    assert ranked_by(board) == {}
    usual = board.assign(**{"pgd_25.5": 50.0, "pgd_25.5_std": float("nan")})
    assert ranked_by(usual) == {"final": "pgd_25.5"}


def test_rounding_just_outside_the_ball_is_accepted(monkeypatch):
    outside = 8 / 255 + 5e-7
    monkeypatch.setattr(torchattacks.FGSM, "forward", lambda self, images, labels: images + outside)
    monkeypatch.setattr(GradientProbe, "findings", nothing_found)
    images = torch.zeros(2, 3, 6, 6)
    assert attack(tiny(), "fgsm", images, torch.tensor([0, 1]), eps=8 / 255).deltas.max() > 8 / 255


def nothing_found(probe):
    """The attack under test takes no gradient: as if its two were neither zero nor infinite."""
    return np.zeros(2, bool), np.zeros(2, bool)


# --- gradients that are zero or not finite -----------------------------------------------------------


def test_samples_without_a_gradient_are_flagged_one_by_one():
    images, labels = torch.full((6, 3, 4, 4), 0.25), torch.zeros(6, dtype=torch.long)
    images[[1, 4]] = 0.75
    bright = lambda gradient, images: gradient * (images < 0.5)  # noqa: E731
    result = attack(Classifier(Through(bright)), "ifgsm", images, labels)
    assert result.zero_gradient.tolist() == [False, True, False, False, True, False]
    assert torch.equal(result.images[[1, 4]], images[[1, 4]])
    assert not result.not_finite.any()


@pytest.mark.parametrize("spec", ["fgsm", "ifgsm(steps=3)", "pgd(steps=3)"])
def test_a_model_with_zeroed_gradients_is_robust_to_nothing(spec):
    images = torch.full((20, 3, 4, 4), 0.25)
    images[:, :, 2:] = 0.75  # the second half of the pixels
    labels = torch.ones(20, dtype=torch.long)
    table = robust_interp.evaluate(
        Through(lambda gradient, images: torch.zeros_like(gradient)),
        (images, labels),
        attacks=spec,
        eps=(8 / 255,),
        corruptions="none",
        round_to_8_bit=True,
    )
    assert table["accuracy"].tolist() == [100, 0]
    assert table["rounded_accuracy"][1] == 0
    assert table["zero_grad"].tolist()[1] == 1


class Scaled(nn.Module):
    def __init__(self, model, scale):
        super().__init__()
        self.model, self.scale = model, scale

    def forward(self, images):
        return self.model(images) * self.scale


@pytest.mark.slow
def test_scaled_logits_hide_the_gradient_but_do_not_make_robust(digits_classifier, digits_test):
    images, labels = digits_test[0][:200], digits_test[1][:200]

    def table(model):
        options = {"attacks": "fgsm", "eps": (EPS,), "corruptions": "none"}
        return robust_interp.evaluate(model, (images, labels, 10), **options).set_index("perturbation")

    model = Scaled(digits_classifier, 3000.0)
    leaf = images.clone().requires_grad_(True)
    (gradient,) = torch.autograd.grad(F.cross_entropy(model(leaf), labels), leaf)
    blind = (gradient == 0).flatten(1).all(1)
    adversarial = (images + EPS * gradient.sign()).clamp(0, 1)
    right = predict(model, adversarial) == labels
    scaled, plain = table(model), table(digits_classifier)
    assert blind.float().mean() > 0.5
    assert scaled.loc["fgsm", "zero_grad"] == pytest.approx(blind.double().mean().item(), abs=1e-4)
    assert scaled.loc["fgsm", "accuracy"] == pytest.approx(
        100 * (right & ~blind).double().mean().item(), abs=1e-9
    )
    assert scaled.loc["clean", "accuracy"] == plain.loc["clean", "accuracy"]
    assert scaled.loc["fgsm", "accuracy"] < plain.loc["fgsm", "accuracy"]


class Detached(nn.Module):
    def forward(self, images):
        with torch.no_grad():
            return Through(None)(images)


def test_a_model_that_cannot_be_differentiated_is_refused_in_one_line():
    images, labels = tiny_batch(5)
    with pytest.raises(UserError, match="mine lets no gradient through to its input") as caught:
        robust_interp.evaluate({"mine": Detached()}, (images, labels % 2, 2), attacks="fgsm")
    assert "\n" not in str(caught.value)
    table = robust_interp.evaluate({"mine": Detached()}, (images, labels % 2, 2), attacks="none")
    assert len(table) == 21


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("spec", ["fgsm", "ifgsm(steps=3)", "pgd(steps=3)"])
def test_gradients_that_are_not_finite_are_flagged_and_leave_the_neighbours_alone(spec, value):
    images, labels = torch.full((6, 3, 4, 4), 0.25), torch.zeros(6, dtype=torch.long)
    images[2] = 0.75
    bad = lambda gradient, images: torch.where(images > 0.5, value, gradient)  # noqa: E731
    result = attack(Classifier(Through(bad)), spec, images, labels)
    alone = attack(Classifier(Through(lambda gradient, images: gradient)), spec, images, labels)
    assert result.not_finite.tolist() == [False, False, True, False, False, False]
    assert torch.isfinite(result.images).all()
    others = [0, 1, 3, 4, 5]
    assert torch.equal(result.images[others], alone.images[others])
    assert not result.zero_gradient.any()


def test_a_gradient_that_is_not_finite_at_a_later_step_only_is_flagged():
    calls = []

    def third_is_nan(gradient, images):
        calls.append(None)
        return gradient * (math.nan if len(calls) == 3 else 1)

    images, labels = torch.full((2, 3, 4, 4), 0.25), torch.tensor([0, 1])
    assert attack(Classifier(Through(third_is_nan)), "ifgsm(steps=5)", images, labels).not_finite.all()


def changed_in(call, value):
    """Multiplies the gradient of one call, counted from 1, by a value."""
    calls = []

    def change(gradient, images):
        calls.append(None)
        return gradient * (value if len(calls) == call else 1)

    return change, calls


UNBREAKABLE = torch.full((2, 3, 4, 4), 0.25)
UNBREAKABLE[:, 1, 2:], UNBREAKABLE[:, 2] = 0.75, 0.75  # the second half of the pixels: class 1, by far


@pytest.mark.parametrize(
    ("spec", "passes", "call", "value", "not_finite"),
    [
        (spec, passes, call, value, not_finite)
        for spec, passes, bad in (
            ("pgd(steps=1,restarts=2)", 2, math.nan),
            ("pgd(steps=3,stop=broken)", 3, math.inf),
        )
        for call in range(1, passes + 1)
        for value, not_finite in ((bad, True), (0, False))
    ],
)
def test_one_gradient_that_is_not_finite_or_not_zero_is_enough(spec, passes, call, value, not_finite):
    change, calls = changed_in(call, value)
    result = attack(Classifier(Through(change)), spec, UNBREAKABLE, torch.tensor([1, 1]))
    assert len(calls) == passes
    assert result.not_finite.tolist() == [not_finite] * 2
    assert result.zero_gradient.tolist() == [False] * 2


def test_nan_gradients_are_not_counted_as_robust():
    images = torch.full((10, 3, 4, 4), 0.25)
    images[:, :, 2:] = 0.6
    images[:3] += 0.2
    # label 1 is right by 0.35, far more than 8/255 can undo
    model = Through(lambda gradient, images: torch.where(images > 0.7, math.nan, gradient))
    table = robust_interp.evaluate(
        model,
        (images, torch.ones(10, dtype=torch.long)),
        attacks="fgsm,pgd",
        eps=(8 / 255,),
        corruptions="none",
    )
    assert table["accuracy"].tolist() == pytest.approx([100, 70, 70])


class NanIfDark(nn.Module):
    """Right about class 1, with NaN logits for images whose mean is below 0.4."""

    def forward(self, images):
        brightness = images.flatten(1).mean(1)
        logits = torch.stack([torch.zeros_like(brightness), 5 + brightness], dim=1)
        return torch.where((brightness < 0.4)[:, None], math.nan, logits)


def test_nan_logits_are_counted_as_wrong():
    images = torch.full((10, 1, 4, 4), 0.6)
    images[:2] = 0.3  # NaN at once
    images[2:5] = 0.42  # NaN once FGSM has darkened them by 8/255
    table = robust_interp.evaluate(
        NanIfDark(),
        (images, torch.ones(10, dtype=torch.long)),
        attacks="fgsm",
        eps=(8 / 255,),
        corruptions="none",
    )
    assert table["accuracy"].tolist() == pytest.approx([80, 50])


# --- the model is left as it was found ---------------------------------------------------------------


class Disturbed(Exception):  # noqa: N818
    pass


class RaisesAt(nn.Module):
    def __init__(self, model, call):
        super().__init__()
        self.model, self.call, self.calls = model, call, 0

    def forward(self, images):
        self.calls += 1
        if self.calls == self.call:
            raise Disturbed
        return self.model(images)


def state_of(model):
    sha = hashlib.sha256()
    for tensor in [*model.parameters(), *model.buffers()]:
        sha.update(tensor.detach().numpy().tobytes())
    return {
        "tensors": sha.hexdigest(),
        "modes": [module.training for module in model.modules()],
        "requires_grad": [parameter.requires_grad for parameter in model.parameters()],
        "grad": [None if p.grad is None else p.grad.tolist() for p in model.parameters()],
        "torch": torch.get_rng_state().tolist(),
        "numpy": np.random.get_state()[1].tolist(),
        "python": random.getstate(),
    }


def in_use():
    """A model in the middle of a training: mixed modes, one frozen parameter, one gradient."""
    model = tiny().model.train()
    model.norm.eval()
    model.conv.bias.requires_grad_(False)
    model.head.weight.grad = torch.ones_like(model.head.weight)
    return model


@pytest.mark.parametrize("spec", ["fgsm", "ifgsm(steps=4)", "pgd(steps=4)"])
def test_attacks_leave_everything_as_they_found_it(spec):
    model, (images, labels) = in_use(), tiny_batch(10)
    before = state_of(model)
    classifier = Classifier(model)
    with measurement_mode(classifier):
        attack(classifier, spec, images, labels)
        assert not any(module.training for module in classifier.modules())
    assert state_of(model) == before
    table = robust_interp.evaluate(model, (images, labels, 5), attacks=spec, eps=(8 / 255,))
    assert len(table) == 22
    assert state_of(model) == before


@pytest.mark.parametrize(("spec", "call"), [("fgsm", 1), ("ifgsm(steps=4)", 3), ("pgd(steps=4)", 3)])
def test_an_exception_inside_the_model_leaves_everything_as_it_was(spec, call):
    model, (images, labels) = in_use(), tiny_batch(10)
    before = state_of(model)
    classifier = Classifier(RaisesAt(model, call))
    with pytest.raises(UserError, match="Disturbed"), measurement_mode(classifier):
        attack(classifier, spec, images, labels)
    assert state_of(model) == before
    during_evaluate = RaisesAt(model, 3 + call)  # two checks and the clean images come before
    options = {"attacks": spec, "eps": (8 / 255,), "corruptions": "none"}
    with pytest.raises(UserError, match="Disturbed"):
        robust_interp.evaluate(during_evaluate, (images, labels, 5), **options)
    assert state_of(model) == before


def test_a_keyed_start_ends_with_its_attack_even_when_the_model_raises():
    classifier = Classifier(RaisesAt(tiny().model, 2))
    images, labels = tiny_batch(4)
    with pytest.raises(UserError, match="Disturbed"):
        attack(classifier, "pgd", images, labels)
    torch.manual_seed(0)
    first = torch.empty(5).uniform_(-1, 1)
    torch.manual_seed(0)
    assert torch.equal(first, 2 * torch.rand(5) - 1)


@pytest.mark.parametrize("spec", ["fgsm", "ifgsm(steps=2)", "pgd(steps=2)"])
def test_a_classifier_in_eval_mode_is_still_so_after_an_attack(spec):
    classifier, (images, labels) = tiny(), tiny_batch(10)
    logits = classifier(images)
    bound = AttackRunner(perturbation(spec), classifier)
    for _ in range(2):
        bound(images, labels, range(10))
        assert not any(module.training for module in classifier.modules())
        assert torch.equal(classifier(images), logits)
    assert all(parameter.grad is None for parameter in classifier.parameters())


def test_an_optimizer_step_after_a_benchmark_changes_nothing():
    model, (images, labels) = tiny().model, tiny_batch(10)
    before = state_of(model)
    robust_interp.evaluate(model, (images, labels, 5), attacks="fgsm,pgd(steps=2)", corruptions="none")
    torch.optim.SGD(model.parameters(), lr=1.0).step()
    assert state_of(model) == before


@pytest.mark.slow
def test_images_and_labels_are_not_changed():
    images, labels = tiny_batch(10)
    kept = images.clone(), labels.clone()
    attack(tiny(), "pgd(steps=2)", images, labels)
    robust_interp.evaluate(tiny().model, (images, labels, 5), attacks="pgd(steps=2)")
    assert torch.equal(images, kept[0])
    assert torch.equal(labels, kept[1])


class FixedNoise(nn.Module):
    """A deterministic model that draws numbers, always the same, and keeps what it was asked and answered."""

    def __init__(self):
        super().__init__()
        self.model, self.passes = tiny().model, []

    def noise(self, images):
        fixed = torch.Generator().manual_seed(0)
        rows = torch.empty(images.shape[1:]).uniform_(generator=fixed)
        return images + rows * torch.randn(images.shape, generator=fixed)[0]

    def forward(self, images):
        recomputed = checkpoint(self.noise, images, use_reentrant=False)  # once more in the backward pass
        logits = self.model(images + self.noise(images) + recomputed.square())
        self.passes.append((images.detach().clone(), logits.detach()))
        return logits


@pytest.mark.parametrize(
    "spec",
    ["pgd(steps=2)", "pgd(steps=2,stop=broken)", "apgd_ce(steps=3)", "square(queries=3)", "VNIFGSM(steps=2)"],
)
def test_the_attacked_model_draws_what_it_draws_in_predictions(spec):
    images, model = tiny_batch(3)[0], FixedNoise().eval()
    labels = predict(model, images)
    model.passes.clear()
    attack(Classifier(model), spec, images, labels)
    asked, model.passes = model.passes, []
    assert asked
    for seen, logits in asked:
        assert torch.equal(model(seen).detach(), logits)


def test_the_attacked_model_is_on_the_default_device_of_the_user():
    """It is a mode of torch, like the random numbers of an attack, and stays."""
    images, labels = tiny_batch(2)
    devices = set()

    def asks(seen):
        devices.add(torch.ones(1).device.type)
        return seen.flatten(1)

    with torch.device("meta"):
        attack(asks, "FFGSM", images, labels)
    assert devices == {"meta"}


def test_gradients_of_recomputed_passes_are_those_of_the_model():
    images, labels = tiny_batch(3)
    model, found = FixedNoise().eval().requires_grad_(False), []
    leaf = images.clone().requires_grad_()
    (expected,) = torch.autograd.grad(F.cross_entropy(model(leaf), labels), leaf)

    def follows(seen):
        seen.register_hook(found.append)
        return model(seen)

    attack(follows, "pgd(steps=1)", images, labels, eps=0)  # from the images themselves
    assert torch.equal(found[0], expected)


def test_a_model_without_parameters_prints_nothing(capsys):
    images, labels = torch.full((3, 3, 4, 4), 0.25), torch.tensor([0, 1, 0])
    attack(Classifier(Through(lambda gradient, images: gradient)), "pgd(steps=2)", images, labels)
    assert capsys.readouterr() == ("", "")

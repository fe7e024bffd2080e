"""Attacks: against other implementations and closed forms, keyed draws, guards, the model's state, specs."""

import hashlib
import math
import random

import foolbox
import numpy as np
import pytest
import torch
import torch.nn.functional as F
import torchattacks
from scipy import stats
from torch import nn

import robust_interp
from robust_interp import attacks, data
from robust_interp.attacks import AttackRunner, start_noise
from robust_interp.attacks.runner import GradientProbe
from robust_interp.classifiers.classifier import Classifier
from robust_interp.classifiers.isolation import undisturbed
from robust_interp.core.errors import UserError
from robust_interp.store.cells import Cell, ModelCard

EPS = 16 / 255
AGREEMENT = 0.999  # share of samples that must get the same predicted label

# The networks here are untrained or built to mislead, which evaluate remarks on.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


def perturbation(spec, eps=EPS, seed=0):
    (found,) = attacks.resolve(spec, [eps], {}, seed)
    return found


def attack(classifier, spec, images, labels, ids=None, **kwargs):
    bound = AttackRunner(perturbation(spec, **kwargs), classifier)
    return bound(images, labels, range(len(images)) if ids is None else ids)


@torch.no_grad()
def predict(classifier, images):
    return classifier(images).argmax(1)


def same_share(first, second):
    return (first == second).float().mean().item()


def in_foolbox(classifier, attack, images, labels, eps=EPS):
    model = foolbox.PyTorchModel(classifier, bounds=(0, 1), device="cpu")
    return attack(model, images, labels, epsilons=eps)[1]


class Tiny(nn.Module):
    """conv, BN, dropout, linear; its BN statistics are those of a trained net: not mean 0, variance 1."""

    def __init__(self, channels=3, classes=5):
        super().__init__()
        self.conv = nn.Conv2d(channels, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(6, classes)
        nn.init.uniform_(self.norm.running_mean, -0.5, 0.5)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)

    def forward(self, images):
        return self.head(self.dropout(F.relu(self.norm(self.conv(images))).mean((2, 3)))) * 10


def tiny(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Classifier(Tiny(), name="tiny").eval()


def tiny_batch(n, seed=0):
    rng = np.random.default_rng(seed)
    images = torch.from_numpy(rng.random((n, 3, 6, 6), dtype=np.float32))
    return images, torch.from_numpy(rng.integers(0, 5, n))


class Through(nn.Module):
    """The mean pixel of two halves as two logits; the gradient that comes back is changed by `change`."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, images):
        if images.requires_grad:
            images = images.view_as(images)
            images.register_hook(lambda gradient: self.change(gradient.clone(), images.detach()))
        halves = images.flatten(1).chunk(2, dim=1)
        return torch.stack([half.mean(1) for half in halves], dim=1)


# --- agreement with others, on a trained network ----------------------------------------------------


@pytest.mark.slow
def test_fgsm_equals_torchattacks_and_foolbox_bit_for_bit(digits_classifier):
    for split in ("test", "train"):
        digits = data.load("digits", split)
        images, labels = torch.from_numpy(digits.pixels(0, 700)), torch.from_numpy(digits.labels[:700])
        ours = attack(digits_classifier, "fgsm", images, labels).images
        bare = torchattacks.FGSM(digits_classifier, eps=EPS)(images, labels)
        theirs = in_foolbox(digits_classifier, foolbox.attacks.LinfFastGradientAttack(), images, labels)
        assert torch.equal(ours, bare)
        assert torch.equal(ours, theirs)
        assert torch.equal(predict(digits_classifier, ours), predict(digits_classifier, theirs))


@pytest.mark.slow
def test_ifgsm_equals_torchattacks_bit_for_bit_and_foolbox_to_rounding(digits_classifier, digits_test):
    images, labels = digits_test
    ours = attack(digits_classifier, "ifgsm(alpha=eps/4, steps=6)", images, labels).images
    bare = torchattacks.BIM(digits_classifier, eps=EPS, alpha=EPS / 4, steps=6)(images, labels)
    by_foolbox = foolbox.attacks.LinfBasicIterativeAttack(abs_stepsize=EPS / 4, steps=6, random_start=False)
    theirs = in_foolbox(digits_classifier, by_foolbox, images, labels)
    assert torch.equal(ours, bare)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-6)  # torchattacks projects in another order
    found, expected = predict(digits_classifier, ours), predict(digits_classifier, theirs)
    assert same_share(found, expected) >= AGREEMENT
    assert (found == labels).float().mean() < (
        predict(digits_classifier, images) == labels
    ).float().mean() - 0.1


def test_ifgsm_by_default_takes_the_papers_twenty_steps_of_two_255ths(digits_classifier, digits_test):
    images, labels = digits_test[0][:20], digits_test[1][:20]
    ours = attack(digits_classifier, "ifgsm", images, labels).images
    assert torch.equal(
        ours, torchattacks.BIM(digits_classifier, eps=EPS, alpha=2 / 255, steps=20)(images, labels)
    )


def hand_written_pgd(classifier, images, labels, start, eps, alpha, steps):
    adversarial = (images + start).clamp(0, 1)
    for _ in range(steps):
        adversarial.requires_grad_(True)
        loss = F.cross_entropy(classifier(adversarial), labels)
        (gradient,) = torch.autograd.grad(loss, adversarial)
        moved = adversarial.detach() + alpha * gradient.sign()
        adversarial = (images + (moved - images).clamp(-eps, eps)).clamp(0, 1)
    return adversarial


def test_pgd_equals_a_hand_written_loop_from_the_same_start(digits_classifier, digits_test):
    images, labels = digits_test[0][:100], digits_test[1][:100]
    pgd = perturbation("pgd(steps=10)", seed=3)
    ours = AttackRunner(pgd, digits_classifier)(images, labels, range(100)).images
    unit = torch.from_numpy(start_noise(pgd, range(100), images.shape[1:]))
    start = -EPS + 2 * EPS * unit
    assert torch.equal(ours, hand_written_pgd(digits_classifier, images, labels, start, EPS, 2 / 255, 10))


def test_pgd_from_the_clean_image_is_ifgsm(digits_classifier, digits_test, monkeypatch):
    images, labels = digits_test[0][:150], digits_test[1][:150]
    centre = lambda perturbation, ids, shape, *_: np.full((len(ids), *shape), 0.5, np.float32)  # noqa: E731
    monkeypatch.setattr(attacks.random_draws, "start_noise", centre)
    pgd = attack(digits_classifier, "pgd(steps=10)", images, labels).images
    ifgsm = attack(digits_classifier, "ifgsm(steps=10)", images, labels).images
    torch.testing.assert_close(pgd, ifgsm, rtol=0, atol=1e-6)
    assert torch.equal(predict(digits_classifier, pgd), predict(digits_classifier, ifgsm))


@pytest.mark.slow
def test_pgd_accuracy_is_that_of_foolbox_within_the_noise_of_the_random_start(digits_classifier, digits_test):
    images, labels = digits_test[0][:300], digits_test[1][:300]
    by_foolbox = foolbox.attacks.LinfPGD(abs_stepsize=EPS / 4, steps=5, random_start=True)
    ours, theirs = [], []
    for seed in range(3):
        adversarial = attack(digits_classifier, "pgd(alpha=eps/4, steps=5)", images, labels, seed=seed).images
        ours.append(predict(digits_classifier, adversarial) == labels)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            adversarial = in_foolbox(digits_classifier, by_foolbox, images, labels)
        theirs.append(predict(digits_classifier, adversarial) == labels)
    ours, theirs = torch.stack(ours).double(), torch.stack(theirs).double()
    # A sample is right with a probability of its own; 6 draws tell its variance.
    variance = torch.cat([ours, theirs]).var(dim=0, unbiased=True).sum() * (1 / 3 + 1 / 3)
    difference = abs(ours.mean(0).sum() - theirs.mean(0).sum())
    assert difference <= 4 * math.sqrt(variance) + 1e-9
    assert variance > 0  # the starts do matter here


def test_fgsm_on_a_linear_model_is_the_closed_form():
    rng = np.random.default_rng(0)
    weight, bias = rng.normal(size=(4, 27)), rng.normal(size=4)
    model = nn.Sequential(nn.Flatten(), nn.Linear(27, 4))
    model[1].weight.data, model[1].bias.data = torch.tensor(weight).float(), torch.tensor(bias).float()
    images, labels = rng.random((50, 3, 3, 3)), rng.integers(0, 4, 50)
    logits = images.reshape(50, 27) @ weight.T + bias
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    gradient = (probabilities - np.eye(4)[labels]) @ weight  # of the cross-entropy
    expected = (images + EPS * np.sign(gradient).reshape(images.shape)).clip(0, 1)
    found = attack(Classifier(model), "fgsm", torch.tensor(images).float(), torch.tensor(labels))
    np.testing.assert_allclose(found.images.numpy(), expected, rtol=0, atol=1e-6)


def test_the_table_holds_what_bare_attacks_on_the_network_in_eval_mode_yield(digits_classifier, digits_test):
    images, labels = digits_test[0][:150], digits_test[1][:150]
    table = robust_interp.evaluate(
        digits_classifier.name,
        attacks="fgsm, ifgsm(steps=5)",
        eps=(EPS,),
        corruptions="none",
        n=150,
        batch_size=50,
    ).set_index("perturbation")
    bare = {
        "clean": images,
        "fgsm": torchattacks.FGSM(digits_classifier, eps=EPS)(images, labels),
        "ifgsm": torchattacks.BIM(digits_classifier, eps=EPS, alpha=EPS / 4, steps=5)(images, labels),
    }
    for name, adversarial in bare.items():
        right = (predict(digits_classifier, adversarial) == labels).sum().item()
        assert table.loc[name, "accuracy"] == pytest.approx(100 * right / 150, abs=1e-9)


# --- the random start: keyed by seed and sample ------------------------------------------------------


class FirstInput(nn.Module):
    """Keeps the first images of each attack that it is asked about."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(108, 5)
        self.seen = []

    def forward(self, images):
        self.seen.append(images.detach().clone())
        return self.head(images.flatten(1))


@pytest.mark.parametrize("batch", [100, 128, 300, 1])
def test_random_starts_are_bit_equal_whatever_the_batch_size(batch):
    images, labels = tiny_batch(300)
    pgd = perturbation("pgd(steps=1)", seed=5)
    noise = torch.from_numpy(start_noise(pgd, range(300), images.shape[1:]))
    expected = (images + (-EPS + 2 * EPS * noise)).clamp(0, 1)
    model = FirstInput()
    bound = AttackRunner(pgd, model)
    for at in range(0, 300, batch):
        stop = min(at + batch, 300)
        bound(images[at:stop], labels[at:stop], range(at, stop))
    assert torch.equal(torch.cat(model.seen), expected)


def test_random_starts_follow_the_sample_not_its_place():
    pgd = perturbation("pgd", seed=1)
    everything = start_noise(pgd, range(500), (1, 4, 4))
    order = np.random.default_rng(0).permutation(500)
    assert np.array_equal(start_noise(pgd, order, (1, 4, 4)), everything[order])
    assert np.array_equal(start_noise(pgd, range(7), (1, 4, 4)), everything[:7])
    assert np.array_equal(start_noise(pgd, [499], (1, 4, 4))[0], everything[499])
    assert len(np.unique(everything.reshape(500, -1), axis=0)) == 500


@pytest.mark.slow
def test_predictions_under_pgd_do_not_depend_on_the_batches(digits_classifier, digits_test):
    images, labels = digits_test
    bound = AttackRunner(perturbation("pgd(alpha=eps/4, steps=4)"), digits_classifier)

    def predictions(batch, n):
        ranges = [range(at, min(at + batch, n)) for at in range(0, n, batch)]
        found = [bound(images[ids], labels[ids], ids).images for ids in ranges]
        return predict(digits_classifier, torch.cat(found))

    together = predictions(450, 450)
    for batch in (100, 128):
        assert same_share(predictions(batch, 450), together) >= AGREEMENT
    assert torch.equal(predictions(1, 30), together[:30])
    backwards = torch.arange(449, -1, -1)
    found = bound(images[backwards], labels[backwards], backwards.tolist()).images
    assert same_share(predict(digits_classifier, found), together[backwards]) >= AGREEMENT


@pytest.mark.slow
def test_tables_do_not_depend_on_the_batch_size():
    images, labels = tiny_batch(130)
    options = {"attacks": "fgsm,pgd(steps=3)", "eps": (8 / 255,), "corruptions": "gaussian_noise(severity=5)"}
    tables = [
        robust_interp.evaluate(tiny(), (images, labels, 5), batch_size=batch, **options)
        for batch in (1, 100, 128, 130)
    ]
    for table in tables[1:]:
        assert table["accuracy"].tolist() == tables[0]["accuracy"].tolist()


class FirstPixel(nn.Module):
    """Says 1 where the first pixel is above a half."""

    def forward(self, images):
        pixel = images.flatten(1)[:, 0] - 0.5
        return torch.stack([-pixel, pixel], dim=1)


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 100, 128, None])
def test_a_benchmark_starts_each_sample_from_its_own_noise(batch):
    """With a step next to nothing PGD ends where it starts, and the first pixel shows where that was."""
    images, labels = np.full((260, 1, 4, 4), 0.5, np.float32), np.zeros(260, int)
    pgd = "pgd(alpha=eps/100000, steps=1)"
    table = robust_interp.evaluate(
        FirstPixel(),
        (images, labels, 2),
        attacks=pgd,
        eps=(8 / 255,),
        corruptions="none",
        batch_size=batch,
        seed=6,
    )
    first = start_noise(perturbation(pgd, eps=8 / 255, seed=6), range(260), (1, 4, 4))[:, 0, 0, 0]
    assert table["accuracy"][1] == pytest.approx(100 * (first < 0.5).mean())


@pytest.mark.parametrize("eps", [1 / 255, 8 / 255, 0.3])
def test_random_starts_are_uniform_in_the_ball(eps):
    model = FirstInput()
    grey = torch.full((1000, 3, 6, 6), 0.5)
    pgd = perturbation("pgd(steps=1)", eps=eps, seed=2)
    AttackRunner(pgd, model)(grey, torch.zeros(1000, dtype=torch.long), range(1000))
    delta = (model.seen[0] - grey).double().flatten().numpy()
    half_ulp = 2**-25  # of a pixel at 0.5
    assert delta.min() >= -eps - half_ulp
    assert delta.max() <= eps + half_ulp
    n = delta.size
    assert abs(delta.mean()) < 5 * eps / math.sqrt(3 * n)
    # U[-eps, eps): variance eps^2/3, fourth moment eps^4/5
    assert abs(delta.var() - eps**2 / 3) < 5 * eps**2 * math.sqrt((1 / 5 - 1 / 9) / n)
    assert stats.kstest(delta, stats.uniform(-eps, 2 * eps).cdf).pvalue > 1e-4


def test_starts_of_neighbouring_samples_and_seeds_are_uncorrelated():
    noise = [start_noise(perturbation("pgd", seed=seed), range(200), (400,)) for seed in (0, 1)]
    for first, second in ((noise[0][:-1], noise[0][1:]), (noise[0], noise[1])):
        correlation = np.corrcoef(first.ravel(), second.ravel())[0, 1]
        assert abs(correlation) < 5 / math.sqrt(first.size)


def test_noise_before_scaling_never_reaches_one():
    unit = start_noise(perturbation("pgd"), range(200), (400,))
    assert unit.dtype == np.float32
    assert unit.min() >= 0
    assert unit.max() < 1


def test_pgd_is_reproducible_for_a_seed_and_differs_for_another():
    classifier, (images, labels) = tiny(), tiny_batch(40)
    runs = []
    for global_seed, seed in ((1, 0), (2, 0), (1, 7)):
        torch.manual_seed(global_seed)
        np.random.seed(global_seed)
        runs.append(attack(classifier, "pgd(steps=3)", images, labels, seed=seed).images)
    assert torch.equal(runs[0], runs[1])
    changed = (runs[0] != runs[2]).flatten(1).any(1)
    assert changed.all()


@pytest.mark.parametrize("spec", ["fgsm", "ifgsm"])
def test_attacks_that_draw_nothing_have_no_seed(spec):
    assert perturbation(spec, seed=0) == perturbation(spec, seed=1)
    assert perturbation(spec, seed=4).seed is None


def test_the_seed_of_a_random_attack_is_part_of_what_it_is():
    assert perturbation("pgd", seed=0).describe() != perturbation("pgd", seed=1).describe()
    assert perturbation("pgd", seed=0).column == perturbation("pgd", seed=1).column


# --- ball and range ----------------------------------------------------------------------------------


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
        (lambda images: torch.full_like(images, 8 / 255 + 3e-6), "left its ball"),
        (lambda images: 1.01 - images, r"left the range \[0, 1\]"),
        (lambda images: -images - 1e-4, r"left the range \[0, 1\]"),
    ],
)
def test_an_attack_that_leaves_the_ball_or_the_range_raises(monkeypatch, delta, message):
    monkeypatch.setattr(torchattacks.FGSM, "forward", lambda self, images, labels: images + delta(images))
    monkeypatch.setattr(GradientProbe, "findings", nothing_found)
    with pytest.raises(RuntimeError, match=message):
        attack(tiny(), "fgsm", torch.full((2, 3, 6, 6), 0.5), torch.tensor([0, 1]), eps=8 / 255)


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
    )
    assert table["accuracy"].tolist() == [100, 0]
    assert table["zero_grad"].tolist()[1] == 1


class Scaled(nn.Module):
    def __init__(self, model, scale):
        super().__init__()
        self.model, self.scale = model, scale

    def forward(self, images):
        return self.model(images) * self.scale


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
    with undisturbed(classifier):
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
    with pytest.raises(Disturbed), undisturbed(classifier):
        attack(classifier, spec, images, labels)
    assert state_of(model) == before
    during_evaluate = RaisesAt(model, 3 + call)  # two checks and the clean images come before
    options = {"attacks": spec, "eps": (8 / 255,), "corruptions": "none"}
    with pytest.raises(Disturbed):
        robust_interp.evaluate(during_evaluate, (images, labels, 5), **options)
    assert state_of(model) == before


def test_a_keyed_start_ends_with_its_attack_even_when_the_model_raises():
    classifier = Classifier(RaisesAt(tiny().model, 2))
    images, labels = tiny_batch(4)
    with pytest.raises(Disturbed):
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


def test_images_and_labels_are_not_changed():
    images, labels = tiny_batch(10)
    kept = images.clone(), labels.clone()
    attack(tiny(), "pgd(steps=2)", images, labels)
    robust_interp.evaluate(tiny().model, (images, labels, 5), attacks="pgd(steps=2)")
    assert torch.equal(images, kept[0])
    assert torch.equal(labels, kept[1])


def test_a_model_without_parameters_prints_nothing(capsys):
    images, labels = torch.full((3, 3, 4, 4), 0.25), torch.tensor([0, 1, 0])
    attack(Classifier(Through(lambda gradient, images: gradient)), "pgd(steps=2)", images, labels)
    assert capsys.readouterr() == ("", "")


# --- specs -------------------------------------------------------------------------------------------


def resolve(text, eps=(8 / 255,), defaults=None, seed=0):
    return attacks.resolve(text, list(eps), defaults or {}, seed)


@pytest.mark.parametrize(
    ("text", "params"),
    [
        ("fgsm(eps=2/255)", {"eps": 2 / 255}),
        ("fgsm(eps = 0.5)", {"eps": 0.5}),
        ("ifgsm", {"eps": 8 / 255, "alpha": 2 / 255, "steps": 20}),
        ("pgd", {"eps": 8 / 255, "alpha": 2 / 255, "steps": 20}),
        ("pgd(alpha=eps/4, steps=7)", {"eps": 8 / 255, "alpha": 2 / 255, "steps": 7}),
        ("pgd(eps=4/255, alpha=eps/2)", {"eps": 4 / 255, "alpha": 2 / 255, "steps": 20}),
        ("pgd(alpha=eps)", {"eps": 8 / 255, "alpha": 8 / 255, "steps": 20}),
        ("pgd(alpha=0.25*eps)", {"eps": 8 / 255, "alpha": 2 / 255, "steps": 20}),
        ("pgd(alpha=eps*0.25)", {"eps": 8 / 255, "alpha": 2 / 255, "steps": 20}),
        ("pgd(alpha=3*2/255)", {"eps": 8 / 255, "alpha": 6 / 255, "steps": 20}),
        (" pgd ( alpha = 1/255 , steps = 3 ) ", {"eps": 8 / 255, "alpha": 1 / 255, "steps": 3}),
    ],
)
def test_specs_are_read(text, params):
    (found,) = resolve(text)
    assert found.kind == "attack"
    assert found.params == pytest.approx(params, rel=1e-12)
    assert found.params.keys() == params.keys()


def test_commas_inside_brackets_do_not_split_and_empty_parts_are_dropped():
    found = resolve("fgsm,, pgd(alpha=1/255, steps=5), ifgsm(eps=1/255, alpha=eps/2),")
    assert [p.name for p in found] == ["fgsm", "pgd", "ifgsm"]
    assert found[1].params["steps"] == 5


def test_none_is_no_attack_and_nothing_is_an_error():
    assert resolve("none") == []
    assert resolve(" none ") == []
    for text in ("", " , "):
        with pytest.raises(UserError, match="no attack named; say none"):
            resolve(text)


@pytest.mark.parametrize(
    "eps", ["0", "-1", "-1/255", "8", "1.0001", "nan", "inf", "1e999", "True", "'8/255'", "eps", "0/255"]
)
def test_a_radius_outside_zero_to_one_is_refused(eps):
    with pytest.raises(
        UserError, match=r"eps must be above 0 and at most 1 in \[0, 1\] pixels \(8/255, say\)"
    ):
        resolve(f"pgd(eps={eps})")


@pytest.mark.parametrize("eps", [0, -1, math.nan, math.inf, -math.inf, 8, 1.5, True, None, "0.03", 8 + 0j])
def test_a_radius_outside_zero_to_one_is_refused_from_python_too(eps):
    with pytest.raises(UserError, match="eps must be above 0 and at most 1"):
        attacks.check_eps(eps)
    with pytest.raises(UserError, match="eps must be above 0 and at most 1"):
        robust_interp.evaluate(tiny(), (*tiny_batch(3), 5), eps=(eps,))


@pytest.mark.parametrize("eps", [1, 1.0, 1e-9, np.float64(8 / 255), np.float32(0.03)])
def test_a_radius_from_zero_to_one_is_accepted_whatever_kind_of_float(eps):
    attacks.check_eps(eps)
    (found,) = attacks.resolve("pgd(alpha=eps/4)", [eps], {}, 0)
    assert found.params["eps"] == eps
    assert type(found.params["eps"]) is float


@pytest.mark.parametrize("alpha", ["0", "-1/255", "1.5", "2", "nan", "True", "'x'", "2*eps*eps", "-eps/4"])
def test_a_step_size_outside_zero_to_one_is_refused(alpha):
    with pytest.raises(UserError) as caught:
        resolve(f"pgd(alpha={alpha})")
    assert "alpha" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("steps", ["0", "-1", "1.5", "20.0", "True", "nan", "'3'", "eps"])
def test_steps_that_are_not_a_whole_number_from_one_are_refused(steps):
    with pytest.raises(UserError, match="pgd: steps must be a whole number from 1, not"):
        resolve(f"pgd(steps={steps})")


def test_an_unknown_attack_names_the_near_ones():
    with pytest.raises(UserError, match=r"unknown attack 'pdg'; did you mean .*pgd"):
        resolve("pdg")
    with pytest.raises(UserError, match=r"unknown attack 'ifsgm'; did you mean .*ifgsm"):
        resolve("fgsm,ifsgm(steps=3)")
    with pytest.raises(UserError, match=f"unknown attack 'zzz'; known: {', '.join(sorted(attacks.ATTACKS))}"):
        resolve("zzz")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pgd(step=3)", "pgd has no parameter 'step'; it takes eps, alpha, steps"),
        ("fgsm(alpha=1/255)", "fgsm has no parameter 'alpha'; it takes eps"),
        ("pgd(random_start=False)", "pgd has no parameter 'random_start'; it takes eps, alpha, steps"),
    ],
)
def test_an_unknown_parameter_names_those_there_are(text, message):
    with pytest.raises(UserError, match=message):
        resolve(text)


@pytest.mark.parametrize(
    "text",
    [
        "pgd(8/255)",
        "pgd(eps=)",
        "pgd(eps=1/255",
        "pgd)",
        "pgd(**x)",
        "a.b(eps=1)",
        "pgd(eps=1/0)",
        "pgd(alpha=eps/eps)",
        "pgd(alpha=eps+1)",
        "pgd(alpha=2**-8)",
        "pgd(eps=__import__('os').getpid())",
        "pgd(eps=[1])",
        "pgd(eps=1/255, eps=2/255)",
        "pgd(alpha=1/eps)",
        "pgd eps=1",
        "2/255",
        "pgd(eps=True/2)",
    ],
)
def test_what_is_no_spec_is_refused_in_one_line_and_never_evaluated(text):
    with pytest.raises(UserError) as caught:
        resolve(text)
    assert "\n" not in str(caught.value)


# --- columns -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("eps", "column", "eps_255"),
    [
        (2 / 255, "pgd_2", 2.0),
        (0.5 / 255, "pgd_0.5", 0.5),
        (0.031, "pgd_7.905", 7.905),
        (8 / 255, "pgd_8", 8.0),
        (1.0, "pgd_255", 255.0),
        (0.1 / 255, "pgd_0.1", 0.1),
    ],
)
def test_columns_give_the_radius_in_255ths(eps, column, eps_255):
    (found,) = resolve("pgd", [eps])
    assert found.column == column
    assert found.eps_255 == eps_255


def test_0_031_and_8_255_never_share_a_column():
    assert [p.column for p in resolve("pgd,pgd(eps=8/255)", [0.031])] == ["pgd_7.905", "pgd_8"]


def test_each_spec_is_measured_at_each_radius_but_one_with_its_own_eps_only_there():
    found = resolve("fgsm, pgd(eps=6/255), ifgsm", [1 / 255, 2 / 255])
    assert [p.column for p in found] == ["fgsm_1", "fgsm_2", "pgd_6", "ifgsm_1", "ifgsm_2"]


def test_duplicates_are_measured_once():
    text = (
        "pgd, pgd, pgd(eps=8/255), pgd(alpha=2/255), pgd(steps=20, alpha=eps/4), pgd(steps=21), fgsm,fgsm()"
    )
    assert [p.column for p in resolve(text)] == ["pgd_8", "pgd(steps=21)_8", "fgsm_8"]


def test_parameters_that_differ_from_the_defaults_stand_in_the_column():
    specs = {
        "pgd": "pgd_8",
        "pgd(steps=40)": "pgd(steps=40)_8",
        "pgd(alpha=1/255)": "pgd(alpha=1/255)_8",
        "pgd(steps=40, alpha=1/255)": "pgd(alpha=1/255,steps=40)_8",
        "pgd(alpha=eps)": "pgd(alpha=8/255)_8",
        "ifgsm(alpha=0.5/255)": "ifgsm(alpha=0.5/255)_8",
    }
    assert [p.column for p in resolve(",".join(specs))] == list(specs.values())


def test_a_datasets_own_defaults_count_as_defaults():
    digits = data.DATASETS["digits"].attack_defaults
    plain, written, papers = resolve("pgd, fgsm, pgd(alpha=1/255), pgd(alpha=eps/4)", [32 / 255], digits)
    assert plain.column == "pgd_32"
    assert plain.params["alpha"] == 8 / 255
    assert written.params == {"eps": 32 / 255}
    assert papers.column == "pgd(alpha=1/255)_32"
    assert resolve("pgd", [32 / 255], {})[0].params["alpha"] == 2 / 255


def test_different_parameters_never_share_a_column_or_a_key():
    found = [
        p
        for eps in (1 / 255, 0.031, 8 / 255)
        for alpha in ("", "alpha=eps,", "alpha=eps/3,", "alpha=1.5/255,")
        for steps in ("steps=20", "steps=21", "steps=2")
        for p in resolve(f"pgd({alpha}{steps}), ifgsm({alpha}{steps})", [eps])
    ]
    by_column = {}
    for p in found:
        by_column.setdefault(p.column, []).append(p.params)
    for params in by_column.values():
        assert all(p == params[0] for p in params)
    card = ModelCard("m", {"weights": "x"})
    keys = {Cell(card, "d", "f", p, {}).key for p in found}
    assert len(keys) == len(by_column) == 2 * 3 * 4 * 3


# --- step sizes that fit badly -----------------------------------------------------------------------


def test_a_step_larger_than_the_ball_is_remarked_on():
    (found,) = resolve("pgd", [1 / 255])
    warning = attacks.step_warning(found)
    assert warning == "pgd_1: the step 2/255 exceeds eps, so each step overshoots the ball"


def test_steps_that_cannot_reach_the_edge_are_remarked_on():
    (found,) = resolve("pgd(alpha=1/255, steps=5)")
    assert attacks.step_warning(found).endswith("5 steps of 1/255 cannot reach eps")


@pytest.mark.parametrize(
    "text", ["fgsm", "pgd", "pgd(alpha=eps)", "ifgsm(alpha=1/255,steps=8)", "pgd(alpha=eps/3,steps=3)"]
)
def test_step_sizes_that_fit_are_not_remarked_on(text):
    (found,) = resolve(text)
    assert attacks.step_warning(found) is None


@pytest.mark.parametrize(("text", "passes"), [("fgsm", 4), ("pgd", 61), ("ifgsm(steps=5)", 16)])
def test_the_work_of_an_attack_is_a_forward_and_a_double_backward_a_step_and_the_prediction(text, passes):
    assert attacks.passes(resolve(text)[0]) == passes

"""Attacks beside FGSM, IFGSM and PGD: against closed forms and others, keyed draws, norms, protocol worst."""

import functools
import math
import random

import eagerpy as ep
import foolbox
import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
import torchattacks
from support import keyed_draws
from support.attacked import EPS, FirstPixel, attack, perturbation, tiny, tiny_batch
from support.prerequisites import needed
from torch import nn

import robust_interp
from robust_interp import attacks, data
from robust_interp.attacks import ATTACKS, AttackRunner, adapters, properties
from robust_interp.attacks.table import type_of
from robust_interp.benchmark.benchmark import Benchmark
from robust_interp.benchmark.plan import make_cell
from robust_interp.benchmark.request import Request
from robust_interp.core.errors import UserError
from robust_interp.store import INHERITED, Store
from robust_interp.store.cells import Cell, ModelCard, Plan

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Rowwise(nn.Module):
    """A curved classifier of (N, 3, 6, 6) images whose arithmetic on a row is the same in any batch."""

    def __init__(self, classes=5, scale=3.0):
        super().__init__()
        rng = np.random.default_rng(classes)
        self.first = nn.Parameter(torch.from_numpy(rng.normal(size=(8, 108)).astype(np.float32)) / 10)
        self.second = nn.Parameter(torch.from_numpy(rng.normal(size=(classes, 8)).astype(np.float32)) * scale)

    def forward(self, images):
        rows = images.flatten(1) - 0.5
        hidden = torch.stack([(row * self.first).sum(1) for row in rows]).tanh()
        return torch.stack([(row * self.second).sum(1) for row in hidden])


def rowwise_batch(n, classes=5):
    """Images away from the borders, half of them of the class that the model sees, the others' by chance."""
    rng = np.random.default_rng(0)
    images = torch.from_numpy(rng.uniform(0.2, 0.8, (n, 3, 6, 6)).astype(np.float32))
    labels = Rowwise(classes)(images).argmax(1)
    labels[::5] = (labels[::5] + 1) % classes
    return images, labels


class Linear(nn.Module):
    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = nn.Parameter(weight), nn.Parameter(bias)

    def forward(self, images):
        return images.flatten(1) @ self.weight.T + self.bias


def linear(classes=4, seed=0, side=4):
    """A linear classifier, images around grey and their labels, each right by a margin that is small."""
    rng = np.random.default_rng(seed)
    weight = torch.from_numpy(rng.normal(size=(classes, 3 * side**2)).astype(np.float32))
    images = torch.from_numpy(rng.uniform(0.4, 0.6, (30, 3, side, side)).astype(np.float32))
    model = Linear(weight, -weight @ torch.full((3 * side**2,), 0.5))
    return model.requires_grad_(False), images, model(images).argmax(1)


def margins(model, images, labels, order):
    """The exact distance to the nearest other class, in the norm dual to `order`, in float64."""
    weight, logits = model.weight.double(), model(images).double()
    distances = []
    for row, label in zip(logits, labels, strict=True):
        others = [k for k in range(len(weight)) if k != label]
        distances.append(
            min((row[label] - row[k]) / (weight[label] - weight[k]).norm(order) for k in others).item()
        )
    return np.array(distances)


# --- names, parameters, columns -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "key"),
    [
        ("fgsm", "4305c76f36461d96"),
        ("ifgsm", "24b5531cd761dd9f"),
        ("pgd", "0875f4fa6bed30b3"),
        ("pgd(restarts=1)", "0875f4fa6bed30b3"),
        ("pgd(alpha=eps/4,steps=7)", "066e2350a972415f"),
    ],
)
def test_what_was_stored_before_there_were_norms_and_restarts_is_found_again(spec, key):
    environment = {"torch": "t", "torchattacks": "3.5.1"}
    cell = Cell(ModelCard("m", {"weights": "x"}), "d", "f", perturbation(spec, 8 / 255, 3), environment)
    assert cell.key.startswith(key)  # as computed when these three were all there was


@pytest.mark.parametrize(
    ("spec", "column", "norm", "eps_255"),
    [
        ("mifgsm", "mifgsm_16", "Linf", 16),
        ("pgd(restarts=5)", "pgd(restarts=5)_16", "Linf", 16),
        ("apgd_ce(steps=5)", "apgd_ce(steps=5)_16", "Linf", 16),
        ("apgd_ce(norm=L2, eps=0.5)", "apgd_ce_l2_0.5", "L2", None),
        ("square(norm=l2, eps=2, queries=9)", "square_l2(queries=9)_2", "L2", None),
        ("pgd_l2(eps=0.5)", "pgd_l2_0.5", "L2", None),
        ("pgd_l2(eps=128/255, alpha=0.1)", "pgd_l2(alpha=0.1)_0.5019607843", "L2", None),
        ("deepfool", "deepfool_l2", "L2", None),
        ("cw(eps=0.5)", "cw_l2_0.5", "L2", None),
        ("NIFGSM(eps=2/255, steps=10)", "NIFGSM_2", "Linf", 2),
        ("torchattacks.NIFGSM(decay=0.5)", "NIFGSM(decay=0.5)_16", "Linf", 16),
        ("OnePixel(pixels=3)", "OnePixel_l0(pixels=3)", "L0", None),
        ("FAB(norm=L2,eps=1)", "FAB_l2_1", "L2", None),
        ("pgd(target=least_likely)", "pgd(target=least_likely)_16", "Linf", 16),
    ],
)
def test_columns_tell_norm_and_radius(spec, column, norm, eps_255):
    found = perturbation(spec)
    assert (found.column, found.norm, found.eps_255) == (column, norm, eps_255)


def test_an_l2_spec_is_measured_at_its_own_radius_only():
    found = attacks.parse_attacks("fgsm, pgd_l2(eps=0.5), deepfool", [1 / 255, 2 / 255], {}, 0)
    assert [p.column for p in found] == ["fgsm_1", "fgsm_2", "pgd_l2_0.5", "deepfool_l2"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("pgd_l2", r"pgd_l2 needs an L2 radius in its spec, e.g. pgd_l2\(eps=0.5\)"),
        ("square(norm=L2)", r"square needs an L2 radius in its spec, e.g. square\(norm=L2, eps=0.5\)"),
        ("square(norm=L1, eps=1)", "square: norm must be Linf or L2, not L1"),
        *(
            (f"{name}(norm=L1, eps=1)", "norm must be Linf or L2")
            for name in ("FAB", "APGD", "APGDT", "Square")
        ),
        ("SPSA(target=next)", "SPSA has no parameter 'target'"),
        ("PIFGSMPP(target=1)", "PIFGSMPP has no parameter 'target'"),
        ("PIFGSM(max_epsilon=0.1)", "PIFGSM has no parameter 'max_epsilon'; it takes eps, num_iter_set"),
        ("pgd_l2(eps=-1)", "an L2 eps must be a number above 0"),
        ("pgd_l2(eps=nan)", "an L2 eps must be a number above 0"),
        ("square(queries=0)", "square: queries must be a whole number of at least 1, not 0"),
        ("pgd(restarts=0)", "pgd: restarts must be a whole number of at least 1, not 0"),
        ("pgd(restarts=2.0)", "pgd: restarts must be a whole number of at least 1, not 2.0"),
        ("fgsm(restarts=2)", "fgsm has no parameter 'restarts'; it takes eps, target"),
        ("autoattack(restarts=2)", "autoattack has no parameter 'restarts'; it takes eps, norm"),
        ("mifgsm(decay=x)", "mifgsm: decay must be a number of at least 0, not x"),
        ("pgd(target=nearest)", "pgd: target must be next, least_likely or a class, not nearest"),
        ("apgd_ce(target=1)", "apgd_ce has no parameter 'target'"),
        ("cw(lr=eps/4)", "a fraction of eps needs an eps in the spec"),
        ("VANILA(eps=1/255)", "VANILA has no parameter 'eps'; it takes none"),
        ("mifgms", "unknown attack 'mifgms'; did you mean .*mifgsm"),
        ("NIFGSM(step=10)", "NIFGSM has no parameter 'step'; it takes eps, alpha, steps, decay"),
        ("NIFGSM(model=1)", "NIFGSM has no parameter 'model'"),
        ("NIFGSN", "unknown attack 'NIFGSN'; did you mean .*NIFGSM"),
        ("MultiAttack", "unknown attack 'MultiAttack'"),
        ("EOTPGD(random_start=3)", "EOTPGD: random_start must be True or False, not 3"),
    ],
)
def test_what_cannot_be_asked_of_an_attack_is_refused_in_one_line(spec, message):
    with pytest.raises(UserError, match=message) as caught:
        perturbation(spec)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("one", "other"),
    [("mifgsm(decay=1)", "mifgsm"), ("cw(c=1.0,kappa=0.0)", "cw"), ("pgd(steps=20,restarts=1)", "pgd")],
)
def test_a_default_that_is_written_out_is_the_same_measurement(one, other):
    assert perturbation(one).describe() == perturbation(other).describe()


def test_a_parameter_that_torchattacks_documents_as_a_number_may_be_fractional():
    assert perturbation("CW(c=0.5)").params["c"] == 0.5
    with pytest.raises(UserError, match="CW: steps must be a whole number"):
        perturbation("CW(steps=2.5)")


def test_a_word_that_a_class_does_not_know_is_refused_in_one_line():
    images, labels = rowwise_batch(2)
    with pytest.raises(UserError, match="Pixle: pixel_mapping must be one of") as caught:
        attack(Rowwise(), "Pixle(pixel_mapping=foo)", images, labels)
    assert "\n" not in str(caught.value)


def test_old_plans_without_norms_and_skips_are_read():
    cell = Cell(ModelCard("m", {}), "d", "f", perturbation("pgd"), {}, skips=("a", "b"))
    plan = Plan("d", 3, "worst", (cell,))
    assert Plan.from_json(plan.to_json()) == plan
    text = plan.to_json().replace(', "norm": "Linf"', "").replace(', "skips": ["a", "b"]', "")
    (old,) = Plan.from_json(text).cells
    assert (old.skips, old.perturbation.norm, old.key) == ((), "Linf", cell.without_skips.key)


# --- closed forms on a linear model --------------------------------------------------------------------


def test_deepfool_finds_the_exact_distance_to_the_nearest_class():
    model, images, labels = linear()
    found = attack(model, "deepfool", images, labels)
    exact = margins(model, images, labels, 2)
    assert (model(found.images).argmax(1) != labels).all()
    np.testing.assert_allclose(found.deltas, 1.02 * exact, rtol=1e-3)  # its overshoot is 0.02


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["deepfool", "DeepFool", "torchattacks.DeepFool(steps=20)"])
def test_deepfool_does_not_end_on_the_boundary_where_pixels_are_clipped(spec):
    """Every image can be made another within [0, 1]; whether a tie of two logits is right, rounding says."""
    model, images, _ = linear()
    images = (10 * (images - 0.5) + 0.5).clamp(0, 1)  # half of the pixels are black or white
    labels = model(images).argmax(1)
    found = attack(model, spec, images, labels)
    logits = model.double()(found.images.double())
    own = logits.gather(1, labels[:, None])[:, 0]
    assert (logits.amax(1) - own > 1e-4).all()


@pytest.mark.slow
def test_a_search_for_the_smallest_change_counts_within_its_radius():
    model, images, labels = linear()
    exact = 1.02 * margins(model, images, labels, 2)
    radius = float(np.sort(exact)[9:11].mean())
    found = attack(model, f"deepfool(eps={radius})", images, labels)
    np.testing.assert_array_equal((model(found.images).argmax(1) == labels).numpy(), exact > radius)
    np.testing.assert_allclose(found.deltas, exact, rtol=1e-3)  # what was found, within or not
    outside = torch.from_numpy(exact > radius)
    assert torch.equal(found.images[outside], images[outside])


@pytest.mark.slow
def test_cw_comes_near_the_exact_distance_even_with_pixels_at_the_border_and_for_log_probabilities():
    model, images, labels = linear()
    images[:, :, 0] = 0.0  # where its change of variables is infinite
    labels = model(images).argmax(1)
    exact = margins(model, images, labels, 2)  # the borders can only make it longer
    for scored in (model, nn.Sequential(model, nn.LogSoftmax(1))):
        found = attack(scored, "cw(steps=60, c=2, lr=0.002)", images[:3], labels[:3])
        assert (model(found.images).argmax(1) != labels[:3]).all()
        assert not found.zero_gradient.any()
        assert (found.deltas > 0.999 * exact[:3]).all()
        assert (found.deltas < 1.7 * exact[:3]).all()  # Adam's steps are of one size in every pixel


@pytest.mark.parametrize(
    ("spec", "dual", "classes"),
    [
        ("apgd_ce(steps=40,eps={})", 1, 2),
        ("apgd_dlr(steps=40,eps={})", 1, 4),
        ("apgd_t(steps=20,eps={})", 1, 4),
        ("apgd_ce(steps=40,norm=L2,eps={})", 2, 2),
        ("pgd_l2(steps=40,alpha=eps/10,eps={})", 2, 2),
    ],
)
def test_what_can_be_broken_within_the_ball_of_a_linear_model_is(spec, dual, classes):
    model, images, labels = linear(classes)
    exact = margins(model, images, labels, dual)  # an Linf ball's dual norm is L1
    radius = float(np.sort(exact)[14:16].mean())
    found = attack(model, spec.format(radius), images, labels)
    right = (model(found.images).argmax(1) == labels).numpy()
    assert right[exact > radius].all()  # impossible to break
    assert not right[exact < 0.95 * radius].any()


def test_square_breaks_nothing_that_cannot_be_broken_and_much_that_can():
    model, images, labels = linear()
    exact = margins(model, images, labels, 1)
    radius = 4 * float(np.median(exact))
    found = attack(model, f"square(eps={radius}, queries=60)", images, labels)
    right = (model(found.images).argmax(1) == labels).numpy()
    assert right[exact > radius].all()
    assert right.mean() < 0.7


def test_an_aimed_attack_comes_closer_to_its_target_with_every_step():
    model, images, labels = linear()
    targets = {
        "next": (labels + 1) % 4,
        "2": torch.where(labels == 2, 3, 2),
        "least_likely": model(images).argmin(1),
    }
    for name, target in targets.items():
        losses = [F.cross_entropy(model(images), target, reduction="none")]
        for steps in range(1, 6):
            spec = f"ifgsm(alpha=1/255, steps={steps}, target={name})"
            found = attack(model, spec, images, labels)
            losses.append(F.cross_entropy(model(found.images), target, reduction="none"))
        falls = torch.stack(losses).diff(dim=0)
        assert (falls <= 1e-6).all()
        assert (falls.sum(0) < -1e-3).float().mean() > 0.9


# --- agreement with others -------------------------------------------------------------------------------


def test_mifgsm_is_the_papers_loop_in_float64():
    images, labels = rowwise_batch(12)
    found = attack(Rowwise(), "mifgsm(alpha=3/255, steps=6, decay=0.9)", images, labels).images
    model, clean = Rowwise().double(), images.double()
    moved, momentum = clean.clone(), torch.zeros_like(clean)
    for _ in range(6):
        moved.requires_grad_(True)
        loss = F.cross_entropy(model(moved), labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, moved)
        momentum = 0.9 * momentum + gradient / gradient.abs().mean((1, 2, 3), keepdim=True)
        moved = moved.detach() + 3 / 255 * momentum.sign()
        moved = (clean + (moved - clean).clamp(-EPS, EPS)).clamp(0, 1)
    torch.testing.assert_close(found.double(), moved, rtol=0, atol=1e-5)


def test_pgd_l2_is_foolboxs_from_the_same_start():
    images, labels = rowwise_batch(12)
    pgd = perturbation("pgd_l2(eps=0.8, alpha=0.2, steps=5)", seed=4)
    # The first draw is a direction, normal; the second a radius, uniform.
    direction = torch.from_numpy(keyed_draws.normal(range(12), (3, 6, 6), seed=4))
    radius = torch.from_numpy(keyed_draws.uniform(range(12), (1, 1, 1), seed=4, call=1))
    start = direction / direction.flatten(1).norm(dim=1).view(-1, 1, 1, 1) * radius * 0.8

    class FromStart(foolbox.attacks.L2ProjectedGradientDescentAttack):
        def get_random_start(self, x0, epsilon):
            return x0 + ep.astensor(start)

    classifier = Rowwise().requires_grad_(False).eval()
    model = foolbox.PyTorchModel(classifier, bounds=(0, 1), device="cpu")
    theirs = FromStart(abs_stepsize=0.2, steps=5)(model, images, labels, epsilons=0.8)[1]
    ours = AttackRunner(pgd, classifier)(images, labels, range(12))
    torch.testing.assert_close(ours.images, theirs, rtol=0, atol=2e-5)
    sizes = (ours.images - images).flatten(1).double().norm(dim=1).numpy()
    np.testing.assert_allclose(ours.deltas, sizes, rtol=1e-6)
    assert (ours.deltas <= 0.8 + 1e-5).all()


@pytest.mark.slow
def test_apgd_of_torchattacks_is_autoattacks_own_from_the_same_start():
    needed("pyautoattack")
    from pyautoattack.autopgd_base import APGDAttack

    from robust_interp.attacks.random_draws import KeyedDraws

    images, labels = rowwise_batch(12)
    classifier = Rowwise().requires_grad_(False).eval()
    apgd = perturbation("apgd_ce(steps=20)")
    right = classifier(images).argmax(1) == labels
    theirs = APGDAttack(classifier, n_iter=20, eps=EPS, loss="ce", device="cpu")
    theirs.init_hyperparam(images)
    with KeyedDraws(apgd, range(12), 0):
        best, still, _, broken = theirs.attack_single_run(images, labels)
    expected = torch.where(still.bool().view(-1, 1, 1, 1), best, broken)
    found = AttackRunner(apgd, classifier)(images, labels, range(12)).images
    torch.testing.assert_close(found[right], expected[right], rtol=0, atol=1e-5)
    assert torch.equal(found[~right], images[~right])  # wrong from the start


# --- draws, restarts -------------------------------------------------------------------------------------

EVERY = [
    "mifgsm(steps=3)",
    "pgd(steps=2, restarts=3)",
    "pgd_l2(eps=0.5, steps=3)",
    "apgd_ce(steps=6, restarts=2)",
    "apgd_ce(norm=L2, eps=0.5, steps=6)",
    "apgd_dlr(steps=6)",
    "apgd_t(steps=4, targets=3)",
    "apgd_t(norm=L2, eps=0.3, steps=2, targets=2)",
    "square(queries=15, restarts=2)",
    "square(norm=L2, eps=0.5, queries=3)",
    "cw(steps=4)",
    "deepfool(steps=4)",
    "RFGSM(steps=2)",
    "FFGSM",
    "EOTPGD(steps=2)",
    "NIFGSM(steps=3)",
    "SINIFGSM(steps=2)",
    "VMIFGSM(steps=2)",
    "VNIFGSM(steps=2)",
    "TPGD(steps=2)",
    "DIFGSM(steps=2)",
    "Jitter(steps=2)",
    "SPSA(nb_sample=4, max_batch_size=2)",
    "OnePixel(steps=1)",
    "FAB(steps=2)",
]


@pytest.mark.slow
@pytest.mark.parametrize("spec", EVERY)
def test_a_sample_gets_the_same_attack_in_any_batch_and_order(spec):
    classifier = Rowwise().requires_grad_(False).eval()
    images, labels = rowwise_batch(20)
    slack = 2e-6 if spec.startswith("pgd_l2") else 0  # its loss is a mean, whose gradient is rounded
    before = generators()
    bound = AttackRunner(perturbation(spec, 8 / 255, seed=2), classifier)
    whole = bound(images, labels, range(20)).images
    assert generators() == before
    for size in (1, 7):
        parts = [range(at, min(at + size, 20)) for at in range(0, 20, size)]
        parts = parts[:5]
        found = torch.cat([bound(images[ids], labels[ids], ids).images for ids in parts])
        torch.testing.assert_close(found, whole[: len(found)], rtol=0, atol=slack)
    order = np.random.default_rng(1).permutation(20)[:8]
    found = bound(images[order], labels[order], order).images
    torch.testing.assert_close(found, whole[order], rtol=0, atol=slack)


class InPlace(nn.Module):
    """The same classifier of pixels from -1 to 1, which it makes of those from 0 to 1 where they lie."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, images):
        return self.inner(images.mul_(2).sub_(1) * 0.5 + 0.5)


@pytest.mark.slow
@pytest.mark.parametrize("spec", [*EVERY, "pgd(target=least_likely, steps=2)", "Pixle(max_iterations=2)"])
def test_a_model_that_works_in_place_does_not_change_what_an_attack_holds(spec):
    classifier = Rowwise().requires_grad_(False).eval()
    images, labels = rowwise_batch(6)
    one, other = (attack(model, spec, images, labels) for model in (classifier, InPlace(classifier)))
    torch.testing.assert_close(other.images, one.images, rtol=0, atol=1e-3)


def generators():
    return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()


OWN_SEED = ["APGD(steps=2)", "APGDT(steps=2)", "FAB(steps=2)", "Square(n_queries=2)"]


@pytest.mark.parametrize(
    ("spec", "mark"),
    [
        ("pgd_l2(eps=0.5)", {"step": "alpha"}),
        *((spec, {"seed": "of the image"}) for spec in OWN_SEED),
        *((spec, {}) for spec in ("fgsm", "pgd", "apgd_ce", "square", "cw")),
    ],
)
def test_results_from_before_a_mend_are_not_found(spec, mark):
    dataset = data.from_arrays(*rowwise_batch(2), 5)
    found = dict(make_cell(ModelCard("net", {}), dataset, perturbation(spec)).environment)
    assert {key: found[key] for key in found.keys() - {"precision", "torch", "torchattacks"}} == mark


@pytest.mark.parametrize(
    "spec",
    [
        *("pgd(steps=2)", "apgd_ce(steps=3)", "square(queries=3)", "DIFGSM(steps=3)"),
        *(
            "APGD(steps=3)",
            "APGDT(steps=2)",
            "Square(n_queries=3)",
        ),  # these seed torch's generator themselves
    ],
)
def test_another_seed_draws_otherwise(spec):
    classifier, (images, labels) = Rowwise().requires_grad_(False), rowwise_batch(6)
    one, same, other = (attack(classifier, spec, images, labels, seed=seed).images for seed in (0, 0, 1))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize("spec", ["pgd(steps=1)", "APGD(steps=1)", "Square(n_queries=2)"])
def test_another_image_draws_otherwise(spec):
    twice = rowwise_batch(1)[0].repeat(2, 1, 1, 1)
    labels = Rowwise()(twice).argmax(1)
    one, other = attack(Rowwise().requires_grad_(False), spec, twice, labels).images
    assert not torch.equal(one, other)


@pytest.mark.parametrize("margin", [1.0, 30.0, 50.0, 70.0])
def test_a_step_of_pgd_l2_has_the_length_alpha_however_confident_the_model_is(margin):
    """The gradient of an image's loss has the norm 0.1 p, where p is about exp(-margin)."""
    weight = torch.zeros(2, 12)
    weight[1] = 0.1 / 12**0.5
    model = Linear(weight, torch.tensor([margin, 0.0])).requires_grad_(False)
    images, labels = torch.full((250, 3, 2, 2), 0.5), torch.zeros(250, dtype=torch.long)
    start, stepped = (
        attack(model, f"pgd_l2(eps=0.4,steps=1,alpha={alpha})", images, labels).images
        for alpha in (1e-9, 0.05)
    )
    lengths = (stepped - start).flatten(1).norm(dim=1)
    assert lengths.max() == pytest.approx(0.05, rel=1e-4)
    assert lengths.median() == pytest.approx(0.05, rel=1e-4)  # those at the boundary are projected
    alone = attack(model, "pgd_l2(eps=0.4,steps=1,alpha=0.05)", images[:1], labels[:1]).images
    torch.testing.assert_close(alone, stepped[:1], rtol=0, atol=1e-6)


def test_a_target_is_no_class_that_is_left_out():
    """Of the classes 0 to 3, the classes 1 and 3 have a logit of -inf; class 0 is the label."""
    model = Linear(torch.zeros(4, 12), torch.tensor([3.0, -torch.inf, 1.0, -torch.inf]))
    model.weight.data[2] = 0.1
    model.requires_grad_(False)
    images, labels = torch.full((2, 3, 2, 2), 0.5), torch.zeros(2, dtype=torch.long)
    for target in ("next", "least_likely"):
        found = attack(model, f"ifgsm(steps=1,target={target})", images, labels).images
        assert (found > images).all()  # towards class 2


def test_a_logit_far_below_the_others_is_no_class_that_is_left_out():
    """Of the logits 3e4, 0 and 1e4 the second is the next, and one step makes it larger."""
    model = Linear(torch.zeros(3, 12), torch.tensor([3e4, 0.0, 1e4]))
    model.weight.data[1] = 0.1
    images, labels = torch.full((2, 3, 2, 2), 0.5), torch.zeros(2, dtype=torch.long)
    found = attack(model.requires_grad_(False), "ifgsm(steps=1,target=next)", images, labels).images
    assert (found > images).all()


def test_of_restarts_the_one_that_breaks_a_sample_is_kept():
    """With a step next to nothing PGD ends where it starts; the first pixel shows where that was."""
    grey, labels = torch.full((200, 1, 2, 2), 0.5), torch.zeros(200, dtype=torch.long)
    spec = "pgd(alpha=eps/100000, steps=1, restarts=3)"
    found = attack(FirstPixel(), spec, grey, labels, seed=6)
    starts = np.stack([keyed_draws.uniform(range(200), (1, 2, 2), seed=6, number=r) for r in range(3)])
    breaks = starts[:, :, 0, 0, 0] > 0.5  # of U[0, 1): above the middle of the ball
    kept = np.where(breaks.any(0), breaks.argmax(0), 0)  # the first to break, else the first start
    expected = 0.5 - EPS + 2 * EPS * starts[kept, np.arange(200)]
    np.testing.assert_allclose(found.images.numpy(), expected, rtol=0, atol=2e-6)
    right = (FirstPixel()(found.images).argmax(1) == 0).numpy()
    np.testing.assert_array_equal(right, ~breaks.any(0))
    assert 0.05 < right.mean() < 0.2  # an eighth
    alone = attack(FirstPixel(), spec.replace(", restarts=3", ""), grey, labels, seed=6)
    assert torch.equal(alone.images[kept == 0], found.images[kept == 0])


@pytest.mark.parametrize(
    ("spec", "restarts", "column"),
    [
        ("Pixle", 20, "Pixle_l0"),
        ("Pixle(restarts=1)", 1, "Pixle_l0(restarts=1)"),
        ("Pixle(restarts=3)", 3, ""),
    ],
)
def test_restarts_of_an_attack_itself_are_its_own_and_run_it_once(monkeypatch, spec, restarts, column):
    calls = []
    monkeypatch.setattr(
        "torchattacks.Pixle.forward", lambda self, images, labels: calls.append(self.restarts) or images
    )
    images, labels = rowwise_batch(2)
    attack(Rowwise(), spec, images, labels)
    assert calls == [restarts] * 2  # once for each image, as it is run on one image at a time
    assert perturbation(spec).column == (column or f"Pixle_l0(restarts={restarts})")
    cell = make_cell(ModelCard("net", {}), data.from_arrays(images, labels, 5), perturbation(spec))
    assert cell.environment["restarts"] == "of the attack"  # else results of 20 times 20 runs would be found


@pytest.mark.parametrize(
    ("spec", "restarts", "is_judged"),
    [("pgd", 1, False), ("pgd(restarts=3)", 3, True), ("Pixle", 1, True), ("fgsm", 1, False)],
)
def test_only_runs_of_the_whole_attack_are_its_restarts(spec, restarts, is_judged):
    """A later run leaves out the images that are broken already, as the measured classifier says.

    Stored results of Pixle have `judged_by` in their keys for its own restarts, and must be found.
    """
    made, dataset = perturbation(spec), data.from_arrays(*rowwise_batch(2), 5)
    assert properties.restarts_of(made) == restarts
    assert attacks.may_stop_early(made) == (restarts > 1)
    assert attacks.is_judged(made) == is_judged
    card = ModelCard("net", {}, members=2, attacked_as="member:0")
    assert ("judged_by" in make_cell(card, dataset, made).environment) == is_judged


@pytest.mark.parametrize(
    "spec",
    [
        "Pixle",
        "Pixle(restarts=3)",
        "Pixle(restarts=1,max_iterations=4)",
        "Pixle(restarts=3,max_iterations=4,update_each_iteration=True)",
    ],
)
def test_the_passes_of_an_attack_with_restarts_of_its_own_are_counted(spec):
    class Sure(nn.Module):
        """It says the same class of each image, so that no search ends early."""

        seen = 0

        def forward(self, x):
            self.seen += len(x)
            return torch.eye(5)[[0] * len(x)] + 0 * x.sum()

    model, images = Sure(), rowwise_batch(1)[0]
    attack(model, spec, images, torch.tensor([0]))
    assert attacks.passes(perturbation(spec)) == model.seen + 1  # and one to predict


def test_restarts_and_norm_stand_in_the_table():
    table = robust_interp.evaluate(
        Rowwise(),
        (*rowwise_batch(6), 5),
        attacks="pgd(restarts=2,steps=2), square(queries=5), pgd_l2(eps=0.5, steps=2)",
        eps=(EPS,),
        corruptions="none",
    ).set_index("perturbation")
    assert table.loc["pgd", ["norm", "eps_255", "restarts", "steps"]].tolist() == ["Linf", 16, 2, 2]
    assert pd.isna(table.loc["square(queries=5)", "steps"])
    line = table.loc["pgd_l2(eps=0.5,alpha=0.1)"]
    assert (line["norm"], line["restarts"]) == ("L2", 1)
    assert pd.isna(line["eps_255"])
    assert pd.isna(line["alpha_255"])
    assert line["max_delta_255"] <= 255 * 0.5 + 1e-2


# --- classes, gradients, guards --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "norm", "diameter"),
    [
        *(
            (spec, "L2", 108**0.5)
            for spec in ("pgd_l2(eps={},steps=1)", "cw(eps={},steps=1)", "PGDL2(eps={},steps=1)")
        ),
        *(
            (f"{name}(norm=L2,eps={{}},steps=1)", "L2", 108**0.5)
            for name in ("apgd_ce", "apgd_dlr", "APGDT", "FAB")
        ),
        ("apgd_t(norm=L2,eps={},steps=1)", "L2", 108**0.5),
        ("square(norm=L2,eps={},queries=2)", "L2", 108**0.5),
        ("deepfool(eps={},steps=1)", "L2", 108**0.5),
        ("PGDRSL2(eps={},steps=1)", "L2", 108**0.5),
    ],
)
def test_a_radius_beyond_the_diameter_of_the_pixels_is_refused_in_one_line(spec, norm, diameter):
    """Two images of 3 x 6 x 6 pixels in [0, 1] are at most so far apart."""
    images, labels = rowwise_batch(2)

    def plan(eps):
        request = Request(
            modules={"net": Rowwise()},
            dataset=data.from_arrays(images.numpy(), labels.numpy(), 5),
            attacks=spec.format(eps),
            corruptions="none",
        )
        return Benchmark(request)

    plan(diameter)
    for eps in (diameter + 1e-3, 100 * diameter):
        with pytest.raises(UserError, match=f"{norm} eps must be at most {diameter:.4g}, ") as caught:
            plan(eps)
        assert "\n" not in str(caught.value)
        assert spec.partition("(")[0] in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 3, 4, 7, 10, 100])
def test_every_number_of_classes_runs_or_is_refused_in_one_line(classes):
    runs = "fgsm, pgd(steps=2), mifgsm(steps=2), apgd_ce(steps=3), square(queries=3), deepfool(steps=1)"
    images, labels = rowwise_batch(3, classes)

    def measure(spec):
        return robust_interp.evaluate(
            Rowwise(classes), (images, labels, classes), attacks=spec, eps=(EPS,), corruptions="none"
        )

    assert len(measure(runs)) == 7
    for spec, least in (("apgd_dlr(steps=2)", 3), ("apgd_t(steps=2)", 4)):
        if classes >= least:
            assert len(measure(spec)) == 2
        else:
            with pytest.raises(UserError, match=rf"at least {least} classes, .* has {classes}: use"):
                measure(spec)
    with pytest.raises(UserError, match=f"target must be one of the classes 0 to {classes - 1}"):
        measure(f"pgd(target={classes})")


class Blind(Rowwise):
    """Lets a gradient of zeros through."""

    def forward(self, images):
        return super().forward(images.detach()) + 0 * images.sum()


class Detached(Rowwise):
    @torch.no_grad()
    def forward(self, images):
        return super().forward(images)


def test_only_attacks_that_follow_gradients_miss_them():
    images, labels = rowwise_batch(10)
    right = Rowwise()(images).argmax(1) == labels
    for spec in ("apgd_ce(steps=3)", "pgd_l2(eps=0.5,steps=2)", "apgd_t(steps=2)"):
        found = attack(Blind().requires_grad_(False), spec, images, labels)
        assert found.zero_gradient[right.numpy()].all()
    square = attack(Blind(), "square(queries=10)", images, labels)
    assert not square.zero_gradient.any()
    assert torch.equal(attack(Detached(), "square(queries=10)", images, labels).images, square.images)
    with pytest.raises(UserError, match="lets no gradient through"):
        attack(Detached(), "apgd_ce", images, labels)


@pytest.mark.parametrize(
    ("spec", "size", "ok"), [("pgd_l2(eps=0.5)", 0.5, True), ("pgd_l2(eps=0.5)", 0.501, False)]
)
def test_a_ball_is_checked_in_its_own_norm(monkeypatch, spec, size, ok):
    step = size / math.sqrt(108)  # in each pixel: far inside an Linf ball of that radius
    monkeypatch.setattr("torchattacks.PGDL2.forward", lambda self, images, labels: images + step)
    images, labels = rowwise_batch(4)
    if ok:
        assert attack(Rowwise(), spec, images, labels).deltas == pytest.approx([size] * 4, abs=1e-5)
    else:
        with pytest.raises(
            RuntimeError, match=r"pgd_l2_0\.5 exceeds its radius: the L2 size of a change is 0\.501"
        ):
            attack(Rowwise(), spec, images, labels)


@pytest.mark.parametrize("step", [2, 0.1])
def test_a_class_of_torchattacks_that_leaves_what_it_may_is_refused(monkeypatch, step):
    """EADL1 and EADEN leave [0, 1] by themselves."""
    monkeypatch.setattr("torchattacks.RFGSM.forward", lambda self, images, labels: images + step)
    images, labels = rowwise_batch(3)
    with pytest.raises(UserError, match=r"RFGSM_16 (returns values outside|exceeds its radius)"):
        attack(Rowwise(), "RFGSM", images, labels)


def test_a_class_of_torchattacks_that_fails_is_named_in_one_line():
    images, labels = rowwise_batch(3, 4)
    with pytest.raises(UserError, match="torchattacks' EADEN fails on image 0: ") as caught:
        attack(Rowwise(4), "EADEN(max_iterations=5)", images, labels)  # it takes a remainder by 5 // 10
    assert "\n" not in str(caught.value)


def test_a_model_in_data_parallel_is_attacked_alike():
    images, labels = rowwise_batch(6)
    for spec in ("pgd(steps=2)", "apgd_ce(steps=3)"):
        plain = attack(Rowwise().requires_grad_(False), spec, images, labels)
        wrapped = attack(nn.DataParallel(Rowwise()).requires_grad_(False), spec, images, labels)
        assert torch.equal(plain.images, wrapped.images)


# --- AutoAttack --------------------------------------------------------------------------------------------


@pytest.fixture
def brief(monkeypatch):
    """AutoAttack with few iterations: its real ones take minutes."""
    pyautoattack = needed("pyautoattack")
    make = pyautoattack.AutoAttack

    @functools.wraps(make)  # the adapter looks at its arguments
    def few(*args, **options):
        found = make(*args, **options)
        for member in (found.apgd, found.apgd_targeted):
            member.n_iter, member.n_iter_2, member.n_iter_min, member.size_decr = 5, 1, 1, 1
        found.fab.n_iter, found.square.n_queries = 3, 10
        return found

    monkeypatch.setattr(pyautoattack, "AutoAttack", few)


def test_autoattack_breaks_what_its_first_member_does_and_in_any_batch(brief):
    classifier = Rowwise(4).requires_grad_(False).eval()
    images, labels = rowwise_batch(8, 4)
    bound = AttackRunner(perturbation("autoattack", 8 / 255), classifier)
    whole = bound(images, labels, range(8))
    parts = torch.cat([bound(images[[at]], labels[[at]], [at]).images for at in range(4)])
    assert torch.equal(parts, whole.images[:4])
    broken = classifier(whole.images).argmax(1) != labels
    first = attack(classifier, "apgd_ce(steps=5)", images, labels, eps=8 / 255).images
    assert (broken | (classifier(first).argmax(1) == labels)).all()
    assert not whole.zero_gradient.any()


@pytest.mark.parametrize(("classes", "each"), [(4, 3), (10, 9), (12, 9)])
def test_autoattack_is_apgd_then_apgd_and_fab_for_each_of_nine_targets_then_square(classes, each):
    needed("pyautoattack")
    found, images = perturbation("autoattack"), rowwise_batch(1, classes)[0]
    made = adapters.rounds(found, type_of("autoattack"), Rowwise(classes), images)
    assert len(made) == 1 + each + each + 1


@pytest.mark.parametrize(("classes", "each"), [(4, 3), (10, 9), (12, 9)])
def test_targeted_apgd_has_a_round_for_each_target_and_restart(classes, each):
    found, images = perturbation("apgd_t(targets=9,restarts=2)"), rowwise_batch(1, classes)[0]
    made = adapters.rounds(found, type_of("apgd_t"), Rowwise(classes), images)
    assert len(made) == 2 * each


class Counted(Rowwise):
    """Notes how many images each pass has."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def forward(self, images):
        self.sizes.append(len(images))
        return super().forward(images)


def sizes_of_passes(spec):
    """Of an attack on a batch of four images that are right and too far from any border to be broken."""
    classifier = Counted().requires_grad_(False).eval()
    images, _ = rowwise_batch(4)
    attack(classifier, spec, images, Rowwise()(images).argmax(1))
    return classifier.sizes


@pytest.mark.parametrize(
    ("few", "many", "more"),
    [
        ("square(queries=5,eps=0.0001)", "square(queries=20,eps=0.0001)", 15),
        ("apgd_ce(steps=4,eps=0.0001)", "apgd_ce(steps=7,eps=0.0001)", 3),
        ("apgd_t(steps=4,targets=2,eps=0.0001)", "apgd_t(steps=7,targets=2,eps=0.0001)", 2 * 3),
    ],
)
def test_as_many_steps_and_queries_are_made_as_are_asked_for(few, many, more):
    assert sum(sizes_of_passes(many)) - sum(sizes_of_passes(few)) == 4 * more  # four images


@pytest.mark.parametrize("norm", ["Linf", "L2"])
@pytest.mark.parametrize(
    "spec", ["pgd", "pgd_l2", "apgd_ce", "apgd_dlr", "apgd_t", "square(queries=5)", "cw", "deepfool"]
)
def test_what_is_said_to_run_on_one_image_at_a_time_does_so_and_nothing_else(spec, norm):
    name = spec.partition("(")[0]
    if "norm" in ATTACKS[name].defaults:
        spec = f"{name}({spec.partition('(')[2].rstrip(')') or 'steps=3'}, norm={norm}, eps=0.0001)"
    else:
        spec = f"{name}(steps=3, eps=0.0001)"
    attacked = perturbation(spec)
    sizes = sizes_of_passes(spec)
    alone = sizes.count(1) > sizes.count(4)  # a few others count the classes or say what is broken
    assert attacks.is_alone(attacked) == alone
    assert attacks.passes_alone(attacked) == (attacks.passes(attacked) if alone else 0)


def test_of_autoattack_square_alone_runs_on_one_image_at_a_time_and_only_in_l2(brief):
    in_linf, in_l2 = (sizes_of_passes(f"autoattack(norm={norm}, eps=0.0001)") for norm in ("Linf", "L2"))
    assert in_linf.count(1) <= 1  # to count the classes
    assert 4 * 9 <= in_l2.count(1) <= 4 * 12  # ten queries each
    of_both = [perturbation(f"autoattack(norm={norm}, eps=0.0001)") for norm in ("Linf", "L2")]
    assert [attacks.passes_alone(each) for each in of_both] == [0, 5000]
    assert not any(map(attacks.is_alone, of_both))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("norm", "dual", "broken"),
    [("Linf", 1, 15), pytest.param("L2", 2, 28, marks=pytest.mark.exhaustive)],  # robust images take longest
)
def test_the_accuracy_of_a_linear_model_under_autoattack_is_the_closed_form(norm, dual, broken):
    model, images, labels = linear(side=4 if norm == "Linf" else 5)  # which Square's tiles in L2 fit into
    exact = margins(model, images, labels, dual)
    radius = float(np.sort(exact)[broken - 1 : broken + 1].mean())
    assert radius < images.min()  # no border of [0, 1] is in the way
    assert radius < 1 - images.max()
    table = robust_interp.evaluate(
        model,
        (images, labels, 4),
        attacks=f"autoattack(norm={norm}, eps={radius})",
        corruptions="none",
        protocol="worst",
        compile="off",
    )
    (found,) = table[table["perturbation"].str.startswith("autoattack")]["accuracy"]
    assert found == pytest.approx(100 * (30 - broken) / 30, abs=1e-9)


def test_autoattack_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setattr(properties, "AUTOATTACK_PACKAGES", ("no_such_package",))
    with pytest.raises(UserError, match=r"pip install .*\[autoattack\]"):
        robust_interp.evaluate(Rowwise(), (*rowwise_batch(3), 5), attacks="autoattack", corruptions="none")


# --- protocol worst ----------------------------------------------------------------------------------------

SEVERAL = (
    "pgd(steps=4), fgsm, apgd_ce(steps=5), pgd_l2(eps=0.6,steps=4), square(queries=8), deepfool(eps=0.6)"
)


def benchmark(out, protocol, n=20, attacked=SEVERAL, **options):
    return robust_interp.evaluate(
        Rowwise(),
        (*rowwise_batch(20), 5),
        attacks=attacked,
        eps=(4 / 255, 12 / 255),
        corruptions="none",
        n=n,
        batch_size=7,
        protocol=protocol,
        out=out,
        **options,
    )


def worst_of(table):
    lines = table[table["perturbation"].str.startswith("worst")]
    return {
        (line.norm, line.eps_255 if line.norm == "Linf" else 0): line.accuracy for line in lines.itertuples()
    }


@pytest.mark.slow
def test_attacking_what_still_stands_gives_the_same_worst_and_never_a_number_of_its_own(tmp_path):
    skipping = benchmark(tmp_path / "skipping", "worst")
    benchmark(tmp_path / "whole", "final")
    whole = benchmark(tmp_path / "whole", "worst")  # derived from the whole cells that are there
    assert worst_of(skipping) == worst_of(whole)
    assert set(worst_of(skipping)) == {("Linf", 4), ("Linf", 12), ("L2", 0)}
    with Store(tmp_path / "whole") as store:
        outcomes = [store.read(cell.without_skips.key, 20) for plan in store.plans() for cell in plan.cells]
        assert not any((outcome.flags & INHERITED).any() for outcome in outcomes)
    assert "pgd" in set(whole["perturbation"])
    assert skipping["perturbation"].tolist().count("fgsm") == 2  # right when clean and under it
    assert "pgd" not in set(skipping["perturbation"])
    with Store(tmp_path / "skipping") as store:
        (plan,) = store.plans()
        found = {cell.perturbation.column: store.read(cell.key, 20) for cell in plan.cells}
        assert not any(store.read(cell.without_skips.key, 20) for cell in plan.cells if cell.skips)
        clean = found["clean"].correct(store.labels(plan.cells[0].fingerprint))
    inherited = {column: (outcome.flags & INHERITED) > 0 for column, outcome in found.items()}
    assert not inherited["clean"].any()
    np.testing.assert_array_equal(inherited["fgsm_12"], ~clean)
    fgsm = found["fgsm_12"].correct(rowwise_batch(20)[1].numpy())
    np.testing.assert_array_equal(inherited["square(queries=8)_12"], ~(clean & fgsm))
    final = benchmark(tmp_path / "skipping", "final")  # measures them whole
    assert final["accuracy"].tolist() == benchmark(tmp_path / "whole", "final")["accuracy"].tolist()


@pytest.mark.slow
def test_a_worst_run_goes_on_where_it_stopped_and_extends(tmp_path, monkeypatch):
    at_once = benchmark(tmp_path / "at_once", "worst")
    real, calls = Store.append, []

    def stops(self, *args):
        calls.append(None)
        if len(calls) == 9:
            raise KeyboardInterrupt
        real(self, *args)

    monkeypatch.setattr(Store, "append", stops)
    with pytest.raises(KeyboardInterrupt):
        benchmark(tmp_path / "stopped", "worst", n=13)
    monkeypatch.setattr(Store, "append", real)
    benchmark(tmp_path / "stopped", "worst", n=13)
    gone_on = benchmark(tmp_path / "stopped", "worst")
    same = [column for column in at_once if column not in ("seconds", "device")]
    pd.testing.assert_frame_equal(gone_on[same], at_once[same])


@pytest.mark.slow
def test_what_was_saved_is_said_and_ranks_go_by_worst(command, tiny_zoo, tmp_path, monkeypatch):
    monkeypatch.setattr("robust_interp.results.entries.is_at_chance", lambda clean: False)  # untrained
    options = ["--zoo", tiny_zoo, "--models", "*resnet14", "--attacks", "fgsm,ifgsm(steps=2)", "--eps", "64"]
    options += ["--n", "20", "--corruptions", "none", "--quiet", "--out", tmp_path, "--protocol", "worst"]
    status, out, _ = command("bench", *options)
    assert status == 0
    assert "of the attack steps were skipped" in out
    board = pd.read_csv(tmp_path / "leaderboard.csv")
    expected = board["worst_64"].rank(ascending=False, method="min")
    assert board["rank"].tolist() == expected.tolist()
    assert "ifgsm_64" not in board


class Oblong(nn.Module):
    """A curved classifier of images of any size; it sees them and their transposes alike if told so."""

    def __init__(self, transposed=False):
        super().__init__()
        with torch.random.fork_rng(devices=()):
            torch.manual_seed(0)
            self.features, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 3)
        self.transposed = transposed

    def forward(self, images):
        images = images.transpose(2, 3) if self.transposed else images
        return 30 * self.head(self.features(images).relu().mean((2, 3)))


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["square(eps=0.5,queries=40)", "square(norm=L2,eps=20,queries=100)"])
def test_square_runs_on_oblong_images_either_way(spec):
    images = torch.rand(12, 3, 16, 64, generator=torch.Generator().manual_seed(0))
    broken = []
    for transposed in (False, True):
        model = Oblong(transposed).requires_grad_(False)
        turned = images.transpose(2, 3).contiguous() if transposed else images
        labels = model(turned).argmax(1)
        found = attack(model, spec, turned, labels).images
        broken.append(int((model(found).argmax(1) != labels).sum()))
    assert abs(broken[0] - broken[1]) <= 4  # of 12, by luck
    assert min(broken) > 0


@pytest.mark.parametrize("name", ["square", "autoattack"])
@pytest.mark.parametrize("shape", [(4, 4), (14, 14), (64, 12)])
def test_square_is_refused_in_l2_on_sizes_that_its_start_does_not_fit(name, shape):
    found = perturbation(f"{name}(norm=L2,eps=0.5)")
    with pytest.raises(
        UserError, match=rf"{name}\(norm=L2\) cannot be run on images of {shape[0]}x{shape[1]}"
    ):
        attacks.check_fits(found, 10, (3, *shape))
    for fits in ((8, 8), (28, 28), (32, 32), (224, 224), (16, 64), (64, 16)):
        attacks.check_fits(found, 10, (3, *fits))
    attacks.check_fits(perturbation(name), 10, (3, *shape))  # in Linf all do


def test_a_default_device_of_the_user_moves_no_index_of_an_attack():
    """The second restart runs on the images that the first has not broken, by their indices."""
    images, labels = rowwise_batch(4)
    model = Rowwise()
    wanted = attack(model, "pgd(steps=2,restarts=2)", images, labels).images
    with torch.device("meta"):
        found = attack(model, "pgd(steps=2,restarts=2)", images, labels).images
    assert torch.equal(found, wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["PIFGSM", "PIFGSMPP"])
def test_the_radius_is_that_of_the_benchmark_under_whatever_name(name):
    images, labels = tiny_batch(4)
    found = perturbation(name, eps=2 / 255)
    assert (found.column, found.eps_255) == (f"{name}_2", 2)
    change = attack(tiny().requires_grad_(False), name, images, labels, eps=2 / 255).images - images
    assert 1.9 / 255 < float(change.abs().max()) <= 2 / 255 + 1e-6


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ours", "theirs", "parameters"),
    [("cw", "CW", "c=9,kappa=0,steps=50,lr=0.05"), ("pgd_l2", "PGDL2", "eps=1,alpha=0.2,steps=3")],
)
def test_an_attack_by_its_class_name_is_mended_as_well(ours, theirs, parameters):
    images, labels = tiny_batch(4)
    images[:, :, 0] = 0  # pixels that torchattacks' CW cannot move
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(108, 5)).requires_grad_(False)
    labels = model(images).argmax(1)
    one, other = (attack(model, f"{name}({parameters})", images, labels).images for name in (ours, theirs))
    assert torch.equal(one, other)
    arguments = {key: float(value) for key, value in (pair.split("=") for pair in parameters.split(","))}
    plain = getattr(torchattacks, theirs)(model, **arguments | {"steps": int(arguments["steps"])})
    assert (plain(images, labels) != images).any()
    assert not torch.equal(one, plain(images, labels))


@pytest.mark.parametrize(
    ("name", "classes", "shape", "why"),
    [
        ("TIFGSM", 10, (1, 8, 8), "TIFGSM needs images of 3 channels, and these have 1"),
        ("PIFGSM", 10, (1, 8, 8), "PIFGSM needs images of 3 channels, and these have 1"),
        ("PIFGSMPP", 10, (1, 8, 8), "PIFGSMPP needs images of 3 channels, and these have 1"),
        ("Pixle", 10, (3, 16, 64), "Pixle needs square images, and these are 16x64"),
        ("JSMA", 5, (3, 16, 64), "JSMA needs at least 10 classes, and the data set has 5"),
    ],
)
def test_a_class_of_torchattacks_made_for_other_images_is_refused_before_the_run(name, classes, shape, why):
    with pytest.raises(UserError, match=why):
        attacks.check_fits(perturbation(name), classes, shape)
    attacks.check_fits(perturbation(name), 10, (3, 32, 32))


def test_the_largest_change_in_l2_is_in_255ths_in_the_table():
    """A step of twice the radius ends on the sphere; no pixel of these images is near 0 or 1."""
    model, images, labels = linear()
    options = {"attacks": "pgd_l2(eps=0.5,alpha=1,steps=1)", "corruptions": "none"}
    table = robust_interp.evaluate(model, (images, labels, 4), **options)
    assert table["max_delta_255"][1] == pytest.approx(127.5, rel=1e-3)

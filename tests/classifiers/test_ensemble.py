"""Ensembles: values and gradients, memory, what attacks on them see, their members, and their columns."""

import copy
import inspect
import json
import re
import shutil
from dataclasses import replace
from hashlib import sha256

import numpy as np
import pandas as pd
import pytest
import torch
import torchattacks
from support.hand_made import attack, card, ensemble, first, run
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

import robust_interp
from robust_interp import attacks, data, zoo
from robust_interp.attacks import AttackRunner
from robust_interp.attacks.table import type_of
from robust_interp.benchmark.benchmark import Benchmark
from robust_interp.benchmark.cost import cost
from robust_interp.benchmark.measure import make_jobs, run_jobs
from robust_interp.benchmark.plan import make_cell
from robust_interp.benchmark.request import Request
from robust_interp.classifiers.classifier import Classifier
from robust_interp.classifiers.ensemble import Ensemble
from robust_interp.core.errors import UserError
from robust_interp.core.specs import OfEps
from robust_interp.results import brief, combine, compare, export, leaderboard, warnings
from robust_interp.results.folders import write
from robust_interp.results.scores import results_frame, scores
from robust_interp.store import Store
from robust_interp.store.cells import CLEAN, Cell

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # findings; test_sanity.py has them

AVERAGES = ["probabilities", "logits"]
EPS = 8 / 255


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path) as store:
        yield store


class Small(nn.Module):
    """A smooth network on 3 x 6 x 6 images, so that every gradient is another one."""

    def __init__(self, classes=5, width=6):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, width, 3, padding=1), nn.BatchNorm2d(width)
        self.head = nn.Linear(width, classes)

    def forward(self, images):
        return 4 * self.head(self.norm(self.conv(images)).tanh().square().mean((2, 3)))


def members(count, **options):
    return [Small(**options).eval().requires_grad_(False).double() for _ in range(count)]


def batch(n=12, classes=5):
    return torch.rand(n, 3, 6, 6, dtype=torch.float64), torch.randint(0, classes, (n,))


def by_definition(models, images, average):
    """The mean, with all members' graphs there at once."""
    if average == "logits":
        return sum(model(images) for model in models) / len(models)
    return (sum(model(images).softmax(1) for model in models) / len(models)).log()


def value_and_gradient(function, images, weights):
    leaf = images.clone().requires_grad_()
    value = function(leaf)
    return value.detach(), torch.autograd.grad((value * weights).sum(), leaf)[0]


def assert_equal(found, expected):
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


# --- values, gradients, memory -----------------------------------------------------------------------


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("count", [1, 2, 3, 6])
def test_values_and_gradients_are_those_of_the_plain_mean(average, count):
    models, (images, _) = members(count), batch()
    weights = torch.randn(12, 5, dtype=torch.float64)  # of any loss
    found = value_and_gradient(Ensemble(models, average), images, weights)
    expected = value_and_gradient(lambda x: by_definition(models, x, average), images, weights)
    for ours, theirs in zip(found, expected, strict=True):
        assert_equal(ours, theirs)


class LiveMemory(TorchDispatchMode):
    """The most bytes that what was computed inside held at once."""

    def __init__(self):
        super().__init__()
        self.alive, self.peak = {}, 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        self.alive = {key: entry for key, entry in self.alive.items() if not entry[0].expired()}
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.alive.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        self.peak = max(self.peak, sum(size for _, size in self.alive.values()))
        return out


def peak(function):
    images, labels = batch(40)
    images.requires_grad_()
    with LiveMemory() as memory:
        torch.autograd.grad(nn.functional.cross_entropy(function(images), labels), images)
    return memory.peak


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("attack", ["white-box", "mean-gradient"])
def test_eight_members_take_the_memory_of_two(average, attack):
    models = members(8, width=32)
    few, many = (peak(Ensemble(models[:count], average, attack).attacked_as) for count in (2, 8))
    assert many < 1.1 * few
    assert peak(lambda x: by_definition(models, x, average)) > 2 * few  # as it would be otherwise


def test_every_member_but_two_runs_twice_for_a_gradient_and_once_without():
    models, (images, labels) = members(5), batch()
    calls = [0] * 5
    for at, model in enumerate(models):
        model.register_forward_pre_hook(lambda *_, at=at: calls.__setitem__(at, calls[at] + 1))
    ensemble = Ensemble(models)
    with torch.no_grad():
        ensemble(images)
    assert calls == [1] * 5
    images.requires_grad_()
    nn.functional.cross_entropy(ensemble(images), labels).backward()
    assert sum(calls) == 5 + 5 + 3


def test_a_member_that_works_in_place_changes_nothing_for_the_others():
    class InPlace(nn.Module):
        def __init__(self, model):
            super().__init__()
            self.model = model

        def forward(self, images):
            return self.model(images.mul_(0.5))

    models, (images, _) = members(4), batch()
    weights = torch.randn(12, 5, dtype=torch.float64)
    unlike = [InPlace(model) if at % 2 == 0 else model for at, model in enumerate(models)]
    halved = [(lambda x, m=model: m(0.5 * x)) if at % 2 == 0 else model for at, model in enumerate(models)]
    found = value_and_gradient(lambda x: Ensemble(unlike)(x.clone()), images, weights)
    expected = value_and_gradient(lambda x: by_definition(halved, x, "probabilities"), images, weights)
    for ours, theirs in zip(found, expected, strict=True):
        assert_equal(ours, theirs)


def test_the_members_agree_where_all_their_largest_logits_are_of_one_class():
    def fixed(*classes):
        return lambda images: nn.functional.one_hot(torch.tensor(classes), 5) * 3.0

    class Fixed(nn.Module):
        def __init__(self, *classes):
            super().__init__()
            self.forward = fixed(*classes)

    together = Ensemble([Fixed(0, 1, 2, 3), Fixed(0, 1, 4, 3), Fixed(0, 2, 1, 3)])
    logits, agreed = together.with_agreement(torch.zeros(4, 3, 6, 6))
    assert agreed.tolist() == [True, False, False, True]
    assert logits.argmax(1)[[0, 1, 3]].tolist() == [0, 1, 3]  # two of three say 1
    torch.testing.assert_close(logits, together(torch.zeros(4, 3, 6, 6)))


# --- what an attack sees -----------------------------------------------------------------------------


@pytest.mark.parametrize("average", AVERAGES)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_mean_gradient_is_that_of_the_mean_of_the_members_losses(average, count):
    models, (images, labels) = members(count), batch()

    def loss(logits):
        return nn.functional.cross_entropy(logits, labels)

    def mean_loss(leaf):
        return sum(loss(model(leaf)) for model in models) / count

    seen = Ensemble(models, average, "mean-gradient").attacked_as
    one = torch.ones((), dtype=torch.float64)
    found = value_and_gradient(lambda leaf: loss(seen(leaf)), images, one)
    expected = value_and_gradient(mean_loss, images, one)
    for ours, theirs in zip(found, expected, strict=True):
        assert_equal(ours, theirs)


def test_mean_gradient_is_finite_where_members_agree_or_are_certain():
    class Certain(nn.Module):
        def __init__(self, scale):
            super().__init__()
            self.scale = scale

        def forward(self, images):
            return self.scale * images.flatten(1)[:, :5]

    images, labels = torch.rand(12, 3, 6, 6, requires_grad=True), torch.randint(0, 5, (12,))
    for scales in ((1.0, 1.0), (500.0, 500.0), (500.0, -500.0)):
        seen = Ensemble([Certain(scale) for scale in scales], attack="mean-gradient").attacked_as
        logits = seen(images)
        (gradient,) = torch.autograd.grad(nn.functional.cross_entropy(logits, labels), images)
        assert torch.isfinite(logits).all()
        assert torch.isfinite(gradient).all()
        # d mean CE / d logit = mean over the members of scale (p - 1[y])
        probabilities = [(scale * images.detach().flatten(1)[:, :5]).softmax(1) for scale in scales]
        target = nn.functional.one_hot(labels, 5)
        each = [scale * (p - target) / 12 for scale, p in zip(scales, probabilities, strict=True)]
        torch.testing.assert_close(gradient.flatten(1)[:, :5], sum(each) / 2, rtol=1e-4, atol=1e-4)


def test_an_attack_sees_the_ensemble_one_member_or_their_mean_loss():
    models = members(3)
    whole = Ensemble(models)
    assert whole.attacked_as is whole
    assert Ensemble(models, attack="member:0").attacked_as is models[0]
    assert Ensemble(models, attack="member:2").attacked_as is models[2]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"average": "votes"}, "an ensemble can average probabilities or logits, not 'votes'"),
        ({"attack": "blackbox"}, "ensemble_attack must be .*member:0.*, not 'blackbox'"),
        ({"attack": "member:"}, "not 'member:'"),
        ({"attack": "member:-1"}, "not 'member:-1'"),
        ({"attack": "member:2"}, "net has members 0 to 1: member:2 does not exist"),
    ],
)
def test_what_an_ensemble_cannot_be_is_refused(options, message):
    with pytest.raises(UserError, match=message):
        Ensemble(members(2), name="net", **options)


# --- what an attack on a part is judged by ------------------------------------------------------------


class Bright(nn.Module):
    """Says class 1 for images whose mean is above a threshold, else class 0, and never another class."""

    def __init__(self, threshold, classes=4):
        super().__init__()
        self.threshold, self.classes = threshold, classes

    def forward(self, images):
        above = 50 * (images.mean((1, 2, 3)) - self.threshold)
        others = [above - 60 * (at + 1) - 60 * above.abs() for at in range(self.classes - 2)]
        return torch.stack([-above, above, *others], dim=1)


def differing(attack):
    """Two members whose mean logits say class 1 from 0.5 on; from 0.4 to 0.6 they disagree."""
    return Ensemble([Bright(0.4), Bright(0.6)], "logits", attack)


GREY = np.repeat([0.3, 0.41, 0.44, 0.47, 0.49, 0.51, 0.53, 0.56, 0.59, 0.7], 2)  # each of class 0 and 1
RIGHT = (GREY > 0.5) == np.arange(20) % 2  # what the ensemble says of the clean images


def grey_images():
    return np.broadcast_to(GREY[:, None, None, None], (20, 3, 6, 6)).astype(np.float32), np.arange(20) % 2, 4


def correct(folder):
    """Which images each model classifies correctly under its attack, and the change of each image."""
    with Store(folder) as store:
        (plan,) = store.plans()
        found = [(c, store.read(c.key, 20)) for c in plan.cells if c.perturbation.kind == "attack"]
        return {
            cell.classifier.model.partition("(")[0]: (
                outcome.predictions == np.arange(20) % 2,
                outcome.deltas,
            )
            for cell, outcome in found
        }


@pytest.mark.parametrize("spec", ["apgd_ce(steps=5)", "apgd_ce(steps=3,restarts=2)", "ifgsm(alpha=eps)"])
@pytest.mark.parametrize("view", ["member:0", "member:1", "mean-gradient"])
def test_an_attack_on_a_part_breaks_every_image_that_its_ball_lets_it(tmp_path, spec, view):
    """The gradient has one sign, so the attack moves all pixels by eps: it must break what is within 0.05."""
    robust_interp.evaluate(
        {"net": differing(view)}, grey_images(), attacks=spec, eps=(0.05,), corruptions="none", out=tmp_path
    )
    stands, deltas = correct(tmp_path)["net"]
    assert stands.tolist() == (RIGHT & (abs(GREY - 0.5) > 0.05)).tolist()
    if spec.startswith("apgd"):  # what the ensemble has wrong is not attacked
        assert (deltas > 0).tolist() == RIGHT.tolist()


SKIPPING = ["apgd_ce(steps=3)", "apgd_dlr(steps=3)", "apgd_t(steps=3)", "square(queries=5)", "autoattack"]


@pytest.mark.slow
@pytest.mark.parametrize("spec", SKIPPING)
def test_what_a_member_has_wrong_is_attacked_where_the_ensemble_is_right(tmp_path, spec):
    net = differing("member:0")
    options = {"eps": (0.05,), "corruptions": "none", "out": tmp_path}
    robust_interp.evaluate({"net": net}, grey_images(), attacks=spec, **options)
    assert (correct(tmp_path)["net"][1] > 0).tolist() == RIGHT.tolist()


@pytest.mark.slow
@pytest.mark.parametrize("view", ["member:0", "member:1", "mean-gradient"])
def test_of_several_starts_the_one_that_breaks_the_ensemble_is_kept(tmp_path, view):
    """The gradient of each part has the sign of that of the ensemble, so all take the same steps.

    A step from one end of the ball to the other: only the random start decides.
    """
    spec = "pgd(alpha=0.0005,steps=1,restarts=5)"
    options = {"attacks": spec, "eps": (0.5,), "corruptions": "none", "out": tmp_path}
    robust_interp.evaluate(
        {"whole": differing("white-box"), "part": differing(view)}, grey_images(), **options
    )
    found = correct(tmp_path)
    assert found["part"][0].tolist() == found["whole"][0].tolist()
    assert 0 < found["whole"][0].sum() < 20


@pytest.mark.slow
def test_apgd_on_the_mean_loss_returns_the_image_of_the_largest_mean_loss():
    """Whether its members agree is no sign of being broken: what APGD has seen is compared by its loss."""
    models, seen = [member.float() for member in members(3)], []
    models[0].register_forward_pre_hook(lambda _, given: seen.append(given[0].detach().clone()))
    (apgd,) = attacks.parse_attacks("apgd_ce(steps=7)", [0.3], {}, 0)
    ensemble = Ensemble(models, attack="mean-gradient")

    def mean_loss(shown):
        return sum(nn.functional.cross_entropy(model(shown), labels) for model in models).item() / 3

    for at in range(12):
        images, _ = batch(1)
        labels = by_definition(models, images.float(), "probabilities").argmax(1)  # right when clean
        seen.clear()
        result = AttackRunner(apgd, ensemble.attacked_as, judge=ensemble)(images.float(), labels, [at]).images
        losses = [mean_loss(shown) for shown in list(seen)]
        assert mean_loss(result) == pytest.approx(max(losses), rel=1e-5)


NEEDS_CLASSES = ["apgd_dlr", "apgd_t", "square", "cw", "deepfool", "autoattack", "pgd(stop=broken)"]
NEEDS_CLASSES += ["Square", "DeepFool", "APGD", "Pixle", "pgd(steps=3),square(queries=3)"]


@pytest.mark.parametrize("spec", NEEDS_CLASSES)
def test_an_attack_that_asks_for_the_largest_logit_is_refused_on_the_mean_loss(spec):
    name = spec.rpartition(",")[2].partition("(")[0]
    options = {"eps": (0.05,), "corruptions": "none"}
    message = f"net.*{name}.*cannot use mean-gradient.*white-box.*member:0"
    with pytest.raises(UserError, match=message):
        robust_interp.evaluate({"net": differing("mean-gradient")}, grey_images(), attacks=spec, **options)
    with pytest.raises(UserError, match=r"apgd_t.*cannot use mean-gradient"):
        robust_interp.evaluate(
            {"net": differing("mean-gradient")},
            grey_images(),
            attacks="pgd",
            strong="apgd_ce,apgd_t",
            **options,
        )


def test_which_classes_of_torchattacks_ask_for_the_largest_logit():
    """What their sources say: all others follow the gradient of a loss of all logits."""
    asking = re.compile(r"argmax\(|torch\.max\(\w+,|\.max\(|\.sort\(|topk\(")
    for name in attacks.torchattacks_classes():
        source = inspect.getsource(inspect.getmodule(getattr(torchattacks, name)))
        assert type_of(name).by_order == bool(asking.search(source)), name


@pytest.mark.parametrize("target", ["next", "least_likely", 4])
@pytest.mark.parametrize("spec", ["fgsm(target={})", "ifgsm(target={},steps=1,alpha=eps)"])
def test_no_attack_on_the_mean_loss_aims_at_the_rest(target, spec):
    """The labels are of the last class; the mean loss has one more, which is no class of the data set."""
    models, (images, _) = [member.float() for member in members(3)], batch()
    images, labels = images.float(), torch.full((12,), 4)
    leaf = images.clone().requires_grad_()
    likely = sum(model(leaf).log_softmax(1) for model in models).detach()
    # after class 4 comes class 0
    aimed = likely[:, :4].argmin(1) if target == "least_likely" else torch.zeros_like(labels)
    loss = sum(nn.functional.cross_entropy(model(leaf), aimed) for model in models)
    expected = (images - EPS * torch.autograd.grad(loss, leaf)[0].sign()).clamp(0, 1)
    (found,) = attacks.parse_attacks(spec.format(target), [EPS], {}, 0)
    ensemble = Ensemble(models, attack="mean-gradient")
    result = AttackRunner(found, ensemble.attacked_as, judge=ensemble)(images, labels, range(12)).images
    torch.testing.assert_close(result, expected)


def test_only_what_was_judged_by_the_part_has_a_new_key():
    perturbations = {
        spec: attacks.parse_attacks(spec, [EPS], {}, 0)[0]
        for spec in ("fgsm", "pgd", "pgd(restarts=2)", "apgd_ce", "fgsm(target=next)")
    }
    dataset = data.from_arrays(*grey_images())

    def new(view, spec, source=None):
        perturbation = replace(perturbations[spec], source=source)
        cell = make_cell(replace(BOTH, attacked_as=view), dataset, perturbation)
        environment = {key: value for key, value in cell.environment.items() if key != "judged_by"}
        return cell.key != replace(cell, environment=environment).key

    assert not any(new("", spec) for spec in perturbations)
    assert [spec for spec in perturbations if new("member:0", spec)] == ["pgd(restarts=2)", "apgd_ce"]
    assert [spec for spec in perturbations if new("mean-gradient", spec)] == [
        *("pgd(restarts=2)", "apgd_ce", "fgsm(target=next)")
    ]
    transferred = [spec for spec in perturbations if new("", spec, "transfer@other")]
    assert transferred == ["pgd(restarts=2)", "apgd_ce"]  # those of an audit


# --- measured ----------------------------------------------------------------------------------------


QUICK = {"attacks": "fgsm,pgd(steps=3)", "eps": (64 / 255,), "corruptions": "none", "n": 30, "device": "cpu"}
BUNDLED = [f"in_resnet20.digits_digits_seed{seed}" for seed in (0, 1, 2)]


def bundled_classifiers():
    chosen = [c for c in zoo.checkpoints(dataset="digits") if c.name in BUNDLED]
    kinds = [c.config["pretrained_cfg"] for c in chosen]
    found = [Classifier(c.load(), k["mean"], k["std"], c.name) for c, k in zip(chosen, kinds, strict=True)]
    return [classifier.eval().requires_grad_(False) for classifier in found]


@pytest.fixture(scope="module")
def views(tmp_path_factory):
    """A run of three seeds, their ensemble attacked in three ways: its folder and its tables."""
    out = tmp_path_factory.mktemp("views")
    ways = ("white-box", "member:1", "mean-gradient")
    options = QUICK | {"ensemble_attack": ways, "out": out, "batch_size": 30}
    return out, robust_interp.evaluate(BUNDLED, **options)


def predictions(out):
    """Stored predictions by model (only ensembles) and column."""
    with Store(out) as store:
        (plan,) = store.plans()
        cells = [cell for cell in plan.cells if cell.classifier.members > 1]
        return {
            (c.classifier.model, c.perturbation.column): store.read(c.key, plan.n).predictions for c in cells
        }


@pytest.mark.slow
def test_transferred_images_are_made_on_the_surrogate_and_judged_by_the_ensemble(views, digits_test):
    classifiers, (images, labels) = bundled_classifiers(), (part[:30] for part in digits_test)
    (pgd,) = attacks.parse_attacks("pgd(steps=3)", [64 / 255], {"alpha": OfEps(0.25)}, 0)

    def verdict(adversarial):
        with torch.no_grad():
            return (sum(v(adversarial).softmax(1) for v in classifiers) / 3).argmax(1).numpy()

    found = predictions(views[0])
    on_one = AttackRunner(pgd, classifiers[1])(images, labels, range(30)).images
    assert found["in_resnet20(member:1)", "pgd(steps=3)_64"].tolist() == verdict(on_one).tolist()
    leaf = images.clone().requires_grad_()
    losses = [nn.functional.cross_entropy(classifier(leaf), labels) for classifier in classifiers]
    (gradient,) = torch.autograd.grad(sum(losses) / 3, leaf)
    on_mean = (images + 64 / 255 * gradient.sign()).clamp(0, 1)
    assert found["in_resnet20(mean-gradient)", "fgsm_64"].tolist() == verdict(on_mean).tolist()
    different = {tuple(found[name, "pgd(steps=3)_64"]) for name, column in found if column == "clean"}
    assert len(different) == 3


def test_each_way_of_attack_is_a_line_and_a_key_of_its_own_and_only_white_box_is_ranked(views):
    out, table = views
    names = ["in_resnet20", "in_resnet20(member:1)", "in_resnet20(mean-gradient)"]
    ensembles = table[table["members"] == 3]
    assert list(dict.fromkeys(ensembles["model"])) == names
    with Store(out) as store:
        (plan,) = store.plans()
        kinds = {cell.perturbation.kind: set() for cell in plan.cells}
        for cell in (cell for cell in plan.cells if cell.classifier.members > 1):
            kinds[cell.perturbation.kind].add(cell.key)
        assert (len(kinds["clean"]), len(kinds["attack"])) == (1, 2 * 3)  # clean images are the same for all
    board = pd.read_csv(out / "leaderboard.csv").set_index(["model", "members"])
    assert sorted(board.loc[[(name, 3) for name in names]].index) == sorted((name, 3) for name in names)


def test_the_ensembles_of_before_keep_their_keys(views):
    """The key as it was worked out before an ensemble could be attacked in other ways."""
    with Store(views[0]) as store:
        (plan,) = store.plans()
    (cell,) = (
        c for c in plan.cells if c.classifier.label == "in_resnet20 x3" and c.perturbation.name == "fgsm"
    )
    singles = [
        c.classifier.identity for c in plan.cells if c.classifier.members == 1 and c.perturbation == CLEAN
    ]
    parts = {
        "victim": {"ensemble": singles, "average": "probabilities"},
        "dataset": cell.fingerprint,
        "perturbation": {"kind": "attack", "name": "fgsm", "params": {"eps": 64 / 255}},
        "environment": cell.environment,
    }
    assert cell.key == sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def test_agreement_and_improvement_are_those_of_the_predictions(views, digits_test):
    table, classifiers = views[1], bundled_classifiers()
    images, labels = digits_test[0][:30], digits_test[1][:30]
    fgsm, names = attacks.parse_attacks("fgsm", [64 / 255], {}, 0)[0], ["clean", "fgsm"]
    whole = Ensemble(classifiers).eval()
    for name, shown in zip(
        names, (images, AttackRunner(fgsm, whole)(images, labels, range(30)).images), strict=True
    ):
        with torch.no_grad():
            classes = torch.stack([classifier(shown).argmax(1) for classifier in classifiers])
        lines = table[table["perturbation"] == name]
        line = lines[lines["model"].eq("in_resnet20") & lines["members"].eq(3)].iloc[0]
        alike = [len(set(column)) == 1 for column in classes.T.tolist()]
        assert line["agreement"] == pytest.approx(100 * np.mean(alike))
        alone = lines[lines["members"] == 1]["accuracy"]
        assert len(alone) == 3
        assert line["improvement"] == pytest.approx(line["accuracy"] - alone.mean())
        assert lines[lines["members"] == 1][["agreement", "improvement"]].isna().all(axis=None)


def test_transferred_attacks_improve_on_nothing(views):
    table = views[1]
    attacked = table[table["perturbation"] != "clean"]
    transferred = attacked["model"].str.contains("(", regex=False)
    assert transferred.sum() == 4
    assert attacked[transferred]["improvement"].isna().all()
    assert attacked[transferred][["agreement", "asr"]].notna().all(axis=None)
    clean = table[(table["perturbation"] == "clean") & (table["members"] == 3)]
    assert clean["improvement"].notna().all()


@pytest.mark.exhaustive
@pytest.mark.slow
def test_nothing_of_an_ensemble_depends_on_the_batches(views, tmp_path):
    out, whole = views
    options = QUICK | {"ensemble_attack": ("white-box", "member:1", "mean-gradient"), "batch_size": 7}
    cut = robust_interp.evaluate(BUNDLED, out=tmp_path, **options)
    pd.testing.assert_frame_equal(cut.drop(columns="seconds"), whole.drop(columns="seconds"))
    for key, found in predictions(tmp_path).items():
        assert found.tolist() == predictions(out)[key].tolist()


def test_what_several_ways_of_attack_share_is_planned_once(tiny_zoo):
    ways = ("white-box", "member:0", "mean-gradient")
    bench = Benchmark(Request(models=("in_resnet14",), zoo=str(tiny_zoo), ensemble_attack=ways, **QUICK))
    with Store(None) as store:
        todo = [cell for _, cells in bench.missing(store) for cell in cells]
    assert len(bench.plan.cells) == 5 * 3  # two seeds and three ensembles: clean, fgsm, pgd
    assert len(todo) == len({cell.key for cell in todo}) == 5 * 3 - 2


@pytest.mark.slow
def test_averages_are_keyed_apart_and_each_is_what_it_says(tiny_zoo, digits_test):
    def cells(average):
        request = Request(models=("in_resnet14",), zoo=str(tiny_zoo), ensemble_average=average, **QUICK)
        bench = Benchmark(request)
        return bench, [cell for cell in bench.plan.cells if cell.classifier.members == 2]

    (usual, mean_p), (_, named), (other, mean_z) = map(cells, (None, "probabilities", "logits"))
    assert [c.key for c in mean_p] == [c.key for c in named]
    assert not {c.key for c in mean_p} & {c.key for c in mean_z}
    assert {c.classifier.model for c in mean_z} == {"in_resnet14(logits)"}
    images = digits_test[0][:30]
    for bench, average in ((usual, "probabilities"), (other, "logits")):
        *alone, together = (bench.runner.load(target).eval() for target in bench.targets)
        with torch.no_grad():
            torch.testing.assert_close(together(images), by_definition(alone, images, average))


# --- members -----------------------------------------------------------------------------------------


def cards(**options):
    return [target.card for target in Benchmark(Request(**QUICK | options)).targets]


def test_any_of_the_models_measured_make_an_ensemble(tiny_zoo):
    found = cards(zoo=str(tiny_zoo), models=("*resnet14",), ensemble=("in_resnet14+preact_resnet14",))
    assert [card.label for card in found] == [
        "in_resnet14 seed 0",
        "in_resnet14 seed 1",
        "in_resnet14 x2",
        "preact_resnet14 seed 0",
        "in_resnet14+preact_resnet14 x3",
    ]
    mixed, singles = found[-1], [found[0], found[1], found[3]]
    assert mixed.identity == {"ensemble": [c.identity for c in singles], "average": "probabilities"}
    assert mixed.params_m == pytest.approx(sum(c.params_m for c in singles))
    assert (mixed.members, mixed.seeds, mixed.train_seed, mixed.recipe) == (3, (0, 1), None, "none")


def test_single_checkpoints_globs_and_all_name_members(tiny_zoo):
    def members_of(*named, models=("*14",), **options):
        found = cards(zoo=str(tiny_zoo), models=models, ensembles=False, ensemble=named, **options)
        return [card.label for card in found if card.members > 1]

    full = "in_resnet14.digits_none_seed1"
    assert members_of(f"{full}+preact_resnet14") == ["in_resnet14+preact_resnet14 x2"]
    split = data.load("digits")
    own = data.from_arrays(split.images[:30], split.labels[:30], 10)
    assert members_of(f"{full}+preact_resnet14", dataset=own) == ["in_resnet14+preact_resnet14 x2"]
    assert members_of("*.digits_*seed0", dataset=own) == ["in_resnet14+preact_resnet14 x2"]
    assert members_of("in_*14") == ["in_resnet14 x2"]
    assert members_of("all") == ["in_resnet14+preact_resnet14 x3"]
    assert members_of("all", "preact_resnet14+in_resnet14") == [
        "in_resnet14+preact_resnet14 x3",
        "preact_resnet14+in_resnet14 x3",
    ]
    assert members_of("in_resnet14+preact_resnet14", models=None) == ["in_resnet14+preact_resnet14 x3"]
    with pytest.raises(UserError, match="unknown member of an ensemble 'preact_resnet41'"):
        members_of("in_resnet14+preact_resnet41")
    with pytest.raises(UserError, match="at least two models; preact_resnet14 is one"):
        members_of("preact_resnet14")


def test_an_ensemble_that_is_there_is_not_made_again(tiny_zoo):
    found = cards(zoo=str(tiny_zoo), models=("in_resnet14",), ensemble=("in_resnet14",))
    assert [card.members for card in found] == [1, 1, 2]


def test_members_that_are_one_classifier_are_remarked_on_in_one_line(tiny_zoo, tmp_path):
    for seed in (0, 1, 2):
        shutil.copytree(
            tiny_zoo / "in_resnet14.digits_none_seed0", tmp_path / f"in_resnet14.digits_none_seed{seed}"
        )
    bench = Benchmark(Request(models=("in_resnet14",), zoo=str(tmp_path), **QUICK))
    (line,) = bench.targets[-1].notes
    assert line == (
        "in_resnet14 x3: 3 members have the same weights, in_resnet14 seed 0, in_resnet14 seed 1 and so on; "
        "they count 3 times in the average"
    )
    distinct = Benchmark(Request(models=("in_resnet14",), zoo=str(tiny_zoo), **QUICK))
    assert distinct.targets[-1].notes == ()


def custom():
    images, labels = batch(20)
    return images.float().numpy(), labels.numpy(), 5


@pytest.mark.slow
def test_an_ensemble_that_is_an_object_is_the_one_of_its_members_by_name():
    one, two = (model.float() for model in members(2))
    options = {"attacks": "fgsm", "eps": (EPS,), "corruptions": "none"}
    for empty in ("a+", ""):
        with pytest.raises(UserError, match="unknown member of an ensemble ''"):
            robust_interp.evaluate({"a": one, "b": two}, custom(), ensemble=empty, **options)
    named = robust_interp.evaluate({"a": one, "b": two}, custom(), ensemble="a+b", **options)
    given = robust_interp.evaluate({"a": one, "b": two, "both": Ensemble([one, two])}, custom(), **options)
    assert named["model"].tolist() == ["a", "a", "b", "b", "a+b", "a+b"]
    assert given["members"].tolist() == [1, 1, 1, 1, 2, 2]
    columns = ["agreement", "improvement", "weights_sha256"]
    assert given[columns].notna().sum().tolist() == [2, 2, 6]
    assert given["weights_sha256"][4] == named["weights_sha256"][4]


@pytest.mark.slow
def test_an_ensemble_that_is_an_object_is_attacked_as_it_says():
    models = [model.float() for model in members(3)]
    dataset = custom()
    images, labels = torch.from_numpy(dataset[0]), torch.from_numpy(dataset[1])
    table = robust_interp.evaluate(
        Ensemble(models, "logits", "member:2"), dataset, attacks="fgsm", eps=(EPS,), corruptions="none"
    )
    assert set(table["model"]) == {"Ensemble(logits)(member:2)"}
    (fgsm,) = attacks.parse_attacks("fgsm", [EPS], {}, 0)
    adversarial = AttackRunner(fgsm, models[2])(images, labels, range(20)).images
    right = by_definition(models, adversarial, "logits").argmax(1) == labels
    assert table["accuracy"][1] == pytest.approx(100 * right.double().mean().item())


@pytest.mark.slow
def test_members_are_normalised_each_by_its_own():
    models = [model.float() for model in members(2)]
    inside = Ensemble([Classifier(model, (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)) for model in models])
    options = {"attacks": "fgsm", "eps": (EPS,), "corruptions": "none"}
    dataset = custom()
    given = robust_interp.evaluate(
        {"e": Ensemble(models)}, dataset, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4), **options
    )
    within = robust_interp.evaluate({"e": inside}, dataset, **options)
    same = ["accuracy", "agreement", "asr", "max_delta_255"]
    pd.testing.assert_frame_equal(given[same], within[same])


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--ensemble-average", "votes"], ["--ensemble-average", "probabilities"]),
        (["--ensemble-attack", "votes"], ["not 'votes'", "mean-gradient"]),
        (["--ensemble-attack", "member:2"], ["in_resnet14 has members 0 to 1", "member:2"]),
        (["--ensemble-attack", ","], ["ensemble_attack is empty"]),
        (["--no-ensembles", "--ensemble-attack", "member:0"], ["need an ensemble"]),
        (["--seeds", "0,", "--ensemble-average", "logits"], ["need an ensemble"]),
        (["--ensemble", "in_resnet14+x"], ["unknown member of an ensemble 'x'"]),
    ],
)
def test_mistakes_on_the_command_line_are_told(command, tiny_zoo, tmp_path, argv, parts):
    out = tmp_path / "out"
    status, _, err = command("bench", "--models", "in_resnet14", "--zoo", tiny_zoo, "--out", out, *argv)
    assert status in (1, 2)
    assert "Traceback" not in err
    assert all(part in err.splitlines()[-1] for part in parts)
    assert not out.exists()


@pytest.mark.slow
def test_the_command_line_takes_them_all(command, tiny_zoo, tmp_path):
    argv = ["--attacks", "fgsm", "--eps", "16", "--n", "10", "--corruptions", "none", "--quiet"]
    argv += ["--ensemble-average", "logits"]
    argv += ["--ensemble", "in_resnet14+preact_resnet14", "--ensemble-attack", "member:0,mean-gradient"]
    status, _, err = command("bench", "--zoo", tiny_zoo, "--out", tmp_path, "--no-ensembles", *argv)
    assert status == 0, err
    board = pd.read_csv(tmp_path / "leaderboard.csv")
    both = board[board["members"] == 3]
    names = [
        "in_resnet14+preact_resnet14(logits)(mean-gradient)",
        "in_resnet14+preact_resnet14(logits)(member:0)",
    ]
    assert both["model"].tolist() == names
    assert both["agreement"].notna().all()
    assert not command("leaderboard", tmp_path, "--models", names[0], "--sort", "agreement")[0]


# --- columns, from hand-made flags of ten samples ----------------------------------------------------


def results(store, *measured, protocol="final"):
    return results_frame(scores(run(store, measured, protocol), store))


FGSM, PGD = attack("fgsm", 2), attack("pgd", 2)
SEEDS = card(seed=0), card(seed=1)
BOTH = ensemble(*SEEDS)


@pytest.mark.parametrize(
    ("flags", "agreement", "accuracy"),
    [
        ("4448844448", 70, 60),
        ("8888888888", 0, 60),
        ("4444444444", 100, 60),
        ("5448844448", 70, 50),  # the first had no gradient either
        ("9444444446", 90, 50),  # not finite, too; that one was wrong anyway
        ("0000000000", None, 60),  # measured before agreement was noted
        ("4444400000", None, 60),  # or in part
    ],
)
def test_agreement_is_the_share_of_samples_and_disagreeing_is_not_being_wrong(
    store, flags, agreement, accuracy
):
    (line,) = results(store, (BOTH, PGD, first(6), flags)).to_dict("records")
    assert line["accuracy"] == accuracy
    assert pd.isna(line["agreement"]) if agreement is None else line["agreement"] == agreement
    assert line["zero_grad"] == (0.1 if flags[0] in "59" else 0)


def test_improvement_is_over_the_mean_of_the_members_under_the_same_perturbation(store):
    three = card(seed=2)
    measured = [(SEEDS[0], CLEAN, first(8)), (SEEDS[1], CLEAN, first(6)), (three, CLEAN, first(10))]
    measured += [(SEEDS[0], PGD, first(3)), (SEEDS[1], PGD, first(1))]
    measured += [(SEEDS[0], FGSM, first(9))]
    measured += [(BOTH, CLEAN, first(9)), (BOTH, PGD, first(5)), (BOTH, FGSM, first(9))]
    table = results(store, *measured)
    found = table[table["members"] == 2].set_index("perturbation")["improvement"]
    # clean 90 - (80 + 60) / 2, pgd 50 - (30 + 10) / 2; of fgsm one member is not there
    assert (found["clean"], found["pgd"]) == (20, 30)
    assert pd.isna(found["fgsm"])
    assert table[table["members"] == 1]["improvement"].isna().all()


def test_improvement_under_worst_is_that_of_what_survives(store):
    measured = [(SEEDS[0], CLEAN, "1111000000"), (SEEDS[0], FGSM, "1000111111")]  # survives: 1
    measured += [(SEEDS[1], CLEAN, "1111100000"), (SEEDS[1], FGSM, "1110000000")]  # survives: 3
    measured += [(BOTH, CLEAN, "1111110000"), (BOTH, FGSM, "0111110000")]  # survives: 5
    table = results(store, *measured, protocol="worst")
    found = table[table["members"] == 2].set_index("perturbation")["improvement"]
    assert (found["clean"], found["fgsm"], found["worst(fgsm)"]) == (15, 30, 30)


def test_a_leaderboard_has_clean_agreement_and_the_improvement_of_what_ranks(store, tmp_path):
    transferred = replace(BOTH, model="net(member:0)", attacked_as="member:0")
    radii = [attack("pgd", eps) for eps in (1, 2, 4)]
    measured = [(seed, pgd, first(right)) for seed, right in zip(SEEDS, (2, 4), strict=True) for pgd in radii]
    measured += [(BOTH, CLEAN, first(9), "4444444488")]
    measured += [(BOTH, pgd, first(5 + at), "8" * 10) for at, pgd in enumerate(radii)]
    measured += [(transferred, CLEAN, first(9), "4444444488")]
    measured += [(transferred, pgd, first(9), "4" * 10) for pgd in radii]
    board = leaderboard.entries_frame(scores(run(store, measured), store))
    lines = board.set_index(["model", "members"])[["rank", "agreement", "improvement", "pgd_2"]]
    assert lines.loc["net", 2].tolist() == [1, 80, 30, 60]  # 60 - (20 + 40) / 2
    assert lines.loc["net", 1].isna().tolist() == [False, True, True, False]
    assert lines.loc["net(member:0)", 2].isna().tolist() == [True, False, True, False]  # of no rank
    write(tmp_path, pd.DataFrame(), board)
    path = tmp_path / "leaderboard.csv"
    assert export.to_csv(combine.read(path)).encode() == path.read_bytes()
    assert combine.sort(combine.read(path), "improvement")["improvement"][0] == 30
    assert brief.shorten(board)[1]["agreement"].count("80.0") == 2


def test_runs_are_joined_with_their_ensembles_columns(store, tmp_path):
    run(
        store,
        [(seed, PGD, first(right)) for seed, right in zip(SEEDS, (2, 4), strict=True)]
        + [(BOTH, PGD, first(6))],
    )
    run(store, [(BOTH, CLEAN, first(9), "4" * 10)])
    board, _, _ = combine.gather([tmp_path])
    line = board[board["members"] == 2].to_dict("records")
    assert [(entry["agreement"], entry["improvement"], entry["clean"], entry["pgd_2"]) for entry in line] == [
        (100, 30, 90, 60)
    ]


def test_a_leaderboard_file_from_before_these_columns_is_read(tmp_path):
    path = tmp_path / "old.csv"
    path.write_text(
        "rank,model,recipe,lambda_init,seeds,members,params_m,n_examples,protocol,clean,clean_std,"
        "corruption_source,source\n,net,quick,,1,2,0.272,10,final,91.50,,,measured\n"
    )
    board = combine.read(path)
    assert board.columns.tolist()[8:12] == ["protocol", "agreement", "improvement", "clean"]
    assert board[["agreement", "improvement"]].isna().all(axis=None)
    assert board["clean"].tolist() == [91.5]


def test_attacks_made_on_other_things_are_not_compared(store, tmp_path):
    transferred = replace(BOTH, model="net(member:0)", attacked_as="member:0")
    measured = [(classifier, CLEAN, first(9)) for classifier in (*SEEDS, BOTH, transferred)]
    measured += [(classifier, PGD, first(5)) for classifier in (*SEEDS, BOTH, transferred)]
    run(store, measured)
    for other in ("netx2", "net"):
        comparison = compare.from_folders([tmp_path], "net(member:0)x2", other)
        assert comparison.frame["column"].tolist() == ["clean"]
        assert comparison.left_out == ["pgd_2 is left out: it was measured with different settings"]
    assert compare.from_folders([tmp_path], "netx2", "net").left_out == []


def test_only_attacks_on_the_ensemble_itself_can_be_signs_of_masking(store):
    transferred = replace(BOTH, model="net(member:0)", attacked_as="member:0")
    measured = [(classifier, FGSM, first(1)) for classifier in (BOTH, transferred)]
    measured += [(classifier, PGD, first(10)) for classifier in (BOTH, transferred)]
    lines = warnings.findings(scores(run(store, measured), store))
    assert len(lines) == 1
    assert lines[0].startswith("net x2: accuracy under pgd_2 is 100.0 %")


def test_how_an_ensemble_is_attacked_is_in_the_keys_of_its_attacks_alone():
    environment = {"precision": "float32", "torch": "2.9"}

    def key(classifier, perturbation):
        return Cell(classifier, "digits", "images", perturbation, environment).key

    other = replace(BOTH, model="any name", attacked_as="member:0")
    assert key(BOTH, CLEAN) == key(other, CLEAN)
    found = {
        key(replace(BOTH, attacked_as=way), PGD) for way in ("", "member:0", "member:1", "mean-gradient")
    }
    assert len(found) == 4


def test_a_deep_copy_of_an_ensemble_is_attacked_on_its_own_members():
    whole = Ensemble(members(2), attack="member:1")
    again = copy.deepcopy(whole)
    assert again.attacked_as is again.members[1]
    assert again.attacked_as is not whole.members[1]


class Counted(nn.Module):
    """Counts what it is given, and what gradients are taken of."""

    passes = 0

    def __init__(self):
        super().__init__()
        self.net = Small()

    def forward(self, images):
        Counted.passes += len(images)
        if images.requires_grad:
            images.register_hook(self._count)
        return self.net(images)

    @staticmethod
    def _count(gradient):
        Counted.passes += 2 * len(gradient)


@pytest.mark.slow
@pytest.mark.parametrize("view", ["white-box", "member:1", "mean-gradient"])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("spec", ["fgsm", "ifgsm(steps=3)"])
def test_the_cost_of_an_ensemble_is_what_its_members_are_asked(count, view, spec):
    """A gradient as two passes, and those members again that a gradient runs once more."""
    rng = np.random.default_rng(0)
    images, labels = rng.random((4, 3, 6, 6), dtype=np.float32), np.array([0, 1, 2, 3])
    dataset = data.from_arrays(images, labels, 5)
    together = Ensemble([Counted() for _ in range(count)], attack=view, name="together")
    request = Request(
        modules={"together": together}, dataset=dataset, attacks=spec, corruptions="none", eps=(EPS,)
    )
    benchmark = Benchmark(request)
    with Store(None) as store:
        ((target, cells),) = benchmark.missing(store)
        runner = benchmark.runner
        runner.load(target)
        for cell in cells:
            Counted.passes = 0
            run_jobs(make_jobs(benchmark.plan, [cell], target, runner), [target], runner, store)
            asked_again = 2 * count  # one image before and after, to tell whether a member changes
            assert Counted.passes - asked_again == 4 * cost(cell), cell.perturbation.column

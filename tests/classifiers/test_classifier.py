"""Classifiers: what a model is fed, what is refused, what is left untouched; ensembles by hand."""

import copy
import math
import re
import warnings

import numpy as np
import pytest
import torch
from support.masked_models import trained_on_digits
from torch import nn

import robust_interp
from robust_interp import attacks, data, zoo
from robust_interp.attacks import AttackRunner
from robust_interp.classifiers import zoo_names
from robust_interp.classifiers.classifier import Classifier
from robust_interp.classifiers.ensemble import Ensemble
from robust_interp.classifiers.fingerprint import identity
from robust_interp.classifiers.isolation import measurement_mode
from robust_interp.classifiers.validation import check_classifier, output_notes
from robust_interp.classifiers.zoo_names import classifier_of
from robust_interp.core.devices import resolve_device
from robust_interp.core.errors import RandomModelError, UserError

EPS = 8 / 255
MEAN, STD = (0.2, 0.5, 0.7), (0.25, 0.5, 2.0)
QUICK = {"attacks": "fgsm", "eps": (EPS,), "corruptions": "gaussian_noise(severity=3)"}

# The networks here are untrained or built to mislead, which evaluate remarks on.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(autouse=True)
def _seeded():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        yield


class Small(nn.Module):
    """conv, BN whose statistics are not the identity's, dropout, linear."""

    def __init__(self, channels=3, classes=5, dropout=0.5):
        super().__init__()
        self.conv = nn.Conv2d(channels, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(6, classes)
        nn.init.uniform_(self.norm.running_mean, -0.5, 0.5)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)

    def forward(self, images):
        return 10 * self.head(self.dropout(self.norm(self.conv(images)).relu().mean((2, 3))))


class Returns(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.model, self.wrap = Small(), wrap

    def forward(self, images):
        return self.wrap(self.model(images))


def batch(n=30, classes=5, channels=3, seed=0):
    rng = np.random.default_rng(seed)
    return rng.random((n, channels, 6, 6), dtype=np.float32), rng.integers(0, classes, n)


def measured(table):
    """All that a table says, without what differs from run to run or by name."""
    return table.drop(columns=["seconds", "model", "weights_sha256"])


def evaluate(model, dataset=None, **options):
    return robust_interp.evaluate(model, dataset or (*batch(), 5), **QUICK | options)


def assert_one_line(caught):
    assert "\n" not in str(caught.value)


# --- normalisation -----------------------------------------------------------------------------------


def test_normalisation_inside_is_the_raw_model_on_normalised_images():
    model = Small().eval()
    images = torch.from_numpy(batch()[0])
    normalised = np.stack(
        [(images[:, c].numpy().astype(np.float64) - MEAN[c]) / STD[c] for c in range(3)], axis=1
    )
    expected = model(torch.from_numpy(normalised).float())
    torch.testing.assert_close(Classifier(model, MEAN, STD)(images), expected, rtol=1e-5, atol=1e-5)


def test_half_and_half_is_the_raw_model_on_2x_minus_1():
    model = Small().eval()
    images = torch.from_numpy(batch()[0])
    found = Classifier(model, (0.5,) * 3, (0.5,) * 3)(images)
    torch.testing.assert_close(found, model(2 * images - 1), rtol=1e-5, atol=1e-5)


def test_a_classifier_without_normalisation_feeds_pixels():
    model = Small().eval()
    images = torch.from_numpy(batch()[0])
    assert torch.equal(Classifier(model)(images), model(images))


class Normalised(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, images):
        return self.model((images - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1))


@pytest.mark.slow
def test_evaluate_gives_the_same_numbers_with_the_normalisation_named_or_built_in():
    model = Small()
    named, built_in = evaluate(model, mean=MEAN, std=STD), evaluate(Normalised(model))
    assert measured(named).equals(measured(built_in))


def test_mean_without_std_is_refused():
    for one in ({"mean": MEAN}, {"std": STD}):
        with pytest.raises(UserError, match="give both mean and std, or neither"):
            evaluate(Small(), **one)


@pytest.mark.slow
def test_two_normalisations_of_one_model_are_two_classifiers_in_a_store(tmp_path):
    model, dataset = Small(), (*batch(60), 5)
    first = evaluate(model, dataset, out=tmp_path, mean=MEAN, std=STD)
    second = evaluate(model, dataset, out=tmp_path, mean=(0.9,) * 3, std=(0.05,) * 3)
    fresh = evaluate(model, dataset, mean=(0.9,) * 3, std=(0.05,) * 3)
    assert second["accuracy"].tolist() == fresh["accuracy"].tolist()
    assert second["accuracy"].tolist() != first["accuracy"].tolist()


# --- the images --------------------------------------------------------------------------------------

NORMALISE = "put the normalisation inside the model"


@pytest.mark.parametrize(
    ("change", "shown", "hint"),
    [
        (lambda x: (x - 0.5) / 0.25, "run from -2 to 2", NORMALISE),
        (lambda x: x * 255, "run from 0 to 255", "divide them by 255, or save them as uint8"),
        (lambda x: x - 1e-3, r"run from -0\.001 to 0\.999", NORMALISE),
        (lambda x: x + 1e-3, r"run from 0\.001 to 1\.001", NORMALISE),
        (lambda x: np.where(x == 0, np.nan, x), "have values that are NaN", "replace those"),
    ],
)
def test_images_outside_zero_to_one_are_refused(change, shown, hint, tmp_path):
    images, labels = batch()
    images[0, 0, 0, :2] = (0, 1)
    with pytest.raises(UserError, match=f"images {shown}") as caught:
        evaluate(Small(), (change(images), labels, 5), out=tmp_path)
    assert f"inputs must be in [0, 1]; {hint}" in str(caught.value)
    assert_one_line(caught)
    assert not list(tmp_path.iterdir())


def test_rounding_outside_zero_to_one_is_clamped():
    images, labels = batch()
    images[0, 0, 0, :2] = (-1e-6, 1 + 9e-7)
    dataset = data.from_arrays(images, labels)
    assert dataset.pixels(0, 1)[0, 0, 0, :2].tolist() == [0, 1]
    assert np.array_equal(dataset.images.ravel()[2:], images.ravel()[2:])


@pytest.mark.slow
def test_uint8_float32_and_float64_images_are_the_same_images():
    raw = np.random.default_rng(0).integers(0, 256, (30, 3, 6, 6), dtype=np.uint8)
    labels, model = batch()[1], Small()
    tables = [
        measured(evaluate(model, (images, labels, 5)))
        for images in (raw, (raw / np.float32(255)), raw / 255.0, torch.from_numpy(raw))
    ]
    for table in tables[1:]:
        assert table.drop(columns="subset_hash").equals(tables[0].drop(columns="subset_hash"))


@pytest.mark.parametrize("kind", [np.int64, np.int32, bool, complex])
def test_other_kinds_of_images_are_refused(kind):
    with pytest.raises(UserError, match=r"images must be uint8 or floating point in \[0, 1\], not"):
        evaluate(Small(), (np.ones((5, 3, 6, 6), kind), np.zeros(5, int), 5))


# --- what a model returns ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrap", "kind"),
    [
        (lambda logits: (logits, logits), "tuple of Tensor, Tensor"),
        (lambda logits: [logits], "list of Tensor"),
        (lambda logits: {"out": logits, "aux": logits}, "dict with out, aux"),
        (lambda logits: {"logits": None}, "dict with logits"),
        (lambda logits: logits.detach().numpy(), "ndarray"),
        (lambda logits: None, "NoneType"),
    ],
)
def test_outputs_that_are_no_tensor_are_refused_by_name_and_type(wrap, kind, tmp_path):
    with pytest.raises(UserError, match=f"mine returns a {kind}, not a tensor of logits: wrap it") as caught:
        evaluate({"mine": Returns(wrap)}, out=tmp_path)
    assert_one_line(caught)


@pytest.mark.parametrize("classes", [4, 6, 1000])
def test_another_number_of_classes_is_refused(classes):
    with pytest.raises(UserError, match=rf"shape \(8, {classes}\); the data set needs \(8, 5\)") as caught:
        evaluate(Small(classes=classes))
    assert_one_line(caught)


def test_logits_of_another_shape_are_refused():
    for wrap in (lambda logits: logits[:, 0], lambda logits: logits[:1], lambda logits: logits[..., None]):
        with pytest.raises(UserError, match="the data set needs"):
            evaluate(Returns(wrap))


def test_images_that_the_model_cannot_take_are_refused_in_one_line():
    with pytest.raises(
        UserError, match=r"Small cannot take torch.float32 images of shape \(8, 1, 6, 6\)"
    ) as caught:
        evaluate(Small(channels=3), (*batch(channels=1), 5))
    assert_one_line(caught)


class Asserts(Small):
    def forward(self, images):
        assert images.shape[-1] == 224, "wrong size\nuse 224"
        return super().forward(images)


class RaisesNothingToSay(Small):
    def forward(self, images):
        raise IndexError


def test_however_a_model_refuses_its_input_the_message_is_one_line():
    for model, reason in ((Asserts(), "wrong size"), (RaisesNothingToSay(), "IndexError")):
        with pytest.raises(
            UserError, match=f"cannot take torch.float32 images of shape .*: {reason}"
        ) as caught:
            evaluate(model)
        assert_one_line(caught)


class AlwaysDrops(Small):
    def forward(self, images):
        hidden = self.norm(self.conv(images)).relu().mean((2, 3))
        return self.head(nn.functional.dropout(hidden, 0.5, training=True))


def test_a_model_that_is_random_in_eval_mode_is_refused():
    with pytest.raises(UserError, match="AlwaysDrops is random: two forward passes in eval mode differ"):
        evaluate(AlwaysDrops())


class Votes(nn.Module):
    """Hard-vote randomised smoothing: how often each class wins among noisy copies of an image."""

    def __init__(self, net, sigma, copies=5):
        super().__init__()
        self.net, self.sigma, self.copies = net, sigma, copies

    def forward(self, images):
        noisy = (images + self.sigma * torch.randn_like(images) for _ in range(self.copies))
        return sum(nn.functional.one_hot(self.net(one).argmax(1), 10).float() for one in noisy)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [0.05, 0.1, 0.25])
def test_a_vote_over_noisy_copies_is_refused_where_it_is_unanimous_on_most_images(sigma, digits_test):
    pixels = digits_test[0][:40].numpy(), digits_test[1][:40].numpy(), 10
    with pytest.raises(UserError, match="Votes is random"):
        evaluate(Votes(trained_on_digits(width=32, seed=0), sigma), pixels)


class UnderGrad(Small):
    """Another function where a gradient is followed; `shift` says which."""

    def __init__(self, shift):
        super().__init__()
        self.shift = shift

    def forward(self, images):
        logits = super().forward(images)
        return logits + self.shift(logits) if torch.is_grad_enabled() else logits


class NoisyBackward(torch.autograd.Function):
    @staticmethod
    def forward(context, images):
        return images.clone()

    @staticmethod
    def backward(context, gradient):
        return gradient + torch.randn_like(gradient) * gradient.abs().max()


class NoiseInTheGradient(Small):
    def forward(self, images):
        return super().forward(NoisyBackward.apply(images))


@pytest.mark.parametrize(
    ("model", "why"),
    [
        (UnderGrad(lambda logits: torch.randn_like(logits)), "random: two forward passes with a gradient"),
        (UnderGrad(lambda logits: torch.ones_like(logits)), "other logits with a gradient than without"),
        (NoiseInTheGradient(), "random: two gradients at the same images differ"),
    ],
)
def test_a_model_that_behaves_otherwise_while_it_is_attacked_is_refused(model, why):
    with pytest.raises(RandomModelError, match=why) as caught:
        evaluate(model)
    assert_one_line(caught)


HEADS = {
    "probabilities, as of a softmax": lambda logits: logits.softmax(1),
    "scaled probabilities": lambda logits: 10 * logits.softmax(1),
    "in [0, 1], as of a sigmoid": torch.sigmoid,
    "the loss saturates": lambda logits: 4 * logits,
}


class Headed(nn.Module):
    def __init__(self, net, head):
        super().__init__()
        self.net, self.head = net, head

    def forward(self, images):
        return self.head(self.net(images))


@pytest.mark.slow
@pytest.mark.parametrize("sign", HEADS)
def test_heads_that_blunt_the_gradient_are_remarked_on(sign, digits_test):
    net = trained_on_digits(width=32, seed=0)
    dataset = digits_test[0].numpy(), digits_test[1].numpy(), 10
    options = {"n": 8, "attacks": "none", "corruptions": "none"}
    with pytest.warns(UserWarning, match=re.escape(sign)):
        evaluate(Headed(net, HEADS[sign]), dataset, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(net, dataset, **options)
        evaluate(Headed(net, lambda logits: logits.log_softmax(1)), dataset, **options)


@pytest.mark.slow
def test_a_checkpoint_of_the_zoo_is_remarked_on_as_a_module_is(tiny_zoo, monkeypatch):
    def with_softmax(checkpoint):
        classifier = classifier_of(checkpoint)
        classifier.model = nn.Sequential(classifier.model, nn.Softmax(dim=1))
        return classifier

    monkeypatch.setattr(zoo_names, "classifier_of", with_softmax)
    with pytest.warns(UserWarning, match="preact_resnet14.*: its outputs are probabilities"):
        robust_interp.evaluate("preact_resnet14", zoo=tiny_zoo, n=4, attacks="none", corruptions="none")


@pytest.mark.slow
def test_no_bundled_network_is_remarked_on_for_its_head(digits_test):
    found = [classifier_of(checkpoint).eval() for checkpoint in zoo.checkpoints(dataset="digits")]
    notes = [output_notes(classifier, digits_test[0]) for classifier in found]
    assert len(notes) >= 5
    assert not any(notes)


class StaysInTrainMode(nn.BatchNorm2d):
    def train(self, mode=True):
        return super().train(True)


class MeanOfTheBatch(Small):
    def forward(self, images):
        return super().forward(images - images.mean(0))


def with_norm(norm, dropout=0.0):
    model = Small(dropout=dropout)
    model.norm = norm
    return model


class TrainsDropout(nn.Dropout):
    def train(self, mode=True):
        return super().train(True)


def dropping():
    model = Small()
    model.dropout = TrainsDropout(0.5)
    return model


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda: with_norm(StaysInTrainMode(6)), "its part norm stays in train mode after eval()"),
        (dropping, "is random: two forward passes in eval mode differ (its part dropout stays in train mode"),
        (
            lambda: with_norm(nn.BatchNorm2d(6, track_running_stats=False)),
            "its BatchNorm norm has track_running_stats=False",
        ),
        (MeanOfTheBatch, "as with a mean over the batch, or a part in train mode that is no registered"),
    ],
)
def test_what_makes_images_influence_one_another_is_named(build, why):
    images = torch.from_numpy(batch(12)[0])
    classifier = Classifier(build())
    with pytest.raises(UserError) as caught, measurement_mode(classifier):
        check_classifier(classifier, images, 5)
    assert why in str(caught.value)
    assert ("track_running_stats" in str(caught.value)) == ("track_running_stats" in why)


class Masked(nn.Module):
    """An honest network with classes left out by -inf: of a sample its logits are those of the rest."""

    def __init__(self, net, classes):
        super().__init__()
        self.net, self.classes = net, classes

    def forward(self, images):
        logits = self.net(images)
        left_out = torch.zeros(logits.shape[1], dtype=torch.bool)
        left_out[list(self.classes)] = True
        return logits.masked_fill(left_out, -math.inf)


@pytest.mark.slow
def test_classes_that_are_masked_are_wrong_only_where_they_are_the_label(digits_test):
    """For the labels 0 to 7 the mask of 8 and 9 can only help: there are two wrong classes fewer."""
    pixels, labels = digits_test
    kept = labels < 8
    net, asked = trained_on_digits(width=32, seed=0), {"eps": (EPS,), "corruptions": "none", "n": 24}
    asked |= {"attacks": "fgsm,pgd(steps=3),apgd_ce(steps=5),apgd_dlr(steps=5),apgd_t(steps=3)"}
    dataset = pixels[kept].numpy(), labels[kept].numpy(), 10
    plain = evaluate(net, dataset, **asked)["accuracy"].tolist()
    masked = evaluate(Masked(net, (8, 9)), dataset, **asked)
    assert all(with_mask >= without for with_mask, without in zip(masked["accuracy"], plain, strict=True))
    assert masked["accuracy"][0] > 90
    # Of the labels that are left out none can be right.
    only = pixels[~kept].numpy(), labels[~kept].numpy(), 10
    assert evaluate(Masked(net, (8, 9)), only, **asked)["accuracy"].tolist() == [0] * 6


@pytest.mark.slow
def test_a_class_at_plus_infinity_or_nan_is_wrong_whatever_the_label():
    for value in (math.inf, math.nan):
        table = evaluate(Returns(lambda logits, value=value: logits + torch.tensor([0, 0, 0, 0, value])))
        assert table["accuracy"].tolist() == [0, 0, 0]


def test_large_logits_and_zero_gradients_are_not_taken_for_chance():
    images = torch.from_numpy(batch(12)[0])
    for change in (lambda logits: 1e6 * logits, torch.round, lambda logits: logits * math.nan):
        check_classifier(Classifier(Returns(change)).eval(), images, 5)


def test_a_model_that_always_yields_nan_is_measured_as_wrong():
    table = evaluate(Returns(lambda logits: logits * math.nan))
    assert table["accuracy"].tolist() == [0, 0, 0]


def test_checking_a_classifier_takes_no_gradient_and_no_random_numbers():
    classifier, before = Classifier(Small(dropout=0.0)).eval(), torch.get_rng_state()
    check_classifier(classifier, torch.from_numpy(batch(2)[0]), 5)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in classifier.parameters())


# --- modes and wrappers ------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_model_in_train_mode_gives_the_eval_results_and_stays_in_train_mode():
    model = Small()
    expected = measured(evaluate(copy.deepcopy(model).eval()))
    model.train()
    model.norm.eval()
    found = measured(evaluate(model))
    assert found.equals(expected)
    assert [module.training for module in model.modules()] == [True, True, False, True, True]


def test_evaluate_leaves_the_model_untouched():
    model = Small().train()
    model.head.weight.grad = torch.full_like(model.head.weight, 2)
    model.conv.weight.requires_grad_(False)
    state = copy.deepcopy(model.state_dict())
    evaluate(model, mean=MEAN, std=STD, attacks="fgsm,pgd(steps=2)")
    assert list(state) == list(model.state_dict())
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert all(module.training for module in model.modules())
    assert [p.requires_grad for p in model.parameters()] == [False, True, True, True, True, True]
    assert [p.grad is None for p in model.parameters()] == [True, True, True, True, False, True]
    assert (model.head.weight.grad == 2).all()


@pytest.mark.slow
def test_a_data_parallel_wrapper_gives_identical_numbers():
    model = Small()
    options = {"attacks": "fgsm,pgd(steps=3)", "mean": MEAN, "std": STD}
    assert measured(evaluate(nn.DataParallel(model), **options)).equals(measured(evaluate(model, **options)))


@pytest.mark.slow
def test_a_scripted_model_gives_identical_numbers():
    model = Small(dropout=0.0)
    scripted = torch.jit.trace(copy.deepcopy(model).eval(), torch.zeros(2, 3, 6, 6))
    assert evaluate(scripted)["accuracy"].tolist() == evaluate(model)["accuracy"].tolist()


def test_everything_comes_back_when_the_inside_raises():
    model, before = Small().train(), torch.get_rng_state()

    def inside():
        with measurement_mode(model):
            assert not any(module.training for module in model.modules())
            assert not any(parameter.requires_grad for parameter in model.parameters())
            torch.rand(3)
            raise KeyError

    with pytest.raises(KeyError):
        inside()
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert torch.equal(torch.get_rng_state(), before)


def test_an_unknown_device_is_refused_in_one_line():
    for name in ("gpu", "cuda:99", "meta:x"):
        with pytest.raises(UserError, match=f"cannot use device '{name}'") as caught:
            resolve_device(name)
        assert_one_line(caught)


# --- what a model that came as an object is known by -------------------------------------------------


class Tempered(nn.Module):
    def __init__(self, model, temperature):
        super().__init__()
        self.model, self.temperature = model, temperature

    def forward(self, images):
        return self.model(images) / self.temperature


@pytest.mark.slow
def test_an_identity_depends_on_all_that_the_logits_depend_on():
    model = Small().eval()
    other = copy.deepcopy(model)
    other.norm.running_mean += 1e-3
    classifiers = [
        Classifier(model),
        Classifier(other),
        Classifier(model, MEAN, STD),
        Classifier(model, MEAN, (1, 1, 1)),
        Classifier(model, (0, 0, 0), STD),
        Classifier(Tempered(model, 1.0)),
        Classifier(Tempered(model, 2.0)),
        Classifier(Tempered(Tempered(model, 1.0), 2.0)),
    ]
    found = [identity(classifier)["state_sha256"] for classifier in classifiers]
    assert len(set(found)) == len(classifiers)


def test_an_identity_does_not_depend_on_the_name_the_mode_or_the_gradients():
    model = Small()
    expected = identity(Classifier(model, MEAN, STD, "one"))
    model.train().requires_grad_(False)
    model.conv.weight.grad = torch.ones_like(model.conv.weight)
    assert identity(Classifier(copy.deepcopy(model), MEAN, STD, "two")) == expected


# --- any number of classes ---------------------------------------------------------------------------


@pytest.mark.parametrize("classes", [2, 3, 4, 7, 10, 100])
def test_any_number_of_classes_runs_from_end_to_end(classes):
    images, labels = batch(100, classes)
    labels[-1] = classes - 1
    model = Small(classes=classes).eval()
    table = robust_interp.evaluate(
        model,
        (images, labels),
        attacks="fgsm,ifgsm(steps=2),pgd(steps=2)",
        eps=(EPS,),
        corruptions="gaussian_noise(severity=1)",
    ).set_index("perturbation")
    assert list(table.index) == ["clean", "gaussian_noise", "fgsm", "ifgsm", "pgd"]
    with torch.no_grad():
        right = model(torch.from_numpy(images)).argmax(1).numpy() == labels
    assert table.loc["clean", "accuracy"] == pytest.approx(100 * right.mean())
    assert (table["n"] == 100).all()


# --- ensembles ---------------------------------------------------------------------------------------


def test_an_ensemble_of_one_predicts_as_its_member(digits_classifier, digits_test):
    images, _ = digits_test
    with torch.no_grad():
        member, ensemble = digits_classifier(images), Ensemble([digits_classifier])(images)
    assert torch.equal(member.argmax(1), ensemble.argmax(1))
    torch.testing.assert_close(ensemble, member.log_softmax(1))


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["fgsm", "ifgsm(steps=4)", "pgd(steps=4)"])
def test_an_ensemble_of_one_is_attacked_as_its_member(digits_classifier, digits_test, spec):
    images, labels = digits_test[0][:100], digits_test[1][:100]
    (perturbation,) = attacks.parse_attacks(spec, [16 / 255], {}, 0)

    def attacked(classifier, images):
        return AttackRunner(perturbation, classifier.eval())(images, labels, range(100)).images

    found = [
        attacked(classifier, images) for classifier in (digits_classifier, Ensemble([digits_classifier]))
    ]
    assert torch.equal(*(digits_classifier(adversarial).argmax(1) for adversarial in found))
    # In float32 the two round the gradient of a very confident sample differently.
    exact = copy.deepcopy(digits_classifier).double()
    assert torch.equal(attacked(exact, images.double()), attacked(Ensemble([exact]), images.double()))


def linear_members(count, classes=4, features=12, scale=3.0):
    rng = np.random.default_rng(1)
    weights = rng.normal(scale=scale, size=(count, classes, features))
    biases = rng.normal(size=(count, classes))
    members = []
    for weight, bias in zip(weights, biases, strict=True):
        linear = nn.Linear(features, classes).double()
        linear.weight.data, linear.bias.data = torch.tensor(weight), torch.tensor(bias)
        members.append(nn.Sequential(nn.Flatten(), linear))
    return members, weights, biases


def softmax(logits):
    exponentials = np.exp(logits - logits.max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_an_ensemble_is_the_log_of_the_mean_probability(count):
    members, weights, biases = linear_members(count)
    images = np.random.default_rng(2).random((20, 3, 2, 2))
    probabilities = softmax(np.einsum("mcf,nf->mnc", weights, images.reshape(20, 12)) + biases[:, None])
    expected = np.log(sum(probabilities) / count)
    found = Ensemble(members)(torch.from_numpy(images))
    np.testing.assert_allclose(found.detach().numpy(), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(found.exp().sum(1).detach().numpy(), 1, rtol=1e-12)


@pytest.mark.parametrize("count", [1, 2, 5])
def test_the_gradient_through_an_ensemble_is_the_one_worked_out_from_its_members(count):
    members, weights, biases = linear_members(count)
    rng = np.random.default_rng(2)
    images, labels = rng.random((20, 3, 2, 2)), rng.integers(0, 4, 20)
    leaf = torch.from_numpy(images).requires_grad_(True)
    loss = nn.functional.cross_entropy(Ensemble(members)(leaf), torch.from_numpy(labels), reduction="sum")
    (found,) = torch.autograd.grad(loss, leaf)
    for n, label in enumerate(labels):
        x = images[n].reshape(12)
        probabilities = [softmax(w @ x + b) for w, b in zip(weights, biases, strict=True)]
        # d(-log mean_m p_m[y]) = -sum_m p_m[y] (w_m[y] - sum_c p_m[c] w_m[c]) / sum_m p_m[y]
        slopes = [p[label] * (w[label] - p @ w) for p, w in zip(probabilities, weights, strict=True)]
        expected = -sum(slopes) / sum(p[label] for p in probabilities)
        np.testing.assert_allclose(found[n].reshape(12).numpy(), expected, rtol=1e-9, atol=1e-12)


def test_fgsm_on_an_ensemble_follows_the_gradient_worked_out_from_its_members():
    members, weights, biases = linear_members(3)
    rng = np.random.default_rng(2)
    images, labels = (0.2 + 0.6 * rng.random((20, 3, 2, 2))).astype(np.float32), rng.integers(0, 4, 20)
    (fgsm,) = attacks.parse_attacks("fgsm", [EPS], {}, 0)
    ensemble = Ensemble(members).float()
    found = AttackRunner(fgsm, ensemble)(torch.from_numpy(images), torch.from_numpy(labels), range(20)).images
    for n, label in enumerate(labels):
        x = images[n].reshape(12).astype(np.float64)
        probabilities = [softmax(w @ x + b) for w, b in zip(weights, biases, strict=True)]
        slopes = sum(p[label] * (p @ w - w[label]) for p, w in zip(probabilities, weights, strict=True))
        assert np.abs(slopes).min() > 1e-6 * np.abs(slopes).max()  # no sign is in doubt
        np.testing.assert_allclose(found[n].reshape(12).numpy(), x + EPS * np.sign(slopes), rtol=0, atol=1e-6)


def constant(logits):
    """A member with the same logits for every image, and a gradient that tells it apart."""
    linear = nn.Linear(1, len(logits), bias=True)
    linear.weight.data = torch.arange(1.0, len(logits) + 1)[:, None]
    linear.bias.data = torch.tensor(logits)
    return nn.Sequential(nn.Flatten(), linear)


def test_very_confident_members_leave_finite_logits_and_the_others_gradient():
    image = torch.zeros(1, 1, 1, 1, requires_grad=True)
    sure_wrong, sure_too, doubtful = constant([500.0, 0.0]), constant([300.0, 0.0]), constant([0.0, 0.0])
    found = Ensemble([sure_wrong, sure_too])(image)
    # the mean of e^-500 and e^-300 is e^-300 / 2 (1 + e^-200)
    assert found[0].tolist() == pytest.approx([0, -300 - math.log(2)], abs=1e-4)
    (gradient,) = torch.autograd.grad(found[0, 1], image)
    assert gradient.item() == pytest.approx(1, abs=1e-5)  # all of the weight is the less wrong one's
    found = Ensemble([sure_wrong, doubtful])(image)
    assert found[0].tolist() == pytest.approx([math.log(0.75), math.log(0.25)], abs=1e-6)
    (gradient,) = torch.autograd.grad(found[0, 1], image)
    assert gradient.item() == pytest.approx(0.5, abs=1e-6)  # d log p = w_y - sum p w = 2 - 1.5


def test_an_ensemble_averages_probabilities_not_logits():
    image = torch.zeros(1, 1, 1, 1)
    members = [constant([0.0, 20.0, 0.0]), constant([1.0, 0.0, 0.0]), constant([1.0, 0.0, 0.0])]
    log_mean = Ensemble(members)(image)[0]
    p = math.e / (math.e + 2)  # of class 0 in the doubtful members
    assert log_mean.exp().tolist() == pytest.approx([2 * p / 3, (1 + 1 - p) / 3, (1 - p) / 3], abs=1e-6)


def test_an_ensemble_without_members_is_refused():
    with pytest.raises(UserError, match="an ensemble needs at least one member"):
        Ensemble([])


@pytest.mark.parametrize(
    ("members", "kinds"),
    [
        ("ab", "str"),
        ([None], "NoneType"),
        (None, "NoneType"),
        (nn.Sequential(Small()), "Sequential"),
        (7, "int"),
    ],
)
def test_an_ensemble_of_what_is_no_list_of_modules_is_refused(members, kinds):
    with pytest.raises(UserError, match=f"an ensemble takes a list of torch modules, not {kinds}"):
        Ensemble(members)


def test_an_ensemble_takes_any_list_of_modules():
    one, two = Small(), Small()
    for members in ([one, two], (one, two), iter([one, two]), nn.ModuleList([one, two])):
        assert list(Ensemble(members).members) == [one, two]


def test_members_with_their_own_normalisations_are_averaged_on_pixels():
    model = Small().eval()
    images = torch.from_numpy(batch()[0])
    ensemble = Ensemble([Classifier(model, MEAN, STD), Classifier(model)])
    with torch.no_grad():
        each = [Classifier(model, MEAN, STD)(images).softmax(1), model(images).softmax(1)]
        torch.testing.assert_close(ensemble(images).exp(), (each[0] + each[1]) / 2)

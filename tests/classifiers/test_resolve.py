"""Whatever --models may name, and whatever a model may be like: measured as it is, or refused in one line."""

import collections
import copy
import importlib
import json
import math
import shutil
import sys
import types
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import timm
import torch
from huggingface_hub.errors import EntryNotFoundError
from safetensors.torch import load_file, save_file
from timm.models._hub import save_config_for_hf
from torch import nn

import robust_interp
from robust_interp import data, zoo
from robust_interp.benchmark.benchmark import Benchmark
from robust_interp.benchmark.request import Request
from robust_interp.classifiers import target
from robust_interp.classifiers.classifier import Classifier
from robust_interp.classifiers.ensemble import Ensemble
from robust_interp.classifiers.isolation import on_its_device
from robust_interp.classifiers.prefixes import PREFIXES
from robust_interp.classifiers.resolve import ResolveOptions, resolve
from robust_interp.classifiers.target import from_module
from robust_interp.classifiers.validation import measurable
from robust_interp.core.errors import UserError
from robust_interp.zoo.pretrained import default_tag

N = 40
QUICK = {"attacks": "fgsm", "corruptions": "none", "eps": (16 / 255,), "n": N}
OPTIONS = ("--attacks", "fgsm", "--corruptions", "none", "--eps", "16", "--n", str(N), "--quiet")
MEAN, STD = 0.3054, 0.3763  # of the digits

# The networks here are untrained or built to mislead, which evaluate remarks on.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")

MODELS = """
import torch
from torch import nn

class Linear(nn.Module):
    def __init__(self, num_classes=10, seed=0, scale=1.0):
        super().__init__()
        self.head = nn.Linear(64, num_classes)
        values = torch.Generator().manual_seed(seed)
        nn.init.normal_(self.head.weight, generator=values)
        nn.init.zeros_(self.head.bias)
        self.scale = scale

    def forward(self, images):
        return self.scale * self.head(images.flatten(1))

def linear():
    return Linear()

def sized(num_classes, in_chans, depth=1):
    assert (num_classes, in_chans) == (10, 1)
    return Linear(num_classes, seed=depth)

def any_keywords(**kwargs):
    assert not kwargs
    return Linear()

def needs(depth):
    return Linear()

def broken():
    raise KeyError("no such layer\\nand more")

def leaves():
    raise SystemExit(3)

def nothing():
    return None

def with_transforms():
    return Linear(), "transforms"

class Zoo:
    best = Linear(seed=5)

ready = Linear(seed=3)
number = 3
"""


@pytest.fixture
def here(tmp_path, monkeypatch):
    """The current directory, with a package of models in it."""
    package = tmp_path / "their_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "nets.py").write_text(MODELS)
    (package / "wrong.py").write_text("def f(:\n")
    (package / "needs_more.py").write_text("import no_such_dependency\n")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    importlib.invalidate_caches()
    yield tmp_path
    sys.path[:] = path
    for name in [name for name in sys.modules if name.startswith("their_package")]:
        del sys.modules[name]


def one_line(caught, *parts):
    message = str(caught.value)
    assert "\n" not in message
    for part in parts:
        assert str(part) in message, message[:1000]
    assert len(message) < 1000
    return message


def refused(models, *parts, dataset="digits", **options):
    with pytest.raises(UserError) as caught:
        robust_interp.evaluate(models, dataset, **QUICK | options)
    return one_line(caught, *parts)


def told(models, dataset="digits", **options):
    """The table, and what was said of it."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = robust_interp.evaluate(models, dataset, **QUICK | options)
    return table, [str(warning.message) for warning in caught]


@torch.no_grad()
def clean(model, digits_test, mean=None, std=None):
    """Clean accuracy in percent, with the normalisation in float64 and none of the package."""
    images, labels = digits_test[0][:N].double(), digits_test[1][:N]
    if mean is not None:
        images = (images - mean) / std
    return 100 * (model.eval()(images.float()).argmax(1) == labels).double().mean().item()


def clean_of(table):
    table = table[table["perturbation"] == "clean"]
    return dict(zip(table["model"], table["accuracy"], strict=True))


def linear(seed=0, scale=1.0):
    """The model of the package above, made anew."""
    head = nn.Linear(64, 10)
    nn.init.normal_(head.weight, generator=torch.Generator().manual_seed(seed))
    nn.init.zeros_(head.bias)
    return nn.Sequential(nn.Flatten(), head)


def network(seed=0, architecture="in_resnet14", **arguments):
    torch.manual_seed(seed)
    model = zoo.create(architecture, **{"num_classes": 10, "in_chans": 1} | arguments)
    for module in model.modules():  # as after training
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return model.eval()


def saved_by_timm(model, folder, model_args):
    """What timm's save_for_hf leaves, which timm 1.0.9 can no longer call where the hub's client is new."""
    folder.mkdir(parents=True)
    save_file(model.state_dict(), folder / "model.safetensors")
    save_config_for_hf(model, folder / "config.json", model_args=model_args)


# --- one list of everything ----------------------------------------------------------------------------


@pytest.mark.slow
def test_the_zoo_timm_a_factory_and_a_folder_share_a_table(command, here, tiny_zoo, digits_test):
    tagged = "in_resnet20.digits_digits_seed0"
    saved = network(7, "preact_resnet14")
    saved_by_timm(saved, here / "mine", {"in_chans": 1})
    cfg = json.loads((here / "mine" / "config.json").read_text())
    cfg["pretrained_cfg"] |= {"mean": [MEAN], "std": [STD]}
    (here / "mine" / "config.json").write_text(json.dumps(cfg))
    names = f"in_resnet14,timm:{tagged},their_package.nets:sized(depth=2),mine/,preact_resnet14"
    status, out, _ = command("bench", "--models", names, "--zoo", tiny_zoo, *OPTIONS)
    assert status == 0
    board, results = pd.read_csv(here / "results/leaderboard.csv"), pd.read_csv(here / "results/results.csv")
    assert sorted(board["model"] + board["members"].map(str)) == [
        "in_resnet141",
        "in_resnet142",
        f"{tagged}1",
        "mine1",
        "preact_resnet141",
        "their_package.nets:sized(depth=2)1",
    ]
    bundled = zoo.Checkpoint.at(zoo.bundled() / tagged).load()
    expected = {
        tagged: clean(bundled, digits_test, MEAN, STD),
        "mine": clean(saved, digits_test, MEAN, STD),
        "their_package.nets:sized(depth=2)": clean(linear(2), digits_test),
    }
    assert clean_of(results) | expected == clean_of(results)
    assert expected[tagged] > 95
    assert all(name in out for name in ("sized(depth=2)", "mine", tagged))


@pytest.mark.slow
def test_timm_with_a_checkpoint_is_the_bare_name_with_it(here, tiny_zoo):
    file = tiny_zoo / "in_resnet14.digits_none_seed0" / "model.safetensors"
    for name in ("in_resnet14", "timm:in_resnet14"):
        table = robust_interp.evaluate(name, checkpoint=file, out=here / "results", **QUICK)
        assert set(table["model"]) == {"in_resnet14"}
        board = pd.read_csv(here / "results" / "leaderboard.csv")
    keys = [
        [cell.key for cell in Benchmark(Request(models=(name,), checkpoint=str(file), **QUICK)).plan.cells]
        for name in ("in_resnet14", "timm:in_resnet14")
    ]
    assert keys[0] == keys[1]
    assert len(board) == 1


@pytest.mark.slow
def test_a_checkpoint_is_for_the_one_that_can_take_it(command, here, tiny_zoo, digits_test):
    save_file(network(3).state_dict(), here / "w.safetensors")
    names = "preact_resnet14,timm:in_resnet14,their_package.nets:linear"
    status, *_ = command(
        "bench", "--models", names, "--checkpoint", "w.safetensors", "--zoo", tiny_zoo, *OPTIONS
    )
    assert status == 0
    found = clean_of(pd.read_csv(here / "results/results.csv"))
    # in_resnet14's own cfg is for three channels: the dataset's normalisation stands in
    assert found["in_resnet14"] == clean(network(3), digits_test, MEAN, STD)
    assert found["their_package.nets:linear"] == clean(linear(), digits_test)
    state = {"head.weight": linear(9)[1].weight.data, "head.bias": torch.zeros(10)}
    torch.save({"net": state}, here / "head.pth")
    table = robust_interp.evaluate("their_package.nets:linear", checkpoint="head.pth", **QUICK)
    assert clean_of(table) == {"their_package.nets:linear": clean(linear(9), digits_test)}
    for names in (["timm:in_resnet14", "timm:preact_resnet14"], ["a.b:c", "a.b:d"], ["./mine"], ["all"]):
        refused(names, "--checkpoint needs exactly one", checkpoint="w.safetensors")


@pytest.mark.slow
def test_arguments_of_the_architecture_can_be_given(here, digits_test):
    wide = network(3, "in_resnet14", drop_rate=0.0)
    save_file(wide.state_dict(), here / "w.safetensors")
    table = robust_interp.evaluate(
        "timm:in_resnet14(drop_rate=0.5)", checkpoint=here / "w.safetensors", **QUICK
    )
    assert clean_of(table) == {"in_resnet14(drop_rate=0.5)": clean(wide, digits_test, MEAN, STD)}


@pytest.mark.slow
def test_the_mean_and_std_that_are_given_are_those_that_are_applied(command, here, digits_test):
    save_file(network(3).state_dict(), here / "w.safetensors")
    expected = {}
    for name, arguments in (
        ("timm:in_resnet14", ["--checkpoint", "w.safetensors"]),
        ("their_package.nets:linear", []),
    ):
        status, *_ = command(
            *("bench", "--models", name, *arguments, "--mean", "0.9", "--std", "0.05", *OPTIONS)
        )
        assert status == 0
        expected = {"in_resnet14": network(3), "their_package.nets:linear": linear()}
        found = clean_of(pd.read_csv(here / "results/results.csv"))
        assert found == {model: clean(expected[model], digits_test, 0.9, 0.05) for model in found}
    for given, part in (
        (["--mean", "0.9"], "both mean and std"),
        (["--mean", "120", "--std", "60"], "divide mean and std by 255"),
        (["--mean", "0.5", "--std", "0"], "std must be above 0"),
        (["--mean", "nan", "--std", "1"], "finite"),
        (["--mean", "0.5,0.5", "--std", "1"], "one number per channel"),
        (["--mean", "0.5,0.5,0.5", "--std", "1,1,1"], "3 channels; the images have 1"),
        (["--mean", "half", "--std", "1"], "'half' is not a list with one number per channel"),
    ):
        status, _, err = command("bench", "--models", "their_package.nets:linear", *given, *OPTIONS)
        assert status
        assert part in err
        assert err.count("\n") == 1


@pytest.mark.slow
def test_options_that_would_be_ignored_are_refused(here, tiny_zoo):
    refused(
        "their_package.nets:linear", "seeds cannot be used with models that are not from the zoo", seeds=2
    )
    refused(
        "in_resnet14", "mean cannot be used with models from the zoo", zoo=tiny_zoo, mean=(0.1,), std=(1,)
    )
    folder = str(tiny_zoo / "in_resnet14.digits_none_seed0")
    refused(folder, "mean cannot be used with models from the zoo", mean=(0.1,), std=(1,))
    refused(f"timm:local-dir:{folder}", "mean cannot be used with models from", mean=(0.1,), std=(1,))
    refused(folder, "weights_key cannot be used with models from the zoo", weights_key="ema")
    refused("their_package.nets:linear", "weights_key cannot be used with models without", weights_key="ema")
    refused("robustbench:Standard", "mean cannot be used with RobustBench's", mean=(0.1,), std=(1,))
    mixed = ["in_resnet14", folder, "their_package.nets:linear"]
    found = robust_interp.evaluate(mixed, zoo=tiny_zoo, seeds=1, mean=(0.1,), std=(1,), **QUICK)
    assert set(found["model"]) == {"in_resnet14", "their_package.nets:linear"}


def test_a_model_that_normalises_its_input_is_not_normalised_again():
    """RobustBench's XCiT models hold a timm model, whose mean and std they apply themselves."""
    inner = timm.create_model("in_resnet14", num_classes=10, in_chans=1)
    dataset = data.load("digits")
    for model in (inner, nn.Sequential(nn.Identity(), inner)):
        made = from_module("net", model.eval(), target.Context(dataset, takes_pixels=True))
        assert made.card.identity["normalisation"] is None
        assert not made.notes


def test_the_mean_and_std_of_the_data_are_named_where_they_stand_in():
    inner = timm.create_model("in_resnet14", num_classes=10, in_chans=1)  # its cfg is for three channels
    (note,) = from_module("net", inner.eval(), target.Context(data.load("digits"))).notes
    assert "is normalised for 3 channels" in note
    assert "mean [0.3054] and std [0.3763] of digits are applied" in note


class Fails(nn.Module):
    """A linear classifier that ends otherwise in the given pass."""

    def __init__(self, at, how):
        super().__init__()
        self.head, self.at, self.how, self.passes = nn.Linear(64, 10), at, how, 0

    def forward(self, images):
        self.passes += 1
        if self.passes == self.at:
            raise self.how
        return self.head(images.flatten(1))


@pytest.mark.slow
@pytest.mark.parametrize("how", [ValueError("late\nfailure"), SystemExit(0)], ids=["error", "exit"])
def test_a_model_that_fails_in_any_pass_is_one_line(how):
    counted = Fails(0, how)
    robust_interp.evaluate({"net": counted}, "digits", **QUICK)
    for at in range(1, counted.passes + 1):
        with pytest.raises(UserError, match="net") as caught:
            robust_interp.evaluate({"net": Fails(at, how)}, "digits", **QUICK)
        one_line(caught)


def test_timms_name_of_our_network_without_a_tag_means_its_default_weights(cifar_root):
    options = ResolveOptions()
    dataset = data.load("cifar10", "test", cifar_root)
    (named,) = resolve(["timm:in_resnet20"], options, dataset)
    tag = default_tag("in_resnet20")
    assert tag
    (tagged,) = resolve([f"timm:in_resnet20.{tag}"], options, dataset)
    assert named.card.identity == tagged.card.identity
    with pytest.raises(UserError, match="timm has no weights for in_resnet56"):
        resolve(["timm:in_resnet56"], options, dataset)


# --- what resolve promises ------------------------------------------------------------------------------


@pytest.fixture
def checked(monkeypatch):
    """How often each classifier is checked, by the name that messages call it."""
    times, check = collections.Counter(), target.check_classifier

    def counted(classifier, images, classes):
        times[classifier.name] += 1
        check(classifier, images, classes)

    monkeypatch.setattr(target, "check_classifier", counted)
    return times


def labels(models, dataset=None, **options):
    dataset = dataset or data.load("digits")
    return [found.card.label for found in resolve(models, ResolveOptions(**options), dataset)]


@pytest.mark.slow
def test_what_is_named_twice_in_different_ways_is_measured_once(here, tiny_zoo, checked):
    folder = tiny_zoo / "in_resnet14.digits_none_seed0"
    seeds = ["in_resnet14 seed 0", "in_resnet14 seed 1"]
    names = [
        "in_resnet14",
        folder.name,
        "in_res*14",
        str(folder),
        f"{folder}/",
        f"{tiny_zoo}/./{folder.name}",
    ]
    assert labels(names, zoo=tiny_zoo) == [*seeds, "in_resnet14 x2"]
    assert labels(names[1:2] + names[3:], zoo=tiny_zoo) == seeds[:1]
    saved_by_timm(network(7), here / "mine", {"in_chans": 1})
    again = ["mine/", "./mine", str(here / "mine"), "their_package/../mine"]
    assert labels(again, mean=(MEAN,), std=(STD,)) == ["mine"]
    assert labels(["their_package.nets:ready"] * 2) == ["their_package.nets:ready"]
    assert checked == {"mine": 1, "their_package.nets:ready": 1}


def test_one_zoo_folder_can_be_the_only_one(here, tiny_zoo):
    alone = {"zoo": tiny_zoo, "only_zoo": True}
    all_of_it = ["in_resnet14 seed 0", "in_resnet14 seed 1", "in_resnet14 x2", "preact_resnet14 seed 0"]
    assert labels(["all"], **alone) == all_of_it
    assert len(labels(["all"], zoo=tiny_zoo, ensembles=False)) > 3
    with pytest.raises(
        UserError, match=r"in_resnet20 has no checkpoint for digits in the zoo \(there are in_r"
    ):
        labels(["in_resnet20"], **alone)
    with pytest.raises(UserError, match="name it with --zoo"):
        labels(["all"], only_zoo=True)
    objects = {"a": linear()}
    with pytest.raises(UserError, match="only_zoo cannot be used with model objects"):
        resolve(objects, ResolveOptions(only_zoo=True), data.load("digits"))


def test_checkpoints_are_measured_on_own_images_with_as_many_classes(here, tiny_zoo, digits_test):
    images, labels = (part[:8] for part in digits_test)
    own = data.from_arrays(images, labels, 10)
    found = resolve(["in_resnet14"], ResolveOptions(zoo=tiny_zoo, only_zoo=True), own)
    assert [target.card.label for target in found] == [
        "in_resnet14 seed 0",
        "in_resnet14 seed 1",
        "in_resnet14 x2",
    ]
    assert found[0].notes == ("in_resnet14.digits_none_seed0 was trained on digits, not on custom",)
    assert found[0].card.recorded_clean is None
    other = data.from_arrays(images, labels, 12)
    with pytest.raises(
        UserError, match=r"is for 12 classes and 1 channels.*they are for 10 classes and 1 channels"
    ):
        resolve(["in_resnet14"], ResolveOptions(zoo=tiny_zoo, only_zoo=True), other)
    with pytest.raises(UserError, match=r"--ensemble in_resnet14\+preact_resnet14"):
        resolve(["in_resnet14+preact_resnet14"], ResolveOptions(zoo=tiny_zoo, only_zoo=True), own)


@pytest.mark.slow
def test_what_is_named_alike_and_is_not_the_same_is_told_apart(here):
    for folder in ("a/mine", "b/mine"):  # copies, even
        saved_by_timm(network(7), here / folder, {"in_chans": 1})
    assert labels(["a/mine", "./b/mine"], mean=(MEAN,), std=(STD,)) == ["a/mine", "./b/mine"]


@pytest.mark.slow
def test_each_target_is_checked_once_and_an_ensemble_by_its_members(here, tiny_zoo, checked):
    saved_by_timm(network(7, "preact_resnet14"), here / "mine", {"in_chans": 1})
    names = ["in_resnet14", "mine/", "their_package.nets:linear"]
    options = {"zoo": tiny_zoo, "mean": (MEAN,), "std": (STD,), "out": here / "results"}
    table = robust_interp.evaluate(names, ensemble="all", strong="apgd_ce(steps=2)", **options, **QUICK)
    assert set(table["members"]) == {1, 2, 4}
    # Of the zoo one of each architecture.
    assert checked == dict.fromkeys(["in_resnet14.digits_none_seed0", "mine", names[2]], 1)
    checked.clear()
    robust_interp.evaluate({"a": linear(), "both": Ensemble([linear(1), linear(2)])}, **QUICK)
    assert checked == {"a": 1, "both member 0": 1, "both member 1": 1}


@pytest.mark.slow
def test_a_checkpoint_of_the_zoo_is_read_when_it_is_measured_and_not_before(
    tiny_zoo, tmp_path, checked, monkeypatch
):
    options = {"zoo": tiny_zoo, "out": tmp_path / "results"} | QUICK
    found = resolve(["in_resnet14"], ResolveOptions(zoo=tiny_zoo), data.load("digits"))
    assert not checked
    one, _, both = found
    assert both.load("cpu").members[0] is one.load("cpu")
    assert set(checked.values()) == {1}
    table = robust_interp.evaluate("in_resnet14", **options)
    monkeypatch.setattr(zoo.Checkpoint, "load", lambda self: pytest.fail("nothing is left to measure"))
    pd.testing.assert_frame_equal(robust_interp.evaluate("in_resnet14", **options), table)


@pytest.mark.parametrize("prefix", ["", "timm:local-dir:"])
def test_a_path_in_the_home_folder_of_nobody_is_refused(prefix):
    with pytest.raises(UserError) as caught:
        resolve([f"{prefix}~nobody_x/net.pt"], ResolveOptions(), data.load("digits"))
    assert str(caught.value) == "~nobody_x/net.pt cannot be used: there is no such home folder"


@pytest.mark.parametrize("name", ["C:\\models\\net.pt", "C:/models/net", "d:\\net", "..\\zoo\\net"])
def test_a_path_of_windows_is_a_path(name):
    with pytest.raises(UserError) as caught:
        resolve([name], ResolveOptions(), data.load("digits"))
    assert str(caught.value) == f"there is no folder or file {name}"


def test_on_another_device_it_is_checked_again(monkeypatch):
    places = []
    monkeypatch.setattr(
        target, "check_classifier", lambda model, images, classes: places.append(images.device.type)
    )
    monkeypatch.setattr(target, "output_notes", lambda model, images, logits: ())
    load = target.TargetLoader(linear, data.load("digits"), checked_on=["cpu"])
    for device in ("cpu", "meta", "meta", torch.device("meta")):
        load(device)
    assert places == ["meta"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bias", "are_checked"), [(1.0, [0]), (math.nan, [0, 1]), (math.inf, [0, 1])], ids=["fine", "nan", "inf"]
)
def test_one_of_those_that_differ_in_their_weights_alone_is_checked_in_full(
    own_zoo, checked, monkeypatch, bias, are_checked
):
    load = zoo.Checkpoint.load

    def changed(checkpoint):
        model = load(checkpoint)
        if checkpoint.seed == 1:
            model.fc.bias.data[:] = bias
        return model

    monkeypatch.setattr(zoo.Checkpoint, "load", changed)
    found = resolve(["in_resnet14"], ResolveOptions(zoo=own_zoo, ensembles=False), data.load("digits"))
    for one in found:
        one.load("cpu")
    assert checked == {f"in_resnet14.digits_none_seed{seed}": 1 for seed in are_checked}


@pytest.mark.slow
def test_what_is_wrong_with_a_network_like_one_that_passed_is_told_as_of_any(own_zoo, monkeypatch):
    load = zoo.Checkpoint.load

    def spoilt(checkpoint):
        model = load(checkpoint)
        return model if checkpoint.seed == 0 else nn.Sequential(model, nn.Linear(10, 9))

    monkeypatch.setattr(zoo.Checkpoint, "load", spoilt)
    fine, other = resolve(["in_resnet14"], ResolveOptions(zoo=own_zoo, ensembles=False), data.load("digits"))
    fine.load("cpu")
    with pytest.raises(UserError) as caught:
        other.load("cpu")
    one_line(caught, "in_resnet14.digits_none_seed1 returns logits of shape (8, 9)", "(8, 10)")


def test_a_checkpoint_that_cannot_be_measured_is_refused_when_it_is_loaded(here):
    """Ten classes are what the checkpoint says it has; the images have another number of them."""
    digits = data.load("digits")
    (found,) = resolve(["in_resnet20.digits_digits_seed0"], ResolveOptions(), replace(digits, classes=12))
    with pytest.raises(UserError) as caught:
        found.load("cpu")
    one_line(caught, "in_resnet20.digits_digits_seed0 returns logits of shape (8, 10)", "(8, 12)")


# --- timm ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("timm:resnet18", ["1000 classes", "3 channels", "digits has 10 and 1", "--checkpoint"]),
        ("timm:resnet81", ["unknown model 'resnet81'", "resnet18"]),
        ("timm:in_resnet14", ["timm has no weights for in_resnet14", "--checkpoint"]),
        ("timm:in_resnet20.none_such", ["in_resnet20.none_such"]),
        ("timm:in_resnet14(num_classes=3)", ["num_classes cannot be set here"]),
        ("timm:in_resnet14(pretrained=True)", ["pretrained cannot be set here"]),
        ("timm:in_resnet14(depth", ["cannot read"]),
        ("timm:in_resnet14(drop_rate=eps)", ["drop_rate cannot be a fraction of eps"]),
    ],
)
def test_what_timm_cannot_give_is_refused(here, name, parts):
    refused(name, *parts)


@pytest.mark.slow
def test_a_path_is_never_taken_for_an_architecture(here, tiny_zoo):
    """For which timm 1.0.9 builds a network of random weights."""
    for name in ("timm:a/b/in_resnet20", "timm:/a/b/in_resnet20", "timm:./in_resnet20"):
        refused(name, "unknown model")
        refused(name, "unknown model", checkpoint=tiny_zoo / "x")
    refused("a/b/in_resnet20", "there is no folder or file a/b/in_resnet20")


def test_weights_that_cannot_be_fetched_are_one_line_and_no_random_network(here, monkeypatch):
    build = timm.create_model

    def offline(name, pretrained=False, **arguments):
        if pretrained:
            raise OSError("We couldn't connect\nto the hub")
        return build(name, **arguments)

    monkeypatch.setattr(timm, "create_model", offline)
    dataset = np.zeros((4, 3, 8, 8), np.float32), np.arange(4), 1000
    refused("timm:resnet18", "We couldn't connect", "--checkpoint FILE", dataset=dataset, n=4)


@pytest.mark.slow
def test_the_normalisation_of_the_pretrained_cfg_is_applied(here):
    model, images = network(1, "preact_resnet14", in_chans=3), np.random.default_rng(0).random((N, 3, 8, 8))
    save_file(model.state_dict(), here / "w.safetensors")
    cfg = model.pretrained_cfg
    mean, std = (np.array(cfg[key]).reshape(3, 1, 1) for key in ("mean", "std"))
    assert mean.any()
    with torch.no_grad():
        labels = model(torch.from_numpy((images - mean) / std).float()).argmax(1).numpy()
        raw = model(torch.from_numpy(images).float()).argmax(1).numpy()
    assert (raw == labels).mean() < 0.9  # it matters here
    dataset = images.astype(np.float32), labels, 10
    table = robust_interp.evaluate(
        "timm:preact_resnet14", dataset, checkpoint=here / "w.safetensors", **QUICK
    )
    assert clean_of(table) == {"preact_resnet14": 100}


# --- Python modules ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "seed"),
    [
        ("linear", 0),
        ("Linear", 0),
        ("any_keywords", 0),
        ("sized", 1),
        ("sized(depth=4)", 4),
        ("needs(depth=2)", 0),
        ("ready", 3),
        ("Zoo.best", 5),
    ],
)
def test_what_a_module_holds_or_makes_is_measured(here, digits_test, name, seed):
    table = robust_interp.evaluate(f"their_package.nets:{name}", **QUICK)
    assert clean_of(table) == {f"their_package.nets:{name}": clean(linear(seed), digits_test)}


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("their_package.nets:linaer", ["their_package.nets has no linaer"]),
        ("their_package.nets:number", ["is a int, not a torch module"]),
        ("their_package.nets:nothing", ["returned a NoneType, not a torch module"]),
        ("their_package.nets:with_transforms", ["returned a tuple, not a torch module"]),
        ("their_package.nets:needs", ["missing a required argument: 'depth'", "in brackets"]),
        ("their_package.nets:linear(depth=2)", ["unexpected keyword argument 'depth'"]),
        ("their_package.nets:ready(depth=2)", ["is already a model"]),
        ("their_package.nets:broken", ["failed: KeyError", "no such layer", " (nets.py, line "]),
        ("their_package.nets:leaves", ["failed: SystemExit: 3"]),
        ("their_package.wrong:net", ["cannot import their_package.wrong: SyntaxError", "(wrong.py, line "]),
        ("their_package.needs_more:net", ["cannot import", "No module named 'no_such_dependency'"]),
        ("their_package.none_such:net", ["unknown prefix or module their_package.none_such"]),
        (
            "their_package.nets.linear",
            ["did you mean their_package.nets:linear?"],
        ),
        ("none_such.nets.linear", ["unknown model 'none_such.nets.linear'; known: "]),
        ("tinm:resnet18", ["unknown prefix or module tinm", "known prefixes: timm"]),
        ("nets.py:net", ["unknown prefix or module nets; a function in a Python file is named nets:net"]),
        ("./a/nets.py:net(2)", ["no folder or file a/nets.py:net(2); ", "file is named a.nets:net(2)"]),
        ("/no/nets.py:net", ["no folder or file /no/nets.py:net; ", "named nets:net, in the folder of"]),
        ("../nets.py:net", ["no folder or file ../nets.py:net; ", "named nets:net, in the folder of"]),
        ("nets.py::net", ["a function in a Python file is named nets:net"]),
        ("my.dir/nets.py:net", ["no module can have this file's name"]),
        ("a b/nets.py:net", ["no module can have this file's name"]),
        ("/no/timm.py:net", ["no module can have this file's name"]),
        ("hf-hub:timm/resnet18", ["unknown prefix or module hf-hub", "known prefixes: timm"]),
        ("their_package.nets:", ["their_package.nets:"]),
        (":linear", [":linear"]),
    ],
)
def test_what_a_module_does_not_give_is_refused(here, command, name, parts):
    status, _, err = command("bench", "--models", name, *OPTIONS)
    assert status == 1
    assert err.count("\n") == 1
    assert all(part in err for part in parts), err
    assert not (here / "results").exists()


@pytest.mark.slow
def test_a_factory_of_a_timm_model_brings_its_normalisation(here, digits_test):
    (here / "their_package" / "tagged.py").write_text(
        "import timm\ndef net():\n"
        "    return timm.create_model('in_resnet20.digits_digits_seed0', pretrained=True)\n"
    )
    name, bundled = "their_package.tagged:net", zoo.bundled() / "in_resnet20.digits_digits_seed0"
    model = zoo.Checkpoint.at(bundled).load()
    table = robust_interp.evaluate(name, **QUICK)
    assert clean_of(table) == {name: clean(model, digits_test, MEAN, STD)}
    table, said = told(name, mean=(0.9,), std=(0.05,))
    assert clean_of(table) == {name: clean(model, digits_test, 0.9, 0.05)}
    assert any("came with mean" in line and "given mean and std are applied" in line for line in said)


# --- folders and files ---------------------------------------------------------------------------------


@pytest.fixture
def folder(here):
    """A folder as timm saves it, with a normalisation of its own."""
    model = network(4)
    model.pretrained_cfg = dict(model.pretrained_cfg) | {
        "mean": (0.4,),
        "std": (0.2,),
        "input_size": (1, 8, 8),
    }
    saved_by_timm(model, here / "runs" / "best", {"drop_rate": 0.0})
    return here / "runs" / "best"


def described(folder, **changes):
    config = json.loads((folder / "config.json").read_text())
    cfg = changes.pop("pretrained_cfg", {})
    for name in ("num_classes", "in_chans"):
        config.get("model_args", {}).pop(name, None)  # where newer versions of timm say it once more
    config |= {**changes, "pretrained_cfg": config["pretrained_cfg"] | cfg}
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


@pytest.mark.slow
def test_a_folder_that_timm_saved_is_measured_as_it_says(folder, digits_test):
    expected = clean(network(4), digits_test, 0.4, 0.2)
    assert clean_of(robust_interp.evaluate("runs/best", **QUICK)) == {"best": expected}
    shutil.copy(folder / "model.safetensors", folder / "epoch9.safetensors")
    found = robust_interp.evaluate(str(folder / "epoch9.safetensors"), **QUICK)
    assert clean_of(found) == {"best/epoch9.safetensors": expected}
    state = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(state, folder / "pytorch_model.bin")
    assert clean_of(robust_interp.evaluate("./runs/best", **QUICK)) == {"best": expected}
    explicit = robust_interp.evaluate("runs/best", mean=(0.9,), std=(0.05,), **QUICK)
    assert clean_of(explicit) == {"best": clean(network(4), digits_test, 0.9, 0.05)}


@pytest.mark.slow
def test_two_folders_of_one_name_are_told_apart(folder, digits_test):
    other = folder.parent.parent / "older" / "best"
    saved_by_timm(network(5), other, {})
    described(other, pretrained_cfg={"mean": [0.4], "std": [0.2], "input_size": [1, 8, 8]})
    table = robust_interp.evaluate(["runs/best", "older/best"], **QUICK)
    expected = {
        f"{place}/best": clean(network(seed), digits_test, 0.4, 0.2)
        for place, seed in (("runs", 4), ("older", 5))
    }
    assert clean_of(table) == expected


@pytest.mark.slow
def test_one_of_our_folders_is_the_checkpoint_in_the_zoo(here, tiny_zoo):
    name = "in_resnet14.digits_none_seed1"
    one = robust_interp.evaluate(str(tiny_zoo / name), **QUICK)
    assert one["train_seed"].tolist() == [1, 1]
    both = robust_interp.evaluate(
        [str(tiny_zoo / name), "in_resnet14"], zoo=tiny_zoo, ensembles=False, **QUICK
    )
    assert len(both) == 4  # two seeds, clean and attacked: the folder is one of them
    assert set(both["model"]) == {"in_resnet14"}


@pytest.mark.slow
def test_a_folder_of_another_dataset_says_so(here, tiny_zoo):
    other = here / "in_resnet14.mnist_none_seed1"
    shutil.copytree(tiny_zoo / "in_resnet14.digits_none_seed1", other)
    _, said = told(str(other))
    assert any("was trained on mnist, not on digits" in line for line in said)


@pytest.mark.slow
def test_another_size_of_images_is_remarked_on(folder):
    described(folder, pretrained_cfg={"input_size": [1, 224, 224]})
    _, said = told("runs/best")
    assert any(
        "made for 224x224 images, according to its configuration; it is measured on 8x8" in line
        for line in said
    )


def test_a_size_that_the_architecture_insists_on_is_refused(here):
    model = timm.create_model("vit_tiny_patch16_224", num_classes=10, in_chans=1, depth=1)
    save_file(model.state_dict(), here / "w.safetensors")
    name = "timm:vit_tiny_patch16_224(depth=1)"
    refused(name, "cannot take torch.float32 images of shape (8, 1, 8, 8)", checkpoint=here / "w.safetensors")


@pytest.mark.slow
def test_folders_that_do_not_fit_are_refused(folder, tiny_zoo):
    for changes, parts in (
        ({"num_classes": 100}, ["runs/best has 100 classes", "digits has 10"]),
        ({"model_args": {"num_classes": 100}}, ["runs/best has 100 classes", "digits has 10"]),
        ({"model_args": {"in_chans": 3}}, ["takes 3 channels"]),
        ({"num_classes": 10, "pretrained_cfg": {"input_size": [3, 8, 8]}}, ["takes 3 channels"]),
        ({"pretrained_cfg": {"input_size": [1, 8, 8], "mean": None}}, ["no mean and std for 1 channels"]),
        ({"pretrained_cfg": {"mean": [0.1, 0.2, 0.3]}}, ["no mean and std for 1 channels", "--mean"]),
        ({"pretrained_cfg": {"mean": "none"}}, ["mean cannot be 'none'"]),
        ({"pretrained_cfg": {"std": [0]}}, ["std must be above 0"]),
        ({"pretrained_cfg": {"input_size": 8}}, ["input_size cannot be 8"]),
        ({"model_args": {"depth": 14}}, ["cannot build in_resnet14", "depth"]),
        ({"model_args": [1]}, ["model_args cannot be [1]"]),
        ({"architecture": "in_resnet41"}, ["unknown model 'in_resnet41'", "in_resnet14"]),
        ({"architecture": "preact_resnet14"}, ["does not fit", "unexpected", "lambda"]),
        ({"architecture": None}, ["not have timm's format", "package.module:factory"]),
    ):
        whole = (folder / "config.json").read_text()
        described(folder, **changes)
        refused("runs/best", *parts)
        (folder / "config.json").write_text(whole)
    (folder / "config.json").write_text("{")
    refused("runs/best", "cannot read")
    (folder / "config.json").write_text('{"model_type": "resnet", "architectures": ["ResNet"]}')
    refused("runs/best", "not have timm's format")
    (folder / "config.json").unlink()
    refused("runs/best", "it lacks config.json or model.safetensors")
    refused(
        str(folder / "model.safetensors"),
        "does not name an architecture",
        f"--models timm:NAME --checkpoint {folder / 'model.safetensors'}",
    )
    refused(str(tiny_zoo), "is a folder of checkpoints: give it with --zoo")
    refused("nowhere/at_all", "there is no folder or file nowhere/at_all")
    refused("nowhere.pt", "there is no folder or file nowhere.pt")


# --- what a weights file may be ------------------------------------------------------------------------


class Normalise(nn.Module):
    def __init__(self, mean, std):
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(std).view(1, -1, 1, 1))

    def forward(self, images):
        return (images - self.mean) / self.std


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrap",
    [
        lambda model: {"net": model.state_dict(), "acc": 93.1, "epoch": 7},
        lambda model: {"model_state_dict": model.state_dict(), "optimizer": {"lr": 0.1}},
        lambda model: {"state_dict": {f"model.{k}": v for k, v in model.state_dict().items()}, "loops": {}},
        lambda model: torch.compile(model, backend="eager").state_dict(),
        lambda model: nn.DataParallel(torch.compile(model, backend="eager")).state_dict(),
        lambda model: torch.optim.swa_utils.AveragedModel(model).state_dict(),
        lambda model: {"state_dict_ema": model.state_dict()},
        lambda model: {"state_dict": {"model": model.state_dict()}},
        lambda model: {key: value.half() for key, value in model.state_dict().items()},
    ],
    ids=["net", "model_state_dict", "Lightning", "compiled", "both", "averaged", "EMA", "nested", "half"],
)
def test_the_weights_are_found_in_whatever_they_are_wrapped(tmp_path, wrap):
    source, model = network(1), network(2)
    torch.save(wrap(copy.deepcopy(source)), tmp_path / "w.pth")
    assert zoo.load_weights(model, tmp_path / "w.pth").normalisation is None
    for name, tensor in source.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], tensor, rtol=1e-3, atol=1e-3)


def test_a_models_own_prefix_is_not_taken_off(tmp_path):
    wrapped = nn.ModuleDict({"model": nn.Linear(3, 2)})
    for state in (wrapped.state_dict(), nn.DataParallel(copy.deepcopy(wrapped)).state_dict()):
        torch.save(state, tmp_path / "w.pt")
        zoo.load_weights(wrapped, tmp_path / "w.pt")
    data_parallel = nn.DataParallel(nn.Linear(3, 2))
    torch.save(data_parallel.state_dict(), tmp_path / "w.pt")
    zoo.load_weights(data_parallel, tmp_path / "w.pt")


@pytest.mark.slow
def test_a_normalisation_in_the_file_is_applied_and_said(here, digits_test):
    """As RobustBench's and many others' checkpoints have it: a layer in front, saved with the model."""
    saved = nn.Sequential(Normalise([0.4], [0.2]), network(4))
    torch.save(saved.state_dict(), here / "w.pt")
    table, said = told("timm:in_resnet14", checkpoint="w.pt")
    assert clean_of(table) == {"in_resnet14": clean(saved, digits_test)}
    assert any("contains a normalisation, mean [0.4" in line for line in said)
    state = {f"module.model.{key}": value for key, value in network(4).state_dict().items()}
    state |= {"module.mu": torch.tensor([0.4]).view(1, 1, 1), "module.sigma": torch.tensor([0.2])}
    torch.save({"model_state_dict": state}, here / "w.pt")
    assert clean_of(robust_interp.evaluate("in_resnet14", checkpoint="w.pt", **QUICK)) == clean_of(table)
    explicit = robust_interp.evaluate("in_resnet14", checkpoint="w.pt", mean=(0.9,), std=(0.05,), **QUICK)
    assert clean_of(explicit) == {"in_resnet14": clean(network(4), digits_test, 0.9, 0.05)}


def test_a_normalisation_that_an_older_file_lacks_is_the_models_own(tmp_path):
    class Inside(nn.Module):
        def __init__(self):
            super().__init__()
            self.normalise, self.head = Normalise([0.4], [0.2]), nn.Linear(3, 2)

    model, old = Inside(), nn.Linear(3, 2)
    torch.save({f"head.{key}": value for key, value in old.state_dict().items()}, tmp_path / "w.pt")
    assert zoo.load_weights(model, tmp_path / "w.pt").normalisation is None
    assert torch.equal(model.head.weight, old.weight)
    assert model.normalise.mean.item() == pytest.approx(0.4)
    torch.save(model.state_dict() | {"normalise.mean": torch.full((1, 1, 1, 1), 0.7)}, tmp_path / "w.pt")
    zoo.load_weights(model, tmp_path / "w.pt")
    assert model.normalise.mean.item() == pytest.approx(0.7)


def whole(path):
    torch.save(network(), path)


def whole_in_a_dict(path):
    torch.save({"net": network(), "acc": 93}, path)


def scripted(path):
    torch.jit.trace(nn.Linear(3, 2), torch.zeros(1, 3)).save(path)


def page(path):
    path.write_text("\n<!DOCTYPE html><html>Google Drive - Virus scan warning</html>")


def pointer(path):
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 132\n")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "found"),
    [
        (whole, "contains a pickled robust_interp.models"),
        (whole_in_a_dict, "contains a pickled robust_interp.models"),
        (scripted, "is a TorchScript archive"),
        (page, "is an HTML page, probably of a failed download"),
        (pointer, "is a git-lfs pointer"),
        (lambda path: path.write_bytes(b"\x1f\x8b\x08" + bytes(50)), "is a gzip archive"),
        (lambda path: path.write_bytes(b"\x89HDF\r\n" + bytes(50)), "is an HDF5 file"),
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: torch.save({"epoch": 3, "lr": 0.1}, path), "contains a dict with epoch, lr"),
        (lambda path: torch.save([1], path), "contains a list"),
        (lambda path: torch.save({}, path), "contains a dict with nothing in it"),
    ],
)
@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_what_is_no_weights_file_is_named_for_what_it_is(here, make, found, suffix):
    path = here / f"w{suffix}"
    make(path)
    if suffix == ".safetensors" and found.startswith("contains"):
        found = "cannot read"  # torch's own format under the other's name
    refused("timm:in_resnet14", path, found, checkpoint=path)
    refused(str(path), path, found)


def test_safetensors_are_known_by_what_is_in_them(tmp_path):
    save_file(network(1).state_dict(), tmp_path / "w.bin")
    model = network(2)
    zoo.load_weights(model, tmp_path / "w.bin")
    assert torch.equal(model.fc.weight, network(1).fc.weight)


@pytest.mark.slow
def test_a_folder_whose_path_has_a_colon_is_a_folder(here, tiny_zoo):
    name = "in_resnet14.digits_none_seed1"
    shutil.copytree(tiny_zoo / name, here / "a:b" / name)
    found, wanted = (
        robust_interp.evaluate(str(f / name), "digits", **QUICK) for f in (here / "a:b", tiny_zoo)
    )
    assert found["accuracy"].tolist() == wanted["accuracy"].tolist()
    refused("a:b/none", "unknown prefix or module a")


# --- what a model may return ---------------------------------------------------------------------------


class Returns(nn.Module):
    def __init__(self, wrap):
        super().__init__()
        self.model, self.wrap = linear(), wrap

    def forward(self, images):
        return self.wrap(self.model(images))


Output = collections.namedtuple("Output", ["logits", "features"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrap",
    [
        lambda logits: {"logits": logits, "loss": None},
        lambda logits: collections.OrderedDict(loss=None, logits=logits),
        lambda logits: types.SimpleNamespace(logits=logits, hidden_states=None),
        lambda logits: Output(logits, None),
    ],
    ids=["dict", "ordered", "object", "named tuple"],
)
def test_logits_under_their_name_are_taken(wrap):
    expected = robust_interp.evaluate(Returns(lambda logits: logits), **QUICK)["accuracy"].tolist()
    assert robust_interp.evaluate(Returns(wrap), **QUICK)["accuracy"].tolist() == expected


@pytest.mark.parametrize(
    ("wrap", "found"),
    [
        (lambda logits: (logits, logits), "returns a tuple of Tensor, Tensor, not a tensor of logits"),
        (lambda logits: {"out": logits}, "returns a dict with out, not a tensor of logits"),
        (lambda logits: logits.argmax(1), "returns logits of shape (8,)"),
        (lambda logits: logits.round().long(), "returns int64 values"),
        (lambda logits: logits.half(), "returns float16 values"),
        (lambda logits: logits.bfloat16(), "returns bfloat16 values"),
    ],
)
def test_what_are_no_logits_is_refused(wrap, found):
    refused({"theirs": Returns(wrap)}, f"theirs {found}")


# --- what a model may be -------------------------------------------------------------------------------


def same(table, other):
    columns = ["perturbation", "accuracy", "max_delta_255", "zero_grad", "precision"]
    return table[columns].equals(other[columns])


@pytest.mark.slow
@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_another_precision_is_measured_as_a_float32_copy_and_said(kind):
    model = network(4).to(kind)
    expected = robust_interp.evaluate(copy.deepcopy(model).float(), **QUICK)
    table, said = told({"theirs": model})
    assert same(table, expected)
    assert set(table["precision"]) == {"float32"}
    note = f"theirs is in {str(kind).removeprefix('torch.')}: a float32 copy is measured"
    assert note in said
    assert {parameter.dtype for parameter in model.parameters()} == {kind}


@pytest.mark.slow
def test_a_model_partly_in_half_precision_is_copied_too():
    model = network(4)
    model.fc.half()
    table, said = told({"theirs": model})
    assert any("theirs is in float16" in line for line in said)
    assert same(table, robust_interp.evaluate(copy.deepcopy(model).float(), **QUICK))
    assert model.fc.weight.dtype == torch.float16


def small():
    """conv, BN, linear, which torch.compile is soon done with."""
    torch.manual_seed(0)
    norm = nn.BatchNorm2d(4)
    nn.init.uniform_(norm.running_mean, -0.5, 0.5)
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 10)).eval()


def test_a_model_with_a_part_that_is_called_as_that_of_torch_compile_is_measured_whole():
    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self._orig_mod = linear()

        def forward(self, images):
            return self._orig_mod(1 - images)

    whole = Whole()
    assert measurable(whole)[0] is whole
    compiled = torch.compile(whole, backend="eager")
    assert measurable(compiled)[0] is whole


@pytest.mark.slow
def test_channels_last_frozen_trained_and_compiled_models_give_the_same_numbers():
    model = small()
    expected = robust_interp.evaluate(model, **QUICK)
    made = {
        "channels last": copy.deepcopy(model).to(memory_format=torch.channels_last),
        "frozen": copy.deepcopy(model).requires_grad_(False),
        "in train mode": copy.deepcopy(model).train(),
        "compiled": torch.compile(copy.deepcopy(model), backend="eager"),
        "parallel": nn.DataParallel(copy.deepcopy(model)),
        "compiled in parallel": nn.DataParallel(torch.compile(copy.deepcopy(model), backend="eager")),
    }
    in_place = copy.deepcopy(model)
    in_place.compile(backend="eager")
    made["compiled in place"] = in_place
    table = robust_interp.evaluate(made, **QUICK)
    for name, rows in table.groupby("model"):
        assert same(rows.reset_index(drop=True), expected), name
    assert made["in train mode"].training
    assert not any(parameter.requires_grad for parameter in made["frozen"].parameters())


@pytest.mark.slow
def test_weights_made_in_inference_mode_are_measured():
    with torch.inference_mode():
        model = network(4)
    assert same(robust_interp.evaluate(model, **QUICK), robust_interp.evaluate(network(4), **QUICK))


@pytest.mark.slow
def test_a_forward_without_gradients_is_measured_where_none_is_needed():
    class NoGradient(Returns):
        @torch.no_grad()
        def forward(self, images):
            return self.model(images)

    table = robust_interp.evaluate({"theirs": NoGradient(None)}, **QUICK | {"attacks": "none"})
    assert clean_of(table) == clean_of(robust_interp.evaluate({"theirs": linear()}, **QUICK))
    refused({"theirs": NoGradient(None)}, "theirs lets no gradient through to its input")


def test_weights_without_data_are_refused():
    with torch.device("meta"):
        model = network()
    refused({"theirs": model}, "theirs has weights without data (on the meta device): load them first")
    model = linear()
    model.register_buffer("table", torch.empty(3, device="meta"))
    refused({"theirs": model}, "theirs has weights without data")


class SpoilsItsGradient(Returns):
    def forward(self, images):
        hidden = self.model(images).sigmoid()
        out = 2 * hidden
        hidden.mul_(2)  # which sigmoid's gradient needs as it was
        return out


def test_a_model_whose_gradient_fails_is_one_line():
    refused({"theirs": SpoilsItsGradient(None)}, "theirs cannot be differentiated", "inplace operation")


class HoldsAFile(nn.Module):
    def __init__(self):
        super().__init__()
        self.model, self.log = linear().half(), sys.stdout

    def forward(self, images):
        return self.model(images)


def test_what_cannot_be_copied_is_one_line():
    refused({"theirs": HoldsAFile()}, "theirs is not in float32 and cannot be copied")


class CastsInside(nn.Module):
    def __init__(self):
        super().__init__()
        self.model = linear().half()

    def forward(self, images):
        return self.model(images.half()).float()


def test_what_only_works_in_half_precision_says_that_a_copy_was_tried():
    refused({"theirs": CastsInside()}, "theirs cannot take", "Half", "a float32 copy is measured")


def test_layers_without_a_shape_yet_are_refused():
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(10))
    refused({"theirs": model}, "theirs has lazy layers without a shape: call it on an image")
    model(torch.zeros(1, 1, 8, 8))
    assert clean_of(robust_interp.evaluate({"theirs": model}, **QUICK))


@pytest.mark.slow
def test_scripted_models_are_measured_in_half_precision_and_frozen():
    expected = robust_interp.evaluate(linear(), **QUICK)
    frozen = torch.jit.freeze(torch.jit.script(linear().eval()))
    assert same(robust_interp.evaluate(frozen, **QUICK), expected)
    half = robust_interp.evaluate(linear().half(), **QUICK)
    assert same(robust_interp.evaluate(torch.jit.script(linear().half()), **QUICK), half)


class NoWayBack(torch.autograd.Function):
    """As the layers of a quantised model are."""

    @staticmethod
    def forward(ctx, images):
        return images.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None


class GradientEndsInside(Returns):
    def forward(self, images):
        return self.model(NoWayBack.apply(images))


@pytest.mark.slow
def test_a_gradient_that_ends_before_the_images_is_one_line():
    assert clean_of(
        robust_interp.evaluate({"theirs": GradientEndsInside(None)}, **QUICK | {"attacks": "none"})
    )
    refused({"theirs": GradientEndsInside(None)}, "theirs lets no gradient through to its input")


def quantised_statically(seed):
    import torch.ao.quantization as quantization

    plain = linear(seed)
    model = nn.Sequential(quantization.QuantStub(), *plain, quantization.DeQuantStub()).eval()
    model.qconfig = quantization.get_default_qconfig(torch.backends.quantized.engine)
    prepared = quantization.prepare(model)
    prepared(torch.rand(20, 1, 8, 8, generator=torch.Generator().manual_seed(0)))
    return quantization.convert(prepared)


def quantised_dynamically(seed):
    return torch.ao.quantization.quantize_dynamic(linear(seed), {nn.Linear})


@pytest.mark.slow
@pytest.mark.parametrize("quantised", [quantised_statically, quantised_dynamically])
@torch.no_grad()
def test_a_quantised_model_is_attacked_without_gradients(digits_test, quantised):
    images = digits_test[0][:N]
    dynamic = quantised is quantised_dynamically
    model = quantised(0)
    logits = torch.cat([model(image[None]) for image in images]) if dynamic else model(images)
    labels = logits.argmax(1)
    labels[0] = (labels[0] + 1) % 10
    table, said = told({"theirs": model}, (images, labels, 10), attacks="square(queries=20)")
    assert clean_of(table) == {"theirs": 97.5}
    assert table["accuracy"][1] < 97.5
    assert any("it is given one image at a time" in line for line in said) is dynamic
    refused({"theirs": model}, "lets no gradient through to its input", "use square")
    hashes = [told({"theirs": quantised(seed)}, attacks="none")[0]["weights_sha256"][0] for seed in (0, 1, 0)]
    assert hashes[0] == hashes[2] != hashes[1]


@pytest.mark.slow
def test_batch_norm_statistics_that_were_never_set_are_remarked_on(digits_test):
    bundled = zoo.Checkpoint.at(zoo.bundled() / "in_resnet20.digits_digits_seed0")
    model = bundled.load()
    _, said = told({"theirs": model})
    assert not any("BatchNorm" in line for line in said)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
            module.running_mean += 30  # what is near the batch's is no fault
    state = copy.deepcopy(model.state_dict())
    table, said = told({"theirs": model})
    assert any("theirs: BatchNorm statistics look unset" in line for line in said)
    assert table["accuracy"][0] < 20
    assert all(torch.equal(value, state[key]) for key, value in model.state_dict().items())


@pytest.mark.slow
def test_a_mode_with_dropout_or_batch_norm_comes_back_as_it_was():
    model = nn.Sequential(network(4), nn.Dropout(0.9)).train()
    modes = [module.training for module in model.modules()]
    expected = robust_interp.evaluate(nn.Sequential(network(4)), **QUICK)
    assert same(robust_interp.evaluate(model, **QUICK), expected)
    assert [module.training for module in model.modules()] == modes


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is one device here")
def test_buffers_elsewhere_are_measured_and_left_there():
    model = nn.Sequential(Normalise([0.4], [0.2]), network(4))
    expected = robust_interp.evaluate(model, device="cpu", **QUICK)
    model[0].to("cuda")
    assert same(robust_interp.evaluate(model, device="cpu", **QUICK), expected)
    assert model[0].mean.device.type == "cuda"
    assert model[1].fc.weight.device.type == "cpu"


def test_what_is_moved_comes_back():
    """To the one other device that is always there, which keeps no data: it must be the very tensors."""
    model = nn.Sequential(Normalise([0.4], [0.2]), nn.Linear(3, 2))
    model[1].weight.grad = torch.ones(2, 3)
    state = copy.deepcopy(model.state_dict())
    before = [*model.parameters(), *model.buffers()]
    with on_its_device(model):
        model.to("meta")
        assert all(tensor.is_meta for tensor in [*model.parameters(), *model.buffers()])
    after = [*model.parameters(), *model.buffers()]
    assert all(one is other for one, other in zip(before, after, strict=True))
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(model[1].weight.grad, torch.ones(2, 3))


# --- identities ----------------------------------------------------------------------------------------


def key_of(name, **options):
    return Benchmark(Request(models=(name,), **QUICK | options)).plan.cells[0].key


@pytest.mark.slow
def test_a_key_tells_weights_arguments_and_normalisation_apart(here):
    for seed in (1, 2):
        save_file(network(seed).state_dict(), here / f"{seed}.safetensors")
    keys = [
        key_of("timm:in_resnet14", checkpoint="1.safetensors"),
        key_of("timm:in_resnet14", checkpoint="2.safetensors"),
        key_of("timm:in_resnet14", checkpoint="1.safetensors", mean=(0.1,), std=(1,)),
        key_of("their_package.nets:Linear"),
        key_of("their_package.nets:Linear(seed=1)"),
        key_of("their_package.nets:Linear(scale=2.0)"),
        key_of("their_package.nets:Linear", mean=(0.1,), std=(1,)),
    ]
    assert len(set(keys)) == len(keys)
    assert key_of("their_package.nets:Linear(seed=0)") == keys[3]
    assert key_of("./their_package.nets:Linear".removeprefix("./")) == keys[3]


def test_a_prefix_is_one_line_in_a_table(here, monkeypatch, digits_test):
    def lent(name, context):
        return from_module(name, linear(int(name)), context)

    monkeypatch.setitem(PREFIXES, "lent", lent)
    table = robust_interp.evaluate(["lent:5", "their_package.nets:linear"], **QUICK)
    assert clean_of(table)["5"] == clean(linear(5), digits_test)
    refused("lend:5", "unknown prefix or module lend; known prefixes: timm, hf, robustbench, lent")


def test_classifiers_refuse_a_normalisation_that_cannot_be():
    for mean, std, part in (
        ((0.5,), None, "both mean and std"),
        (0.5, 0.5, "lists with one number per channel"),
        (("a",), ("b",), "lists with one number per channel"),
        ((123.7,), (58.4,), "divide mean and std by 255"),
        ((0.5,), (-1,), "std must be above 0"),
        ((), (), "one number per channel"),
    ):
        with pytest.raises(UserError) as caught:
            Classifier(linear(), mean, std)
        one_line(caught, part)


class HuggingFace(nn.Module):
    """As theirs: a configuration with a model_type, and an output with logits."""

    def __init__(self):
        super().__init__()
        self.model, self.config = linear(), types.SimpleNamespace(model_type="vit")

    def forward(self, images):
        return types.SimpleNamespace(logits=self.model(images))


@pytest.mark.slow
def test_a_hugging_face_model_without_its_normalisation_is_remarked_on():
    lines = told({"theirs": HuggingFace()})[1]
    assert any(line.startswith("theirs looks like a Hugging Face model; no normalisation") for line in lines)
    lines = told({"theirs": HuggingFace()}, mean=(0.5,), std=(0.5,))[1]
    assert not any("Hugging Face" in line for line in lines)


@pytest.mark.parametrize("squeezed", [False, True])
def test_a_binary_model_with_one_output_is_measured_as_two_logits(squeezed):
    torch.manual_seed(0)
    head = nn.Linear(4, 1)
    end = [nn.Flatten(0)] if squeezed else []
    model = nn.Sequential(nn.Flatten(), head, *end)
    images = torch.rand(40, 1, 2, 2, generator=torch.Generator().manual_seed(0))
    z = head(images.flatten(1)).flatten()
    with torch.no_grad():
        head.bias -= z.median()
    dataset = (images, torch.arange(40) % 2)
    table, said = told({"theirs": model}, dataset, attacks="fgsm,square(queries=5)")
    right = (z > z.median()) == (dataset[1] == 1)
    assert clean_of(table) == {"theirs": 100 * right.double().mean().item()}
    # one step against the sign of the logit's gradient, which the weights are
    towards = torch.where(dataset[1] == 1, -1.0, 1.0)[:, None] * head.weight.sign()
    attacked = (images.flatten(1) + 16 / 255 * towards).clamp(0, 1)
    right = (head(attacked).flatten() > 0) == (dataset[1] == 1)
    assert table.set_index("perturbation")["accuracy"]["fgsm"] == 100 * right.double().mean().item()
    assert any("one output z for two classes; it is measured with the logits [0, z]" in line for line in said)
    sigmoid = nn.Sequential(model, nn.Sigmoid())
    refused({"theirs": sigmoid}, "has one output, which is in [0, 1], as of a sigmoid", dataset=dataset)
    refused({"theirs": model}, "returns logits of shape", dataset=(images, torch.arange(40) % 3))


def test_mps_is_refused_before_anything_is_computed():
    refused({"theirs": linear()}, "device 'mps' is not supported", device="mps")


@pytest.mark.slow
def test_timms_names_of_places_are_the_folders(here, monkeypatch, digits_test):
    folder = zoo.bundled() / "in_resnet20.digits_digits_seed0"
    expected = clean(zoo.Checkpoint.at(folder).load(), digits_test, MEAN, STD)
    asked = []

    def download(repository, file, revision):
        asked.append((repository, file, revision))
        if not (folder / file).exists():
            raise EntryNotFoundError(f"404: no {file}\nand more")
        return str(folder / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    names = [f"timm:local-dir:{folder}", "timm:hf-hub:me/digits@v2"]
    for name in names:
        table = robust_interp.evaluate(name, **QUICK)
        assert list(clean_of(table).values()) == [expected]
        refused(name, "has its own weights, which --checkpoint cannot replace", checkpoint="w.pth")
    assert ("me/digits", "model.safetensors", "v2") in asked
    refused("timm:local-dir:/no/such/folder", "there is no folder or file /no/such/folder")
    folder = here
    refused("timm:hf-hub:me/digits", "timm:hf-hub:me/digits: 404: no config.json")


SMALL = {
    "vit_tiny_patch16_224": {"img_size": 8, "patch_size": 4, "embed_dim": 24, "depth": 1, "num_heads": 2},
    "convnext_atto": {"depths": (1, 1, 1, 1), "dims": (8, 8, 16, 16), "patch_size": 1},
    "swin_tiny_patch4_window7_224": {
        **{"img_size": 16, "patch_size": 2, "window_size": 4, "embed_dim": 16},
        **{"depths": (1, 1), "num_heads": (2, 2)},
    },
}


@pytest.mark.slow
@pytest.mark.parametrize("architecture", SMALL)
def test_timms_transformers_and_convnexts_are_measured(here, architecture):
    torch.manual_seed(0)
    model = timm.create_model(architecture, num_classes=10, in_chans=3, **SMALL[architecture]).eval()
    nn.init.normal_(model.get_classifier().weight)
    side = SMALL[architecture].get("img_size", 8)
    images = torch.rand(32, 3, side, side, generator=torch.Generator().manual_seed(0))
    cfg = model.pretrained_cfg
    mean, std = (torch.tensor(cfg[key]).view(3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        labels = model((images - mean) / std).argmax(1)
    labels[:8] = (labels[:8] + 1) % 10
    table = robust_interp.evaluate(
        model,
        (images, labels, 10),
        attacks="fgsm,pgd(steps=2),square(queries=5)",
        eps=(32 / 255,),
        corruptions="none",
    )
    found = table.set_index("perturbation")["accuracy"]
    assert found["clean"] == 75
    assert found["fgsm"] < 75

"""The shipped recipes against the paper's table, written out; overrides, their names, and mistakes."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from robust_interp import data, zoo
from robust_interp.cli.main import main
from robust_interp.core.errors import UserError
from robust_interp.training import files, job, recipe

CIFAR10_STD = (0.2470, 0.2435, 0.2616)
AUTHORS = {"padding": 2, "padding_mode": "reflect", "std": (0.2023, 0.1994, 0.2010)}


def test_the_shipped_recipes_are_these():
    assert recipe.names() == ["authors", "digits", "paper", "quick"]


@pytest.mark.parametrize("name", ["paper", "authors"])
@pytest.mark.parametrize(
    ("architecture", "dataset", "epochs", "lr", "drops", "weight_decay"),
    [
        ("preact_resnet110", "cifar10", 160, 0.1, [80, 120], 1e-4),
        ("in_resnet164", "cifar10", 160, 0.1, [80, 120], 1e-4),
        ("lambda_in_resnet110", "cifar100", 300, 0.1, [150, 225], 1e-4),
        ("resnext29_8x64d", "cifar10", 300, 0.05, [150, 225], 5e-4),
        ("in_resnext29_8x64d", "cifar100", 300, 0.05, [150, 225], 5e-4),
        ("lambda_in_resnext29_8x64d", "cifar100", 300, 0.05, [150, 225], 5e-4),
    ],
)
def test_the_schedules_are_the_papers(name, architecture, dataset, epochs, lr, drops, weight_decay):
    found = recipe.load(name, architecture, dataset)
    assert (found.name, found.epochs, found.lr, found.weight_decay) == (name, epochs, lr, weight_decay)
    assert [share * epochs for share in found.steps] == drops
    assert (found.momentum, found.batch_size, found.warmup_epochs) == (0.9, 128, 0)
    assert found.lambda_decay is True
    assert found.lambda_init is None  # the architecture's, which is the paper's interval


def test_the_papers_images_are_padded_by_four_zeros_and_normalised_by_their_own_statistics():
    found = recipe.load("paper", "in_resnet110", "cifar10")
    assert (found.padding, found.padding_mode) == (4, "zeros")
    assert (found.mean, found.std) == ((0.4914, 0.4822, 0.4465), CIFAR10_STD)
    assert recipe.load("paper", "in_resnet110", "cifar100").std == (0.2673, 0.2564, 0.2762)


@pytest.mark.parametrize("dataset", ["cifar10", "cifar100"])
def test_the_authors_pad_by_reflection_and_normalise_both_datasets_alike(dataset):
    found = recipe.load("authors", "in_resnet110", dataset)
    assert {name: getattr(found, name) for name in AUTHORS} == AUTHORS
    assert found.mean == (0.4914, 0.4822, 0.4465)


@pytest.mark.parametrize(
    ("architecture", "paper", "authors"),
    [
        ("in_resnet110", "lambda", "keep"),
        ("in_resnet164", "lambda", "keep"),
        ("lambda_in_resnet110", "lambda", "lambda"),
        ("in_resnet110_sig", "lambda", "lambda"),
        ("preact_resnet110", "lambda", "lambda"),
        ("in_resnext29_8x64d", "lambda", "lambda"),
    ],
)
def test_the_stored_parameter_is_the_sources(architecture, paper, authors):
    found = [recipe.load(name, architecture, "cifar10").stored for name in ("paper", "authors")]
    assert found == [paper, authors]


def test_quick_is_the_papers_in_22_epochs():
    for architecture, dataset in (("in_resnet110", "cifar100"), ("in_resnext29_8x64d", "cifar10")):
        quick, paper = (recipe.load(name, architecture, dataset) for name in ("quick", "paper"))
        assert quick == replace(paper, name="quick", epochs=22)
        assert [share * 22 for share in quick.steps] == [11, 16.5]


def test_digits_is_what_the_bundled_checkpoints_were_trained_by():
    found = asdict(recipe.load("digits", "in_resnet20", "digits"))
    recorded = [c.record["recipe"] for c in zoo.checkpoints(zoo.bundled(), "digits") if c.recipe == "digits"]
    assert len(recorded) >= 20
    for fields in recorded:
        assert fields | {"steps": tuple(fields["steps"])} == {name: found[name] for name in fields}
    assert (found["padding"], found["mean"], found["std"]) == (1, (0.3054,), (0.3763,))


# Overrides.


def digits(*texts):
    return recipe.overridden(recipe.load("digits", "in_resnet14", "digits"), recipe.settings(texts))


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("epochs=4", "digits_4epochs", {"epochs": 4}),
        ("lr=0.05,epochs=4", "digits_4epochs_lr_0p05", {"epochs": 4, "lr": 0.05}),
        ("steps=0.5,lr=1e-5", "digits_lr_1em05_steps_0p5", {"steps": (0.5,), "lr": 1e-5}),
        ("steps=0.3,0.6,0.9", "digits_steps_0p3_0p6_0p9", {"steps": (0.3, 0.6, 0.9)}),
        ("steps=", "digits_steps_none", {"steps": ()}),
        ("momentum=0,batch_size=64", "digits_momentum_0_batch_size_64", {"momentum": 0, "batch_size": 64}),
        ("padding_mode=reflect , padding=2", "digits_padding_2_padding_mode_reflect", {"padding": 2}),
        ("mean=0.5, std=0.25", "digits_mean_0p5_std_0p25", {"mean": (0.5,), "std": (0.25,)}),
        ("mean=0,std=1", "digits_mean_0_std_1", {"mean": (0,), "std": (1,)}),
        ("mean=1,std=1", "digits_mean_1_std_1", {"mean": (1,), "std": (1,)}),
        ("stored=keep,lambda_decay=off", "digits_stored_keep_lambda_decay_off", {"lambda_decay": False}),
        ("lambda_init=0.1,0.2", "digits_lambda_init_0p1_0p2", {"lambda_init": (0.1, 0.2)}),
        ("warmup_epochs=1,weight_decay=5e-4", "digits_weight_decay_0p0005_warmup_epochs_1", {}),
        ("lr=1", "digits_lr_1", {"lr": 1}),
        ("lr=1.0", "digits_lr_1", {"lr": 1}),
        ("lambda_init=0.0,0.1", "digits_lambda_init_0_0p1", {"lambda_init": (0, 0.1)}),
        ("lambda_init=0,0.1", "digits_lambda_init_0_0p1", {"lambda_init": (0, 0.1)}),
    ],
)
def test_every_field_can_be_overridden_and_the_name_says_so(text, name, values):
    found = digits(text)
    assert found.name == name
    assert {field: getattr(found, field) for field in values} == values
    folder = job.destination(job.Training("in_resnet14", found, 3), "digits", "zoo")
    assert zoo.Checkpoint.at(folder).recipe == name


def test_what_is_as_the_recipe_says_is_no_deviation():
    plain = digits()
    assert digits("lr=0.1,epochs=60", "padding=1") == plain
    assert plain.deviations == {}


def test_deviations_are_recorded_and_described():
    found = digits("lr=0.05", "steps=0.5,lambda_decay=false")
    assert found.deviations == {
        "lr": (0.1, 0.05),
        "steps": ((0.5, 0.75), (0.5,)),
        "lambda_decay": (True, False),
    }
    text = "lr 0.05 instead of 0.1, steps 0.5 instead of 0.5,0.75, lambda_decay off instead of on"
    assert recipe.describe(found.deviations) == text


def test_ones_own_file_extends_a_shipped_recipe(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(
        'extends = "paper"\nlr = 0.2\n[[where]]\narchitecture = "in_*"\nlambda_init = [0.1, 0.2]\n'
        '[[where]]\ndataset = "digits"\nepochs = 5\n'
    )
    found = recipe.load(str(path), "in_resnet14", "digits")
    assert (found.name, found.epochs, found.lr, found.lambda_init) == ("mine", 5, 0.2, (0.1, 0.2))
    other = recipe.load(str(path), "preact_resnet14", "cifar100")
    assert (other.epochs, other.lr, other.padding, other.lambda_init) == (300, 0.2, 4, None)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot read it"),
        ("epochs = ", "cannot read it"),
        ("lr = 0.1", "must set epochs"),
        ("epochs = 3\nrate = 0.1", "unknown recipe field 'rate'"),
        ('epochs = "3"', "epochs must be a whole number of at least 1, not 3"),
        ("epochs = 3\nwhere = ['*resnet*']", r"where must be written as tables \[\[where\]\]"),
        ("epochs = 3\nwhere = 4", r"where must be written as tables \[\[where\]\]"),
        ('extends = "papr"', "unknown recipe 'papr'; did you mean paper"),
        ("epochs = 3\nmean = [0.5, 0.5]", "mean must have 1 values for digits"),
    ],
)
def test_mistakes_in_ones_own_file_are_named_with_it(tmp_path, content, message):
    path = tmp_path / "mine.toml"
    if content is not None:
        path.write_text(content)
    with pytest.raises(UserError, match=message) as refusal:
        recipe.load(str(path), "in_resnet14", "digits")
    assert str(path) in str(refusal.value)


def test_ones_own_file_may_not_pose_as_a_shipped_recipe(tmp_path):
    (tmp_path / "paper.toml").write_text("epochs = 3")
    with pytest.raises(UserError, match="paper is the name of a built-in recipe"):
        recipe.load(str(tmp_path / "paper.toml"), "in_resnet14", "digits")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--set", "lr"], "cannot read 'lr': expected field=value"),
        (["--set", "rl=0.1"], "unknown recipe field 'rl'; did you mean lr"),
        (["--set", "name=paper"], "unknown recipe field 'name'"),
        (["--set", "lr=0"], "lr must be a number above 0, not 0"),
        (["--set", "lr=nan"], "lr must be a number above 0, not nan"),
        (["--set", "lr=fast"], "lr must be a number above 0, not fast"),
        (["--set", "steps=80,120"], "steps must be increasing fractions of the epochs between 0 and 1"),
        (["--set", "steps=0.75,0.5"], "steps must be increasing fractions"),
        (["--set", "momentum=1"], "momentum must be a number in [0, 1)"),
        (["--set", "weight_decay=-1"], "weight_decay must be a number of at least 0, not -1"),
        (["--set", "batch_size=1.5"], "batch_size must be a whole number of at least 1, not 1.5"),
        (["--set", "padding=-1"], "padding must be a whole number of at least 0"),
        (["--set", "padding_mode=edge"], "padding_mode must be zeros or reflect, not edge"),
        (["--set", "mean=77.9"], "mean must be a number from 0 to 1 for each channel"),
        (["--set", "mean=true"], "mean must be a number from 0 to 1 for each channel"),
        (["--set", "mean=1.01"], "mean must be a number from 0 to 1 for each channel"),
        (["--set", "std=true"], "std must be a number above 0 for each channel"),
        (["--set", "std=0"], "std must be a number above 0 for each channel"),
        (["--set", "mean=0.4,0.4,0.4"], "mean must have 1 values for digits"),
        (["--set", "stored=kept"], "stored must be lambda or keep, not kept"),
        (["--set", "lambda_decay=1"], "lambda_decay must be true or false, not 1"),
        (["--set", "lambda_init=0.2"], "lambda_init must be an interval"),
        (["--set", "lr=0.1", "--set", "lr=0.2"], "lr is given twice"),
        (["--set", "epochs=3", "--epochs", "4"], "epochs is given twice"),
        (
            ["--set", "mean=" + ",".join(["0.123456"] * 30)],
            "the name of this checkpoint would have 306 bytes",
        ),
    ],
)
def test_mistakes_on_the_command_line_are_one_line(tmp_path, capsys, monkeypatch, options, message):
    monkeypatch.setattr(data, "load", None)  # nothing is read before that
    assert main(["train", "in_resnet14", "--out", str(tmp_path / "zoo"), "--quiet", *options]) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.slow
def test_the_mean_and_std_of_the_training_are_those_of_the_checkpoint(tmp_path, capsys):
    command = "train preact_resnet14 --epochs 1 --device cpu --quiet --set mean=0.5,std=0.25,lr=0.05 --out"
    assert main([*command.split(), str(tmp_path)]) == 0
    assert "epochs 1 instead of 60, lr 0.05 instead of 0.1" in capsys.readouterr().out
    (checkpoint,) = (c for c in zoo.checkpoints(tmp_path) if c.folder.parent == tmp_path)
    assert checkpoint.recipe == "digits_1epochs_lr_0p05_mean_0p5_std_0p25"
    cfg = checkpoint.config["pretrained_cfg"]
    assert (cfg["mean"], cfg["std"]) == ([0.5], [0.25])
    test = data.load("digits", "test")
    found = files.predictions(checkpoint.load(), test, cfg["mean"], cfg["std"], "cpu")
    right = 100 * (found == test.labels).mean()
    assert checkpoint.record["clean_accuracy"] == pytest.approx(right, abs=1e-3)


def edited(tmp_path, text):
    path = tmp_path / "mine.toml"
    path.write_text(text)
    return recipe.load(str(path), "in_resnet14", "digits")


def test_a_recipe_of_the_same_name_with_other_values_is_told_apart(tmp_path):
    recorded = {"name": "mine", "epochs": 6, "lr": 0.1, "steps": [0.5, 0.75], "momentum": 0.9}
    assert recipe.changed(edited(tmp_path, 'extends = "digits"\nepochs = 6'), recorded) == {}
    other = recipe.changed(edited(tmp_path, 'extends = "digits"\nepochs = 20\nsteps = [0.4, 0.8]'), recorded)
    assert recipe.describe(other) == "epochs 20 instead of 6, steps 0.4,0.8 instead of 0.5,0.75"


def test_a_checkpoint_of_an_edited_recipe_is_not_taken_for_the_new_one(tmp_path, capsys):
    edited(tmp_path, 'extends = "digits"\nepochs = 20')
    folder = tmp_path / "preact_resnet20.digits_mine_seed0"
    shutil.copytree(
        Path(zoo.__file__).parents[2] / "model_zoo" / "preact_resnet20.digits_digits_seed0", folder
    )
    argv = [
        "train",
        "--models",
        "preact_resnet20",
        "--recipe",
        str(tmp_path / "mine.toml"),
        "--out",
        str(tmp_path),
    ]
    assert main(argv) == 1
    told = capsys.readouterr().err
    assert "epochs 20 instead of 60" in told
    assert told.count("\n") == 1


@pytest.mark.parametrize("key", ["plugin", "flip", "data_fingerprint"])
def test_a_checkpoint_of_other_code_or_data_is_not_taken_for_one_of_these(
    tmp_path, command, monkeypatch, key
):
    bundled = Path(zoo.__file__).parents[2] / "model_zoo"
    folder = shutil.copytree(
        bundled / "plain_net20.digits_digits_seed0", tmp_path / "plain_net20.digits_digits_seed0"
    )
    if key == "data_fingerprint":
        record = json.loads((folder / "train.json").read_text())
        (folder / "train.json").write_text(json.dumps(record | {key: "0"}))
    else:
        monkeypatch.setattr(job, "code", lambda *_: {key: "another"})
        record = json.loads((folder / "train.json").read_text())
        (folder / "train.json").write_text(json.dumps(record | {key: "this"}))
    options = ("--models", "plain_net20", "--epochs", "60", "--seeds", "2", "--out", tmp_path, "--quiet")
    status, _, err = command("train", *options)
    assert status == 1
    assert err.count("\n") == 1
    assert f"was trained with another {key}" in err
    assert [path.name for path in tmp_path.iterdir()] == [folder.name]

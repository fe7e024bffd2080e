"""Networks that are trained side by side: each is what it would be alone, whatever becomes of the others."""

import signal
from dataclasses import replace

import pytest
import torch
from support.training import more_arguments, train_one

from robust_interp.cli.main import main
from robust_interp.core.errors import Stopped, UserError
from robust_interp.training import job, side_by_side, train
from robust_interp.training.job import Training
from robust_interp.training.recipe import Recipe
from robust_interp.training.trainer import TrainingError

pytestmark = pytest.mark.usefixtures("a_third")

RECIPE = Recipe("any", epochs=2, batch_size=150)
DROPOUT = {"drop_rate": 0.2}  # so that torch's own random state matters
KINDS = [
    ("in_resnet14", RECIPE, 0),
    ("in_resnet14", RECIPE, 1),
    ("preact_resnet14", replace(RECIPE, name="longer", epochs=3, batch_size=100), 0),
    ("in_resnet14", replace(RECIPE, name="bf16", precision="bf16"), 0),
]


def trainings():
    return [Training(*kind) for kind in KINDS]


def run(asked, out, **options):
    with more_arguments(DROPOUT):
        return train.train_together(asked, "digits", out, **options)


@pytest.fixture(scope="module")
def alone(tmp_path_factory, a_third):
    """The hash of each network's weights, trained alone."""
    out = tmp_path_factory.mktemp("alone")
    return [train_one(a, "digits", r, s, out, DROPOUT).sha256 for a, r, s in KINDS]


@pytest.mark.slow
def test_together_they_are_what_they_are_alone(tmp_path, alone):
    asked = trainings()
    made = run(asked, tmp_path)
    assert [made[what].sha256 for what in asked] == alone
    assert len(set(alone)) == len(alone)
    first, _, longer, _ = (made[what].record for what in asked)
    assert [line["epoch"] for line in first["curve"]] == [1, 2]
    assert [line["epoch"] for line in longer["curve"]] == [1, 2, 3]


@pytest.mark.slow
def test_one_that_fails_is_recorded_and_does_not_touch_the_others(tmp_path, alone, monkeypatch):
    asked, plain = trainings(), train.Trainer

    def spoilt(model, loader, recipe):
        if loader.generator.initial_seed() == asked[1].seed == 1:  # of no other
            model.fc.weight.data.fill_(torch.inf)
        return plain(model, loader, recipe)

    monkeypatch.setattr(job, "Trainer", spoilt)
    for reason in ("diverged: the loss of epoch 1 is nan", "failed before"):  # again, it is not tried again
        made = (
            run(asked, tmp_path / "zoo")
            if reason.startswith("diverged")
            else run(asked[1:2], tmp_path / "zoo")
        )
        assert isinstance(made[asked[1]], TrainingError)
        assert reason in str(made[asked[1]])
    made = {path.name: path for path in (tmp_path / "zoo").iterdir()}
    assert len(made) == 4
    assert "in_resnet14.digits_any_seed1.failed.json" in made


@pytest.mark.slow
@pytest.mark.parametrize(
    "step", [pytest.param(1, marks=pytest.mark.exhaustive), 5, 7]
)  # 3 steps an epoch; of the longer one 5: 7 is after the others' end
def test_stopped_together_they_go_on_bit_for_bit(tmp_path, alone, monkeypatch, step):
    monkeypatch.setattr(side_by_side, "REPORT_EVERY", 0)
    asked = trainings()

    def interrupt(what, status):
        if what is asked[2] and round(status.share * 15) == step and not status.line:
            signal.raise_signal(signal.SIGTERM)

    with pytest.raises(Stopped):
        run(asked, tmp_path, report=interrupt)
    assert len(list(tmp_path.glob(".*.resume.safetensors"))) == 4
    seen = []
    made = run(asked, tmp_path, report=lambda what, status: seen.append((what, status.share)))
    assert [made[what].sha256 for what in asked] == alone
    assert min(share for what, share in seen if what is asked[2]) > step / 15
    assert (asked[0] in dict(seen)) == (step < 6)


def test_two_that_would_write_the_same_checkpoint_are_refused(tmp_path):
    twice = [Training("in_resnet14", RECIPE, 0), Training("in_resnet14", replace(RECIPE, lr=0.2), 0)]
    with pytest.raises(UserError, match="two trainings would write the same checkpoint"):
        run(twice, tmp_path)
    assert list(tmp_path.iterdir()) == []


COMMAND = ["train", "in_resnet14", "--epochs", "1", "--seeds", "3", "--device", "cpu", "--out"]


@pytest.mark.slow
def test_the_command_trains_seeds_side_by_side(tmp_path, capsys):
    for at_once in ("1", "2"):
        assert main([*COMMAND, str(tmp_path / at_once), "--at-once", at_once]) == 0
        out, err = capsys.readouterr()
        assert out.count("wrote") == 3
        for seed in range(3):
            assert f"in_resnet14 seed {seed}  epoch 1/1" in err
    weights = "in_resnet14.digits_digits_1epochs_seed{}/model.safetensors"
    for seed in range(3):
        one, two = (tmp_path / at_once / weights.format(seed) for at_once in ("1", "2"))
        assert one.read_bytes() == two.read_bytes()


@pytest.mark.slow
def test_trainings_side_by_side_are_told_apart_by_what_they_differ_in(tmp_path, capsys):
    sweeping = ["sweep", "--models", "in_resnet14", "--lambda-init", "0,0.1", "--lambda-init", "0.3,0.4"]
    sweeping += ["--epochs", "1", "--seeds", "2", "--device", "cpu", "--at-once", "4", "--n", "1"]
    sweeping += ["--attacks", "none", "--corruptions", "none", "--out", str(tmp_path)]
    assert main(sweeping) == 0
    lines = [line for line in capsys.readouterr().err.splitlines() if "epoch 1/1" in line]
    names = {line.partition("  epoch ")[0].partition("%")[2] for line in lines}  # a slow run tells it often
    assert len(names) == 4


@pytest.mark.slow
def test_precision_is_in_the_name_and_tf32_is_for_cuda(tmp_path, capsys):
    assert main([*COMMAND, str(tmp_path), "--set", "precision=bf16", "--quiet"]) == 0
    assert (tmp_path / "in_resnet14.digits_digits_1epochs_bf16_seed2").is_dir()
    capsys.readouterr()
    assert main([*COMMAND, str(tmp_path / "tf32"), "--set", "precision=tf32"]) == 1
    assert capsys.readouterr().err.strip().endswith("precision tf32 needs a CUDA device: use float32 or bf16")
    assert main([*COMMAND, str(tmp_path), "--set", "precision=fp16"]) == 1
    assert "precision must be float32, tf32 or bf16, not fp16" in capsys.readouterr().err


@pytest.mark.slow
def test_autocast_outside_does_not_reach_a_float32_recipe(tmp_path, alone):
    architecture, recipe, seed = KINDS[0]
    with torch.autocast("cpu", torch.bfloat16):
        made = train_one(architecture, "digits", recipe, seed, tmp_path, DROPOUT)
    assert made.sha256 == alone[0]

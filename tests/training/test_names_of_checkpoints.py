"""A checkpoint's name is checked before the training."""

from dataclasses import replace

import pytest
from support.messages import one_line
from support.training import train_one

from robust_interp import data
from robust_interp.core.errors import UserError
from robust_interp.training import job, recipe

pytestmark = pytest.mark.usefixtures("elsewhere")


@pytest.mark.parametrize("there", [False, True], ids=["new", "folder there"])
@pytest.mark.parametrize("name", ["resnet18.a1_in1k", "in_resnet20.digits_digits_seed0"])
def test_a_name_that_no_folder_could_have_is_refused_before_the_training(
    command, tmp_path, monkeypatch, name, there
):
    monkeypatch.setattr(data, "load", None)  # a training would read its data first
    out = tmp_path / "zoo"
    if there:
        (out / f"{name}.digits_digits_seed0").mkdir(parents=True)
    status, _, err = command("train", name, "--out", out, "--quiet", "--device", "cpu")
    assert status != 0
    one_line(err, name)
    assert not [path for path in out.rglob("*") if path.is_file()]
    if not there:
        with pytest.raises(UserError) as refusal:
            train_one(name, "digits", recipe.load("digits", name, "digits"), 0, out)
        one_line(refusal.value, name)
        assert not [path for path in out.rglob("*") if path.is_file()]


def test_changes_of_a_recipe_may_fill_the_name_of_a_checkpoint(tmp_path):
    digits = recipe.load("digits", "in_resnet14", "digits")
    long = recipe.overridden(replace(digits, name="n" * 170), {"lr": 0.05})
    assert len(job.destination(job.Training("in_resnet14", long, 0), "digits", tmp_path).name) == 203


def test_a_name_too_long_for_a_file_system_is_refused_before_the_training(command, tmp_path, monkeypatch):
    monkeypatch.setattr(data, "load", None)
    digits = recipe.load("digits", "in_resnet14", "digits")
    with pytest.raises(UserError) as refusal:
        job.destination(job.Training("net" * 70, digits, 0), "digits", tmp_path)
    one_line(refusal.value, "the name of this checkpoint would have 230 bytes, and may have 215")
    status, _, err = command("train", "in_resnet14", "--out", tmp_path / ("z" * 300))
    assert status == 1
    one_line(err, "cannot write into", "File name too long")
    assert not any(tmp_path.iterdir())

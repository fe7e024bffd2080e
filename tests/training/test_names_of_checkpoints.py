"""A checkpoint's name is checked before the training."""

import pytest
from support.messages import one_line

from robust_interp import data
from robust_interp.core.errors import UserError
from robust_interp.training import recipe, train

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
            train.train(name, "digits", recipe.load("digits", name, "digits"), 0, out)
        one_line(refusal.value, name)
        assert not [path for path in out.rglob("*") if path.is_file()]

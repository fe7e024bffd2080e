"""Options of the wrong kind are refused in one line, before anything is written."""

from pathlib import Path

import numpy as np
import pytest
from support.messages import one_line
from support.one_pixel import IMAGES, LABELS, Net, evaluate

from robust_interp import zoo
from robust_interp.benchmark import forms
from robust_interp.core.errors import UserError

# The networks here are untrained or built to mislead, which evaluate remarks on.
pytestmark = [pytest.mark.usefixtures("elsewhere"), pytest.mark.filterwarnings("ignore::UserWarning")]

LAMBDA = lambda images: images  # noqa: E731


@pytest.mark.parametrize(
    ("models", "options", "parts"),
    [
        (None, {"seed": 2**64}, ["seed", 2**64]),
        (None, {"seed": True}, ["seed", "True"]),
        (None, {"seed": 1.5}, ["seed", "1.5"]),
        (None, {"n": True}, ["n must be", "True"]),
        (None, {"n": 2.5}, ["n must be", "2.5"]),
        (None, {"n": "ten"}, ["n must be", "ten"]),
        (None, {"eps": "ten"}, ["'ten' is not a list of numbers"]),
        (None, {"eps": (True,)}, ["eps", "True"]),
        (None, {"batch_size": True}, ["batch size", "True"]),
        (None, {"batch_size": 1.5}, ["batch size", "1.5"]),
        ({1: Net()}, {}, ["models must be names"]),
        ({"net": LAMBDA}, {}, ["models must be names"]),
        (LAMBDA, {}, ["models must be names", "function"]),
        ([Net()], {}, ["models must be names"]),
        (None, {"checkpoint": "weights.pt"}, ["checkpoint cannot be used with model objects"]),
        (None, {"seeds": 3}, ["seeds cannot be used with model objects"]),
        (None, {"zoo": "model_zoo"}, ["zoo cannot be used with model objects"]),
        ("in_resnet14", {"mean": (0.5,), "std": (0.5,)}, ["mean cannot be used with models from the zoo"]),
        ("in_resnet14", {"mean": np.full(3, 0.5)}, ["mean cannot be used with models from the zoo"]),
        ("in_resnet14", {"std": (0.5,)}, ["std cannot be used with models from the zoo"]),
    ],
)
def test_an_option_of_the_wrong_kind_is_one_line_and_writes_nothing(
    tmp_path, tiny_zoo, models, options, parts
):
    if models == "in_resnet14":
        dataset, options = "digits", options | {"zoo": tiny_zoo, "n": 10}
    else:
        dataset, models = (IMAGES, LABELS), Net() if models is None else models
    with pytest.raises(UserError) as refusal:
        evaluate(models, dataset, out=tmp_path / "results", **options)
    one_line(refusal.value, *parts)
    assert not (tmp_path / "results").exists()


def test_an_unknown_option_is_named_with_the_function(tmp_path):
    with pytest.raises(TypeError) as refusal:
        evaluate(Net(), epsilon=(0.1,), out=tmp_path / "results")
    one_line(refusal.value, "evaluate()", "'epsilon'")
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("name", ["two\nlines", "carriage\rreturn", "\x1b[2J", "", " "], ids=repr)
def test_a_name_that_is_not_one_line_of_text_is_refused(tmp_path, name):
    with pytest.raises(UserError) as refusal:
        evaluate({name: Net()}, out=tmp_path / "results")
    one_line(refusal.value, "name", repr(name))
    assert not (tmp_path / "results").exists()


def test_commas_in_the_path_of_what_is_there_separate_no_names():
    for folder in ("a,b", "c, d,e", "f:g,h"):
        Path(folder, "net").mkdir(parents=True)
    assert forms.name_list("in_resnet20, a,b/net ,c, d,e/net,timm:x(p=1,q=2)") == (
        *("in_resnet20", "a,b/net", "c, d,e/net", "timm:x(p=1,q=2)"),
    )
    assert forms.name_list("f:g,h/net") == ("f:g,h/net",)
    assert forms.name_list("a,b/no,,") == ("a", "b/no")  # not there
    assert forms.NAMES.from_file(["a,b/net", "in_resnet20"]) == ("a,b/net", "in_resnet20")


def test_a_tilde_is_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    assert forms.named_path("~/results") == tmp_path / "home" / "results"
    evaluate(Net(), out="~/results")
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    (tmp_path / "home" / "zoo").mkdir()
    assert zoo.checkpoints("~/zoo", only=True) == []  # it is there

"""Checkpoints whose description is wrong are named in one line, and the others stay usable."""

import json

import pytest
from support.messages import one_line

pytestmark = pytest.mark.usefixtures("elsewhere")

SMALL = "--n 10 --attacks none --corruptions none --device cpu --quiet"


def spoilt(file, **values):
    """Replaces values in a description; ``pretrained_cfg`` is changed, not replaced, by a dict."""

    def spoil(folder):
        content = json.loads((folder / file).read_text())
        for key, value in values.items():
            inner = key == "pretrained_cfg" and isinstance(value, dict)
            content[key] = content[key] | value if inner else value
        (folder / file).write_text(json.dumps(content))

    return spoil


def cut(folder):
    content = (folder / "train.json").read_text()
    (folder / "train.json").write_text(content[: len(content) // 2])


SPOILT = {
    "clean_accuracy a text": spoilt("train.json", clean_accuracy="x"),
    "clean_accuracy null": spoilt("train.json", clean_accuracy=None),
    "parameters null": spoilt("train.json", parameters=None),
    "lambda_init a text": spoilt("train.json", lambda_init="x"),
    "lambda_init of one": spoilt("train.json", lambda_init=[0.2]),
    "weights_sha256 a number": spoilt("train.json", weights_sha256=5),
    "a truncated train.json": cut,
    "model_args a list": spoilt("config.json", model_args=[]),
    "model_args a text": spoilt("config.json", model_args="x"),
    "model_args twice": spoilt("config.json", model_args={"num_classes": 10}),
    "model_args unknown": spoilt("config.json", model_args={"no_such_argument": 1}),
    "architecture null": spoilt("config.json", architecture=None),
    "pretrained_cfg a list": spoilt("config.json", pretrained_cfg=[]),
    "std a text": spoilt("config.json", pretrained_cfg={"std": "x"}),
    "std a number": spoilt("config.json", pretrained_cfg={"std": 0}),
    "std zero": spoilt("config.json", pretrained_cfg={"std": [0]}),
    "std of none": spoilt("config.json", pretrained_cfg={"std": []}),
    "std of texts": spoilt("config.json", pretrained_cfg={"std": ["0.5"]}),
    "mean null": spoilt("config.json", pretrained_cfg={"mean": None}),
    "mean nan": spoilt("config.json", pretrained_cfg={"mean": [float("nan")]}),
    "mean of three": spoilt("config.json", pretrained_cfg={"mean": [0.5] * 3, "std": [0.5] * 3}),
    "input_size of none": spoilt("config.json", pretrained_cfg={"input_size": []}),
    "num_classes a text": spoilt("config.json", pretrained_cfg={"num_classes": "ten"}),
}
BROKEN = "in_resnet14.digits_none_seed0"


@pytest.mark.parametrize("fault", SPOILT)
def test_a_description_of_the_wrong_types_is_one_line_that_names_the_checkpoint(
    command, own_zoo, tmp_path, fault
):
    SPOILT[fault](own_zoo / BROKEN)
    status, out, err = command("bench", "--models", "in_resnet14", "--zoo", own_zoo, *SMALL.split())
    assert (status, out) == (1, "")
    one_line(err, BROKEN)
    assert not list((tmp_path / "results").glob("*.csv"))

    _, out, err = command("models", "--zoo", own_zoo)
    assert "in_resnet14.digits_none_seed1 " in out
    assert "preact_resnet14.digits_none_seed0 " in out
    assert BROKEN in out + err

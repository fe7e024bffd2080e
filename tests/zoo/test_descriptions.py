"""Checkpoints whose description is wrong are named in one line, and the others stay usable."""

import hashlib
import json
import pickle
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from support.messages import one_line
from support.spoilt_json import VALUES, places
from support.spoilt_json import spoilt as spoilt_json

from robust_interp import data, evaluate, zoo
from robust_interp.benchmark import workers
from robust_interp.classifiers.resolve import ResolveOptions
from robust_interp.classifiers.selection import Selection
from robust_interp.classifiers.zoo_names import from_zoo
from robust_interp.core.errors import UserError
from robust_interp.core.normalize import Normalize
from robust_interp.report.provenance import coefficients

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


@pytest.mark.slow
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


def whole(kind, folder):
    """A description with every field that the trainer writes."""
    content = json.loads((folder / f"{kind}.json").read_text())
    if kind == "train":
        blocks = {"stages.0.1": 0.2}
        line = {"epoch": 1, "lr": 0.1, "loss": 1.0, "lambda": blocks}
        content |= {"recipe": {"epochs": 2}, "lambda": blocks, "curve": [line]}
    return content


@pytest.mark.parametrize("fault", VALUES)
@pytest.mark.parametrize("kind", ["train", "config"])
def test_any_value_of_a_description_may_be_anything(own_zoo, kind, fault):
    folder = own_zoo / BROKEN
    content = whole(kind, folder)
    for at in places(content):
        (folder / f"{kind}.json").write_text(spoilt_json(content, at, VALUES[fault]))
        checkpoint = zoo.Checkpoint.at(folder)
        try:
            record, config = checkpoint.record, checkpoint.config
        except UserError as error:
            message = str(error)
            assert message.isprintable(), at
            assert BROKEN in message, at
            assert len(message) < 600, at
            continue
        # What was taken can be used as it is used everywhere.
        zoo.interval_text(record["lambda_init"])
        json.dumps([record, config])
        f"{record['parameters'] / 1e6} {record['clean_accuracy']:.2f} {record['clean_n']}"
        coefficients([checkpoint], [record["weights_sha256"]])
        Normalize(config["pretrained_cfg"]["mean"], config["pretrained_cfg"]["std"])


@pytest.mark.parametrize("fault", ["a truncated train.json", "mean nan", "parameters null"])
def test_a_broken_neighbour_is_left_out_with_a_note(own_zoo, fault):
    SPOILT[fault](own_zoo / BROKEN)
    candidates = zoo.checkpoints(own_zoo, "digits", only=True)
    found = from_zoo(["all"], candidates, None, data.load("digits"))
    assert sum(map(len, found)) == 2
    (note,) = [note for group in found for target in group for note in target.left_out]
    assert note.startswith(f"broken checkpoint {BROKEN}: ")
    assert note.endswith("; it is left out")
    for named in (["in_resnet14"], ["in_resnet14@none"], [BROKEN, "all"]):
        with pytest.raises(UserError, match=BROKEN):
            from_zoo(named, candidates, None, data.load("digits"))


def test_a_broken_neighbour_is_left_out_for_ones_own_images_too(own_zoo):
    (own_zoo / "in_resnet14.cifar100_quick_seed0").mkdir()  # as of a copy that was interrupted
    found = zoo.checkpoints_that_fit(10, 1, "mine", own_zoo, only=True)
    assert [(c.architecture, c.seed) for c in found] == [
        *(("in_resnet14", 0), ("in_resnet14", 1), ("preact_resnet14", 0))
    ]
    with pytest.raises(UserError, match=r"\(they are for 10 classes and 1 channels\)"):
        zoo.checkpoints_that_fit(3, 1, "mine", own_zoo, only=True)


def test_a_note_of_a_missing_seed_leaves_the_others(tiny_zoo):
    split = data.load("digits")
    mine = data.from_arrays(split.images[:20], split.labels[:20], 10)
    found = from_zoo(["*_resnet14"], zoo.checkpoints(tiny_zoo, "digits", only=True), (0, 1), mine)
    first, *others = next(group for group in found if group[0].card.model == "preact_resnet14")[0].notes
    assert "was trained on digits, not on" in first
    assert "has no train seed 1" in "".join(others)


def others_weights(folder):
    """The weights of another network, with the hash that is theirs."""
    weights = (folder.parent / "preact_resnet14.digits_none_seed0" / zoo.WEIGHTS).read_bytes()
    (folder / zoo.WEIGHTS).write_bytes(weights)
    spoilt("train.json", weights_sha256=hashlib.sha256(weights).hexdigest())(folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "spoil", [others_weights, SPOILT["model_args unknown"]], ids=["weights", "arguments"]
)
def test_what_is_found_broken_when_it_is_loaded_is_left_out_too(own_zoo, command, spoil):
    spoil(own_zoo / BROKEN)
    small = [*SMALL.split(), "--zoo", str(own_zoo), "--only-zoo"]
    status, out, _ = command("bench", "--models", "in_res*,preact*", "--dry-run", *small)
    assert status == 0
    assert "2 cells to measure" in out
    status, _, err = command("bench", "--models", "all", *small)
    assert status == 1  # all else is measured
    is_left_out(err)
    table = pd.read_csv("results/results.csv")
    # Of two seeds one is left, which makes no ensemble.
    assert table[["train_seed", "members"]].values.tolist() == [[1, 1], [0, 1]]
    status, _, err = command("bench", "--models", "in_resnet14", *small)
    assert status == 1
    assert err.count("\n") == 1
    with pytest.warns(UserWarning, match="it is left out"):
        evaluate(zoo=own_zoo, only_zoo=True, n=4, attacks="none", corruptions="none")


def is_left_out(err):
    (line,) = [line for line in err.splitlines() if "it is left out" in line]
    assert line.startswith("warning: ")
    assert BROKEN in line


@pytest.mark.slow
def test_what_is_broken_is_left_out_of_an_audit_and_of_a_verification_too(own_zoo, command):
    others_weights(own_zoo / BROKEN)
    zoos = ["--zoo", str(own_zoo), "--only-zoo", "--device", "cpu", "--quiet", "--models", "in_res*"]
    few = [
        "--n",
        "2",
        "--eps",
        "16",
        "--attack",
        "pgd(steps=1)",
        "--strongest",
        "none",
        "--black-box",
        "none",
    ]
    status, _, err = command("audit", *few, *zoos)
    assert status in (1, 3)  # untrained networks may fail a check
    is_left_out(err)
    audited = pd.read_csv("results/audit.csv")[["model", "train_seed"]].drop_duplicates()
    assert audited.values.tolist() == [["in_resnet14", 1]]

    digits = data.load("digits")
    np.savez("adv.npz", images=digits.pixels(0, 2))
    status, _, err = command("verify", "adv.npz", "--eps", "8", "--out", "results", *zoos)
    assert status == 1
    is_left_out(err)
    assert pd.read_csv("results/external.csv")["train_seed"].tolist() == [1]


class Here:
    """Stands in for a pool of one worker: what is sent to it is used in this process."""

    has_capacity, alive = True, (1, 1)

    def __init__(self, workers, make, arguments, name, log):
        self.do, self.tasks = make(*pickle.loads(pickle.dumps(arguments))), []

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def wait(self):
        pass

    def submit(self, task):
        self.tasks.append(task)

    @property
    def is_busy(self):
        return bool(self.tasks)

    def next_result(self):
        task = self.tasks.pop()
        return task, self.do(task)


@pytest.mark.slow
def test_workers_leave_out_what_one_process_does(own_zoo, command, monkeypatch):
    others_weights(own_zoo / BROKEN)
    monkeypatch.setattr(workers, "cluster", lambda asked: nullcontext(replace(asked, gpus=0, threads=1)))
    monkeypatch.setattr(workers, "WorkerPool", Here)
    asked = [*SMALL.split(), "--zoo", str(own_zoo), "--only-zoo"]
    found = [command("bench", *asked, *more) for more in (["--workers", "1"], ["--out", "alone"])]
    assert [status for status, *_ in found] == [1, 1]
    is_left_out(found[0][2])
    assert Path("results/leaderboard.csv").read_bytes() == Path("alone/leaderboard.csv").read_bytes()
    status, _, err = command("bench", "--models", "in_resnet14", "--workers", "1", *asked)
    assert status == 1
    one_line(err, BROKEN)


def test_what_failed_in_an_earlier_pass_stays_left_out(own_zoo):
    asked = ("all",), ResolveOptions(zoo=str(own_zoo), only_zoo=True, ensembles=False), data.load("digits")
    selection = Selection(*asked)
    failing = [target.key for target in selection.targets if target.card.model == "in_resnet14"]
    reasons = dict(zip(failing, ["the first", "the second"], strict=True))
    passes = []

    def needed(targets):  # the second is not loaded in the first pass
        passes.append([target.card.model for target in targets])
        return [target for target in targets if len(passes) > 1 or target.key != failing[1]]

    def load(target):
        if target.key in reasons:
            raise UserError(reasons[target.key])

    selection.load(load, needed=needed)
    assert passes == [
        ["in_resnet14", "in_resnet14", "preact_resnet14"],
        ["in_resnet14", "preact_resnet14"],
        ["preact_resnet14"],
    ]
    assert list(selection.failed) == failing
    assert selection.targets[0].left_out == ("the first; it is left out", "the second; it is left out")
    assert selection.is_incomplete


def test_if_no_checkpoint_can_be_loaded_the_first_reasons_are_told(own_zoo, command):
    for folder in own_zoo.iterdir():
        SPOILT["model_args unknown"](folder)
    status, _, err = command("bench", *SMALL.split(), "--zoo", str(own_zoo), "--only-zoo")
    assert status == 1
    assert err.count("\n") == 1
    assert "no_such_argument" in err


def test_a_seed_that_no_table_has_room_for_makes_no_name_of_a_checkpoint(tmp_path):
    assert zoo.Checkpoint.at(tmp_path / f"net.digits_any_seed{2**63 - 1}").seed == 2**63 - 1
    for seed in (2**63, 10**40):
        assert zoo.Checkpoint.at(tmp_path / f"net.digits_any_seed{seed}") is None

"""The curve as TensorBoard events, read back with TensorBoard's own reader."""

import csv
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


@pytest.mark.slow
def test_every_epoch_of_the_curve_is_there_and_the_same(command, tmp_path):
    status, _, _ = command(
        *("train", "in_resnet14", "--epochs", "2", "--quiet", "--out", tmp_path / "zoo"),
        *("--tensorboard", tmp_path / "events"),
    )
    assert status == 0
    name = "in_resnet14.digits_digits_2epochs_seed0"
    events = EventAccumulator(str(tmp_path / "events" / name)).Reload()
    with (tmp_path / "zoo" / name / "curve.csv").open() as file:
        curve = list(csv.DictReader(file))
    assert len(curve) == 2
    for column in ("loss", "accuracy", "lr", "images_per_second"):
        written = [(event.step, event.value) for event in events.Scalars(column)]
        assert written == [(int(line["epoch"]), pytest.approx(float(line[column]))) for line in curve]
    blocks = [column.removeprefix("lambda.") for column in curve[0] if column.startswith("lambda.")]
    assert len(blocks) == 3  # in_resnet14 carries three
    for block in blocks:
        values = [event.value for event in events.Scalars(f"lambda/{block}")]
        assert values == pytest.approx([float(line[f"lambda.{block}"]) for line in curve])


def test_without_tensorboard_one_line_says_how_to_get_it(command, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)  # makes its import fail
    status, _, errors = command(
        "train", "in_resnet14", "--epochs", "1", "--out", tmp_path, "--tensorboard", tmp_path / "t"
    )
    assert status == 1
    assert "[tensorboard]" in errors
    assert "Traceback" not in errors

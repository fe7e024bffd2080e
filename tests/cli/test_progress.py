"""What a training shows: a bar on a terminal, a line for each epoch elsewhere, nothing with --quiet."""

import io
import re

import pytest
from rich.console import Console

from robust_interp.cli.main import main
from robust_interp.cli.progress import duration, training_reporter
from robust_interp.training.trainer import Status

HALF = Status(2, 4, 1.25, 61.5, 0.01, 812.3, 0.375, 610.0, line=None)
END = Status(2, 4, 1.2, 62.5, 0.01, 800.0, 0.5, 500.0, line={"epoch": 2})


def shown(quiet=False, labels=("in_resnet20 seed 1",), **console):
    file = io.StringIO()
    with training_reporter(Console(file=file, width=200, **console), quiet) as report:
        for label in labels:
            report(label, HALF)
            report(label, END)
    return file.getvalue()


def test_elsewhere_each_epoch_has_a_line():
    assert shown() == (
        " 50%  in_resnet20 seed 1  epoch 2/4  loss 1.2000  accuracy 62.50 %  lr 0.01  800 images/s"
        "  8 min left\n"
    )


def test_on_a_terminal_a_bar_has_the_same():
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", shown(force_terminal=True))
    for part in (
        "in_resnet20 seed 1  epoch 2/4",
        "50%",
        "loss 1.2000",
        "accuracy 62.50 %",
        "lr 0.01",
        "left",
    ):
        assert part in text


@pytest.mark.parametrize("console", [{}, {"force_terminal": True}])
def test_quiet_shows_nothing(console):
    assert shown(quiet=True, **console) == ""


def test_times_are_in_the_unit_that_suits_them():
    assert [duration(seconds) for seconds in (0.2, 99, 610, 21_000)] == ["0 s", "99 s", "10 min", "5.8 h"]


def test_the_command_reports_on_stderr(tmp_path, capsys):
    options = ["--epochs", "2", "--device", "cpu", "--set", "batch_size=1347", "--out", str(tmp_path)]
    assert main(["train", "preact_resnet14", *options]) == 0
    out, err = capsys.readouterr()
    lines = err.splitlines()
    assert [line.split("  ")[:3] for line in (lines[0].strip(), lines[-1])] == [
        ["50%", "preact_resnet14 seed 0", "epoch 1/2"],
        ["100%", "preact_resnet14 seed 0", "epoch 2/2"],
    ]
    assert lines[-1].endswith("0 s left")
    assert out.splitlines()[0] == (
        "recipe digits_2epochs_batch_size_1347: epochs 2 instead of 60, batch_size 1347 instead of 128"
    )

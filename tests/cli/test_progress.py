"""What a training shows: a bar on a terminal, a line for each epoch elsewhere, nothing with --quiet."""

import io
import math
import re

import pytest
from rich.console import Console

from robust_interp.cli.main import main
from robust_interp.cli.progress import TimeLeft, bar_line, duration, reporter, training_reporter
from robust_interp.store.cells import CLEAN, Cell, ModelCard, Perturbation
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
    assert re.search(r"took \d+ s$", lines[-1])
    assert out.splitlines()[0] == (
        "recipe digits_2epochs_batch_size_1347: epochs 2 instead of 60, batch_size 1347 instead of 128"
    )


# --- the time that is left ----------------------------------------------------------------------------

SMALL, LARGE = (ModelCard(name, {}, params_m=size) for name, size in (("small", 1.0), ("large", 3.0)))
PGD = Perturbation("attack", "pgd", "pgd_2", {"eps": 2 / 255})
PASSES = {"clean": 1, "pgd": 10}


def cell(card, perturbation=CLEAN):
    return Cell(card, "digits", "0", perturbation, {})


def cost(of):
    return PASSES[of.perturbation.name]


def test_nothing_is_known_before_anything_was_done():
    time_left = TimeLeft([(cell(SMALL), 5)], cost)
    assert time_left.seconds is None
    assert time_left.share == 0


def test_the_time_left_is_that_of_the_work_left_at_the_speed_seen():
    # 100 samples of 1 unit, and 100 of 10 units; 50 of the first took 2 s: 0.04 s a unit.
    time_left = TimeLeft([(cell(SMALL), 100), (cell(SMALL, PGD), 100)], cost)
    time_left.finish(cell(SMALL), 50, 2.0)
    assert time_left.seconds == pytest.approx(0.04 * (50 + 1000))
    assert time_left.share == pytest.approx(50 / 1100)
    # An attack has a speed of its own once it was met: 50 samples of 10 units in 10 s are 0.02 s a unit.
    time_left.finish(cell(SMALL, PGD), 50, 10.0)
    assert time_left.seconds == pytest.approx(0.04 * 50 + 0.02 * 500)


def test_a_model_that_was_not_met_is_taken_to_be_as_fast_for_its_size():
    time_left = TimeLeft([(cell(SMALL), 10), (cell(LARGE), 10)], cost)
    time_left.finish(cell(SMALL), 10, 1.0)  # 10 units: 0.1 s a unit; the other has three units a sample
    assert time_left.seconds == pytest.approx(0.1 * 30)


def test_one_slow_batch_does_not_turn_the_estimate_over():
    time_left = TimeLeft([(cell(SMALL), 1000)], cost)
    for _ in range(5):
        time_left.finish(cell(SMALL), 100, 1.0)
    before = time_left.seconds
    time_left.finish(cell(SMALL), 100, 5.0)  # five times as slow, once
    # Of a mean over 20 s it moves the share 1 - exp(-5 / 20), from 1 s towards 5 s a hundred.
    assert time_left.seconds == pytest.approx(4 * (1 + 4 * (1 - math.exp(-0.25))))
    assert time_left.seconds < 2 * before


def test_what_a_store_had_already_is_no_work():
    assert TimeLeft([], cost).share == 1


# --- the line on a terminal ---------------------------------------------------------------------------


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_a_line_fits_and_begins_with_name_share_and_time_left(width):
    line = bar_line("lambda_in_resnet20 seed 2 pgd_32", 0.421, 754, 30, "123 images/s", width)
    assert len(line) <= max(width, 12 + len("   42%  13 min left"))
    name = line.split()[0]
    assert name.startswith("lambda_in_r")
    assert " 42%  13 min left" in line
    assert ("123 images/s" in line) == (width >= 80)


def test_a_line_says_what_it_took_at_the_end_and_that_it_does_not_know_yet_at_the_start():
    assert bar_line("net", 1.0, 0.0, 130, "", 30) == "net  100%  took 2 min"
    assert bar_line("net", 0.0, math.nan, 1, "", 30) == "net    0%  estimating"


def test_the_bar_takes_the_room_that_is_left():
    line = bar_line("net", 0.5, 10, 5, "", 40)
    bar = line.rpartition("  ")[2]
    assert (bar.count("━"), len(bar), len(line)) == (9, 18, 40)  # 20 for the rest, 2 between


def test_a_benchmark_moves_within_a_batch_and_ends_with_what_it_took():
    file = io.StringIO()
    work = [(cell(SMALL, PGD), 10)]
    with reporter(Console(file=file, width=80, force_terminal=True), work, cost, quiet=False) as report:
        report.step(cell(SMALL, PGD), 5.0)  # half of the 10 samples
        half = file.getvalue()
        report(cell(SMALL, PGD), 10)
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", file.getvalue())
    assert "100%  took 0 s" in text
    assert half != file.getvalue()


def test_an_attack_tells_of_its_steps_what_the_plan_says_it_costs(digits_classifier, digits_test):
    """FGSM and PGD take as many passes as they are planned with, but for the last one, which judges."""
    from robust_interp import attacks

    images, labels = digits_test[0][:5], digits_test[1][:5]
    for spec in ("fgsm", "pgd(steps=4)"):
        (perturbation,), told = attacks.resolve(spec, [8 / 255], {}, 0), []
        attacks.AttackRunner(perturbation, digits_classifier, told.append)(images, labels, range(5))
        assert sum(told) == 5 * (attacks.passes(perturbation) - 1)

"""Answers from stored predictions on the command line: classes and curves, without torch."""

import csv
import json
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from rich.console import Console
from support.hand_made import attack, card, first, run
from support.messages import one_line

from robust_interp.cli import console
from robust_interp.cli.console import print_classes
from robust_interp.figures.origin import read
from robust_interp.report import page
from robust_interp.results.classes import by_class
from robust_interp.results.folders import runs_in
from robust_interp.store import Store
from robust_interp.store.cells import CLEAN


@pytest.fixture
def folder(tmp_path):
    with Store(tmp_path / "results") as store:
        lines = [(card("net", seed), CLEAN, first(9)) for seed in (0, 1)]
        lines += [
            (card("net", seed), attack("pgd", eps), first(8 - eps)) for seed in (0, 1) for eps in (2, 4)
        ]
        lines += [(card("other"), CLEAN, first(7)), (card("other"), attack("fgsm", 2), first(2))]
        run(store, lines)
    return tmp_path / "results"


@pytest.mark.slow
def test_classes_as_a_table_and_a_picture(command, folder, tmp_path):
    status, out, err = command(
        *("leaderboard", "classes", folder, "--models", "net", "--column", "pgd_2", "-o", tmp_path / "c.png")
    )
    assert status == 0, err
    lines = out.splitlines()
    assert lines[0] == "net: digits, pgd_2, n = 10, protocol final, mean over 2 measurements; in %"
    assert lines[2].split()[:3] == ["0", "1", "100.0"]
    assert len(lines) == 12
    assert {path.suffix for path in tmp_path.glob("c.*")} == {".png", ".svg", ".csv"}


@pytest.mark.parametrize(
    ("column", "count", "why"),
    [
        ("worst_2", 10, "under several attacks an image has several predictions"),
        ("fgsm_2", 2001, "there are more than 2,000 classes"),
        ("worst_2", 2001, "there are more than 2,000 classes"),
        ("fgsm_2", 10, None),
    ],
)
def test_why_there_is_no_confusion_matrix_is_told(tmp_path, capsys, column, count, why):
    with Store(tmp_path) as store:
        run(store, [(card(), CLEAN, first(9)), (card(), attack("fgsm", 2), first(5))], "worst")
    table = by_class(runs_in([tmp_path])[0], column, count)
    assert table.filter(like="predicted_").empty == (why is not None)
    print_classes(table)
    told = " ".join(capsys.readouterr().out.split())
    assert told.endswith(f"no confusion matrix: {why}") if why else "no confusion matrix" not in told


@pytest.mark.parametrize(("count", "stands"), [(10, 2), (20, 3), (21, 1)])
def test_a_confusion_matrix_of_few_classes_is_whole_on_a_narrow_terminal(
    tmp_path, capsys, monkeypatch, count, stands
):
    """Each table has a line for label 9; 21 classes and no prediction are too many for several tables."""
    with Store(tmp_path) as store:
        run(store, [(card(), CLEAN, first(9))])
    table = by_class(runs_in([tmp_path])[0], "clean", count)
    made = Console(width=70, force_terminal=True, color_system=None, markup=False)
    monkeypatch.setattr(console, "console", lambda: made)
    print_classes(table)
    out = capsys.readouterr().out
    assert sum(line.split()[:1] == ["9"] for line in out.splitlines()) == stands
    assert ("lack of space" in out) is (stands == 1)
    heads = " ".join(line for line in out.splitlines() if line.startswith("label"))
    if stands > 1:
        assert re.findall(r"→ (\d+)", heads) == [str(label) for label in range(count)]


def test_classes_as_csv_and_json(command, folder):
    asked = ("leaderboard", "classes", folder, "--models", "oth*", "--column", "fgsm_2", "--format")
    _, out, _ = command(*asked, "csv")
    rows = list(csv.DictReader(out.splitlines()))
    assert [row["accuracy"] for row in rows] == ["100.00"] * 2 + ["0.00"] * 8
    _, out, _ = command(*asked, "json")
    assert [row["predicted_3"] for row in json.loads(out)][:4] == [0, 0, 1, 0]


@pytest.mark.slow
def test_a_curve_has_its_numbers_beside_it(command, folder, tmp_path):
    status, out, err = command("plot", "curve", folder, "--attack", "pgd", "-o", tmp_path / "figures")
    assert status == 0, err
    with (tmp_path / "figures" / "curve.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["entry"], row["series"], row["x"], row["accuracy"]) for row in rows] == [
        *(("net", "clean", "0", "90"), ("net", "pgd", "2", "60"), ("net", "pgd", "4", "40")),
    ]
    assert read(tmp_path / "figures" / "curve.svg").n == 10
    assert "| net | pgd | 2.00 |" in out


def test_a_figure_names_the_weights_that_are_drawn_and_no_others(command, folder, tmp_path):
    """`net` has pgd, two seeds of it, and `other` has fgsm; both are in the same run, with clean images."""
    drawn = {
        "pgd_2": ("classes", ["net seed 0", "net seed 1"]),
        "fgsm_2": ("classes", ["other seed 0"]),
        "clean": ("classes", ["net seed 0", "net seed 1", "other seed 0"]),
        "pgd": ("curve", ["net seed 0", "net seed 1"]),
        "fgsm": ("curve", ["other seed 0"]),
        "?gd,fgsm": ("curve", ["net seed 0", "net seed 1", "other seed 0"]),
    }
    for name, (kind, models) in drawn.items():
        place = tmp_path / f"{kind}_{len(name)}{name[0]}.svg"
        by_kind = {
            "classes": ("leaderboard", "classes", folder, "--column"),
            "curve": ("plot", "curve", folder, "--attack"),
        }
        assert command(*by_kind[kind], name, "-o", place)[0] == 0
        assert list(read(place).checkpoints) == models


def test_the_caption_of_a_figure_of_classes_names_the_column(command, tmp_path):
    with Store(tmp_path / "results") as store:
        lines = [(card(), attack("pgd", eps), first(5)) for eps in (0.5, 2, 4)]
        run(store, [(card(), CLEAN, first(9)), *lines])
    columns = ("clean", "pgd_0.5", "pgd_2", "pgd_4")
    for column in columns:
        asked = ("leaderboard", "classes", tmp_path / "results", "--column", column)
        assert command(*asked, "-o", tmp_path / "figures")[0] == 0
    page.write([tmp_path / "results"], tmp_path / "report", figures=tmp_path / "figures")
    text = (tmp_path / "report" / "index.html").read_text(encoding="utf-8")
    for column in columns:
        shows = f"Accuracy ({column}) of each class with its 95 % interval, and how often its images are "
        shows += "predicted as each class"
        assert text.count(f"<figcaption>{shows}. Data set digits") == 1
        assert f'alt="{shows}"' in text


@pytest.mark.slow
def test_a_curve_says_whose_older_weights_it_leaves_out(command, folder, tmp_path):
    again = replace(card("net", 1), identity={"weights": "trained again"})
    with Store(folder) as store:
        run(store, [(again, CLEAN, first(9)), (again, attack("pgd", 2), first(5))])
    _, out, _ = command("plot", "curve", folder, "-o", tmp_path / "figures")
    assert "only the newest weights are drawn: net seed 1" in out


@pytest.mark.parametrize(
    ("asked", "parts"),
    [
        (("plot", "curve", "--attack", "square"), ["unknown attack 'square'", "pgd"]),
        (("plot", "curve", "--models", "nix"), ["unknown model 'nix'", "net"]),
        (("leaderboard", "classes", "--column", "pgd_3"), ["unknown column 'pgd_3'", "pgd_2"]),
    ],
)
def test_what_is_not_there_is_one_line(command, folder, asked, parts):
    status, _, err = command(*asked, folder)
    assert status == 1
    one_line(err, *parts)


def test_clean_images_alone_make_no_curve(command, tmp_path):
    with Store(tmp_path / "r") as store:
        run(store, [(card(), CLEAN, first(9))])
    status, _, err = command("plot", "curve", tmp_path / "r")
    assert (status, err.count("\n")) == (1, 1)
    assert "there is no curve" in err


@pytest.mark.slow
def test_neither_needs_torch(folder, tmp_path):
    program = f"""
import sys
from robust_interp.cli.main import main
assert main(["leaderboard", "classes", {str(folder)!r}, "--column", "pgd_2"]) == 0
assert main(["plot", "curve", {str(folder)!r}, "-o", {str(tmp_path / "f")!r}]) == 0
sys.exit("torch" in sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr

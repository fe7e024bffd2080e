"""The table of an audit: what is wrong first, its cause beside it, in any terminal."""

import io

import pytest
from rich.console import Console

from robust_interp.audit.checks import AuditedModel, Finding
from robust_interp.cli import audit_table
from robust_interp.store.cells import ModelCard, labels

FINDINGS = [
    Finding("deterministic", "pass", "8 images: same predictions twice", 8),
    Finding("gradients", "pass", "pgd: 0 samples without a gradient", 200, 1.0, 0.0, 0.0, 1.9, 1.0),
    Finding("gradients", "pass", "pgd: 0 samples without a gradient", 200, 2.0, 0.0, 0.0, 1.9, 1.0),
    Finding(
        "strongest",
        "warn",
        "accuracy under apgd_ce: 22.7 %, accuracy under pgd: 46.3 %",
        200,
        1.0,
        23.6,
        17.9,
        29.2,
        2.0,
    ),
    Finding(
        "black_box",
        "fail",
        "accuracy under square: 10.0 %, accuracy under pgd: 46.3 %",
        200,
        1.0,
        36.3,
        28.1,
        43.8,
        0.0,
    ),
    Finding("large_eps", "open", "accuracy under pgd(steps=40): 0.0 %", 20, 64.0, 0.0, 0.0, 16.1, 1.0),
]


@pytest.fixture
def lines(monkeypatch):
    def show(width, everything=False, findings=FINDINGS):
        file = io.StringIO()
        screen = Console(file=file, width=width, force_terminal=True, color_system=None, markup=False)
        monkeypatch.setattr(audit_table, "console", lambda: screen)
        audit_table.print_audit([AuditedModel(ModelCard("net[a]", {}), findings)], "digits", everything)
        return file.getvalue().splitlines()

    return show


@pytest.mark.parametrize("width", [40, 80, 120])
def test_nothing_is_cut_and_what_is_worst_comes_first(lines, width):
    shown = lines(width)
    assert max(map(len, shown)) <= width
    assert shown[0].startswith("net[a], digits: fail(n=200")
    verdicts = [line.split()[0] for line in shown if line.split()[0] in ("fail", "warn", "open", "pass")]
    assert verdicts == ["fail", "warn", "open", "pass"]
    text = " ".join(" ".join(shown).split())
    if width >= 80:
        assert "strongest at 1/255: accuracy under apgd_ce: 22.7 %" in text
    for number in ("value 36.3", "28.1 to", "43.8", "at most 2", "n = 20"):
        assert number.replace(" ", "") in text.replace(" ", "")


def test_a_label_names_the_recipe_only_where_several_share_it():
    cards = [ModelCard("a", {}, recipe, train_seed=0) for recipe in ("quick", "long", "quick")]
    cards += [ModelCard("b", {}, "quick", train_seed=0), ModelCard("c", {}), ModelCard("c", {}, "long")]
    assert labels(cards) == [
        *("a seed 0@quick", "a seed 0@long", "a seed 0@quick"),
        *("b seed 0", "c", "c@long"),
    ]


def test_what_passes_shares_a_line_unless_all_is_asked_for(lines):
    assert "pass  deterministic, gradients" in [line.rstrip() for line in lines(120)]
    assert sum(line.startswith("pass") for line in lines(120, everything=True)) == 3


def test_the_legend_explains_the_verdicts_that_are_shown_and_no_others(lines):
    units = "eps and step sizes in 1/255; values in % of the images or in percentage points; "
    passed, by_radius, _, weak, masked, few = FINDINGS
    for findings, legend in (
        ([passed, by_radius], "partial: nothing found, but not all checks were run; "),
        ([passed, weak], "warn: the attack is too weak; "),
        ([few], "open: too few images, use a larger --n; "),
        ([masked, few], "fail: masked gradients; open: too few images, use a larger --n; "),
    ):
        assert lines(250, findings=findings)[-1] == f"{units}{legend}audit.csv has all numbers"

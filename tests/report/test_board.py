"""The leaderboard on the page: rows that can be told apart, the column that ranks, published rows."""

from pathlib import Path

import pandas as pd
import pytest
from support.hand_made import CLEAN, attack, card, first, run

from robust_interp.report import board, page
from robust_interp.results.combine import gather
from robust_interp.store import Store

LEADERBOARDS = Path(__file__).parents[2] / "leaderboards"


def ranked(folder, radii=(1, 2, 4)):
    """Two models under FGSM and PGD at each of these radii."""
    with Store(folder) as store:
        done = []
        for name, right in (("a", 5), ("b", 6)):
            done.append((card(name), CLEAN, first(9)))
            done += [(card(name), attack(of, eps), first(right)) for of in ("pgd", "fgsm") for eps in radii]
        run(store, done)
    return folder


def rows_of(told):
    return [
        (group["heading"], line["cells"][1]["text"], line["source"], *line["tags"])
        for group in told["groups"]
        for line in group["lines"]
    ]


@pytest.mark.slow
def test_no_two_rows_of_the_papers_table_look_the_same():
    sources = [LEADERBOARDS / name for name in ("cifar10.csv", "paper_cifar10.csv")]
    gathered = gather(sources)
    rows = rows_of(board.table(gathered.board, set(), gathered.ranked_by))
    assert len(rows) == 41  # 15 measured, 26 published
    assert len(set(rows)) == 41
    ten_thousand = "protocol final, n = 10000"
    assert (ten_thousand, "in_resnet110", "paper", "λ 0.20–0.25") in rows
    assert (ten_thousand, "in_resnet110 ×5", "paper", "λ 0.20–0.25") in rows
    assert (ten_thousand, "preact_resnet110", "paper") in rows  # it has no λ, and the recipe is the source
    assert ("protocol final, n = 250", "in_resnet20", "", "quick_12epochs_bf16") in rows


def test_rows_that_share_everything_named_are_told_apart_by_what_differs():
    line = {
        "model": "net",
        "members": 1,
        "recipe": "quick",
        "lambda_init": "0.20-0.25",
        "protocol": "final",
        "n_examples": 10,
        "source": "measured",
        "corruption_source": "",
    }
    frame = pd.DataFrame([line | {"seeds": n} for n in (1, 2, 3, 3)])
    assert board.tags(frame) == [["seeds 1"], ["seeds 2"], ["seeds 3", "no. 1"], ["seeds 3", "no. 2"]]
    assert board.tags(frame[:1]) == [[]]
    frame["lambda_init"] = ["0.20-0.25", "", None, "0.10-0.20"]
    assert board.tags(frame) == [["λ 0.20–0.25"], ["seeds 2"], ["seeds 3"], ["λ 0.10–0.20"]]


def test_what_ranks_is_the_middle_radius_and_is_marked(tmp_path):
    frame, _, ranked_by = gather([ranked(tmp_path / "results")])
    assert ranked_by == {"final": "pgd_2"}
    told = board.table(frame, set(), ranked_by)
    marked = [column["name"] for column in told["columns"] if "ranks" in column["kind"].split()]
    assert marked == told["ranking"] == ["pgd_2"]
    for line in told["groups"][0]["lines"]:
        shown = dict(zip([c["name"] for c in told["columns"]], line["cells"], strict=True))
        assert [name for name, cell in shown.items() if "ranks" in cell["kind"]] == ["pgd_2"]
    assert told["unranked"] == []
    assert board.table(frame.assign(rank=pd.NA), set(), ranked_by)["ranking"] == []


@pytest.mark.slow
def test_the_page_says_why_lines_have_no_rank(tmp_path):
    results = ranked(tmp_path / "results")
    with Store(results) as store:
        run(store, [(card("c"), CLEAN, first(9)), (card("c"), attack("pgd", 1), first(3))])
    text = page.write([results], tmp_path / "report").read_text(encoding="utf-8")
    assert "which is shaded. No rank for 1 of 3 rows: pgd_2 was not measured." in text
    assert text.count('title="no rank: pgd_2 was not measured"') == 1
    text = page.write([LEADERBOARDS / "paper_cifar10.csv"], tmp_path / "paper").read_text(encoding="utf-8")
    assert "No rank for 26 of 26 rows: quoted from paper." in text


@pytest.mark.slow
def test_published_rows_and_the_title_on_the_page(tmp_path):
    sources = [LEADERBOARDS / "paper_cifar10.csv"]
    text = page.write(sources, tmp_path, title="<b>Mine</b>").read_text(encoding="utf-8")
    assert text.count('class="published"') == text.count('<span class="source">paper</span>') == 26
    assert "<title>&lt;b&gt;Mine&lt;/b&gt;</title>" in text
    assert "<h1>&lt;b&gt;Mine&lt;/b&gt;</h1>" in text
    assert "is shaded" not in text  # nothing is ranked
    results = ranked(tmp_path / "results")
    text = page.write([results], tmp_path / "report").read_text(encoding="utf-8")
    assert "<h1>Robustness report: digits</h1>" in text
    assert "Rows are ranked by pgd_2, which is shaded" in text
    assert 'class="published"' not in text

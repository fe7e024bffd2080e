"""Numbers of attacks in another precision stand apart."""

from dataclasses import replace

import pytest
from support.hand_made import attack, card, first, run

from robust_interp.core.errors import UserError
from robust_interp.report import board as report_board
from robust_interp.results import combine, compare, robustbench_json
from robust_interp.results.leaderboard import entries_frame
from robust_interp.results.precision import in_float32
from robust_interp.results.ranks import about_ranks
from robust_interp.results.scores import scores
from robust_interp.store import Store
from robust_interp.store.cells import CLEAN

PGD = attack("pgd", 2)
IN_BF16 = replace(PGD, precision="bf16")
RIGHT = {("net", "float32"): 6, ("net", "bf16"): 8, ("other", "float32"): 5, ("other", "bf16"): 7}


@pytest.fixture
def folder(tmp_path):
    """Two models, two seeds, each attacked in float32 and then in bf16."""
    with Store(tmp_path) as store:
        for made in (PGD, IN_BF16):
            models = [card(name, seed) for name in ("net", "other") for seed in (0, 1)]
            lines = [(one, CLEAN, first(9)) for one in models]
            run(store, lines + [(one, made, first(RIGHT[one.model, made.precision])) for one in models])
    return tmp_path


def test_precisions_are_not_averaged_and_rank_among_themselves(folder):
    board, _, ranked_by = combine.gather([folder])
    found = {
        (line["model"], line["attack_precision"]): (line["rank"], line["seeds"], line["pgd_2"])
        for _, line in board.iterrows()
    }
    assert found == {
        ("net", ""): (1, 2, 60.0),
        ("other", ""): (2, 2, 50.0),
        ("net", "bf16"): (1, 2, 80.0),
        ("other", "bf16"): (2, 2, 70.0),
    }
    assert about_ranks(board, ranked_by) == (
        "rank by pgd_2, among rows of the same protocol, images and attack precision"
    )
    headings = [group["heading"] for group in report_board.table(board, (), ranked_by)["groups"]]
    assert headings == ["protocol final, n = 10", "protocol final, n = 10, attacks in bf16"]


def test_the_column_is_there_only_where_a_line_needs_it(tmp_path):
    with Store(tmp_path) as store:
        plan = run(store, [(card(), CLEAN, first(9)), (card(), PGD, first(5))])
        assert "attack_precision" not in entries_frame(scores(plan, store))
        assert in_float32(entries_frame(scores(plan, store))).all()


def test_a_file_with_the_column_is_read_and_stands_beside_one_without(folder, tmp_path):
    board = combine.gather([folder])[0]
    board.to_csv(tmp_path / "a.csv", index=False)
    board[in_float32(board)].drop(columns="attack_precision").to_csv(tmp_path / "b.csv", index=False)
    both = combine.gather([tmp_path / "a.csv", tmp_path / "b.csv"])[0]
    assert list(both["attack_precision"]) == ["", "", "bf16", "bf16", "", ""]


def test_a_comparison_takes_float32_where_there_is_some(folder):
    frame = compare.from_folders([folder], "net", "other").frame
    assert frame.set_index("column").loc["pgd_2", ["accuracy_a", "accuracy_b"]].tolist() == [60.0, 50.0]


def test_a_comparison_of_two_precisions_is_left_out(tmp_path):
    with Store(tmp_path) as store:
        run(store, [(card("net"), CLEAN, first(9)), (card("net"), PGD, first(5))])
        run(store, [(card("other"), CLEAN, first(9)), (card("other"), IN_BF16, first(5))])
    found = compare.from_folders([tmp_path], "net", "other")
    assert list(found.frame["column"]) == ["clean"]
    assert found.left_out == ["pgd_2 is left out: it was measured with different settings"]


def test_robustbench_gets_float32_alone(folder, tmp_path):
    board = combine.gather([folder])[0]
    written = robustbench_json.write(board, "cifar10", tmp_path / "json", 2, robustbench_json.Paper())
    assert len(written) == 2
    reduced = board[~in_float32(board)]
    with pytest.raises(UserError, match="nothing to write"):
        robustbench_json.write(reduced, "cifar10", tmp_path / "none", 2, robustbench_json.Paper())

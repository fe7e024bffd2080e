"""Numbers of attacks in another precision stand apart."""

from dataclasses import replace

import pytest
from support.hand_made import attack, card, first, measured, run

from robust_interp.core.errors import UserError
from robust_interp.report import board as report_board
from robust_interp.results import combine, compare, robustbench_json
from robust_interp.results.leaderboard import entries_frame
from robust_interp.results.precision import check, in_float32
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


INHERITED = 16  # broken before, and not attacked again


@pytest.mark.parametrize(
    ("right_in_bf16", "inherited_in_bf16", "right", "inherited", "difference"),
    [
        # images 4 and 5 of ten: right in bf16, broken in float32
        (range(6), range(6, 10), range(4), range(7, 10), 20),
        (range(6), range(6, 10), range(4), range(5, 10), 10),  # image 5 was not attacked in float32
        (range(4), range(6, 10), range(6), range(7, 10), -20),
        (range(4), range(5, 10), range(6), range(7, 10), -10),  # nor here in bf16
        (range(6), range(6, 10), range(6, 10), range(6), None),  # no image in both
    ],
)
def test_the_self_check_counts_images_attacked_in_both_as_a_share_of_all(
    tmp_path, right_in_bf16, inherited_in_bf16, right, inherited, difference
):
    with Store(tmp_path) as store:
        lines = [
            (
                card(),
                made,
                "".join("01"[image in shown] for image in range(10)),
                [INHERITED * (image in skipped) for image in range(10)],
            )
            for made, shown, skipped in (
                (IN_BF16, right_in_bf16, inherited_in_bf16),
                (PGD, right, inherited),
            )
        ]
        found = check(measured(store, lines).cells[0], store, 10)
    assert found == (None if difference is None else (pytest.approx(difference), 0))


def test_the_rise_of_zero_gradients_is_a_share_of_the_images_attacked_in_both(tmp_path):
    """Of images 0 to 4, three have none in bf16 and one in float32; image 5 has none, but is inherited."""
    with Store(tmp_path) as store:
        in_bf16 = (card(), IN_BF16, first(0), [1, 1, 1, 0, 0, 1, *[INHERITED] * 4])
        in_float32 = (card(), PGD, first(0), [1, 0, 0, 0, 0, *[INHERITED] * 5])
        found = check(measured(store, [in_bf16, in_float32]).cells[0], store, 10)
    assert found == (0, pytest.approx(0.4))


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

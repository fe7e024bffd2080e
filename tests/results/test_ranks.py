"""What the ranks of a leaderboard go by, and why a line has none."""

import numpy as np
import pandas as pd
import pytest
from support.hand_made import attack, card, ensemble, first, run

from robust_interp.results.combine import gather
from robust_interp.results.export import to_csv
from robust_interp.results.leaderboard import entries_frame
from robust_interp.results.ranks import about_ranks, ranked_by
from robust_interp.results.scores import Score
from robust_interp.store import Store
from robust_interp.store.cells import CLEAN


def cells(model, *radii):
    return [(card(model), CLEAN, first(9)), *((card(model), attack("pgd", eps), first(4)) for eps in radii)]


@pytest.fixture
def folder(tmp_path):
    """Radii 4, 8 and 16 over both models, the middle one 8, which `high` has and `low` lacks."""
    with Store(tmp_path / "results") as store:
        run(store, [*cells("high", 8, 16), *cells("low", 4)])
    return tmp_path / "results"


def test_the_column_that_ranks_is_the_one_at_the_middle_of_all_measured_radii(folder):
    board, _, columns = gather([folder])
    assert board[["model", "rank"]].fillna(0).values.tolist() == [["high", 1], ["low", 0]]
    assert columns == {"final": "pgd_8"}
    assert about_ranks(board, columns) == (
        "rank by pgd_8, among rows of the same protocol and images; "
        "no rank for 1 of 2 rows: pgd_8 was not measured"
    )


def test_radii_of_files_do_not_move_the_column_that_ranks(folder, tmp_path):
    far = pd.DataFrame(gather([folder]).board).rename(columns=lambda name: name.replace("pgd_16", "pgd_1"))
    far = far.rename(columns={"pgd_4": "pgd_2", "pgd_4_std": "pgd_2_std"})
    columns = [*far.columns[:13], "pgd_1", "pgd_1_std", "pgd_2", "pgd_2_std", "pgd_8", "pgd_8_std"]
    (tmp_path / "far.csv").write_text(to_csv(far[[*columns, "corruption_source", "source"]]))
    board, _, columns = gather([folder, tmp_path / "far.csv"])
    assert columns == {"final": "pgd_8"}  # of 1, 2, 4, 8 and 16 the middle one would be 4
    assert about_ranks(board, columns) == (
        "rank by pgd_8, among rows of the same protocol and images; no rank for 2 of 4 rows: pgd_8 was not "
        "measured; for 1 of 4 rows: from a file (the images are unknown) or attacked by transfer"
    )


def test_quoted_lines_and_boards_without_pgd_say_so(folder):
    board = gather([folder]).board
    quoted = board.assign(source="paper", rank=pd.NA)
    assert about_ranks(quoted, ranked_by(quoted)) == "no rank for 2 of 2 rows: quoted from paper"
    without = board.drop(columns=[name for name in board if name.startswith("pgd")]).assign(rank=pd.NA)
    assert ranked_by(without) == {}
    reason = "ranks go by pgd_<eps>, which was not measured"
    assert about_ranks(without, {}) == f"no rank for 2 of 2 rows: {reason}"


def test_each_protocol_has_a_column_of_its_own(folder):
    with Store(folder) as store:
        run(store, cells("high", 8, 16, 32), "worst")
    board, _, columns = gather([folder])
    assert columns == {"final": "pgd_8", "worst": "worst_16"}  # of 4, 8, 16 and of 8, 16, 32
    assert about_ranks(board, columns).startswith(
        "rank by pgd_8 (protocol final) and worst_16 (protocol worst), among rows"
    )


@pytest.mark.parametrize("asked", [(8,), (4, 8, 16), (4, 8, 16, 32, 64)])
def test_radii_of_one_protocol_do_not_move_the_column_that_ranks_another(tmp_path, asked):
    """A worst run gives columns of pgd, too: their radii are no radii of final."""
    pair = ensemble(card("net"), card("net", seed=1))
    final = [(pair, CLEAN, first(9)), *((pair, attack("pgd", eps), first(4)) for eps in (1, 2))]
    final += [(card("net", seed), attack("pgd", eps), first(6 - eps)) for seed in (0, 1) for eps in (1, 2)]
    with Store(tmp_path / "results") as store:
        run(store, final)
        run(store, cells("other", *asked), "worst")
    board, _, columns = gather([tmp_path / "results"])
    assert columns["final"] == "pgd_2"  # of 1 and 2 the upper middle one
    of_final = board[board["protocol"] == "final"].set_index("members")
    assert of_final["rank"].tolist() == [1, 1]
    assert of_final.loc[2, "improvement"] == 0  # 40 % at eps 2, as both members; 50 % at eps 1
    assert columns["worst"] == f"worst_{asked[len(asked) // 2]}"


def test_a_radius_that_no_row_has_does_not_rank(tmp_path):
    with Store(tmp_path / "results") as store:
        lines = [(card("net", seed), attack("pgd", 4), first(4)) for seed in (0, 1)]
        run(store, [*lines, (card("net", 0), attack("pgd", 8), first(3))])  # not of both train seeds
    board, _, columns = gather([tmp_path / "results"])
    assert columns == {"final": "pgd_4"}
    assert board["rank"].tolist() == [1]


def test_equal_accuracies_have_one_rank_in_whatever_order_the_seeds_come(tmp_path):
    # Of nine images: in floating point 100/9 + 200/9 + 300/9 depends on the order.
    rights = {"a": (1, 2, 3), "b": (3, 1, 2), "c": (2, 3, 1), "better": (4, 1, 2)}
    with Store(tmp_path / "results") as store:
        run(
            store,
            [
                (card(model, seed), attack("pgd", 8), first(right, 9))
                for model, of_model in rights.items()
                for seed, right in enumerate(of_model)
            ],
        )
    board = gather([tmp_path / "results"]).board.set_index("model")
    assert board["rank"].to_dict() == {"a": 2, "b": 2, "c": 2, "better": 1}
    assert board.loc[["a", "b", "c"], ["pgd_8", "pgd_8_std"]].nunique().tolist() == [1, 1]


def test_accuracies_that_the_files_have_alike_have_one_rank():
    """Means that differ in their last bits alone are equal there."""
    accuracies = {"a": 66.66666661, "b": 66.66666669, "c": 66.66667}
    row = {"n": 100_000, "protocol": "final", "subset_hash": "all"}
    pgd = attack("pgd", 8)
    board = entries_frame(
        [
            Score(card(model), "pgd_8", accuracy, row, np.zeros(0, bool), perturbations=(pgd,))
            for model, accuracy in accuracies.items()
        ]
    )
    assert board.set_index("model")["rank"].to_dict() == {"c": 1, "a": 2, "b": 2}


# Accuracies of pgd at radii 1 to 16: the ranks of all rows go by the middle one, 4.
RIGHT = {
    "aa": {1: 8, 2: 5, 4: 5},
    "cc": {1: 8, 2: 6, 4: 4},
    "dd": {1: 7, 2: 7, 4: 3},
    "all": {1: 3, 2: 3, 4: 3, 8: 3, 16: 3},
    "far": {8: 2, 16: 2},
}


@pytest.fixture
def whole(tmp_path):
    with Store(tmp_path / "results") as store:
        run(
            store,
            [
                (card(model), attack("pgd", eps), first(right))
                for model, of_model in RIGHT.items()
                for eps, right in of_model.items()
            ],
        )
    return gather([tmp_path / "results"]).board


def in_file(board, path):
    path.write_text(to_csv(board))
    return gather([path])


@pytest.mark.parametrize(
    "left",
    [["aa", "cc"], ["aa"], ["cc", "dd"], ["aa", "cc", "dd"], ["dd", "all"], ["aa", "far"], list(RIGHT)],
    ids="+".join,
)
def test_rows_left_out_of_a_file_do_not_move_the_column_that_ranks(whole, tmp_path, left):
    board, _, columns = in_file(whole[whole["model"].isin(left)], tmp_path / "left.csv")
    assert columns == {"final": "pgd_4"}
    assert about_ranks(board, columns).startswith("rank by pgd_4, among rows of the same protocol and images")


def test_of_rows_without_ranks_the_column_that_is_missing_is_named(whole, tmp_path):
    """pgd_4 made the ranks; the row has pgd_2 and pgd_8 alone, and the file an empty pgd_4."""
    row = whole[whole["model"] == "aa"].assign(
        rank=pd.Series([pd.NA], dtype="Int64").array, pgd_4=float("nan")
    )
    row = row.assign(pgd_2=60.0, pgd_8=20.0, pgd_16=float("nan"))
    board, _, columns = in_file(
        row[[name for name in row if not name.startswith("pgd_16")]], tmp_path / "a.csv"
    )
    assert columns == {"final": "pgd_4"}
    assert "pgd_4 was not measured" in about_ranks(board, columns)


def test_without_the_columns_of_further_radii_the_ranks_say_which_column_made_them(whole, tmp_path):
    few = whole[whole["model"].isin(["aa", "cc"])].drop(
        columns=["pgd_8", "pgd_8_std", "pgd_16", "pgd_16_std"]
    )
    assert ranked_by(few) == {"final": "pgd_2"}  # the middle one, by which cc is better
    assert in_file(few, tmp_path / "few.csv").ranked_by == {"final": "pgd_4"}


def test_ranks_that_agree_with_no_column_are_said_to_be_such(whole, tmp_path):
    few = whole[whole["model"].isin(["aa", "dd"])]
    ranks = pd.Series([2, 1], few.index, dtype="Int64")
    few = few.assign(rank=ranks, pgd_2=[6.0, 6.0])
    board, _, columns = in_file(few, tmp_path / "odd.csv")
    assert columns == {}
    assert about_ranks(board, columns) == "the ranks of protocol final agree with no column"
    board.loc[1, "rank"] = pd.NA
    assert about_ranks(board, columns) == (
        "the ranks of protocol final agree with no column; no rank for 1 of 2 rows: it is unknown by what "
        "the other rows are ranked"
    )


@pytest.mark.parametrize("apart", ["n_examples", "attack_precision", "preprocessing", "protocol"])
def test_ranks_of_a_file_are_compared_among_rows_that_were_ranked_together(whole, tmp_path, apart):
    other = {"n_examples": 20, "attack_precision": "bf16", "preprocessing": "crop 8", "protocol": "worst"}
    first_rows = whole[whole["model"].isin(["aa", "cc"])]
    second = first_rows.assign(pgd_4=[10.0, 5.0], **{apart: other[apart]})  # the same ranks, other accuracies
    if apart == "protocol":
        second = second.assign(rank=pd.Series(pd.NA, second.index, dtype="Int64"))
    if apart in ("attack_precision", "preprocessing"):
        at = len(whole.columns) - 2  # before corruption_source and source
        columns = [*whole.columns[:at], apart, *whole.columns[at:]]
        first_rows, second = (rows.assign(**{apart: rows.get(apart, "")}) for rows in (first_rows, second))
        first_rows, second = first_rows[columns], second[columns]
    board = pd.concat([first_rows, second], ignore_index=True)
    assert in_file(board, tmp_path / "both.csv").ranked_by["final"] == "pgd_4"


def test_a_file_of_rows_on_other_images_of_the_same_number_keeps_its_ranking_column(whole, tmp_path):
    ranked = whole[whole["model"].isin(["aa", "cc"])]
    board = pd.concat([ranked, ranked.assign(pgd_1=50.0, pgd_2=[30.0, 40.0], pgd_4=[10.0, 5.0])])
    assert in_file(board, tmp_path / "both.csv").ranked_by == {"final": "pgd_4"}


def test_a_file_of_two_protocols_has_a_ranking_column_for_each(folder, tmp_path):
    with Store(folder) as store:
        run(store, cells("high", 8, 16, 32), "worst")
    board, _, columns = gather([folder])
    assert in_file(board, tmp_path / "both.csv").ranked_by == columns


def test_files_without_ranks_have_the_column_at_the_middle_of_their_radii(whole, tmp_path):
    unranked = whole.assign(rank=pd.Series(pd.NA, whole.index, dtype="Int64"))
    assert in_file(unranked, tmp_path / "none.csv").ranked_by == {"final": "pgd_4"}

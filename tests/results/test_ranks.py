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


def test_accuracies_that_the_table_shows_alike_have_one_rank():
    """66.666 % and 66.669 % are both 66.67 there."""
    accuracies = {"a": 66.666, "b": 66.669, "c": 66.68}
    row = {"n": 100_000, "protocol": "final", "subset_hash": "all"}
    pgd = attack("pgd", 8)
    board = entries_frame(
        [
            Score(card(model), "pgd_8", accuracy, row, np.zeros(0, bool), perturbations=(pgd,))
            for model, accuracy in accuracies.items()
        ]
    )
    assert board.set_index("model")["rank"].to_dict() == {"c": 1, "a": 2, "b": 2}

"""The texts of a leaderboard for readers."""

import pandas as pd
import pytest
from statsmodels.stats.proportion import proportion_confint
from support.hand_made import attack, card, corruption, ensemble, first, run

from robust_interp import zoo
from robust_interp.results import brief, combine, leaderboard
from robust_interp.results.scores import scores
from robust_interp.store import Store
from robust_interp.store.cells import CLEAN


def test_every_percentage_is_rounded_once_and_halves_are_halves():
    """The float of 0.35 lies below it, that of 58.15 as well; 31.349 is no half."""
    board = pd.DataFrame({"agreement": [58.15], "clean": [31.349], "improvement": [0.35], "params_m": [0.35]})
    texts = brief.texts_of(board, board)
    assert texts == {"agreement": ["58.2"], "clean": ["31.3"], "improvement": ["+0.4"], "params_m": ["0.350"]}


def test_a_loss_has_a_sign_as_well():
    assert brief.text_of("improvement", -1.25) == "-1.2"


def wilson(right, n):
    """Its 95 % interval as statsmodels computes it, as a cell shows it."""
    low, high = proportion_confint(right, n, method="wilson")
    return f"({100 * low:.1f}–{100 * high:.1f})"


def test_an_accuracy_of_one_seed_has_its_interval_over_the_images(tmp_path):
    seeds = [card("a", seed) for seed in (0, 1)]
    lines = [(one, made, first(6 + one.train_seed)) for one in seeds for made in (CLEAN, attack("pgd", 2))]
    lines += [(ensemble(*seeds), CLEAN, first(8)), (card("b"), CLEAN, first(9))]
    lines += [(card("b"), corruption("fog", severity), first(5)) for severity in range(1, 6)]
    with Store(tmp_path) as store:
        plan = run(store, lines)
        board = leaderboard.entries_frame(scores(plan, store))
    board = board.sort_values(["model", "members"], ignore_index=True)
    texts = brief.for_readers(board, intervals=True)
    # Of two seeds the standard deviation stays; several severities share their images.
    assert texts["clean"] == ["65.0 ± 7.1", f"80.0 {wilson(8, 10)}", f"90.0 {wilson(9, 10)}"]
    assert texts["pgd_2"] == ["65.0 ± 7.1", "", ""]
    assert texts["fog"] == ["", "", "50.0"]
    assert brief.for_readers(board, ["clean"], intervals=True) == {"clean": texts["clean"]}
    assert brief.for_readers(board)["clean"] == ["65.0 ± 7.1", "80.0", "90.0"]


def test_a_file_has_the_intervals_that_follow_from_its_numbers():
    board = combine.read(zoo.bundled("leaderboards") / "cifar10.csv")
    board = board[board["recipe"] == "quick_warmup_epochs_1_bf16"].reset_index(drop=True)
    texts = brief.for_readers(board, intervals=True)
    assert texts["pgd_2"][0] == f"8.3 {wilson(83, 1000)}" == "8.3 (6.7–10.2)"  # 6.7455, rounded once
    assert texts["strong_2"][0] == f"3.6 {wilson(18, 500)}"  # on its own number of images
    assert texts["noise"][0] == "60.8"
    assert texts["strong_n"][0] == "500"
    without_n = brief.for_readers(board.drop(columns="strong_n"), intervals=True)
    assert without_n["strong_2"][0] == "3.6"


def test_no_column_at_all_is_refused(command, tmp_path):
    with Store(tmp_path) as store:
        run(store, [(card("[a]"), CLEAN, first(5))])
    status, out, err = command("leaderboard", tmp_path, "--columns", "")
    assert (status, out, err) == (1, "", "robust-interp: no column given\n")
    status, out, _ = command("leaderboard", tmp_path, "--models", "[a]", "--columns", "model,clean")
    assert status == 0
    assert "[a]" in out


def test_the_source_of_the_corruptions_is_told_where_rows_with_one_differ(store_of):
    def board(*sources):
        lines = [(card(name), made, first(5)) for name in "abc"[: 1 + len(sources)] for made in (CLEAN,)]
        lines += [
            (card("abc"[at]), corruption("fog", s, source), first(4))
            for at, source in enumerate(sources)
            for s in range(1, 6)
        ]
        return store_of(lines)

    assert "corruption_source" not in brief.for_readers(board("released", "released"))
    assert "corruption_source" not in brief.for_readers(board("generated@0", "generated@0(libjpeg-turbo)"))
    told = brief.for_readers(board("generated@0", "released"))["corruption_source"]
    assert sorted(told) == ["", "generated@0", "released"]


def test_a_corruption_that_a_row_has_without_the_mean_is_shown(store_of):
    noises = [corruption(name, s) for name in brief.MEANS["noise"] for s in range(1, 6)]
    whole = [(card("a"), made, first(5)) for made in (CLEAN, *noises)]
    part = [(card("b"), corruption("gaussian_noise", s), first(3)) for s in range(1, 6)]
    assert not [name for name in brief.for_readers(store_of(whole)) if name.endswith("_noise")]
    texts = brief.for_readers(store_of([*whole, (card("b"), CLEAN, first(5)), *part]))
    assert dict(zip(texts["model"], texts["gaussian_noise"], strict=True)) == {"a": "50.0", "b": "30.0"}
    assert "shot_noise" not in texts


@pytest.fixture
def store_of(tmp_path):
    """Return the leaderboard of lines for `run`."""

    def board(lines):
        with Store(tmp_path / str(len(list(tmp_path.iterdir())))) as store:
            return leaderboard.entries_frame(scores(run(store, lines), store))

    return board

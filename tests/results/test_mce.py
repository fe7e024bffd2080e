"""Means over corruptions, and corruption errors against a baseline."""

import math
import subprocess
import sys
from io import StringIO

import numpy as np
import pandas as pd
import pytest
from support.cifar_c import ALL19, COMMON15, SEVERITIES
from support.hand_made import card, corruption, ensemble, first, run

from robust_interp.core import statistics
from robust_interp.core.errors import UserError
from robust_interp.results import brief, combine, export, leaderboard
from robust_interp.results.mce import with_mce
from robust_interp.results.scores import scores
from robust_interp.store import Store
from robust_interp.store.cells import CLEAN

# --- means -------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as store:
        yield store


def measured(names, model="net", lost=0, clean=9, source="generated@0", seed=0):
    """Cells whose number of right ones of ten at the corruption at `at` is 10 - at % 5 - `lost`, clean 9."""
    cells = [(card(model, seed), CLEAN, first(clean))]
    for name in names:
        right = 10 - ALL19.index(name) % 5 - lost
        cells += [(card(model, seed), corruption(name, s, source), first(right)) for s in SEVERITIES]
    return cells


def board_of(store, *cells):
    return leaderboard.entries_frame(scores(run(store, cells), store))


def test_the_means_over_15_and_19_are_two_columns(store):
    """15 corruptions: each of 100, 90, 80, 70, 60 % three times, mean 80. Four more of 100 to 70 %: 85."""
    frame = board_of(store, *measured(ALL19))
    (line,) = frame.to_dict("records")
    assert line["common15"] == pytest.approx(80)
    assert line["all19"] == pytest.approx((15 * 80 + 4 * 85) / 19)
    # impulse 80, speckle 100, gaussian 100, shot 90
    assert line["noise"] == pytest.approx(92.5)
    shown = [column for column in frame if not column.endswith("_std")]
    first = shown.index("clean")
    assert shown[first : first + 4] == ["clean", "noise", "common15", "all19"]
    assert shown[first + 4 : first + 23] == ALL19


@pytest.mark.parametrize("missing", ["frost", "jpeg_compression"])
def test_there_is_no_mean_over_fourteen(store, missing):
    frame = board_of(store, *measured([name for name in ALL19 if name != missing]))
    assert "common15" not in frame
    assert "all19" not in frame
    assert "noise" in frame


def test_a_run_over_the_15_has_no_mean_over_19(store):
    frame = board_of(store, *measured(COMMON15))
    assert frame["common15"].tolist() == [80]
    assert "all19" not in frame
    assert "noise" not in frame  # of the paper's four, speckle is not among them


def test_in_short_the_means_stand_for_their_corruptions(store):
    _, numbers = brief.shorten(board_of(store, *measured(ALL19)))
    assert list(numbers) == ["clean", "noise", "common15", "all19"]


@pytest.mark.slow
def test_means_keep_their_place_when_tables_are_joined(store, tmp_path):
    frame = board_of(store, *measured(ALL19))
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(export.to_csv(frame))
    joined, _, _ = combine.gather([tmp_path / "a.csv", tmp_path / "b.csv"])
    measured_columns = [column for column in joined if f"{column}_std" in joined]
    assert measured_columns[:4] == ["clean", "noise", "common15", "all19"]
    assert set(measured_columns[4:]) == set(ALL19)
    assert joined["all19"].tolist() == pytest.approx([1540 / 19] * 2, abs=1e-6)


def test_another_jpeg_library_is_no_other_origin_but_two_of_them_are(store, tmp_path):
    turbo, other = "generated@0(libjpeg-turbo)", "generated@0(libjpeg 6.2)"
    run(store, measured(["fog"]))
    run(store, [*measured(["jpeg_compression"], source=turbo), *measured(["snow"])[1:]])
    frame, _, _ = combine.gather([tmp_path / "store"])
    assert len(frame) == 1
    assert frame["corruption_source"].tolist() == [f"generated@0+{turbo}"]
    run(store, measured(["jpeg_compression"], source=other))
    frame, _, _ = combine.gather([tmp_path / "store"])
    assert len(frame) == 2


# --- corruption errors -------------------------------------------------------------------------------


def test_mce_by_hand():
    """Errors 20 and 30 against 40 and 20: (0.5 + 1.5) / 2; relative to clean 10 and 15: 10/25 and 20/5."""
    assert statistics.mce([20, 30], [40, 20]) == pytest.approx(100)
    assert statistics.mce(np.array([20, 30]) - 10, np.array([40, 20]) - 15) == pytest.approx(220)
    assert math.isnan(statistics.mce([20, 30], [40, 0]))
    assert math.isnan(statistics.mce([20, 30], [40, (100 - 3 * 33.3) - 0.1]))  # 0 but for rounding


def two_models(store):
    """Errors of base: 10, 20, 30, 40, 50 % three times each, clean 0; of net: 0 to 40 %, clean 10 %."""
    return board_of(
        store, *measured(COMMON15, "net"), *measured(COMMON15, "base", lost=1, clean=10)
    ).set_index("model", drop=False)


def test_corruption_errors_against_a_baseline(store):
    frame = with_mce(two_models(store), "base")
    assert frame["mean_error15"].to_dict() == pytest.approx({"net": 20, "base": 30})
    # (0/10 + 10/20 + 20/30 + 30/40 + 40/50) / 5, and less clean: (-10/10 + 0/20 + 10/30 + 20/40 + 30/50) / 5
    assert frame["mce(base)"].to_dict() == pytest.approx({"net": 54.333333333, "base": 100})
    assert frame["relative_mce(base)"].to_dict() == pytest.approx({"net": 8.666666667, "base": 100})
    assert list(frame.columns[-5:]) == [
        "mean_error15",
        "mce(base)",
        "relative_mce(base)",
        "corruption_source",
        "source",
    ]


def test_without_a_baseline_there_is_the_mean_error_alone(store):
    frame = with_mce(two_models(store))
    assert frame["mean_error15"].to_dict() == pytest.approx({"net": 20, "base": 30})
    assert not [column for column in frame if "mce" in column]


def test_a_baseline_that_makes_no_errors_gives_no_quotient(store):
    frame = with_mce(two_models(store), "net")
    assert frame["mce(net)"].isna().all()  # net has none under a fifth of the corruptions


@pytest.mark.parametrize(
    ("column", "value"),
    [("corruption_source", "released"), ("protocol", "worst"), ("n_examples", 20), ("source", "paper")],
)
def test_lines_that_were_measured_otherwise_are_not_held_against_the_baseline(store, column, value):
    frame = two_models(store)
    frame.loc["net", column] = value
    found = with_mce(frame, "base")
    for name in ("mce(base)", "relative_mce(base)"):
        assert found[name].isna().to_dict() == {"net": True, "base": False}
    assert found["mean_error15"].notna().all()


def test_a_line_without_all_fifteen_has_no_corruption_error(store):
    frame = two_models(store)
    frame.loc["net", "fog"] = float("nan")
    found = with_mce(frame, "base")
    assert found.loc["net", ["mean_error15", "mce(base)", "relative_mce(base)"]].isna().all()
    with pytest.raises(UserError, match="unknown baseline 'net'"):
        with_mce(frame, "net")


def test_baselines_that_are_not_there_or_not_alone_are_refused(store):
    frame = two_models(store)
    with pytest.raises(UserError, match="unknown baseline 'bas'; did you mean base"):
        with_mce(frame, "bas")
    again = pd.concat([frame, frame.assign(recipe="long")], ignore_index=True)
    with pytest.raises(UserError, match=r"'base' matches several rows: choose one of base@long, base@quick"):
        with_mce(again, "base")
    assert with_mce(again, "base@long")["mce(base@long)"].notna().all()
    with pytest.raises(UserError, match=r"mCE needs all 15 common corruptions: .*--corruptions common"):
        with_mce(frame.drop(columns="snow"), "base")


def test_of_several_rows_of_a_baseline_that_with_the_most_train_seeds_counts(store):
    """Three seeds of the baseline lose 1 of 10 images more than its row with one seed."""
    frame = two_models(store).reset_index(drop=True)
    base = frame[frame["model"] == "base"]
    worse = base.assign(seeds=3, **{name: base[name] - 10 for name in COMMON15})
    unknown = base.assign(seeds=pd.NA)
    mce = {}
    for name, frames in (
        ("one", [frame]),
        ("all", [frame, worse, unknown]),
        ("turned", [unknown, worse, frame]),
    ):
        found = with_mce(pd.concat(frames, ignore_index=True), "base")
        mce[name] = found.loc[found["model"] == "net", "mce(base)"].item()
    errors = {name: 100 - base[name].item() for name in COMMON15}
    net = frame[frame["model"] == "net"]
    expected = 100 / 15 * sum((100 - net[name].item()) / (errors[name] + 10) for name in COMMON15)
    assert mce["all"] == mce["turned"] == pytest.approx(expected)
    assert mce["one"] != pytest.approx(expected)
    other, others = base.assign(fog=base["fog"] - 10), unknown.assign(fog=unknown["fog"] - 10)
    for twice in ([frame, other], [unknown, others, frame[frame["model"] == "net"]]):
        with pytest.raises(
            UserError, match="'base' matches several rows: only one may have the most train seeds"
        ):
            with_mce(pd.concat(twice, ignore_index=True), "base")


def test_rows_of_a_baseline_that_differ_in_their_attacks_only_are_one_baseline(store):
    frame = two_models(store).reset_index(drop=True)
    twice = pd.concat([frame.assign(pgd_2=40.0), frame.assign(pgd_2=30.0)], ignore_index=True)
    found = with_mce(twice, "base")
    assert found["mce(base)"].tolist() == pytest.approx(2 * with_mce(frame, "base")["mce(base)"].tolist())


def test_an_ensemble_can_be_the_baseline(store):
    cards = [card("net", seed) for seed in (0, 1)]
    cells = [
        (classifier, perturbation, pattern)
        for classifier in (*cards, ensemble(*cards))
        for _, perturbation, pattern in measured(COMMON15, lost=1)
    ]
    frame = with_mce(board_of(store, *cells), "netx2")
    assert frame["mce(netx2)"].tolist() == pytest.approx([100, 100])


@pytest.mark.slow
def test_the_command_shows_corruption_errors(store, tmp_path, command):
    two_models(store)
    status, out, _ = command(
        "leaderboard", tmp_path / "store", "--mce", "base", "--sort", "mean_error15", "--format", "csv"
    )
    assert status == 0
    frame = pd.read_csv(StringIO(out))
    assert frame["model"].tolist() == ["net", "base"]
    assert frame["mce(base)"].tolist() == [54.333333, 100]
    (tmp_path / "board.csv").write_text(out)
    status, out, _ = command("leaderboard", tmp_path / "board.csv", "--format", "csv")
    assert status == 0
    assert "mce" not in out  # worked out anew when asked for
    before = (tmp_path / "board.csv").read_text().replace("mean_error15,mce(", "mce_abs,mce_rel(")
    (tmp_path / "before.csv").write_text(before)
    assert before.count("mce_") == 2
    assert command("leaderboard", tmp_path / "before.csv", "--format", "csv")[1] == out
    status, out, _ = command("leaderboard", tmp_path / "store", "--mce", "none")
    assert status == 0
    assert "mean_error15" in out
    status, out, err = command("leaderboard", tmp_path / "store", "--mce", "bse")
    assert (status, out) == (1, "")
    assert "did you mean base" in err
    assert err.count("\n") == 1


@pytest.mark.slow
def test_tables_load_no_image_library():
    code = (
        "import sys\n"
        "from robust_interp.results import combine, leaderboard, mce\n"
        "print([m for m in ('torch', 'scipy.ndimage', 'PIL', 'cv2') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"


# --- AlexNet's published errors ----------------------------------------------------------------------


def on_imagenet(source="generated@0(ImageNet-C)", **more):
    return measured(COMMON15, source=source, **more)


def test_mce_against_alexnets_published_errors_by_hand(store):
    """Errors of 0, 10, 20, 30, 40 %, in turn, over AlexNet's: 100 times the mean of the quotients."""
    published = [
        *(0.886428, 0.894468, 0.922640, 0.819880, 0.826268, 0.785948, 0.798360, 0.866816),
        *(0.826572, 0.819324, 0.564592, 0.853204, 0.646056, 0.717840, 0.606500),
    ]
    expected = 100 * sum(0.1 * (at % 5) / error for at, error in enumerate(published)) / 15
    (line,) = with_mce(board_of(store, *on_imagenet()), "AlexNet").to_dict("records")
    assert line["mce(AlexNet)"] == pytest.approx(expected)
    assert line["mean_error15"] == pytest.approx(20)
    assert "relative_mce(AlexNet)" not in line


@pytest.mark.slow
def test_released_pictures_of_imagenet_count_and_others_do_not(store):
    cells = [
        *on_imagenet("released(ImageNet-C, files 0123456789ab)", model="one"),
        *on_imagenet("generated@0(Tiny-ImageNet-C)", model="two"),
        *on_imagenet("generated@0", model="three"),
    ]
    board = with_mce(board_of(store, *cells), "AlexNet").set_index("model")["mce(AlexNet)"]
    assert board.notna().to_dict() == {"one": True, "two": False, "three": False}


@pytest.mark.parametrize("column", ["subset", "preprocessing", "skipped"])
def test_a_baseline_on_other_images_is_none(store, column):
    """The first image of a random subset of 10 and of the first 10 are different, with equal n."""
    board = board_of(store, *measured(COMMON15), *measured(COMMON15, model="base", lost=1))
    both = with_mce(board, "base").set_index("model")
    assert both["mce(base)"].notna().all()
    value = 1 if column == "skipped" else "x"
    other = board.assign(**{column: np.where(board["model"] == "base", None, value)})
    apart = with_mce(other, "base").set_index("model")
    assert apart["mce(base)"].notna().to_dict() == {"net": False, "base": True}


def test_alexnet_says_where_its_errors_do_not_belong(store):
    with pytest.raises(UserError, match="AlexNet's published errors are those of ImageNet-C") as caught:
        with_mce(board_of(store, *measured(COMMON15)), "AlexNet")
    assert "\n" not in str(caught.value)


def test_a_row_that_is_called_alexnet_is_taken_itself(store):
    (line,) = with_mce(board_of(store, *measured(COMMON15, model="AlexNet")), "AlexNet").to_dict("records")
    assert math.isnan(line["mce(AlexNet)"])  # of an error of 0


def test_a_baseline_may_have_an_at_sign_in_its_name(store):
    frame = two_models(store).replace({"model": {"base": "hub:base@v2"}})
    assert with_mce(frame, "hub:base@v2")["mce(hub:base@v2)"]["base"] == 100

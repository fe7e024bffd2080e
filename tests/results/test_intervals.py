"""The interval over train seeds, in the table and in the curves of a report."""

import math

import pytest
from support.hand_made import attack, card, corruption, first, run

from robust_interp.corruptions import CORRUPTIONS
from robust_interp.report import curves
from robust_interp.results.combine import gather
from robust_interp.results.folders import runs_in
from robust_interp.results.intervals import interval, over_seeds
from robust_interp.store import Store
from robust_interp.store.cells import Perturbation

UNKNOWN = (math.nan, math.nan)


@pytest.mark.parametrize(
    ("mean", "std", "seeds", "ends"),
    [
        (70, 10, 3, (45.1586, 94.8414)),  # t at 0.975 with two degrees is 4.302653, over the root of 3
        (95, 10, 3, (70.1586, 100)),
        (5, 10, 3, (0, 29.8414)),
        (70, 0, 3, None),
        (70, math.nan, 1, None),
    ],
)
def test_over_seeds(mean, std, seeds, ends):
    assert over_seeds(mean, std, seeds) == (ends and pytest.approx(ends, abs=1e-3))


@pytest.mark.parametrize(
    ("rights", "ends"),
    [
        ((6, 7, 8), (45.1586, 94.8414)),
        ((9, 10, 10), (82.3245, 100)),  # 96.6667, its error 5.7735 / sqrt(3) = 3.3333, times 4.302653
        ((0, 1, 0), (0, 17.6755)),
        ((5, 5, 5), UNKNOWN),
        ((5,), (23.6593, 76.3407)),  # Wilson's of 5 of 10
    ],
)
def test_the_table_and_the_curves_have_the_same_interval(tmp_path, rights, ends):
    with Store(tmp_path) as store:
        run(store, [(card("a", seed), attack("fgsm", 2), first(n)) for seed, n in enumerate(rights)])
    board, _, _ = gather([tmp_path])
    (point,) = curves.points(runs_in([tmp_path])[0]).to_dict("records")
    told = interval(board.iloc[0], "fgsm_2") or UNKNOWN
    assert told == pytest.approx(ends, abs=1e-3, nan_ok=True)
    assert (point["band_low"], point["band_high"]) == pytest.approx(told, abs=1e-9, nan_ok=True)


def test_a_plugins_corruption_over_its_severities_has_no_interval_over_images(tmp_path):
    with Store(tmp_path) as store:
        run(store, [(card("a"), corruption("rain", severity), first(5)) for severity in range(1, 6)])
    line = gather([tmp_path])[0].iloc[0]
    assert line["rain"] == 50
    assert interval(line, "rain") is None  # it is not known here either, where it looks like an attack
    with CORRUPTIONS.registered("rain", CORRUPTIONS["fog"]):
        assert interval(line, "rain") is None


def test_an_attack_without_a_radius_has_its_interval_over_images(tmp_path):
    cw = Perturbation("attack", "cw", "cw", {"eps": 0})
    with Store(tmp_path) as store:
        run(store, [(card("a"), cw, first(5))])
    line = gather([tmp_path])[0].iloc[0]
    assert interval(line, "cw") == pytest.approx((23.6593, 76.3407), abs=1e-3)  # Wilson's of 5 of 10

"""Intervals, means and per-sample conjunctions against values worked out by hand, and against scipy."""

import math

import numpy as np
import pytest
from scipy.stats import binomtest

from robust_interp import metrics


@pytest.mark.parametrize(
    ("correct", "n", "low", "high"),
    [
        # (p + z^2 / 2n +- z sqrt(p q / n + z^2 / 4n^2)) / (1 + z^2 / n) with z^2 = 3.841459
        (5, 10, 23.6593, 76.3407),
        (8, 10, 49.0162, 94.3318),
        (0, 10, 0.0, 27.7533),  # z^2 / (n + z^2)
        (10, 10, 72.2467, 100.0),
        (0, 1, 0.0, 79.3450),
        (1, 1, 20.6550, 100.0),
    ],
)
def test_wilson_agrees_with_hand_worked_intervals(correct, n, low, high):
    assert metrics.wilson(correct, n) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(("n", "half"), [(1000, 3.1), (10_000, 0.98)])
def test_half_width_at_one_half_is_the_known_one(n, half):
    low, high = metrics.wilson(n // 2, n)
    assert (low + high) / 2 == pytest.approx(50)
    assert (high - low) / 2 == pytest.approx(half, abs=0.01)


@pytest.mark.parametrize("n", [1, 2, 7, 200, 450, 10_000])
def test_wilson_agrees_with_scipy(n):
    for correct in {0, 1, n // 3, n // 2, n - 1, n}:
        theirs = binomtest(correct, n).proportion_ci(method="wilson")
        assert metrics.wilson(correct, n) == pytest.approx((100 * theirs.low, 100 * theirs.high), abs=1e-9)


@pytest.mark.parametrize(("correct", "n"), [(0, 0), (-1, 10), (11, 10)])
def test_wilson_refuses_impossible_counts(correct, n):
    with pytest.raises(ValueError, match="0 <= correct <= n"):
        metrics.wilson(correct, n)


def test_std_over_seeds_divides_by_one_less_than_their_number():
    # squared distances from 7/3: 16/9 + 1/9 + 25/9 = 42/9, over 2
    assert metrics.mean_std([1, 2, 4]) == pytest.approx((7 / 3, math.sqrt(7 / 3)))
    assert metrics.mean_std([80.0, 60.0]) == pytest.approx((70.0, math.sqrt(200)))


def test_one_seed_has_no_std():
    mean, std = metrics.mean_std([42.0])
    assert mean == 42.0
    assert math.isnan(std)


def test_robust_is_right_when_clean_and_under_every_attack():
    clean = np.array([1, 1, 1, 0, 1], dtype=bool)
    one = np.array([1, 0, 1, 1, 1], dtype=bool)
    two = np.array([1, 1, 0, 1, 1], dtype=bool)
    assert metrics.robust(clean, [one, two]).tolist() == [True, False, False, False, True]
    assert metrics.robust(clean, []).tolist() == clean.tolist()

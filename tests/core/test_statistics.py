"""Intervals, tests and per-sample conjunctions against hand-worked values, scipy and statsmodels."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import binomtest, multinomial, norm, permutation_test, ttest_1samp, ttest_ind
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests

from robust_interp.core import statistics


def t_interval(values):
    return statistics.t_interval_of(*statistics.mean_std(values), len(values))


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
    assert statistics.wilson(correct, n) == pytest.approx((low, high), abs=1e-4)


@pytest.mark.parametrize(("n", "half"), [(1000, 3.1), (10_000, 0.98)])
def test_half_width_at_one_half_is_the_known_one(n, half):
    low, high = statistics.wilson(n // 2, n)
    assert (low + high) / 2 == pytest.approx(50)
    assert (high - low) / 2 == pytest.approx(half, abs=0.01)


@pytest.mark.parametrize("n", [1, 2, 7, 200, 450, 10_000])
def test_wilson_agrees_with_scipy(n):
    for correct in {0, 1, n // 3, n // 2, n - 1, n}:
        theirs = binomtest(correct, n).proportion_ci(method="wilson")
        assert statistics.wilson(correct, n) == pytest.approx((100 * theirs.low, 100 * theirs.high), abs=1e-9)


@pytest.mark.parametrize(("correct", "n"), [(0, 0), (-1, 10), (11, 10)])
def test_wilson_refuses_impossible_counts(correct, n):
    with pytest.raises(ValueError, match="0 <= correct <= n"):
        statistics.wilson(correct, n)


def test_std_over_seeds_divides_by_one_less_than_their_number():
    # squared distances from 7/3: 16/9 + 1/9 + 25/9 = 42/9, over 2
    assert statistics.mean_std([1, 2, 4]) == pytest.approx((7 / 3, math.sqrt(7 / 3)))
    assert statistics.mean_std([80.0, 60.0]) == pytest.approx((70.0, math.sqrt(200)))


def test_one_seed_has_no_std():
    mean, std = statistics.mean_std([42.0])
    assert mean == 42.0
    assert math.isnan(std)


@pytest.mark.parametrize("n", [7, 200, 450, 1000, 10_000])
@pytest.mark.parametrize("seeds", [2, 3, 6, 7, 10])
def test_seeds_that_agree_have_no_std(seeds, n):
    """The mean of equal floats is not always equal to them: 235 of the 1,001 shares of 1,000, for 3 seeds."""
    assert {statistics.mean_std([100 * k / n] * seeds)[1] for k in range(n + 1)} == {0.0}
    # a mean over severities: the same number, added up in another order
    assert statistics.mean_std([54.08, 54.080000000000005, 54.08])[1] == 0


SAMPLES = [[88.5, 90.0, 87.0], [70.0, 71.5], [99.0, 98.0, 99.5, 97.0, 99.0], [12.0, 31.0, 22.0, 5.0]]


def test_t_interval_of_hand_worked_seeds():
    # mean 70, std 10, standard error 10 / sqrt(3) = 5.7735; t at 0.975 with 2 degrees of freedom 4.3027
    assert t_interval([60, 70, 80]) == pytest.approx((45.1586, 94.8414), abs=1e-3)
    # with 1 degree of freedom 12.7062: 71 +- 12.7062 x 1
    assert t_interval([70, 72]) == pytest.approx((58.2938, 83.7062), abs=1e-3)


@pytest.mark.parametrize("values", SAMPLES)
def test_t_interval_agrees_with_scipy(values):
    theirs = ttest_1samp(values, 0).confidence_interval()
    assert t_interval(values) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


def test_an_interval_over_seeds_needs_two_of_them():
    assert all(math.isnan(end) for end in t_interval([42.0]))
    assert all(math.isnan(end) for end in t_interval([42.0, 42.0, 42.0]))  # no spread, so it is not known
    for a, b in (([42.0], [1.0]), ([42.0], [1.0, 2.0]), ([1.0, 2.0], [42.0])):
        assert all(math.isnan(value) for value in statistics.welch(a, b))


def test_seeds_that_all_agree_do_not_tell_their_spread():
    assert all(math.isnan(value) for value in statistics.welch([50, 50], [40, 40, 40]))
    # one that varies tells it: one degree of freedom, error 1 / sqrt(2) * sqrt(2) / sqrt(2) = 0.5, t 12.7062
    low, high, p = statistics.welch([50, 50, 50], [40, 41])
    assert (low, high) == pytest.approx((9.5 - 6.3531, 9.5 + 6.3531), abs=1e-3)
    assert p == pytest.approx(
        2 * (0.5 - math.atan(19) / math.pi), rel=1e-9
    )  # Student's t of one degree: Cauchy


@pytest.mark.parametrize("bound", [0, 15, -4])
@pytest.mark.parametrize(("a", "b"), list(itertools.permutations(SAMPLES, 2)))
def test_welchs_test_agrees_with_scipy(a, b, bound):
    theirs = ttest_ind(a, b, equal_var=False).confidence_interval()
    p = ttest_ind([value - bound for value in a], b, equal_var=False).pvalue
    moments = [(*statistics.mean_std(values), len(values)) for values in (a, b)]
    assert statistics.welch_of(*moments, bound) == pytest.approx((theirs.low, theirs.high, p), abs=1e-9)
    assert statistics.welch(a, b) == statistics.welch_of(*moments)


@pytest.mark.parametrize(
    ("a", "b", "n", "bound", "z"),
    [
        # (51/102 - 41/102) / sqrt((51/102 51/102 + 41/102 61/102) / 102)
        (50, 40, (100, 100), 0, 1.413936),
        (40, 50, (100, 100), 0, 1.413936),
        (50, 40, (100, 100), 100 * 10 / 102, 0),
        (100, 0, (8, 8), 0, 5.962848),  # (9/10 - 1/10) / sqrt(2 * 0.09 / 10)
        (90, 80, (10, 20), 0, 0.433378),  # 10/12 - 17/22 = 0.060606; variances 0.011574 + 0.007983
    ],
)
def test_accuracies_on_separate_images(a, b, n, bound, z):
    assert statistics.unpaired_p(a, b, n, bound) == pytest.approx(2 * norm.sf(z), rel=1e-4)


def one_stratum(b, c):
    """The test where b images are right by the first alone, c by the second alone, and one by both."""
    return statistics.mcnemar_stratified([(right("1" * b + "0" * c + "1"), right("0" * b + "1" * c + "1"))])


def right(pattern):
    return np.array([mark == "1" for mark in pattern])


@pytest.mark.parametrize(
    ("b", "c", "p", "mid_p"),
    [
        (0, 0, 1, 0.5),  # the one outcome there is, counted by half
        (1, 0, 1, 0.5),
        (5, 0, 2 / 32, 1 / 32),
        (6, 0, 2 / 64, 1 / 64),
        (1, 9, 22 / 1024, 12 / 1024),  # 2 (1 + 10), less 10
        (2, 2, 1, 1 - 6 / 32),  # 6 of 16 outcomes are even, counted by half
        (10, 2, 158 / 4096, 92 / 4096),  # 2 (1 + 12 + 66), less 66
    ],
)
def test_mcnemar_agrees_with_hand_worked_values(b, c, p, mid_p):
    found = one_stratum(b, c)
    assert (found.b, found.c) == (b, c)
    assert (found.p, found.mid_p) == pytest.approx((p, mid_p), rel=1e-12)


@pytest.mark.parametrize(("b", "c"), [(1, 0), (3, 8), (8, 3), (20, 20), (101, 140), (700, 900), (2500, 2000)])
def test_mcnemar_agrees_with_scipy_and_statsmodels(b, c):
    found = one_stratum(b, c)
    assert found.p == pytest.approx(binomtest(b, b + c).pvalue, rel=1e-9)
    assert found.p == pytest.approx(mcnemar([[0, b], [c, 0]], exact=True).pvalue, rel=1e-9)


def test_strata_are_summed_and_an_image_counts_once():
    first, second = right("111111"), right("000001")
    # The balances of the images are 2, 2, 2, 2, 2, 0: all of one sign in 2 of 32 cases, however many seeds.
    found = statistics.mcnemar_stratified([(first, second)] * 2)
    assert (found.b, found.c) == (10, 0)
    assert (found.p, found.mid_p) == pytest.approx((2 / 32, 1 / 32))
    # Balances 2, 1, -1, so a sum of 2: of the 8 sums of signs, 2 are 4 or -4 and 4 are 2 or -2.
    found = statistics.mcnemar_stratified([(right("110"), right("000")), (right("100"), right("001"))])
    assert (found.b, found.c) == (3, 1)
    assert (found.p, found.mid_p) == pytest.approx((6 / 8, 4 / 8))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("strata", [1, 2, 3, 5])
def test_strata_agree_with_scipys_exact_permutation_test(seed, strata):
    draws = np.random.default_rng(seed).random((2, strata, 12))
    first, second = draws[0] < 0.7, draws[1] < 0.4
    found = statistics.mcnemar_stratified(zip(first, second, strict=True))
    theirs = permutation_test(
        (first.sum(0), second.sum(0)),
        lambda a, b, axis: np.sum(a - b, axis=axis),
        permutation_type="samples",  # swaps the two within an image, in every way there is
        n_resamples=np.inf,
        vectorized=True,
    )
    # scipy doubles the smaller tail; the null is symmetric, so that is both tails up to 1
    assert found.p == pytest.approx(min(1, theirs.pvalue), rel=1e-9)


@pytest.mark.parametrize(
    "balance",
    [[7], [7, 7], [1, 1, 1], [5, 3, 3, -2, 0, 1], [9, -9, 9, 4, 4, -1, 2, 6], [2, 3, 5, 7, 11, -13]],
)
def test_the_law_of_the_balances_is_that_of_every_choice_of_signs(balance):
    """Each image is discordant in as many strata as its balance says."""
    strata = np.arange(13)[:, None]
    first, second = strata < np.array(balance), strata < -np.array(balance)
    found = statistics.mcnemar_stratified(zip(first, second, strict=True))
    sums = [abs(np.dot(signs, balance)) for signs in itertools.product((1, -1), repeat=len(balance))]
    beyond, equal = np.mean(np.array(sums) > abs(sum(balance))), np.mean(np.array(sums) == abs(sum(balance)))
    assert (found.p, found.mid_p) == pytest.approx((beyond + equal, beyond + equal / 2), rel=1e-12)


@pytest.mark.slow
def test_alike_classifiers_are_told_apart_as_often_as_the_level_says():
    rng, runs = np.random.default_rng(0), 400
    found = 0
    for _ in range(runs):
        image, first, second = rng.normal(size=(3, 150))  # what is hard for all, and for each architecture
        seeds = 0.7 * rng.normal(size=(2, 5, 150))
        pairs = zip(image + first + seeds[0] > 0, image + second + seeds[1] > 0, strict=True)
        found += statistics.mcnemar_stratified(pairs).p < 0.05
    assert found <= 34  # 5 % of 400 is 20, with a standard deviation of 4.4


def test_the_interval_of_a_paired_difference_is_bonett_and_prices():
    first_right, second_right = np.ones(100, bool), np.ones(100, bool)
    second_right[:12], first_right[12:15] = False, False  # b = 12, c = 3
    found = statistics.paired_difference(first_right, second_right)
    assert found.points == pytest.approx(9)
    # 13/102 - 4/102 = .088235; sqrt((17/102 - .088235**2) / 102) = .039467; times 1.959964 = .077354
    assert (found.low, found.high) == pytest.approx((1.0881, 16.5590), abs=1e-3)
    back = statistics.paired_difference(second_right, first_right)
    assert (back.points, back.low, back.high) == pytest.approx((-9, -found.high, -found.low))


def test_a_paired_difference_of_nothing_still_has_an_interval():
    found = statistics.paired_difference(*[np.arange(200) < 50] * 2)
    # sqrt(2 / 202 / 202) times 1.959964
    assert (found.points, found.low, found.high) == pytest.approx((0, -1.3722, 1.3722), abs=1e-3)


def test_the_interval_of_a_paired_difference_covers_what_it_should():
    n, only_first, only_second = 40, 0.2, 0.1
    law = multinomial(n, [only_first, only_second, 1 - only_first - only_second])
    covered = 0.0
    for b in range(n + 1):
        for c in range(n + 1 - b):
            one, other = np.zeros(n, bool), np.zeros(n, bool)
            one[:b], other[b : b + c] = True, True
            found = statistics.paired_difference(one, other)
            covered += law.pmf([b, c, n - b - c]) * (found.low <= 10 <= found.high)
    assert 0.94 < covered < 0.97


def test_holm_agrees_with_hand_worked_values():
    # sorted 0.01 0.02 0.03 0.04, times 4 3 2 1: 0.04 0.06 0.06 0.04, and none below the one before
    assert statistics.holm([0.04, 0.01, 0.03, 0.02]) == pytest.approx([0.06, 0.04, 0.06, 0.06])
    assert statistics.holm([0.6, 0.5]) == pytest.approx([1, 1])
    assert statistics.holm([0.03]) == pytest.approx([0.03])
    assert len(statistics.holm([])) == 0


@pytest.mark.slow
def test_holm_agrees_with_statsmodels():
    rng = np.random.default_rng(0)
    for size in (1, 2, 5, 30):
        p_values = rng.random(size) ** 3
        p_values[size // 2] = p_values[0]  # ties, too
        assert statistics.holm(p_values) == pytest.approx(multipletests(p_values, method="holm")[1])

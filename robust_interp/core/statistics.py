"""Accuracy with its uncertainty. Works on plain arrays; percentages are 0 to 100."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

Z_95 = 1.959963984540054  # standard normal quantile at 0.975


def wilson(correct: float, n: int) -> tuple[float, float]:
    """95 % Wilson score interval of a proportion, in percent.

    Args:
        correct: Successes, 0 to n. A sum of shares, each in [0, 1], gives an interval that is no narrower
            than it should be: no such share varies more than a yes or no of the same mean.
        n: Trials, at least 1.

    Raises:
        ValueError: for counts outside these.

    Source: E. B. Wilson, *Probable Inference, the Law of Succession, and Statistical Inference*, 1927.
    """
    if n < 1 or not 0 <= correct <= n:
        raise ValueError(f"need 0 <= correct <= n and n >= 1, not {correct} of {n}")
    share, z2 = correct / n, Z_95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return 100 * max(0.0, centre - half), 100 * min(1.0, centre + half)


def mean_std(values: ArrayLike) -> tuple[float, float]:
    """Mean and standard deviation (ddof 1) of values (n,) over train seeds; the deviation of one is NaN.

    Their order does not matter, not even to the last bit.
    """
    values = np.sort(np.asarray(values, dtype=float))
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else math.nan


def t_interval_of(mean: float, std: float, n: int) -> tuple[float, float]:
    """95 % interval of the mean over train seeds, by Student's t.

    Of two seeds it is wide (12.7 standard errors to each side) and that is as it should be.

    Args:
        mean: Over the seeds.
        std: Their standard deviation (ddof 1).
        n: How many they are, at least 1; of a single one the interval is NaN.
    """
    return _around(mean, std / math.sqrt(n), n - 1)


def welch_interval(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> tuple[float, float]:
    """95 % interval of mean(a) - mean(b): values over train seeds, (n,) and (m,), of unlike variances."""
    return welch_interval_of((*mean_std(a), len(a)), (*mean_std(b), len(b)))


def welch_interval_of(a: tuple[float, float, int], b: tuple[float, float, int]) -> tuple[float, float]:
    """The same, where `a` and `b` are each mean, standard deviation (ddof 1) and number of seeds.

    NaN where one of them has fewer than two values; without any spread it is the difference alone.

    Source: B. L. Welch, *The Generalization of 'Student's' Problem when Several Different Population
    Variances are Involved*, 1947.
    """
    (mean_a, std_a, n_a), (mean_b, std_b, n_b) = a, b
    part_a, part_b = std_a**2 / n_a, std_b**2 / n_b
    variance = part_a + part_b
    if not variance > 0:  # no spread, or NaN: Welch's degrees of freedom are undefined
        return _around(mean_a - mean_b, variance, 1)
    degrees = variance**2 / (part_a**2 / (n_a - 1) + part_b**2 / (n_b - 1))
    return _around(mean_a - mean_b, math.sqrt(variance), degrees)


def _around(centre: float, error: float, degrees: float) -> tuple[float, float]:
    from scipy.special import stdtrit  # takes a moment to import, and most commands do without

    half = float(stdtrit(degrees, 0.975)) * error if error else 0.0
    return centre - half, centre + half


@dataclass(frozen=True)
class McNemar:
    """A paired test of two classifiers on the same images.

    Attributes:
        b: Discordant pairs that only the first has right.
        c: Discordant pairs that only the second has right.
        p: Two-sided exact p-value.
        mid_p: The same counting what is as extreme as the data by half: less conservative.
    """

    b: int
    c: int
    p: float
    mid_p: float


def mcnemar_exact(b: int, c: int) -> McNemar:
    """McNemar's exact test from its discordant counts; without any of them p is 1.

    Args:
        b: Images that only the first classifier has right, from 0.
        c: Images that only the second has right, from 0.

    Raises:
        ValueError: for counts below 0.

    Source: M. W. Fagerland, S. Lydersen, P. Laake, *The McNemar test for binary matched-pairs data:
    mid-p and asymptotic are better than exact conditional*, 2013.
    """
    if b < 0 or c < 0:
        raise ValueError(f"counts must be at least 0, not {b} and {c}")
    return McNemar(b, c, *_sign_flips(np.ones(b + c, dtype=int), b - c))


def mcnemar_stratified(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> McNemar:
    """McNemar's exact test over several strata, such as train seeds, of the same images.

    Discordant counts are summed over the strata. The strata share their images, so that the discordant pairs
    of one image are not independent, and a binomial test of the sums would find far too much. The exact null
    distribution here flips the sign of an image's whole balance (strata that only the first has right, less
    those that only the second has): each image counts once. One stratum gives `mcnemar_exact`.
    It speaks of images: whether the difference between these weights would hold on others of their kind.
    Whether it would hold for other train seeds is what `welch_interval` is for.

    Args:
        pairs: Per stratum which samples each classifier has right: two boolean arrays (n,).
    """
    differences = np.array([np.subtract(first, second, dtype=int) for first, second in pairs])  # (strata, n)
    balance = differences.sum(axis=0)
    b, c = int((differences > 0).sum()), int((differences < 0).sum())
    return McNemar(b, c, *_sign_flips(np.abs(balance), b - c))


def _sign_flips(sizes: np.ndarray, observed: int) -> tuple[float, float]:
    """Exact p and mid-p of a sum of `sizes` (n,) whose signs are fair coins, against `observed`."""
    from scipy.stats import binom

    law = np.ones(1)  # law[k]: probability that the sizes with a plus add up to k
    for size, count in zip(*np.unique(sizes[sizes > 0], return_counts=True), strict=True):
        plus = np.zeros(size * count + 1)
        plus[::size] = binom.pmf(np.arange(count + 1), count, 0.5)
        law = np.convolve(law, plus)
    sums = np.abs(2 * np.arange(len(law)) - sizes.sum())
    beyond, equal = law[sums > abs(observed)].sum(), law[sums == abs(observed)].sum()
    return float(min(1.0, beyond + equal)), float(min(1.0, beyond + equal / 2))


@dataclass(frozen=True)
class Interval:
    """A share in percent, or a difference in percentage points, with its 95 % interval."""

    points: float
    low: float
    high: float


def paired_difference(first: np.ndarray, second: np.ndarray) -> Interval:
    """How much more of the same samples `first` has right than `second` (boolean arrays (n,)).

    Source: D. G. Bonett, R. M. Price, *Adjusted Wald Confidence Interval for a Difference of Binomial
    Proportions Based on Paired Data*, 2012: one discordant pair of each kind is added.
    """
    b, c, n = int((first & ~second).sum()), int((second & ~first).sum()), len(first)
    one, other = (b + 1) / (n + 2), (c + 1) / (n + 2)
    half = Z_95 * math.sqrt((one + other - (one - other) ** 2) / (n + 2))
    return Interval(100 * (b - c) / n, 100 * (one - other - half), 100 * (one - other + half))


def holm(p_values: ArrayLike) -> np.ndarray:
    """`p_values` (m,) adjusted so that the chance of any false finding among them is kept; never above 1.

    Source: S. Holm, *A Simple Sequentially Rejective Multiple Test Procedure*, 1979.
    """
    p_values = np.asarray(p_values, dtype=float)
    order = np.argsort(p_values, kind="stable")
    stepped = p_values[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(stepped))
    return adjusted


def mce(errors: ArrayLike, baseline: ArrayLike) -> float:
    """Mean corruption error in percent of a baseline's: 100 times the mean of the corruptions' quotients.

    With what each error is above the clean one instead of the errors, it is the *relative* mCE.

    Args:
        errors: Per corruption (c,) the error, averaged over severities; `baseline` those of the baseline.

    Returns:
        NaN where an error of the baseline is 0: the quotient is undefined.

    Source: Hendrycks & Dietterich, *Benchmarking Neural Network Robustness to Common Corruptions and
    Perturbations*, ICLR 2019, section 4.2.
    """
    errors, baseline = np.asarray(errors, dtype=float), np.asarray(baseline, dtype=float)
    if np.isclose(baseline, 0, atol=1e-9).any():  # differences of percentages carry their rounding
        return math.nan
    return float(100 * (errors / baseline).mean())


def attack_success(clean: np.ndarray, robust: np.ndarray) -> float | None:
    """Attack success rate in percent: of the samples that are right when clean, those that are broken.

    Args:
        clean: Which samples are right when clean, (n,) bool.
        robust: Which are right under the attack, (n,) bool; the same samples.

    Returns:
        100 x |clean and not robust| / |clean|; None where no sample is right when clean.
    """
    return 100 * float((clean & ~robust).sum() / clean.sum()) if clean.any() else None


def robust(clean: np.ndarray, attacked: list[np.ndarray]) -> np.ndarray:
    """Which samples survive everything, (n,) bool.

    Args:
        clean: Which are right when clean, (n,) bool.
        attacked: Per attack which are right under it, (n,) bool each; the same samples.
    """
    return np.logical_and.reduce([clean, *attacked])

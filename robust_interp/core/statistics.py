"""Accuracies with their uncertainty. Works on plain arrays; percentages are 0 to 100."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

LEVEL = 0.05  # significance level; intervals are 95 %
Z_95 = 1.959963984540054  # standard normal quantile at 0.975


def wilson(correct: float, n: int) -> tuple[float, float]:
    """Return the 95 % Wilson score interval of a proportion, in percent.

    Args:
        correct: Number of successes, 0 to n. It may be a sum of shares in [0, 1]; the interval is then
            conservative, since a share has no more variance than a Bernoulli variable of the same mean.
        n: Number of trials, at least 1.

    Raises:
        ValueError: for numbers outside these ranges.

    Source: E. B. Wilson, *Probable Inference, the Law of Succession, and Statistical Inference*, 1927.
    """
    if n < 1 or not 0 <= correct <= n:
        raise ValueError(f"need 0 <= correct <= n and n >= 1, not {correct} of {n}")
    share, z2 = correct / n, Z_95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return 100 * max(0.0, centre - half), 100 * min(1.0, centre + half)


def mean_std(values: ArrayLike) -> tuple[float, float]:
    """Return mean and standard deviation (ddof 1) of values, such as those of train seeds, (n,).

    The standard deviation of one value is NaN, and that of values that agree up to rounding is exactly 0.
    The order of the values does not change any bit of the result.
    """
    values = np.sort(np.asarray(values, dtype=float))
    if len(values) == 1:
        return float(values[0]), math.nan
    # The mean of equal numbers may differ from them in the last bit.
    agree = values[-1] - values[0] <= 1e-9
    return float(values.mean()), 0.0 if agree else float(values.std(ddof=1))


def t_interval_of(mean: float, std: float, n: int) -> tuple[float, float]:
    """Return the 95 % interval of a mean of independent values, by Student's t.

    For two values, such as those of two train seeds, it is rightly wide: 12.7 standard errors to each side.
    It is NaN for one value, and for values that agree exactly: their spread is unknown then.

    Args:
        mean: Mean of the values.
        std: Their standard deviation (ddof 1).
        n: Number of values, at least 1.
    """
    if not std > 0:  # 0, or NaN for one value
        return math.nan, math.nan
    return _around(mean, std / math.sqrt(n), n - 1)


class Welch(NamedTuple):
    """A comparison of two means over train seeds, whose variances may differ.

    All are NaN if one of the two has fewer than two seeds, or if neither has any spread: it is unknown then.

    Attributes:
        low: Lower end of the 95 % interval of the difference.
        high: Upper end.
        p: Two-sided p-value of the hypothesis that the difference is the bound.
    """

    low: float
    high: float
    p: float


def welch(a: Sequence[float] | np.ndarray, b: Sequence[float] | np.ndarray) -> Welch:
    """Compare mean(a) - mean(b) with 0 for values over train seeds, (n,) and (m,)."""
    return welch_of((*mean_std(a), len(a)), (*mean_std(b), len(b)))


def welch_of(a: tuple[float, float, int], b: tuple[float, float, int], bound: float = 0.0) -> Welch:
    """Compare two means by Welch's t-test.

    Args:
        a: Mean, standard deviation (ddof 1) and number of seeds.
        b: The same of the other.
        bound: The difference of the means that is tested.

    Source: B. L. Welch, *The Generalization of 'Student's' Problem when Several Different Population
    Variances are Involved*, 1947.
    """
    from scipy.special import stdtr  # slow to import, and most commands do not need it

    (mean_a, std_a, n_a), (mean_b, std_b, n_b) = a, b
    part_a, part_b = std_a**2 / n_a, std_b**2 / n_b
    variance = part_a + part_b
    if not variance > 0:  # no spread, or NaN: Welch's degrees of freedom are undefined
        return Welch(math.nan, math.nan, math.nan)
    degrees = variance**2 / (part_a**2 / (n_a - 1) + part_b**2 / (n_b - 1))
    error, difference = math.sqrt(variance), mean_a - mean_b
    p = 2 * float(stdtr(degrees, -abs(difference - bound) / error))
    return Welch(*_around(difference, error, degrees), p)


def _around(centre: float, error: float, degrees: float) -> tuple[float, float]:
    from scipy.special import stdtrit  # slow to import, and most commands do not need it

    half = float(stdtrit(degrees, 0.975)) * error
    return centre - half, centre + half


def unpaired_p(a: float, b: float, n: tuple[int, int], bound: float = 0.0) -> float:
    """Return the two-sided p-value of the hypothesis that two accuracies differ by `bound` points.

    It is that of the Agresti-Caffo interval: one right and one wrong image are added to both. If the images
    are the same, networks tend to agree on them, so that a paired test would give a smaller p-value.

    Args:
        a: An accuracy in percent, or a mean of accuracies on the same images.
        b: The other one.
        n: Numbers of images.
        bound: The difference a - b that is tested, in percentage points.

    Source: A. Agresti and B. Caffo, *Simple and Effective Confidence Intervals for Proportions and
    Differences of Proportions Result from Adding Two Successes and Two Failures*, 2000.
    """
    shares = [(accuracy / 100 * size + 1) / (size + 2) for accuracy, size in zip((a, b), n, strict=True)]
    variance = sum(share * (1 - share) / (size + 2) for share, size in zip(shares, n, strict=True))
    z = abs(shares[0] - shares[1] - bound / 100) / math.sqrt(variance)
    return math.erfc(z / math.sqrt(2))


@dataclass(frozen=True)
class McNemar:
    """A paired test of two classifiers on the same images.

    Attributes:
        b: Number of images that only the first classifies correctly.
        c: Number of images that only the second classifies correctly.
        p: Two-sided exact p-value.
        mid_p: The mid-p value: outcomes as extreme as the observed one count half. It is less conservative.
    """

    b: int
    c: int
    p: float
    mid_p: float


def mcnemar_stratified(pairs: Iterable[tuple[np.ndarray, np.ndarray]]) -> McNemar:
    """Compute an exact sign-flip test over several strata, such as train seeds, of the same images.

    Discordant counts are summed over the strata. The strata share their images, so the discordant pairs of
    one image are not independent, and a binomial test of the sums would be far too liberal. The balance of an
    image is the number of strata in which only the first classifier is correct, minus the number in which
    only the second is. Under the hypothesis that both signs of this balance are equally likely, the p-value
    is exact, and each image counts once. With one stratum, this is McNemar's exact test; p is 1 if no image
    is discordant.

    The test is about images: whether the difference of these weights would hold on other images of the same
    kind. For other train seeds use `welch`.

    Args:
        pairs: For each stratum, which images each classifier classifies correctly: two boolean arrays (n,).

    Sources: R. A. Fisher, *The Design of Experiments*, 1935; for the mid-p value, M. W. Fagerland,
    S. Lydersen, P. Laake, *The McNemar test for binary matched-pairs data: mid-p and asymptotic are better
    than exact conditional*, 2013.
    """
    differences = np.array([np.subtract(first, second, dtype=int) for first, second in pairs])  # (strata, n)
    balance = differences.sum(axis=0)
    b, c = int((differences > 0).sum()), int((differences < 0).sum())
    return McNemar(b, c, *_sign_flips(np.abs(balance), b - c))


def _sign_flips(sizes: np.ndarray, observed: int) -> tuple[float, float]:
    """Return exact p and mid-p of `observed` as a sum of `sizes` (n,) with independent random signs."""
    from scipy.stats import binom

    law = np.ones(1)  # law[k]: probability that the sizes with a positive sign add up to k
    for size, count in zip(*np.unique(sizes[sizes > 0], return_counts=True), strict=True):
        before, law = law, np.zeros(len(law) + size * count)
        for positive, probability in enumerate(binom.pmf(np.arange(count + 1), count, 0.5)):
            law[size * positive :][: len(before)] += probability * before
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
    """Return the difference of two accuracies on the same images, `first` minus `second`, boolean (n,) each.

    Source: D. G. Bonett, R. M. Price, *Adjusted Wald Confidence Interval for a Difference of Binomial
    Proportions Based on Paired Data*, 2012: one discordant pair of each kind is added.
    """
    b, c, n = int((first & ~second).sum()), int((second & ~first).sum()), len(first)
    one, other = (b + 1) / (n + 2), (c + 1) / (n + 2)
    half = Z_95 * math.sqrt((one + other - (one - other) ** 2) / (n + 2))
    return Interval(100 * (b - c) / n, 100 * (one - other - half), 100 * (one - other + half))


def holm(p_values: ArrayLike) -> np.ndarray:
    """Return p-values (m,) adjusted by Holm's method, which controls the family-wise error rate; at most 1.

    Source: S. Holm, *A Simple Sequentially Rejective Multiple Test Procedure*, 1979.
    """
    p_values = np.asarray(p_values, dtype=float)
    order = np.argsort(p_values, kind="stable")
    stepped = p_values[order] * np.arange(len(p_values), 0, -1)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(1, np.maximum.accumulate(stepped))
    return adjusted


def mce(errors: ArrayLike, baseline: ArrayLike) -> float:
    """Return the mean corruption error (mCE): 100 times the mean of error / baseline error over corruptions.

    If the clean error is subtracted from all errors before, the result is the *relative* mCE.

    Args:
        errors: Error for each corruption, averaged over severities, (c,).
        baseline: The same errors of the baseline, (c,).

    Returns:
        The mCE in percent; NaN if an error of the baseline is 0.

    Source: Hendrycks & Dietterich, *Benchmarking Neural Network Robustness to Common Corruptions and
    Perturbations*, ICLR 2019, section 4.2.
    """
    errors, baseline = np.asarray(errors, dtype=float), np.asarray(baseline, dtype=float)
    if np.isclose(baseline, 0, atol=1e-9).any():  # differences of percentages have rounding errors
        return math.nan
    return float(100 * (errors / baseline).mean())


def attack_success(clean: np.ndarray, robust: np.ndarray) -> float | None:
    """Return the attack success rate in percent: the share of the images correct when clean that is broken.

    Args:
        clean: Which images are correct when clean, (n,) bool.
        robust: Which of the same images are correct under the attack, (n,) bool.

    Returns:
        100 x |clean and not robust| / |clean|; None if no image is correct when clean.
    """
    return 100 * float((clean & ~robust).sum() / clean.sum()) if clean.any() else None

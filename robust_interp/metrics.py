"""Accuracy with its uncertainty. Works on plain arrays; percentages are 0 to 100."""

from __future__ import annotations

import math

import numpy as np

Z_95 = 1.959963984540054  # standard normal quantile at 0.975


def wilson(correct: int, n: int) -> tuple[float, float]:
    """95 % Wilson score interval of a proportion, in percent.

    Args:
        correct: Successes, 0 to n.
        n: Trials, at least 1.

    Source: E. B. Wilson, *Probable Inference, the Law of Succession, and Statistical Inference*, 1927.
    """
    if n < 1 or not 0 <= correct <= n:
        raise ValueError(f"need 0 <= correct <= n and n >= 1, not {correct} of {n}")
    share, z2 = correct / n, Z_95**2
    centre = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = Z_95 / (1 + z2 / n) * math.sqrt(share * (1 - share) / n + z2 / (4 * n * n))
    return 100 * max(0.0, centre - half), 100 * min(1.0, centre + half)


def mean_std(values) -> tuple[float, float]:
    """Mean and standard deviation over train seeds (ddof 1); the deviation of one value is NaN."""
    values = np.asarray(values, dtype=float)
    return float(values.mean()), float(values.std(ddof=1)) if len(values) > 1 else math.nan


def robust(clean: np.ndarray, attacked: list[np.ndarray]) -> np.ndarray:
    """Which samples survive everything: right when clean and under each attack (boolean arrays (n,))."""
    return np.logical_and.reduce([clean, *attacked])

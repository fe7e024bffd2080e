"""The interval of an accuracy: of a number on a leaderboard, and of the mean over train seeds."""

from __future__ import annotations

import math

import pandas as pd

from robust_interp.attacks.table import is_known
from robust_interp.core import statistics
from robust_interp.corruptions import CORRUPTIONS
from robust_interp.results.column_names import parse, std_of
from robust_interp.results.columns import Kind


def interval(line: pd.Series, column: str) -> tuple[float, float] | None:
    """Return the 95 % interval of an accuracy on a leaderboard, in percent; None if it is unknown.

    Over several train seeds it is that of `over_seeds`. Otherwise it is Wilson's interval over the images,
    except for means over severities, whose terms share their images. A column without a number may be such a
    mean, so it has none unless the attack is known here.

    Args:
        line: Row of the leaderboard.
        column: Name of the column of the accuracy.
    """
    mean, std, seeds = line[column], line[std_of(column)], line["seeds"]
    if pd.isna(mean):
        return None
    if pd.notna(std) and pd.notna(seeds) and seeds > 1:
        return over_seeds(mean, std, int(seeds))
    named = parse(column)
    n = line.get("strong_n") if named.kind is Kind.STRONG else line["n_examples"]
    is_over_seeds = pd.notna(std) or (line["members"] == 1 and pd.notna(seeds) and seeds > 1)
    # Nothing in the name of a corruption of a plug-in tells that it is not an attack without a radius.
    is_mean = column in CORRUPTIONS or (named.is_attack and not named.strength and not is_known(named.attack))
    is_share = not is_mean and (named.kind in (Kind.CLEAN, Kind.ATTACK) or named.strength > 0)
    if pd.isna(n) or is_over_seeds or not is_share:
        return None
    return statistics.wilson(round(mean * int(n) / 100), int(n))


def ends_in_short(ends: tuple[float, float]) -> str:
    """Return an interval in percent with one decimal, as ``29.7–35.5``. It is rounded once."""
    return "–".join(f"{end:.1f}" for end in ends)


def over_seeds(mean: float, std: float, seeds: int) -> tuple[float, float] | None:
    """Return the 95 % interval of a mean accuracy over train seeds, in percent; None if it is unknown.

    It is Student's t interval, cut at 0 and 100. It is unknown for one seed, and if all seeds agree exactly,
    because their spread is then unknown.

    Args:
        mean: Mean over the seeds, in percent.
        std: Standard deviation over the seeds (ddof 1), in points.
        seeds: Number of seeds, at least 1.
    """
    low, high = statistics.t_interval_of(mean, std, seeds)
    return None if math.isnan(low) else (max(0.0, low), min(100.0, high))

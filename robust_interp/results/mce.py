"""Mean corruption errors of a leaderboard's lines, alone and against a baseline's. No torch here.

Source: Hendrycks & Dietterich, *Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations*, ICLR 2019. Its baseline is AlexNet on ImageNet; on CIFAR its authors report the plain mean.
"""

from __future__ import annotations

import pandas as pd

from robust_interp.core import statistics
from robust_interp.core.errors import UserError
from robust_interp.core.registry import unknown
from robust_interp.corruptions.names import COMMON
from robust_interp.results.columns import SOURCE

NO_BASELINE = "none"
ALIKE = ["n_examples", "protocol", "corruption_source", "source"]  # else two errors are not compared


def with_mce(board: pd.DataFrame, baseline: str = NO_BASELINE) -> pd.DataFrame:
    """The lines with columns for the mean corruption error over the 15 common corruptions, in percent.

    ``mean_error15`` is the mean error, lower is better. With a baseline, ``mce(BASELINE)`` is the mCE, which
    weighs each corruption by the baseline's error under it, and ``relative_mce(BASELINE)`` the relative mCE,
    which does so with what each error is above the clean one; the baseline itself has 100. They stay empty
    where a line lacks one of the 15, or was not measured as the baseline was: the same n, protocol and source
    of the corruptions. A baseline with an error of 0 under one of them, or for the last column one equal to
    the clean one, leaves them empty too.

    Args:
        baseline: ``NAME`` for single models, ``NAMExK`` for the ensemble of K, ``@RECIPE`` after either where
            several share it; ``none`` for the first column alone.

    Raises:
        UserError: if no line has all of the corruptions, or the baseline is none of those, or several.
    """
    names = list(COMMON)
    missing = [name for name in names if name not in board]
    complete = board[board[names].notna().all(axis=1)] if not missing else board[:0]
    if complete.empty:
        lack = f" (missing: {', '.join(missing[:3])}{' ...' * (len(missing) > 3)})" if missing else ""
        raise UserError(
            f"mCE needs all 15 common corruptions: robust-interp bench --corruptions common{lack}"
        )
    errors = 100 - complete[names]
    columns = {"mean_error15": errors.mean(axis=1)}
    if baseline != NO_BASELINE:
        columns |= _against(baseline, complete, errors)
    at = len(board.columns) - len(SOURCE)
    parts = [board.iloc[:, :at], pd.DataFrame(columns, index=board.index), board.iloc[:, at:]]
    return pd.concat(parts, axis=1)


def _against(baseline: str, complete: pd.DataFrame, errors: pd.DataFrame) -> dict[str, pd.Series]:
    clean = 100 - complete["clean"] if "clean" in complete else pd.Series(float("nan"), complete.index)
    references = _references(baseline, complete)
    mce, relative = {}, {}
    for line, circumstances in complete[ALIKE].iterrows():
        if (reference := references.get(tuple(circumstances))) is not None:
            mce[line] = statistics.mce(errors.loc[line], errors.loc[reference])
            relative[line] = statistics.mce(
                errors.loc[line] - clean[line], errors.loc[reference] - clean[reference]
            )
    return {
        f"mce({baseline})": pd.Series(mce, dtype=float),
        f"relative_mce({baseline})": pd.Series(relative, dtype=float),
    }


def _references(baseline: str, complete: pd.DataFrame) -> dict[tuple, int]:
    """The baseline's line among those measured alike, by what they share."""
    name, _, recipe = baseline.partition("@")
    found = complete[
        [_entry(line) == name and recipe in ("", line["recipe"]) for _, line in complete.iterrows()]
    ]
    if found.empty:
        raise unknown("baseline", baseline, {_entry(line) for _, line in complete.iterrows()})
    if found.duplicated(ALIKE).any():
        recipes = ", ".join(sorted({f"{name}@{recipe}" for recipe in found["recipe"]}))
        raise UserError(f"the baseline {baseline!r} matches several rows: choose one of {recipes}")
    return {tuple(line[ALIKE]): at for at, line in found.iterrows()}


def _entry(line: pd.Series) -> str:
    """How `leaderboard compare` names it."""
    members = line["members"]
    return line["model"] if pd.isna(members) or members == 1 else f"{line['model']}x{members}"

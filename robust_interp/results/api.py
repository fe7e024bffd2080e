"""The leaderboard in Python: ``robust_interp.leaderboard``. Does not import torch."""

from __future__ import annotations

import os
from pathlib import Path

import pandas as pd

from robust_interp.core.errors import UserError
from robust_interp.core.registry import unknown
from robust_interp.data import named
from robust_interp.results import combine
from robust_interp.results.columns import RANKED_BY


def leaderboard(
    *sources: str | os.PathLike, dataset: str | None = None, protocol: str | None = None
) -> pd.DataFrame:
    """Return stored results and published numbers as one leaderboard, as ``robust-interp leaderboard`` does.

    Args:
        *sources: At least one of: results folders, leaderboard CSV files, and names of bundled leaderboards
            such as ``robustbench``.
        dataset: Name of the data set to choose, if the sources have several.
        protocol: ``final`` or ``worst``; None returns the rows of both.

    Returns:
        One row per entry, with the columns of leaderboard.csv. Accuracies are in percent, 0 to 100, and are
        not rounded; missing values are NaN, NA or empty texts.

    Raises:
        UserError: If there is no source, if one is missing or invalid, if the sources are for several data
            sets and none is chosen, or if no row is of the protocol.
    """
    if not sources:
        raise UserError(
            "leaderboard() needs a results folder, a leaderboard file or the name of a bundled one"
        )
    if protocol not in (None, *RANKED_BY):
        raise unknown("protocol", str(protocol), RANKED_BY)
    board = combine.gather([Path(source) for source in sources], dataset and named(dataset)).board
    if protocol is None:
        return board
    if protocol not in set(board["protocol"]):
        raise UserError(f"no row of {', '.join(map(str, sources))} is of protocol {protocol}")
    return board[board["protocol"] == protocol].reset_index(drop=True)

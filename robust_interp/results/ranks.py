"""Describe the ranking columns of a leaderboard, and why rows have no rank. Does not import torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pandas as pd

from robust_interp.results.column_names import measured_in, parse
from robust_interp.results.columns import RANKED_BY


def ranked_by(board: pd.DataFrame) -> dict[str, str]:
    """Return the ranking column by protocol. A protocol without such a column is left out.

    It is at the middle of the radii above 0 that rows of this protocol have. Radii that only rows of another
    protocol have do not count.

    Args:
        board: Leaderboard of runs that are ranked together, or of one file. It may still lack ranks.
    """
    return {
        protocol: radii[len(radii) // 2]
        for protocol, series in RANKED_BY.items()
        if (radii := _of_series(board[board["protocol"] == protocol], series))
    }


def _of_series(rows: pd.DataFrame, series: str) -> list[str]:
    """Return the columns of a series in which a row has a value, by radius. Radius 0 is a control."""
    measured = [parse(name) for name in measured_in(rows)]
    return [
        one.name for one in measured if one.series == series and one.radius and rows[one.name].notna().any()
    ]


def about_ranks(board: pd.DataFrame, columns: Mapping[str, str]) -> str:
    """Return one line that names the ranking columns, and says why rows have no rank.

    Args:
        board: The leaderboard.
        columns: The ranking column by protocol.
    """
    by = [f"{column} (protocol {protocol})" for protocol, column in columns.items()]
    by = list(columns.values()) if len(by) == 1 else by
    ranked = board["rank"].notna().any()
    alike = "protocol, images and attack precision" if "attack_precision" in board else "protocol and images"
    head = f"rank by {' and '.join(by)}, among rows of the same {alike}" if ranked else ""
    missing = unranked(board, columns)
    return "; ".join([*filter(None, [head]), *([f"no rank for {'; for '.join(missing)}"] if missing else [])])


def unranked(board: pd.DataFrame, columns: Mapping[str, str]) -> list[str]:
    """Return a text per reason for having no rank, such as ``1 of 3 rows: pgd_8 was not measured``."""
    reasons = Counter(why_not(line, columns) for _, line in board[board["rank"].isna()].iterrows())
    return [f"{count} of {len(board)} rows: {reason}" for reason, count in reasons.items()]


def why_not(line: pd.Series, columns: Mapping[str, str]) -> str:
    """Return why a row has no rank."""
    if line["source"] != "measured":
        return f"quoted from {line['source']}"
    if line.get("at_chance") == "yes":
        return "clean accuracy not clearly above chance"
    if (column := columns.get(line["protocol"])) is None:
        series = RANKED_BY.get(line["protocol"])
        return f"ranks go by {series}_<eps>, which was not measured" if series else "no attack was measured"
    if pd.isna(line[column]):
        return f"{column} was not measured"
    return "from a file (the images are unknown) or attacked by transfer"

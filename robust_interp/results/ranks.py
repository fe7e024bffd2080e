"""Describe the ranking columns of a leaderboard, and why rows have no rank. Does not import torch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import compress, pairwise

import pandas as pd

from robust_interp.results.column_names import measured_in, parse
from robust_interp.results.columns import DECIMALS, OF_IMAGES_COLUMNS, RANKED_BY, attacks_at

# Besides protocol, n and the attacks behind the ranking column, rows are ranked among those alike in these.
APART = (*OF_IMAGES_COLUMNS, "attack_precision")


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


def ranked_by_in_file(board: pd.DataFrame) -> dict[str, str]:
    """Return the ranking column of a leaderboard file by protocol. One that cannot be determined is left out.

    Rows with further radii may have been left out of the file, so that the middle of the remaining radii is
    another one. A column can be the ranking column only if the ranks of the file agree with it.

    Args:
        board: Leaderboard of one file, or of several without ranks.
    """
    found = {}
    for protocol, middle in ranked_by(board).items():
        rows = board[board["protocol"] == protocol]
        ranked = rows[rows["rank"].notna()]
        candidates = _candidates(board, protocol, middle)
        complete = [column for column in candidates if ranked[column].notna().all()]
        agreeing = [column for column in complete if _agrees(ranked, column)]
        if agreeing or (complete and _are_of_several_sets(ranked, complete)):
            found[protocol] = (agreeing or complete)[0]
    return found


def _candidates(board: pd.DataFrame, protocol: str, middle: str) -> list[str]:
    """Return the columns that may rank a protocol, most likely first; `middle` is that of its rows.

    A column in which no row has a value shows that rows were left out.
    """
    radii = _radii(board, RANKED_BY[protocol])
    likely = [middle, radii[len(radii) // 2]]
    if board[radii].isna().all().any():
        likely.reverse()
    return list(dict.fromkeys([*likely, *radii]))


def _agrees(ranked: pd.DataFrame, column: str) -> bool:
    """Return whether the accuracies of ranked rows are in the order of their ranks, among rows alike."""
    shown = ranked[column].round(DECIMALS)
    alike = _alike(ranked, dict.fromkeys(ranked["protocol"], column))
    places = ranked["rank"].astype(float)
    by_accuracy = shown.groupby(alike, dropna=False).rank(ascending=False, method="dense")
    return bool((by_accuracy == places.groupby(alike, dropna=False).rank(method="dense")).all())


def _are_of_several_sets(ranked: pd.DataFrame, columns: Iterable[str]) -> bool:
    """Return whether some equal ranks have different accuracies, in each of these columns.

    Such rows were ranked apart, since they differ in images or attacks that a file does not name.
    """
    for column in columns:
        alike = _alike(ranked, dict.fromkeys(ranked["protocol"], column))
        if not ranked.groupby([ranked["rank"], *alike], dropna=False)[column].nunique().gt(1).any():
            return False
    return True


def _alike(rows: pd.DataFrame, columns: Mapping[str, str]) -> list[pd.Series]:
    """Return what rows must have in common to be ranked together, given the ranking column by protocol."""
    settings = ("protocol", "n_examples", *APART)
    return [*(rows[name] for name in settings if name in rows), attacks_behind(rows, columns)]


def attacks_behind(board: pd.DataFrame, columns: Mapping[str, str]) -> pd.Series:
    """Return the attacks behind the ranking column of each row; empty where it is that of one attack.

    Args:
        board: The leaderboard.
        columns: The ranking column by protocol.
    """
    found, texts = [], _texts(board, "worst_attacks")
    for (_, line), text in zip(board.iterrows(), texts, strict=True):
        column = columns.get(line["protocol"], "")
        found.append(attacks_at(text, column) if pd.notna(line.get(column)) else "")
    return pd.Series(found, board.index, dtype=object)


def _texts(board: pd.DataFrame, name: str) -> pd.Series:
    """Return a column of texts that a leaderboard may lack; empty where there is none."""
    return board.get(name, pd.Series("", board.index)).fillna("")


def _of_series(rows: pd.DataFrame, series: str) -> list[str]:
    """Return the columns of a series in which a row has a value, by radius."""
    return [name for name in _radii(rows, series) if rows[name].notna().any()]


def _radii(rows: pd.DataFrame, series: str) -> list[str]:
    """Return the columns of a series, by radius. Radius 0 is a control."""
    measured = [parse(name) for name in measured_in(rows)]
    return [one.name for one in measured if one.series == series and one.radius]


def begins_of_groups(board: pd.DataFrame, columns: Mapping[str, str]) -> list[int]:
    """Return the rows, counted from 0, at which others begin than those that the row above is ranked among.

    Empty if rows of one group do not stand together, as in a table that is sorted by another column.

    Args:
        board: The leaderboard.
        columns: The ranking column by protocol.
    """
    groups = board.groupby(_alike(board, columns), dropna=False, sort=False).ngroup().tolist()
    is_ranked = board["rank"].notna().tolist()
    of_ranked = list(compress(groups, is_ranked))
    if sum(one != other for one, other in pairwise(of_ranked)) >= max(1, len(set(of_ranked))):
        return []
    return [
        at
        for at in range(1, len(groups))
        if groups[at] != groups[at - 1] and (is_ranked[at] or is_ranked[at - 1])
    ]


def about_ranks(board: pd.DataFrame, columns: Mapping[str, str]) -> str:
    """Return one line that names the ranking columns, and says why rows have no rank.

    Args:
        board: The leaderboard.
        columns: The ranking column by protocol.
    """
    by = [f"{column} (protocol {protocol})" for protocol, column in columns.items()]
    by = list(columns.values()) if len(by) == 1 else by
    ranked = set(board["protocol"][board["rank"].notna()])
    settings = {
        "attack precision": _texts(board, "attack_precision"),
        "attacks": attacks_behind(board, columns),
    }
    also = [w for w, told in settings.items() if (told.groupby(board["protocol"]).nunique() > 1).any()]
    *most, last = "protocol", "images", *also
    alike = f"{', '.join(most)} and {last}"
    found = [f"rank by {' and '.join(by)}, among rows of the same {alike}"] if ranked and by else []
    if unclear := sorted(ranked - set(columns)):
        found.append(f"the ranks of protocol {' and '.join(unclear)} agree with no column")
    if missing := unranked(board, columns):
        found.append(f"no rank for {'; for '.join(missing)}")
    return "; ".join(found)


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
        if series and line[_radii(line.to_frame().T, series)].notna().any():
            return "it is unknown by what the other rows are ranked"
        return f"ranks go by {series}_<eps>, which was not measured" if series else "no attack was measured"
    if pd.isna(line[column]):
        return f"{column} was not measured"
    return "from a file (the images are unknown) or attacked by transfer"

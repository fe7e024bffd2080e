"""Leaderboards from several places in one table: results folders and leaderboard CSV files. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from robust_interp import leaderboard
from robust_interp.corruptions import CORRUPTIONS, GROUPS
from robust_interp.errors import UserError
from robust_interp.formats import TAIL_COLUMNS
from robust_interp.leaderboard import board_columns
from robust_interp.registry import matching, unknown

WHOLE_COLUMNS = ["rank", "seeds", "members", "n_examples", "strong_n"]  # the last only where it is there


def gather(sources: Sequence[Path], dataset: str | None = None) -> tuple[pd.DataFrame, str]:
    """One leaderboard of several sources, and a title for it.

    The runs of all results folders are taken together and ranked; the rows of the CSV files follow. A file
    says how many images it was measured on but not which, so that beside anything else its rows have no rank.

    Args:
        sources: Results folders and leaderboard CSV files.
        dataset: Which one, if the folders have several.

    Raises:
        UserError: if a source is not there or not what it should be.
    """
    files = [path for path in sources if path.is_file() or path.suffix == ".csv"]
    folders = [path for path in sources if path not in files]
    frames, titles = [], []
    if folders:
        runs, dataset = leaderboard.runs_in(folders, dataset)
        frames.append(leaderboard.entries_frame(*runs))
        titles.append(dataset)
    for path in files:
        board = read(path)
        if len(sources) > 1:
            board["rank"] = _no_rank(board)
        frames.append(board)
        titles.append(path.name)
    return (frames[0] if len(frames) == 1 else _stacked(frames)), " + ".join(titles)


def read(path: Path) -> pd.DataFrame:
    """A leaderboard CSV file. What was not measured here is never ranked.

    Raises:
        UserError: if it cannot be read, or its columns or values are not a leaderboard's.
    """
    try:
        board = pd.read_csv(path, dtype=str, keep_default_na=False)
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    measured = _measured(board)
    columns = board_columns(measured, _extra([board]))
    for what, names in (
        ("lacks", [name for name in columns if name not in board]),
        ("also has", [name for name in board if name not in columns]),
    ):
        if names:
            raise UserError(f"{path} is not a leaderboard: it {what} {', '.join(names)}")
    for column in columns:
        if column in WHOLE_COLUMNS:
            board[column] = _numbers(path, board[column], "Int64")
        elif column == "params_m" or column.removesuffix("_std") in measured:
            board[column] = _numbers(path, board[column], "float64")
    board["rank"] = board["rank"].where(board["source"] == "measured", _no_rank(board))
    return board[columns]


def pick(board: pd.DataFrame, patterns: Iterable[str]) -> pd.DataFrame:
    """The lines whose model is named, by name or glob; they keep their rank.

    Raises:
        UserError: for a pattern that matches none.
    """
    names, chosen = list(dict.fromkeys(board["model"])), set()
    for pattern in patterns:
        hits = matching(pattern, names)
        if not hits:
            raise unknown("model", pattern, names)
        chosen.update(hits)
    return board[board["model"].isin(chosen)].reset_index(drop=True)


def sort(board: pd.DataFrame, column: str) -> pd.DataFrame:
    """The lines by one column: accuracies from the best down, anything else upwards, what is empty last.

    Raises:
        UserError: for an unknown column.
    """
    if column not in board:
        raise unknown("column", column, board.columns)
    upwards = column not in _measured(board)
    return board.sort_values(column, ascending=upwards, kind="stable", na_position="last", ignore_index=True)


def _measured(board: pd.DataFrame) -> list[str]:
    return [column for column in board if f"{column}_std" in board]


def _extra(boards: list[pd.DataFrame]) -> list[str]:
    return [column for column in TAIL_COLUMNS if any(column in board for board in boards)]


def _no_rank(board: pd.DataFrame) -> pd.Series:
    return pd.Series(pd.NA, index=board.index, dtype="Int64")


def _numbers(path: Path, texts: pd.Series, dtype: str) -> pd.Series:
    try:
        return pd.to_numeric(texts.where(texts != "", None)).astype(dtype)
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} is not a leaderboard: {texts.name} is not a number: {error}") from error


def _stacked(frames: list[pd.DataFrame]) -> pd.DataFrame:
    names = dict.fromkeys(column for frame in frames for column in _measured(frame))
    series = list(dict.fromkeys(leaderboard.split_column(column)[0] for column in names))
    columns = board_columns(sorted(names, key=lambda column: _place(column, series)), _extra(frames))
    types = dict.fromkeys(WHOLE_COLUMNS, "Int64") | {"params_m": "float64"}
    typed = [frame.astype({name: types[name] for name in types if name in frame}) for frame in frames]
    return pd.concat(typed, ignore_index=True).reindex(columns=columns)


def _place(column: str, series: list[str]) -> tuple[int, int, float]:
    """Where a measured column stands: in the leaderboard's own order, whatever file it comes from."""
    corruptions, (base, number) = list(CORRUPTIONS), leaderboard.split_column(column)
    if column == "clean":
        return 0, 0, 0
    if column in GROUPS:
        return 1, list(GROUPS).index(column), 0
    if column in corruptions:
        return 2, corruptions.index(column), 0
    if base in corruptions:
        return 3, corruptions.index(base), number
    return 4 + leaderboard.place_of_series(base), series.index(base), number

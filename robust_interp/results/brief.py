"""A leaderboard in short, as the terminal, LaTeX and the report show it: texts, column by column."""

from __future__ import annotations

import math

import pandas as pd

from robust_interp.results.column_names import declaration, is_mce, measured_in, parse, std_of
from robust_interp.results.columns import ENTRY, SOURCE, TAIL, Column, Kind, Shown, Type


def in_short(board: pd.DataFrame) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """A leaderboard for a reader: the texts of what names a line, and of its numbers with their deviation.

    What all lines share is left out.
    """
    names = [
        column.name
        for column in (*ENTRY, *SOURCE)
        if column.shown is Shown.ALWAYS
        or (column.shown is Shown.IF_DIFFERENT and _is_different(board, column.name))
    ]
    return {name: _texts(board[name]) for name in names}, numbers_in_short(board)


def _is_different(board: pd.DataFrame, name: str) -> bool:
    """Whether lines differ in a column: in λ's interval only if the model's name does not say it already."""
    if name == "lambda_init":
        alike = board.groupby(["model", "recipe", "members"])[name]
        return bool((alike.nunique() > 1).any())
    return board[name].nunique() > 1


def numbers_in_short(board: pd.DataFrame) -> dict[str, list[str]]:
    """Texts of each measured column, mean ± deviation, and of mCE columns; of a group only the mean."""
    whole = measured_in(board)
    means = [column for column in map(parse, whole) if column.kind is Kind.MEAN]
    parts = {part.name for mean in means for part in mean.parts}
    numbers = {
        name: [_with_std(*pair) for pair in zip(board[name], board[std_of(name)], strict=True)]
        for name in whole
        if name not in parts
    }
    filled = [column.name for column in (*ENTRY, *TAIL) if _is_filled(board, column)]
    singles = [*filter(is_mce, board), *filled]
    return numbers | {name: _in_short(declaration(name), board[name]) for name in singles}


def _is_filled(board: pd.DataFrame, column: Column) -> bool:
    return column.shown is Shown.IF_FILLED and column.name in board and board[column.name].notna().any()


def _in_short(column: Column, values: pd.Series) -> list[str]:
    if column.type is Type.NUMBER:
        return [_with_std(value, math.nan) for value in values]
    return _texts(values)


def _texts(values: pd.Series) -> list[str]:
    return ["" if pd.isna(value) else str(value) for value in values]


def _with_std(mean: float, std: float) -> str:
    if pd.isna(mean):
        return ""
    return f"{mean:.1f}" if pd.isna(std) else f"{mean:.1f} ±{std:.1f}"

"""A leaderboard in short, as the terminal, Markdown, LaTeX and the report show it: texts by column."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd

from robust_interp.core.registry import matching, unknown
from robust_interp.results.column_names import is_mce, measured_in, parse, std_of
from robust_interp.results.columns import ENTRY, FORMS, SOURCE, TAIL, Column, Kind, Shown

NARROW, WIDE = " ±", " ± "  # between a mean and its deviation: in the terminal, and on a page


def in_short(board: pd.DataFrame) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """A leaderboard for a reader: the texts of what names a line, and of its numbers with their deviation.

    What all lines share is left out.
    """
    names = _names_in_short(board)
    return texts_of(board, names, NARROW), numbers_in_short(board)


def for_readers(board: pd.DataFrame, between: str = WIDE) -> dict[str, list[str]]:
    """The texts of the columns that a reader is shown unless others are chosen; no column is empty.

    Args:
        between: What stands between a mean and its deviation.
    """
    names = [*_names_in_short(board), *_numbers_in_short(board)]
    return {name: texts for name, texts in texts_of(board, names, between).items() if any(texts)}


def numbers_in_short(board: pd.DataFrame) -> dict[str, list[str]]:
    """Texts of each measured column, mean ± deviation, and of mCE columns; of a group only the mean."""
    return texts_of(board, _numbers_in_short(board), NARROW)


def texts_of(
    board: pd.DataFrame, names: Iterable[str] | None = None, between: str = WIDE
) -> dict[str, list[str]]:
    """Columns as texts: a measured one with its deviation, what is not there empty.

    Args:
        names: Of the columns; None for all, but for the deviations.
        between: What stands between a mean and its deviation.
    """
    names = _without_std(board) if names is None else names
    return {name: _column(board, name, between) for name in names}


def _without_std(board: pd.DataFrame) -> list[str]:
    deviations = {std_of(name) for name in measured_in(board)}
    return [name for name in map(str, board) if name not in deviations]


def choose(board: pd.DataFrame, patterns: Iterable[str]) -> pd.DataFrame:
    """The columns that are named, in that order, each once; a deviation comes with its mean.

    Args:
        patterns: Names or globs.

    Raises:
        UserError: for a pattern that matches none.
    """
    measured, names = measured_in(board), _without_std(board)
    chosen: dict[str, None] = {}
    for pattern in patterns:
        hits = [pattern] if pattern in names else matching(pattern, names)
        if not hits:
            raise unknown("column", pattern, names)
        chosen |= dict.fromkeys(hits)
    both = [part for name in chosen for part in ([name, std_of(name)] if name in measured else [name])]
    return board[both]


def _names_in_short(board: pd.DataFrame) -> list[str]:
    return [
        column.name
        for column in (*ENTRY, *SOURCE)
        if column.shown is Shown.ALWAYS
        or (column.shown is Shown.IF_DIFFERENT and _is_different(board, column.name))
    ]


def _is_different(board: pd.DataFrame, name: str) -> bool:
    """Whether lines differ in a column: in λ's interval only if the model's name does not say it already."""
    if name == "lambda_init":
        alike = board.groupby(["model", "recipe", "members"])[name]
        return bool((alike.nunique() > 1).any())
    return board[name].nunique() > 1


def _numbers_in_short(board: pd.DataFrame) -> list[str]:
    whole = measured_in(board)
    means = [column for column in map(parse, whole) if column.kind is Kind.MEAN]
    parts = {part.name for mean in means for part in mean.parts}
    filled = [column.name for column in (*ENTRY, *TAIL) if _is_filled(board, column)]
    return [*(name for name in whole if name not in parts), *filter(is_mce, map(str, board)), *filled]


def _is_filled(board: pd.DataFrame, column: Column) -> bool:
    is_shown = column.shown is Shown.IF_FILLED and column.name in board
    return is_shown and bool(board[column.name].notna().any())


def _column(board: pd.DataFrame, name: str, between: str) -> list[str]:
    if std_of(name) in board:
        return [_with_std(*pair, between) for pair in zip(board[name], board[std_of(name)], strict=True)]
    return ["" if pd.isna(value) else format(value, _form(name, value)) for value in board[name]]


def _form(name: str, value: object) -> str:
    return FORMS.get(name, ".1f" if isinstance(value, float) else "")


def _with_std(mean: float, std: float, between: str) -> str:
    if math.isnan(mean):
        return ""
    return f"{mean:.1f}" if math.isnan(std) else f"{mean:.1f}{between}{std:.1f}"

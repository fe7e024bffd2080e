"""The short form of a leaderboard that the terminal, Markdown, LaTeX and the report show, as texts."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

import pandas as pd

from robust_interp.core.errors import UserError
from robust_interp.core.percent import percent
from robust_interp.core.registry import all_matching
from robust_interp.corruptions.names import MEANS
from robust_interp.results.column_names import (
    MeasuredColumn,
    declaration,
    is_mce,
    measured_in,
    parse,
    std_of,
)
from robust_interp.results.columns import ENTRY, FORMS, SOURCE, STRONG, TAIL, WORST, Column, Kind, Shown
from robust_interp.results.entries import origin
from robust_interp.results.intervals import ends_in_short, interval

TELLING = (  # settings in which rows of one model may differ, those that readers look for first
    *("dataset", "members", "n_examples", "protocol", "recipe", "lambda_init", "seeds", "source"),
    *("attack_precision", "preprocessing", "subset", "eot", "worst_attacks", "strong_attacks", "strong_n"),
    *("corruption_source", "weights"),
)
NARROW, WIDE = " ±", " ± "  # separators of a mean and its standard deviation: in the terminal, and on a page
INTERVALS = "95 % Wilson interval over the images in brackets, ± standard deviation over train seeds"


def shorten(board: pd.DataFrame) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the short form of a leaderboard: the texts of the descriptive columns, and those of the numbers.

    Measured numbers include their standard deviation. Settings that all rows share are left out.
    """
    names = _names_in_short(board)
    return texts_of(board, names, NARROW), numbers_in_short(board)


def for_readers(
    board: pd.DataFrame,
    chosen: Iterable[str] | None = None,
    between: str = WIDE,
    intervals: bool = False,
) -> dict[str, list[str]]:
    """Return the texts of the chosen columns, or of those that are shown by default, without empty ones.

    Names of models say what tells rows apart that would look alike in these columns.

    Args:
        board: The leaderboard.
        chosen: Column names or glob patterns, in the order of the result; None for the default.
        between: Separator of a mean and its standard deviation.
        intervals: Whether to add intervals, as in `texts_of`.

    Raises:
        UserError: If a pattern matches no column.
    """
    if chosen is not None:
        texts = texts_of(board, _chosen(board, chosen), between, intervals)
    else:
        texts = texts_of(board, [*_names_in_short(board), *_numbers_in_short(board)], between, intervals)
        texts = {name: column for name, column in texts.items() if any(column)}
    return texts | ({"model": names_apart(board, texts)} if "model" in texts else {})


def numbers_in_short(board: pd.DataFrame) -> dict[str, list[str]]:
    """Return the texts of the columns with numbers: the measured columns, mCE, and others that have a value.

    A column that is part of a shown mean over corruptions is left out if every row that has it has the mean.
    """
    return texts_of(board, _numbers_in_short(board), NARROW)


def texts_of(
    board: pd.DataFrame, names: Iterable[str], between: str = WIDE, intervals: bool = False
) -> dict[str, list[str]]:
    """Return columns as texts. Measured values include their standard deviation; missing values are empty.

    Args:
        board: The leaderboard.
        names: Names of the columns.
        between: Separator of a mean and its standard deviation.
        intervals: Whether accuracies without a standard deviation include their 95 % interval over the
            images, in percent, where it is known: ``32.5 (29.7–35.5)``.
    """
    return {name: _column(board, name, between, intervals) for name in names}


def _without_std(board: pd.DataFrame) -> list[str]:
    deviations = {std_of(name) for name in measured_in(board)}
    return [name for name in map(str, board) if name not in deviations]


def choose(board: pd.DataFrame, patterns: Iterable[str]) -> pd.DataFrame:
    """Return the chosen columns in the given order, each once. A mean is followed by its standard deviation.

    Args:
        board: The leaderboard.
        patterns: Column names or glob patterns.

    Raises:
        UserError: If a pattern matches no column.
    """
    measured = measured_in(board)
    both = [
        part
        for name in _chosen(board, patterns)
        for part in ([name, std_of(name)] if name in measured else [name])
    ]
    return board[both]


def _chosen(board: pd.DataFrame, patterns: Iterable[str]) -> list[str]:
    """Return the names of the chosen columns, each once and without standard deviations."""
    if not (chosen := all_matching("column", patterns, _without_std(board))):
        raise UserError("no column given")
    return chosen


def by_importance(board: pd.DataFrame, names: Iterable[str], ranking: Iterable[str]) -> list[str]:
    """Return columns of a leaderboard sorted by importance, for tables with too little space for all.

    What names and ranks a row comes first, with what tells rows of one model apart, then clean accuracy, an
    audit that doubts a row, means over corruptions, and all radii of the attack that ranks and of the worst
    of several. Of the other measured columns, each attack and corruption has one before any has two, middle
    radii first.

    Args:
        board: The leaderboard.
        names: The columns to sort.
        ranking: The ranking columns.
    """
    names, ranking = list(names), list(ranking)
    first = ["model", "incomplete", "rank", *ranking, *_telling_apart(board), "clean"]
    first += [*(["audit"] if _is_doubted(board) else []), *MEANS]
    first += filter(is_mce, names)
    measured = [column for name in measured_in(board) if (column := parse(name)).name not in first]
    chief = {parse(name).series for name in ranking} | {WORST, STRONG}
    first += _spread(sorted((c for c in measured if c.series in chief), key=lambda c: -c.kind))
    first += [column.name for column in (*ENTRY, *TAIL, *SOURCE) if column.shown is not Shown.IF_FILLED]
    ordered = dict.fromkeys([*first, *_spread([c for c in measured if c.series not in chief]), *names])
    return [name for name in ordered if name in names]


def _is_doubted(board: pd.DataFrame) -> bool:
    """Return whether an audit, or whoever published a row, doubts its accuracies."""
    return "audit" in board and bool(board["audit"].fillna("").str.match("fail|unreliable").any())


def _telling_apart(board: pd.DataFrame) -> list[str]:
    """Return the settings in which rows of one model differ, as few as tell them apart."""
    known = ["model"]
    for name in TELLING:
        if name in board and (board.groupby(known, dropna=False)[name].nunique(dropna=False) > 1).any():
            known.append(name)
    return known[1:]


def names_apart(board: pd.DataFrame, kept: Collection[str]) -> list[str]:
    """Return the names of the models, with what tells rows apart that would look alike in the kept columns.

    Args:
        board: The leaderboard.
        kept: Names of the columns that a table shows.
    """
    telling = _telling_apart(board)
    texts = texts_of(board, ["model", *telling])
    names = list(texts["model"])
    alike: dict[tuple[str, ...], list[int]] = {}
    for row, key in enumerate(
        zip(*(texts[name] for name in ["model", *telling] if name in kept), strict=True)
    ):
        alike.setdefault(key, []).append(row)
    for rows in alike.values():
        differing = [name for name in telling if len({texts[name][row] for row in rows}) > 1]
        for row in rows if differing else ():
            told = {name: texts[name][row] for name in differing if texts[name][row]}
            shown = [_in_words(name, text) for name, text in told.items()]
            names[row] += f" ({', '.join(shown)})" if shown else ""
    return names


def _in_words(name: str, text: str) -> str:
    """Return a setting as a part of a name; ``seed 1`` is which, ``1 train seed`` how many."""
    if name == "seeds":
        return f"{text} train seed{'s' if text != '1' else ''}"
    return text if name == "weights" else f"{name} {text}"


def _spread(columns: Iterable[MeasuredColumn]) -> list[str]:
    """Sort columns so that each series has one before any has two, those next to its middle first."""
    by_series: dict[str, list[str]] = {}
    for column in columns:
        by_series.setdefault(column.series, []).append(column.name)
    placed: list[tuple[int, str]] = []
    for series in by_series.values():
        from_middle = sorted(series, key=lambda name: abs(series.index(name) - len(series) // 2))
        placed += enumerate(from_middle)
    return [name for _, name in sorted(placed, key=lambda one: one[0])]


def _names_in_short(board: pd.DataFrame) -> list[str]:
    return [
        column.name
        for column in (*ENTRY, *TAIL, *SOURCE)
        if column.shown is Shown.ALWAYS
        or (column.shown is Shown.IF_DIFFERENT and _is_different(board, column.name))
        or (column.shown is Shown.IF_UNLIKE and _is_unlike(board, column.name))
    ]


def _is_different(board: pd.DataFrame, name: str) -> bool:
    """Return whether rows differ in a column.

    The interval of λ counts only if rows of the same model, recipe and members differ in it.
    """
    if name == "lambda_init":
        alike = board.groupby(["model", "recipe", "members"])[name]
        return bool((alike.nunique() > 1).any())
    return board[name].nunique() > 1


def _is_unlike(board: pd.DataFrame, name: str) -> bool:
    """Return whether rows that have a value in a column differ in it."""
    values = {value for value in board[name].fillna("") if value} if name in board else set()
    if name == "corruption_source":  # the library that made JPEG images is no other source
        values = {frozenset(map(origin, value.split("+"))) for value in values}
    return len(values) > 1


def _numbers_in_short(board: pd.DataFrame) -> list[str]:
    whole = measured_in(board)
    means = [column for column in map(parse, whole) if column.kind is Kind.MEAN]
    parts = {part.name for mean in means for part in mean.parts if _is_covered(board, part.name, mean.name)}
    filled = [column.name for column in (*ENTRY, *TAIL) if _is_filled(board, column)]
    return [*(name for name in whole if name not in parts), *filter(is_mce, map(str, board)), *filled]


def _is_covered(board: pd.DataFrame, part: str, mean: str) -> bool:
    return part in board and not (board[part].notna() & board[mean].isna()).any()


def _is_filled(board: pd.DataFrame, column: Column) -> bool:
    is_shown = column.shown is Shown.IF_FILLED and column.name in board
    return is_shown and bool(board[column.name].notna().any())


def _column(board: pd.DataFrame, name: str, between: str, intervals: bool = False) -> list[str]:
    if std_of(name) in board:
        texts = [_with_std(*pair, between) for pair in zip(board[name], board[std_of(name)], strict=True)]
        if not intervals:
            return texts
        return [
            text + _in_brackets(line, name) for text, (_, line) in zip(texts, board.iterrows(), strict=True)
        ]
    return ["" if pd.isna(value) else text_of(name, value) for value in board[name]]


def text_of(name: str, value: object) -> str:
    """Return the value of a column as a text; a difference in points has a sign."""
    if isinstance(value, float) and name not in FORMS:
        return percent(value, signed=declaration(name).unit == "points")
    return format(value, FORMS.get(name, ""))


def _with_std(mean: float, std: float, between: str) -> str:
    if math.isnan(mean):
        return ""
    return percent(mean) if math.isnan(std) else f"{percent(mean)}{between}{percent(std)}"


def _in_brackets(line: pd.Series, name: str) -> str:
    """Return the interval of an accuracy over the images; empty if unknown, and with several seeds."""
    ends = interval(line, name) if math.isnan(line[std_of(name)]) else None
    return f" ({ends_in_short(ends)})" if ends else ""

"""Combine results folders and leaderboard CSV files into one leaderboard. Does not import torch."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

import pandas as pd

from robust_interp.core.errors import IgnoredWarning, UserError
from robust_interp.core.registry import BUILT_IN, all_matching, unknown
from robust_interp.core.texts import reason_of
from robust_interp.corruptions import CORRUPTIONS, MEANS
from robust_interp.data import DATASETS
from robust_interp.results import leaderboard
from robust_interp.results.column_names import declaration, is_mce, measured_in, parse, std_of, was_mce
from robust_interp.results.columns import (
    ENTRY,
    LEADERBOARD,
    OF_IMAGES_COLUMNS,
    TAIL_COLUMNS,
    Type,
    integers,
)
from robust_interp.results.folders import bundled_boards, dataset_in, runs_in
from robust_interp.results.leaderboard import board_columns
from robust_interp.results.newest import by_age
from robust_interp.results.ranks import ranked_by, ranked_by_in_file

_DTYPES: dict[Type, Literal["Int64", "float64"]] = {Type.INTEGER: "Int64", Type.NUMBER: "float64"}


class Gathered(NamedTuple):
    """A leaderboard combined from several sources.

    Attributes:
        board: The rows.
        title: Title of the leaderboard.
        ranked_by: The column that determines the ranks, by protocol.
    """

    board: pd.DataFrame
    title: str
    ranked_by: dict[str, str]


def gather(
    sources: Sequence[Path], dataset: str | None = None, partial: bool = False, newest: bool = False
) -> Gathered:
    """Combine several sources into one leaderboard.

    The runs of all results folders are merged and ranked. The rows of the CSV files follow. A file contains
    the number of images but not which images, so its rows have no rank if there are other sources. A file
    without any indication of its data set is assumed to be for the same data set as the others.

    Args:
        sources: Results folders, leaderboard CSV files, and names of bundled leaderboards such as
            ``robustbench``. An existing path is preferred.
        dataset: Name of the data set to choose, if the folders or files have several.
        partial: Whether to add what is complete of unfinished runs.
        newest: Whether to leave out the older weights of networks of the folders that were trained again.

    Raises:
        UserError: If a source is missing or invalid, or if the sources are for several data sets.
    """
    files, folders = _apart(sources)
    dataset = dataset_of(sources, dataset, partial)
    frames, titles = [], []
    if folders:
        runs, dataset = runs_in(folders, dataset, partial)
        age = by_age(runs)
        if newest and (again := age.trained_again()):
            runs = age.newest
            said = f"trained again, only the newest weights count: {', '.join(again)}"
            warnings.warn(said, IgnoredWarning, stacklevel=2)
        frames.append(leaderboard.entries_frame(*runs))
        titles.append(dataset)
    for path in files:
        board = read(path, dataset)
        if len(sources) > 1:
            board["rank"] = _no_rank(board)
        frames.append(board)
        titles.append(path.name)
    board = frames[0] if len(frames) == 1 else _stacked(frames)
    ranked = ranked_by(frames[0]) if folders else ranked_by_in_file(board)
    return Gathered(board, " + ".join(titles), ranked)


def dataset_of(sources: Sequence[Path], dataset: str | None = None, partial: bool = False) -> str | None:
    """Return the data set of the sources; None if it is not named and cannot be inferred.

    Results folders store their data set. For a leaderboard file it is inferred from a file name such as
    ``leaderboards/cifar10.csv`` or ``paper_cifar10.csv``.

    Args:
        sources: Results folders, leaderboard CSV files, and names of bundled leaderboards such as
            ``robustbench``. An existing path is preferred.
        dataset: Name of the data set, if the folders have several or it cannot be inferred.
        partial: Whether unfinished runs count, too.

    Raises:
        UserError: For the same reasons as `folders.dataset_in`, or if a file name has another data set.
    """
    files, folders = _apart(sources)
    if folders:
        dataset = dataset_in(folders, dataset, partial)
    for path in files:
        called = path.stem.removeprefix("paper_")
        if called in DATASETS:
            if dataset not in (None, called):
                raise UserError(
                    f"{path} is for {called} by its name, not for {dataset}: give sources of one data set"
                )
            dataset = called
    return dataset


def _apart(sources: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Return the files and the folders among the sources, with the paths of bundled leaderboards."""
    paths = [_located(source) for source in sources]
    files = [path for path in paths if path.is_file() or path.suffix == ".csv"]
    return files, [path for path in paths if path not in files]


def _located(source: Path) -> Path:
    """Return the path of a source: of a bundled leaderboard if there is nothing else of that name.

    Raises:
        UserError: If there is neither a path nor a bundled leaderboard of that name.
    """
    if source.exists() or source.suffix == ".csv":
        return source
    if str(source) not in (bundled := bundled_boards()):
        raise UserError(
            f"there are no results in {source}: run robust-interp bench --out {source}, or name a bundled "
            f"leaderboard: {', '.join(sorted(bundled))}"
        )
    return bundled[str(source)]


def read(path: Path, dataset: str | None = None) -> pd.DataFrame:
    """Read a leaderboard CSV file. Rows whose source is not `measured` get no rank.

    Args:
        path: Path of the file.
        dataset: Name of the data set to choose, if the file has a column `dataset` with several.

    Raises:
        UserError: If the file cannot be read, has invalid columns or values, or is for several data sets and
            none is chosen.
    """
    try:
        board = pd.read_csv(path, dtype=str, keep_default_na=False)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"cannot read {path}: {reason_of(error)}{_separator(path)}") from error
    board = board[(board != "").any(axis=1)].reset_index(drop=True)  # spreadsheets may end with empty lines
    board = board.drop(columns=[n for n in map(str, board) if is_mce(n) or was_mce(n)])  # computed on request
    if "dataset" in board:
        board = _of_dataset(path, board, dataset)
    measured = measured_in(board)
    columns = board_columns(measured, _extra([board]))
    may_lack = [column.name for column in ENTRY if column.optional]
    board = board.assign(**{name: "" for name in may_lack if name not in board})
    for what, names in (
        ("lacks", [name for name in columns if name not in board]),
        ("also has", [name for name in map(str, board) if name not in columns]),
    ):
        if names:
            raise UserError(f"{path} is not a leaderboard: it {what} {', '.join(names)}{_separator(path)}")
    if board.empty:
        raise UserError(f"{path} has no rows")
    for column in columns:
        if (dtype := _DTYPES.get(declaration(column).type)) is not None:
            board[column] = _numbers(path, board[column], dtype)
        elif column in OF_IMAGES_COLUMNS:
            board[column] = board[column].mask(board[column] == "")
    if board["members"].isna().any():
        raise UserError(f"{path} is not a leaderboard: a row has no members; for a single model write 1")
    for column, low, high in (
        *((name, 1, math.inf) for name in ("members", "n_examples", "strong_n") if name in board),
        *((name, 0, 100) for name in measured),
    ):
        told = board[column].dropna()
        if not told.between(low, high).all():
            raise UserError(f"{path} is not a leaderboard: {column} is out of range")
    board["rank"] = board["rank"].where(board["source"] == "measured", _no_rank(board))
    return board[columns]


def _separator(path: Path) -> str:
    """Return a hint if the columns of a file are separated by semicolons; else an empty string."""
    try:
        with path.open(encoding="utf-8-sig", errors="replace") as file:
            first = file.readline()
    except OSError:
        return ""
    return "; its columns are separated by ; and must be by , with . in numbers" if ";" in first else ""


def _of_dataset(path: Path, board: pd.DataFrame, dataset: str | None) -> pd.DataFrame:
    """Return the rows of one data set, without optional columns that are empty for all of them."""
    found = sorted(set(board["dataset"])) or [dataset]
    if dataset is None and len(found) > 1:
        raise UserError(f"{path} has rows for {', '.join(found)}: choose one with --dataset")
    board = board[board["dataset"] == (dataset or found[0])].drop(columns="dataset").reset_index(drop=True)
    if dataset not in (None, *found):
        raise UserError(f"{path} has no row for {dataset}, only for {', '.join(found)}")
    empty = {name for name in map(str, board) if (board[name] == "").all()}
    unmeasured = [
        name for column in measured_in(board) for name in (column, std_of(column)) if column in empty
    ]
    return board.drop(columns=[*unmeasured, *empty.intersection(TAIL_COLUMNS)])


def pick(board: pd.DataFrame, patterns: Iterable[str]) -> pd.DataFrame:
    """Return the rows of the models that match any of the patterns. Ranks are not changed.

    Args:
        board: The leaderboard.
        patterns: Model names or glob patterns.

    Raises:
        UserError: If a pattern matches no model.
    """
    chosen = all_matching("model", patterns, dict.fromkeys(board["model"]))
    return board[board["model"].isin(chosen)].reset_index(drop=True)


def sort(board: pd.DataFrame, column: str) -> pd.DataFrame:
    """Sort the rows by one column. Empty values are last.

    Accuracies, agreement and improvement are sorted in descending order, other columns in ascending order.

    Raises:
        UserError: If the column is unknown.
    """
    if column not in board:
        raise unknown("column", column, board.columns)
    upwards = not declaration(column).from_the_best
    return board.sort_values(column, ascending=upwards, kind="stable", na_position="last", ignore_index=True)


def _extra(boards: list[pd.DataFrame]) -> list[str]:
    return [column for column in TAIL_COLUMNS if any(column in board for board in boards)]


def _no_rank(board: pd.DataFrame) -> pd.Series:
    return pd.Series(pd.NA, index=board.index, dtype="Int64")


def _numbers(path: Path, texts: pd.Series, dtype: Literal["Int64", "float64"]) -> pd.Series:
    try:
        numbers = pd.to_numeric(texts.where(texts != "", None))
        if numbers.isin([math.inf, -math.inf]).any():
            raise ValueError("it is infinite")
        return numbers.astype(dtype)
    except (ValueError, TypeError, OverflowError) as error:
        raise UserError(f"{path} is not a leaderboard: {texts.name} is not a number: {error}") from error


def _stacked(frames: list[pd.DataFrame]) -> pd.DataFrame:
    names = dict.fromkeys(column for frame in frames for column in measured_in(frame))
    columns = board_columns(_in_order(names), _extra(frames))
    types = dict.fromkeys(integers(LEADERBOARD), "Int64") | {"params_m": "float64"}
    typed = [frame.astype({name: types[name] for name in types if name in frame}) for frame in frames]
    stacked = pd.concat(typed, ignore_index=True).reindex(columns=columns)
    return stacked.fillna(
        dict.fromkeys(("attack_precision", "weights", "worst_attacks", "strong_attacks"), "")
    )


def _in_order(names: Iterable[str]) -> list[str]:
    """Sort measured columns into the order of the leaderboard."""
    # The order of the corruptions must not depend on the installed plug-ins.
    built_in = [name for name in CORRUPTIONS if CORRUPTIONS.origins(name)[0] is BUILT_IN]
    found = [parse(name, built_in) for name in names]
    series = [*MEANS, *built_in, *(column.series for column in found)]
    return [
        column.name for column in sorted(found, key=lambda c: (c.kind, series.index(c.series), c.strength))
    ]

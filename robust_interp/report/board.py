"""The leaderboard on the report's page: the names of its rows, its cells and the ranking column."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from robust_interp.core.percent import percent
from robust_interp.report.glossary import anchor, definition
from robust_interp.results.brief import shorten, text_of
from robust_interp.results.column_names import declaration, std_of
from robust_interp.results.columns import ENTRY, TAIL, Shown, Type
from robust_interp.results.intervals import ends_in_short, interval
from robust_interp.results.ranks import APART, attacks_behind, unranked, why_not

MEASURED = "measured"  # value of `source` in rows that were measured, not quoted
_TAIL = [column.name for column in (*ENTRY, *TAIL) if column.shown in (Shown.IF_FILLED, Shown.IN_REPORT)]
_IN_LABEL = ("recipe", "lambda_init", "source")  # shown with the model's name, not in a column
_WITHIN = ["protocol", "n_examples"]  # equal for all rows of a group, beside what else rows are ranked within
_WORDS = {"attack_precision": "attacks in ", "attacks": "worst of ", "skipped": "skipped images: "}


def table(board: pd.DataFrame, corruptions: Collection[str], ranked_by: Mapping[str, str]) -> dict:
    """Return the rows by group, and the columns, as arguments of `page.html`.

    Args:
        board: Leaderboard from `combine.gather`.
        corruptions: Names of the measured corruptions.
        ranked_by: The column that determines the ranks, by protocol, from `combine.gather`.
    """
    head, shown = shorten(board)
    numbers = [name for name in shown if std_of(name) in board]
    tail = [name for name in _TAIL if name in board and name not in head and _is_told(board[name])]
    first = [name for name in ("rank", "model") if name in head]
    rest = [name for name in head if name not in (*first, *_IN_LABEL)]
    columns = [*first, *numbers, *rest, *tail]
    ranked = set(board["protocol"][board["rank"].notna()])
    ranking = {protocol: column for protocol, column in ranked_by.items() if protocol in ranked}
    named = dict(zip(board.index, tags(board), strict=True))
    settings = {name: board[name].astype(object).fillna("").astype(str) for name in APART if name in board}
    settings |= {"attacks": attacks_behind(board, ranked_by)}
    also = {name: told for name, told in settings.items() if _differs_within(board, told)}
    groups = board.groupby([*_WITHIN, *also.values()], sort=False, dropna=False)
    is_ranked = board["rank"].notna().any() and all(_is_upwards(ranks) for _, ranks in groups["rank"])
    return {
        "columns": [
            {
                "name": name,
                "anchor": anchor(name),
                "definition": definition(name, corruptions),
                "kind": _kind(name, numbers) + (" ranks" if name in ranking.values() else ""),
                "sorted": "ascending" if name == "rank" and is_ranked else "",
            }
            for name in columns
        ],
        "ranking": list(dict.fromkeys(ranking.values())),
        "unranked": unranked(board, ranked_by),
        "groups": [
            {
                "heading": _heading(lines.iloc[0], {name: also[name][lines.index[0]] for name in also})
                if len(groups) > 1
                else "",
                "lines": [
                    _line(line, named[at], ranked_by)
                    | {"cells": [_cell(line, name, numbers, ranking) for name in columns]}
                    for at, line in lines.iterrows()
                ],
            }
            for _, lines in groups
        ],
    }


def _line(line: pd.Series, tags: list[str], ranked_by: Mapping[str, str]) -> dict:
    """Return what the page says about a row of the leaderboard besides its cells."""
    return {
        "members": line["members"],
        "source": "" if line["source"] == MEASURED else line["source"],
        "tags": tags,
        "why_no_rank": why_not(line, ranked_by) if pd.isna(line["rank"]) else "",
    }


def tags(board: pd.DataFrame) -> list[list[str]]:
    """Return, for each row, short texts that distinguish it from others with the same model and source.

    They contain the recipe if the rows have several, the interval of λ if a model has several, and other
    differences if rows of one group would still look the same.
    """
    told: dict[object, list[str]] = {at: [] for at in board.index}
    several = board["recipe"].nunique() > 1
    for _, alike in board.groupby("model", sort=False):
        intervals = alike["lambda_init"].nunique() > 1
        for at, line in alike.iterrows():
            if several and _text(line["recipe"]) not in ("", line["source"]):
                told[at].append(_text(line["recipe"]))
            if intervals and _text(line["lambda_init"]):
                told[at].append(f"λ {line['lambda_init'].replace('-', '–')}")
    for _, alike in board.groupby([*_WITHIN, "model", "members", "source"], sort=False, dropna=False):
        _tell_apart(alike, told)
    return list(told.values())


def _tell_apart(alike: pd.DataFrame, told: dict[object, list[str]]) -> None:
    for name in (
        "seeds",
        "worst_attacks",
        "strong_attacks",
        "weights",
        "corruption_source",
        "attack_precision",
        "eot",
        "audit",
        "params_m",
    ):
        clashing = _clashing(alike.index, told)
        if name in alike and alike.loc[clashing, name].nunique(dropna=False) > 1:
            for at in clashing:
                value = _text(alike.loc[at, name])
                if value or name not in ("weights", "worst_attacks", "strong_attacks"):
                    told[at].append(f"{declaration(name).name.replace('_', ' ')} {value or 'unknown'}")
    for number, at in enumerate(_clashing(alike.index, told), 1):
        told[at].append(f"no. {number}")


def _clashing(rows: Iterable, told: dict[object, list[str]]) -> list:
    names = {at: tuple(told[at]) for at in rows}
    return [at for at, name in names.items() if list(names.values()).count(name) > 1]


def _text(value: Any) -> str:
    return "" if pd.isna(value) else str(value)


def _differs_within(board: pd.DataFrame, told: pd.Series) -> bool:
    """Return whether rows of one protocol differ in a setting."""
    return bool((told.groupby(board["protocol"]).nunique() > 1).any())


def _heading(line: pd.Series, also: Mapping[str, str]) -> str:
    """Return the heading of a group: protocol and n, and the settings `also` that its rows share."""
    n = line["n_examples"]
    parts = [f"protocol {line['protocol']}", "" if pd.isna(n) else f"n = {n}"]
    parts += [_WORDS.get(name, "") + text for name, text in also.items() if text]
    return ", ".join(filter(None, parts))


def _is_told(column: pd.Series) -> bool:
    return bool((column.notna() & (column.astype(str) != "")).any())


def _is_upwards(rank: pd.Series) -> bool:
    """Return whether rows are sorted by rank, with unranked rows last."""
    return rank.astype(float).fillna(math.inf).is_monotonic_increasing


def _kind(name: str, numbers: Sequence[str]) -> str:
    if name == "model":
        return "name text"
    if name in numbers:
        return "accuracy"
    return "text" if declaration(name).type is Type.TEXT else "number"


def _cell(line: pd.Series, name: str, numbers: Sequence[str], ranking: dict[str, str]) -> dict:
    kind, value = _kind(name, numbers), line[name]
    mark = " ranks" if ranking.get(line["protocol"]) == name else ""
    cell = {"kind": kind + mark, "tag": "th" if name == "model" else "td", "std": "", "interval": ""}
    if pd.isna(value):
        return cell | {"value": "", "text": ""}
    if kind == "accuracy":
        std, ends = line[std_of(name)], interval(line, name)
        return cell | {
            "value": f"{value:.10g}",
            "text": percent(value),
            "std": "" if pd.isna(std) else percent(std),
            "interval": ends_in_short(ends) if ends else "",
        }
    if name == "model" and line["members"] > 1:
        return cell | {"value": value, "text": f"{value} ×{line['members']}"}
    return cell | {"value": value, "text": text_of(name, value)}

"""Entries -> the leaderboard, a line each, ranked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from robust_interp.core import statistics
from robust_interp.corruptions import MEANS, SEVERITIES
from robust_interp.results.column_names import MeasuredColumn, parse, std_of
from robust_interp.results.columns import (
    ACCURACY,
    ENTRY,
    ENTRY_COLUMNS,
    SOURCE,
    SOURCE_COLUMNS,
    TAIL,
    TAIL_COLUMNS,
    Kind,
    integers,
)
from robust_interp.results.entries import Entry, entries_of
from robust_interp.results.scores import Score
from robust_interp.store.cells import digest

RANKED_BY = {"final": "pgd", "worst": "worst"}  # at the middle one of the measured radii


def entries_frame(*runs: list[Score]) -> pd.DataFrame:
    """The leaderboard of one or more runs: one line an entry.

    Accuracies are percentages, each followed by its ``_std`` over train seeds. An ensemble's `agreement` is
    that on clean images, its `improvement` that of the column that ranks. Runs of the same entry over
    the same train seeds and samples share a line, unless their noise or their attacks were drawn otherwise,
    or attacked in another precision.
    """
    measured = measured_columns([score for run in runs for score in run])
    ranking = {protocol: middle(measured, series) for protocol, series in RANKED_BY.items()}
    entries = entries_of(runs)
    lines = [_line(entry, measured, ranking[entry.protocol]) for entry in entries]
    extra = [column for column in TAIL_COLUMNS if any(line[column] for line in lines)]
    frame = pd.DataFrame(lines).reindex(columns=board_columns([column.name for column in measured], extra))
    frame = frame.astype({column: "Int64" for column in integers(TAIL) if column in extra})
    frame["rank"] = _ranks(entries, lines, ranking)
    apart = [name for name in ("preprocessing", "subset", "attack_precision") if name in extra]
    return frame.sort_values(
        ["protocol", "n_examples", *apart, "rank", "model", "recipe", "lambda_init", "members"],
        na_position="last",
        ignore_index=True,
    )


def board_columns(measured: Iterable[str], extra: Iterable[str] = ()) -> list[str]:
    """A leaderboard's columns in their order; `extra` are those of TAIL_COLUMNS that it has."""
    both = [name for column in measured for name in (column, std_of(column))]
    return [*ENTRY_COLUMNS, *both, *extra, *SOURCE_COLUMNS]


def measured_columns(scored: Iterable[Score]) -> list[MeasuredColumn]:
    """The columns that scores fill: clean, means, corruptions, severities, attacks by radius, worst, strong.

    A corruption has one column where a classifier has all its severities, and one a severity where another
    lacks some.
    """
    scored = list(scored)
    seen = list({score.column: score.measured for score in scored}.values())
    found, complete = _severities(scored), set(SEVERITIES)
    whole = [name for name, by_classifier in found.items() if complete in by_classifier]
    in_part = [name for name, by_classifier in found.items() if any(s != complete for s in by_classifier)]
    means = [mean for mean, names in MEANS.items() if set(names) <= set(whole)]
    shown = [column for column in seen if column.kind is not Kind.SEVERITY or column.series in in_part]
    series = list(dict.fromkeys(column.series for column in seen))

    def place(column: MeasuredColumn) -> tuple:
        """By kind; attacks by series as first asked for, then by radius; all else as it came."""
        at = (series.index(column.series), column.strength) if column.is_attack else ()
        return column.kind, *at

    return sorted([*map(parse, means), *(parse(name, whole) for name in whole), *shown], key=place)


def _severities(scored: Iterable[Score]) -> dict[str, list[set[int]]]:
    """By corruption, which of its severities each classifier was measured at."""
    found: dict[str, dict[str, set[int]]] = {}
    for score in scored:
        column = score.measured
        if column.kind is Kind.SEVERITY and column.severity is not None:
            by_classifier = found.setdefault(column.series, {})
            by_classifier.setdefault(digest(score.classifier.identity), set()).add(column.severity)
    return {name: list(by_classifier.values()) for name, by_classifier in found.items()}


def middle(measured: Sequence[MeasuredColumn], series: str) -> str | None:
    """The column of a series at the middle one of its radii, of which 0 is a control; None without any."""
    radii = [column.name for column in measured if column.series == series and column.radius != 0]
    return radii[len(radii) // 2] if radii else None


def _line(entry: Entry, measured: Iterable[MeasuredColumn], ranking: str | None) -> dict:
    """All of an entry but its rank; of accuracies those that all of its train seeds have."""
    line = {column.name: column.of(entry) for column in (*ENTRY, *TAIL, *SOURCE) if column.of}
    line["improvement"] = math.nan if ranking is None else entry.improvements.get(ranking, math.nan)
    for column in measured:
        known = [_accuracy(column, scored) for scored in entry.by_seed.values()]
        values = [value for value in known if value is not None]
        if len(values) == len(known):  # never a mean over fewer seeds than the line says
            line[column.name], line[std_of(column.name)] = statistics.mean_std(values)
    return line


def _accuracy(column: MeasuredColumn, scored: dict[str, Score]) -> float | None:
    """Of one classifier: as measured, else the mean of the column's parts; None where one is missing."""
    if column.name in scored:
        return scored[column.name].accuracy
    known = [_accuracy(part, scored) for part in column.parts]
    parts = [value for value in known if value is not None]
    return math.fsum(parts) / len(parts) if parts and len(parts) == len(known) else None


def _ranks(entries: Sequence[Entry], lines: Sequence[dict], ranking: dict[str, str | None]) -> pd.Series:
    """Places among entries of the same protocol, samples, precision and attacks, attacked themselves.

    They go by what leaderboard.csv shows: equal numbers there have equal ranks.
    """
    by = [ranking[entry.protocol] for entry in entries]
    accuracies = [
        math.nan if entry.card.attacked_as else line.get(column, math.nan)
        for entry, line, column in zip(entries, lines, by, strict=True)
    ]
    rivals = [
        [entry.protocol for entry in entries],
        [entry.subset_hash for entry in entries],
        [entry.attack_precision for entry in entries],
        [entry.worst.get(column or "", "") for entry, column in zip(entries, by, strict=True)],
    ]
    shown = [float(f"{accuracy:{ACCURACY}}") for accuracy in accuracies]
    places = pd.Series(shown, dtype=float).groupby(rivals).rank(ascending=False, method="min")
    return places.astype("Int64")

"""The leaderboard: one row per entry, ranked."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from robust_interp.core import statistics
from robust_interp.corruptions import MEANS, SEVERITIES
from robust_interp.results.column_names import MeasuredColumn, parse, std_of
from robust_interp.results.columns import (
    DECIMALS,
    ENTRY,
    ENTRY_COLUMNS,
    SOURCE,
    SOURCE_COLUMNS,
    TAIL,
    TAIL_COLUMNS,
    Kind,
    Type,
    integers,
)
from robust_interp.results.entries import Entry, entries_of
from robust_interp.results.ranks import APART, attacks_behind, ranked_by
from robust_interp.results.scores import Score
from robust_interp.store.cells import digest


def entries_frame(*runs: list[Score]) -> pd.DataFrame:
    """Return the leaderboard of one or more runs, one row per entry.

    Accuracies are percentages, each followed by its ``_std`` over train seeds. The `agreement` of an ensemble
    is measured on clean images, its `improvement` in the ranking column. Runs of the same entry with the same
    train seeds and images share a row, unless they differ in corruption source, attack seed, attacks behind
    a column, or precision of the attacks. Rows are in the order of their protocol, of their number of images,
    the largest first, and of their rank.

    Args:
        *runs: Scores of each run, oldest run first.
    """
    entries = entries_of(runs)
    measured = measured_columns(scored.values() for entry in entries for scored in entry.by_seed.values())
    lines = [_line(entry, measured) for entry in entries]
    _tell_weights_apart(entries, lines)
    extra = [column for column in TAIL_COLUMNS if any(line[column] for line in lines)]
    frame = pd.DataFrame(lines).reindex(columns=board_columns([column.name for column in measured], extra))
    frame = frame.astype({column: "Int64" for column in integers(TAIL) if column in extra})
    ranking = ranked_by(frame)
    by = [ranking.get(entry.protocol, "") for entry in entries]
    frame["improvement"] = [
        entry.improvements.get(column, math.nan) for entry, column in zip(entries, by, strict=True)
    ]
    frame["attacks"] = attacks_behind(frame, ranking)
    frame["rank"] = _ranks(entries, lines, by, frame["attacks"])
    apart = [name for name in APART if name in extra]
    order = ["protocol", "n_examples", *apart, "attacks", "rank", "model", "recipe", "lambda_init", "members"]
    upwards = [name != "n_examples" for name in order]  # the most images first
    ordered = frame.sort_values(order, ascending=upwards, na_position="last", ignore_index=True)
    return ordered.drop(columns="attacks")


def board_columns(measured: Iterable[str], extra: Iterable[str]) -> list[str]:
    """Return the columns of a leaderboard in order; `extra` are those of TAIL_COLUMNS that it has."""
    both = [name for column in measured for name in (column, std_of(column))]
    return [*ENTRY_COLUMNS, *both, *extra, *SOURCE_COLUMNS]


def measured_columns(rows: Iterable[Iterable[Score]]) -> list[MeasuredColumn]:
    """Return the measured columns of scores: clean, means, corruptions, severities, attacks, worst, strong.

    A corruption has one column if a classifier has all its severities in one row. Where one has only some of
    them, each of these has a column. There are both if both occur.

    Args:
        rows: The scores of each classifier of each row.
    """
    rows = [list(row) for row in rows]
    seen = list({score.column: score.measured for row in rows for score in row}.values())
    found, complete = _severities(rows), set(SEVERITIES)
    whole = [name for name, of_rows in found.items() if complete in of_rows]
    in_part = {
        (name, s) for name, of_rows in found.items() for some in of_rows if some != complete for s in some
    }
    means = [mean for mean, names in MEANS.items() if set(names) <= set(whole)]
    shown = [c for c in seen if c.kind is not Kind.SEVERITY or (c.series, c.severity) in in_part]
    series = list(dict.fromkeys(column.series for column in seen))

    def place(column: MeasuredColumn) -> tuple:
        """Sort by kind; attacks by series, as first requested, then by radius."""
        at = (series.index(column.series), column.strength) if column.is_attack else ()
        return column.kind, *at

    return sorted([*map(parse, means), *(parse(name, whole) for name in whole), *shown], key=place)


def _severities(rows: Iterable[Iterable[Score]]) -> dict[str, list[set[int]]]:
    """Return the severities at which each classifier of a row was measured, by corruption."""
    found: dict[str, list[set[int]]] = {}
    for row in rows:
        of_row: dict[str, set[int]] = {}
        for column in (score.measured for score in row):
            if column.kind is Kind.SEVERITY and column.severity is not None:
                of_row.setdefault(column.series, set()).add(column.severity)
        for name, severities in of_row.items():
            found.setdefault(name, []).append(severities)
    return found


def _line(entry: Entry, measured: Iterable[MeasuredColumn]) -> dict:
    """Return the row of an entry without what depends on the ranking column, the rank and the improvement.

    It has the accuracies that all train seeds have.
    """
    line = {column.name: column.of(entry) for column in (*ENTRY, *TAIL, *SOURCE) if column.of}
    for column in measured:
        known = [_accuracy(column, scored) for scored in entry.by_seed.values()]
        values = [value for value in known if value is not None]
        if len(values) == len(known):  # no mean over fewer seeds than the column `seeds` says
            line[column.name], line[std_of(column.name)] = statistics.mean_std(values)
    return line


def _tell_weights_apart(entries: Sequence[Entry], lines: Sequence[dict]) -> None:
    """Fill the column `weights` of lines that are equal in all other columns that describe a row."""
    described = [column.name for column in (*ENTRY, *TAIL, *SOURCE) if column.type is Type.TEXT]
    described += ["seeds", "members", "n_examples", "strong_n"]
    alike: dict[tuple, list[int]] = {}
    for at, line in enumerate(lines):
        line["weights"] = ""
        alike.setdefault(tuple(str(line.get(name)) for name in described if name != "audit"), []).append(at)
    for group in alike.values():
        if len({frozenset(entries[at].by_seed) for at in group}) == 1:
            continue  # the same weights, measured in another way
        told = [entries[at].weights for at in group]
        for at, text in zip(group, told, strict=True):
            is_clear = told.count(text) == 1  # not so for a seed that was trained again
            lines[at]["weights"] = text if is_clear else f"{text} #{digest(sorted(entries[at].by_seed))[:6]}"


def _accuracy(column: MeasuredColumn, scored: dict[str, Score]) -> float | None:
    """Return the accuracy of a classifier: measured, or the mean of the column's parts; else None."""
    if column.name in scored:
        return scored[column.name].accuracy
    known = [_accuracy(part, scored) for part in column.parts]
    parts = [value for value in known if value is not None]
    return math.fsum(parts) / len(parts) if parts and len(parts) == len(known) else None


def _ranks(
    entries: Sequence[Entry], lines: Sequence[dict], by: Sequence[str], attacks: Iterable[str]
) -> pd.Series:
    """Rank entries of the same protocol, images, attack precision and `attacks`, each by its column in `by`.

    Entries under transfer attacks get no rank, and neither do those that are not better than guessing on
    clean images: a constant classifier keeps its accuracy under every attack. Accuracies are first rounded
    as in leaderboard.csv, so that equal numbers there have equal ranks.
    """
    accuracies = [
        math.nan if entry.card.attacked_as or entry.at_chance else line.get(column, math.nan)
        for entry, line, column in zip(entries, lines, by, strict=True)
    ]
    rivals = [
        [entry.protocol for entry in entries],
        [entry.subset_hash for entry in entries],
        [entry.attack_precision for entry in entries],
        list(attacks),
    ]
    shown = [round(accuracy, DECIMALS) for accuracy in accuracies]
    places = pd.Series(shown, dtype=float).groupby(rivals).rank(ascending=False, method="min")
    return places.astype("Int64")

"""Scores -> the tables that the report's figures are drawn from, and the leaderboard's intervals."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import pandas as pd

from robust_interp import metrics
from robust_interp.cells import digest
from robust_interp.leaderboard import Score, entry_key

POINT_COLUMNS = [
    "entry",
    "members",
    "kind",
    "series",
    "x",
    "norm",
    "n",
    "seeds",
    "accuracy",
    "std",
    "band_low",
    "band_high",
    "corruption_source",
]
CLEAN, ATTACK, CORRUPTION = "clean", "attack", "corruption"


def points(scored: Sequence[Score]) -> pd.DataFrame:
    """The accuracy of each entry at each strength of each perturbation, in percent.

    Returns:
        One line an entry and perturbation: `series` is the attack or corruption, `x` its eps (in 1/255 under
        L∞) or severity, 0 for clean. The band is one standard deviation to each side where there are several
        train seeds, else the 95 % Wilson interval. Strong attacks, made on images of their own, are left out.
    """
    scored = [score for score in _newest(scored) if not score.column.startswith("strong_")]
    names = entry_names(scored)
    runs: dict[tuple, dict[str, Score]] = {}
    draws: dict[tuple, set[str]] = {}
    for score in scored:
        if place := _place(score):
            entry, drawn = _entry(score), _draw(score)
            runs.setdefault((entry, score.column, drawn), {})[digest(score.victim.identity)] = score
            draws.setdefault((entry, place[1]), set()).add(drawn)
    lines = []
    for (entry, _, drawn), alike in runs.items():
        point = _point(list(alike.values()))
        is_one_of_several = len(draws[entry, point["series"]]) > 1
        lines.append({"entry": _tagged(names[entry], drawn if is_one_of_several else "")} | point)
    return pd.DataFrame(lines, columns=POINT_COLUMNS)


def _newest(scored: Sequence[Score]) -> list[Score]:
    """Without what was measured of a train seed's old weights: a seed that was trained again is one seed."""
    identities = {(_entry(score), score.victim.train_seed): digest(score.victim.identity) for score in scored}
    return [
        score
        for score in scored
        if identities[_entry(score), score.victim.train_seed] == digest(score.victim.identity)
    ]


def _draw(score: Score) -> str:
    """What tells apart measurements of one column that were drawn differently; empty without any draw."""
    seed = score.row.get("attack_seed")
    return score.row.get("corruption_source") or ("" if seed is None or pd.isna(seed) else f"seed {seed}")


def _tagged(name: str, tag: str) -> str:
    model, times, members = name.partition(" ×")
    return f"{model} ({tag}){times}{members}" if tag else name


def _entry(score: Score) -> tuple:
    return *entry_key(score.victim), score.row["protocol"], score.row["subset_hash"], score.row["n"]


def _place(score: Score) -> tuple[str, str, float] | None:
    """Kind, series and strength; None for an attack that has no radius."""
    if score.column == "clean":
        return CLEAN, "clean", 0.0
    series, _, strength = score.column.rpartition("_")
    try:
        x = float(strength)
    except ValueError:
        return None
    return (CORRUPTION if not pd.isna(score.row.get("severity")) else ATTACK), series, x


def _point(alike: list[Score]) -> dict:
    first, accuracies = alike[0], [score.accuracy for score in alike]
    kind, series, x = _place(first)
    mean, std = metrics.mean_std(accuracies)
    if len(alike) > 1:
        band = max(0.0, mean - std), min(100.0, mean + std)
    else:
        band = first.row["ci_low"], first.row["ci_high"]
    return {
        "members": first.victim.members,
        "kind": kind,
        "series": series,
        "x": x,
        "norm": first.row.get("norm"),
        "n": first.row["n"],
        "seeds": len(alike),
        "accuracy": mean,
        "std": std,
        "band_low": band[0],
        "band_high": band[1],
        "corruption_source": first.row.get("corruption_source") or "",
    }


def entry_names(scored: Iterable[Score]) -> dict[tuple, str]:
    """What figures call the entries: the model, and of the rest only what tells entries apart.

    An ensemble has the name of its single models and ` ×members` after it.
    """
    entries = {_entry(score): score for score in scored}
    told = {entry: [_tags(score)[0]] for entry, score in entries.items()}
    for at in range(1, 5):
        for entry, score in entries.items():
            tag = _tags(score)[at]
            rivals = [
                _tags(other)[at]
                for key, other in entries.items()
                if told[key][0] == told[entry][0] and other.victim.members == score.victim.members
            ]
            if tag and len(set(rivals)) > 1:
                told[entry].append(tag)
    return {
        entry: " ".join(tags)
        + (f" ×{entries[entry].victim.members}" if entries[entry].victim.members > 1 else "")
        for entry, tags in told.items()
    }


def _tags(score: Score) -> tuple[str, ...]:
    card, row = score.victim, score.row
    interval = f"λ {card.lambda_init}" if card.lambda_init else ""
    recipe = f"@{card.recipe}" if card.recipe else ""
    return card.model, recipe, interval, row["protocol"], f"n={row['n']}"


def improvements(scored: Sequence[Score]) -> pd.DataFrame:
    """How far each ensemble is above the mean of its members, in percentage points.

    Returns:
        One line an ensemble and perturbation: entry, column, improvement, n. All corrupted images are one
        column, `corrupted`, the mean over its corruptions and severities. Empty if none was measured.
    """
    names, lines = entry_names(scored), []
    for score in scored:
        gain = score.row.get("improvement")
        if gain is not None and not math.isnan(gain):
            column = "corrupted" if not pd.isna(score.row.get("severity")) else score.column
            line = {"entry": names[_entry(score)], "column": column, "n": score.row["n"]}
            lines.append(line | {"cell": score.column, "improvement": gain})
    table = pd.DataFrame(lines, columns=["entry", "column", "n", "cell", "improvement"])
    table = table.drop_duplicates(["entry", "cell", "n"], keep="last")
    return table.groupby(["entry", "column", "n"], sort=False, as_index=False)["improvement"].mean()


def interval(line: pd.Series, column: str) -> tuple[float, float] | None:
    """95 % interval of an accuracy on a leaderboard, in percent; None where there is none to be had.

    Over several train seeds it is Student's t around their mean, cut at 0 and 100, unless they agree exactly:
    of their spread nothing is known then. Otherwise it is Wilson's over the images, which a mean over
    severities does not have: its terms share their images.
    """
    mean, std, seeds = line[column], line[f"{column}_std"], line["seeds"]
    if pd.isna(mean):
        return None
    if pd.notna(std) and pd.notna(seeds) and seeds > 1:
        low, high = metrics.t_interval_of(mean, std, int(seeds))
        return (max(0.0, low), min(100.0, high)) if std else None
    n = line["strong_n"] if column.startswith("strong_") else line["n_examples"]
    is_over_seeds = pd.notna(std) or (line["members"] == 1 and pd.notna(seeds) and seeds > 1)
    if pd.isna(n) or is_over_seeds or not _is_one_measurement(column):
        return None
    return metrics.wilson(round(mean * int(n) / 100), int(n))


def _is_one_measurement(column: str) -> bool:
    """Whether an accuracy is a share of the images: clean, or at one radius or severity."""
    strength = column.rpartition("_")[2]
    return column == "clean" or strength.replace(".", "", 1).isdigit()

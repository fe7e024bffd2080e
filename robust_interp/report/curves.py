"""Compute the tables of the report's figures from scores."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

import numpy as np
import pandas as pd

from robust_interp.core import statistics
from robust_interp.core.architectures import has_lambda
from robust_interp.core.errors import UserError
from robust_interp.core.registry import all_matching
from robust_interp.results import paper
from robust_interp.results.column_names import measured_in, parse
from robust_interp.results.columns import Kind
from robust_interp.results.entries import Entry, entries_of
from robust_interp.results.entry_names import entry_names
from robust_interp.results.intervals import over_seeds
from robust_interp.results.newest import by_age
from robust_interp.results.scores import Score
from robust_interp.store.cells import ModelCard, digest, in_255

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
DIFFERENCE_COLUMNS = [*POINT_COLUMNS[:3], "series", "x", "norm", "n", "difference", "low", "high", "baseline"]
_PUBLISHED = 4  # largest number of published models in a figure
_CURVES = (Kind.CLEAN, Kind.ATTACK, Kind.WORST)
CLEAN, ATTACK, CORRUPTION = "clean", "attack", "corruption"


def points(runs: Iterable[Sequence[Score]]) -> pd.DataFrame:
    """Return the accuracy of each entry at each strength of each perturbation, in percent.

    Runs are merged as in the leaderboard: an entry is a row there, and a point exists if the row has the
    number. An entry is split further only if its radii were attacked with different parameters, because a
    line through them would not belong to one attack.

    Args:
        runs: Scores of each run, oldest run first.

    Returns:
        One row per entry and perturbation. `series` is the attack or corruption, `x` its eps (in units of
        1/255 for Linf) or severity, 0 for clean. The band is the 95 % interval of the leaderboard: Student's
        t over train seeds if there are several, cut at 0 and 100, else Wilson's over the images. It is NaN if
        all seeds agree exactly. Strong attacks, which use other images, are left out.
    """
    lines = [{"entry": name} | _point(alike) for name, alike in _measured(runs)]
    return pd.DataFrame(lines, columns=POINT_COLUMNS)


def scores_of(runs: Iterable[Sequence[Score]], table: pd.DataFrame) -> list[Score]:
    """Return the scores that points are computed from.

    Args:
        runs: Scores of each run, oldest run first.
        table: All or some of the points, from `points`.
    """
    drawn = set(table[["entry", "kind", "series"]].itertuples(index=False, name=None))
    return [
        score
        for name, alike in _measured(runs)
        for score in alike
        if (name, _kind(score), score.measured.series) in drawn
    ]


def under_attack(table: pd.DataFrame, patterns: Iterable[str] | None) -> pd.DataFrame:
    """Return the points of attacks, and the clean points that their curves start at.

    Args:
        table: Result of `points`.
        patterns: Names or globs of attacks, as in `series` or without parameters; None returns all attacks.

    Raises:
        UserError: if there is no attack with a radius, or if a pattern matches none.
    """
    names = list(dict.fromkeys(table["series"][table["kind"] == ATTACK]))
    if not names:
        raise UserError("the results hold no accuracy under an attack with a radius: there is no curve")
    bare = table["series"].str.partition("(")[0]  # without parameters: pgd also matches pgd(steps=40)
    known = dict.fromkeys([*names, *bare[table["kind"] == ATTACK]])
    chosen = names if patterns is None else all_matching("attack", patterns, known)
    if not chosen:
        raise UserError("no attack given")
    attacked = table[(table["kind"] == ATTACK) & (table["series"].isin(chosen) | bare.isin(chosen))]
    begin = table[(table["kind"] == CLEAN) & table["entry"].isin(attacked["entry"])]
    return pd.concat([begin, attacked], ignore_index=True)


def differences(runs: Iterable[Sequence[Score]], baseline: str) -> pd.DataFrame:
    """Return the accuracy of each entry minus that of the baseline, in percentage points.

    Single models are compared with single models, ensembles with ensembles of the same number of members.
    Images, protocol and perturbation are always the same. Each entry is compared with one entry of the
    baseline: one with its recipe if there is one, of these one with its train seeds, then that with the most
    points in common, then that with the most train seeds. Accuracies without a counterpart have no row.

    Args:
        runs: Scores of each run, oldest run first.
        baseline: Name of the model to compare with.

    Returns:
        One row per entry and perturbation: entry, members, kind, series, x, norm, n, difference, its 95 %
        interval, `low` to `high`, and the name of the baseline's entry. The interval is Welch's over train
        seeds if both have several, and that of paired images between two single runs; otherwise it is NaN.
    """
    curves: dict[str, dict[str, list[Score]]] = {}
    for name, alike in _measured(runs):
        curves.setdefault(name, {})[_comparable(alike[0])] = alike
    rivals = {name: curve for name, curve in curves.items() if _card(curve).model == baseline}
    lines = []
    for name, curve in curves.items():
        found = [rival for rival in rivals if curve.keys() & rivals[rival].keys()]
        if found and name not in rivals:
            best = max(found, key=lambda rival: _likeness(curve, rivals[rival]))
            lines += [
                {"entry": name, "baseline": best} | _difference(alike, rivals[best][made])
                for made, alike in curve.items()
                if made in rivals[best]
            ]
    return pd.DataFrame(lines, columns=DIFFERENCE_COLUMNS)


def _card(curve: dict[str, list[Score]]) -> ModelCard:
    return next(iter(curve.values()))[0].classifier


def _likeness(curve: dict[str, list[Score]], rival: dict[str, list[Score]]) -> tuple[bool, bool, int, int]:
    """Return how well a rival suits: recipe, train seeds, number of common points, number of train seeds."""
    common = curve.keys() & rival.keys()
    seeds, theirs = (
        {score.classifier.train_seed for made in common for score in one[made]} for one in (curve, rival)
    )
    return _card(curve).recipe == _card(rival).recipe, seeds == theirs, len(common), len(theirs)


def _comparable(score: Score) -> str:
    row, card = score.row, score.classifier
    made = [perturbation.describe_images() for perturbation in score.perturbations]
    samples = row["protocol"], row["subset_hash"], row["n"], row.get("corruption_source")
    return digest([score.column, made, card.members, *samples, card.attacked_as if score.is_attack else ""])


def _difference(alike: list[Score], other: list[Score]) -> dict:
    point = _point(alike)
    ours, theirs = ([score.accuracy for score in scores] for scores in (alike, other))
    low = high = math.nan
    if len(alike) > 1 and len(other) > 1:
        low, high, _ = statistics.welch(ours, theirs)
    elif len(alike) == len(other) == 1:
        paired = statistics.paired_difference(alike[0].right, other[0].right)
        low, high = paired.low, paired.high
    difference = math.fsum(ours) / len(ours) - math.fsum(theirs) / len(theirs)
    return {key: point[key] for key in ("members", "kind", "series", "x", "norm", "n")} | {
        "difference": difference,
        "low": low,
        "high": high,
    }


def _measured(runs: Iterable[Sequence[Score]]) -> list[tuple[str, list[Score]]]:
    """Return, for each curve and strength, the name of the curve and the scores of all train seeds."""
    entries = entries_of(by_age(runs).newest)
    return [
        point
        for entry, name in zip(entries, entry_names(entries), strict=True)
        for point in _curves(name, _by_series(entry))
    ]


def _by_series(entry: Entry) -> dict[tuple[str, str], list[list[Score]]]:
    """Return, by kind and series, the scores of all train seeds at each strength that all of them have."""
    series: dict[tuple[str, str], list[list[Score]]] = {}
    for column in next(iter(entry.by_seed.values())):
        alike = [scored.get(column) for scored in entry.by_seed.values()]
        everywhere = [score for score in alike if score is not None]
        if len(everywhere) == len(alike) and (kind := _kind(everywhere[0])):
            series.setdefault((kind, everywhere[0].measured.series), []).append(everywhere)
    return series


def _curves(name: str, series: dict[tuple[str, str], list[list[Score]]]) -> list[tuple[str, list[Score]]]:
    lines, clean = [], series.pop((CLEAN, CLEAN), [])
    names = {name: clean}
    for strengths in series.values():
        for alike, tag in zip(strengths, _settings([scores[0] for scores in strengths]), strict=True):
            names.setdefault(tagged := _tagged(name, tag), clean)  # each curve starts at the clean images
            lines.append((tagged, alike))
    return [(tagged, alike) for tagged, begin in names.items() for alike in begin] + lines


def _settings(scores: list[Score]) -> list[str]:
    """Return, for each score of one series, the parameters that differ within the series, as a text.

    The radius is left out, since it is the x axis. A step size proportional to it is not a difference.
    """
    parameters = [_parameters(score) for score in scores]
    names = dict.fromkeys(name for each in parameters for name in each)
    differing = [name for name in names if len({str(each.get(name)) for each in parameters}) > 1]
    of_eps = [_parameters(score, relative=True) for score in scores]
    differing = [name for name in differing if len({str(each.get(name)) for each in of_eps}) > 1]
    return [", ".join(f"{name} {each[name]}" for name in differing if name in each) for each in parameters]


def _parameters(score: Score, relative: bool = False) -> dict[str, object]:
    """Return all parameters but the strength, by name.

    Args:
        score: The score.
        relative: Whether the step size is given as a share of the radius, instead of as a number.
    """
    several = len(score.perturbations) > 1
    found: dict[str, object] = {}
    if several:
        found["of"] = "+".join(made.name for made in score.perturbations)
    for made in score.perturbations:
        eps, alpha = made.number("eps"), made.number("alpha")
        for key, given in made.params.items():
            value: object = given
            if key == "alpha" and eps and alpha is not None:
                value = f"{alpha / eps:.6g} eps" if relative else _step(alpha, made.norm)
            if key not in ("eps", "severity"):
                found[f"{made.name} {key}" if several else key] = value
    return found


def _step(alpha: float, norm: str) -> str:
    return f"{in_255(alpha):g}/255" if norm == "Linf" else f"{alpha:g}"


def _tagged(name: str, tag: str) -> str:
    model, times, members = name.partition(" ×")
    return f"{model} ({tag}){times}{members}" if tag else name


def _kind(score: Score) -> str | None:
    """Return the kind of the curve of a score; None for attacks without a radius, and for strong attacks."""
    column = score.measured
    if column.kind is Kind.CLEAN:
        return CLEAN
    if column.kind is Kind.SEVERITY:
        return CORRUPTION
    return ATTACK if column.radius is not None and column.kind is not Kind.STRONG else None


def _point(alike: list[Score]) -> dict:
    first, accuracies = alike[0], [score.accuracy for score in alike]
    mean, std = statistics.mean_std(accuracies)
    band = first.row["ci_low"], first.row["ci_high"]
    if len(alike) > 1:
        band = over_seeds(mean, std, len(alike)) or (math.nan, math.nan)
    return {
        "members": first.classifier.members,
        "kind": _kind(first),
        "series": first.measured.series,
        "x": first.measured.strength,
        "norm": first.row.get("norm"),
        "n": first.row["n"],
        "seeds": len(alike),
        "accuracy": mean,
        "std": std,
        "band_low": band[0],
        "band_high": band[1],
        "corruption_source": first.row.get("corruption_source") or "",
    }


def published(
    board: pd.DataFrame, models: Collection[str], panels: Collection[tuple[str, bool]]
) -> pd.DataFrame:
    """Return published rows of a leaderboard as curves, to be drawn behind the measured curves.

    Only rows with a number for one of the panels are included, and networks with λ only with the paper's
    usual initial interval. If such rows exist for measured models, only these are included. At most four
    models are returned.

    Args:
        board: Leaderboard from `combine.gather`.
        models: Names of the measured models.
        panels: The drawn panels, as pairs: the attack, and whether it is a panel of ensembles.

    Returns:
        One row per entry and perturbation: entry, members, series, x, accuracy (percent). An entry has its
        recipe in its name if rows of its model have several, as the threat models of RobustBench.
    """
    rows = board[board["source"] != "measured"]
    rows = rows[rows["lambda_init"].fillna("") == rows["model"].map(paper.usual_interval)]
    several = rows.groupby("model")["recipe"].nunique() > 1
    columns = [(name, named) for name in measured_in(board) if (named := parse(name)).kind in _CURVES]
    lines = [
        {"model": line["model"], "entry": _published_name(line, bool(several[line["model"]]))}
        | {"members": line["members"], "series": named.series, "x": named.strength, "accuracy": line[name]}
        for _, line in rows.iterrows()
        for name, named in columns
        if pd.notna(line[name])
    ]
    table = pd.DataFrame(lines, columns=["model", "entry", "members", "series", "x", "accuracy"])
    is_drawn = [
        (series, members > 1) in panels for series, members in table[["series", "members"]].to_numpy()
    ]
    table = table[table["entry"].isin(table["entry"][is_drawn])]
    if table["model"].isin(models).any():
        table = table[table["model"].isin(models)]
    table = table[table["model"].isin(table["model"].drop_duplicates().head(_PUBLISHED))]
    return table.drop(columns="model").drop_duplicates(["entry", "members", "series", "x"], ignore_index=True)


def _published_name(line: pd.Series, with_recipe: bool) -> str:
    recipe = f" {line['recipe']}" if with_recipe else ""
    return f"{line['model']}{recipe} ({line['source']})"


def usual_baseline(cards: Iterable[ModelCard]) -> str | None:
    """Return the name of the default baseline; None if there is only one model.

    It is the first model by name that has no λ in any of its checkpoints, nor by its name; a plain network,
    which has no skip connections, only if there is no other. If all models have a λ, it is the first by name.

    Args:
        cards: Descriptions of the measured models.
    """
    cards = list(cards)
    names = {card.model for card in cards}
    without = names - {card.model for card in cards if card.lambda_init or has_lambda(card.model)}
    first = min(without or names, key=lambda name: (name.startswith("plain_net"), name), default=None)
    return first if len(names) > 1 else None


def improvements(runs: Iterable[Sequence[Score]]) -> pd.DataFrame:
    """Return the accuracy of each ensemble minus the mean of its members, in percentage points.

    Args:
        runs: Scores of each run, oldest run first.

    Returns:
        One row per ensemble and perturbation: entry, column, n, improvement, and its 95 % interval over the
        images, `low` to `high`, by Student's t. It is NaN if the members' predictions are missing, or if the
        gain of all images is the same. All corruptions are one column, `corrupted`, the mean over corruptions
        and severities. Empty if no ensemble was measured.
    """
    listed = [list(run) for run in runs]
    single = {
        (digest(score.classifier.identity), _comparable_alone(score)): score
        for run in listed
        for score in run
        if score.classifier.members == 1
    }
    entries = entries_of(by_age(listed).newest)
    gains: dict[tuple[str, str, int], list[tuple[float, np.ndarray | None]]] = {}
    for entry, name in zip(entries, entry_names(entries), strict=True):
        for score in (score for scored in entry.by_seed.values() for score in scored.values()):
            gain = score.row.get("improvement")
            if gain is not None and not math.isnan(gain):
                column = "corrupted" if score.measured.kind is Kind.SEVERITY else score.column
                of_images = _gain_of_images(score, single)
                gains.setdefault((name, column, score.row["n"]), []).append((gain, of_images))
    lines = [
        {"entry": name, "column": column, "n": n, **_gain(found)}
        for (name, column, n), found in gains.items()
    ]
    return pd.DataFrame(lines, columns=["entry", "column", "n", "improvement", "low", "high"])


def _comparable_alone(score: Score) -> tuple:
    made = digest([perturbation.describe_images() for perturbation in score.perturbations])
    return score.column, made, score.row["protocol"], score.row["subset_hash"], score.row["n"]


def _gain_of_images(score: Score, single: dict[tuple, Score]) -> np.ndarray | None:
    """Return the gain of an ensemble over the mean of its members for each image, (n,).

    A correct prediction counts 100 and a wrong one 0. None if the score of a member is missing.
    """
    where = _comparable_alone(score)
    members = [single.get((digest(one), where)) for one in score.classifier.identity.get("ensemble", ())]
    right = [one.right for one in members if one is not None]
    if not members or len(right) < len(members):
        return None
    return 100.0 * (score.right - np.mean(right, axis=0))


def _gain(found: list[tuple[float, np.ndarray | None]]) -> dict[str, float]:
    improvement = math.fsum(gain for gain, _ in found) / len(found)
    images = [of_images for _, of_images in found if of_images is not None]
    if len(images) < len(found):
        return {"improvement": improvement, "low": math.nan, "high": math.nan}
    mean, std = statistics.mean_std(np.mean(images, axis=0))
    low, high = statistics.t_interval_of(mean, std, len(images[0]))
    return {"improvement": improvement, "low": low, "high": high}

"""Accuracy by class and confusion matrices, from the stored predictions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from robust_interp.core import statistics
from robust_interp.core.registry import unknown
from robust_interp.results.column_names import MeasuredColumn
from robust_interp.results.columns import CLASS_COLUMNS
from robust_interp.results.entries import Entry, entries_of
from robust_interp.results.entry_names import entry_names
from robust_interp.results.leaderboard import measured_columns
from robust_interp.results.scores import Score

PREDICTED = "predicted_"
NOTHING = f"{PREDICTED}none"
MOST_PREDICTED = 2000  # classes; a confusion matrix of more would need gigabytes


def by_class(
    runs: Iterable[list[Score]], column: str, classes: int | None = None, names: Sequence[str] = ()
) -> pd.DataFrame:
    """Compute the accuracy and the predictions of each class, for each entry of the leaderboard.

    The accuracy of a class is the mean over the measurements (train seeds and severities) that the number in
    the leaderboard is averaged over. The mean of the class accuracies, weighted by n, is that number. The
    95 % interval is the Wilson interval over the images of the class. Each image counts once, with the share
    of the measurements in which it is correct.

    Counts of the confusion matrix are summed over the measurements. Only images that count as correct are on
    its diagonal. `predicted_none` counts images without a prediction (values were not finite, or the image
    was inherited as broken), and images that do not count as correct although their label was predicted
    (their gradient was zero, or under protocol ``worst`` they are wrong when clean).

    Args:
        runs: Scores of each run, oldest run first. Runs are merged as in the leaderboard.
        column: Name of a measured column of the leaderboard.
        classes: Number of classes of the data set; None takes it for each entry from its own class names,
            labels and predictions.
        names: Names of the classes; if empty, each entry has its own, which may differ for own images.

    Returns:
        A table with the columns of `columns.CLASSES`, one row per entry and class. The columns
        `predicted_...` are missing for the worst of several attacks, where an image has several predictions,
        and with more than `MOST_PREDICTED` classes.

    Raises:
        UserError: If no entry has the column for all its train seeds.
    """
    measured = _measured(runs, column)
    counts = [classes or _classes(scores) for _, scores in measured]
    called = entry_names([entry for entry, _ in measured])
    lines = [
        {"entry": name} | line | {"column": column}
        for name, one, count in zip(called, measured, counts, strict=True)
        for line in _lines(*one, count, max(counts), names)
    ]
    frame = pd.DataFrame(lines)
    return frame[[*CLASS_COLUMNS, *(name for name in map(str, frame) if name.startswith(PREDICTED))]]


def scores_of(runs: Iterable[list[Score]], column: str) -> list[Score]:
    """Return the scores that `by_class` counts for a column.

    Raises:
        UserError: As `by_class`.
    """
    return [score for _, scores in _measured(runs, column) for score in scores]


def _measured(runs: Iterable[list[Score]], column: str) -> list[tuple[Entry, list[Score]]]:
    """Return the entries that have a column for all their train seeds, each with the scores it averages."""
    entries = entries_of(runs)
    rows = (scored.values() for entry in entries for scored in entry.by_seed.values())
    known = {found.name: found for found in measured_columns(rows)}
    found = [(entry, _scores(entry, known[column])) for entry in entries] if column in known else []
    measured = [(entry, scores) for entry, scores in found if scores]
    if not measured:
        raise unknown(
            "column", column, [name for name in known if any(_scores(e, known[name]) for e in entries)]
        )
    return measured


def by_entry(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Split a table of `by_class` into one table per entry, by the name of the entry."""
    return {str(name): part for name, part in table.groupby("entry", sort=False)}


def _scores(entry: Entry, column: MeasuredColumn) -> list[Score]:
    """Return the scores that a column averages, over all train seeds; empty if one of them is missing."""
    found = [by.get(name) for by in entry.by_seed.values() for name in column.measurements]
    present = [score for score in found if score is not None]
    return present if len(present) == len(found) else []


def _classes(scores: list[Score]) -> int:
    """Return the number of classes of own images: those with a name, a label or a prediction."""
    return max(len(scores[0].class_names), 1 + max(map(_largest, scores)))


def _largest(score: Score) -> int:
    predicted = score.labels if score.predictions is None else score.predictions
    return int(max(score.labels.max(), predicted.max()))


def _lines(
    entry: Entry, scores: list[Score], count: int, predictable: int, names: Sequence[str]
) -> Iterable[dict]:
    """Yield a line for each of the entry's `count` classes; `predictable` is the largest count of all."""
    names = names or scores[0].class_names
    card, row, labels = entry.card, scores[0].row, scores[0].labels
    head = {
        "model": card.model,
        "recipe": card.recipe,
        "lambda_init": card.lambda_init,
        "seeds": entry.train_seeds,
        "members": card.members,
        "dataset": row["dataset"],
        "protocol": entry.protocol,
        "measurements": len(scores),
    }
    share = np.mean([score.right for score in scores], axis=0)  # (n,), share of correct measurements
    matrix = _confusion(scores, predictable)
    for label in range(count):
        of_class = share[labels == label]
        n, right = len(of_class), math.fsum(of_class)
        low, high = statistics.wilson(min(right, n), n) if n else (math.nan, math.nan)
        yield (
            head
            | {
                "label": label,
                "name": names[label] if label < len(names) else "",
                "n": n,
                "accuracy": 100 * right / n if n else math.nan,
                "ci_low": low,
                "ci_high": high,
            }
            | {name: counts[label] for name, counts in matrix.items()}
        )


def _confusion(scores: list[Score], count: int) -> dict[str, np.ndarray]:
    """Count the images of each label, (count,), by predicted class. The last item has no class."""
    if count > MOST_PREDICTED or any(score.predictions is None for score in scores):
        return {}
    matrix = np.zeros((count, count + 1), int)
    for score in scores:
        predicted = np.asarray(score.predictions, dtype=int)
        counts = (predicted >= 0) & ((predicted != score.labels) | score.right)
        np.add.at(matrix, (score.labels, np.where(counts, predicted, count)), 1)
    return dict(zip([*(f"{PREDICTED}{at}" for at in range(count)), NOTHING], matrix.T, strict=True))

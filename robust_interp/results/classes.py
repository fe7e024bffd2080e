"""Accuracy by class and confusion matrices, from the predictions that the store holds."""

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


def by_class(
    runs: Iterable[list[Score]], column: str, classes: int | None = None, names: Sequence[str] = ()
) -> pd.DataFrame:
    """Accuracy of each class and what its images were predicted as, for each line of the leaderboard.

    An accuracy is the mean over the train seeds (and severities) that the leaderboard's number is the mean
    of: the classes' accuracies, weighted by n, give that number. Its 95 % interval is Wilson's over the
    images of the class, each of which counts once, by the share of these measurements that have it right.
    Counts of the confusion matrix are summed over the measurements. An image that a measurement does not
    count as right is in no case on its diagonal: where the predicted class is the label (its gradient was
    zero, or under protocol ``worst`` it is wrong when clean), and where nothing was predicted (values were
    not finite, or the image was inherited as broken), it is in `predicted_none`.

    Args:
        runs: Oldest first; they are taken together as in the leaderboard.
        column: One of the leaderboard's measured columns.
        classes: Of the dataset; None where it is not known: as many as labels and predictions tell.
        names: Of the classes, if they have any.

    Returns:
        The columns of `columns.CLASSES`, a line an entry and class. `predicted_...` are not there for the
        worst of several attacks, under which an image has several predictions.

    Raises:
        UserError: if no entry has the column at all its train seeds.
    """
    runs = list(runs)
    known = {found.name: found for found in measured_columns(score for run in runs for score in run)}
    entries = entries_of(runs)
    found = [(entry, _scores(entry, known[column])) for entry in entries] if column in known else []
    measured = [(entry, scores) for entry, scores in found if scores]
    if not measured:
        raise unknown(
            "column", column, [name for name in known if any(_scores(e, known[name]) for e in entries)]
        )
    count = classes or 1 + max(_largest(score) for _, scores in measured for score in scores)
    called = entry_names([entry for entry, _ in measured])
    lines = [
        {"entry": name} | line | {"column": column}
        for name, one in zip(called, measured, strict=True)
        for line in _lines(*one, count, names)
    ]
    frame = pd.DataFrame(lines)
    return frame[[*CLASS_COLUMNS, *(name for name in map(str, frame) if name.startswith(PREDICTED))]]


def by_entry(table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """The lines of each entry, by what it is called."""
    return {str(name): part for name, part in table.groupby("entry", sort=False)}


def _scores(entry: Entry, column: MeasuredColumn) -> list[Score]:
    """What a column is the mean of, over all train seeds; nothing where one lacks a part."""
    found = [by.get(name) for by in entry.by_seed.values() for name in column.measurements]
    present = [score for score in found if score is not None]
    return present if len(present) == len(found) else []


def _largest(score: Score) -> int:
    predicted = score.labels if score.predictions is None else score.predictions
    return int(max(score.labels.max(), predicted.max()))


def _lines(entry: Entry, scores: list[Score], count: int, names: Sequence[str]) -> Iterable[dict]:
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
    share = np.mean([score.right for score in scores], axis=0)  # (n,): of the measurements that are right
    matrix = _confusion(scores, count)
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
    """By predicted class, how many images of each label, (count,), summed; the last are without one."""
    if any(score.predictions is None for score in scores):
        return {}
    matrix = np.zeros((count, count + 1), int)
    for score in scores:
        predicted = np.asarray(score.predictions, dtype=int)
        counts = (predicted >= 0) & ((predicted != score.labels) | score.right)
        np.add.at(matrix, (score.labels, np.where(counts, predicted, count)), 1)
    return dict(zip([*(f"{PREDICTED}{at}" for at in range(count)), NOTHING], matrix.T, strict=True))

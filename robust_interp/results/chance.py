"""Whether a classifier is better than guessing on clean images."""

from __future__ import annotations

import numpy as np

from robust_interp.core import statistics
from robust_interp.results.scores import Score

MARGIN = 2.0  # most percentage points above guessing that still count as chance level; and at most guessing


def guessing(clean: Score) -> float:
    """Return the accuracy in percent of the same predictions if they were assigned to the images at random.

    For balanced labels it is 100 / classes. For a constant prediction it is the share of that class, so a
    constant classifier is never better than guessing, whatever the labels. It is the accuracy expected by
    chance of Cohen's kappa.

    Args:
        clean: Score on clean images, with its predictions.
    """
    labels, labelled = np.unique(clean.labels, return_counts=True)
    classes, predicted = np.unique(np.asarray(clean.predictions), return_counts=True)
    _, of_label, of_class = np.intersect1d(labels, classes, assume_unique=True, return_indices=True)
    return 100 * float(labelled[of_label] @ predicted[of_class]) / len(clean.labels) ** 2


def chance_level(clean: Score) -> float:
    """Return the accuracy in percent up to which a score is at chance level: guessing plus a margin.

    The margin is `MARGIN`, or guessing itself if that is less: of 1000 classes, 2 % is far above guessing.
    """
    found = guessing(clean)
    return found + min(MARGIN, found)


def is_at_chance(clean: Score) -> bool:
    """Return whether the 95 % interval of the clean accuracy reaches down to `chance_level`.

    It is False for a score without predictions.
    """
    if clean.predictions is None or not len(clean.labels):
        return False
    low, _ = statistics.wilson(int(clean.right.sum()), len(clean.right))
    return low <= chance_level(clean)

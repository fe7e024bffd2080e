"""Which images the first n are: the order in which a dataset is measured.

A subset is no selection but an order of all images, so that a larger n only adds to what was measured.
"""

from __future__ import annotations

import numpy as np

from robust_interp.core.errors import UserError
from robust_interp.core.registry import unknown
from robust_interp.data.dataset import Dataset

SUBSETS = ("first", "random", "stratified")
FIRST, RANDOM, STRATIFIED = SUBSETS

MOST_SEED = 2**32 - 1  # that NumPy's frozen generator takes


def in_subset(dataset: Dataset, subset: str, seed: int = 0) -> Dataset:
    """A dataset in the order of a subset.

    Args:
        dataset: In its own order.
        subset: ``first`` is that order; ``random`` another one; in ``stratified`` the first n hold each class
            as often as all images do, for every n, but for rounding.
        seed: Of the random draws.

    Raises:
        UserError: for another subset or a seed out of range.
    """
    if subset not in SUBSETS:
        raise unknown("subset", str(subset), SUBSETS)
    if not 0 <= seed <= MOST_SEED:
        raise UserError(f"subset_seed must be a whole number from 0 to {MOST_SEED}, not {seed}")
    if subset == FIRST:
        return dataset
    order = np.random.RandomState(seed).permutation(len(dataset))  # its stream never changes
    if subset == STRATIFIED:
        order = _stratified(dataset.labels, order, seed)
    return dataset.in_order(order, f"{subset}@{seed}")


def _stratified(labels: np.ndarray, shuffled: np.ndarray, seed: int) -> np.ndarray:
    """An order (N,) of ids in which the images of each class lie evenly.

    The j-th of the k images of a class is at (j + u) / k of the way, with u in (0, 1) of the class.

    Args:
        labels: (N,).
        shuffled: The ids (N,) in random order.
        seed: Of the order of the classes.
    """
    _, kind, sizes = np.unique(labels[shuffled], return_inverse=True, return_counts=True)
    by_class = np.argsort(kind, kind="stable")
    rank = np.empty(len(labels), np.int64)
    rank[by_class] = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    turn = (np.random.RandomState(seed).permutation(len(sizes)) + 0.5) / len(sizes)
    return shuffled[np.argsort((rank + turn[kind]) / sizes[kind], kind="stable")]

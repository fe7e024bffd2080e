"""Choose the order in which a data set is measured, and so which images are the first n.

A subset is an order of all images, not a selection, so that a larger n only adds images.
"""

from __future__ import annotations

import numpy as np

from robust_interp.core.choices import SUBSETS
from robust_interp.core.errors import UserError
from robust_interp.core.registry import unknown
from robust_interp.data.dataset import Dataset

FIRST, RANDOM, STRATIFIED = SUBSETS

MOST_SEED = 2**32 - 1  # the largest seed of numpy.random.RandomState


def in_subset(dataset: Dataset, subset: str, seed: int = 0) -> Dataset:
    """Return a data set in the order of a subset.

    Args:
        dataset: The data set in its own order.
        subset: ``first`` keeps the order; ``random`` shuffles it; ``stratified`` shuffles it so that for
            every n, the first n images have the class frequencies of the whole data set, up to rounding.
        seed: Seed of the shuffle.

    Raises:
        UserError: if the subset is unknown or the seed is out of range.
    """
    if subset not in SUBSETS:
        raise unknown("subset", str(subset), SUBSETS)
    if not 0 <= seed <= MOST_SEED:
        raise UserError(f"subset_seed must be a whole number from 0 to {MOST_SEED}, not {seed}")
    if subset == FIRST:
        return dataset
    order = np.random.RandomState(seed).permutation(len(dataset))  # stable across NumPy versions
    if subset == STRATIFIED:
        order = _stratified(dataset.labels, order, seed)
    return dataset.reordered(order, f"{subset}@{seed}")


def _stratified(labels: np.ndarray, shuffled: np.ndarray, seed: int) -> np.ndarray:
    """Return an order (N,) of ids in which the images of each class are spread evenly.

    The ids are sorted by (j + u) / k for the j-th of the k images of a class, with u in (0, 1) per class.

    Args:
        labels: Class indices (N,).
        shuffled: The ids (N,) in random order.
        seed: Seed of the values u.
    """
    _, kind, sizes = np.unique(labels[shuffled], return_inverse=True, return_counts=True)
    by_class = np.argsort(kind, kind="stable")
    rank = np.empty(len(labels), np.int64)
    rank[by_class] = np.arange(len(labels)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    turn = (np.random.RandomState(seed).permutation(len(sizes)) + 0.5) / len(sizes)
    return shuffled[np.argsort((rank + turn[kind]) / sizes[kind], kind="stable")]

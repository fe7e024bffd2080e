"""Self-check of attacks in a lower precision: compare them with the same attack in float32."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from robust_interp.store import INHERITED, ZERO_GRADIENT, Store
from robust_interp.store.cells import Cell
from robust_interp.store.finished import find_outcome


class PrecisionCheck(NamedTuple):
    """Comparison of an attack with the same attack in float32.

    Attributes:
        difference: Accuracy under the attack minus that in float32, in percentage points of all images. An
            image that was broken before, and not attacked again, counts as no difference.
        zero_gradient_rise: Share of images with a zero gradient, minus that in float32, -1 to 1.
    """

    difference: float
    zero_gradient_rise: float


def in_float32(board: pd.DataFrame) -> pd.Series:
    """Return which rows of a leaderboard have attacks in float32 or none, (rows,) bool."""
    if "attack_precision" not in board:
        return pd.Series(True, index=board.index)
    return board["attack_precision"].fillna("") == ""


def check(cell: Cell, store: Store, n: int) -> PrecisionCheck | None:
    """Compare the attack of a cell with the same attack in float32, on the images attacked in both.

    Args:
        cell: Cell of an attack that is not in float32.
        store: The store that both are read from.
        n: Maximum number of images; the first ones are used.

    Returns:
        The comparison; None if no images were attacked in both.
    """
    reference = cell.in_float32
    n = min(n, store.covered_by(reference))
    ours, theirs = find_outcome(cell, store, n)[1], find_outcome(reference, store, n)[1]
    if not n or ours is None or theirs is None:
        return None
    labels = store.labels(cell.fingerprint, n)
    made = (ours.flags & INHERITED == 0) & (theirs.flags & INHERITED == 0)
    if not made.any():
        return None
    differs = ours.correct(labels)[made].astype(int) - theirs.correct(labels)[made].astype(int)
    blind, blind_in_float32 = (
        (flags[made] & ZERO_GRADIENT).astype(bool) for flags in (ours.flags, theirs.flags)
    )
    rise = float(blind.mean() - blind_in_float32.mean())
    return PrecisionCheck(100 * float(differs.sum()) / n, rise)

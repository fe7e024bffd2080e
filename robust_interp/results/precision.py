"""What an attack in a lower precision does otherwise than in float32, where the store knows both."""

from __future__ import annotations

from typing import NamedTuple

import pandas as pd

from robust_interp.store import INHERITED, ZERO_GRADIENT, Store
from robust_interp.store.cells import Cell
from robust_interp.store.finished import finished


class PrecisionCheck(NamedTuple):
    """An attack held against itself in float32.

    Attributes:
        difference: Accuracy under it minus that in float32, in percentage points.
        zero_gradient_rise: Share of images with a zero gradient, minus that in float32, -1 to 1.
    """

    difference: float
    zero_gradient_rise: float


def in_float32(board: pd.DataFrame) -> pd.Series:
    """Which lines of a leaderboard were attacked in float32 or not at all, (lines,) bool."""
    if "attack_precision" not in board:
        return pd.Series(True, index=board.index)
    return board["attack_precision"].fillna("") == ""


def check(cell: Cell, store: Store, n: int) -> PrecisionCheck | None:
    """The attack of a cell against the same one in float32, on the images that both were made on.

    Args:
        cell: Of an attack that is not in float32.
        store: What has both, if it does.
        n: How many samples at most: the first ones.

    Returns:
        None where one of them is not there.
    """
    reference = cell.in_float32
    n = min(n, max(store.covered(reference.key), store.covered(reference.whole.key)))
    ours, theirs = finished(cell, store, n)[1], finished(reference, store, n)[1]
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

"""The description of a measurement, its key, and the database of finished measurements. Imports no torch."""

from robust_interp.store.database import CHUNK, FILE_NAME, ChangedError, Store
from robust_interp.store.outcome import (
    AGREE,
    DISAGREE,
    INHERITED,
    NOT_FINITE,
    ROUNDED_RIGHT,
    ROUNDED_WRONG,
    ZERO_GRADIENT,
    Outcome,
)

__all__ = [
    "AGREE",
    "CHUNK",
    "DISAGREE",
    "FILE_NAME",
    "INHERITED",
    "NOT_FINITE",
    "ROUNDED_RIGHT",
    "ROUNDED_WRONG",
    "ZERO_GRADIENT",
    "ChangedError",
    "Outcome",
    "Store",
]

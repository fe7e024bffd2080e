"""What a measurement is and what it is keyed by, and the database of finished ones. No torch here."""

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

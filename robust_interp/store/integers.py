"""Class indices as bytes: 16 bits each, as every store has them, and 32 where a class is above 32,767."""

from __future__ import annotations

import numpy as np

LARGEST = np.iinfo(np.int16).max

_WIDE = b"\xff\xff\xff\xff"  # ahead of labels of 32 bits: -1 is no label


def packed(predictions: np.ndarray) -> bytes:
    """Predicted classes (n,), -1 for none."""
    return predictions.astype(_kind(predictions)).tobytes()


def unpacked(content: bytes, count: int) -> np.ndarray:
    """What `packed` made of so many predictions.

    Raises:
        ValueError: if it is of another number.
    """
    kind = {2 * count: "<i2", 4 * count: "<i4"}.get(len(content))
    if kind is None:
        raise ValueError(f"{len(content)} bytes are not {count} predictions")
    return np.frombuffer(content, kind)


def packed_labels(labels: np.ndarray) -> bytes:
    """Labels (N,), from 0."""
    kind = _kind(labels)
    return (b"" if kind == "<i2" else _WIDE) + labels.astype(kind).tobytes()


def unpacked_labels(content: bytes) -> np.ndarray:
    """What `packed_labels` made.

    Raises:
        ValueError: if it did not.
    """
    if content.startswith(_WIDE):
        return np.frombuffer(content, "<i4", offset=len(_WIDE))
    return np.frombuffer(content, "<i2")


def _kind(numbers: np.ndarray) -> str:
    return "<i2" if numbers.max(initial=0) <= LARGEST else "<i4"

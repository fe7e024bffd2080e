"""Class indices as bytes: 16 bits each, or 32 bits each if a class is above 32,767."""

from __future__ import annotations

import numpy as np

LARGEST = np.iinfo(np.int16).max

_WIDE = b"\xff\xff\xff\xff"  # prefix of 32-bit labels; 16-bit labels cannot start with it, as none is -1


def packed(predictions: np.ndarray) -> bytes:
    """Pack predicted classes, (n,); -1 means no class."""
    return predictions.astype(_kind(predictions)).tobytes()


def unpacked(content: bytes, count: int) -> np.ndarray:
    """Unpack `count` predictions from the result of `packed`.

    Raises:
        ValueError: if the length does not fit `count`.
    """
    kind = {2 * count: "<i2", 4 * count: "<i4"}.get(len(content))
    if kind is None:
        raise ValueError(f"{len(content)} bytes are not {count} predictions")
    return np.frombuffer(content, kind)


def packed_labels(labels: np.ndarray) -> bytes:
    """Pack labels, (N,), at least 0."""
    kind = _kind(labels)
    return (b"" if kind == "<i2" else _WIDE) + labels.astype(kind).tobytes()


def unpacked_labels(content: bytes) -> np.ndarray:
    """Unpack labels from the result of `packed_labels`.

    Raises:
        ValueError: if the length is not a whole number of labels.
    """
    if content.startswith(_WIDE):
        return np.frombuffer(content, "<i4", offset=len(_WIDE))
    return np.frombuffer(content, "<i2")


def _kind(numbers: np.ndarray) -> str:
    return "<i2" if numbers.max(initial=0) <= LARGEST else "<i4"

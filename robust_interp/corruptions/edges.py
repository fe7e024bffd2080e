"""Edge detection."""

from __future__ import annotations

import numpy as np
import scipy

_TAN = np.tan(np.pi / 8)  # between the four directions that a gradient is sorted into


def canny(image: np.ndarray, low: float, high: float) -> np.ndarray:
    """Edges (H, W) as bool of a grey image (H, W): Sobel 3x3, gradient strength |dx| + |dy|.

    Args:
        low: A pixel is weak above this: an edge only if it hangs together with a strong one.
        high: A pixel is strong above this.

    Source: J. Canny, *A Computational Approach to Edge Detection*, 1986.
    """
    dx, dy = (scipy.ndimage.sobel(image.astype(int), axis, mode="nearest") for axis in (1, 0))
    strength = abs(dx) + abs(dy)
    weak = _ridge(strength, dx, dy) & (strength > low)
    regions, _ = scipy.ndimage.label(weak, np.ones((3, 3)))
    strong = np.unique(regions[weak & (strength > high)])
    return weak & np.isin(regions, strong)


def _ridge(strength: np.ndarray, dx: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """Where the strength is largest along the gradient; of two alike along an axis the first counts."""
    H, W = strength.shape
    padded = np.pad(strength, 1)

    def at(down, right):
        return padded[1 + down : 1 + down + H, 1 + right : 1 + right + W]

    flat, steep = abs(dy) < _TAN * abs(dx), abs(dy) > (_TAN + 2) * abs(dx)
    falling = dx * dy >= 0  # one diagonal, else the other
    return np.select(
        [flat, steep, falling],
        [
            (strength > at(0, -1)) & (strength >= at(0, 1)),
            (strength > at(-1, 0)) & (strength >= at(1, 0)),
            (strength > at(-1, -1)) & (strength > at(1, 1)),
        ],
        (strength > at(-1, 1)) & (strength > at(1, -1)),
    )

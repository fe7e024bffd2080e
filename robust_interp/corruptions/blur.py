"""The blurs."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import scipy

from robust_interp.corruptions.imaging import motion, smooth, to_uint8, zoom_in
from robust_interp.corruptions.table import corruption


@corruption
def gaussian_blur(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Smoothed by a Gaussian."""
    return smooth(image, (0.4, 0.6, 0.7, 0.8, 1)[severity - 1])


@corruption
def defocus_blur(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Smoothed by a disk: out of focus."""
    radius, alias = ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))[severity - 1]
    return scipy.ndimage.correlate(image, disk(radius, alias)[None], mode="mirror")


@lru_cache
def disk(radius: float, alias: float) -> np.ndarray:
    """A disk whose edge is smoothed by a 3x3 Gaussian of sigma `alias`.

    Rounded to float32 where OpenCV, which the released arrays were made with, rounds.
    """
    across = np.arange(-2, 3)  # all that is not zero
    disk = (across**2 + across[:, None] ** 2 <= radius**2).astype(np.float32)
    disk /= disk.sum()
    tap = np.exp(-(np.arange(-1, 2) ** 2) / (2 * alias**2))
    tap = (tap / tap.sum()).astype(np.float32)
    for axis in (1, 0):
        disk = scipy.ndimage.correlate1d(disk, tap, axis, mode="constant")
    return disk.astype(np.float64)


@corruption
def glass_blur(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Pixels take their neighbours' values.

    All but two rows and columns take their own value or a neighbour's, above, left or both.

    It is no swap: in the original, whose pixels are views of one array, the neighbour keeps its value.
    """
    sigma, rounds = ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))[severity - 1]
    shuffled = (smooth(image, sigma) * 255).astype(np.uint8)  # truncated, as the released arrays were
    _, H, W = image.shape
    for _ in range(rounds):
        # The original goes from the last pixel to the first: none reads what it has written before.
        up, left = rng.integers(0, 2, size=(2, max(H - 2, 0), max(W - 2, 0)))
        rows, columns = np.arange(2, H)[:, None] - up, np.arange(2, W) - left
        shuffled[:, 2:, 2:] = shuffled[:, rows, columns]
    return smooth(shuffled / 255.0, sigma)


@corruption
def motion_blur(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Blurred along a random direction."""
    radius, sigma = ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))[severity - 1]
    return motion(to_uint8(image), radius, sigma, rng.uniform(-45, 45))


@corruption
def zoom_blur(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Mean of increasing enlargements."""
    largest = (1.06, 1.11, 1.16, 1.21, 1.26)[severity - 1]
    factors = np.arange(1, largest, 0.01)  # float steps: severity 1 has 1.06 in it, the others end before
    image = image.astype(np.float32)
    total = np.zeros_like(image)
    for factor in factors:
        total += zoom_in(image, factor)
    return (image + total) / (len(factors) + 1)

"""Blur corruptions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import scipy

from robust_interp.corruptions.imaging import motion, smooth, to_uint8, zoom_in
from robust_interp.corruptions.severities import level
from robust_interp.corruptions.table import corruption, corruption_of_batch


@corruption
def gaussian_blur(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Smoothed by a Gaussian."""
    return smooth(image, level("gaussian_blur", severity, image.shape))


@corruption
def defocus_blur(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Smoothed by a disk: out of focus."""
    kernel = disk(*level("defocus_blur", severity, image.shape))
    if np.count_nonzero(kernel) <= DIRECTLY:
        return scipy.ndimage.correlate(image, kernel[None], mode="mirror")
    around = len(kernel) // 2
    padded = np.pad(image, ((0, 0), (around, around), (around, around)), mode="reflect")
    return scipy.signal.fftconvolve(padded, kernel[None], mode="valid", axes=(1, 2))  # a symmetric kernel


DIRECTLY = 60  # number of weights of a disk above which a Fourier transform is faster than direct summation


@lru_cache
def disk(radius: float, alias: float) -> np.ndarray:
    """Return a disk kernel whose edge is smoothed by a Gaussian, without empty borders.

    It is rounded to float32 at the same places as in OpenCV, with which the released images were made.

    Args:
        radius: Radius in pixels.
        alias: Standard deviation of the Gaussian in pixels. The Gaussian is 3x3, or 5x5 above a radius of 8.
    """
    reach = max(8, int(radius))
    across = np.arange(-reach, reach + 1)
    disk = (across**2 + across[:, None] ** 2 <= radius**2).astype(np.float32)
    disk /= disk.sum()
    beside = 1 if radius <= 8 else 2
    tap = np.exp(-(np.arange(-beside, beside + 1) ** 2) / (2 * alias**2))
    tap = (tap / tap.sum()).astype(np.float32)
    for axis in (1, 0):
        disk = scipy.ndimage.correlate1d(disk, tap, axis, mode="mirror")
    empty = np.flatnonzero(disk.any(axis=0))[0]  # columns at each side
    return disk[empty : len(disk) - empty, empty : len(disk) - empty].astype(np.float64)


@corruption
def glass_blur(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Pixels take their neighbours' values, between two blurs.

    This goes from the last pixel to the first, without those at the border. Values are not swapped: in the
    original, whose pixels are views of one array, the neighbour keeps its value.
    """
    sigma, reach, rounds = level("glass_blur", severity, image.shape)
    shuffled = (smooth(image, sigma) * 255).astype(np.uint8)  # truncated, as the released arrays were
    _, H, W = image.shape
    for _ in range(rounds):
        back = rng.integers(0, 2 * reach, size=(2, max(H - 2 * reach, 0), max(W - 2 * reach, 0)))
        shuffled = shuffled.reshape(len(image), -1)[:, taken_from(reach - 1 - back, reach, (H, W))]
    return smooth(shuffled / 255.0, sigma)


def taken_from(moves: np.ndarray, reach: int, size: tuple[int, int]) -> np.ndarray:
    """Return the source of each pixel's value after all moves, (H, W), as indices into the flattened image.

    The pixels in rows and columns from `reach` + 1 to the size minus `reach`, both included, are processed
    from the last to the first. Each takes the current value of its neighbour. If the neighbour was processed
    before, this is the value that the neighbour has taken.

    Args:
        moves: Steps down and to the right from each pixel to its neighbour, (2, H - 2 reach, W - 2 reach),
            from -reach to reach - 1.
        reach: Largest step in pixels.
        size: Height H and width W.
    """
    H, W = size
    inner = slice(reach + 1, H - reach + 1), slice(reach + 1, W - reach + 1)
    places = np.arange(H * W)
    source, is_moved = places.copy(), np.zeros(H * W, bool)
    source.reshape(H, W)[inner] += moves[0] * W + moves[1]
    is_moved.reshape(H, W)[inner] = True
    leads_on = is_moved & is_moved[source] & (source > places)  # the neighbour was processed before
    while leads_on.any():
        through = source[leads_on]
        source[leads_on], leads_on[leads_on] = source[through], leads_on[through]
    return source.reshape(H, W)


@corruption
def motion_blur(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Blurred along a random direction."""
    radius, sigma = level("motion_blur", severity, image.shape)
    return motion(to_uint8(image), radius, sigma, rng.uniform(-45, 45))


@corruption_of_batch
def zoom_blur(images: np.ndarray, severity: int, rngs: Sequence[np.random.Generator]) -> np.ndarray:
    """Mean of increasing enlargements."""
    largest, step = level("zoom_blur", severity, images.shape)
    factors = np.arange(
        1, largest, step
    )  # steps are rounded: CIFAR-C's severity 1 includes 1.06, severity 2 ends before 1.11
    planes = images.reshape(-1, *images.shape[2:]).astype(np.float32)
    size = max(1, PLANES_AT_ONCE // planes[0].size)
    parts = [planes[start : start + size] for start in range(0, len(planes), size)]
    return np.concatenate([_zoomed(part, factors) for part in parts]).reshape(images.shape)


PLANES_AT_ONCE = 2**15  # values; these stay in a core's cache while they are enlarged many times


def _zoomed(images: np.ndarray, factors: np.ndarray) -> np.ndarray:
    total = np.zeros_like(images)
    for factor in factors:
        total += zoom_in(images, factor)
    return (images + total) / (len(factors) + 1)

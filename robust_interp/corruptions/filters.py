"""Image operations that several corruptions share, on (C, H, W) arrays."""

from __future__ import annotations

import numpy as np
import scipy


def smooth(image: np.ndarray, sigma: float) -> np.ndarray:
    """Gaussian blur of the last two axes; borders repeat the last pixel. `sigma` in pixels."""
    sigmas = (*[0] * (image.ndim - 2), sigma, sigma)
    return scipy.ndimage.gaussian_filter(image, sigmas, mode="nearest", truncate=4.0)


def zoom_in(image: np.ndarray, factor: float) -> np.ndarray:
    """The centre of an image (C, H, W), enlarged to its size; linear interpolation. `factor` from 1."""
    spans = [_centre(size, int(np.ceil(size / factor))) for size in image.shape[1:]]
    enlarged = np.stack([scipy.ndimage.zoom(channel[*spans], factor, order=1) for channel in image])
    spans = [_centre(whole, size) for whole, size in zip(enlarged.shape[1:], image.shape[1:], strict=True)]
    return enlarged[:, *spans]


def _centre(whole: int, size: int) -> slice:
    start = (whole - size) // 2
    return slice(start, start + size)


def motion(image: np.ndarray, radius: int, sigma: float, degrees: float) -> np.ndarray:
    """ImageMagick's motion blur of uint8 values (C, H, W), rounded back to uint8.

    A pixel becomes the mean of the 2 `radius` + 1 that follow it in one direction, itself included, with
    half a Gaussian as weights; positions are rounded to whole pixels, and borders repeat the last one.
    """
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    angle = np.deg2rad(degrees)
    down, right = (np.ceil(steps * along - 0.5).astype(int) for along in (np.sin(angle), np.cos(angle)))
    _, H, W = image.shape
    blurred = np.zeros(image.shape)
    for weight, dy, dx in zip(weights, down, right, strict=True):
        rows = (np.arange(H) + dy).clip(0, H - 1)
        columns = (np.arange(W) + dx).clip(0, W - 1)
        blurred += weight * image[:, rows[:, None], columns]
    return to_uint8(blurred / 255)


def to_uint8(image: np.ndarray) -> np.ndarray:
    """Pixels in [0, 1], rounded to the nearest of 0 to 255."""
    return np.rint(image * 255).astype(np.uint8)

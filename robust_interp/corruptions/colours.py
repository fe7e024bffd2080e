"""Colour spaces, on images (3, H, W) in [0, 1]."""

from __future__ import annotations

import numpy as np


def grey(image: np.ndarray) -> np.ndarray:
    """Luma (1, H, W) by ITU-R BT.601; a single channel is its own."""
    if len(image) == 1:
        return image
    return np.tensordot([[0.299, 0.587, 0.114]], image, axes=1)


def hsv(image: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Hue (a turn is 1; 0 for a grey), saturation and value, each (H, W)."""
    red, green, blue = image
    value = image.max(axis=0)
    spread = value - image.min(axis=0)
    coloured = spread > 0
    by = np.where(coloured, spread, 1)
    # Where two channels are both the largest the last one counts: the hue is the same but for rounding.
    sixth = np.select(
        [value == blue, value == green], [4 + (red - green) / by, 2 + (blue - red) / by], (green - blue) / by
    )
    hue = np.where(coloured, sixth / 6 % 1, 0)
    saturation = np.where(coloured, spread / np.where(value > 0, value, 1), 0)
    return hue, saturation, value


def rgb(hue: np.ndarray, saturation: np.ndarray, value: np.ndarray) -> np.ndarray:
    """The image (3, H, W) of hue, saturation and value."""
    sixth = np.floor(hue * 6)
    within = hue * 6 - sixth
    low = value * (1 - saturation)
    falling = value * (1 - within * saturation)
    rising = value * (1 - (1 - within) * saturation)
    sector = sixth.astype(int) % 6
    return np.stack(
        [
            np.choose(sector, [value, falling, low, low, rising, value]),
            np.choose(sector, [rising, value, value, falling, low, low]),
            np.choose(sector, [low, low, rising, value, value, falling]),
        ]
    )

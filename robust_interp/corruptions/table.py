"""The registry of corruptions, and how one is applied to a batch of images."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable

import numpy as np

from robust_interp.core.registry import Registry

# (C, H, W) in [0, 1] as float64, severity 1..5, generator -> the same shape: uint8, or floats not yet clipped
Corrupt = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]

CORRUPTIONS: Registry[Corrupt] = Registry("corruption", group="robust_interp.corruptions", holds=Callable)

# Corruption -> why images of a shape (C, H, W) cannot be corrupted so, or None. Most take any.
Obstacle = Callable[[tuple[int, int, int]], str | None]
OBSTACLES: dict[str, Obstacle] = {}


def corruption(function: Corrupt) -> Corrupt:
    """Register a corruption under its function's name."""
    return CORRUPTIONS.add(function.__name__, function)


def needs(obstacle: Obstacle) -> Callable[[Corrupt], Corrupt]:
    """Declare when the decorated corruption cannot be generated.

    Args:
        obstacle: Shape (C, H, W) -> why there can be none of such images, or None.
    """

    def record(function: Corrupt) -> Corrupt:
        OBSTACLES[function.__name__] = obstacle
        return function

    return record


def colour(shape: tuple[int, int, int]) -> str | None:
    """The obstacle, at a shape (C, H, W), of a corruption that only colour images can have."""
    return None if shape[0] == 3 else f"it needs colour images (3 channels); these have {shape[0]}"


def obstacle(name: str, shape: tuple[int, int, int]) -> str | None:
    """Why corruption `name` cannot be generated for images of `shape` (C, H, W); None if it can."""
    return OBSTACLES[name](shape) if name in OBSTACLES else None


def corrupt(images: np.ndarray, name: str, severity: int, ids: Iterable[int], seed: int) -> np.ndarray:
    """Corrupt images. All arithmetic starts in float64, as the released arrays' did: truncation shows it.

    Args:
        images: (N, C, H, W), uint8 or float in [0, 1].
        name: Of a registered corruption.
        severity: 1 to 5.
        ids: Of the N samples; with the seed they key what is drawn.
        seed: Of the generated corruptions.

    Returns:
        (N, C, H, W), uint8.
    """
    function = CORRUPTIONS[name]
    stream = zlib.crc32(name.encode())  # a stream of its own, whatever else is registered
    out = np.empty(images.shape, dtype=np.uint8)
    for at, sample in enumerate(ids):
        rng = np.random.default_rng((seed, stream, severity, int(sample)))
        image = images[at] / 255.0 if images.dtype == np.uint8 else images[at].astype(np.float64)
        corrupted = function(image, severity, rng)
        out[at] = corrupted if corrupted.dtype == np.uint8 else (corrupted.clip(0, 1) * 255).astype(np.uint8)
    return out

"""The registry of corruptions, and how one is applied to a batch of images."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from robust_interp.core.errors import UserError
from robust_interp.core.registry import BUILT_IN, Registry

# (C, H, W) in [0, 1] as float64, severity 1..5, generator -> the same shape: uint8, or floats not yet clipped
Corrupt = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]

# The same of several images at once: (N, C, H, W), severity, a generator an image -> (N, C, H, W)
CorruptBatch = Callable[[np.ndarray, int, Sequence[np.random.Generator]], np.ndarray]

CORRUPTIONS: Registry[Corrupt] = Registry("corruption", group="robust_interp.corruptions", holds=Callable)

# Corruption -> why images of a shape (C, H, W) cannot be corrupted so, or None. Most take any.
Obstacle = Callable[[tuple[int, int, int]], str | None]
OBSTACLES: dict[str, Obstacle] = {}


def corruption(function: Corrupt) -> Corrupt:
    """Register a corruption under its function's name."""
    return CORRUPTIONS.add(function.__name__, function)


def corruption_of_batch(function: CorruptBatch) -> Corrupt:
    """Register a corruption that is written for several images at once, under its function's name.

    What becomes of an image must not depend on the others, to the last bit.
    """

    @functools.wraps(function)
    def of_one(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
        return function(image[None], severity, [rng])[0]

    BATCHED[of_one] = function
    return corruption(of_one)


BATCHED: dict[Corrupt, CorruptBatch] = {}


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


MAY_BE_OUTSIDE = 0.15  # of the values; of noise with a standard deviation of 0.38, on uniform pixels 4 %
NOT_PIXELS = "returns no pixels: it must return floats in [0, 1], as it is given, or uint8 from 0 to 255"


def share_outside(corrupted: np.ndarray, image: np.ndarray) -> float:
    """Which share of the values of a corrupted image is far from what pixels can be.

    Noise may leave [0, 1] here and there, and is clipped. Values from 0 to 255, or normalised ones, are far
    outside most of the time; bytes made of values in [0, 1] are all 0 or 1.

    Args:
        corrupted: As a corruption returned it, any type of number.
        image: What it was given, in [0, 1].
    """
    if corrupted.dtype == np.uint8:
        return float(corrupted.max() <= 1 and image.max() > 0.5)
    if not np.issubdtype(corrupted.dtype, np.floating):
        return 1.0
    return float(((corrupted < -0.5) | (corrupted > 1.5)).mean())


VALUES_AT_ONCE = 2**17  # as float64 they are 1 MiB: what stays in a core's cache goes fastest


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

    Raises:
        UserError: if what a corruption returns cannot be pixels in [0, 1], or bytes.
    """
    function, ids = CORRUPTIONS[name], list(ids)
    is_checked = CORRUPTIONS.origins(name) != [BUILT_IN]
    outside = []
    stream = zlib.crc32(name.encode())  # a stream of its own, whatever else is registered
    out = np.empty(images.shape, dtype=np.uint8)
    size = max(1, VALUES_AT_ONCE // max(1, images[:1].size)) if function in BATCHED else 1
    for start in range(0, len(ids), size):
        part = slice(start, start + size)
        rngs = [np.random.default_rng((seed, stream, severity, int(sample))) for sample in ids[part]]
        pixels = images[part] / 255.0 if images.dtype == np.uint8 else images[part].astype(np.float64)
        if function in BATCHED:
            corrupted = BATCHED[function](pixels, severity, rngs)
        else:
            corrupted = np.asarray(function(pixels[0], severity, rngs[0]))[None]
        if is_checked:
            outside.append(share_outside(corrupted, pixels))
        out[part] = corrupted if corrupted.dtype == np.uint8 else _as_bytes(corrupted)
    if outside and np.mean(outside) > MAY_BE_OUTSIDE:
        raise UserError(f"corruption {name!r} {NOT_PIXELS}")
    return out


def _as_bytes(pixels: np.ndarray) -> np.ndarray:
    """Truncated, as the released arrays were."""
    return (pixels.clip(0, 1) * 255).astype(np.uint8)

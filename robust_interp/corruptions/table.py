"""The registry of corruptions, and how one is applied to a batch of images."""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from robust_interp.core.errors import UserError
from robust_interp.core.registry import BUILT_IN, Registry, unknown
from robust_interp.corruptions.names import GROUPS

# Takes an image (C, H, W) in [0, 1] as float64, a severity from 1 to 5, and a generator. Returns the
# corrupted image of the same shape, as uint8, or as floats before clipping.
Corrupt = Callable[[np.ndarray, int, np.random.Generator], np.ndarray]

# The same for several images at once: (N, C, H, W), severity, one generator per image -> (N, C, H, W)
CorruptBatch = Callable[[np.ndarray, int, Sequence[np.random.Generator]], np.ndarray]

CORRUPTIONS: Registry[Corrupt] = Registry("corruption", group="robust_interp.corruptions", holds=Callable)

# Returns why images of a shape (C, H, W) cannot be corrupted, or None. Most corruptions take all images.
Obstacle = Callable[[tuple[int, int, int]], str | None]
OBSTACLES: dict[str, Obstacle] = {}


def check_name(name: str) -> None:
    """Raise UserError for a name that is neither of a corruption nor of a group."""
    if name not in GROUPS and name not in CORRUPTIONS:
        raise unknown("corruption", name, [*CORRUPTIONS, *GROUPS])


def corruption(function: Corrupt) -> Corrupt:
    """Register a corruption under its function's name."""
    return CORRUPTIONS.add(function.__name__, function)


def corruption_of_batch(function: CorruptBatch) -> Corrupt:
    """Register a corruption that takes several images at once, under its function's name.

    The result for an image must not depend on the other images, to the last bit.
    """

    @functools.wraps(function)
    def of_one(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
        return function(image[None], severity, [rng])[0]

    BATCHED[of_one] = function
    return corruption(of_one)


BATCHED: dict[Corrupt, CorruptBatch] = {}


def needs(obstacle: Obstacle) -> Callable[[Corrupt], Corrupt]:
    """Declare for which images the decorated corruption cannot be generated.

    Args:
        obstacle: Returns why images of a shape (C, H, W) cannot be corrupted, or None.
    """

    def record(function: Corrupt) -> Corrupt:
        OBSTACLES[function.__name__] = obstacle
        return function

    return record


def colour(shape: tuple[int, int, int]) -> str | None:
    """Return why a corruption of colour images does not take images of `shape` (C, H, W); None if it does."""
    return None if shape[0] == 3 else f"it needs colour images (3 channels); these have {shape[0]}"


def obstacle(name: str, shape: tuple[int, int, int]) -> str | None:
    """Return why corruption `name` cannot be generated for images of `shape` (C, H, W); None if it can."""
    return OBSTACLES[name](shape) if name in OBSTACLES else None


MAY_BE_OUTSIDE = 0.15  # share of the values; Gaussian noise of 0.38 on uniform pixels has 4 %
NOT_PIXELS = "returns no pixels: it must return floats in [0, 1], as it is given, or uint8 from 0 to 255"


def share_outside(corrupted: np.ndarray, image: np.ndarray) -> float:
    """Return the share, 0 to 1, of the values of a corrupted image that are far outside the range of pixels.

    Noise may leave [0, 1] a little, and is clipped later. Most values are far outside if they range from 0
    to 255 or are normalised. A uint8 image that was made from [0, 1] without scaling has only the values 0
    and 1; all of it then counts as outside.

    Args:
        corrupted: Image as returned by a corruption, of any number type.
        image: The clean image, in [0, 1].
    """
    if corrupted.dtype == np.uint8:
        return float(corrupted.max() <= 1 and image.max() > 0.5)
    if not np.issubdtype(corrupted.dtype, np.floating):
        return 1.0
    return float(((corrupted < -0.5) | (corrupted > 1.5)).mean())


VALUES_AT_ONCE = 2**17  # 1 MiB as float64, which stays in a core's cache


def corrupt(images: np.ndarray, name: str, severity: int, ids: Iterable[int], seed: int) -> np.ndarray:
    """Corrupt images.

    Arithmetic starts in float64, as for the released arrays: truncation makes the smallest errors visible.

    Args:
        images: Clean images (N, C, H, W), uint8, or floats in [0, 1].
        name: Name of a registered corruption.
        severity: Severity, 1 to 5.
        ids: Ids (N,) of the images. The random draws of an image depend only on its id, the seed, the name
            and the severity.
        seed: Seed of the generated corruptions.

    Returns:
        Corrupted images (N, C, H, W), uint8.

    Raises:
        UserError: if a plug-in's corruption returns neither pixels in [0, 1] nor uint8 from 0 to 255.
    """
    function, ids = CORRUPTIONS[name], list(ids)
    is_checked = CORRUPTIONS.origins(name) != [BUILT_IN]
    outside = []
    stream = zlib.crc32(name.encode())  # does not depend on the other registered corruptions
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
    """Convert pixels to uint8 by truncation, as in the released arrays."""
    return (pixels.clip(0, 1) * 255).astype(np.uint8)

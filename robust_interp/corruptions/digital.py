"""Contrast, saturation, elastic deformation, pixelation and JPEG."""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
import scipy

from robust_interp.corruptions.imaging import hsv, rgb, to_uint8
from robust_interp.corruptions.table import colour, corruption, needs

if TYPE_CHECKING:
    from PIL import Image


@corruption
def contrast(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Less contrast around the mean."""
    share = (0.75, 0.5, 0.4, 0.3, 0.15)[severity - 1]
    # Channels last, for the order in which NumPy adds up: the last bit decides some truncations.
    mean = np.ascontiguousarray(image.transpose(1, 2, 0)).mean(axis=(0, 1))[:, None, None]
    return (image - mean) * share + mean


@needs(colour)
@corruption
def saturate(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Colours paler or stronger."""
    factor, more = ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))[severity - 1]
    hue, saturation, value = hsv(image)
    return rgb(hue, (saturation * factor + more).clip(0, 1), value)


@corruption
def elastic_transform(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """A random affine map and a smooth displacement.

    Lengths are shares of the image's side.
    """
    alpha, sigma, stretch = (
        (0, 0, 0.08),
        (0.05, 0.2, 0.07),
        (0.08, 0.06, 0.06),
        (0.1, 0.04, 0.05),
        (0.1, 0.03, 0.03),
    )[severity - 1]
    image, size = image.astype(np.float32), min(image.shape[1:])
    image = affine(image, rng.uniform(-stretch * size, stretch * size, size=(3, 2)))
    return displaced(image, alpha * size, sigma * size, rng)


def affine(image: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """The affine map of an `image` (C, H, W) that moves three points around its centre.

    Args:
        shifts: How far, (3, 2), in (x, y) and pixels.
    """
    _, H, W = image.shape
    x, y, arm = W // 2, H // 2, min(H, W) // 3
    before = np.array([(x + arm, y + arm), (x + arm, y - arm), (x - arm, y - arm)], dtype=float)
    after = np.column_stack([before + shifts, np.ones(3)])
    back = np.linalg.solve(after, before)[:, ::-1]  # (x, y, 1) of the result -> (y, x) of the image
    columns, rows = np.meshgrid(np.arange(W), np.arange(H))
    from_rows, from_columns = (rows * b + columns * a + c for a, b, c in back.T)
    return _sampled(image, from_rows, from_columns, mode="mirror")


def displaced(image: np.ndarray, alpha: float, sigma: float, rng: np.random.Generator) -> np.ndarray:
    """Each pixel of an `image` (C, H, W) taken from somewhere near, its neighbours from alike places.

    Args:
        alpha: From how far away at most, in pixels.
        sigma: Of the Gaussian that makes neighbours alike, in pixels.
        rng: Drawn from twice, for the two directions.
    """
    _, H, W = image.shape
    across, down = (
        alpha * scipy.ndimage.gaussian_filter(rng.uniform(-1, 1, size=(H, W)), sigma, truncate=3)
        for _ in range(2)
    )
    columns, rows = np.meshgrid(np.arange(W), np.arange(H))
    return _sampled(image, rows + down, columns + across, mode="reflect")


def _sampled(image: np.ndarray, rows: np.ndarray, columns: np.ndarray, mode: str) -> np.ndarray:
    return np.stack(
        [scipy.ndimage.map_coordinates(channel, (rows, columns), order=1, mode=mode) for channel in image]
    )


@corruption
def pixelate(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Shrunk and enlarged again."""
    from PIL import Image

    share = (0.95, 0.9, 0.85, 0.75, 0.65)[severity - 1]
    picture = _picture(image)
    width, height = picture.size
    small = picture.resize((int(width * share), int(height * share)), Image.Resampling.BOX)
    return _channels_first(small.resize(picture.size, Image.Resampling.BOX))


@corruption
def jpeg_compression(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Compressed as JPEG and read again."""
    from PIL import Image

    quality = (80, 65, 58, 50, 40)[severity - 1]
    file = BytesIO()
    _picture(image).save(file, "JPEG", quality=quality)
    with Image.open(file) as compressed:
        return _channels_first(compressed)


def jpeg_library() -> str | None:
    """What Pillow compresses with if not libjpeg 9, which the released arrays were made with; else None."""
    from PIL import features

    if features.check_feature("libjpeg_turbo"):
        return "libjpeg-turbo"
    version = features.version_codec("jpg")
    return None if version and version.startswith("9") else f"libjpeg {version}"


def _picture(image: np.ndarray) -> Image.Image:
    from PIL import Image

    values = to_uint8(image)
    return Image.fromarray(values[0] if len(values) == 1 else np.ascontiguousarray(values.transpose(1, 2, 0)))


def _channels_first(picture: Image.Image) -> np.ndarray:
    values = np.asarray(picture)
    return values[None] if values.ndim == 2 else values.transpose(2, 0, 1)

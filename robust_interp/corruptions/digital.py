"""Contrast, saturation, elastic deformation, pixelation and JPEG."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from io import BytesIO
from typing import TYPE_CHECKING

import numpy as np
import scipy

from robust_interp.corruptions.imaging import hsv, rgb, to_uint8
from robust_interp.corruptions.severities import IMAGENET_C, constants_of, level
from robust_interp.corruptions.table import colour, corruption, corruption_of_batch, needs

if TYPE_CHECKING:
    from PIL import Image


@corruption
def contrast(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Less contrast around the mean."""
    share = level("contrast", severity, image.shape)
    # Channels last: the order of the summation changes the last bit, which changes some truncated values.
    mean = np.ascontiguousarray(image.transpose(1, 2, 0)).mean(axis=(0, 1))[:, None, None]
    return (image - mean) * share + mean


@needs(colour)
@corruption_of_batch
def saturate(images: np.ndarray, severity: int, rngs: Sequence[np.random.Generator]) -> np.ndarray:
    """Colours paler or stronger."""
    factor, more = level("saturate", severity, images.shape)
    hue, saturation, value = hsv(images.swapaxes(0, 1))
    return rgb(hue, (saturation * factor + more).clip(0, 1), value).swapaxes(0, 1)


@corruption
def elastic_transform(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """A random affine map and a smooth displacement.

    Lengths are shares of the image's shorter side.
    """
    alpha, sigma, stretch = level("elastic_transform", severity, image.shape)
    size = min(image.shape[1:])
    if constants_of(image.shape) == IMAGENET_C:
        size *= 244 / 224  # as in the original code, which has 244 instead of 224 here
    image = image.astype(np.float32)
    image = affine(image, rng.uniform(-stretch * size, stretch * size, size=(3, 2)))
    return displaced(image, alpha * size, sigma * size, rng)


def affine(image: np.ndarray, shifts: np.ndarray) -> np.ndarray:
    """Apply the affine map that moves three points around the centre of an image.

    Args:
        image: Image (C, H, W).
        shifts: Displacements (x, y) of the three points in pixels, (3, 2).
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
    """Displace the pixels of an image by a smooth random field.

    Args:
        image: Image (C, H, W).
        alpha: Largest displacement in pixels, along each axis.
        sigma: Standard deviation of the Gaussian that smooths the field, in pixels.
        rng: Generator of the field. It is used twice, once for each axis.
    """
    _, H, W = image.shape
    across, down = (alpha * _smoothed(rng.uniform(-1, 1, size=(H, W)), sigma) for _ in range(2))
    columns, rows = np.meshgrid(np.arange(W), np.arange(H))
    return _sampled(image, rows + down, columns + across, mode="reflect")


DIRECTLY = 64  # reach of a Gaussian in pixels above which a cosine transform is faster than direct summation


def _smoothed(field: np.ndarray, sigma: float) -> np.ndarray:
    """Smooth a field (H, W), mirrored at its borders, with a Gaussian that is cut off at 3 `sigma`.

    For such borders the cosine transform turns the convolution into a product.
    """
    reach = int(3 * sigma + 0.5)
    if reach <= DIRECTLY:
        return scipy.ndimage.gaussian_filter(field, sigma, truncate=3)
    for axis, size in enumerate(field.shape):
        waves = np.expand_dims(_kept_of_waves(size, sigma, reach), 1 - axis)
        field = scipy.fft.idct(scipy.fft.dct(field, axis=axis) * waves, axis=axis)
    return field


@lru_cache
def _kept_of_waves(size: int, sigma: float, reach: int) -> np.ndarray:
    """Return the factors (size,) that a Gaussian cut off at `reach` applies to the `size` cosines."""
    steps = np.arange(-reach, reach + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    return np.cos(np.pi / size * np.outer(np.arange(size), steps)) @ (weights / weights.sum())


def _sampled(image: np.ndarray, rows: np.ndarray, columns: np.ndarray, mode: str) -> np.ndarray:
    return np.stack(
        [scipy.ndimage.map_coordinates(channel, (rows, columns), order=1, mode=mode) for channel in image]
    )


@corruption
def pixelate(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Shrunk and enlarged again."""
    from PIL import Image

    share = level("pixelate", severity, image.shape)
    picture = _picture(image)
    width, height = picture.size
    size = max(1, int(width * share)), max(1, int(height * share))
    small = picture.resize(size, Image.Resampling.BOX)
    return _channels_first(small.resize(picture.size, Image.Resampling.BOX))


@corruption
def jpeg_compression(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Compressed as JPEG and read again."""
    from PIL import Image

    quality = level("jpeg_compression", severity, image.shape)
    file = BytesIO()
    _picture(image).save(file, "JPEG", quality=quality)
    with Image.open(file) as compressed:
        return _channels_first(compressed)


def jpeg_library() -> str | None:
    """Return the JPEG library of Pillow; None for libjpeg 9, with which the released arrays were made."""
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

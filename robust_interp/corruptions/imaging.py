"""Image operations that corruptions share: blur, zoom, colour spaces, edges. Arrays are (C, H, W)."""

from __future__ import annotations

import numpy as np
import scipy


def smooth(image: np.ndarray, sigma: float) -> np.ndarray:
    """Blur the last two axes of an image with a Gaussian of `sigma` pixels; borders repeat the last pixel."""
    sigmas = (*[0] * (image.ndim - 2), sigma, sigma)
    return scipy.ndimage.gaussian_filter(image, sigmas, mode="nearest", truncate=4.0)


def zoom_in(images: np.ndarray, factor: float) -> np.ndarray:
    """Return the centre of images (..., H, W), enlarged to H x W by linear interpolation.

    The result is that of scipy.ndimage.zoom of order 1 for each image, to the last bit.

    Args:
        images: Images (..., H, W).
        factor: Factor of the enlargement, at least 1.
    """
    H, W = images.shape[-2:]
    tall, wide = (_centre(size, int(np.ceil(size / factor))) for size in (H, W))
    # The indexed axis is the first one: a row, and then a column, is copied as one contiguous piece.
    centre = np.moveaxis(images[..., tall, wide], -2, 0).astype(np.float64, order="C")
    aside = (1,) * (images.ndim - 1)
    found = np.zeros((W, H, *images.shape[:-2]))
    for rows, by_row in _enlarged(len(centre), H, factor):
        of_rows = centre[rows]
        of_rows *= by_row.reshape(-1, *aside)
        of_rows = np.ascontiguousarray(np.moveaxis(of_rows, -1, 0))
        for columns, by_column in _enlarged(len(of_rows), W, factor):
            part = of_rows[columns]
            part *= by_column.reshape(-1, *aside)
            found += part
    return np.moveaxis(found.astype(images.dtype), (1, 0), (-2, -1))


def _enlarged(size: int, whole: int, factor: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return, for each pixel of an enlarged row, the two pixels that it lies between, and their weights.

    Args:
        size: Number of pixels before the enlargement.
        whole: Number of pixels to return, from the centre of the enlarged row.
        factor: Factor of the enlargement.

    Returns:
        Two pairs of indices (whole,) and weights (whole,). The weights are 0 for a point that rounding puts
        outside the row, as in SciPy.
    """
    enlarged = round(size * factor)
    at = np.arange(enlarged)[_centre(enlarged, whole)] * (
        (size - 1) / (enlarged - 1) if enlarged > 1 else 1.0
    )
    below = np.floor(at).astype(int).clip(0, size - 1)
    weight, is_inside = at - below, at <= size - 1
    return [(below, (1 - weight) * is_inside), ((below + 1).clip(0, size - 1), weight * is_inside)]


def _centre(whole: int, size: int) -> slice:
    start = (whole - size) // 2
    return slice(start, start + size)


def motion(image: np.ndarray, radius: int, sigma: float, degrees: float) -> np.ndarray:
    """Blur an image along a line, as ImageMagick's motion blur does, and round it to uint8.

    Each pixel becomes a weighted mean of 2 `radius` + 1 pixels: itself and those that follow in one
    direction. The weights are half a Gaussian. Positions are rounded to whole pixels, and borders repeat the
    last pixel.

    Args:
        image: Image (C, H, W), uint8, or floats from 0 to 255.
        radius: Radius in pixels.
        sigma: Standard deviation of the Gaussian, in pixels.
        degrees: Direction, as an angle from the x axis towards the y axis.

    Source: ImageMagick's MotionBlurImage, which the CIFAR-C generator calls.
    """
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    angle = np.deg2rad(degrees)
    down, right = (np.ceil(steps * along - 0.5).astype(int) for along in (np.sin(angle), np.cos(angle)))
    _, H, W = image.shape
    rows, columns = (_reached(size, by) for size, by in ((H, down), (W, right)))
    padded = image[:, rows][:, :, columns].astype(np.float64)
    blurred, part = np.zeros(image.shape), np.empty(image.shape)
    for weight, top, left in zip(weights, down - down.min(), right - right.min(), strict=True):
        blurred += np.multiply(padded[:, top : top + H, left : left + W], weight, out=part)
    return to_uint8(blurred / 255)


def _reached(size: int, shifts: np.ndarray) -> np.ndarray:
    """Return the indices of a row that is padded as far as the shifts lead; borders repeat the last pixel."""
    return np.arange(shifts.min(), size + shifts.max()).clip(0, size - 1)


def to_uint8(image: np.ndarray) -> np.ndarray:
    """Convert pixels in [0, 1], of any shape, to uint8 by rounding to the nearest value."""
    return np.rint(image * 255).astype(np.uint8)


def grey(image: np.ndarray) -> np.ndarray:
    """Return the luma (1, H, W) of an image (C, H, W) by ITU-R BT.601; a single channel is not changed."""
    if len(image) == 1:
        return image
    return np.tensordot([[0.299, 0.587, 0.114]], image, axes=1)


def hsv(image: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return hue, saturation and value, (...) each and in [0, 1], of pixels (3, ...) in [0, 1].

    The hue of a grey pixel is 0.
    """
    red, green, blue = image
    value = image.max(axis=0)
    spread = value - image.min(axis=0)
    coloured = spread > 0
    by = np.where(coloured, spread, 1)
    # If two channels are both the largest, the last one is used; the hues differ only by rounding.
    sixth = np.select(
        [value == blue, value == green], [4 + (red - green) / by, 2 + (blue - red) / by], (green - blue) / by
    )
    hue = np.where(coloured, sixth / 6 % 1, 0)
    saturation = np.where(coloured, spread / np.where(value > 0, value, 1), 0)
    return hue, saturation, value


def rgb(hue: np.ndarray, saturation: np.ndarray, value: np.ndarray) -> np.ndarray:
    """Return pixels (3, ...) from hue, saturation and value, (...) each: the inverse of `hsv`."""
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


_TAN = np.tan(np.pi / 8)  # 22.5 degrees: limit between two of the four gradient directions


def canny(image: np.ndarray, low: float, high: float) -> np.ndarray:
    """Find the edges of a grey image with Canny's method: Sobel 3x3, gradient strength |dx| + |dy|.

    Args:
        image: Grey image (H, W).
        low: Gradient strength above which a pixel is weak. A weak pixel is an edge only if it is connected
            to a strong one.
        high: Gradient strength above which a pixel is strong.

    Returns:
        Whether each pixel is an edge, (H, W) bool.

    Source: J. Canny, *A Computational Approach to Edge Detection*, 1986.
    """
    dx, dy = (scipy.ndimage.sobel(image.astype(int), axis, mode="nearest") for axis in (1, 0))
    strength = abs(dx) + abs(dy)
    weak = _ridge(strength, dx, dy) & (strength > low)
    regions, _ = scipy.ndimage.label(weak, np.ones((3, 3)))
    strong = np.unique(regions[weak & (strength > high)])
    return weak & np.isin(regions, strong)


def _ridge(strength: np.ndarray, dx: np.ndarray, dy: np.ndarray) -> np.ndarray:
    """Return where the strength has a maximum along the gradient; of equal pixels the first on an axis."""
    H, W = strength.shape
    padded = np.pad(strength, 1)

    def at(down: int, right: int) -> np.ndarray:
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

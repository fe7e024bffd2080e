"""Snow, frost, fog, spatter and brightness."""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import scipy

from robust_interp.core.errors import UserError
from robust_interp.corruptions.imaging import canny, grey, hsv, motion, rgb, smooth, to_uint8, zoom_in
from robust_interp.corruptions.severities import (
    CIFAR_C,
    IMAGENET_C,
    MUD,
    TINY_IMAGENET_C,
    WATER,
    constants_of,
    level,
)
from robust_interp.corruptions.table import colour, corruption, corruption_of_batch, needs


@corruption_of_batch
def snow(images: np.ndarray, severity: int, rngs: Sequence[np.random.Generator]) -> np.ndarray:
    """Falling flakes, and a whiter scene."""
    mean, sd, zoom, threshold, radius, sigma, kept = level("snow", severity, images.shape)
    layers = zoom_in(np.stack([rng.normal(mean, sd, size=images.shape[2:]) for rng in rngs]), zoom)
    layers = (np.where(layers < threshold, 0, layers).clip(0, 1) * 255).astype(np.uint8)
    blurred = [
        motion(layer[None], radius, sigma, rng.uniform(-135, -45))
        for layer, rng in zip(layers, rngs, strict=True)
    ]
    flakes = np.stack(blurred) / 255
    paler = np.maximum(images, 1.5 * np.stack([grey(image) for image in images]) + 0.5)
    return kept * images + (1 - kept) * paler + flakes + flakes[..., ::-1, ::-1]


# MD5 of the authors' frost pictures. There are six, and the CIFAR-C generator takes one of the first five.
FROST_PICTURES = {
    "frost1.png": "6ead634ace1f366d77e87078b465863c",
    "frost2.png": "98f0d2b1d74a048d3bc9c7ecfd886939",
    "frost3.png": "b3ed8eb147824261888e730f916c0d8b",
    "frost4.jpg": "d70b9d6aa0b1fe7bd8133b113787e078",
    "frost5.jpg": "50984ae2c871b7df2c28f1d71ca460a0",
}
FROST_PACKAGE = "imagecorruptions"
NO_FROST = (
    f"its frost images are in another package: pip install --no-deps {FROST_PACKAGE}, "
    "or use the released arrays (--corruptions-dir)"
)


def _frost_obstacle(shape: tuple[int, int, int]) -> str | None:
    if reason := colour(shape):
        return reason
    folder = frost_folder()
    if folder is None:
        return NO_FROST
    for name, md5 in FROST_PICTURES.items():
        path = folder / name
        if not path.is_file() or hashlib.md5(path.read_bytes()).hexdigest() != md5:
            return f"{path} is not the original frost image"
    pictures = frost_pictures(FROST_SIZE[constants_of(shape)])
    height, width = (min(sizes) for sizes in zip(*(p.shape[1:] for p in pictures), strict=True))
    if shape[1] >= height or shape[2] >= width:
        return f"its frost images are {height} x {width}, too small for {shape[1]} x {shape[2]}"
    return None


def frost_folder() -> Path | None:
    """Return the folder of pictures in the installed package, without importing it; None if not installed."""
    spec = importlib.util.find_spec(FROST_PACKAGE)
    places = spec.submodule_search_locations if spec else None
    return Path(places[0]) / "frost" if places else None


FROST_SIZE = {
    CIFAR_C: 0.2,
    TINY_IMAGENET_C: 0.3,
    IMAGENET_C: 1.0,
}  # size of the frost pictures, as a share of the size of their files


@cache
def frost_pictures(share: float) -> list[np.ndarray]:
    """Return the frost pictures, uint8 (3, H, W), scaled by `share`, interpolated linearly as in OpenCV."""
    from PIL import Image

    folder = frost_folder()
    if folder is None:
        raise UserError(f"frost cannot be generated: {NO_FROST}")
    pictures = []
    for name in FROST_PICTURES:
        with Image.open(folder / name) as file:
            pictures.append(_resized(np.asarray(file.convert("RGB")).transpose(2, 0, 1), share))
    return pictures


def _resized(picture: np.ndarray, share: float) -> np.ndarray:
    """Return a picture (3, H, W), scaled by `share`.

    Each new pixel is interpolated from the four nearest ones, without smoothing even if the picture shrinks.
    """
    for axis in (1, 2):
        size = picture.shape[axis]
        at = ((np.arange(round(size * share)) + 0.5) / share - 0.5).clip(0, size - 1)
        below = at.astype(int)
        weight = np.expand_dims(at - below, (0, 3 - axis))
        above = (below + 1).clip(0, size - 1)
        picture = picture.take(below, axis) * (1 - weight) + picture.take(above, axis) * weight
    return np.rint(picture).astype(np.uint8)


@needs(_frost_obstacle)
@corruption
def frost(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Photographs of frost laid over the image."""
    kept, weight = level("frost", severity, image.shape)
    picture = frost_pictures(FROST_SIZE[constants_of(image.shape)])[rng.integers(len(FROST_PICTURES))]
    _, H, W = image.shape
    top, left = rng.integers(0, np.subtract(picture.shape[1:], (H, W)))
    crop = picture[:, top : top + H, left : left + W]
    return (kept * to_uint8(image) + weight * crop).clip(0, 255).astype(np.uint8)


@corruption_of_batch
def fog(images: np.ndarray, severity: int, rngs: Sequence[np.random.Generator]) -> np.ndarray:
    """Clouds of fractal noise."""
    amount, decay = level("fog", severity, images.shape)
    H, W = images.shape[2:]
    size = 1 << (max(H, W) - 1).bit_length()  # the map's side is a power of two
    foggy = images + amount * plasma(size, decay, rngs)[:, None, :H, :W]
    brightest = images.max(axis=(1, 2, 3), keepdims=True)
    return foggy * brightest / (brightest + amount)


def plasma(size: int, decay: float, rngs: Sequence[np.random.Generator]) -> np.ndarray:
    """Return diamond-square height maps (N, size, size) on a torus, scaled to [0, 1].

    Each point is the mean of four points around it plus a uniform draw. The draw is at most 100^2 at first,
    and `decay`^2 times smaller after each halving of the distance.

    Args:
        size: Side of a map in pixels, a power of two.
        decay: Decay of the draws, as above.
        rngs: One generator per map.
    """
    heights = np.zeros((len(rngs), size, size))
    step, wibble = size, 100.0

    def midpoint(total: np.ndarray) -> np.ndarray:
        draws = [rng.uniform(-wibble, wibble, total.shape[1:]) for rng in rngs]
        return total / 4 + wibble * np.stack(draws)

    while step > 1:
        half = step // 2
        corners = heights[:, ::step, ::step]
        across = corners + np.roll(corners, -1, axis=2)
        down = corners + np.roll(corners, -1, axis=1)
        centres = midpoint(across + np.roll(across, -1, axis=1))
        heights[:, half::step, half::step] = centres
        heights[:, ::step, half::step] = midpoint(across + centres + np.roll(centres, 1, axis=1))
        heights[:, half::step, ::step] = midpoint(down + centres + np.roll(centres, 1, axis=2))
        step, wibble = half, wibble / decay
    heights -= heights.min(axis=(1, 2), keepdims=True)
    highest = heights.max(axis=(1, 2), keepdims=True)
    return heights / np.where(highest > 0, highest, 1)


@corruption_of_batch
def brightness(images: np.ndarray, severity: int, rngs: Sequence[np.random.Generator]) -> np.ndarray:
    """Brighter by a constant."""
    more = level("brightness", severity, images.shape)
    if images.shape[1] == 1:
        return images + more  # the same as for three equal channels
    hue, saturation, value = hsv(images.swapaxes(0, 1))
    return rgb(hue, saturation, (value + more).clip(0, 1)).swapaxes(0, 1)


PALE_TURQUOISE = np.array([175, 238, 238])[:, None, None] / 255
BROWN = np.array([63, 42, 20])[:, None, None] / 255


@needs(colour)
@corruption
def spatter(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Drops of water or mud."""
    mean, sd, sigma, threshold, amount, kind = level("spatter", severity, image.shape)
    drops = smooth(rng.normal(mean, sd, size=image.shape[1:]), sigma)
    draw = {WATER: _water, MUD: _mud}[kind]
    return draw(image, np.where(drops < threshold, 0, drops), amount)


def _water(image: np.ndarray, drops: np.ndarray, amount: float) -> np.ndarray:
    """Draw drops that are lit from one side: brighter towards their centres, with a ridge along the edges."""
    drops = (drops * 255).astype(np.uint8)
    light = drops * _relief(canny(drops, 50, 150)).astype(np.float64)
    return image + amount * light / (light.max() or 1) * PALE_TURQUOISE


def _relief(edges: np.ndarray) -> np.ndarray:
    """Return the distance from the edges (H, W), at most 20 pixels, equalised and embossed, as uint8."""
    near = np.full(edges.shape, 20.0)
    if edges.any():
        near = np.minimum(scipy.ndimage.distance_transform_edt(~edges), 20)
    flat = equalised(_box(near).astype(np.uint8))
    emboss = np.array([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]])
    embossed = scipy.ndimage.correlate(flat.astype(int), emboss, mode="mirror").clip(0, 255)
    return np.rint(_box(embossed.astype(np.float64))).astype(np.uint8)


def _box(image: np.ndarray) -> np.ndarray:
    return scipy.ndimage.uniform_filter(image, 3, mode="mirror")


def equalised(image: np.ndarray) -> np.ndarray:
    """Equalise the histogram of a uint8 image, the smallest value at 0; a constant image is not changed."""
    counts = np.bincount(image.ravel(), minlength=256)
    above = counts.cumsum() - counts[image.min()]
    return np.rint(above * (255 / above[-1])).astype(np.uint8)[image] if above[-1] else image


def _mud(image: np.ndarray, drops: np.ndarray, amount: float) -> np.ndarray:
    mask = smooth((drops > 0).astype(np.float64), amount)
    mask = np.where(mask < 0.8, 0, mask)
    return image * (1 - mask) + mask * BROWN

"""Snow, frost, fog, spatter and brightness."""

from __future__ import annotations

import hashlib
import importlib.util
from functools import cache
from pathlib import Path

import numpy as np
import scipy

from robust_interp.core.errors import UserError
from robust_interp.corruptions.imaging import canny, grey, hsv, motion, rgb, smooth, to_uint8, zoom_in
from robust_interp.corruptions.table import colour, corruption, needs


@corruption
def snow(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Falling flakes, and a whiter scene."""
    mean, sd, zoom, threshold, radius, sigma, kept = (
        (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
        (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
        (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
        (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
        (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
    )[severity - 1]
    flakes = zoom_in(rng.normal(mean, sd, size=(1, *image.shape[1:])), zoom)
    flakes = (np.where(flakes < threshold, 0, flakes).clip(0, 1) * 255).astype(np.uint8)
    flakes = motion(flakes, radius, sigma, rng.uniform(-135, -45)) / 255
    paler = np.maximum(image, 1.5 * grey(image) + 0.5)
    return kept * image + (1 - kept) * paler + flakes + flakes[:, ::-1, ::-1]


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
    height, width = (min(sizes) for sizes in zip(*(p.shape[1:] for p in frost_pictures()), strict=True))
    if shape[1] >= height or shape[2] >= width:
        return f"its frost images are {height} x {width}, too small for {shape[1]} x {shape[2]}"
    return None


def frost_folder() -> Path | None:
    """Where the installed package keeps its pictures; the package itself is never imported."""
    spec = importlib.util.find_spec(FROST_PACKAGE)
    places = spec.submodule_search_locations if spec else None
    return Path(places[0]) / "frost" if places else None


@cache
def frost_pictures() -> list[np.ndarray]:
    """The pictures (3, H, W) at a fifth of their size: linear interpolation at 1/5 is every fifth pixel."""
    from PIL import Image

    folder = frost_folder()
    if folder is None:
        raise UserError(f"frost cannot be generated: {NO_FROST}")
    pictures = []
    for name in FROST_PICTURES:
        with Image.open(folder / name) as file:
            pictures.append(np.asarray(file.convert("RGB"))[2::5, 2::5].transpose(2, 0, 1))
    return pictures


@needs(_frost_obstacle)
@corruption
def frost(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Photographs of frost laid over the image."""
    kept, weight = ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))[severity - 1]
    picture = frost_pictures()[rng.integers(len(FROST_PICTURES))]
    _, H, W = image.shape
    top, left = rng.integers(0, np.subtract(picture.shape[1:], (H, W)))
    crop = picture[:, top : top + H, left : left + W]
    return (kept * to_uint8(image) + weight * crop).clip(0, 255).astype(np.uint8)


@corruption
def fog(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Clouds of fractal noise."""
    amount, decay = ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))[severity - 1]
    _, H, W = image.shape
    size = 1 << (max(H, W) - 1).bit_length()  # the map's side is a power of two
    foggy = image + amount * plasma(size, decay, rng)[:H, :W]
    brightest = image.max()
    return foggy * brightest / (brightest + amount)


def plasma(size: int, decay: float, rng: np.random.Generator) -> np.ndarray:
    """A diamond-square height map (size, size) on a torus, drawn from `rng` and scaled to [0, 1].

    `size` is a power of two.

    Each point is the mean of four around it plus a uniform draw, of at most 100^2 at first and `decay`^2
    times less at each halving of the distance.
    """
    heights = np.zeros((size, size))
    step, wibble = size, 100.0

    def midpoint(total: np.ndarray) -> np.ndarray:
        return total / 4 + wibble * rng.uniform(-wibble, wibble, total.shape)

    while step > 1:
        half = step // 2
        corners = heights[::step, ::step]
        across = corners + np.roll(corners, -1, axis=1)
        down = corners + np.roll(corners, -1, axis=0)
        centres = midpoint(across + np.roll(across, -1, axis=0))
        heights[half::step, half::step] = centres
        heights[::step, half::step] = midpoint(across + centres + np.roll(centres, 1, axis=0))
        heights[half::step, ::step] = midpoint(down + centres + np.roll(centres, 1, axis=1))
        step, wibble = half, wibble / decay
    heights -= heights.min()
    return heights / (heights.max() or 1)


@corruption
def brightness(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Brighter by a constant."""
    more = (0.05, 0.1, 0.15, 0.2, 0.3)[severity - 1]
    if len(image) == 1:
        return image + more  # what a grey in three channels would become
    hue, saturation, value = hsv(image)
    return rgb(hue, saturation, (value + more).clip(0, 1))


PALE_TURQUOISE = np.array([175, 238, 238])[:, None, None] / 255
BROWN = np.array([63, 42, 20])[:, None, None] / 255


@needs(colour)
@corruption
def spatter(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Drops of water or mud."""
    mean, sd, sigma, threshold, amount, draw = (
        (0.62, 0.1, 0.7, 0.7, 0.5, _water),
        (0.65, 0.1, 0.8, 0.7, 0.5, _water),
        (0.65, 0.3, 1, 0.69, 0.5, _water),
        (0.65, 0.1, 0.7, 0.69, 0.6, _mud),
        (0.65, 0.1, 0.5, 0.68, 0.6, _mud),
    )[severity - 1]
    drops = smooth(rng.normal(mean, sd, size=image.shape[1:]), sigma)
    return draw(image, np.where(drops < threshold, 0, drops), amount)


def _water(image: np.ndarray, drops: np.ndarray, amount: float) -> np.ndarray:
    """Drops lit from one side: brighter the further inside they are, with a ridge along their edges."""
    drops = (drops * 255).astype(np.uint8)
    light = drops * _relief(canny(drops, 50, 150)).astype(np.float64)
    return image + amount * light / (light.max() or 1) * PALE_TURQUOISE


def _relief(edges: np.ndarray) -> np.ndarray:
    """Distance from the edges (H, W), at most 20 pixels, with its histogram flattened, embossed; uint8."""
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
    """uint8 values spread over 0 to 255 by their ranks, the smallest at 0; a constant image as it is."""
    counts = np.bincount(image.ravel(), minlength=256)
    above = counts.cumsum() - counts[image.min()]
    return np.rint(above * (255 / above[-1])).astype(np.uint8)[image] if above[-1] else image


def _mud(image: np.ndarray, drops: np.ndarray, amount: float) -> np.ndarray:
    mask = smooth((drops > 0).astype(np.float64), amount)
    mask = np.where(mask < 0.8, 0, mask)
    return image * (1 - mask) + mask * BROWN

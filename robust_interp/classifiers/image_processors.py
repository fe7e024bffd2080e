"""What an image processor of transformers does to images, as a timm ``pretrained_cfg``."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from robust_interp.data.preprocessing import FLOOR, of_model

if TYPE_CHECKING:
    from PIL import Image

_INTERPOLATIONS = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # in Pillow's order
_BILINEAR = 2
LONG = 8  # longer side of an oblong image on which a processor is tried, in units of the shorter one
_MOST_LEVELS = 2  # of 255: Pillow and torchvision round a resize differently, by one level

Pair = tuple[int, int]


def cfg_of(processor: Any, config: Any, channels: int, side: int) -> dict[str, Any]:
    """Return the settings of an image processor as a timm pretrained_cfg.

    The added key `blue_first` says whether the processor reverses the order of the channels.

    Args:
        processor: The image processor.
        config: The configuration of the model.
        channels: Number of channels of the images.
        side: Side of the images if neither the processor nor the configuration gives a size.
    """
    mean, std = _normalisation(processor, channels)
    resize, crop, is_squashed = _resize_and_crop(processor)
    crop = crop or resize or _pair(getattr(config, "image_size", None)) or (side, side)
    resample = getattr(processor, "resample", None)
    return {
        "input_size": (channels, *crop),
        "mean": mean,
        "std": std,
        "crop_pct": _crop_pct(crop[0], resize[0], getattr(processor, "crop_pct", None)) if resize else 1.0,
        "crop_mode": "squash" if is_squashed else "center",
        "interpolation": _INTERPOLATIONS[_BILINEAR if resample is None else int(resample)],  # nearest is 0
        "num_classes": config.num_labels,
        "blue_first": _is_blue_first(processor),
    }


def with_its_images(processor: Any, cfg: dict[str, Any]) -> dict[str, Any] | None:
    """Return the `cfg` with which image files become what the processor makes of them; None if none does.

    A class may resize by a rule of its own, which no setting shows. So the processor is tried on noise. If it
    takes no grey images, it is tried on colour ones, which it resizes in the same way.

    Args:
        processor: The image processor.
        cfg: Its settings from `cfg_of`. The result differs from it only in how a crop is rounded.
    """
    images = list(_noise(cfg))
    try:
        made = [processor(image, return_tensors="pt")["pixel_values"].float() for image in images]
    except Exception:  # some return no pixels, some need more than an image, and many take no grey ones
        return _by_colour_images(processor, cfg) if cfg["input_size"][0] == 1 else None
    pixels = [_pixels(each, cfg) for each in made]
    mode = "" if cfg["crop_mode"] == "center" else cfg["crop_mode"] + "-"
    for tried in (cfg, cfg | {"crop_mode": mode + FLOOR}):
        transform = of_model(tried).transform()
        if all(
            _is_close(transform(image), theirs, tried) for image, theirs in zip(images, pixels, strict=True)
        ):
            return tried
    return None


def _by_colour_images(processor: Any, cfg: dict[str, Any]) -> dict[str, Any] | None:
    """Return what `with_its_images` does for the `cfg` of grey images, by a trial on colour ones."""
    plain = copy.copy(processor)  # without normalisation, because its mean and std may be those of grey
    for name in ("do_normalize", "include_top"):
        if getattr(plain, name, False):
            setattr(plain, name, False)
    mean, std = _normalisation(plain, 3)
    in_colour = {"input_size": (3, *cfg["input_size"][1:]), "mean": mean, "std": std}
    found = with_its_images(plain, cfg | in_colour)
    return found and cfg | {"crop_mode": found["crop_mode"]}


def _resize_and_crop(processor: Any) -> tuple[Pair | None, Pair | None, bool]:
    """Return height and width after the resize and after the crop, and whether both sides are resized.

    A resize of only the shorter side gives its length twice. None means that there is no such step.
    """
    family, size = type(processor).__name__, getattr(processor, "size", None)
    crop = (
        _pair(getattr(processor, "crop_size", None)) if getattr(processor, "do_center_crop", None) else None
    )
    short = size if isinstance(size, int) else _part(size, "shortest_edge")
    resize, crop_pct = _pair(short or size), getattr(processor, "crop_pct", None)
    if family.startswith("ConvNext") and short and crop_pct:  # a crop of its own, or none for large images
        if short >= 384:
            return resize, resize, True
        return _pair(int(short / crop_pct)), resize, False
    if family.startswith("PoolFormer") and resize and crop_pct:
        return _pair(int(resize[0] / crop_pct)), crop, False
    if family.startswith("Levit") and short:
        return _pair(int((256 / 224) * short)), crop, False
    if family.startswith("Perceiver") and crop:  # it crops before it resizes: this is only nearly the same
        return crop, resize, False
    return resize, crop, resize is not None and not short


def _crop_pct(crop: int, resize: int, given: float | None) -> float:
    """Return the number by which timm divides the crop, rounding down, to get the resize.

    Args:
        crop: Height after the crop.
        resize: Height after the resize.
        given: The number that the processor has; it is returned if it fits.
    """
    if given and math.floor(crop / given) == resize:
        return given
    found = crop / resize
    return found if math.floor(crop / found) == resize else math.nextafter(found, 0)


def _is_blue_first(processor: Any) -> bool:
    """Whether a processor reverses the order of the channels. That of PP-LCNet always does."""
    always = type(processor).__name__.startswith("PPLCNet")
    return always or bool(getattr(processor, "do_flip_channel_order", False))


def _normalisation(processor: Any, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and std for pixels in [0, 1], equal to a processor's scaling, shift and normalisation."""
    is_rescaled = getattr(processor, "do_rescale", True)
    scale = 255 * processor.rescale_factor if is_rescaled else 255.0
    scale = 1.0 if abs(scale - 1) < 1e-9 else scale
    shift = 1.0 if is_rescaled and getattr(processor, "rescale_offset", False) else 0.0
    means, stds = [0.0] * channels, [1.0] * channels
    ignores = hasattr(processor, "do_flip_channel_order")  # MobileViTImageProcessor never normalises
    if getattr(processor, "do_normalize", None) and not ignores:
        means, stds = _each(processor.image_mean, channels), _each(processor.image_std, channels)
    again = [1.0] * len(stds)
    if getattr(processor, "include_top", False):  # EfficientNetImageProcessor divides by std once more
        again = _each(processor.image_std, channels)
    return (
        tuple((mean + shift) / scale for mean in means),
        tuple(std * more / scale for std, more in zip(stds, again, strict=True)),
    )


def _each(values: float | Sequence[float], channels: int) -> list[float]:
    """Return one number per channel; a single number is repeated."""
    if isinstance(values, int | float):
        return [float(values)] * channels
    return [float(value) for value in values]


def _pair(size: Any) -> Pair | None:
    """Return height and width of a size, in any of the forms used by transformers; None if there is none."""
    if isinstance(size, int):
        return size, size
    height, width = (
        size if isinstance(size, tuple | list) else (_part(size, key) for key in ("height", "width"))
    )
    return (int(height), int(width)) if height and width else None


def _part(size: Any, key: str) -> int | None:
    """Return an entry of a size, which is a dict or an object; None if it lacks the entry."""
    return size.get(key) if hasattr(size, "get") else getattr(size, key, None)


def _noise(cfg: dict[str, Any]) -> Iterator[Image.Image]:
    """Yield images of noise in sizes that show how a resize and a crop are rounded.

    Where a bicubic resize overshoots black or white, Pillow and torchvision differ: the noise is grey.
    """
    from PIL import Image

    rng = np.random.default_rng(0)
    channels, *sides = cfg["input_size"]
    resized, _ = of_model(cfg).resize or (0, 0)
    longest = max(resized, *sides)
    one_to_four_cropped = [(resized, longest + more) for more in range(1, 5)]  # half of it on each side
    others = [
        (resized, LONG * resized),  # a limit of the longer side
        (resized // 2 + 1, resized - 1),
        (resized + 3, 2 * resized - 1),
        (resized - 2, resized * 3 // 4),
    ]
    for at, (height, width) in enumerate(one_to_four_cropped + others):
        shape = (width, height) if at % 2 else (height, width)
        levels = rng.integers(80, 176, shape if channels == 1 else (*shape, 3), dtype=np.uint8)
        yield Image.fromarray(levels)


def _pixels(made: Tensor, cfg: dict[str, Any]) -> Tensor:
    """Return the pixels in [0, 1] that a processor has normalised, in the order red, green, blue."""
    mean, std = (torch.tensor(cfg[name])[:, None, None] for name in ("mean", "std"))
    return (made[0].flip(0) if cfg["blue_first"] else made[0]) * std + mean


def _is_close(ours: Any, theirs: Tensor, cfg: dict[str, Any]) -> bool:
    """Whether two images are the same up to rounding; `ours` is uint8 (C, H, W)."""
    if ours.shape[1:] != theirs.shape[1:]:
        return False
    apart = (ours - 255 * theirs).abs().flatten()
    # Halfway between two pixels, Pillow and torchvision take different ones as the nearest.
    share = 0.75 if cfg["interpolation"] == "nearest" else 1.0
    return float(np.quantile(apart.numpy(), share)) <= _MOST_LEVELS

"""Preprocess images of any size for a model: resize and crop.

A model's own preprocessing is timm's: size, crop_pct, crop_mode and interpolation of its ``pretrained_cfg``.
It does not include the normalisation, because attacks work on pixels in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from robust_interp.core.choices import INTERPOLATIONS
from robust_interp.core.errors import UserError
from robust_interp.core.numeric import whole_number
from robust_interp.core.registry import unknown

if TYPE_CHECKING:
    from PIL import Image

FLOOR = "floor"  # crop_mode, or its end: the centre crop of transformers, which rounds the offset down


@dataclass(frozen=True)
class Preprocessing:
    """A resize followed by a centre crop. Without either, images are not changed.

    Attributes:
        resize: Height and width in pixels after resizing; two equal numbers resize the shorter side. None
            does not resize.
        crop: Height and width in pixels of the centre crop; None does not crop.
        interpolation: Interpolation of the resize.
        mode: ``center``, or timm's ``squash`` or ``border``, which keep the whole image; ``floor`` or
            ``squash-floor`` with the crop of transformers.
        config: timm's data config, for a model's own preprocessing with timm; None otherwise.
    """

    resize: tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    interpolation: str = "bilinear"
    mode: str = "center"
    config: Mapping[str, Any] | None = field(default=None, compare=False)

    def __str__(self) -> str:
        """Text for tables: ``resize=256,crop=224,bicubic``; empty if images are not changed."""
        sizes = (("resize", self.resize), ("crop", self.crop))
        parts = [f"{name}={_sides(size)}" for name, size in sizes if size]
        parts += [self.interpolation] if self.resize else []
        return ",".join(parts if self.mode == "center" else [*parts, self.mode])

    def keeps(self, size: tuple[int, int]) -> bool:
        """Whether an image of this size (H, W) is not changed."""
        return self.resize in (None, size) and self.crop in (None, size)

    def transform(self) -> Callable[[Image.Image], Any]:
        """Return the transform from a Pillow image to an array or tensor (C, H, W)."""
        if self.config:
            from timm.data import create_transform

            return create_transform(**self.config, normalize=False)
        from torchvision import transforms

        steps: list[Any] = []
        if self.resize:
            interpolation = transforms.InterpolationMode(self.interpolation)
            size = self.resize if self.mode.startswith("squash") else self.resize[0]
            steps.append(transforms.Resize(size, interpolation))
        if self.crop:
            rounds_down = self.mode.endswith(FLOOR)
            steps.append(partial(_floor_crop, self.crop) if rounds_down else transforms.CenterCrop(self.crop))
        return transforms.Compose([*steps, transforms.PILToTensor()])


AS_THEY_ARE = Preprocessing()


def of_model(cfg: Mapping) -> Preprocessing:
    """Return timm's evaluation preprocessing for a ``pretrained_cfg``; AS_THEY_ARE without an input size.

    In addition to timm's own, `crop_mode` may be a mode that ends in ``floor``.
    """
    if not cfg.get("input_size"):
        return AS_THEY_ARE
    from timm.data import resolve_data_config

    config = resolve_data_config({}, pretrained_cfg=dict(cfg))
    height, width = config["input_size"][-2:]
    mode = config["crop_mode"] or "center"
    if mode == "border":  # timm fills the border with the mean
        mode += "({})".format(" ".join(f"{value:g}" for value in config["mean"]))
    resize = (math.floor(height / config["crop_pct"]), math.floor(width / config["crop_pct"]))
    by_timm = None if mode.endswith(FLOOR) else config
    return Preprocessing(resize, (height, width), config["interpolation"], mode, by_timm)


def fixed(resize: int | None, crop: int | None, interpolation: str | None) -> Preprocessing | None:
    """Return the preprocessing that the user sets for all models; None if nothing is set.

    Args:
        resize: Length in pixels of the shorter side after resizing.
        crop: Side in pixels of the square centre crop.
        interpolation: Interpolation of the resize; None is bilinear.

    Raises:
        UserError: if the values are not valid or do not fit together.
    """
    if interpolation is not None and interpolation not in INTERPOLATIONS:
        raise unknown("interpolation", str(interpolation), INTERPOLATIONS)
    if interpolation is not None and resize is None:
        raise UserError("interpolation needs resize")
    resized, cropped = _square("resize", resize), _square("crop", crop)
    if not resized and not cropped:
        return None
    if resized and cropped and cropped > resized:
        raise UserError(f"crop {crop} is larger than resize {resize}: borders would be black")
    return Preprocessing(resized, cropped, interpolation or "bilinear")


def _square(name: str, side: object) -> tuple[int, int] | None:
    if side is None:
        return None
    pixels = whole_number(side)
    if pixels is None or pixels < 1:
        raise UserError(f"{name} must be a whole number of pixels from 1, not {side!r}")
    return pixels, pixels


def _floor_crop(size: tuple[int, int], image: Image.Image) -> Image.Image:
    """Crop the centre as transformers does; what lies outside the image is black.

    Half of an odd number of pixels is rounded down, where torchvision rounds it to the even number.
    """
    height, width = size
    top, left = int((image.height - height) / 2), int((image.width - width) / 2)
    return image.crop((left, top, left + width, top + height))


def _sides(size: tuple[int, int]) -> str:
    return str(size[0]) if size[0] == size[1] else "x".join(map(str, size))

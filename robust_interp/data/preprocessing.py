"""How an image of any size becomes the pixels that a model takes: resized and cropped, nothing more.

The model's own way is that of timm: its ``pretrained_cfg`` says size, crop_pct, crop_mode and interpolation.
Normalisation is no part of it: what is measured and attacked are pixels in [0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from robust_interp.core.errors import UserError
from robust_interp.core.registry import unknown

if TYPE_CHECKING:
    from PIL import Image

INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos")


@dataclass(frozen=True)
class Preprocessing:
    """A resize of the shorter side, then a crop of the centre. Without either, images are as they are.

    Attributes:
        resize: What the sides become, (H, W) pixels: two equal ones mean the shorter side.
        crop: (H, W) pixels of the centre.
        interpolation: Of the resize.
        mode: ``center``; or timm's ``squash`` and ``border``, which lose nothing of the image.
        config: What timm makes it from, for one that is a model's own.
    """

    resize: tuple[int, int] | None = None
    crop: tuple[int, int] | None = None
    interpolation: str = "bilinear"
    mode: str = "center"
    config: Mapping[str, Any] | None = field(default=None, compare=False)

    def __str__(self) -> str:
        """As a row tells it: ``resize=256,crop=224,bicubic``; empty for images as they are."""
        sizes = (("resize", self.resize), ("crop", self.crop))
        parts = [f"{name}={_sides(size)}" for name, size in sizes if size]
        parts += [self.interpolation] if self.resize else []
        return ",".join(parts if self.mode == "center" else [*parts, self.mode])

    def keeps(self, size: tuple[int, int]) -> bool:
        """Whether an image of this size (H, W) stays as it is."""
        return self.resize in (None, size) and self.crop in (None, size)

    def transform(self) -> Callable[[Image.Image], Any]:
        """What makes an image of the right size of one of any size."""
        if self.config:
            from timm.data import create_transform

            return create_transform(**self.config, normalize=False)
        from torchvision import transforms

        steps: list[Any] = []
        if self.resize:
            interpolation = transforms.InterpolationMode(self.interpolation)
            steps.append(transforms.Resize(self.resize[0], interpolation))
        if self.crop:
            steps.append(transforms.CenterCrop(self.crop))
        return transforms.Compose([*steps, transforms.PILToTensor()])


AS_THEY_ARE = Preprocessing()


def of_model(cfg: Mapping) -> Preprocessing:
    """That of a model with this ``pretrained_cfg``, as timm evaluates it; none where it names no size."""
    if not cfg.get("input_size"):
        return AS_THEY_ARE
    from timm.data import resolve_data_config

    config = resolve_data_config({}, pretrained_cfg=dict(cfg))
    height, width = config["input_size"][-2:]
    mode = config["crop_mode"] or "center"
    if mode == "border":  # which is filled with the mean
        mode += "({})".format(" ".join(f"{value:g}" for value in config["mean"]))
    resize = (math.floor(height / config["crop_pct"]), math.floor(width / config["crop_pct"]))
    return Preprocessing(resize, (height, width), config["interpolation"], mode, config)


def fixed(resize: int | None, crop: int | None, interpolation: str | None) -> Preprocessing | None:
    """The one that a user sets for all models; None where nothing is set.

    Args:
        resize: The shorter side, in pixels.
        crop: Both sides of the centre.
        interpolation: Of the resize; None is bilinear.

    Raises:
        UserError: if it cannot be.
    """
    if interpolation is not None and interpolation not in INTERPOLATIONS:
        raise unknown("interpolation", str(interpolation), INTERPOLATIONS)
    if interpolation is not None and resize is None:
        raise UserError("interpolation needs resize")
    for name, value in (("resize", resize), ("crop", crop)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
            raise UserError(f"{name} must be a whole number of pixels from 1, not {value!r}")
    if resize is None and crop is None:
        return None
    if resize is not None and crop is not None and crop > resize:
        raise UserError(f"crop {crop} is larger than resize {resize}: borders would be black")
    both = [None if side is None else (side, side) for side in (resize, crop)]
    return Preprocessing(both[0], both[1], interpolation or "bilinear")


def _sides(size: tuple[int, int]) -> str:
    return str(size[0]) if size[0] == size[1] else "x".join(map(str, size))

"""The networks. Importing this module also imports timm and registers them there."""

import timm  # noqa: F401, must come before our modules: importing timm registers them

from robust_interp.models import in_resnet, in_resnext
from robust_interp.models.in_resnet import PreActResNet
from robust_interp.models.in_resnext import CifarResNeXt
from robust_interp.models.merges import (
    Add,
    Branch,
    Damp,
    Exponential,
    Gate,
    Keep,
    Lambda,
    ScaledDamp,
    ScaledExponential,
    damped,
)
from robust_interp.models.network import InterpolationNet

__all__ = [
    "ARCHITECTURES",
    "Add",
    "Branch",
    "CifarResNeXt",
    "Damp",
    "Exponential",
    "Gate",
    "InterpolationNet",
    "Keep",
    "Lambda",
    "PreActResNet",
    "ScaledDamp",
    "ScaledExponential",
    "damped",
    "default_lambda_init",
]


ARCHITECTURES = in_resnet.ARCHITECTURES | in_resnext.ARCHITECTURES


def default_lambda_init(architecture: str) -> tuple[float, float] | None:
    """Return the interval from which the initial act(λ) of an architecture is drawn by default.

    Args:
        architecture: A timm name without a tag.

    Returns:
        (low, high), or None if the network has no λ or is not one of this package.
    """
    damping = ARCHITECTURES[architecture].damping if architecture in ARCHITECTURES else None
    return None if damping is None else damping["lambda_init"]

"""The networks; importing this package registers them with timm."""

from robust_interp.models import in_resnet, in_resnext, robustbench_names  # noqa: F401, registers its names
from robust_interp.models.base import InterpolationNet
from robust_interp.models.in_resnet import PreActResNet
from robust_interp.models.in_resnext import CifarResNeXt
from robust_interp.models.interpolation import (
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
    """The interval that act(λ) starts in unless told otherwise; None for a network without λ, or not ours."""
    damping = ARCHITECTURES[architecture].damping if architecture in ARCHITECTURES else None
    return None if damping is None else damping["lambda_init"]

"""Channels last for models that came as objects: convolutions on a CPU are faster in it.

Only the images are laid out otherwise, and convolutions keep that layout. The model is not touched.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from robust_interp.classifiers.classifier import Classifier, with_gradient

ROUNDING = 1e-4  # of the largest logit, in float32
GRADIENT_ROUNDING = 100  # times that, of the norm of a sample's gradient


class ChannelsLast(nn.Module):
    """The same images (N, C, H, W), channels last in memory where they are on a CPU."""

    def forward(self, images: Tensor) -> Tensor:
        if images.device.type != "cpu":
            return images
        return images.contiguous(memory_format=torch.channels_last)


def use_channels_last(classifier: Classifier, images: Tensor) -> bool:
    """Give a model its images channels last, if it has convolutions and does the same with them.

    Args:
        classifier: In eval mode with frozen parameters.
        images: (N, C, H, W) pixels in [0, 1], of which logits and gradients are taken in both layouts.

    Returns:
        Whether it was done. A model that fails, or differs by more than rounding, is left as it was.
    """
    plain = classifier.normalize
    if not _may_gain(classifier.model, images):
        return False
    before = with_gradient(classifier, images)
    classifier.normalize = nn.Sequential(plain, ChannelsLast())
    try:
        after = with_gradient(classifier, images)
    except Exception:  # a view of a layout that the model takes for granted may fail in any way
        after = None
    if after is None or not alike(before, after):
        classifier.normalize = plain
        return False
    return True


def _may_gain(model: nn.Module, images: Tensor) -> bool:
    """Whether it has convolutions of images of several channels on a CPU; code of TorchScript shows none."""
    weights = [module.weight for module in model.modules() if isinstance(module, nn.Conv2d)]
    already = any(_is_channels_last(weight) for weight in weights)
    return bool(weights) and not already and images.shape[1] > 1 and images.device.type == "cpu"


def _is_channels_last(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def alike(
    before: tuple[Tensor, Tensor | None], after: tuple[Tensor, Tensor | None], rounding: float = ROUNDING
) -> bool:
    """Whether logits (N, classes), and the gradients that come back to images, differ by rounding at most.

    Gradients are compared sample by sample, and most must be the same: where a unit is at its kink, rounding
    decides which of two gradients there is.

    Args:
        before: Both; None for a gradient that did not come back.
        after: The same of what ought to be the same function.
        rounding: Of logits, as a share of the largest one.
    """
    (logits, gradient), (logits_after, gradient_after) = before, after
    differ = (logits - logits_after).detach().abs().max()
    if not differ <= rounding * logits.detach().abs().max():  # nor where some are not finite
        return False
    if gradient is None or gradient_after is None:
        return gradient is gradient_after
    changes, sizes = (one.flatten(1).norm(dim=1) for one in (gradient - gradient_after, gradient))
    same = changes <= min(GRADIENT_ROUNDING * rounding, 0.5) * sizes
    return bool(same.double().mean() > 0.5)

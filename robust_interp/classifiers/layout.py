"""Use the channels-last memory format for models given as objects: it makes convolutions on a CPU faster.

Only the images are converted; convolutions keep their memory format. The model is not changed.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from robust_interp.classifiers.classifier import Classifier, with_gradient

ROUNDING = 1e-4  # tolerance of logits in float32, as a share of the largest logit
GRADIENT_ROUNDING = 100  # times ROUNDING: tolerance of an image's gradient, as a share of its norm


class ChannelsLast(nn.Module):
    """Converts images (N, C, H, W) on a CPU to the channels-last memory format."""

    def forward(self, images: Tensor) -> Tensor:
        if images.device.type != "cpu":
            return images
        return images.contiguous(memory_format=torch.channels_last)


def use_channels_last(classifier: Classifier, images: Tensor) -> bool:
    """Make a classifier convert its images to channels last, if that can help and keeps its results.

    Args:
        classifier: A classifier in eval mode with frozen parameters. It is changed in place.
        images: Pixels (N, C, H, W) in [0, 1] on which logits and gradients are compared in both formats.

    Returns:
        Whether the classifier was changed. If it fails in channels last, or its logits or gradients differ by
        more than rounding, it stays as it was.
    """
    plain = classifier.normalize
    if not _may_gain(classifier.model, images):
        return False
    before = with_gradient(classifier, images)
    classifier.normalize = nn.Sequential(plain, ChannelsLast())
    try:
        after = with_gradient(classifier, images)
    except Exception:  # a model may rely on the default memory format, as with view()
        after = None
    if after is None or not outputs_match(before, after):
        classifier.normalize = plain
        return False
    return True


def _may_gain(model: nn.Module, images: Tensor) -> bool:
    """Whether channels last can help: several channels on a CPU, and convolutions not yet in that format."""
    weights = [module.weight for module in model.modules() if isinstance(module, nn.Conv2d)]
    already = any(_is_channels_last(weight) for weight in weights)
    return bool(weights) and not already and images.shape[1] > 1 and images.device.type == "cpu"


def _is_channels_last(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last) and not tensor.is_contiguous()


def outputs_match(
    before: tuple[Tensor, Tensor | None], after: tuple[Tensor, Tensor | None], rounding: float = ROUNDING
) -> bool:
    """Whether logits (N, classes) and gradients (N, C, H, W) of two models differ by rounding at most.

    Gradients are compared per image, and more than half of them must agree: at the kink of a ReLU, rounding
    decides which of two gradients is returned.

    Args:
        before: Logits and gradient of the first model, as from `with_gradient`.
        after: Logits and gradient of the second model.
        rounding: Tolerance of the logits, as a share of the largest one.
    """
    (logits, gradient), (logits_after, gradient_after) = before, after
    differ = (logits - logits_after).detach().abs().max()
    if not differ <= rounding * logits.detach().abs().max():  # also if one is not finite
        return False
    if gradient is None or gradient_after is None:
        return gradient is gradient_after
    changes, sizes = (one.flatten(1).norm(dim=1) for one in (gradient - gradient_after, gradient))
    same = changes <= min(GRADIENT_ROUNDING * rounding, 0.5) * sizes
    return bool(same.double().mean() > 0.5)

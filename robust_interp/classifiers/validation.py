"""Which models can be measured, and the notes about them."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

from robust_interp.classifiers.isolation import undisturbed
from robust_interp.core.errors import RandomModelError, UserError

CHECKED_ON = 8  # images that a model must classify alone as in a batch, and twice alike


@torch.no_grad()
def check_classifier(classifier: nn.Module, images: Tensor, classes: int) -> None:
    """Refuse what cannot be measured, on one small batch.

    Args:
        classifier: Maps pixels to logits, in eval mode, on the device of the images.
        images: (N, C, H, W) pixels in [0, 1].
        classes: Number of classes of the dataset.

    Raises:
        UserError: if the logits are not (N, classes) in single or double precision, or another forward pass,
            of the batch or image by image, gives other ones.
    """
    try:
        logits = classifier(images.clone())  # a model may work in place on what it is given
    except UserError:
        raise
    except Exception as error:  # and refuse its input in any way
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(
            f"{classifier.name} cannot take {images.dtype} images of shape {tuple(images.shape)}: {reason}"
        ) from error
    if logits.shape != (len(images), classes):
        raise UserError(
            f"{classifier.name} returns logits of shape {tuple(logits.shape)}; "
            f"the dataset needs {(len(images), classes)}"
        )
    if logits.dtype not in (torch.float32, torch.float64):
        raise UserError(
            f"{classifier.name} returns {str(logits.dtype).removeprefix('torch.')} values, which have no "
            "gradient: it must return logits in float32"
        )
    if not _alike(logits, classifier(images.clone())):
        raise RandomModelError(f"{classifier.name} is random: two forward passes in eval mode differ")
    if not _alike(logits, torch.cat([classifier(image[None].clone()) for image in images])):
        raise UserError(
            f"{classifier.name} does not classify images independently: in eval mode the logits of one image "
            "depend on the others in the batch (as with BatchNorm and track_running_stats=False)"
        )


def _alike(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True)


def measurable(model: nn.Module, name: str = "model") -> tuple[nn.Module, tuple[str, ...]]:
    """The model that is measured for one that was given, and what a reader must be told of the difference.

    A model in another precision is measured as a float32 copy: half precision rounds gradients to zero, which
    an attack cannot follow. Of a compiled one, the module that was compiled is measured.

    Args:
        model: In any state; it is not changed.
        name: What messages call it.

    Returns:
        The same model, or a copy, and a line for each difference.

    Raises:
        UserError: if its parameters hold no data, or it cannot be copied.
    """
    model = getattr(model, "_orig_mod", model)
    tensors = [*model.parameters(), *model.buffers()]
    if any(map(nn.parameter.is_lazy, tensors)):
        raise UserError(f"{name} has lazy layers without a shape: call it on an image first")
    if any(tensor.is_meta for tensor in tensors):
        raise UserError(f"{name} has weights without data (on the meta device): load them first")
    kinds = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    others = sorted(str(kind).removeprefix("torch.") for kind in kinds - {torch.float32})
    if not others and not any(tensor.is_inference() for tensor in tensors):
        return model, ()
    try:
        # Outside inference mode the copy of an inference tensor is an ordinary one.
        with torch.inference_mode(False), torch.no_grad():
            copied = copy.deepcopy(model).float()
    except Exception as error:  # modules may hold what cannot be copied
        raise UserError(f"{name} is not in float32 and cannot be copied: {error}".splitlines()[0]) from error
    notes = (f"{name} is in {', '.join(others)}: a float32 copy is measured",) if others else ()
    return copied, notes


def stale_batch_norm(classifier: nn.Module, images: Tensor, labels: Tensor, classes: int) -> bool:
    """Whether BatchNorm's running statistics look unset: at chance with them, well above with the batch's.

    Args:
        classifier: On the device of the images; it is left as it was.
        images: (N, C, H, W) pixels in [0, 1] of all classes; a few dozen do.
        labels: (N,) class indices.
        classes: Number of classes of the dataset.
    """
    norms = [
        m for m in classifier.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)
    ]
    chance = 1 / classes
    luck = 2 * math.sqrt(chance * (1 - chance) / len(images))  # two standard deviations of guessing
    if not norms or len(images) < 2 or _accuracy(classifier, images, labels) > chance + luck:
        return False
    with undisturbed(classifier):
        for norm in norms:
            norm.train()
        return _accuracy(classifier, images, labels) > chance + luck + 0.25


@torch.no_grad()
def _accuracy(classifier: nn.Module, images: Tensor, labels: Tensor) -> float:
    return (classifier(images.clone()).argmax(1) == labels).float().mean().item()

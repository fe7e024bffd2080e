"""Which models can be measured, and the notes about them."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from robust_interp.classifiers.classifier import Classifier, with_gradient
from robust_interp.classifiers.isolation import undisturbed
from robust_interp.core.errors import RandomModelError, UserError
from robust_interp.core.memory import is_out_of_memory
from robust_interp.core.texts import first_line_of

CHECKED_ON = 8  # images that a model must classify alone as in a batch, and that gradients are taken of
REPEATED_ON = 32  # images that it must classify alike each time
REPEATS = 3

NORMS = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d

LEAST_LOSS = 2.0**-24  # cross-entropy of a probability that float32 rounds to 1
MAY_SATURATE = 0.1  # share of the images; of digits it is 0.4 % at most with each bundled network


@torch.no_grad()
def check_classifier(classifier: nn.Module, images: Tensor, classes: int) -> None:
    """Refuse what cannot be measured, on one small batch.

    Args:
        classifier: Maps pixels to logits, in eval mode, on the device of the images.
        images: (N, C, H, W) pixels in [0, 1], of several classes; REPEATED_ON of them do.
        classes: Number of classes of the dataset.

    Raises:
        UserError: if the logits are not (N, classes) in single or double precision, depend on the other
            images of the batch, or are not alike each time, with a gradient and without.
    """
    few = images[:CHECKED_ON]
    try:
        logits = classifier(few.clone())  # a model may work in place on what it is given
    except UserError:
        raise
    except Exception as error:  # and refuse its input in any way
        if is_out_of_memory(error):
            raise
        if other := _fixed_batch(classifier, images):
            raise _fixed(classifier, other) from error
        reason = first_line_of(error)
        raise UserError(
            f"{classifier.name} cannot take {few.dtype} images of shape {tuple(few.shape)}: {reason}"
        ) from error
    if logits.shape != (len(few), classes):
        raise UserError(
            f"{classifier.name} returns logits of shape {tuple(logits.shape)}; "
            f"the dataset needs {(len(few), classes)}"
        )
    if logits.dtype not in (torch.float32, torch.float64):
        raise UserError(
            f"{classifier.name} returns {str(logits.dtype).removeprefix('torch.')} values, which have no "
            "gradient: it must return logits in float32"
        )
    if other := _fixed_batch(classifier, images, only=len(few)):
        raise _fixed(classifier, other)
    _check_repeats(classifier, images)
    if not _alike(logits, torch.cat([classifier(image[None].clone()) for image in few])):
        raise UserError(
            f"{classifier.name} does not classify images independently: in eval mode the logits of one image "
            f"depend on the others in the batch ({_cause(classifier)})"
        )


@torch.no_grad()
def plain_logits(classifier: nn.Module, images: Tensor, classes: int) -> Tensor | None:
    """The logits of a network that is like one that `check_classifier` has passed but for its weights.

    That all is well with such a network one forward pass shows.

    Args:
        classifier, images, classes: As of `check_classifier`.

    Returns:
        (N, classes) and finite; None where they are not, and `check_classifier` is to say why, or to pass it.
    """
    try:
        logits = classifier(images.clone())
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return None
    is_one = logits.shape == (len(images), classes) and logits.dtype in (torch.float32, torch.float64)
    return logits if is_one and logits.isfinite().all() else None


FIXED = (1, 2, 4, 8, 16, 32, 64, 100, 128, 256)  # batch sizes that a model may be made for


def _fixed_batch(classifier: nn.Module, images: Tensor, only: int | None = None) -> int:
    """The batch size that a classifier was made for, if it refuses others; 0 if it is none of these.

    Args:
        classifier: On the device of the images.
        images: (N, C, H, W).
        only: The size that it took; then it is asked whether it takes one image, and all.
    """

    def takes(count: int) -> bool:
        try:
            return len(classifier(images[torch.arange(count) % len(images)])) == count
        except Exception as error:
            if is_out_of_memory(error):
                raise
            return False

    if only is not None:
        return 0 if takes(1) and takes(len(images)) else only
    return next((count for count in FIXED if takes(count)), 0)


def _fixed(classifier: nn.Module, size: int) -> UserError:
    return UserError(
        f"{classifier.name} takes batches of {size} image{'s' * (size > 1)} and refuses other sizes: "
        "make it, or export it, with a batch dimension that is free"
    )


def _cause(classifier: nn.Module) -> str:
    """Why the images of a batch may influence one another in eval mode, in a phrase."""
    if name := _part(classifier, lambda part: part.training):
        return f"its part {name} stays in train mode after eval()"
    if name := _part(classifier, lambda part: isinstance(part, NORMS) and part.running_mean is None):
        return f"its BatchNorm {name} has track_running_stats=False"
    return "as with a mean over the batch, or a part in train mode that is no registered module"


def _part(classifier: nn.Module, is_it: Callable[[nn.Module], bool]) -> str:
    """The name of the first part of a classifier that is so; '' if none is."""
    return next((name.removeprefix("model.") for name, part in classifier.named_modules() if is_it(part)), "")


def _check_repeats(classifier: nn.Module, images: Tensor) -> None:
    """Refuse a model that answers differently when asked again, or while a gradient is followed.

    It is asked of images halfway between two: a majority vote over noisy copies is unanimous on most images,
    and not there.
    """
    halfway = (images + images.roll(1, 0)) / 2
    first, name = classifier(halfway.clone()), classifier.name
    training = _part(classifier, lambda part: part.training)
    hint = f" (its part {training} stays in train mode after eval())" if training else ""
    if not all(_alike(first, classifier(halfway.clone())) for _ in range(REPEATS)):
        raise RandomModelError(f"{name} is random: two forward passes in eval mode differ{hint}")
    few = halfway[:CHECKED_ON]
    (logits, gradient), (again, other) = (with_gradient(classifier, few) for _ in range(2))
    if not _alike(logits, again):
        raise RandomModelError(f"{name} is random: two forward passes with a gradient differ")
    if not _alike(logits, classifier(few.clone())):
        raise RandomModelError(
            f"{name} gives other logits with a gradient than without one: attacks would be made on another "
            "model than is measured"
        )
    if gradient is not None and other is not None and not _same_gradient(gradient, other):
        raise RandomModelError(f"{name} is random: two gradients at the same images differ")


class Unchanged:
    """Tells whether a model has changed since: one that learns from, or counts, what it is asked.

    Args:
        classifier: Maps pixels to logits, in the conditions of a measurement.
        images: (N, C, H, W) in [0, 1], on its device; one or two do.
        name: What the message calls it.
    """

    def __init__(self, classifier: nn.Module, images: Tensor, name: str) -> None:
        self._classifier, self._images, self._name = classifier, images, name
        self._logits = self._now()

    def check(self) -> None:
        """Refuse a model that has changed.

        Raises:
            RandomModelError: if its logits are no longer those of before.
        """
        if not _alike(self._logits, self._now()):
            raise RandomModelError(
                f"{self._name} changes while it is measured: it no longer gives the same logits for the same "
                "images; what it changes in forward must not depend on earlier images"
            )

    @torch.no_grad()
    def _now(self) -> Tensor:
        return self._classifier(self._images.clone())


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether logits (N, classes) are equal but for rounding."""
    scale = torch.where(one.isfinite(), one.abs(), 0).max().item()
    return torch.allclose(one, other, rtol=1e-3, atol=max(1e-4, 1e-5 * scale), equal_nan=True)


def _same_gradient(one: Tensor, other: Tensor) -> bool:
    """Whether gradients (N, C, H, W) are equal but for rounding, where both are finite."""
    change = torch.nan_to_num(one - other, 0.0, 0.0, 0.0).flatten(1).abs().amax(1)
    largest = torch.nan_to_num(one, 0.0, 0.0, 0.0).flatten(1).abs().amax(1)
    return bool((change <= 1e-3 * largest).all())


def refuse_batch_statistics(classifier: nn.Module) -> None:
    """Refuse a random model that normalises by the batch: given one image at a time, it would be another.

    Raises:
        UserError: if a BatchNorm stays in train mode, or has no running statistics.
    """
    by_batch = _part(
        classifier, lambda part: isinstance(part, NORMS) and (part.training or part.running_mean is None)
    )
    if by_batch:
        raise UserError(
            f"{classifier.name} is random, and its part {by_batch} normalises by the batch in eval mode"
        )


class OneAtATime(nn.Module):
    """A model that is given one image after the other: logits (N, classes) for images (N, C, H, W).

    Args:
        module: Of which the images of a batch would influence one another.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, images: Tensor) -> Tensor:
        return torch.cat([self.module(image[None]) for image in images])


def _is_quantised_by_batch(part: nn.Module) -> bool:
    """Whether a part rounds its input by the range of the batch that it is given."""
    return "quantized.dynamic" in type(part).__module__


def measurable(model: nn.Module, name: str = "model") -> tuple[nn.Module, tuple[str, ...]]:
    """The model that is measured for one that was given, and what a reader must be told of the difference.

    A model in another precision is measured as a float32 copy: half precision rounds gradients to zero, which
    an attack cannot follow. Of a compiled one, the module that was compiled is measured. A dynamically
    quantised one is given one image at a time, as each batch would be rounded by its own range.

    Args:
        model: In any state; it is not changed.
        name: What messages call it.

    Returns:
        The same model, or a copy, and a line for each difference.

    Raises:
        UserError: if its parameters hold no data, or it cannot be copied.
    """
    if type(model).__module__.startswith("torch._dynamo"):  # another may call a part of its own so
        model = getattr(model, "_orig_mod", model)
    tensors = [*model.parameters(), *model.buffers()]
    if any(map(nn.parameter.is_lazy, tensors)):
        raise UserError(f"{name} has lazy layers without a shape: call it on an image first")
    if any(tensor.is_meta for tensor in tensors):
        raise UserError(f"{name} has weights without data (on the meta device): load them first")
    if any(map(_is_quantised_by_batch, model.modules())):
        note = f"{name} is quantised by the range of each batch: it is given one image at a time"
        return OneAtATime(model), (note,)
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


@torch.no_grad()
def output_notes(classifier: nn.Module, images: Tensor, logits: Tensor | None = None) -> tuple[str, ...]:
    """A line for each sign that outputs blunt the gradient of an attack, and so make a model seem robust.

    Args:
        classifier: On the device of the images.
        images: (N, C, H, W) pixels in [0, 1].
        logits: What it returns for them, (N, classes), where that is known.
    """
    logits, name = classifier(images.clone()) if logits is None else logits, classifier.name
    if kind := as_probabilities(logits):
        return (
            f"{name}: its outputs are {kind}, not logits; attacks on those see little of the gradient, "
            "so that robust accuracy looks higher than it is: return what goes into the softmax or sigmoid",
        )
    loss = -logits.double().log_softmax(1).amax(1)
    saturated = int((loss < LEAST_LOSS).sum())
    if saturated <= MAY_SATURATE * len(images):
        return ()
    return (
        f"{name}: the loss saturates: for {saturated} of {len(images)} images a probability is 1 in float32, "
        "which rounds the gradient of fgsm, pgd and apgd_ce; apgd_dlr and square do not depend on the scale "
        "of the logits",
    )


@torch.no_grad()
def one_output_notes(classifier: Classifier, images: Tensor) -> tuple[str, ...]:
    """A line for a model with one output for two classes.

    Args:
        classifier: On the device of the images.
        images: (N, C, H, W) pixels in [0, 1].

    Raises:
        UserError: if the outputs look like those of a sigmoid, which all mean the second class as logits.
    """
    outputs = classifier.outputs(images.clone())
    if outputs.numel() != len(images):
        return ()
    if outputs.min() >= 0 and outputs.max() <= 1:
        raise UserError(
            f"{classifier.name} has one output, which is in [0, 1], as of a sigmoid: return what goes into it"
        )
    return (f"{classifier.name} has one output z for two classes; it is measured with the logits [0, z]",)


def as_probabilities(logits: Tensor) -> str:
    """What outputs (N, classes) are that look like probabilities, in a phrase; '' for logits."""
    if not logits.isfinite().all() or logits.min() < 0 or logits.min() == logits.max():
        return ""
    sums = logits.sum(1)
    if torch.allclose(sums, sums[:1].expand_as(sums), rtol=1e-3, atol=0):
        return "probabilities, as of a softmax" if abs(sums[0] - 1) < 1e-3 else "scaled probabilities"
    return "in [0, 1], as of a sigmoid" if logits.max() <= 1 else ""


def stale_batch_norm(classifier: nn.Module, images: Tensor, labels: Tensor, classes: int) -> bool:
    """Whether BatchNorm's running statistics look unset: at chance with them, well above with the batch's.

    Args:
        classifier: On the device of the images; it is left as it was.
        images: (N, C, H, W) pixels in [0, 1] of all classes; a few dozen do.
        labels: (N,) class indices.
        classes: Number of classes of the dataset.
    """
    norms = [m for m in classifier.modules() if isinstance(m, NORMS)]
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

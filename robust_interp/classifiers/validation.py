"""Check whether a model can be measured, and collect notes about it."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from robust_interp.classifiers.classifier import Classifier, with_gradient
from robust_interp.classifiers.isolation import measurement_mode
from robust_interp.core.errors import RandomModelError, UserError
from robust_interp.core.memory import is_out_of_memory
from robust_interp.core.model_errors import place_of, reported_for
from robust_interp.core.texts import first_line_of
from robust_interp.core.torch_internals import is_quantised_by_batch, uncompiled

CHECKED_ON = 8  # images on which single images are compared with the batch, and gradients are computed
REPEATED_ON = 32  # images on which repeated forward passes are compared
REPEATS = 3
DTYPES = (torch.float32, torch.float64)  # of logits

NORMS = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d

LEAST_LOSS = 2.0**-24  # cross-entropy of a probability that float32 rounds to 1
MAY_SATURATE = 0.1  # share of the images; the bundled networks reach 0.4 % at most, on digits


@torch.no_grad()
def check_classifier(classifier: nn.Module, images: Tensor, classes: int) -> None:
    """Refuse a classifier that cannot be measured, using one small batch.

    Args:
        classifier: Maps pixels to logits, in eval mode, on the device of the images.
        images: Pixels (N, C, H, W) in [0, 1] of several classes; REPEATED_ON of them are enough.
        classes: Number of classes of the data set.

    Raises:
        RandomModelError: if repeated passes, with or without a gradient, give different logits or gradients.
        UserError: if the logits are not (N, classes) in float32 or float64, or depend on the other images of
            the batch, or a pass fails.
    """
    few = images[:CHECKED_ON]
    logits = _first_logits(classifier, images)
    _check_form(classifier, logits, (len(few), classes))
    if other := _fixed_batch(classifier, images, only=len(few)):
        raise _fixed(classifier, other)
    with reported_for(classifier):
        _check_repeats(classifier, images)
        one_by_one = torch.cat([classifier(image[None].clone()) for image in few])
    if not _alike(logits, one_by_one):
        raise UserError(
            f"{classifier.name} does not classify images independently: in eval mode the logits of one image "
            f"depend on the others in the batch ({_cause(classifier)})"
        )


def _first_logits(classifier: nn.Module, images: Tensor) -> Tensor:
    """Classify the first CHECKED_ON images; a UserError says why this model cannot."""
    few = images[:CHECKED_ON]
    try:
        return classifier(few.clone())  # a model may change its input in place
    except UserError:
        raise
    except (Exception, SystemExit) as error:  # and may raise anything
        if is_out_of_memory(error):
            raise
        if other := _fixed_batch(classifier, images):
            raise _fixed(classifier, other) from error
        reason = first_line_of(error)
        raise UserError(
            f"{classifier.name} cannot take {few.dtype} images of shape {tuple(few.shape)}: {reason}"
            f"{place_of(error)}"
        ) from error


def _check_form(classifier: nn.Module, logits: Tensor, shape: tuple[int, int]) -> None:
    """Refuse logits of another shape than (N, classes), or of another precision than float32 and float64."""
    if logits.shape != shape:
        hint = ""
        if logits.ndim == 2 and logits.shape[1] > shape[1]:
            hint = "; if its labels are those of the model, say how many classes there are: with the images, "
            hint += f"(images, labels, {logits.shape[1]}), in an .npz file as classes, or with --class-map"
        raise UserError(
            f"{classifier.name} returns logits of shape {tuple(logits.shape)}; "
            f"the data set needs {shape}{hint}"
        )
    if logits.dtype not in DTYPES:
        raise UserError(
            f"{classifier.name} returns {str(logits.dtype).removeprefix('torch.')} values, which have no "
            "gradient: it must return logits in float32"
        )


@torch.no_grad()
def plain_logits(classifier: nn.Module, images: Tensor, classes: int) -> Tensor | None:
    """Check a classifier with one forward pass, if another with other weights has passed `check_classifier`.

    Args:
        classifier: The classifier, in eval mode, on the device of the images.
        images: Pixels (N, C, H, W) in [0, 1].
        classes: Number of classes of the data set.

    Returns:
        The logits (N, classes); None if they have another form or are not finite.
    """
    try:
        logits = classifier(images.clone())
    except Exception as error:
        if is_out_of_memory(error):
            raise
        return None
    is_one = logits.shape == (len(images), classes) and logits.dtype in DTYPES
    return logits if is_one and logits.isfinite().all() else None


FIXED = (1, 2, 4, 8, 16, 32, 64, 100, 128, 256)  # likely sizes of a fixed batch dimension


def _fixed_batch(classifier: nn.Module, images: Tensor, only: int | None = None) -> int:
    """Return the only batch size that a classifier accepts; 0 if it accepts others, or none in FIXED.

    Args:
        classifier: The classifier, on the device of the images.
        images: Images (N, C, H, W).
        only: A size that it accepts. Then only batches of 1 and N are tried. None tries the sizes in FIXED.
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
    """Return a phrase that says why the images of a batch may influence one another in eval mode."""
    if name := _part(classifier, lambda part: part.training):
        return f"its part {name} stays in train mode after eval()"
    if name := _part(classifier, lambda part: isinstance(part, NORMS) and part.running_mean is None):
        return f"its BatchNorm {name} has track_running_stats=False"
    return "as with a mean over the batch, or a part in train mode that is no registered module"


def _part(classifier: nn.Module, is_it: Callable[[nn.Module], bool]) -> str:
    """Return the name of the first submodule for which `is_it` is true; '' if there is none."""
    return next((name.removeprefix("model.") for name, part in classifier.named_modules() if is_it(part)), "")


def _check_repeats(classifier: nn.Module, images: Tensor) -> None:
    """Refuse a model whose logits differ between two passes, or with and without a gradient.

    The images are the means of two images each. On plain images, a model that takes a majority vote over
    noisy copies would mostly give the same answer.
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


class ChangeDetector:
    """Checks that a model does not change during a measurement, such as by learning from its inputs.

    Args:
        classifier: Maps pixels to logits, in the conditions of a measurement.
        images: Pixels (N, C, H, W) in [0, 1] on the classifier's device; one or two are enough.
        name: Name of the model in the message.
    """

    def __init__(self, classifier: nn.Module, images: Tensor, name: str) -> None:
        self._classifier, self._images, self._name = classifier, images, name
        self._logits = self._now()

    def check(self) -> None:
        """Check that the model has not changed since this object was made.

        Raises:
            RandomModelError: if its logits have changed.
        """
        if not _alike(self._logits, self._now()):
            raise RandomModelError(
                f"{self._name} changes while it is measured: it no longer gives the same logits for the same "
                "images; what it changes in forward must not depend on earlier images"
            )

    @torch.no_grad()
    def _now(self) -> Tensor:
        with reported_for(self._classifier):
            return self._classifier(self._images.clone())


def _alike(one: Tensor, other: Tensor) -> bool:
    """Whether logits (N, classes) are equal up to rounding."""
    scale = torch.where(one.isfinite(), one.abs(), 0).max().item()
    return torch.allclose(one, other, rtol=1e-3, atol=max(1e-4, 1e-5 * scale), equal_nan=True)


def _same_gradient(one: Tensor, other: Tensor) -> bool:
    """Whether gradients (N, C, H, W) are equal up to rounding, where both are finite."""
    change = torch.nan_to_num(one - other, 0.0, 0.0, 0.0).flatten(1).abs().amax(1)
    largest = torch.nan_to_num(one, 0.0, 0.0, 0.0).flatten(1).abs().amax(1)
    return bool((change <= 1e-3 * largest).all())


def refuse_batch_statistics(classifier: nn.Module) -> None:
    """Refuse a random model that uses batch statistics: its result would depend on the batch size.

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


# Its source is hashed into the stored keys of models in it (see fingerprint.identity): do not reword it.
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


def measurable(model: nn.Module, name: str = "model") -> tuple[nn.Module, tuple[str, ...]]:
    """Return the model that is measured in place of a given one, and notes on the differences.

    A model in another precision is replaced by a float32 copy, because half precision rounds gradients to
    zero. A model from torch.compile is replaced by the original module. A dynamically quantised model is
    called with one image at a time, because it would round each batch by its own range.

    Args:
        model: The model; it is not changed.
        name: Name of the model in messages.

    Returns:
        The model itself or its replacement, and a note for each difference.

    Raises:
        UserError: if its parameters have no data, or it cannot be copied.
    """
    model = uncompiled(model)
    tensors = [*model.parameters(), *model.buffers()]
    if any(map(nn.parameter.is_lazy, tensors)):
        raise UserError(f"{name} has lazy layers without a shape: call it on an image first")
    if any(tensor.is_meta for tensor in tensors):
        raise UserError(f"{name} has weights without data (on the meta device): load them first")
    if any(map(is_quantised_by_batch, model.modules())):
        note = f"{name} is quantised by the range of each batch: it is given one image at a time"
        return OneAtATime(model), (note,)
    kinds = {parameter.dtype for parameter in model.parameters() if parameter.is_floating_point()}
    others = sorted(str(kind).removeprefix("torch.") for kind in kinds - {torch.float32})
    if not others and not any(tensor.is_inference() for tensor in tensors):
        return model, ()
    try:
        # Outside inference mode, a copy of an inference tensor is a normal tensor.
        with torch.inference_mode(False), torch.no_grad():
            copied = copy.deepcopy(model).float()
    except Exception as error:  # modules may contain what cannot be copied
        raise UserError(f"{name} is not in float32 and cannot be copied: {error}".splitlines()[0]) from error
    notes = (f"{name} is in {', '.join(others)}: a float32 copy is measured",) if others else ()
    return copied, notes


@torch.no_grad()
def output_notes(classifier: nn.Module, images: Tensor, logits: Tensor | None = None) -> tuple[str, ...]:
    """Return a note if the outputs weaken the gradient of attacks, so that the model seems more robust.

    That is so for probabilities instead of logits, and for a loss that saturates.

    Args:
        classifier: The classifier, on the device of the images.
        images: Pixels (N, C, H, W) in [0, 1].
        logits: Its logits for the images, (N, classes), if they are known.
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
    """Return a note for a model with one output for two classes.

    Args:
        classifier: The classifier, on the device of the images.
        images: Pixels (N, C, H, W) in [0, 1].

    Raises:
        UserError: if the outputs look like those of a sigmoid. As logits, they would all mean the second
            class.
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
    """Return a phrase that describes outputs (N, classes) that look like probabilities; '' for logits."""
    if not logits.isfinite().all() or logits.min() < 0 or logits.min() == logits.max():
        return ""
    sums = logits.sum(1)
    if torch.allclose(sums, sums[:1].expand_as(sums), rtol=1e-3, atol=0):
        return "probabilities, as of a softmax" if abs(sums[0] - 1) < 1e-3 else "scaled probabilities"
    return "in [0, 1], as of a sigmoid" if logits.max() <= 1 else ""


def stale_batch_norm(classifier: nn.Module, images: Tensor, labels: Tensor, classes: int) -> bool:
    """Whether BatchNorm's running statistics look unset.

    With them, the accuracy is at chance level; with the statistics of the batch, it is far above.

    Args:
        classifier: The classifier, on the device of the images; it is restored.
        images: Pixels (N, C, H, W) in [0, 1] of all classes; a few dozen are enough.
        labels: Class indices (N,).
        classes: Number of classes of the data set.
    """
    norms = [m for m in classifier.modules() if isinstance(m, NORMS)]
    chance = 1 / classes
    luck = 2 * math.sqrt(chance * (1 - chance) / len(images))  # two standard deviations of guessing
    if not norms or len(images) < 2 or _accuracy(classifier, images, labels) > chance + luck:
        return False
    with measurement_mode(classifier):
        for norm in norms:
            norm.train()
        return _accuracy(classifier, images, labels) > chance + luck + 0.25


@torch.no_grad()
def _accuracy(classifier: nn.Module, images: Tensor, labels: Tensor) -> float:
    return (classifier(images.clone()).argmax(1) == labels).float().mean().item()

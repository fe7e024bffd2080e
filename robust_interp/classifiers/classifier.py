"""Any model as a classifier of pixels in [0, 1], with its normalisation inside."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from robust_interp.core.errors import UserError
from robust_interp.core.memory import is_out_of_memory
from robust_interp.core.normalize import Normalize
from robust_interp.core.texts import first_line_of


class Classifier(nn.Module):
    """A classifier on [0, 1] pixels, with its normalisation inside.

    Args:
        model: Maps normalised images (N, C, H, W) to logits (N, classes).
        mean: Per-channel mean to subtract, in [0, 1] pixels; None if the model takes pixels.
        std: Per-channel standard deviation to divide by.
        name: Its name in messages.
        binary: Whether a model with one output z per image (before a sigmoid) gets the logits [0, z].

    Raises:
        UserError: if mean and std are not valid for pixels in [0, 1]; when called, if the images have another
            number of channels than mean and std, or if the model does not return logits.
    """

    mean: Tensor  # (channels, 1, 1), if there is a normalisation
    std: Tensor

    def __init__(
        self,
        model: nn.Module,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        name: str = "model",
        binary: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.name = name
        self.binary = binary
        self.normalisation = _normalisation(mean, std, name)
        self.normalize: nn.Module = nn.Identity()
        if self.normalisation:
            own_mean, own_std = self.normalisation
            device = next((p.device for p in model.parameters()), None)
            self.normalize = Normalize(own_mean, own_std, device)

    def around(self, model: nn.Module) -> Classifier:
        """Return a classifier of another model with the same name, normalisation and memory layout."""
        other = Classifier(model, name=self.name, binary=self.binary)
        other.normalisation, other.normalize = self.normalisation, self.normalize
        other.training = self.training
        return other

    @property
    def spares_its_images(self) -> bool:
        """Whether a forward pass cannot change its input, because the model gets a normalised copy."""
        return self.normalisation is not None

    def forward(self, images: Tensor) -> Tensor:
        outputs = self.outputs(images)
        if self.binary and outputs.shape in ((len(images),), (len(images), 1)):
            z = outputs.view(-1, 1)
            return torch.cat([torch.zeros_like(z), z], dim=1)
        return outputs

    def outputs(self, images: Tensor) -> Tensor:
        """Return the model's own output tensor for images (N, C, H, W) in [0, 1]."""
        if self.normalisation and images.shape[1] != len(self.normalisation[0]):
            channels = f"{len(self.normalisation[0])} channels; the images have {images.shape[1]}"
            raise UserError(f"{self.name} is normalised with {channels}")
        output = self.model(self.normalize(images))
        logits = _logits(output)
        if not isinstance(logits, Tensor):
            raise UserError(
                f"{self.name} returns {_described(output)}, not a tensor of logits: wrap it so that its "
                "forward returns only the logits"
            )
        return logits


def with_gradient(classifier: nn.Module, images: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the logits for images (N, C, H, W), and a gradient with respect to the images.

    The gradient is that of a sum of the logits in which each class has another weight. It is None if no
    gradient reaches the images.

    Raises:
        UserError: if the forward or backward pass raises a RuntimeError other than out of memory.
    """
    with torch.enable_grad():
        pixels = images.clone().requires_grad_()
        try:
            logits = classifier(pixels.clone())
            if not logits.requires_grad:
                return logits, None
            weights = torch.arange(1, logits.shape[1] + 1, device=logits.device)  # different for each class
            (gradient,) = torch.autograd.grad((logits * weights).sum(), pixels, allow_unused=True)
        except RuntimeError as error:  # may occur only when a gradient is computed
            if is_out_of_memory(error):
                raise
            reason = first_line_of(error)
            raise UserError(f"{classifier.name} cannot be differentiated: {reason}") from error
    return logits, gradient


def _normalisation(
    mean: Sequence[float] | None, std: Sequence[float] | None, name: str
) -> list[list[float]] | None:
    """Return mean and std as lists, or None if both are None.

    Raises:
        UserError: if they are not valid for pixels in [0, 1].
    """
    if mean is None or std is None:
        if mean is std:
            return None
        raise UserError(f"{name}: give both mean and std, or neither")
    try:
        values = [list(map(float, mean)), list(map(float, std))]
    except (TypeError, ValueError):
        raise UserError(
            f"{name}: mean and std must be lists with one number per channel, not {mean!r}, {std!r}"
        ) from None
    if (
        not all(map(math.isfinite, values[0] + values[1]))
        or len(values[0]) != len(values[1])
        or min(values[1], default=0) <= 0
    ):
        raise UserError(
            f"{name}: mean {values[0]} and std {values[1]} must be finite, with one number per channel, "
            "and std must be above 0"
        )
    if max(map(abs, values[0])) > 1:
        raise UserError(
            f"{name}: mean {values[0]} is too large for pixels in [0, 1]: divide mean and std by 255"
        )
    return values


def _logits(output: object) -> object:
    """Return the item or attribute `logits` of an output, as in transformers, else the output itself."""
    if isinstance(output, Mapping):
        return output.get("logits", output)
    return getattr(output, "logits", output)


def _described(output: object) -> str:
    """Describe an output for a message: 'a tuple of Tensor, Tensor', 'a dict with out, aux'."""
    kind = f"a {type(output).__name__}"
    if isinstance(output, Mapping):
        return f"{kind} with {', '.join(map(str, list(output)[:5]))}" if output else kind
    if isinstance(output, tuple | list):
        return f"{kind} of {', '.join(type(part).__name__ for part in output[:5])}" if output else kind
    return kind

"""What a model that came as an object is known by in the keys of its cells."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Collection, Iterator

import torch
from torch import Tensor, nn

from robust_interp.classifiers.attributes import attributes, held
from robust_interp.classifiers.classifier import Classifier, with_gradient


def behaviour(classifier: nn.Module, images: Tensor) -> str:
    """SHA-256 of the logits at a few images (N, C, H, W), and of the gradients that come back to them.

    No hash of code or state sees everything that an object's output depends on; this sees the output.

    Raises:
        UserError: if the way back through the model fails.
    """
    logits, gradient = with_gradient(classifier, images)
    parts = [logits.detach(), *([gradient] if logits.requires_grad else [])]
    sha = hashlib.sha256()
    for part in parts:
        sha.update(b"none" if part is None else part.cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()


def rewritten(classifier: Classifier, images: Tensor) -> set[str]:
    """The attributes that a pass through a model writes anew, such as a count of calls or its last images.

    Args:
        classifier: Was called before: what only the first call sets is none of them.
        images: (N, C, H, W) in [0, 1].

    Returns:
        Names ``module.attribute``: they say what was asked of the model, and not what it is.
    """
    before = attributes(classifier.model)
    with torch.no_grad():
        classifier(images.clone())
    after = attributes(classifier.model)
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def identity(model: nn.Module, passing: Collection[str] = ()) -> dict:
    """What a model that came as an object is known by: its code, structure, settings and state.

    Args:
        passing: Attributes, as ``module.attribute``, that are left out.

    Returns:
        The name of its class, and one SHA-256 over all of these: it stands in the keys of cells.
    """
    sha = hashlib.sha256(repr(model).encode())
    for kind in sorted({type(module) for module in model.modules()}, key=lambda kind: kind.__qualname__):
        sha.update(_source(kind).encode())
    known = set(passing)
    for name, module in model.named_modules():
        settings = {key: value for key, value in _settings(module).items() if f"{name}.{key}" not in passing}
        sha.update(f"{name}{settings}".encode())
        known |= {f"{name}.{key}" for key in settings}
    # not the state dict, which lacks some buffers: a classifier's mean and std among them
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        sha.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        sha.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    for weights in _quantised(model):
        sha.update(weights.detach().cpu().contiguous().numpy().tobytes())
    sha.update(held(model, known).encode())  # nothing where there is nothing: older keys stay
    return {"class": type(model).__qualname__, "state_sha256": sha.hexdigest()}


def _quantised(model: nn.Module) -> Iterator[Tensor]:
    """The weights of quantised modules, in float32: they are neither parameters nor buffers."""
    for module in model.modules():
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if "quantized" in type(module).__module__ and callable(weight) and callable(bias):
            yield weight().dequantize()
            if bias() is not None:
                yield bias()


def _settings(module: nn.Module) -> dict:
    """What its constructor kept as plain values, such as a temperature."""
    return {
        key: value
        for key, value in sorted(vars(module).items())
        if key not in ("training", "name") and not key.startswith("_") and _is_plain(value)
    }


def _is_plain(value: object, deepest: int = 50) -> bool:
    if isinstance(value, tuple | list):
        return deepest > 0 and all(_is_plain(each, deepest - 1) for each in value)  # one may hold itself
    return value is None or isinstance(value, bool | int | float | str)


def _source(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # typed at a prompt, or built in
        return kind.__qualname__

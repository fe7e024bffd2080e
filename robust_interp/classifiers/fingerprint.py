"""Hashes that identify a model given as an object in the keys of its cells."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Collection, Iterator
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from robust_interp.classifiers.attributes import attributes, describe_attributes
from robust_interp.classifiers.classifier import Classifier, with_gradient
from robust_interp.core.torch_internals import is_quantised

_SOURCES: WeakKeyDictionary[type, str] = WeakKeyDictionary()  # inspect parses a whole file for one class


def output_hash(classifier: nn.Module, images: Tensor) -> str:
    """Return the SHA-256 of the logits for a few images (N, C, H, W) and of a gradient at them.

    A hash of code and state cannot cover everything that the output depends on. This one covers the output.

    Raises:
        UserError: if the forward or backward pass fails.
    """
    logits, gradient = with_gradient(classifier, images)
    parts = [logits.detach(), *([gradient] if logits.requires_grad else [])]
    sha = hashlib.sha256()
    for part in parts:
        sha.update(b"none" if part is None else part.cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()


def changed_by_forward(classifier: Classifier, images: Tensor) -> set[str]:
    """Return the attributes that a forward pass changes, such as a call counter or the last images.

    They depend on earlier calls, so they must not be part of the model's identity.

    Args:
        classifier: A classifier that was called before, so that what only the first call sets is not found.
        images: Pixels (N, C, H, W) in [0, 1].

    Returns:
        The names of the attributes, as ``module.attribute``.
    """
    before = attributes(classifier.model)
    with torch.no_grad():
        classifier(images.clone())
    after = attributes(classifier.model)
    return {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}


def identity(model: nn.Module, passing: Collection[str] = ()) -> dict:
    """Return the identity of a model given as an object: a hash of its code, structure, settings and state.

    Args:
        model: The model.
        passing: Attributes to leave out, as ``module.attribute``.

    Returns:
        The name of the class (``class``) and one SHA-256 (``state_sha256``). Both are part of the cells'
        keys.
    """
    sha = hashlib.sha256(repr(model).encode())
    kinds = {type(module) for module in model.modules()}
    for _, source in sorted((kind.__qualname__, _source(kind)) for kind in kinds):  # some share a name
        sha.update(source.encode())
    known = set(passing)
    for name, module in model.named_modules():
        settings = {key: value for key, value in _settings(module).items() if f"{name}.{key}" not in passing}
        sha.update(f"{name}{settings}".encode())
        known |= {f"{name}.{key}" for key in settings}
    # The state dict lacks non-persistent buffers, such as a classifier's mean and std.
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        sha.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        sha.update(_plain(tensor).contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    for weights in _quantised(model):
        sha.update(weights.detach().cpu().contiguous().numpy().tobytes())
    sha.update(describe_attributes(model, known).encode())  # '' leaves the hash as in older versions
    return {"class": type(model).__qualname__, "state_sha256": sha.hexdigest()}


def _plain(tensor: Tensor) -> Tensor:
    """Return the values of a tensor in one block of memory, without torch's lazy signs and conjugates."""
    values = tensor.detach().cpu()
    return (values if values.layout == torch.strided else values.to_dense()).resolve_conj().resolve_neg()


def _quantised(model: nn.Module) -> Iterator[Tensor]:
    """Yield weights and biases of quantised modules in float32; they are neither parameters nor buffers."""
    for module in model.modules():
        weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
        if is_quantised(module) and callable(weight) and callable(bias):
            yield weight().dequantize()
            if bias() is not None:
                yield bias()


def _settings(module: nn.Module) -> dict:
    """Return the public attributes of a module with plain values, such as a temperature."""
    return {
        key: value
        for key, value in sorted(vars(module).items())
        if key not in ("training", "name") and not key.startswith("_") and _is_plain(value)
    }


def _is_plain(value: object, deepest: int = 50) -> bool:
    if isinstance(value, tuple | list):
        return deepest > 0 and all(_is_plain(each, deepest - 1) for each in value)  # it may contain itself
    return value is None or isinstance(value, bool | int | float | str)


def _source(kind: type) -> str:
    if kind not in _SOURCES:
        try:
            _SOURCES[kind] = inspect.getsource(kind)
        except (OSError, TypeError):  # defined at a prompt, or built in
            _SOURCES[kind] = kind.__qualname__
    return _SOURCES[kind]

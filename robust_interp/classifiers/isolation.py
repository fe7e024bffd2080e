"""Set the conditions of a measurement, and restore the previous state afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext

import torch
from torch import nn

from robust_interp.core import devices, precision
from robust_interp.core.random_state import measurement_lock, preserved_rng_state


@contextmanager
def measurement_mode(model: nn.Module) -> Iterator[None]:
    """Set the conditions of a measurement, and restore the previous state afterwards.

    Inside: eval mode, frozen parameters, gradients enabled, float32 without autocast or TF32, deterministic
    cuDNN. The default device is the model's, and only one thread measures at a time. Restored: the mode of
    every module, requires_grad, buffers, torch's settings and the global random generators.

    Args:
        model: The model, on any device. It is changed in place, and restored even after an exception.
    """
    with measurement_lock(), _as_found(model), _torch_settings(), _default_device(model):
        _to_eval(model)
        model.requires_grad_(False)
        yield


@contextmanager
def _as_found(model: nn.Module) -> Iterator[None]:
    """Restore the mode of every module, requires_grad and the buffers of a model afterwards."""
    training = [(module, module.training) for module in model.modules() if hasattr(module, "training")]
    requires_grad = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    buffers = [
        (module, name, buffer, _written_part(buffer).clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    try:
        yield
    finally:
        for module, mode in training:
            module.training = mode
        for parameter, flag in requires_grad:
            parameter.requires_grad_(flag)
        for module, name, buffer, before in buffers:
            with torch.inference_mode(buffer.is_inference()), torch.no_grad():
                _written_part(buffer).copy_(before)
            setattr(module, name, buffer)  # forward may have replaced it


def _written_part(tensor: torch.Tensor) -> torch.Tensor:
    """Return a view of a tensor without the repetitions of an expanded one, into which torch does not copy.

    Items that overlap otherwise are equal before, so that copying all of them restores each.
    """
    if tensor.layout != torch.strided or tensor.is_nested:
        return tensor
    once = [slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride()]
    return tensor[tuple(once)]


def _to_eval(model: nn.Module) -> None:
    try:
        model.eval()
    except NotImplementedError:  # a torch.export program: its mode is fixed
        for module in model.modules():
            module.training = False


@contextmanager
def _torch_settings() -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(preserved_rng_state())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(precision.float32())
        stack.enter_context(precision.float32_by_default())
        yield


def _default_device(model: nn.Module) -> AbstractContextManager:
    """Make the model's device the default: attacks create tensors without naming a device."""
    place = devices.of_module(model)
    return devices.by_default(place) if place else nullcontext()


@contextmanager
def on_its_device(model: nn.Module) -> Iterator[None]:
    """Move every parameter and buffer back to its device afterwards, if the model was moved inside.

    Args:
        model: The model; gradients of its parameters are moved back, too.
    """
    parts = [
        (module, name, tensor, tensor.device)
        for module in model.modules()
        for name, tensor in [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    ]
    try:
        yield
    finally:
        for module, name, tensor, device in parts:
            if getattr(module, name).device == device:
                continue
            setattr(module, name, tensor)  # moving may have replaced the tensor
            tensor.data = tensor.data.to(device)
            if tensor.grad is not None:
                tensor.grad.data = tensor.grad.data.to(device)

"""Any model as a victim: pixels in [0, 1] in, logits out; eval mode, frozen, and left as it was found."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from robust_interp.errors import RandomModelError, UserError

CHECKED_ON = 8  # images that a model must classify alone as in a batch, and twice alike


class Victim(nn.Module):
    """A classifier on [0, 1] pixels, with its normalisation inside.

    Args:
        model: Maps normalised images (N, C, H, W) to logits (N, classes).
        mean: Per-channel mean to subtract, in [0, 1] pixels; None if the model takes pixels.
        std: Per-channel standard deviation to divide by.
        name: What messages call it.
    """

    def __init__(
        self,
        model: nn.Module,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        name: str = "model",
    ) -> None:
        super().__init__()
        if (mean is None) != (std is None):
            raise UserError("give both mean and std, or neither")
        self.model = model
        self.name = name
        self.normalisation = None if mean is None else [list(map(float, mean)), list(map(float, std))]
        if self.normalisation:
            device = next((p.device for p in model.parameters()), None)
            for key, values in zip(("mean", "std"), self.normalisation, strict=True):
                self.register_buffer(
                    key, torch.tensor(values, device=device).view(-1, 1, 1), persistent=False
                )

    def forward(self, images: Tensor) -> Tensor:
        if self.normalisation:
            if images.shape[1] != len(self.mean):
                channels = f"{len(self.mean)} channels; the images have {images.shape[1]}"
                raise UserError(f"{self.name} is normalised with {channels}")
            images = (images - self.mean) / self.std
        logits = self.model(images)
        if not isinstance(logits, Tensor):
            raise UserError(
                f"{self.name} returns a {type(logits).__name__}, not a tensor of logits: wrap it so that "
                "its forward returns the logits alone"
            )
        return logits


class Ensemble(nn.Module):
    """The mean of its members' softmax probabilities, as log-probabilities (N, classes).

    They are averaged in log space, so a confident member does not round the others' gradients away.
    """

    def __init__(self, members: Sequence[nn.Module], name: str = "ensemble") -> None:
        super().__init__()
        if not members:
            raise UserError("an ensemble needs at least one member")
        self.members = nn.ModuleList(members)
        self.name = name

    def forward(self, images: Tensor) -> Tensor:
        each = torch.stack([member(images).log_softmax(dim=1) for member in self.members])
        return each.logsumexp(dim=0) - math.log(len(self.members))


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """The conditions of a measurement, and everything as it was found afterwards.

    Inside: eval mode, frozen parameters, gradients possible, float32 without autocast or TF32, deterministic
    cuDNN. Restored: the mode of every module, requires_grad, buffers, torch's settings and random state.
    """
    training = [(module, module.training) for module in model.modules()]
    requires_grad = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    buffers = [
        (module, name, buffer, buffer.clone())
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
    ]
    try:
        with _torch_settings():
            model.eval()
            model.requires_grad_(False)
            yield
    finally:
        for module, mode in training:
            module.training = mode
        for parameter, flag in requires_grad:
            parameter.requires_grad_(flag)
        with torch.no_grad():
            for module, name, buffer, before in buffers:
                buffer.copy_(before)
                setattr(module, name, buffer)  # a forward may have put another in its place


@contextmanager
def _torch_settings() -> Iterator[None]:
    precision = torch.get_float32_matmul_precision()
    with ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=range(torch.cuda.device_count())))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device in ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",):
            stack.enter_context(torch.autocast(device, enabled=False))
        stack.enter_context(
            torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
        )
        stack.callback(torch.set_float32_matmul_precision, precision)
        torch.set_float32_matmul_precision("highest")
        yield


@torch.no_grad()
def check_victim(victim: nn.Module, images: Tensor, classes: int) -> None:
    """Refuse what cannot be measured, on one small batch.

    Args:
        images: (N, C, H, W) pixels in [0, 1].
        classes: Number of classes of the dataset.

    Raises:
        UserError: if the logits are not (N, classes), or another forward pass, of the batch or image by
            image, gives other ones.
    """
    try:
        logits = victim(images.clone())  # a model may work in place on what it is given
    except UserError:
        raise
    except Exception as error:  # and refuse its input in any way
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(
            f"{victim.name} cannot take {images.dtype} images of shape {tuple(images.shape)}: {reason}"
        ) from error
    if logits.shape != (len(images), classes):
        raise UserError(
            f"{victim.name} returns logits of shape {tuple(logits.shape)}; "
            f"the dataset needs {(len(images), classes)}"
        )
    if not _alike(logits, victim(images.clone())):
        raise RandomModelError(f"{victim.name} is random: two forward passes in eval mode differ")
    if not _alike(logits, torch.cat([victim(image[None].clone()) for image in images])):
        raise UserError(
            f"{victim.name} is not a classifier of single images: in eval mode its logits for one depend on "
            "the others in the batch (BatchNorm with track_running_stats=False does that)"
        )


def _alike(one: Tensor, other: Tensor) -> bool:
    return torch.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True)


def behaviour(victim: nn.Module, images: Tensor) -> str:
    """SHA-256 of the logits at a few images (N, C, H, W), and of the gradients that come back to them.

    No hash of code or state sees everything that an object's output depends on; this sees the output.
    """
    pixels = images.clone().requires_grad_()
    logits = victim(pixels.clone())
    parts = [logits.detach()]
    if logits.requires_grad:
        weights = torch.arange(1, logits.shape[1] + 1, device=logits.device)  # tells the classes apart
        parts += torch.autograd.grad((logits * weights).sum(), pixels, allow_unused=True)
    sha = hashlib.sha256()
    for part in parts:
        sha.update(b"none" if part is None else part.cpu().contiguous().numpy().tobytes())
    return sha.hexdigest()


def identity(model: nn.Module) -> dict:
    """What a model that came as an object is known by: its code, structure, settings and state."""
    sha = hashlib.sha256(repr(model).encode())
    for kind in sorted({type(module) for module in model.modules()}, key=lambda kind: kind.__qualname__):
        sha.update(_source(kind).encode())
    for name, module in model.named_modules():
        sha.update(f"{name}{_settings(module)}".encode())
    # not the state dict, which lacks some buffers: a victim's mean and std among them
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        sha.update(f"{name}{tensor.dtype}{tuple(tensor.shape)}".encode())
        sha.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return {"class": type(model).__qualname__, "state_sha256": sha.hexdigest()}


def _settings(module: nn.Module) -> dict:
    """What its constructor kept as plain values, such as a temperature."""
    return {
        key: value
        for key, value in sorted(vars(module).items())
        if key not in ("training", "name") and not key.startswith("_") and _is_plain(value)
    }


def _is_plain(value) -> bool:
    if isinstance(value, tuple | list):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _source(kind: type) -> str:
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):  # typed at a prompt, or built in
        return kind.__qualname__


def resolve_device(name: str | None) -> torch.device:
    """The device called `name`; by default CUDA where there is one, else the CPU.

    Raises:
        UserError: if there is no such device here.
    """
    name = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()  # which a meta device cannot do
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"cannot use device {name!r}: {str(error).splitlines()[0]}") from error
    return device

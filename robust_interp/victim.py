"""Any model as a victim: pixels in [0, 1] in, logits out; eval mode, frozen, and left as it was found."""

from __future__ import annotations

import copy
import hashlib
import inspect
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from robust_interp.errors import RandomModelError, UserError

CHECKED_ON = 8  # images that a model must classify alone as in a batch, and twice alike

AVERAGES = ("probabilities", "logits")  # of an ensemble's members
WHITE_BOX, MEAN_GRADIENT = "white-box", "mean-gradient"
GRAPHS_KEPT = 2  # members that need not run again for a gradient: an ensemble of two costs no more time


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
        self.model = model
        self.name = name
        self.normalisation = _normalisation(mean, std, name)
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
        output = self.model(images)
        logits = _logits(output)
        if not isinstance(logits, Tensor):
            raise UserError(
                f"{self.name} returns {_described(output)}, not a tensor of logits: wrap it so that its "
                "forward returns the logits alone"
            )
        return logits


def _normalisation(mean, std, name: str) -> list[list[float]] | None:
    """Mean and std as lists, or None for neither.

    Raises:
        UserError: if they cannot be those of pixels in [0, 1].
    """
    if (mean is None) != (std is None):
        raise UserError(f"{name}: give both mean and std, or neither")
    if mean is None:
        return None
    try:
        values = [list(map(float, mean)), list(map(float, std))]
    except (TypeError, ValueError):
        raise UserError(
            f"{name}: mean and std must be lists of a number per channel, not {mean!r}, {std!r}"
        ) from None
    if (
        not all(map(math.isfinite, values[0] + values[1]))
        or len(values[0]) != len(values[1])
        or min(values[1], default=0) <= 0
    ):
        raise UserError(
            f"{name}: mean {values[0]} and std {values[1]} must be finite, a number per channel, and std "
            "above 0"
        )
    if max(map(abs, values[0])) > 1:
        raise UserError(f"{name}: mean {values[0]} is not of pixels in [0, 1]: divide mean and std by 255")
    return values


def _logits(output):
    """What a model's output holds under the name of logits, as transformers' outputs do; else all of it."""
    if isinstance(output, Mapping):
        return output.get("logits", output)
    return getattr(output, "logits", output)


def _described(output) -> str:
    """What a model returned, for a message: 'a tuple of Tensor, Tensor', 'a dict with out, aux'."""
    kind = f"a {type(output).__name__}"
    if isinstance(output, Mapping):
        return f"{kind} with {', '.join(map(str, list(output)[:5]))}" if output else kind
    if isinstance(output, tuple | list):
        return f"{kind} of {', '.join(type(part).__name__ for part in output[:5])}" if output else kind
    return kind


class Ensemble(nn.Module):
    """Several classifiers as one, (N, classes): their mean probability, or their mean logits.

    `probabilities` gives log-probabilities, averaged in log space, so that a confident member does not round
    the others' gradients away. A gradient needs the activations of `GRAPHS_KEPT` members at most, however
    many there are: the other members run once more on the way back, with the same result.

    Args:
        members: Each maps the same images (N, C, H, W) to logits (N, classes).
        average: ``probabilities`` (of the softmax) or ``logits``.
        attack: What an attack on the ensemble is made on: ``white-box`` (the ensemble itself), ``member:K``
            (one of them, counted from 0), or ``mean-gradient`` (the mean of the members' own losses).
        name: What messages call it.

    Raises:
        UserError: if there is no member, or `average` or `attack` is none of these.
    """

    def __init__(
        self,
        members: Sequence[nn.Module],
        average: str = AVERAGES[0],
        attack: str = WHITE_BOX,
        name: str = "ensemble",
    ) -> None:
        super().__init__()
        check_ensemble(len(members), average, attack, name)
        self.members = nn.ModuleList(members)
        self.average = average
        self.attack = attack
        self.name = name

    def forward(self, images: Tensor) -> Tensor:
        return self.averaged(_each(self.members, images))

    def averaged(self, each: Tensor) -> Tensor:
        """The members' logits (members, N, classes) as those of the ensemble."""
        if self.average == "logits":
            return each.mean(dim=0)
        return each.log_softmax(dim=2).logsumexp(dim=0) - math.log(len(each))

    def with_agreement(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """What `forward` gives, and for which images all members predict the same class, (N,) bool."""
        each = _each(self.members, images)
        classes = each.argmax(dim=2)
        return self.averaged(each), (classes == classes[0]).all(dim=0)

    @property
    def attacked_as(self) -> nn.Module:
        """The classifier that an attack on this ensemble is made on."""
        if self.attack == WHITE_BOX:
            return self
        if self.attack == MEAN_GRADIENT:
            return MeanLoss(self.members, self.name)
        return self.members[_member(self.attack)]


class MeanLoss(nn.Module):
    """A classifier whose cross-entropy is the mean of its members' cross-entropies, and so its gradient.

    Its probabilities are the geometric means of the members', (N, classes + 1). Where the members differ they
    sum to less than 1; the rest is one class more, without which cross-entropy would scale it away.
    """

    def __init__(self, members: nn.ModuleList, name: str) -> None:
        super().__init__()
        self.members = members
        self.name = name

    def forward(self, images: Tensor) -> Tensor:
        known = _each(self.members, images).log_softmax(dim=2).mean(dim=0)
        # Members that agree leave no rest, and its logarithm must stay finite.
        total = known.logsumexp(dim=1, keepdim=True).clamp(max=-torch.finfo(known.dtype).eps)
        return torch.cat([known, torch.log(-torch.expm1(total))], dim=1)


def check_ensemble(members: int, average: str, attack: str, name: str) -> None:
    """Refuse what `Ensemble` cannot be made of, before anything is loaded."""
    if not members:
        raise UserError("an ensemble needs at least one member")
    if average not in AVERAGES:
        raise UserError(f"an ensemble averages {' or '.join(AVERAGES)}, not {average!r}")
    if attack in (WHITE_BOX, MEAN_GRADIENT):
        return
    at = _member(attack)
    if at is None:
        known = f"{WHITE_BOX}, {MEAN_GRADIENT} or member:0, member:1, ..."
        raise UserError(f"an ensemble is attacked by {known}, not {attack!r}")
    if at >= members:
        raise UserError(f"{name} has members 0 to {members - 1}: there is no {attack} to attack")


def _member(attack: str) -> int | None:
    match = re.fullmatch(r"member:([0-9]{1,9})", str(attack))
    return int(match[1]) if match else None


def _each(members: nn.ModuleList, images: Tensor) -> Tensor:
    """Each member's logits for the images, (members, N, classes)."""
    again = len(members) - GRAPHS_KEPT
    return torch.stack(
        [
            checkpoint(_on_a_copy, member, images, use_reentrant=False)
            if at < again
            else _on_a_copy(member, images)
            for at, member in enumerate(members)
        ]
    )


def _on_a_copy(member: nn.Module, images: Tensor) -> Tensor:
    return member(images.clone())  # one that works in place would change what the others are given


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """The conditions of a measurement, and everything as it was found afterwards.

    Inside: eval mode, frozen parameters, gradients possible, float32 without autocast or TF32, deterministic
    cuDNN. Restored: the mode of every module, requires_grad, buffers, torch's settings and random state.
    """
    training = [(module, module.training) for module in model.modules() if hasattr(module, "training")]
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
        UserError: if the logits are not (N, classes) in single or double precision, or another forward pass,
            of the batch or image by image, gives other ones.
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
    if logits.dtype not in (torch.float32, torch.float64):
        raise UserError(
            f"{victim.name} returns {str(logits.dtype).removeprefix('torch.')} values, through which no "
            "attack can go: they must be logits in float32"
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

    Raises:
        UserError: if the way back through the model fails.
    """
    pixels = images.clone().requires_grad_()
    try:
        logits = victim(pixels.clone())
        parts = [logits.detach()]
        if logits.requires_grad:
            weights = torch.arange(1, logits.shape[1] + 1, device=logits.device)  # tells the classes apart
            parts += torch.autograd.grad((logits * weights).sum(), pixels, allow_unused=True)
    except RuntimeError as error:  # which no forward pass without a gradient shows
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UserError(f"{victim.name} cannot be differentiated: {reason}") from error
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


def measurable(model: nn.Module, name: str = "model") -> tuple[nn.Module, tuple[str, ...]]:
    """The model that is measured for one that was given, and what a reader must be told of the difference.

    A model in another precision is measured as a float32 copy: half precision rounds gradients to zero, which
    an attack cannot follow. Of a compiled one, the module that was compiled is measured.

    Raises:
        UserError: if its parameters hold no data, or it cannot be copied.
    """
    model = getattr(model, "_orig_mod", model)
    tensors = [*model.parameters(), *model.buffers()]
    if any(map(nn.parameter.is_lazy, tensors)):
        raise UserError(f"{name} has lazy layers without a shape: call it once on an image first")
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
    notes = (f"{name} is in {', '.join(others)}: a copy of it in float32 is measured",) if others else ()
    return copied, notes


def stale_batch_norm(victim: nn.Module, images: Tensor, labels: Tensor, classes: int) -> bool:
    """Whether BatchNorm's running statistics look unset: at chance with them, well above with the batch's.

    Args:
        images: (N, C, H, W) pixels in [0, 1] of all classes; a few dozen do.
        labels: (N,) class indices.
    """
    norms = [m for m in victim.modules() if isinstance(m, nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d)]
    chance = 1 / classes
    luck = 2 * math.sqrt(chance * (1 - chance) / len(images))  # two standard deviations of guessing
    if not norms or len(images) < 2 or _accuracy(victim, images, labels) > chance + luck:
        return False
    with undisturbed(victim):
        for norm in norms:
            norm.train()
        return _accuracy(victim, images, labels) > chance + luck + 0.25


@torch.no_grad()
def _accuracy(victim: nn.Module, images: Tensor, labels: Tensor) -> float:
    return (victim(images.clone()).argmax(1) == labels).float().mean().item()


@contextmanager
def on_its_device(model: nn.Module) -> Iterator[None]:
    """Brings every parameter and buffer back to where it was, wherever the inside moves the model."""
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
            setattr(module, name, tensor)  # where a move put another in its place
            tensor.data = tensor.data.to(device)
            if tensor.grad is not None:
                tensor.grad.data = tensor.grad.data.to(device)


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

"""Run the passes of attacks compiled by torch.compile instead of eagerly.

A pass of a batch of one constant size is compiled. The weights are inputs of the compiled function, so that
all networks of an architecture share one compilation. The final predictions always come from the
eager model.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robust_interp.classifiers.classifier import Classifier, with_gradient
from robust_interp.classifiers.ensemble import Ensemble, MeanLoss
from robust_interp.classifiers.folding import fold_batch_norm
from robust_interp.classifiers.layout import ROUNDING, outputs_match
from robust_interp.core.compiler import CompileTime, why_not
from robust_interp.core.torch_internals import compilation_limit, kept_buffers, without_function_modes

COMPILED = "compiled"  # name in tables

FULLEST_EAGER = 0.7  # share of the constant size; a compiled pass takes about 0.7 of the time of an eager one
ROUNDING_IN_BF16 = 0.1  # tolerance, as a share of the largest logit
MOST_COMPILATIONS = 1000  # per process, over all architectures and kinds of passes; torch's default is 8


class Pass(NamedTuple):
    """A kind of pass. Each kind is compiled separately.

    Attributes:
        gradient: Whether a gradient is computed.
        bf16: Whether the pass runs under autocast to bfloat16.
    """

    gradient: bool
    bf16: bool = False


class CannotCompile(Exception):  # noqa: N818  not an error: the model runs eagerly
    """Raised when a model cannot be compiled. The message is a short reason."""


class ConstantBatches(nn.Module):
    """A classifier whose passes run compiled, in batches of a constant size, padded with zeros.

    Passes of a kind that is not in `passes`, and batches less than 0.7 full, run
    eagerly, as padding costs more.

    Args:
        classifier: The classifier, in eval mode, with frozen parameters.
        size: Number of images in a compiled batch.
        passes: The kinds of passes to compile.
        backend: The backend of torch.compile.
    """

    def __init__(
        self, classifier: nn.Module, size: int, passes: Sequence[Pass], backend: str | Callable = "inductor"
    ) -> None:
        super().__init__()
        self.classifier, self.name = classifier, getattr(classifier, "name", "the model")
        self.training = False
        self._size, self._passes, self._backend = size, set(passes), backend

    spares_its_images = True

    def forward(self, images: Tensor) -> Tensor:
        kind = Pass(
            images.requires_grad and torch.is_grad_enabled(),
            torch.is_autocast_enabled(images.device.type),
        )
        if kind not in self._passes:
            return self.classifier(images.clone())
        parts = [self._run(part) for part in images.split(self._size)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _run(self, images: Tensor) -> Tensor:
        if len(images) < FULLEST_EAGER * self._size:
            return self.classifier(images.clone())
        missing = self._size - len(images)
        filled = F.pad(images, (0, 0, 0, 0, 0, 0, 0, missing)) if missing else images
        filled = filled.clone(memory_format=torch.contiguous_format)  # another layout would be recompiled
        with without_function_modes(), compilation_limit(MOST_COMPILATIONS), kept_buffers():
            return _compiled(self._backend)(self.classifier, filled)[: len(images)]


def _pass(classifier: nn.Module, images: Tensor) -> Tensor:
    return classifier(images)


@cache
def _compiled(backend: str | Callable) -> Callable[[nn.Module, Tensor], Tensor]:
    """Return the compiled pass. All classifiers share it; torch recompiles where their guards differ.

    It records no CUDA graphs: the forward pass of an ensemble's next member would overwrite what the backward
    pass of the one before still needs.
    """
    return torch.compile(_pass, dynamic=False, fullgraph=True, backend=backend)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence torch's logs and warnings during a compilation; failures are reported by `CannotCompile`."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def with_folded_norms(classifier: nn.Module, images: Tensor) -> nn.Module:
    """Return a copy of a classifier with its BatchNorm layers folded into the convolutions.

    Return the classifier itself if that is not possible, or changes logits or gradients by more than
    rounding.

    Args:
        classifier: A classifier in eval mode with frozen parameters. Each member of an ensemble is folded.
        images: Pixels (N, C, H, W) in [0, 1] on which the copy is compared with the original.
    """
    return _of_each(classifier, lambda one: _with_folded_norms(one, images))


def _with_folded_norms(classifier: nn.Module, images: Tensor) -> nn.Module:
    model = fold_batch_norm(classifier.model) if isinstance(classifier, Classifier) else None
    if model is None or not isinstance(classifier, Classifier):
        return classifier
    copied = classifier.around(model).requires_grad_(False)
    try:
        same = outputs_match(with_gradient(classifier, images), with_gradient(copied, images))
    except Exception:  # the model's code may not work with folded layers
        same = False
    return copied if same else classifier


def compile_model(
    classifier: nn.Module,
    images: Tensor,
    passes: Sequence[Pass],
    backend: str | Callable = "inductor",
) -> tuple[nn.Module, CompileTime]:
    """Compile a classifier, and check the result against the eager one.

    Args:
        classifier: A classifier in eval mode with frozen parameters. Each member of an ensemble is compiled.
        images: Pixels (N, C, H, W) in [0, 1]; N becomes the constant batch size.
        passes: The kinds of passes to compile.
        backend: The backend of torch.compile.

    Returns:
        The compiled classifier, the seconds that compiling took, and the mean speed-up of a pass.

    Raises:
        CannotCompile: if torch cannot compile it, or its logits or gradients differ by more than rounding.
    """
    times: list[CompileTime] = []

    def one(member: nn.Module) -> nn.Module:
        made = ConstantBatches(member, len(images), passes, backend)
        with _quiet():
            times.extend(_checked(member, made, images, kind) for kind in passes)
        return made

    made = _of_each(classifier, one)
    gain = sum(time.gain for time in times) / len(times)
    return made, CompileTime(sum(time.seconds for time in times), gain)


def _checked(classifier: nn.Module, made: nn.Module, images: Tensor, kind: Pass) -> CompileTime:
    if any(isinstance(module, torch.jit.ScriptModule) for module in classifier.modules()):
        raise CannotCompile("it is TorchScript")
    _run(classifier, images, kind)  # warm-up
    before, alone = _run(classifier, images, kind)
    try:
        _, first = _run(made, images, kind)
        after, again = _run(made, images, kind)
    except Exception as error:  # dynamo, inductor and the C++ compiler raise many kinds
        raise CannotCompile(_reason(error.__cause__ or error)) from error
    if not outputs_match(before, after, ROUNDING_IN_BF16 if kind.bf16 else ROUNDING):
        raise CannotCompile("its compiled pass gives other logits or gradients")
    return CompileTime(max(0.0, first - again), alone / again)


def _run(classifier: nn.Module, images: Tensor, kind: Pass) -> tuple[tuple[Tensor, Tensor | None], float]:
    """Return the logits (in float32) and the gradient of a pass, and its time in seconds."""
    started = time.perf_counter()
    with torch.autocast(images.device.type, torch.bfloat16, enabled=kind.bf16):
        if kind.gradient:
            logits, gradient = with_gradient(classifier, images)
        else:
            with torch.no_grad():
                logits, gradient = classifier(images.clone()), None
    logits.detach().sum().item()  # waits for the device
    return (logits.float(), gradient), time.perf_counter() - started


def _reason(error: BaseException) -> str:
    if machine := why_not():
        return f"nothing can be compiled on this machine ({machine})"
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.endswith("raised:")]  # torch's message comes first
    return f"torch.compile fails on it ({next(iter(told), type(error).__name__)[:120]})"


def _of_each(classifier: nn.Module, make: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Apply `make` to a classifier, or to each member of an ensemble."""
    if isinstance(classifier, Ensemble):
        members = [make(member) for member in classifier.members]
        return Ensemble(members, classifier.average, classifier.attack, classifier.name)
    if isinstance(classifier, MeanLoss):
        return MeanLoss(nn.ModuleList(make(member) for member in classifier.members), classifier.name)
    return make(classifier)

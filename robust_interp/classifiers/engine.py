"""How the passes of attacks run: as the model's own code, or compiled by torch.compile.

What is compiled is a pass of a batch of one constant size. The weights are inputs of it, so that all networks
of an architecture share one compilation. A model is only ever judged by its own code.
"""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack, _pop_mode_temporarily

from robust_interp.classifiers.classifier import Classifier, with_gradient
from robust_interp.classifiers.ensemble import Ensemble, MeanLoss
from robust_interp.classifiers.folding import folded
from robust_interp.classifiers.layout import ROUNDING, alike
from robust_interp.core.compiler import CompileTime, why_not

EAGER, COMPILED = "eager", "compiled"  # as tables name them

FULL_ENOUGH = 0.5  # of the constant size: a smaller batch is faster as it is than with the padding
ROUNDING_IN_BF16 = 0.1  # of the largest logit
MOST_COMPILATIONS = 1000  # of networks and kinds of passes: torch gives up after eight


class Pass(NamedTuple):
    """A kind of pass, which has a compilation of its own.

    Attributes:
        follows: Whether its gradient is asked for.
        bf16: Whether it runs under autocast to bfloat16.
    """

    follows: bool
    bf16: bool = False


class CannotCompile(Exception):  # noqa: N818  not a failure: a reason to run as before
    """A model that stays uncompiled; the message says why, in a few words."""


class ConstantBatches(nn.Module):
    """A classifier whose passes run compiled, in batches of a constant size that is filled up with zeros.

    Passes of another kind than was prepared, and batches that would be filled up by half or more, run as the
    classifier's own code.

    Args:
        classifier: In eval mode, with frozen parameters.
        size: Of the batches.
        passes: The kinds that are compiled.
        backend: Of torch.compile.
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
        missing = self._size - len(images)
        if missing >= FULL_ENOUGH * self._size:
            return self.classifier(images.clone())
        filled = F.pad(images, (0, 0, 0, 0, 0, 0, 0, missing)) if missing else images
        filled = filled.clone(memory_format=torch.contiguous_format)  # one layout, or it is compiled anew
        on_cuda = images.is_cuda
        if on_cuda:
            torch.compiler.cudagraph_mark_step_begin()
        with _without_modes(), _limits():
            logits = _compiled(self._backend, "reduce-overhead" if on_cuda else None)(self.classifier, filled)
            # A CUDA graph writes its next result to the same place.
            return logits[: len(images)].clone() if on_cuda else logits[: len(images)]


def _pass(classifier: nn.Module, images: Tensor) -> Tensor:
    return classifier(images)


@cache
def _compiled(backend: str | Callable, mode: str | None) -> Callable[[nn.Module, Tensor], Tensor]:
    """One for all classifiers: torch itself tells which of them can share what was compiled."""
    mode = mode if backend == "inductor" else None
    return torch.compile(_pass, dynamic=False, fullgraph=True, backend=backend, mode=mode)


@contextmanager
def _without_modes() -> Iterator[None]:
    """Outside of an attack's modes, such as that of its draws: what is compiled would depend on them."""
    with ExitStack() as stack:
        for _ in _get_current_function_mode_stack():
            stack.enter_context(_pop_mode_temporarily())
        yield


@contextmanager
def _limits() -> Iterator[None]:
    import torch._dynamo.config as dynamo
    import torch._functorch.config as functorch

    most = MOST_COMPILATIONS
    # Some attacks go back through one pass several times, so that its buffers may not be given away.
    limits = dynamo.patch(recompile_limit=most, accumulated_recompile_limit=most)
    with limits, functorch.patch(donated_buffer=False):
        yield


@contextmanager
def _quiet() -> Iterator[None]:
    """What torch logs of a compilation says nothing to a user, who is told if it fails."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def with_folded_norms(classifier: nn.Module, images: Tensor) -> nn.Module:
    """A copy of a classifier with its BatchNorm folded; itself where that is not possible, or not the same.

    Args:
        classifier: In eval mode with frozen parameters; of an ensemble, its members are copied.
        images: (N, C, H, W) pixels in [0, 1], on which both are compared.
    """
    return _of_each(classifier, lambda one: _with_folded_norms(one, images))


def _with_folded_norms(classifier: nn.Module, images: Tensor) -> nn.Module:
    model = folded(classifier.model) if isinstance(classifier, Classifier) else None
    if model is None or not isinstance(classifier, Classifier):
        return classifier
    copied = classifier.around(model).requires_grad_(False)
    try:
        same = alike(with_gradient(classifier, images), with_gradient(copied, images))
    except Exception:  # the copy is of code that may not have been written for that
        same = False
    return copied if same else classifier


def compiled(
    classifier: nn.Module,
    images: Tensor,
    passes: Sequence[Pass],
    backend: str | Callable = "inductor",
) -> tuple[nn.Module, CompileTime]:
    """A classifier that runs compiled, and what that took.

    Args:
        classifier: In eval mode with frozen parameters; of an ensemble, its members are compiled.
        images: (N, C, H, W) pixels in [0, 1]: a batch of the size that is compiled for.
        passes: The kinds that are to be compiled.

    Raises:
        CannotCompile: if it cannot be compiled, or then gives other logits or gradients.
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
    _run(classifier, images, kind)  # the first is slower
    before, alone = _run(classifier, images, kind)
    try:
        _, first = _run(made, images, kind)
        after, again = _run(made, images, kind)
    except Exception as error:  # whatever dynamo, inductor or the C++ compiler make of a model
        raise CannotCompile(_reason(error.__cause__ or error)) from error
    if not alike(before, after, ROUNDING_IN_BF16 if kind.bf16 else ROUNDING):
        raise CannotCompile("its compiled pass gives other logits or gradients")
    return CompileTime(max(0.0, first - again), alone / again)


def _run(classifier: nn.Module, images: Tensor, kind: Pass) -> tuple[tuple[Tensor, Tensor | None], float]:
    """Logits and gradient of a pass, in float32, and the seconds that it took."""
    started = time.perf_counter()
    with torch.autocast(images.device.type, torch.bfloat16, enabled=kind.bf16):
        if kind.follows:
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
    told = [line for line in lines if line and not line.endswith("raised:")]  # torch's own words come first
    return f"torch.compile fails on it ({next(iter(told), type(error).__name__)[:120]})"


def _of_each(classifier: nn.Module, make: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """What `make` makes of a classifier; an ensemble of what it makes of its members."""
    if isinstance(classifier, Ensemble):
        members = [make(member) for member in classifier.members]
        return Ensemble(members, classifier.average, classifier.attack, classifier.name)
    if isinstance(classifier, MeanLoss):
        return MeanLoss(nn.ModuleList(make(member) for member in classifier.members), classifier.name)
    return make(classifier)

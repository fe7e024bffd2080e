"""Modules that merge the shortcut x and the branch f(x) of a residual block, and modules that give their λ.

There are two kinds of module, so that a new variant is one small class and no block has an `if`:

* A *merge* is built as `merge(channels, device=..., dtype=...)` and called as `merge(x, f)`.
* A *coefficient* computes the λ of a merge, `act(d(x)) >= 0`: one number for the block or, if gated, one
  number for each channel and position.

The update rules of In-ResNet and λ-In-ResNet and the variants -sig and -gating (table of shortcut functions)
come from Yang, Liu, Bao, Shi, *Interpolation between Residual and Non-Residual Networks* (ICML 2020, arXiv
2006.05749).
"""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

__all__ = [
    "Add",
    "Branch",
    "Damp",
    "Exponential",
    "Gate",
    "Keep",
    "Lambda",
    "ScaledDamp",
    "ScaledExponential",
    "damped",
]

Device = torch.device | str | None
Dtype = torch.dtype | None

# act -> (its module, its inverse for the initial values of λ)
_ACTS: dict[str, tuple[type[nn.Module], Callable[[Tensor], Tensor]]] = {
    "relu": (nn.ReLU, torch.clone),
    "sigmoid": (nn.Sigmoid, torch.logit),
}


class Add(nn.Module):
    """x + f: the residual network, λ = 0."""

    def __init__(self, channels: int, device: Device = None, dtype: Dtype = None) -> None:
        super().__init__()

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        """x + f, of two (N, C, H, W)."""
        return x + f


class Branch(nn.Module):
    """f alone: the plain network, λ = 1."""

    def __init__(self, channels: int, device: Device = None, dtype: Dtype = None) -> None:
        super().__init__()

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        """f, of two (N, C, H, W)."""
        return f


class Damp(nn.Module):
    """(1 - λ) x + f: In-ResNet.

    `coefficient` builds the module that gives λ: `coefficient(channels, device=..., dtype=...)`.
    """

    def __init__(
        self,
        channels: int,
        coefficient: Callable[..., nn.Module] | None = None,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        self.coefficient = (coefficient or Lambda)(channels, device=device, dtype=dtype)

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        """(1 - λ) x + f, of two (N, C, H, W)."""
        lam = self.coefficient(x)
        return (1 - lam) * x + f


class ScaledDamp(Damp):
    """(1 - λ) x + (1 + λ) f: λ-In-ResNet."""

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        """(1 - λ) x + (1 + λ) f, of two (N, C, H, W)."""
        lam = self.coefficient(x)
        return (1 - lam) * x + (1 + lam) * f


class Exponential(Damp):
    """e^-λ x + (1 - e^-λ)/λ f: the exact step of dx/dt = -λ x + f over Δt = 1, with f frozen.

    In-ResNet is its first-order form: the factor of x agrees to O(λ²), that of f only to O(λ).
    λ = 0 is the residual network; for λ → ∞ the output goes to 0.
    """

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        """e^-λ x + (1 - e^-λ)/λ f, of two (N, C, H, W)."""
        lam = self.coefficient(x)
        return torch.exp(-lam) * x + mean_decay(lam) * f


class ScaledExponential(Damp):
    """e^-λ x + (1 - e^-λ)/λ (1 + λ) f: the same for ρ(λ) = λ + 1; for λ → ∞ the plain network, f alone."""

    def forward(self, x: Tensor, f: Tensor) -> Tensor:
        """e^-λ x + (1 - e^-λ)/λ (1 + λ) f, of two (N, C, H, W)."""
        lam = self.coefficient(x)
        return torch.exp(-lam) * x + mean_decay(lam) * (1 + lam) * f


def mean_decay(lam: Tensor) -> Tensor:
    """Return (1 - e^-λ)/λ, the mean of e^-λt over t in [0, 1]; 1 at λ = 0, where the slope is -1/2.

    Below 1/2 a Taylor series is used, because the derivative of the quotient loses its digits there by
    cancellation. In each of the two forms, the λ that belong to the other are replaced by a safe number:
    `torch.where` would pass on a NaN gradient even from the form that was not chosen.

    Args:
        lam: λ >= 0, of any shape.
    """
    small = torch.where(lam < 0.5, lam, 0.0)
    series = torch.ones_like(small)
    for k in range(15, 1, -1):  # up to λ^14 / 15!, exact in float64
        series = 1 - small / k * series
    large = torch.where(lam < 0.5, 1.0, lam)
    return torch.where(lam < 0.5, series, -torch.expm1(-large) / large)


class Coefficient(nn.Module):
    """Base of what gives a merge its λ; `forward(x)` returns act(d(x)).

    Args:
        channels: of the x that it is called with.
        lambda_init: (low, high); λ, that is act(d(x)), starts uniform in this interval.
        act: "relu" or "sigmoid".

    Raises:
        ValueError: for an unknown act; unless 0 <= low <= high (for a sigmoid 0 < low <= high < 1).
    """

    depends_on_input = False

    def __init__(
        self,
        channels: int,
        lambda_init: Sequence[float] = (0.20, 0.25),
        act: str = "relu",
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        super().__init__()
        if act not in _ACTS:
            raise ValueError(f"act={act!r} is not one of {', '.join(_ACTS)}")
        self.lambda_init = _interval(lambda_init, act)
        act_class, self._inverse = _ACTS[act]
        self.act = act_class()

    def _start(self, parameter: Tensor) -> None:
        """Fill with values whose act() is uniform in lambda_init."""
        parameter.copy_(self._inverse(torch.empty_like(parameter).uniform_(*self.lambda_init)))

    def reset_parameters(self) -> None:
        """Draw λ anew from `lambda_init`, by torch's global generator."""
        raise NotImplementedError

    def _load_from_state_dict(
        self,
        state_dict: Mapping[str, Any],
        prefix: str,
        metadata: dict,
        strict: bool,
        missing: list[str],
        unexpected: list[str],
        errors: list[str],
    ) -> None:
        """Refuse what another kind of coefficient saved.

        Also where strict=False, as in timm for another number of classes: λ would silently stay random.
        """
        own = {prefix + name for name, _ in self.named_parameters()}
        others = [key for key in state_dict if key.startswith(prefix) and key not in own]
        if others:
            errors.append(f"{', '.join(others)}: {type(self).__name__} stores its λ in another form")
        super()._load_from_state_dict(state_dict, prefix, metadata, strict, missing, unexpected, errors)


class Lambda(Coefficient):
    """One λ for the block: a 0-dim parameter, so that it never promotes bf16 activations to float32."""

    def __init__(
        self,
        channels: int,
        *args: Any,
        device: Device = None,
        dtype: Dtype = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(channels, *args, **kwargs)
        self.lambda_ = nn.Parameter(torch.empty((), device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """λ, a 0-dim tensor, whatever x is."""
        return self.act(self.lambda_)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw λ anew from `lambda_init`, by torch's global generator."""
        self._start(self.lambda_)


class Keep(Coefficient):
    """One λ for the block, stored as k = 1 - λ; λ = relu(1 - k).

    Weight decay acts on what is stored: on `Lambda` it pulls toward the residual network, here toward
    the plain one. The parameter has a name of its own, so no checkpoint of one loads as the other.
    """

    def __init__(
        self,
        channels: int,
        *args: Any,
        device: Device = None,
        dtype: Dtype = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(channels, *args, **kwargs)
        self.keep = nn.Parameter(torch.empty((), device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """λ, a 0-dim tensor, whatever x is."""
        return self.act(1 - self.keep)

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw λ anew from `lambda_init`, by torch's global generator."""
        self._start(self.keep)
        self.keep.neg_().add_(1)


class Gate(Coefficient):
    """λ for each channel and position: act(W x + b), W a 1x1 convolution that starts at zero.

    So λ starts as act(b), one draw from `lambda_init` a channel.
    """

    depends_on_input = True

    def __init__(
        self,
        channels: int,
        *args: Any,
        device: Device = None,
        dtype: Dtype = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(channels, *args, **kwargs)
        # Not an nn.Conv2d: that would draw a random start of its own, and one torch seed would then give
        # a gated network other convolutions than its baseline's.
        self.weight = nn.Parameter(torch.empty(channels, channels, 1, 1, device=device, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(channels, device=device, dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        """λ for each channel and position of x, (N, C, H, W)."""
        return self.act(F.conv2d(x, self.weight, self.bias))

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw λ anew from `lambda_init`, by torch's global generator."""
        self.weight.zero_()
        self._start(self.bias)


_STORED: dict[str, type[Coefficient]] = {"lambda": Lambda, "keep": Keep}


def damped(
    merge: Callable[..., nn.Module],
    lambda_init: Sequence[float],
    act: str = "relu",
    gated: bool = False,
    stored: str = "lambda",
) -> Callable[..., nn.Module]:
    """Bind a merge class to its kind of λ; the result is the `merge` argument of a network.

    Args:
        merge: Damp (In-ResNet), ScaledDamp (λ-In-ResNet), their exact steps Exponential and
            ScaledExponential, or a class derived from Damp.
        lambda_init: (low, high), the interval from which the initial act(λ) is drawn, as for `Coefficient`.
        act: "relu" or "sigmoid", as for `Coefficient`.
        gated: Whether λ depends on x, as in `Gate`.
        stored: Which parameter is trained and saved: "lambda" for λ, or "keep" for 1 - λ (only with
            act="relu" and without gating).

    Returns:
        A function that builds the merge: `function(channels, device=..., dtype=...)`.

    Raises:
        ValueError: If `stored` is unknown or does not fit `act` and `gated`. Wrong values of the others
            are found only when the merge is built.
    """
    if stored not in _STORED:
        raise ValueError(f"stored={stored!r} is not one of {', '.join(_STORED)}")
    if stored == "keep" and (gated or act != "relu"):
        raise ValueError("stored='keep' stores 1 - λ: it needs act='relu' without gating")
    coefficient: type[Coefficient] = Gate if gated else _STORED[stored]
    return partial(merge, coefficient=partial(coefficient, lambda_init=lambda_init, act=act))


def _interval(lambda_init: Sequence[float], act: str) -> tuple[float, float]:
    try:
        low, high = (float(value) for value in lambda_init)
    except (TypeError, ValueError):
        raise ValueError(f"lambda_init={lambda_init!r} is not a pair of numbers (low, high)") from None
    if not 0 <= low <= high < math.inf:
        raise ValueError(f"lambda_init={lambda_init!r} does not satisfy 0 <= low <= high")
    if act == "sigmoid" and not 0 < low <= high < 1:
        raise ValueError(f"lambda_init={lambda_init!r} must lie strictly between 0 and 1 for a sigmoid")
    return low, high

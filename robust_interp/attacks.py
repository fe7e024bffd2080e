"""Named attack specs, turned into torchattacks objects and guarded.

A spec such as ``pgd(eps=2/255, alpha=eps/4, steps=40)`` names a registered attack. Its eps and alpha are
[0, 1] pixel values as in torchattacks. torchattacks computes the attack; what is checked here, once for all
of them, is what it returns: inside [0, 1], inside the eps-ball, finite, and not blind for want of a gradient.
torch is imported only when an attack is built, so that a command line can be read without it.
"""

from __future__ import annotations

import importlib.metadata
import io
import zlib
from collections.abc import Mapping
from contextlib import nullcontext, redirect_stdout
from dataclasses import dataclass
from numbers import Real

import numpy as np

from robust_interp.cells import Perturbation, in_255
from robust_interp.errors import UserError
from robust_interp.registry import OfEps, Registry, Spec, parse_spec, split_specs

BALL_TOLERANCE = 1e-6  # float32 rounding: |(x + d) - x| may exceed |d| by about 2e-9


@dataclass(frozen=True)
class AttackType:
    """A registered attack.

    Attributes:
        torchattacks_class: Name of the class in torchattacks.
        defaults: The parameters it takes besides eps, at the paper's values.
        random: Whether it draws a random start; its results then depend on the attack seed.
    """

    torchattacks_class: str
    defaults: Mapping[str, float | int | OfEps]
    random: bool = False


ATTACKS: Registry[AttackType] = Registry("attack")
ATTACKS.add("fgsm", AttackType("FGSM", {}))
ATTACKS.add("ifgsm", AttackType("BIM", {"alpha": 2 / 255, "steps": 20}))
ATTACKS.add("pgd", AttackType("PGD", {"alpha": 2 / 255, "steps": 20}, random=True))


def resolve(text: str, eps: list[float], defaults: Mapping, seed: int) -> list[Perturbation]:
    """Perturbations for a comma-separated list of attack specs; 'none' is empty.

    Args:
        eps: Radii in [0, 1] pixels that each spec without its own eps is measured at.
        defaults: The dataset's parameters, where they differ from the paper's.
        seed: The attack seed, for attacks that are random.

    Raises:
        UserError: for an unknown attack or parameter, or a value out of range.
    """
    if text.strip() == "none":
        return []
    specs = [parse_spec(part) for part in split_specs(text)]
    if not specs:
        raise UserError("no attack named; say none to measure without")
    found = {}
    for spec in specs:
        for radius in [spec.params["eps"]] if "eps" in spec.params else eps:
            perturbation = _perturbation(spec, radius, defaults, seed)
            found.setdefault(perturbation.column, perturbation)
    return list(found.values())


def _perturbation(spec: Spec, eps, defaults: Mapping, seed: int) -> Perturbation:
    kind = ATTACKS[spec.name]
    if unexpected := set(spec.params) - set(kind.defaults) - {"eps"}:
        takes = ", ".join(["eps", *kind.defaults])
        raise UserError(f"{spec.name} has no parameter {min(unexpected)!r}; it takes {takes}")
    check_eps(eps)
    usual = dict(kind.defaults) | {key: value for key, value in defaults.items() if key in kind.defaults}
    usual = {key: _absolute(value, eps) for key, value in usual.items()}
    params = usual | {key: _absolute(spec.params[key], eps) for key in kind.defaults if key in spec.params}
    _check_params(spec.name, params)
    changed = {key: value for key, value in params.items() if value != usual[key]}
    return Perturbation(
        "attack",
        spec.name,
        f"{spec.name}{_brackets(changed)}_{_exactly(eps)}",
        {"eps": float(eps), **params},
        seed=seed if kind.random else None,
    )


def _absolute(value, eps: float):
    return value.factor * eps if isinstance(value, OfEps) else value


def _brackets(changed: Mapping) -> str:
    shown = {key: f"{_exactly(value)}/255" if key == "alpha" else value for key, value in changed.items()}
    return f"({','.join(f'{key}={value}' for key, value in shown.items())})" if shown else ""


def _exactly(pixels: float) -> str:
    """A distance in units of 1/255, so that no two of them look alike."""
    return f"{in_255(pixels):.10g}"


def check_eps(eps) -> None:
    """Refuse a radius that is not a number in (0, 1] pixels."""
    if not _is_pixel_distance(eps):
        raise UserError(f"eps must be above 0 and at most 1 in [0, 1] pixels (8/255, say), not {eps}")


def _is_pixel_distance(value) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and 0 < value <= 1  # a NaN is not either


def _check_params(name: str, params: Mapping) -> None:
    alpha, steps = params.get("alpha", 1.0), params.get("steps", 1)
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1:
        raise UserError(f"{name}: steps must be a whole number from 1, not {steps}")
    if not _is_pixel_distance(alpha):
        raise UserError(f"{name}: alpha must be above 0 and at most 1 in [0, 1] pixels, not {alpha}")


def step_warning(perturbation: Perturbation) -> str | None:
    """One line where the step size fits the ball badly, as the paper's does at 1/255; else None."""
    alpha = perturbation.params.get("alpha")
    if alpha is None:
        return None
    eps = perturbation.params["eps"]
    alpha_255 = f"{_exactly(alpha)}/255"
    if alpha > eps * (1 + 1e-9):
        return f"{perturbation.column}: the step {alpha_255} exceeds eps, so each step overshoots the ball"
    if alpha * perturbation.params["steps"] < eps * (1 - 1e-9):
        return f"{perturbation.column}: {perturbation.params['steps']} steps of {alpha_255} cannot reach eps"
    return None


def passes(perturbation: Perturbation) -> int:
    """How many forward passes' worth of work a sample costs (a gradient counts as two more)."""
    if perturbation.kind != "attack":
        return 1
    return 3 * perturbation.params.get("steps", 1) + 1


def torchattacks_version() -> str:
    return importlib.metadata.version("torchattacks")


@dataclass(frozen=True)
class Attacked:
    """What an attack did to a batch.

    Attributes:
        images: (N, C, H, W) in [0, 1]; a sample whose result was not finite holds its clean image.
        zero_gradient: (N,) bool, the first gradient was zero everywhere: there was nothing to follow.
        not_finite: (N,) bool, a gradient or the attacked image was not finite.
        deltas: (N,) float32, each sample's largest |change of a pixel|.
    """

    images: object
    zero_gradient: np.ndarray
    not_finite: np.ndarray
    deltas: np.ndarray


class BoundAttack:
    """An attack set up for one victim. Calling it attacks a batch and checks the result.

    Args:
        victim: Maps (N, C, H, W) pixels in [0, 1] to logits; in eval mode with frozen parameters.
    """

    def __init__(self, perturbation: Perturbation, victim) -> None:
        import torchattacks

        kind = ATTACKS[perturbation.name]
        self.perturbation = perturbation
        self._probe = _gradient_probe(victim)
        with redirect_stdout(io.StringIO()):  # it prints where a model has no parameters to show its device
            self._attack = getattr(torchattacks, kind.torchattacks_class)(self._probe, **perturbation.params)

    def __call__(self, images, labels, ids) -> Attacked:
        """Attack images (N, C, H, W) in [0, 1] with labels (N,); `ids` key the random start.

        Raises:
            RuntimeError: if the result leaves [0, 1] or the eps-ball.
        """
        self._attack.set_device(images.device)
        self._probe.start()
        with _keyed_start(self.perturbation, images, ids):
            adversarial = self._attack(images, labels).detach()
        return self._checked(images, adversarial)

    def _checked(self, images, adversarial) -> Attacked:
        import torch

        finite = torch.isfinite(adversarial).flatten(1).all(1)
        adversarial = torch.where(finite.view(-1, 1, 1, 1), adversarial, images)
        deltas = (adversarial - images).abs().flatten(1).amax(1).cpu().numpy()
        if adversarial.min() < 0 or adversarial.max() > 1:
            raise RuntimeError(f"{self.perturbation.column} left the range [0, 1]")
        if deltas.max() > self.perturbation.params["eps"] + BALL_TOLERANCE:
            raise RuntimeError(
                f"{self.perturbation.column} left its ball: it moved a pixel by {deltas.max()}"
            )
        zero, not_finite = self._probe.findings()
        return Attacked(adversarial, zero, not_finite | ~finite.cpu().numpy(), deltas)


def _gradient_probe(victim):
    """A module that passes its input on to the victim and looks at the gradients that come back."""
    import torch

    class GradientProbe(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.victim = victim
            self.training = False  # torchattacks puts the mode found here back, on everything below
            self.start()

        def start(self) -> None:
            self._zero = self._not_finite = None

        def findings(self) -> tuple[np.ndarray, np.ndarray]:
            return self._zero.cpu().numpy(), self._not_finite.cpu().numpy()

        def forward(self, images):
            if not images.requires_grad:
                return self.victim(images)
            images = images.clone()  # not the leaf: a model may work in place on what it is given
            images.register_hook(self._look)
            logits = self.victim(images)
            if not logits.requires_grad:
                raise self._impenetrable()
            return logits

        def _impenetrable(self) -> UserError:
            name = getattr(self.victim, "name", "the model")
            return UserError(f"{name} lets no gradient through to its input, so it cannot be attacked")

        def _look(self, gradient) -> None:
            if gradient is None:  # the logits have one, but it ends before the images
                raise self._impenetrable()
            largest = gradient.detach().abs().flatten(1).amax(1)  # NaN and infinity survive abs and amax
            not_finite = ~torch.isfinite(largest)
            if self._zero is None:
                # A sign attack that starts without a gradient never moves: the first one tells.
                self._zero, self._not_finite = largest == 0, not_finite
            else:
                self._not_finite = self._not_finite | not_finite

    return GradientProbe()


def _keyed_start(perturbation: Perturbation, images, ids):
    """Replace torchattacks' random start, and nothing else, by draws keyed by seed and sample id.

    torchattacks draws one ``uniform_(-eps, eps)`` for the whole batch from torch's global generator, so that
    a sample's start depends on its neighbours. Inside this context that one call yields our draws.
    """
    if perturbation.seed is None:
        return nullcontext()
    import torch
    from torch.overrides import TorchFunctionMode

    class KeyedStart(TorchFunctionMode):
        drawn = False

        def __torch_function__(self, func, types, args=(), kwargs=None):
            if not self.drawn and func is torch.Tensor.uniform_:
                self.drawn = True
                tensor, low, high = args
                unit = torch.from_numpy(start_noise(perturbation, ids, tensor.shape[1:])).to(tensor)
                return tensor.copy_(low + (high - low) * unit)
            return func(*args, **(kwargs or {}))

    return KeyedStart()


def start_noise(perturbation: Perturbation, ids, shape) -> np.ndarray:
    """U[0, 1) float32 of shape (N, *shape): a sample's draw depends on the attack seed and its id alone."""
    stream = zlib.crc32(b"attack start")
    draws = [np.random.default_rng((perturbation.seed, stream, int(sample))) for sample in ids]
    return np.stack([rng.random(tuple(shape), dtype=np.float32) for rng in draws])

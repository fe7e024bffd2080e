"""Attacks set up for a classifier, as a list of rounds.

A round is one restart of an attack, one target class of a targeted attack, or one member of AutoAttack. It
runs once over a batch, and the result for an image does not depend on the other images. Between rounds the
runner keeps the misclassified images and continues with the others. torchattacks and AutoAttack would do this
internally; here the runner does it, so that the random numbers of a round can be keyed by image.
"""

from __future__ import annotations

import importlib
import inspect
import io
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any, cast

import torch
import torchattacks
from torch import Tensor, nn

from robust_interp.attacks.excluded_classes import excluded
from robust_interp.attacks.probe import GradientProbe
from robust_interp.attacks.properties import passes_alone, restarts_of
from robust_interp.attacks.table import AUTOATTACK_PACKAGES, AttackType
from robust_interp.attacks.until_broken import pgd_until_broken
from robust_interp.core.errors import UserError
from robust_interp.core.texts import first_line_of
from robust_interp.store.cells import Perturbation

AUTOATTACK_TARGETS = 9  # target classes of AutoAttack's targeted APGD and FAB
BEYOND_ROUNDING = 1e-5  # share of the range of the logits that float32 rounding does not reach


@dataclass(frozen=True)
class Round:
    """One run of an attack.

    Attributes:
        run: Function that maps images (N, C, H, W) in [0, 1] and labels (N,) to attacked images.
        alone: Whether it must run on one image at a time.
        refills: Whether `run` accepts any number of images and splits them into full batches itself.
    """

    run: Callable[[Tensor, Tensor], Tensor]
    alone: bool = False
    refills: bool = False


def _set_attribute(attack: torchattacks.attack.Attack, name: str, value: object) -> None:
    """Set an attribute of an attack and register the attacks inside the value, as torchattacks does.

    torchattacks' own function creates a reference cycle that includes the value. It would keep every model
    and batch that an attack was given in memory until Python's garbage collector runs.
    """
    object.__setattr__(attack, name, value)
    for number, inner in enumerate(_attacks_in(value, set())):
        attack._attacks[f"{name}.{number}"] = inner
        for below, one in inner._attacks.items():
            attack._attacks[f"{name}.{below}"] = one


def _attacks_in(value: object, seen: set[int]) -> Iterator[torchattacks.attack.Attack]:
    if isinstance(value, torchattacks.attack.Attack):
        yield value
    if not isinstance(value, list | dict) or id(value) in seen:
        return
    seen.add(id(value))
    for item in [*value, *value.values()] if isinstance(value, dict) else value:
        yield from _attacks_in(item, seen)


torchattacks.attack.Attack.__setattr__ = _set_attribute


def rounds(perturbation: Perturbation, kind: AttackType, model: nn.Module, images: Tensor) -> list[Round]:
    """Return the rounds of an attack.

    Args:
        perturbation: The attack with all its parameters.
        kind: The entry of this attack in the table of attacks.
        model: Maps images (N, C, H, W) in [0, 1] to logits (N, classes). For an attack with ``stop=broken``
            it must be a `GradientProbe`. If it has an attribute `judge` that is not None, that is the
            classifier that is measured, and only its classes count.
        images: Example images (N, C, H, W), with the shape and device of the images that will be attacked.
    """
    engine = _until_broken if "stop" in perturbation.params else _ENGINES.get(perturbation.name, _plain)
    with redirect_stdout(io.StringIO()):  # torchattacks prints if a model has no parameters
        return engine(perturbation, kind, model, images)


def _plain(perturbation: Perturbation, kind: AttackType, model: nn.Module, images: Tensor) -> list[Round]:
    attack = _made(perturbation, kind, model, images)

    def run(x: Tensor, y: Tensor) -> Tensor:
        attack.seed = int(torch.randint(2**31, ()))  # of a generator that was seeded for this image
        return attack(x, y)

    return [Round(run if kind.own_seed else attack, kind.alone)] * restarts_of(perturbation)


def _pgd_l2(perturbation: Perturbation, kind: AttackType, model: nn.Module, images: Tensor) -> list[Round]:
    attack = _made(perturbation, kind, model, images)
    # torchattacks adds 1e-10 to the norm of each gradient, which is that of a mean loss. For confident models
    # and large batches that makes steps shorter than alpha, and the squares of the gradient vanish.
    attack.get_logits = lambda x: model(_with_scaled_gradient(x))
    return [Round(attack, kind.alone)] * restarts_of(perturbation)


def _with_scaled_gradient(images: Tensor) -> Tensor:
    """Return the images; each one's gradient arrives divided by its largest absolute value."""
    seen = images.view_as(images)
    if seen.requires_grad:
        seen.register_hook(_scaled)
    return seen


def _scaled(gradient: Tensor) -> Tensor:
    largest = gradient.abs().amax((1, 2, 3), keepdim=True)
    return torch.where(largest > 0, gradient / largest, gradient)


def _made(perturbation: Perturbation, kind: AttackType, model: nn.Module, images: Tensor) -> Any:
    """Build an attack of torchattacks or of a plug-in, with all its parameters."""
    arguments: dict[str, Any] = dict(perturbation.params)
    if kind.restarts:
        arguments.pop("restarts", None)
    target = arguments.pop("target", None)
    make = kind.torchattacks_class
    if isinstance(make, str):
        make = getattr(torchattacks, make)
    parameters = inspect.signature(make).parameters
    if "n_classes" in parameters:
        arguments["n_classes"] = _classes(model, images)
    if "max_epsilon" in parameters:  # as PIFGSM calls its radius
        arguments["max_epsilon"] = arguments.pop("eps")
    try:
        attack = make(model, **arguments)
    except (ValueError, TypeError, NotImplementedError) as error:  # such as a word that it does not know
        raise UserError(f"{perturbation.name}: {first_line_of(error)}") from error
    if hasattr(attack, "set_device"):
        attack.set_device(images.device)
    if target is not None:
        aim = _aim(model, target, _judged_classes(model, images))
        attack.set_mode_targeted_by_function(aim, quiet=True)
    return attack


def _aim(model: nn.Module, target: str | int, known: int | None) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a function that maps images and labels to the classes to aim at.

    If the target is the label of an image, the function returns the following class.

    Args:
        model: Maps images to logits.
        target: ``next``, ``least_likely`` or a class. The first two leave out classes that are excluded by a
            logit of -inf.
        known: Number of classes to choose from, the first ones of the logits; None means all.
    """

    @torch.no_grad()
    def classes(images: Tensor, labels: Tensor) -> Tensor:
        logits = model(images)
        left_out, logits = excluded(logits)[:, :known], logits[:, :known]
        if target == "least_likely":
            return logits.masked_fill(left_out, torch.inf).scatter(1, labels[:, None], torch.inf).argmin(1)
        others = (labels[:, None] + torch.arange(1, logits.shape[1], device=labels.device)) % logits.shape[1]
        first = left_out.gather(1, others).long().argmin(1, keepdim=True)
        following = others.gather(1, first)[:, 0]
        if target == "next":
            return following
        aimed = torch.full_like(labels, int(target))
        return torch.where(labels == aimed, following, aimed)

    return classes


@torch.no_grad()
def _judged_classes(model: nn.Module, images: Tensor) -> int | None:
    """Return the number of classes of the measured classifier; None if it is the attacked one."""
    judge = getattr(model, "judge", None)
    return None if judge is None else judge(images[:1].clone()).shape[1]


@torch.no_grad()
def _classes(model: nn.Module, images: Tensor) -> int:
    return _judged_classes(model, images) or model(images[:1]).shape[1]


@torch.no_grad()
def _has_more_classes(model: nn.Module, images: Tensor) -> bool:
    """Return whether the attacked classifier has a class that the measured one lacks."""
    known = _judged_classes(model, images)
    return known is not None and model(images[:1]).shape[1] > known


def _until_broken(
    perturbation: Perturbation, kind: AttackType, model: nn.Module, images: Tensor
) -> list[Round]:
    params, row_aware = perturbation.params, cast(GradientProbe, model)
    known = _judged_classes(model, images) if "target" in params else None

    def run(x: Tensor, y: Tensor) -> Tensor:
        if "target" not in params:
            return pgd_until_broken(row_aware, x, y, params)
        aim = _aim(model, cast(int | str, params["target"]), known)
        parts = zip(x.split(row_aware.max_batch), y.split(row_aware.max_batch), strict=True)
        return pgd_until_broken(row_aware, x, y, params, torch.cat([aim(*part) for part in parts]))

    return [Round(run, refills=True)] * restarts_of(perturbation)


def _apgd(perturbation: Perturbation, kind: AttackType, model: nn.Module, images: Tensor) -> list[Round]:
    params = perturbation.params
    attack = torchattacks.APGD(
        model,
        norm=params["norm"],
        eps=params["eps"],
        steps=params["steps"],
        loss="dlr" if perturbation.name == "apgd_dlr" else "ce",
    )
    attack.set_device(images.device)
    # Where the additional class wins, an image is not broken: APGD's own choice would be wrong.
    choose = _of_most_loss if _has_more_classes(model, images) else _strongest
    return [Round(lambda x, y: choose(attack.attack_single_run(x, y)))] * restarts_of(perturbation)


def _of_most_loss(found: tuple[Tensor, ...]) -> Tensor:
    """Return the iterate of an APGD run with the largest loss."""
    return found[0]


def _strongest(found: tuple[Tensor, ...]) -> Tensor:
    """Return the misclassified iterate of an APGD run, or the one with the largest loss if there is none."""
    most_loss, right, _, misclassified = found
    return torch.where(right.bool().view(-1, 1, 1, 1), most_loss, misclassified)


def _apgd_targeted(
    perturbation: Perturbation, kind: AttackType, model: nn.Module, images: Tensor
) -> list[Round]:
    params = perturbation.params
    attack = torchattacks.APGDT(model, norm=params["norm"], eps=params["eps"], steps=params["steps"])
    attack.set_device(images.device)

    def towards(place: int) -> Callable:
        def run(x: Tensor, y: Tensor) -> Tensor:
            attack.target_class = place  # place from the end of the sorted logits
            return _strongest(attack.attack_single_run(x, y))

        return run

    alone = kind.is_alone(perturbation.norm)
    places = range(2, 2 + min(perturbation.integer("targets"), _classes(model, images) - 1))
    return [Round(towards(place), alone) for place in places for _ in range(restarts_of(perturbation))]


def _square(perturbation: Perturbation, kind: AttackType, model: nn.Module, images: Tensor) -> list[Round]:
    params = perturbation.params
    attack = torchattacks.Square(model, norm=params["norm"], eps=params["eps"], n_queries=params["queries"])
    attack.set_device(images.device)
    attack.init_hyperparam(images)
    _fit_windows(attack, images)
    one = Round(lambda x, y: attack.attack_single_run(x, y)[1], kind.is_alone(perturbation.norm))
    return [one] * restarts_of(perturbation)


def _fit_windows(square: Any, images: Tensor) -> None:
    """Limit the windows of a Square attack to the shorter side of the images.

    Square computes the side of a window from the area of the image. In an image that is not square, a
    window can be larger than the shorter side. It is then cut off in Linf, and the attack fails in L2.
    """
    height, width = images.shape[2:]
    side = min(height, width)
    if square.norm == "L2":
        side -= 1 - side % 2  # Square rounds the side up to an odd number
    select, most = type(square).p_selection, side**2 / (height * width)
    itself = weakref.proxy(square)  # a plain reference would be a cycle and keep the model in memory
    square.p_selection = lambda query: min(select(itself, query), most)


def _cw(perturbation: Perturbation, kind: AttackType, model: nn.Module, images: Tensor) -> list[Round]:
    attack = _made(_without_eps(perturbation), kind, model, images)
    # torchattacks masks logits by a product with 0, which is right only if no logit is negative. So the
    # logits are shifted; their differences stay the same.
    attack.get_logits = lambda x: _from_zero(model(x))
    # A pixel of exactly 0 or 1 would be at infinity in tanh space, where its gradient is 0.
    attack.inverse_tanh_space = lambda x: torch.atanh((2 * x - 1) * (1 - 1e-6))
    return [Round(attack, kind.alone)]


def _from_zero(logits: Tensor) -> Tensor:
    return logits - logits.detach().amin(1, keepdim=True)


def _deepfool(perturbation: Perturbation, kind: AttackType, model: nn.Module, images: Tensor) -> list[Round]:
    attack = _made(_without_eps(perturbation), kind, model, images)
    overshoot = perturbation.number("overshoot") or 0.0

    def run(x: Tensor, y: Tensor) -> Tensor:
        found = attack(x, y)
        # torchattacks applies the overshoot to each step. If pixels are clipped, it ends on the decision
        # boundary, where rounding decides. The paper applies the overshoot to the whole change.
        further = (x + (1 + overshoot) * (found - x)).clamp(0, 1)
        return torch.where(_wrong(model, found, y).view(-1, 1, 1, 1), found, further)

    return [Round(run, kind.alone)]


@torch.no_grad()
def _wrong(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Return which images are misclassified by more than rounding, (N,) bool."""
    logits = model(images)
    ahead = logits.amax(1) - logits.gather(1, labels[:, None])[:, 0]
    return ahead > BEYOND_ROUNDING * (logits.amax(1) - logits.amin(1))


def _without_eps(perturbation: Perturbation) -> Perturbation:
    params = {key: value for key, value in perturbation.params.items() if key != "eps"}
    return replace(perturbation, params=params)


def _autoattack(
    perturbation: Perturbation, kind: AttackType, model: nn.Module, images: Tensor
) -> list[Round]:
    """Return AutoAttack's standard version as rounds: APGD-CE, targeted APGD, targeted FAB, Square.

    AutoAttack's own loop is not used. It draws random numbers for batches of the images that are still
    correct, and its nine target classes need a data set of at least ten classes.
    """
    attack = _make_autoattack(model, perturbation.params, images.device)
    apgd, targeted, fab, square = attack.apgd, attack.apgd_targeted, attack.fab, attack.square
    for member in (apgd, targeted, square):
        member.init_hyperparam(images)
    _fit_windows(square, images)
    apgd.loss = "ce"
    places = range(2, 2 + min(AUTOATTACK_TARGETS, _classes(model, images) - 1))
    is_alone = passes_alone(perturbation) > 0

    def apgd_towards(place: int) -> Callable:
        def run(x: Tensor, y: Tensor) -> Tensor:
            targeted.y_target = _at_place(model, x, place)
            return _strongest(targeted.attack_single_run(x, y))

        return run

    def fab_towards(place: int) -> Callable:
        @torch.no_grad()
        def run(x: Tensor, y: Tensor) -> Tensor:
            fab.target_class = place
            found = fab.attack_single_run(x, y, use_rand_start=False, is_targeted=True)
            return _within(x, found, perturbation)

        return run

    return [
        Round(lambda x, y: _strongest(apgd.attack_single_run(x, y))),
        *(Round(apgd_towards(place)) for place in places),
        *(Round(fab_towards(place)) for place in places),
        Round(lambda x, y: square.attack_single_run(x, y)[1], is_alone),
    ]


def _make_autoattack(model: nn.Module, params: Mapping[str, Any], device: torch.device) -> Any:
    """Build AutoAttack from the installed package; the packages' constructors take different arguments."""
    make = _autoattack_module().AutoAttack
    takes = inspect.signature(make).parameters
    chosen = {"version": "standard", "device": device, "seed": 0, "verbose": False}
    return make(
        model,
        norm=params["norm"],
        eps=params["eps"],
        **{key: value for key, value in chosen.items() if key in takes},
    )


def _autoattack_module() -> ModuleType:
    for package in AUTOATTACK_PACKAGES:
        try:
            return importlib.import_module(package)
        except ModuleNotFoundError:
            continue
    raise AssertionError("environment() refuses autoattack where there is no package of it")


@torch.no_grad()
def _at_place(model: nn.Module, images: Tensor, place: int) -> Tensor:
    """Return the class at this place from the end of the sorted logits, (N,); 2 is the second largest."""
    return model(images).sort(dim=1)[1][:, -place]


def distance(change: Tensor, norm: str) -> Tensor:
    """Return the size of each image's change, (N,) float64.

    Args:
        change: Difference of the images, (N, C, H, W).
        norm: ``Linf``, ``L2``, ``L1`` or ``L0``.
    """
    flat = change.detach().flatten(1).double()
    if norm == "L0":  # a pixel counts once, even if several channels changed
        return (change != 0).any(1).flatten(1).sum(1).double()
    return torch.linalg.vector_norm(flat, {"Linf": torch.inf, "L2": 2, "L1": 1}[norm], dim=1)


def _within(images: Tensor, found: Tensor, perturbation: Perturbation) -> Tensor:
    """Return the attacked images, but the clean image where the attacked one is outside the ball."""
    outside = distance(found - images, perturbation.norm) > (perturbation.number("eps") or 0.0)
    return torch.where(outside.view(-1, 1, 1, 1), images, found)


_ENGINES: dict[str, Callable[[Perturbation, AttackType, nn.Module, Tensor], list[Round]]] = {
    **dict.fromkeys(("pgd_l2", "PGDL2"), _pgd_l2),  # a class by its name is mended as well
    "apgd_ce": _apgd,
    "apgd_dlr": _apgd,
    "apgd_t": _apgd_targeted,
    "square": _square,
    **dict.fromkeys(("cw", "CW"), _cw),
    **dict.fromkeys(("deepfool", "DeepFool"), _deepfool),
    "autoattack": _autoattack,
}

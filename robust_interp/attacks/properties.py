"""Facts about an attack before it runs: requirements, cost and warnings."""

from __future__ import annotations

import functools
import importlib.metadata
import math
from collections.abc import Sequence

from robust_interp.attacks.parse import exact_255
from robust_interp.attacks.table import (
    ATTACKS,
    AUTOATTACK_PACKAGES,
    OF_SQUARE_IMAGES,
    OF_THREE_CHANNELS,
    type_of,
)
from robust_interp.core.errors import UserError
from robust_interp.store.cells import Perturbation

_SHARE_OF_DIMENSION = {"Linf": 0, "L2": 0.5, "L1": 1}  # the cube [0, 1]^d has diameter d ** share


def check_fits(perturbation: Perturbation, classes: int, shape: Sequence[int]) -> None:
    """Refuse an attack that does not fit the dataset.

    Args:
        perturbation: An attack.
        classes: How many there are: fewer than its loss is defined for, or its target asks for, are too few.
        shape: (C, H, W) of an image. A radius above the diameter of the cube [0, 1]^(C H W), which every
            image lies in, is a mistake; the tiles that Square starts from in L2 fit some sizes only, and
            some classes of torchattacks take RGB or square images alone.

    Raises:
        UserError: in these cases.
    """
    pixels = math.prod(shape)
    norm, eps = perturbation.norm, perturbation.number("eps") or 0
    if eps > (diameter := pixels ** _SHARE_OF_DIMENSION.get(norm, 1)):
        raise UserError(
            f"{perturbation.name}: an {norm} eps must be at most {diameter:.4g}, the largest distance "
            f"between two images of {pixels} values in [0, 1], not {eps:g}"
        )
    name, kind = perturbation.name, type_of(perturbation.name)
    if name in ("square", "autoattack") and norm == "L2" and not _tiles_fit(*shape[1:]):
        raise UserError(
            f"{name}(norm=L2) cannot be run on images of {shape[1]}x{shape[2]}: the tiles that Square starts "
            "from do not fit into them; use apgd_ce(norm=L2) and apgd_t(norm=L2)"
        )
    if name in OF_THREE_CHANNELS and shape[0] != 3:
        raise UserError(f"{name} needs images of 3 channels, and these have {shape[0]}: use mifgsm")
    if name in OF_SQUARE_IMAGES and shape[1] != shape[2]:
        raise UserError(f"{name} needs square images, and these are {shape[1]}x{shape[2]}: use square")
    if classes < kind.classes:
        raise UserError(
            f"{name} needs at least {kind.classes} classes, and the dataset has "
            f"{classes}: use apgd_ce and square"
        )
    target = perturbation.params.get("target")
    if isinstance(target, int) and target >= classes:
        raise UserError(f"{name}: target must be one of the classes 0 to {classes - 1}, not {target}")


def _tiles_fit(height: int, width: int) -> bool:
    """Whether the tiles of Square's start in L2, a fifth of the height wide, end within an image."""
    tile = height // 5
    start = (height - 5 * tile) // 2
    return tile > 0 and (tile == 1 or all(start + side // tile * tile <= side for side in (height, width)))


def step_warning(perturbation: Perturbation) -> str | None:
    """One line where an attack's step size fits the ball badly, as the paper's does at 1/255; else None."""
    alpha, eps = (perturbation.number(key) for key in ("alpha", "eps"))
    if alpha is None or not eps:  # at a radius of 0 there is no step
        return None
    step = f"{exact_255(alpha)}/255" if perturbation.norm == "Linf" else f"{alpha:g}"
    if alpha > eps * (1 + 1e-9):
        return f"{perturbation.column}: the step {step} exceeds eps, so each step overshoots the ball"
    steps = perturbation.integer("steps")
    if alpha * steps < eps * (1 - 1e-9):
        return f"{perturbation.column}: {steps} steps of {step} cannot reach eps"
    return None


def pace_warning(perturbation: Perturbation) -> str | None:
    """One line where an attack is slow because each sample is attacked by itself; else None."""
    if perturbation.name in ATTACKS or not is_alone(perturbation):
        return None
    return (
        f"{perturbation.column}: runs on one sample at a time, which is slow: the result of torchattacks' "
        f"{perturbation.name} for a sample may depend on the others in its batch"
    )


def passes(perturbation: Perturbation) -> int:
    """Largest cost of a sample in forward passes (a gradient counts as two more)."""
    if perturbation.kind != "attack":
        return 1
    work = type_of(perturbation.name).work(perturbation.params)
    return work * perturbation.integer("restarts") + 1


def gradients(perturbation: Perturbation) -> int:
    """How many of these passes a sample's gradient is taken of, at most."""
    follows = perturbation.kind == "attack" and type_of(perturbation.name).differentiates
    return passes(perturbation) // 3 if follows else 0


def is_alone(perturbation: Perturbation) -> bool:
    """Whether each sample is attacked by itself, which takes longer than the number of passes says."""
    return perturbation.kind == "attack" and type_of(perturbation.name).alone


def may_stop_early(perturbation: Perturbation) -> bool:
    """Whether a sample may take less work than `passes` says, because it is broken before."""
    if perturbation.kind != "attack":
        return False
    once = perturbation.integer("restarts") == 1 and "stop" not in perturbation.params
    return type_of(perturbation.name).only_right or not once


def environment(perturbation: Perturbation) -> dict[str, str]:
    """The version of the package that computes the attack.

    Raises:
        UserError: if it is AutoAttack's and is not there.
    """
    if perturbation.name != "autoattack":
        return {"torchattacks": torchattacks_version()}
    for package in AUTOATTACK_PACKAGES:
        try:
            return {"autoattack": f"{package} {importlib.metadata.version(package)}"}
        except importlib.metadata.PackageNotFoundError:
            continue
    raise UserError("autoattack needs an extra package: pip install pyautoattack==0.2.0")


@functools.cache  # asked for by every cell of a plan, of which there may be thousands
def torchattacks_version() -> str:
    """The version that is installed."""
    return importlib.metadata.version("torchattacks")

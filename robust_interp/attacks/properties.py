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
    AUTOATTACK_QUERIES,
    OF_SQUARE_IMAGES,
    OF_THREE_CHANNELS,
    type_of,
)
from robust_interp.core.errors import UserError
from robust_interp.core.extras import install
from robust_interp.store.cells import Perturbation

_SHARE_OF_DIMENSION = {"Linf": 0, "L2": 0.5, "L1": 1}  # the cube [0, 1]^d has diameter d ** share


def check_fits(perturbation: Perturbation, classes: int, shape: Sequence[int]) -> None:
    """Refuse an attack that does not fit the data set.

    Args:
        perturbation: The attack.
        classes: Number of classes.
        shape: Shape (C, H, W) of an image.

    Raises:
        UserError: if the radius exceeds the diameter of the cube [0, 1]^(C H W); if the tiles that Square
            starts from in L2 do not fit the image; if a class of torchattacks needs RGB or square images; or
            if there are too few classes for the loss or the target of the attack.
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
            f"{name} needs at least {kind.classes} classes, and the data set has "
            f"{classes}: use apgd_ce and square"
        )
    target = perturbation.params.get("target")
    if isinstance(target, int) and target >= classes:
        raise UserError(f"{name}: target must be one of the classes 0 to {classes - 1}, not {target}")


def _tiles_fit(height: int, width: int) -> bool:
    """Return whether the tiles of Square's start in L2 lie inside an image; their side is height // 5."""
    tile = height // 5
    start = (height - 5 * tile) // 2
    return tile > 0 and (tile == 1 or all(start + side // tile * tile <= side for side in (height, width)))


def step_warning(perturbation: Perturbation) -> str | None:
    """Return a one-line warning if the step size does not suit the radius, else None.

    The default step of 2/255 at a radius of 1/255 is an example.
    """
    alpha, eps = (perturbation.number(key) for key in ("alpha", "eps"))
    if alpha is None or not eps:  # an attack of radius 0 cannot take a step
        return None
    step = f"{exact_255(alpha)}/255" if perturbation.norm == "Linf" else f"{alpha:g}"
    if alpha > eps * (1 + 1e-9):
        usual = (
            ATTACKS[perturbation.name].defaults["alpha"] if perturbation.name in ("ifgsm", "pgd") else None
        )
        paper = " (the default, which is the paper's; alpha=eps/4 is smaller)" if alpha == usual else ""
        return f"{perturbation.column}: the step {step}{paper} exceeds eps, so each step overshoots the ball"
    steps = perturbation.integer("steps")
    if alpha * steps < eps * (1 - 1e-9):
        return f"{perturbation.column}: {steps} steps of {step} cannot reach eps"
    return None


def pace_warning(perturbation: Perturbation) -> str | None:
    """Return a one-line warning if a torchattacks class is slow because it attacks one image at a time."""
    if perturbation.name in ATTACKS or not is_alone(perturbation):
        return None
    return (
        f"{perturbation.column}: runs on one image at a time, which is slow: the result of torchattacks' "
        f"{perturbation.name} for an image may depend on the others in its batch"
    )


def restarts_of(perturbation: Perturbation) -> int:
    """Return how often the whole attack runs; a parameter ``restarts`` may also be the attack's own."""
    return perturbation.integer("restarts") if type_of(perturbation.name).restarts else 1


def passes(perturbation: Perturbation) -> int:
    """Return the largest cost of an image in forward passes; a gradient counts as two more passes."""
    if perturbation.kind != "attack":
        return 1
    work = type_of(perturbation.name).work(perturbation.params)
    return work * restarts_of(perturbation) + 1


def gradients(perturbation: Perturbation) -> int:
    """Return the largest number of gradients that are computed for an image."""
    follows = perturbation.kind == "attack" and type_of(perturbation.name).differentiates
    return passes(perturbation) // 3 if follows else 0


def is_alone(perturbation: Perturbation) -> bool:
    """Return whether the whole attack runs on one image at a time, which is slower than `passes` suggests."""
    return perturbation.kind == "attack" and type_of(perturbation.name).is_alone(perturbation.norm)


def passes_alone(perturbation: Perturbation) -> int:
    """Return the part of `passes` on one image at a time: all, none, or AutoAttack's Square in L2."""
    if is_alone(perturbation):
        return passes(perturbation)
    is_in_part = perturbation.name == "autoattack" and ATTACKS["square"].is_alone(perturbation.norm)
    return AUTOATTACK_QUERIES if is_in_part else 0


def may_stop_early(perturbation: Perturbation) -> bool:
    """Return whether the attack may stop early on an image, so that it costs less than `passes` gives."""
    if perturbation.kind != "attack":
        return False
    once = restarts_of(perturbation) == 1 and "stop" not in perturbation.params
    return type_of(perturbation.name).skips_misclassified or not once


def is_judged(perturbation: Perturbation) -> bool:
    """Return whether the images that an attack runs on depend on which ones are broken already.

    A parameter ``restarts`` that is the attack's own counts, too: the answer is in the keys of stored cells.
    """
    return type_of(perturbation.name).skips_misclassified or perturbation.integer("restarts") > 1


def is_by_order(perturbation: Perturbation) -> bool:
    """Return whether the attack depends on the order of the logits, and not only on a loss of all logits."""
    return type_of(perturbation.name).by_order or "stop" in perturbation.params


def environment(perturbation: Perturbation) -> dict[str, str]:
    """Return the name and version of the package that computes the attack.

    Raises:
        UserError: if the attack is AutoAttack and no package of it is installed.
    """
    if perturbation.name != "autoattack":
        kind = type_of(perturbation.name)
        # Results without a mark had, in this order: Pixle's own restarts taken for runs of the whole attack;
        # the same draws for every image and seed; steps shorter than alpha where the loss nearly vanishes;
        # negative logits masked by 0, and pixels of 0 and 1 that could not move.
        marks = {
            "restarts": "of the attack" if not kind.restarts and "restarts" in kind.defaults else "",
            "seed": "of the image" if kind.own_seed else "",
            "step": "alpha" if perturbation.name in ("pgd_l2", "PGDL2") else "",
            "logits": "from 0" if perturbation.name == "CW" else "",
        }
        return {"torchattacks": torchattacks_version()} | {key: mark for key, mark in marks.items() if mark}
    for package in AUTOATTACK_PACKAGES:
        try:
            return {"autoattack": f"{package} {importlib.metadata.version(package)}"}
        except importlib.metadata.PackageNotFoundError:
            continue
    raise UserError(f"autoattack needs an extra package: {install('autoattack')}")


@functools.cache  # called for every cell of a plan, possibly thousands
def torchattacks_version() -> str:
    """Return the installed version of torchattacks."""
    return importlib.metadata.version("torchattacks")

"""Turn attack specs, as users write them, into perturbations with all parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeGuard

from robust_interp.attacks.table import ATTACKS, AttackType, type_of
from robust_interp.core.errors import UserError
from robust_interp.core.numeric import is_real
from robust_interp.core.specs import OfEps, Scalar, Spec, parse_spec, split_specs
from robust_interp.store.cells import FLOAT32, Perturbation, attack_column, in_255

TARGETS = ("next", "least_likely")  # other values of `target` than the number of a class

_NORMS = {"linf": "Linf", "l2": "L2"}  # torchattacks' FAB lists L1, too, and fails there


def parse_attacks(
    text: str, eps: Sequence[float], defaults: Mapping, seed: int, precision: str = FLOAT32
) -> list[Perturbation]:
    """Return the perturbations of a comma-separated list of attack specs, without duplicates.

    Args:
        text: The specs, such as ``fgsm, pgd(steps=40), pgd_l2(eps=0.5)``; ``none`` gives an empty list.
        eps: Linf radii in [0, 1] pixels, used for every Linf spec without eps.
        defaults: Attack parameters of the data set; they replace the defaults in the table of attacks. They
            do not apply to classes of torchattacks.
        seed: The attack seed, used for attacks that are random.
        precision: Precision of the gradients, ``float32``, ``tf32`` or ``bf16``. Attacks without gradients
            always use float32.

    Raises:
        UserError: for an unknown attack or parameter, a value out of range, or different attacks with the
            same column.
    """
    if text.strip() == "none":
        return []
    specs = [parse_spec(part.removeprefix("torchattacks.")) for part in split_specs(text)]
    if not specs:
        raise UserError("no attack given; use none to measure without attacks")
    found: dict[str, Perturbation] = {}
    for spec in specs:
        kind = type_of(spec.name)
        norm = _norm(spec, kind)
        for radius in _radii(spec, kind, norm, eps):
            usual = defaults if spec.name in ATTACKS else {}
            perturbation = _perturbation(spec, kind, norm, radius, usual, seed)
            if kind.differentiates:
                perturbation = replace(perturbation, precision=precision)
            if not _is_same(perturbation, found.setdefault(perturbation.column, perturbation)):
                raise UserError(f"two different attacks would share the column {perturbation.column}")
    return list(found.values())


def _is_same(one: Perturbation, other: Perturbation) -> bool:
    """Return whether two attacks differ by no more than the rounding in their column."""
    if (one.name, one.params.keys()) != (other.name, other.params.keys()):
        return False
    return all(_is_close(value, other.params[key]) for key, value in one.params.items())


def _is_close(one: Scalar, other: Scalar) -> bool:
    return one == other or (is_real(one) and is_real(other) and math.isclose(one, other))


def _norm(spec: Spec, kind: AttackType) -> str:
    if "norm" not in kind.defaults or "norm" not in spec.params:
        return str(kind.defaults.get("norm", kind.norm))
    norm = _NORMS.get(str(spec.params["norm"]).lower())
    if norm is None:
        raise UserError(f"{spec.name}: norm must be Linf or L2, not {spec.params['norm']}")
    return norm


def _radii(spec: Spec, kind: AttackType, norm: str, eps: Sequence[float]) -> Sequence[Scalar | OfEps | None]:
    if "eps" in spec.params:
        return [spec.params["eps"]]
    if kind.minimal or not kind.takes_eps:
        return [None]
    if norm != "Linf":
        chosen = f"norm={norm}, " if "norm" in kind.defaults else ""
        raise UserError(
            f"{spec.name} needs an {norm} radius in its spec, e.g. {spec.name}({chosen}eps=0.5): "
            "--eps applies to Linf attacks only"
        )
    return eps


def _perturbation(
    spec: Spec, kind: AttackType, norm: str, radius: Scalar | OfEps | None, defaults: Mapping, seed: int
) -> Perturbation:
    if unexpected := set(spec.params) - set(kind.takes):
        listed = ", ".join(kind.takes) or "none"
        raise UserError(f"{spec.name} has no parameter {min(unexpected)!r}; it takes {listed}")
    # A radius of 0, possible only in a spec, is a control: the accuracy must equal the clean accuracy.
    eps = None if radius is None else 0.0 if is_real(radius) and radius == 0 else check_eps(radius, norm)
    usual = dict(kind.defaults) | {key: value for key, value in defaults.items() if key in kind.defaults}
    usual = {key: _absolute(value, eps) for key, value in usual.items()}
    params = usual | {key: _absolute(value, eps) for key, value in spec.params.items() if key != "eps"}
    if "norm" in kind.defaults:
        params["norm"] = norm
    _check_params(spec.name, kind, params, norm, is_control=eps == 0)
    # 1 and 1.0 are one value, but two texts in the key of a cell.
    params = {key: usual[key] if value == usual.get(key) else value for key, value in params.items()}
    if kind.restarts and params.get("restarts") == 1:
        del params["restarts"]
    changed = {key: value for key, value in params.items() if key != "norm" and value != usual.get(key)}
    return Perturbation(
        "attack",
        spec.name,
        _column(spec.name, norm, eps, changed),
        params if eps is None else {"eps": eps, **params},
        seed=seed if kind.random else None,
        norm=norm,
    )


def _absolute(value: Scalar | OfEps, eps: float | None) -> Scalar:
    if not isinstance(value, OfEps):
        return value
    if eps is None:
        raise UserError("a fraction of eps needs an eps in the spec")
    return value.factor * eps


def _column(name: str, norm: str, eps: float | None, changed: Mapping) -> str:
    shown = {
        key: f"{exact_255(value)}/255" if key == "alpha" and norm == "Linf" else value
        for key, value in changed.items()
    }
    brackets = f"({','.join(f'{key}={value}' for key, value in shown.items())})" if shown else ""
    radius = eps if eps is None or norm != "Linf" else in_255(eps)
    return attack_column(name, norm, radius, brackets)


def exact_255(pixels: float) -> str:
    """Return a distance in [0, 1] pixels as text in units of 1/255, with ten significant digits."""
    return f"{in_255(pixels):.10g}"


def check_eps(eps: object, norm: str = "Linf") -> float:
    """Return the radius `eps`, in [0, 1] pixels and in `norm`, after a check of its range.

    Raises:
        UserError: if it is outside (0, 1] for Linf, or not above 0 for another norm.
    """
    if _is_distance(eps, norm):
        return float(eps)
    if norm == "Linf":
        raise UserError(f"eps must be above 0 and at most 1 in [0, 1] pixels (such as 8/255), not {eps}")
    raise UserError(f"an {norm} eps must be a number above 0, in [0, 1] pixels (such as 0.5), not {eps}")


def _is_distance(value: object, norm: str) -> TypeGuard[float]:
    if not is_real(value):
        return False
    return 0 < value <= (1 if norm == "Linf" else math.inf) and value != math.inf  # false for NaN


def _check_params(name: str, kind: AttackType, params: Mapping, norm: str, is_control: bool) -> None:
    for key, value in params.items():
        if key == "alpha":
            if not _is_distance(value, norm) and not (value == 0 and is_control):
                most = "above 0 and at most 1" if norm == "Linf" else "a number above 0,"
                raise UserError(f"{name}: alpha must be {most} in [0, 1] pixels, not {value}")
        elif key == "target":
            if value not in TARGETS and not _is_whole(value, 0):
                raise UserError(f"{name}: target must be {', '.join(TARGETS)} or a class, not {value}")
        elif key == "stop":
            if value != "broken":
                raise UserError(f"{name}: stop must be broken, not {value}")
        elif key == "restarts" or (key not in kind.reals and _is_whole(kind.defaults.get(key), 1)):
            if not _is_whole(value, 1):
                raise UserError(f"{name}: {key} must be a whole number of at least 1, not {value}")
        elif key != "norm":
            _check_like(name, key, value, kind.defaults[key])


def _check_like(name: str, key: str, value: object, usual: object) -> None:
    """Refuse a parameter whose type differs from that of its default `usual`."""
    if isinstance(usual, bool | str):
        if type(value) is not type(usual):
            what = "a word" if isinstance(usual, str) else "True or False"
            raise UserError(f"{name}: {key} must be {what}, not {value}")
    elif not is_real(value) or not 0 <= value < math.inf:
        raise UserError(f"{name}: {key} must be a number of at least 0, not {value}")


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least

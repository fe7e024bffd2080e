"""The table of attacks, and the specs that name them: ``pgd(eps=2/255, alpha=eps/4, steps=40)``.

In a spec eps and alpha are distances in [0, 1] pixels, as in torchattacks; those of an Linf attack are at
most 1, and its eps may be left to the command's list of radii. An L2 radius is given only in a spec. No torch
here, so that a command line can be read without it; a class of torchattacks that has no name of its own here
is looked up there, which imports it.
"""

from __future__ import annotations

import importlib.metadata
import inspect
import io
import math
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from numbers import Real

from robust_interp.cells import Perturbation, in_255
from robust_interp.errors import UserError
from robust_interp.registry import OfEps, Registry, Spec, parse_spec, split_specs, unknown

TARGETS = ("next", "least_likely")  # beside a class's number
AUTOATTACK_PACKAGES = ("pyautoattack", "autoattack")  # RobustBench's dependency, and the authors' own
_NORMS = {"linf": "Linf", "l2": "L2", "l1": "L1"}
_SHARE_OF_DIMENSION = {"Linf": 0, "L2": 0.5, "L1": 1}  # the cube [0, 1]^d has diameter d ** share


def _steps(params: Mapping) -> int:
    """A step is a forward pass and a gradient, which counts as two more."""
    return 3 * params.get("steps", 1)


@dataclass(frozen=True)
class AttackType:
    """A registered attack.

    Attributes:
        torchattacks_class: Name of the class in torchattacks, or any callable that is made with (model,
            **parameters) and called with (images, labels).
        defaults: The parameters it takes besides eps, at the paper's values. A norm among them can be chosen.
        random: Whether it draws; its results then depend on the attack seed, and it can be restarted.
        norm: What its ball is measured in.
        gradient: Whether it follows gradients; a sample without one is then not counted as robust.
        minimal: Whether it looks for the smallest change. Its eps is optional, and a larger change found is
            none.
        only_right: Whether samples that are wrong when clean are left as they are.
        alone: Whether it must be given one sample at a time, because its samples would share a decision.
        targeted: Whether it can aim at a class.
        classes: The least number of classes that its loss is defined for.
        work: Forward passes' worth of work a sample, without restarts.
        takes_eps: Whether it has a radius at all.
        restarts: Whether a random one may be started several times, of which the worst is kept.
    """

    torchattacks_class: str | Callable
    defaults: Mapping[str, float | int | str | OfEps]
    random: bool = False
    norm: str = "Linf"
    gradient: bool = True
    minimal: bool = False
    only_right: bool = False
    alone: bool = False
    targeted: bool = False
    classes: int = 2
    work: Callable[[Mapping], int] = field(default=_steps, compare=False)
    takes_eps: bool = True
    restarts: bool = True


_APGD = {"norm": "Linf", "steps": 100}  # AutoAttack's steps
ATTACKS: Registry[AttackType] = Registry("attack", group="robust_interp.attacks", holds=AttackType)
ATTACKS.add("fgsm", AttackType("FGSM", {}, targeted=True))
ATTACKS.add("ifgsm", AttackType("BIM", {"alpha": 2 / 255, "steps": 20}, targeted=True))
ATTACKS.add("pgd", AttackType("PGD", {"alpha": 2 / 255, "steps": 20}, random=True, targeted=True))
ATTACKS.add("mifgsm", AttackType("MIFGSM", {"alpha": 2 / 255, "steps": 20, "decay": 1.0}, targeted=True))
ATTACKS.add(
    "pgd_l2",
    AttackType("PGDL2", {"alpha": OfEps(0.2), "steps": 20}, random=True, norm="L2", targeted=True),
)
ATTACKS.add("apgd_ce", AttackType("APGD", _APGD, random=True, only_right=True))
ATTACKS.add("apgd_dlr", AttackType("APGD", _APGD, random=True, only_right=True, classes=3))
ATTACKS.add(
    "apgd_t",
    AttackType(
        "APGDT",
        _APGD | {"targets": 9},
        random=True,
        only_right=True,
        classes=4,
        work=lambda params: 3 * params["steps"] * params["targets"],
    ),
)
ATTACKS.add(
    "square",
    AttackType(
        "Square",
        {"norm": "Linf", "queries": 1000},
        random=True,
        gradient=False,
        only_right=True,
        work=lambda params: params["queries"],
    ),
)
ATTACKS.add(
    "cw",  # alone: torchattacks stops all samples when the sum of their costs rises
    AttackType(
        "CW",
        {"c": 1.0, "kappa": 0.0, "steps": 50, "lr": 0.01},
        norm="L2",
        minimal=True,
        only_right=True,
        alone=True,
        targeted=True,
    ),
)
ATTACKS.add(
    "deepfool",
    AttackType(
        "DeepFool",
        {"steps": 50, "overshoot": 0.02},
        norm="L2",
        minimal=True,
        only_right=True,
        alone=True,
        work=lambda params: 60,  # about three steps, with a gradient for each of ten classes
    ),
)
ATTACKS.add(
    "autoattack",
    AttackType(
        "AutoAttack",
        {"norm": "Linf"},
        random=True,
        gradient=False,  # its Square finds what has none
        only_right=True,
        classes=4,
        work=lambda params: 3 * 100 * (1 + 9 + 9) + 5000,
        restarts=False,
    ),
)

# torchattacks classes that are named as they are. What is said here of a class is tested on it.
_OTHER_NORMS = {
    **dict.fromkeys(("CW", "PGDL2", "PGDRSL2", "DeepFool", "EADEN", "GN"), "L2"),
    **dict.fromkeys(("JSMA", "SparseFool", "OnePixel", "Pixle"), "L0"),
    "EADL1": "L1",
}
_DRAWS_NOTHING = {
    "VANILA",
    "FGSM",
    "BIM",
    "MIFGSM",
    "NIFGSM",
    "SINIFGSM",
    "DeepFool",
    "CW",
    "JSMA",
    "EADL1",
    "EADEN",
}
_WITHOUT_GRADIENT = {"VANILA", "GN", "Square", "SPSA", "OnePixel", "Pixle"}
_IN_BATCHES = {
    "VANILA",
    "FGSM",
    "BIM",
    "RFGSM",
    "FFGSM",
    "PGD",
    "EOTPGD",
    "MIFGSM",
    "NIFGSM",
    "SINIFGSM",
    "VMIFGSM",
    "VNIFGSM",
    "TPGD",
    "PGDL2",
}
_NOT_BY_CLASS = {"MultiAttack", "LGV", "AutoAttack"}
_OURS_TO_SET = {"self", "model", "eps", "seed", "verbose", "n_classes"}


def type_of(name: str) -> AttackType:
    """The attack of that name, or the torchattacks class.

    Raises:
        UserError: if there is none, with the near names.
    """
    return ATTACKS[name] if name in ATTACKS else _of_class(name)


@cache
def _of_class(name: str) -> AttackType:
    import torch
    import torchattacks

    classes = [each for each in torchattacks.__all__ if each not in _NOT_BY_CLASS]
    if name not in classes:
        error = unknown("attack", name, [*ATTACKS, *classes])
        raise error if "did you mean" in str(error) else unknown("attack", name, ATTACKS)
    found = getattr(torchattacks, name)
    parameters = inspect.signature(found.__init__).parameters
    with redirect_stdout(io.StringIO()):
        modes = found(torch.nn.Identity()).supported_mode
    return AttackType(
        name,
        {
            key: parameter.default
            for key, parameter in parameters.items()
            if key not in _OURS_TO_SET and isinstance(parameter.default, bool | int | float | str)
        },
        random=name not in _DRAWS_NOTHING,
        norm=_OTHER_NORMS.get(name, "Linf"),
        gradient=name not in _WITHOUT_GRADIENT,
        alone=name not in _IN_BATCHES,
        targeted="targeted" in modes,
        takes_eps="eps" in parameters,
        restarts=False,
    )


def resolve(text: str, eps: list[float], defaults: Mapping, seed: int) -> list[Perturbation]:
    """Perturbations for a comma-separated list of attack specs; 'none' is empty.

    Args:
        eps: Linf radii in [0, 1] pixels that each Linf spec without its own eps is measured at.
        defaults: The dataset's parameters, where they differ from the paper's. A torchattacks class that is
            named as such keeps its own.
        seed: The attack seed, for attacks that are random.

    Raises:
        UserError: for an unknown attack or parameter, or a value out of range.
    """
    if text.strip() == "none":
        return []
    specs = [parse_spec(part.removeprefix("torchattacks.")) for part in split_specs(text)]
    if not specs:
        raise UserError("no attack named; say none to measure without")
    found = {}
    for spec in specs:
        kind = type_of(spec.name)
        norm = _norm(spec, kind)
        for radius in _radii(spec, kind, norm, eps):
            usual = defaults if spec.name in ATTACKS else {}
            perturbation = _perturbation(spec, kind, norm, radius, usual, seed)
            found.setdefault(perturbation.column, perturbation)
    return list(found.values())


def _norm(spec: Spec, kind: AttackType) -> str:
    if "norm" not in kind.defaults or "norm" not in spec.params:
        return kind.defaults.get("norm", kind.norm)
    norm = _NORMS.get(str(spec.params["norm"]).lower())
    if norm is None or (norm == "L1" and spec.name in ATTACKS):
        raise UserError(f"{spec.name}: norm must be Linf or L2, not {spec.params['norm']}")
    return norm


def _radii(spec: Spec, kind: AttackType, norm: str, eps: list[float]) -> list[float | None]:
    if "eps" in spec.params:
        return [spec.params["eps"]]
    if kind.minimal or not kind.takes_eps:
        return [None]
    if norm != "Linf":
        chosen = f"norm={norm}, " if "norm" in kind.defaults else ""
        raise UserError(
            f"{spec.name} needs an {norm} radius of its own, e.g. {spec.name}({chosen}eps=0.5): "
            "the list of radii is Linf's"
        )
    return eps


def _perturbation(
    spec: Spec, kind: AttackType, norm: str, eps: float | None, defaults: Mapping, seed: int
) -> Perturbation:
    takes = [
        *(["eps"] if kind.takes_eps else []),
        *kind.defaults,
        *(["restarts"] if kind.random and kind.restarts else []),
        *(["target"] if kind.targeted else []),
    ]
    if unexpected := set(spec.params) - set(takes):
        listed = ", ".join(takes) or "none"
        raise UserError(f"{spec.name} has no parameter {min(unexpected)!r}; it takes {listed}")
    if eps is not None:
        check_eps(eps, norm)
    usual = dict(kind.defaults) | {key: value for key, value in defaults.items() if key in kind.defaults}
    usual = {key: _absolute(value, eps) for key, value in usual.items()}
    params = usual | {key: _absolute(value, eps) for key, value in spec.params.items() if key != "eps"}
    if "norm" in kind.defaults:
        params["norm"] = norm
    _check_params(spec.name, kind, params, norm)
    if params.get("restarts") == 1:
        del params["restarts"]
    changed = {key: value for key, value in params.items() if key != "norm" and value != usual.get(key)}
    return Perturbation(
        "attack",
        spec.name,
        _column(spec.name, norm, eps, changed),
        params if eps is None else {"eps": float(eps), **params},
        seed=seed if kind.random else None,
        norm=norm,
    )


def _absolute(value, eps: float | None):
    if not isinstance(value, OfEps):
        return value
    if eps is None:
        raise UserError("a share of eps needs an eps in the spec")
    return value.factor * eps


def _column(name: str, norm: str, eps: float | None, changed: Mapping) -> str:
    """``pgd_2`` is an Linf radius in units of 1/255, ``apgd_ce_l2_0.5`` an L2 radius in [0, 1] pixels."""
    shown = {
        key: f"{_exactly(value)}/255" if key == "alpha" and norm == "Linf" else value
        for key, value in changed.items()
    }
    brackets = f"({','.join(f'{key}={value}' for key, value in shown.items())})" if shown else ""
    suffix = norm.lower()
    label = name if norm == "Linf" or name.lower().endswith(suffix) else f"{name}_{suffix}"
    if eps is None:
        return f"{label}{brackets}"
    return f"{label}{brackets}_{_exactly(eps) if norm == 'Linf' else f'{eps:.10g}'}"


def _exactly(pixels: float) -> str:
    """A distance in units of 1/255, so that no two of them look alike."""
    return f"{in_255(pixels):.10g}"


def check_eps(eps, norm: str = "Linf") -> None:
    """Refuse a radius that is no distance: an Linf one is in (0, 1] pixels, any other above 0."""
    if _is_distance(eps, norm):
        return
    if norm == "Linf":
        raise UserError(f"eps must be above 0 and at most 1 in [0, 1] pixels (8/255, say), not {eps}")
    raise UserError(f"an {norm} eps must be a number above 0, in [0, 1] pixels (0.5, say), not {eps}")


def _is_distance(value, norm: str) -> bool:
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    return 0 < value <= (1 if norm == "Linf" else math.inf) and value != math.inf  # a NaN is not either


def _check_params(name: str, kind: AttackType, params: Mapping, norm: str) -> None:
    for key, value in params.items():
        if key == "alpha":
            if not _is_distance(value, norm):
                most = "above 0 and at most 1" if norm == "Linf" else "a number above 0,"
                raise UserError(f"{name}: alpha must be {most} in [0, 1] pixels, not {value}")
        elif key == "target":
            if value not in TARGETS and not _is_whole(value, 0):
                raise UserError(f"{name}: target must be {', '.join(TARGETS)} or a class, not {value}")
        elif key == "restarts" or _is_whole(kind.defaults.get(key), 1):
            if not _is_whole(value, 1):
                raise UserError(f"{name}: {key} must be a whole number from 1, not {value}")
        elif key != "norm":
            _check_like(name, key, value, kind.defaults[key])


def _check_like(name: str, key: str, value, usual) -> None:
    """A parameter must be of the kind of its default."""
    if isinstance(usual, bool | str):
        if type(value) is not type(usual):
            what = "a word" if isinstance(usual, str) else "True or False"
            raise UserError(f"{name}: {key} must be {what}, not {value}")
    elif isinstance(value, bool) or not isinstance(value, Real) or not 0 <= value < math.inf:
        raise UserError(f"{name}: {key} must be a number from 0, not {value}")


def _is_whole(value, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def check_fits(perturbation: Perturbation, classes: int, pixels: int) -> None:
    """Refuse an attack that asks for what a dataset has not.

    Args:
        classes: How many there are: fewer than its loss is defined for, or its target asks for, are too few.
        pixels: Numbers in an image, channels included. A radius above the diameter of their cube
            [0, 1]^pixels, which every image lies in, is a mistake.

    Raises:
        UserError: in these cases.
    """
    norm, eps = perturbation.norm, perturbation.params.get("eps", 0)
    if eps > (diameter := pixels ** _SHARE_OF_DIMENSION.get(norm, 1)):
        raise UserError(
            f"{perturbation.name}: an {norm} eps is at most {diameter:.4g} on these images of {pixels} "
            f"numbers in [0, 1], where that reaches everything, not {eps:g}"
        )
    name, kind = perturbation.name, type_of(perturbation.name)
    if classes < kind.classes:
        raise UserError(
            f"{name} needs at least {kind.classes} classes, which its loss compares; the dataset has "
            f"{classes}: take apgd_ce and square"
        )
    target = perturbation.params.get("target")
    if isinstance(target, int) and target >= classes:
        raise UserError(f"{name}: target must be one of the classes 0 to {classes - 1}, not {target}")


def step_warning(perturbation: Perturbation) -> str | None:
    """One line where the step size fits the ball badly, as the paper's does at 1/255; else None."""
    alpha, eps = (perturbation.params.get(key) for key in ("alpha", "eps"))
    if alpha is None or eps is None:
        return None
    step = f"{_exactly(alpha)}/255" if perturbation.norm == "Linf" else f"{alpha:g}"
    if alpha > eps * (1 + 1e-9):
        return f"{perturbation.column}: the step {step} exceeds eps, so each step overshoots the ball"
    steps = perturbation.params.get("steps", 1)
    if alpha * steps < eps * (1 - 1e-9):
        return f"{perturbation.column}: {steps} steps of {step} cannot reach eps"
    return None


def pace_warning(perturbation: Perturbation) -> str | None:
    """One line where an attack is slow because each sample is attacked by itself; else None."""
    if perturbation.name in ATTACKS or not is_alone(perturbation):
        return None
    return (
        f"{perturbation.column}: attacked one sample at a time, which is slow: what torchattacks' "
        f"{perturbation.name} does to a sample may depend on the others in its batch"
    )


def passes(perturbation: Perturbation) -> int:
    """How many forward passes' worth of work a sample costs, at most (a gradient counts as two more)."""
    if perturbation.kind != "attack":
        return 1
    params = perturbation.params
    return type_of(perturbation.name).work(params) * params.get("restarts", 1) + 1


def gradients(perturbation: Perturbation) -> int:
    """How many of these passes a sample's gradient is taken of, at most."""
    follows = perturbation.kind == "attack" and type_of(perturbation.name).gradient
    return passes(perturbation) // 3 if follows or perturbation.name == "autoattack" else 0


def is_alone(perturbation: Perturbation) -> bool:
    """Whether each sample is attacked by itself, which takes longer than the number of passes says."""
    return perturbation.kind == "attack" and type_of(perturbation.name).alone


def may_stop_early(perturbation: Perturbation) -> bool:
    """Whether a sample may take less work than `passes` says, because it is broken before."""
    if perturbation.kind != "attack":
        return False
    return type_of(perturbation.name).only_right or perturbation.params.get("restarts", 1) > 1


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
    raise UserError("autoattack needs a package of its own: pip install pyautoattack==0.2.0")


def torchattacks_version() -> str:
    return importlib.metadata.version("torchattacks")

"""The table of attacks, and the specs that name them: ``pgd(eps=2/255, alpha=eps/4, steps=40)``.

In a spec, eps and alpha are distances in [0, 1] pixels, as in torchattacks. For an Linf attack they are at
most 1, and eps may be omitted; the radii of the command then apply. An L2 radius can only be given in a
spec. This module does not import torch, so a command line can be parsed without it. Only `type_of` imports
torchattacks, for a class of torchattacks that is not in the table.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from functools import cache
from importlib.util import find_spec
from pathlib import Path

from robust_interp.core.registry import Registry, similar, unknown
from robust_interp.core.specs import OfEps

Parameter = float | int | str | OfEps  # parameter of an attack, possibly a multiple of eps

NORMS = ("Linf", "L2", "L1", "L0")
AUTOATTACK_QUERIES = 5000  # of its Square attack
AUTOATTACK_PACKAGES = ("pyautoattack", "autoattack")  # the dependency of RobustBench; the authors' package


def _steps(params: Mapping) -> int:
    """Return the cost of an attack: three forward passes per step, since a gradient counts as two."""
    return 3 * params.get("steps", 1)


@dataclass(frozen=True)
class AttackType:
    """A registered attack.

    Attributes:
        torchattacks_class: Name of the class in torchattacks, or any callable that is made with (model,
            **parameters) and called with (images, labels).
        defaults: Parameters besides eps, with the paper's values. A spec can set ``norm`` if it is here.
        random: Whether it draws random numbers; its results then depend on the attack seed, and it can be
            restarted.
        norm: Norm of its radius.
        gradient: Whether it depends on gradients; an image without a gradient then never counts as robust.
        minimal: Whether it searches for the smallest change. Its eps is optional; a change larger than eps
            does not count.
        skips_misclassified: Whether images that are misclassified when clean are returned unchanged.
        by_order: Whether it depends on the order of the logits, as a search for a misclassified image does,
            and not only on a loss of all logits. It cannot use the mean loss of an ensemble, which has an
            additional class.
        alone: Whether it must run on one image at a time, because images of a batch influence each other.
        alone_in: Norms in which it must run so, if not in all.
        own_seed: Whether its class seeds torch's generator itself, by its attribute `seed`.
        targeted: Whether it can aim at a class.
        classes: Smallest number of classes for which its loss is defined.
        work: Function that maps the parameters to the cost per image in forward passes, without restarts.
        takes_eps: Whether it has a radius.
        restarts: Whether a random attack can run several times, keeping the worst result. If not, a parameter
            ``restarts`` is the attack's own, as that of torchattacks' Pixle.
        reals: Parameters that may be fractions although their default is a whole number.
        stops: Whether it accepts ``stop=broken``, to stop for each image at its first misclassified iterate.
        about: A description of about five words, for `ls attacks`.
        source: The paper it comes from.
    """

    torchattacks_class: str | Callable
    defaults: Mapping[str, Parameter]
    random: bool = False
    norm: str = "Linf"
    gradient: bool = True
    minimal: bool = False
    skips_misclassified: bool = False
    by_order: bool = False
    alone: bool = False
    alone_in: tuple[str, ...] = ()
    own_seed: bool = False
    targeted: bool = False
    classes: int = 2
    work: Callable[[Mapping], int] = field(default=_steps, compare=False)
    takes_eps: bool = True
    restarts: bool = True
    reals: frozenset[str] = frozenset()
    stops: bool = False
    about: str = ""
    source: str = ""

    @property
    def differentiates(self) -> bool:
        """Whether any part of the attack computes gradients."""
        return self.gradient or self.torchattacks_class == "AutoAttack"

    @property
    def norms(self) -> tuple[str, ...]:
        """The norms that its radius can be in."""
        return ("Linf", "L2") if "norm" in self.defaults else (self.norm,)

    def is_alone(self, norm: str) -> bool:
        """Return whether it runs on one image at a time in this norm."""
        return self.alone or norm in self.alone_in

    @property
    def takes(self) -> dict[str, Parameter | None]:
        """The parameters that a spec can set, with their defaults; None if there is no default."""
        return {
            **({"eps": None} if self.takes_eps else {}),
            **self.defaults,
            **({"restarts": 1} if self.random and self.restarts else {}),
            **({"target": None} if self.targeted else {}),
            **({"stop": None} if self.stops else {}),
        }


_MADRY = "Madry et al. 2018, arXiv 1706.06083"
_CROCE = "Croce and Hein 2020, arXiv 2003.01690"
_APGD: dict[str, Parameter] = {"norm": "Linf", "steps": 100}  # AutoAttack's steps

# Columns get such an ending from the norm: mine_l2 would also be the column of mine in L2.
NORM_AT_END = re.compile("_l[012]$")

ATTACKS: Registry[AttackType] = Registry(
    "attack",
    group="robust_interp.attacks",
    holds=AttackType,
    names=r"pgd_l2|[a-zA-Z_]\w*(?<!_l[012])",  # no plug-in can take the name of pgd_l2, which is built in
)

ATTACKS.add(
    "fgsm",
    AttackType(
        "FGSM",
        {},
        targeted=True,
        about="one sign step of size eps",
        source="Goodfellow et al. 2015, arXiv 1412.6572",
    ),
)

ATTACKS.add(
    "ifgsm",
    AttackType(
        "BIM",
        {"alpha": 2 / 255, "steps": 20},
        targeted=True,
        about="sign steps without a random start",
        source="Kurakin et al. 2017, arXiv 1607.02533",
    ),
)

ATTACKS.add(
    "pgd",
    AttackType(
        "PGD",
        {"alpha": 2 / 255, "steps": 20},
        random=True,
        targeted=True,
        stops=True,
        about="sign steps from a random start",
        source=_MADRY,
    ),
)

ATTACKS.add(
    "mifgsm",
    AttackType(
        "MIFGSM",
        {"alpha": 2 / 255, "steps": 20, "decay": 1.0},
        targeted=True,
        about="sign steps with momentum",
        source="Dong et al. 2018, arXiv 1710.06081",
    ),
)

ATTACKS.add(
    "pgd_l2",
    AttackType(
        "PGDL2",
        {"alpha": OfEps(0.2), "steps": 20},
        random=True,
        norm="L2",
        targeted=True,
        about="gradient steps from a random start",
        source=_MADRY,
    ),
)

ATTACKS.add(
    "apgd_ce",
    AttackType(
        "APGD",
        _APGD,
        random=True,
        skips_misclassified=True,
        about="Auto-PGD on the cross-entropy",
        source=_CROCE,
    ),
)

ATTACKS.add(
    "apgd_dlr",
    AttackType(
        "APGD",
        _APGD,
        random=True,
        skips_misclassified=True,
        by_order=True,
        classes=3,
        about="Auto-PGD on the difference-of-logits ratio",
        source=_CROCE,
    ),
)

ATTACKS.add(
    "apgd_t",  # alone in L2, where torchattacks uses the step size of the first image for the whole batch
    AttackType(
        "APGDT",
        _APGD | {"targets": 9},
        random=True,
        skips_misclassified=True,
        by_order=True,
        alone_in=("L2",),
        classes=4,
        work=lambda params: 3 * params["steps"] * params["targets"],
        about="targeted Auto-PGD on likely classes",
        source=_CROCE,
    ),
)

ATTACKS.add(
    "square",  # alone in L2, where it draws signs only for the images of the batch that are still correct
    AttackType(
        "Square",
        {"norm": "Linf", "queries": 1000},
        random=True,
        gradient=False,
        skips_misclassified=True,
        by_order=True,
        alone_in=("L2",),
        work=lambda params: params["queries"],
        about="random search, without gradients",
        source="Andriushchenko et al. 2020, arXiv 1912.00049",
    ),
)

ATTACKS.add(
    "cw",  # alone, because torchattacks stops all images when the sum of their costs rises
    AttackType(
        "CW",
        {"c": 1.0, "kappa": 0.0, "steps": 50, "lr": 0.01},
        norm="L2",
        minimal=True,
        skips_misclassified=True,
        by_order=True,
        alone=True,
        targeted=True,
        about="smallest change, found by optimisation",
        source="Carlini and Wagner 2017, arXiv 1608.04644",
    ),
)

ATTACKS.add(
    "deepfool",
    AttackType(
        "DeepFool",
        {"steps": 50, "overshoot": 0.02},
        norm="L2",
        minimal=True,
        skips_misclassified=True,
        by_order=True,
        alone=True,
        work=lambda params: 60,  # about three steps, with a gradient for each of ten classes
        about="smallest change, by linear steps",
        source="Moosavi-Dezfooli et al. 2016, arXiv 1511.04599",
    ),
)

ATTACKS.add(
    "autoattack",
    AttackType(
        "AutoAttack",
        {"norm": "Linf"},
        random=True,
        gradient=False,  # its Square attack needs none
        skips_misclassified=True,
        by_order=True,
        classes=4,
        work=lambda params: 3 * 100 * (1 + 9 + 9) + AUTOATTACK_QUERIES,
        restarts=False,
        about="APGD-CE, APGD-T, FAB and Square",
        source=_CROCE,
    ),
)

# Properties of the torchattacks classes that can be used by class name. Tests check them against the classes.
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

_BY_ORDER = {
    "UPGD",
    "APGD",
    "APGDT",
    "Jitter",
    "SPSA",
    "JSMA",
    "EADL1",
    "EADEN",
    "CW",
    "DeepFool",
    "SparseFool",
    "OnePixel",
    "Pixle",
    "FAB",
    "Square",
}

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


def _tries_of_pixle(params: Mapping) -> int:
    """Return the cost of Pixle, which runs its iterations once or in each of its own restarts."""
    runs = 1 if params["update_each_iteration"] else params["restarts"]
    return 2 * runs * params["max_iterations"] + 1


# Requirements of some classes, which would otherwise fail with an unclear error.
OF_THREE_CHANNELS = {"TIFGSM", "PIFGSM", "PIFGSMPP"}
OF_SQUARE_IMAGES = {"Pixle"}
_OF_TEN_CLASSES = {"JSMA"}

_NOT_BY_CLASS = {"MultiAttack", "LGV", "AutoAttack"}

_OURS_TO_SET = {"self", "model", "eps", "max_epsilon", "seed", "verbose", "n_classes"}

_AIMS_AT_NOTHING = {"SPSA", "PIFGSMPP"}  # their targeted mode takes the label itself for the target


def type_of(name: str) -> AttackType:
    """Return the registered attack or the torchattacks class of this name.

    Raises:
        UserError: if the name is unknown; the message suggests similar names.
    """
    return ATTACKS[name] if name in ATTACKS else _of_class(name)


def is_known(name: str) -> bool:
    """Return whether a name is an attack here, or a class of torchattacks."""
    return name in ATTACKS or name in torchattacks_classes()


def check_name(name: str) -> None:
    """Refuse a name that is neither an attack nor a class of torchattacks, without importing torchattacks.

    Raises:
        UserError: if the name is unknown; the message suggests similar names.
    """
    if not is_known(name):
        known = [*ATTACKS, *torchattacks_classes()]
        raise unknown("attack", name, known if similar(name, known) else ATTACKS)


def torchattacks_classes() -> tuple[str, ...]:
    """Return the classes of torchattacks that can be used by their class name."""
    return tuple(name for name in _all_classes() if name not in _NOT_BY_CLASS)


def is_torchattacks_class(name: str) -> bool:
    """Return whether torchattacks has a class of this name, whether or not it can be used by it."""
    return name in _all_classes()


@cache
def _all_classes() -> tuple[str, ...]:
    """Return what torchattacks exports, read from its source, because importing it would import torch."""
    spec = find_spec("torchattacks")
    if spec is None or spec.origin is None:
        raise ImportError("torchattacks is not installed")
    source = spec.origin
    for statement in ast.parse(Path(source).read_text(encoding="utf-8")).body:
        if isinstance(statement, ast.Assign) and ast.unparse(statement.targets[0]) == "__all__":
            return tuple(ast.literal_eval(statement.value))
    raise ImportError(f"torchattacks names no classes in {source}")


@cache
def _of_class(name: str) -> AttackType:
    check_name(name)
    import torch
    import torchattacks

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
        by_order=name in _BY_ORDER,
        alone=name not in _IN_BATCHES,
        own_seed="seed" in parameters,
        targeted="targeted" in modes and name not in _AIMS_AT_NOTHING,
        classes=10 if name in _OF_TEN_CLASSES else 2,
        work=_tries_of_pixle if name == "Pixle" else _steps,
        takes_eps=bool({"eps", "max_epsilon"} & parameters.keys()),
        reals=frozenset(re.findall(r"(\w+) \(float\)", inspect.getdoc(found) or "")),
        restarts=False,
    )

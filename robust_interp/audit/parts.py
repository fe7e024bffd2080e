"""Which attacks an audit makes, and the part that each plays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from robust_interp import attacks
from robust_interp.attacks.table import type_of
from robust_interp.audit.thresholds import Thresholds
from robust_interp.classifiers.target import Target
from robust_interp.core.errors import UserError
from robust_interp.core.specs import Spec, parse_spec, split_specs
from robust_interp.store.cells import Perturbation, attack_column, digest


@dataclass(frozen=True)
class Options:
    """What a model is audited with, beside the samples and radii of the request.

    Attributes:
        attack: The row's attack, whose accuracy is in question: in steps of a given size.
        strongest: What should not find much more: ``apgd_ce``, say, or ``autoattack``; 'none' leaves it out.
        black_box: What sees logits only; 'none' leaves it out.
        source: The model that attacks are transferred from; by default another one of the run.
    """

    attack: str = "pgd"
    strongest: str = "apgd_ce"
    black_box: str = "square"
    source: str | None = None
    thresholds: Thresholds = field(default_factory=Thresholds)


def parts_of(
    options: Options, eps: list[float], defaults: Mapping, seed: int
) -> dict[str, dict[float, Perturbation]]:
    """Which attack plays which part, by radius in units of 1/255.

    Args:
        options: What plays the parts that can be chosen.
        eps: Radii in [0, 1] pixels.
        defaults: Parameters of attacks that the dataset sets otherwise.
        seed: The attack seed.

    Raises:
        UserError: if the row's attack takes no steps of a size, or one of them is no single Linf attack.
    """
    row = _row(options.attack)
    usual = attacks.resolve(str(_once(row)), eps, defaults, seed)
    for perturbation in usual:
        step_of(perturbation)
    more_steps = {"steps": options.thresholds.more * usual[0].integer("steps")}
    texts = _texts(options, row, more_steps)
    return {
        part: _by_radius(text, attacks.resolve(text, eps, defaults, seed)) for part, text in texts.items()
    }


def _row(attack: str) -> Spec:
    specs = [parse_spec(text) for text in split_specs(attack)]
    if len(specs) != 1 or "eps" in specs[0].params or attack == "none":
        raise UserError(f"--attack takes one attack without eps, not {attack!r}")
    return specs[0]


def _once(row: Spec) -> Spec:
    return Spec(row.name, {key: value for key, value in row.params.items() if key not in _MANY_RUNS})


_MANY_RUNS = ("restarts", "stop")  # with which not every sample takes the same steps


def _texts(options: Options, row: Spec, more_steps: dict[str, int]) -> dict[str, str]:
    """The attack of each part as it is written; ``none`` for one that is not played."""
    kind, once, more = type_of(row.name), _once(row), options.thresholds.more
    restarted = Spec(row.name, row.params | {"restarts": more})
    return {
        "one_step": "fgsm",
        "iterative": "ifgsm",
        "row": str(row),
        "trace": str(once),
        "more_steps": str(Spec(row.name, once.params | more_steps)),
        "restarts": str(restarted) if kind.random and kind.restarts else "none",
        "strongest": options.strongest,
        "black_box": options.black_box,
        # With a step of its own: one that suits a small ball does not reach the end of a large one.
        "large_eps": f"pgd(eps={options.thresholds.large_eps_255}/255, alpha=eps/4, steps=40)",
    }


def _by_radius(text: str, found: Sequence[Perturbation]) -> dict[float, Perturbation]:
    """What an attack's text stands for, by radius in units of 1/255."""
    by_radius = {one.eps_255: one for one in found if one.eps_255 is not None}
    if len(split_specs(text)) > 1 or any(one.eps_255 is None for one in found):
        raise UserError(f"an audit compares single attacks: give one Linf attack, not {text!r}")
    return by_radius


def step_of(row: Perturbation) -> float:
    """The size of the steps of the row's attack, in [0, 1] pixels.

    Raises:
        UserError: if it takes no steps of a size.
    """
    alpha = row.number("alpha")
    if alpha is None or "steps" not in row.params:
        raise UserError(f"--attack takes an attack with alpha and steps, such as pgd, not {row.name}")
    return alpha


def transferred(row: Perturbation, eps_255: float, other: Target) -> Perturbation:
    """The row's attack computed on another model; what it is keyed by names that model."""
    column = attack_column(f"transfer from {other.card.label}", "Linf", eps_255)
    return replace(row, column=column, source=f"transfer@{digest(other.card.identity)[:16]}")

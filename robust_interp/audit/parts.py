"""Which attacks an audit makes, and the part that each plays."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from robust_interp import attacks
from robust_interp.attacks.table import type_of
from robust_interp.audit.thresholds import Thresholds
from robust_interp.classifiers.target import Target
from robust_interp.core.errors import UserError
from robust_interp.core.specs import Spec, parse_spec, split_specs
from robust_interp.results.column_names import with_radius
from robust_interp.store.cells import Perturbation, digest


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


def parts_of(options: Options, eps: list[float], defaults, seed: int) -> dict[str, dict[float, Perturbation]]:
    """Which attack plays which part, by radius in units of 1/255.

    Args:
        eps: Radii in [0, 1] pixels.
        defaults: Parameters of attacks that the dataset sets otherwise.

    Raises:
        UserError: for an attack that cannot play its part.
    """
    specs = [parse_spec(text) for text in split_specs(options.attack)]
    if len(specs) != 1 or "eps" in specs[0].params or options.attack == "none":
        raise UserError(f"an audit is of one attack, without a radius of its own, not {options.attack!r}")
    (row,) = specs
    once = Spec(row.name, {key: value for key, value in row.params.items() if key != "restarts"})
    usual = attacks.resolve(str(once), eps, defaults, seed)
    if not all({"alpha", "steps"} <= perturbation.params.keys() for perturbation in usual):
        raise UserError(f"an audit is of an attack with alpha and steps, such as pgd, not of {row.name}")
    kind = type_of(row.name)
    more = options.thresholds.more
    more_steps = once.params | {"steps": more * usual[0].params["steps"]}
    texts = {
        "one_step": "fgsm",
        "iterative": "ifgsm",
        "row": str(row),
        "trace": str(once),
        "more_steps": str(Spec(row.name, more_steps)),
        "restarts": str(Spec(row.name, row.params | {"restarts": more}))
        if kind.random and kind.restarts
        else "none",
        "strongest": options.strongest,
        "black_box": options.black_box,
        # With a step of its own: one that suits a small ball does not reach the end of a large one.
        "large_eps": f"pgd(eps={options.thresholds.large_eps_255}/255, alpha=eps/4, steps=40)",
    }
    parts = {}
    for part, text in texts.items():
        found = attacks.resolve(text, eps, defaults, seed)
        if len(split_specs(text)) > 1 or any(one.eps_255 is None for one in found):
            raise UserError(f"an audit compares Linf attacks one by one; {text!r} is no single one")
        parts[part] = {one.eps_255: one for one in found}
    return parts


def transferred(row: Perturbation, other: Target) -> Perturbation:
    """The row's attack computed on another model; what it is keyed by names that model."""
    column = with_radius(f"transfer from {other.card.label}", "Linf", row.eps_255)
    return replace(row, column=column, source=f"transfer@{digest(other.card.identity)[:16]}")

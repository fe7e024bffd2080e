"""The attacks of an audit, each for one part such as `row`, `more_steps` or `black_box`.

The part `row` is the audited attack: the attack of a row of the results, whose accuracy is in question.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from robust_interp import attacks
from robust_interp.attacks.table import type_of
from robust_interp.audit.options import Options
from robust_interp.classifiers.target import Target
from robust_interp.core.errors import UserError
from robust_interp.core.specs import Spec, parse_spec, split_specs
from robust_interp.store.cells import Perturbation, attack_column, digest


def parts_of(
    options: Options, eps: list[float], defaults: Mapping, seed: int
) -> dict[str, dict[float, Perturbation]]:
    """Return the attacks by part and by radius in units of 1/255.

    Args:
        options: Settings with the attacks that can be chosen.
        eps: Radii in [0, 1] pixels.
        defaults: Attack parameters of the data set, which replace the attacks' defaults.
        seed: The attack seed.

    Raises:
        UserError: if the audited attack has no alpha or steps, or if an attack is not a single Linf attack
            without eps.
    """
    row = _row(options.attack)
    for text in (options.strongest, options.black_box):
        if any("eps" in parse_spec(one).params for one in split_specs(text)):
            raise UserError(
                f"the radii of an audit are those of --eps: give one Linf attack without eps, not {text!r}"
            )
    usual = attacks.parse_attacks(str(row), eps, defaults, seed)
    for perturbation in usual:
        step_of(perturbation)
    texts = _texts(options, row, usual[0])
    return {
        part: _by_radius(text, attacks.parse_attacks(text, eps, defaults, seed))
        for part, text in texts.items()
    }


def _row(attack: str) -> Spec:
    specs = [parse_spec(text) for text in split_specs(attack)]
    if len(specs) != 1 or "eps" in specs[0].params or attack == "none":
        raise UserError(f"--attack takes one attack without eps, not {attack!r}")
    return specs[0]


def _once(row: Spec) -> Spec:
    return Spec(row.name, {key: value for key, value in row.params.items() if key not in _MANY_RUNS})


_MANY_RUNS = ("restarts", "stop")  # with these, the number of steps differs between images


def _texts(options: Options, row: Spec, usual: Perturbation) -> dict[str, str]:
    """Return the attack spec of each part; ``none`` for a part that is omitted.

    Args:
        options: Settings with the attacks that can be chosen.
        row: The audited attack.
        usual: The same with all of its parameters.
    """
    kind, once, more = type_of(row.name), _once(row), options.thresholds.more
    longer = Spec(row.name, row.params | {"steps": more * usual.integer("steps")})
    restarted = Spec(row.name, row.params | {"restarts": more * usual.integer("restarts")})
    return {
        "one_step": "fgsm",
        "iterative": "ifgsm",
        "row": str(row),
        "trace": str(once),
        "more_steps": str(longer),
        "restarts": str(restarted) if kind.random and kind.restarts else "none",
        "strongest": options.strongest,
        "black_box": options.black_box,
        # alpha is set here: steps that suit a small ball do not reach the boundary of a large one.
        "large_eps": f"pgd(eps={options.thresholds.large_eps_255}/255, alpha=eps/4, steps=40)",
    }


def _by_radius(text: str, found: Sequence[Perturbation]) -> dict[float, Perturbation]:
    """Return the perturbations by radius in units of 1/255; refuse all but a single Linf attack."""
    by_radius = {one.eps_255: one for one in found if one.eps_255 is not None}
    if len(split_specs(text)) > 1 or any(one.eps_255 is None for one in found):
        raise UserError(f"an audit compares single attacks: give one Linf attack, not {text!r}")
    return by_radius


def step_of(row: Perturbation) -> float:
    """Return the step size of the audited attack, in [0, 1] pixels.

    Raises:
        UserError: if the attack has no alpha or no steps.
    """
    alpha = row.number("alpha")
    if alpha is None or "steps" not in row.params:
        raise UserError(f"--attack takes an attack with alpha and steps, such as pgd, not {row.name}")
    return alpha


def transferred(row: Perturbation, eps_255: float, other: Target) -> Perturbation:
    """Return the audited attack as a transfer attack.

    Args:
        row: The audited attack.
        eps_255: Its radius in units of 1/255.
        other: The model that the attack is computed on; it becomes part of the key.
    """
    column = attack_column(f"transfer from {other.card.label}", "Linf", eps_255)
    return replace(row, column=column, source=f"transfer@{digest(other.card.identity)[:16]}")

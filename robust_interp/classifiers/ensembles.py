"""Make targets of ensembles: of a model's train seeds, of names joined by ``+``, or of `Ensemble` objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from robust_interp.classifiers.ensemble import WHITE_BOX, Ensemble, check_ensemble
from robust_interp.classifiers.target import Context, Target, from_module
from robust_interp.core.choices import AVERAGES
from robust_interp.core.errors import UserError
from robust_interp.core.registry import is_glob, matching, unknown
from robust_interp.store.cells import ModelCard, digest


@dataclass(frozen=True)
class EnsembleOptions:
    """How members form an ensemble.

    Attributes:
        average: What is averaged: ``probabilities`` or ``logits``.
        attacks: Values of `Ensemble.attack`; there is one ensemble for each.
    """

    average: str = AVERAGES[0]
    attacks: tuple[str, ...] = (WHITE_BOX,)


def make_ensembles(members: Sequence[Target], averaging: EnsembleOptions) -> list[Target]:
    """Return one ensemble of the members for each value in `averaging.attacks`.

    Raises:
        UserError: if the members cannot form an ensemble, or a value of `averaging` is not valid.
    """
    return [_ensemble(members, averaging.average, attack) for attack in averaging.attacks]


def member_names(named: str) -> list[str]:
    """Split an ensemble's name at ``+``: ``in_resnet20+preact_resnet20`` has two members."""
    return [part.strip() for part in named.split("+")]


def named_ensembles(named: str, found: Sequence[Target], averaging: EnsembleOptions) -> list[Target]:
    """Return the ensembles of the single models named by `named`, without those already in `found`.

    Args:
        named: Names, full names of checkpoints, globs or 'all', joined by ``+``.
        found: The targets of the run, including its ensembles.
        averaging: How the members form an ensemble.

    Raises:
        UserError: if a part matches no model, or all parts together match fewer than two.
    """
    singles = [target for target in found if target.card.members == 1]
    members: dict[int, Target] = {}
    for part in member_names(named):
        hits = [at for at, target in enumerate(singles) if _answers(target, part)]
        if not hits:
            raise unknown("member of an ensemble", part, {target.card.model for target in singles})
        members |= {at: singles[at] for at in hits}
    if len(members) < 2:
        raise UserError(f"an ensemble needs at least two models; {named} is one")
    there = [(target.card.identity, target.card.attacked_as) for target in found]
    made = make_ensembles(list(members.values()), averaging)
    return [e for e in made if (e.card.identity, e.card.attacked_as) not in there]


def from_ensemble(name: str, ensemble: Ensemble, context: Context) -> Target:
    """Make a target of an `Ensemble` object, with its own `average` and `attack`.

    Raises:
        UserError: if a member cannot be measured on this data set.
    """
    members = [
        from_module(f"{name} member {at}", member, context) for at, member in enumerate(ensemble.members)
    ]
    target = _ensemble(members, ensemble.average, ensemble.attack, name)
    return replace(target, notes=(*(note for member in members for note in member.notes), *target.notes))


def _answers(target: Target, part: str) -> bool:
    names = [name for name in (target.card.model, target.checkpoint) if name]
    return part == "all" or (bool(matching(part, names)) if is_glob(part) else part in names)


def _ensemble(members: Sequence[Target], average: str, attack: str, name: str | None = None) -> Target:
    """Make an ensemble's target. Its name includes `average` and `attack` if they are not the defaults."""
    members, cards = tuple(members), [member.card for member in members]
    if random := [card.label for card in cards if card.eot]:
        raise UserError(f"{random[0]} is random: an ensemble of random models cannot be measured")
    name = name or _joint(card.model for card in cards)
    check_ensemble(len(members), average, attack, name)
    views = list(dict.fromkeys(member.dataset for member in members))
    if len(views) > 1:
        raise UserError(
            f"{name}: its members take the images in several sizes or crops: set one for all with --resize "
            "and --crop"
        )
    special = [value for value, usual in ((average, AVERAGES[0]), (attack, WHITE_BOX)) if value != usual]
    card = ModelCard(
        name + "".join(f"({value})" for value in special),
        {"ensemble": [card.identity for card in cards], "average": average},
        recipe=_joint(card.recipe for card in cards),
        lambda_init=_joint(card.lambda_init for card in cards),
        seeds=tuple(sorted({card.train_seed for card in cards if card.train_seed is not None})),
        members=len(cards),
        params_m=_total([card.params_m for card in cards]),
        weights_sha256=digest([card.weights_sha256 for card in cards]),
        attacked_as="" if attack == WHITE_BOX else attack,
    )
    return Target(
        card,
        # The ensemble itself is not checked; its members are, when they are loaded.
        lambda device: Ensemble([member.load(device) for member in members], average, attack, card.label),
        _twins(card.label, cards),
        views[0],
    )


def _total(numbers: Sequence[float | None]) -> float | None:
    """Return the sum; None if a number is None."""
    known = [number for number in numbers if number is not None]
    return sum(known) if len(known) == len(numbers) else None


def _joint(texts: Iterable[str]) -> str:
    return "+".join(dict.fromkeys(filter(None, texts)))


def _twins(label: str, cards: Sequence[ModelCard]) -> tuple[str, ...]:
    """Return a note for each model that is several members at once."""
    alike: dict[str, list[str]] = {}
    for card in cards:
        alike.setdefault(digest(card.identity), []).append(card.label)
    return tuple(
        f"{label}: {len(names)} members have the same weights, {', '.join(names[:2])}"
        f"{' and so on' if len(names) > 2 else ''}; they count {len(names)} times in the average"
        for names in alike.values()
        if len(names) > 1
    )

"""What can be measured: zoo checkpoints and their ensembles, and modules that came as objects.

A target is a card, which says what it is without loading it, and a way to load it as a classifier.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import nn

from robust_interp import data, zoo
from robust_interp.classifiers.classifier import Classifier
from robust_interp.classifiers.ensemble import AVERAGES, WHITE_BOX, Ensemble, check_ensemble
from robust_interp.classifiers.fingerprint import behaviour, identity
from robust_interp.classifiers.isolation import undisturbed
from robust_interp.classifiers.validation import CHECKED_ON, check_classifier, measurable, stale_batch_norm
from robust_interp.core.errors import UserError
from robust_interp.core.registry import is_glob, matching, unknown
from robust_interp.store.cells import ModelCard, digest

KNOWN_BY = 32  # images, spread over the set, whose logits and gradients tell one object from another


@dataclass(frozen=True, eq=False)
class Target:
    """Something to measure: its card, how to load it as a classifier of pixels, and what to say of it."""

    card: ModelCard
    load: Callable[[], nn.Module]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Averaging:
    """How members make an ensemble: what is averaged, and what attacks are made on (one ensemble each)."""

    average: str = AVERAGES[0]
    attacks: tuple[str, ...] = (WHITE_BOX,)


def from_modules(modules: Mapping[str, nn.Module], mean, std, dataset: data.Dataset) -> list[Target]:
    """Models that are objects already, by name; `mean` and `std` as in `from_module`."""
    return [_object(name, model, mean, std, dataset) for name, model in modules.items()]


def from_module(
    name: str,
    model: nn.Module,
    mean,
    std,
    dataset: data.Dataset,
    sha256: str | None = None,
    notes: tuple[str, ...] = (),
) -> Target:
    """A model that is an object already.

    Args:
        mean: What its images are normalised with; None is what a timm model's ``pretrained_cfg`` says, and
            nothing for any other model. `std` likewise.
        sha256: Hash of the weights file it was made from; None is a hash of its state.
        notes: What a reader of its numbers must be told already.

    Raises:
        UserError: if it cannot be measured on this dataset.
    """
    model, changed = measurable(model, name)
    notes += changed
    if mean is None and std is None:
        mean, std = _normalisation(model, dataset)
        if mean is None and (inner := _normalised_inside(model)):
            notes += (
                f"{name} holds a timm model trained with mean {inner[0]} and std {inner[1]}, which are not "
                "applied: pass mean and std, unless something in front of it does that",
            )
    classifier = Classifier(model, mean, std, name)
    try:
        known, stale = _known(classifier, dataset)
    except UserError as error:
        raise type(error)("; ".join([str(error), *changed])) from error
    if stale:
        notes += (
            f"{name}: BatchNorm statistics look unset: the clean accuracy is chance with them, and well "
            "above with those of the batch",
        )
    params_m = sum(p.numel() for p in classifier.parameters()) / 1e6
    card = ModelCard(name, known, params_m=params_m, weights_sha256=sha256 or known["state_sha256"])
    return Target(card, lambda: classifier, notes)


def from_zoo(
    patterns: Sequence[str],
    folder: str | None,
    seeds: Sequence[int] | None,
    averaging: Averaging | None,
    dataset: str,
) -> list[Target]:
    """The checkpoints that are named: each model's seeds and, if asked for, their ensembles after them.

    Args:
        patterns: 'all', architectures, full names or globs.
        folder: A zoo folder besides the usual ones.
        seeds: Train seeds to take; None is every one.
        averaging: How each model's seeds make an ensemble; None makes none.

    Raises:
        UserError: if a pattern or a seed finds nothing, or a checkpoint, or the plug-in of a model that is
            named, is broken.
    """
    chosen = zoo.select(patterns, zoo.checkpoints_for(dataset, folder))
    if absent := sorted(set(seeds or ()) - {checkpoint.seed for checkpoint in chosen}):
        raise UserError(f"no checkpoint with train seed {absent[0]} among the models named")
    groups: dict[tuple, list[Target]] = {}
    broken = _broken_plugins(chosen, patterns)
    for checkpoint in chosen:
        if checkpoint.architecture not in broken and (seeds is None or checkpoint.seed in seeds):
            target = from_checkpoint(checkpoint)
            card = target.card
            groups.setdefault((card.model, card.recipe, card.lambda_init), []).append(target)
    for group in groups.values():
        if absent := sorted(set(seeds or ()) - {target.card.train_seed for target in group}):
            note = f"{group[0].card.model} {group[0].card.recipe} has no train seed {absent[0]}"
            group[0] = replace(group[0], notes=(f"{note}: its line is over fewer seeds than others",))
        if averaging and len(group) > 1:
            group += _ensembles(group, averaging)
    found = [target for group in groups.values() for target in group]
    if broken and not found:
        raise UserError("; ".join(broken.values()))
    if broken:
        found[0] = replace(found[0], notes=(*found[0].notes, *broken.values()))
    return found


def _broken_plugins(chosen: Sequence[zoo.Checkpoint], patterns: Sequence[str]) -> dict[str, str]:
    """The architectures whose plug-in cannot be used, and why: they are left out of 'all' and globs.

    Raises:
        UserError: if a model of one is named itself.
    """
    broken = {}
    for architecture in dict.fromkeys(checkpoint.architecture for checkpoint in chosen):
        try:
            if architecture in zoo.MODELS:
                zoo.is_model(architecture)
        except UserError as error:
            names = {c.name for c in chosen if c.architecture == architecture}
            if {architecture, *names} & set(patterns):
                raise
            broken[architecture] = f"{error}; it is left out"
    return broken


def _object(name: str, model: nn.Module, mean, std, dataset: data.Dataset) -> Target:
    if type(model) is not Ensemble:
        return from_module(name, model, mean, std, dataset)
    members = [
        from_module(f"{name} member {at}", member, mean, std, dataset)
        for at, member in enumerate(model.members)
    ]
    ensemble = _ensemble(members, model.average, model.attack, name)
    return replace(ensemble, notes=(*(n for member in members for n in member.notes), *ensemble.notes))


def _known(classifier: Classifier, dataset: data.Dataset) -> tuple[dict, bool]:
    """What it is known by: its code, state, and what it does to a few images. And if BN looks unset."""
    device = next((p.device for p in classifier.parameters()), torch.device("cpu"))
    spread = np.unique(np.linspace(0, len(dataset) - 1, KNOWN_BY).astype(int))
    images = torch.from_numpy(data.as_pixels(dataset.images[spread])).to(device)
    labels = torch.from_numpy(dataset.labels[spread]).to(device)
    classifier.to(device)  # buffers may have been elsewhere
    with undisturbed(classifier):
        check_classifier(classifier, images[:CHECKED_ON], dataset.classes)
        known = identity(classifier.model) | {"behaviour": behaviour(classifier, images)}
        stale = stale_batch_norm(classifier, images, labels, dataset.classes)
    return known | {"normalisation": classifier.normalisation}, stale


def from_checkpoint(checkpoint: zoo.Checkpoint) -> Target:
    """One of the zoo's checkpoints, or one like them; nothing but its descriptions is read yet."""
    cfg, record = checkpoint.config["pretrained_cfg"], checkpoint.record
    mean, std, interval = cfg["mean"], cfg["std"], record["lambda_init"]
    known = {
        "architecture": checkpoint.architecture,
        "arguments": checkpoint.config["model_args"],
        "weights": checkpoint.sha256,
        "normalisation": [mean, std],
    } | zoo.MODELS.code(checkpoint.architecture)
    card = ModelCard(
        checkpoint.architecture,
        known,
        recipe=checkpoint.recipe,
        lambda_init=zoo.interval_text(interval),
        train_seed=checkpoint.seed,
        seeds=(checkpoint.seed,),
        params_m=record["parameters"] / 1e6,
        weights_sha256=checkpoint.sha256,
        recorded_clean=record["clean_accuracy"],
    )
    # Cached, so that an ensemble shares its members with the single models.
    return Target(card, cache(lambda: _fast(Classifier(checkpoint.load(), mean, std, checkpoint.name))))


def member_names(named: str) -> list[str]:
    """What an ensemble's name joins: ``in_resnet20+preact_resnet20`` is two."""
    return [part.strip() for part in named.split("+")]


def joined(named: str, found: Sequence[Target], averaging: Averaging, dataset: str) -> list[Target]:
    """The ensembles of what `named` joins among the single models found, but for those that are there.

    Raises:
        UserError: if a part names none of them, or all parts together fewer than two.
    """
    singles = [target for target in found if target.card.members == 1]
    members: dict[int, Target] = {}
    for part in member_names(named):
        hits = [at for at, target in enumerate(singles) if _answers(target.card, part, dataset)]
        if not hits:
            raise unknown("member of an ensemble", part, {target.card.model for target in singles})
        members |= {at: singles[at] for at in hits}
    if len(members) < 2:
        raise UserError(f"an ensemble takes two models or more; {named} is one")
    there = [(target.card.identity, target.card.attacked_as) for target in found]
    made = _ensembles(list(members.values()), averaging)
    return [e for e in made if (e.card.identity, e.card.attacked_as) not in there]


def _answers(card: ModelCard, part: str, dataset: str) -> bool:
    names = [card.model, f"{card.model}.{dataset}_{card.recipe}_seed{card.train_seed}"]
    return part == "all" or (bool(matching(part, names)) if is_glob(part) else part in names)


def _ensembles(members: Sequence[Target], averaging: Averaging) -> list[Target]:
    """One ensemble for each way in which it is attacked."""
    return [_ensemble(members, averaging.average, attack) for attack in averaging.attacks]


def _ensemble(members: Sequence[Target], average: str, attack: str, name: str | None = None) -> Target:
    """An ensemble's target; how it is averaged and attacked stands in its name, where not as by default."""
    members, cards = tuple(members), [member.card for member in members]
    name = name or _joint(card.model for card in cards)
    check_ensemble(len(members), average, attack, name)
    special = [value for value, usual in ((average, AVERAGES[0]), (attack, WHITE_BOX)) if value != usual]
    card = ModelCard(
        name + "".join(f"({value})" for value in special),
        {"ensemble": [card.identity for card in cards], "average": average},
        recipe=_joint(card.recipe for card in cards),
        lambda_init=_joint(card.lambda_init for card in cards),
        seeds=tuple(sorted({card.train_seed for card in cards if card.train_seed is not None})),
        members=len(cards),
        params_m=sum(card.params_m for card in cards),
        weights_sha256=digest([card.weights_sha256 for card in cards]),
        attacked_as="" if attack == WHITE_BOX else attack,
    )
    return Target(
        card,
        lambda: Ensemble([member.load() for member in members], average, attack, card.label),
        _twins(card.label, cards),
    )


def _joint(texts: Iterable[str]) -> str:
    return "+".join(dict.fromkeys(filter(None, texts)))


def _twins(label: str, cards: Sequence[ModelCard]) -> tuple[str, ...]:
    """A line for each member that is the same classifier as one before it."""
    first: dict[str, ModelCard] = {}
    found = [(first.setdefault(digest(card.identity), card), card) for card in cards]
    return tuple(
        f"{label}: {card.label} is the same classifier as {other.label}, which counts twice in the average"
        for other, card in found
        if other is not card
    )


def _normalisation(model: nn.Module, dataset: data.Dataset):
    """A timm model's own mean and std, the dataset's if those are for other channels; else none."""
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        model = model.module
    cfg = getattr(model, "pretrained_cfg", None)
    if not cfg:
        return None, None
    if len(cfg["mean"]) == dataset.images.shape[1]:
        return cfg["mean"], cfg["std"]
    if dataset.name not in data.DATASETS:
        raise UserError(f"{type(model).__name__} is normalised for other channels: pass its mean and std")
    kind = data.DATASETS[dataset.name]
    return kind.mean, kind.std


def _normalised_inside(model: nn.Module):
    """Mean and std of a timm model below `model` that no Classifier applies; None if there is none."""
    if isinstance(model, Classifier) and model.normalisation:
        return None
    cfg = getattr(model, "pretrained_cfg", None)
    if cfg and any(cfg["mean"]):
        return cfg["mean"], cfg["std"]
    return next(filter(None, map(_normalised_inside, model.children())), None)


def _fast(classifier: Classifier) -> Classifier:
    """Channels last: a sixth less time under attack on a CPU, and every timm model allows it."""
    return classifier.to(memory_format=torch.channels_last)

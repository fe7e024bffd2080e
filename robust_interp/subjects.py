"""What can be measured: zoo checkpoints and their ensembles, and modules that came as objects.

A subject is a card, which says what it is without loading it, and a way to load it as a victim.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from torch import nn

from robust_interp import data, zoo
from robust_interp.cells import VictimCard, digest
from robust_interp.errors import UserError
from robust_interp.victim import (
    CHECKED_ON,
    Ensemble,
    Victim,
    behaviour,
    check_victim,
    identity,
    measurable,
    stale_batch_norm,
    undisturbed,
)

KNOWN_BY = 32  # images, spread over the set, whose logits and gradients tell one object from another


@dataclass(frozen=True, eq=False)
class Subject:
    """Something to measure: its card, how to load it as a victim on [0, 1] pixels, and what to say of it."""

    card: VictimCard
    load: Callable[[], nn.Module]
    notes: tuple[str, ...] = ()


def from_modules(modules: Mapping[str, nn.Module], mean, std, dataset: data.Dataset) -> list[Subject]:
    """Models that are objects already, by name; `mean` and `std` as in `from_module`."""
    return [from_module(name, model, mean, std, dataset) for name, model in modules.items()]


def from_module(
    name: str,
    model: nn.Module,
    mean,
    std,
    dataset: data.Dataset,
    sha256: str | None = None,
    notes: tuple[str, ...] = (),
) -> Subject:
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
    victim = Victim(model, mean, std, name)
    try:
        known, stale = _known(victim, dataset)
    except UserError as error:
        raise UserError("; ".join([str(error), *changed])) from error
    if stale:
        notes += (
            f"{name}: BatchNorm statistics look unset: the clean accuracy is chance with them, and well "
            "above with those of the batch",
        )
    params_m = sum(p.numel() for p in victim.parameters()) / 1e6
    card = VictimCard(name, known, params_m=params_m, weights_sha256=sha256 or known["state_sha256"])
    return Subject(card, lambda: victim, notes)


def from_zoo(
    patterns: Sequence[str], folder: str | None, seeds: Sequence[int] | None, ensembles: bool, dataset: str
) -> list[Subject]:
    """The checkpoints that are named: each model's seeds and, if asked for, their ensemble after them.

    Args:
        patterns: 'all', architectures, full names or globs.
        folder: A zoo folder besides the usual ones.
        seeds: Train seeds to take; None is every one.

    Raises:
        UserError: if a pattern or a seed finds nothing, or a checkpoint is broken.
    """
    candidates = zoo.checkpoints(folder, dataset)
    if not candidates:
        raise UserError(
            f"no checkpoint for {dataset} in the zoo: train one with "
            f"robust-interp train in_resnet20 --dataset {dataset}, or name a folder with --zoo"
        )
    chosen = zoo.select(patterns, candidates)
    if absent := sorted(set(seeds or ()) - {checkpoint.seed for checkpoint in chosen}):
        raise UserError(f"no checkpoint with train seed {absent[0]} among the models named")
    groups: dict[tuple, list[Subject]] = {}
    for checkpoint in chosen:
        if seeds is None or checkpoint.seed in seeds:
            subject = from_checkpoint(checkpoint)
            card = subject.card
            groups.setdefault((card.model, card.recipe, card.lambda_init), []).append(subject)
    for group in groups.values():
        if absent := sorted(set(seeds or ()) - {subject.card.train_seed for subject in group}):
            note = f"{group[0].card.model} {group[0].card.recipe} has no train seed {absent[0]}"
            group[0] = replace(group[0], notes=(f"{note}: its line is over fewer seeds than others",))
        if ensembles and len(group) > 1:
            group.append(_ensemble(group))
    return [subject for group in groups.values() for subject in group]


def _known(victim: Victim, dataset: data.Dataset) -> tuple[dict, bool]:
    """What a victim is known by: its code, state, and what it does to a few images. And if BN looks unset."""
    device = next((p.device for p in victim.parameters()), torch.device("cpu"))
    spread = np.unique(np.linspace(0, len(dataset) - 1, KNOWN_BY).astype(int))
    images = torch.from_numpy(data.as_pixels(dataset.images[spread])).to(device)
    labels = torch.from_numpy(dataset.labels[spread]).to(device)
    victim.to(device)  # buffers may have been elsewhere
    with undisturbed(victim):
        check_victim(victim, images[:CHECKED_ON], dataset.classes)
        known = identity(victim.model) | {"behaviour": behaviour(victim, images)}
        stale = stale_batch_norm(victim, images, labels, dataset.classes)
    return known | {"normalisation": victim.normalisation}, stale


def from_checkpoint(checkpoint: zoo.Checkpoint) -> Subject:
    """One of the zoo's checkpoints, or one like them; nothing but its descriptions is read yet."""
    cfg, record = checkpoint.config["pretrained_cfg"], checkpoint.record
    mean, std, interval = cfg["mean"], cfg["std"], record["lambda_init"]
    known = {
        "architecture": checkpoint.architecture,
        "arguments": checkpoint.config["model_args"],
        "weights": checkpoint.sha256,
        "normalisation": [mean, std],
    }
    card = VictimCard(
        checkpoint.architecture,
        known,
        recipe=checkpoint.recipe,
        lambda_init="-".join(f"{end:.2f}" for end in interval) if interval else "",
        train_seed=checkpoint.seed,
        seeds=(checkpoint.seed,),
        params_m=record["parameters"] / 1e6,
        weights_sha256=checkpoint.sha256,
        recorded_clean=record["clean_accuracy"],
    )
    # Cached, so that an ensemble shares its members with the single models.
    return Subject(card, cache(lambda: _fast(Victim(checkpoint.load(), mean, std, checkpoint.name))))


def _ensemble(members: list[Subject]) -> Subject:
    members = list(members)
    cards = [member.card for member in members]
    card = replace(
        cards[0],
        identity={"ensemble": [card.identity for card in cards], "average": "probabilities"},
        train_seed=None,
        seeds=tuple(card.train_seed for card in cards),
        members=len(cards),
        params_m=sum(card.params_m for card in cards),
        weights_sha256=digest([card.weights_sha256 for card in cards]),
        recorded_clean=None,
    )
    return Subject(card, lambda: Ensemble([member.load() for member in members], card.label))


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
    """Mean and std of a timm model somewhere below `model` that no Victim applies; None if there is none."""
    if isinstance(model, Victim) and model.normalisation:
        return None
    cfg = getattr(model, "pretrained_cfg", None)
    if cfg and any(cfg["mean"]):
        return cfg["mean"], cfg["std"]
    return next(filter(None, map(_normalised_inside, model.children())), None)


def _fast(victim: Victim) -> Victim:
    """Channels last: a sixth less time under attack on a CPU, and every timm model allows it."""
    return victim.to(memory_format=torch.channels_last)

"""Make targets of the zoo's checkpoints by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from pathlib import Path

from robust_interp import data, zoo
from robust_interp.classifiers.classifier import Classifier
from robust_interp.classifiers.target import LoadAttempts, Target, TargetLoader, to_channels_last
from robust_interp.core.errors import UserError
from robust_interp.core.registry import is_glob
from robust_interp.core.work import ProgressCallback, no_progress, with_progress
from robust_interp.store.cells import ModelCard, digest

SHOWN = 4  # of broken checkpoints, where all are

NO_ATTEMPTS: LoadAttempts = {}

# The devices on which a network has passed its check, by all that it is but for its weights.
Passed = dict[tuple[str, data.Dataset], set[str]]


def from_zoo(
    patterns: Sequence[str],
    candidates: list[zoo.Checkpoint],
    seeds: Sequence[int] | None,
    dataset: data.Dataset,
    progress: ProgressCallback = no_progress,
    tried: LoadAttempts = NO_ATTEMPTS,
    passed: Passed | None = None,
) -> list[list[Target]]:
    """Select checkpoints, and return one list of targets for each architecture, recipe and interval of λ.

    A broken checkpoint, or one of a broken plug-in, is left out with a note unless a pattern names it itself.

    Args:
        patterns: 'all', architectures, full names of checkpoints, or globs.
        candidates: The checkpoints to choose from.
        seeds: Train seeds to take; None takes all.
        dataset: The data set that the checkpoints are measured on.
        progress: Called with the progress of reading the checkpoints.
        tried: Results of earlier attempts to load targets; a checkpoint that failed is broken.
        passed: As for `from_checkpoint`.

    Raises:
        UserError: if a pattern or a seed matches nothing, a checkpoint or architecture that is named itself
            is broken or has none of the seeds, or nothing is left.
    """
    chosen = zoo.select(patterns, candidates)
    if absent := sorted(set(seeds or ()) - {checkpoint.seed for checkpoint in chosen}):
        raise UserError(f"no checkpoint with train seed {absent[0]} among the given models")
    groups: dict[tuple, list[Target]] = {}
    places: dict[tuple, dict[Path, list[int]]] = {}
    named = {pattern.partition("@")[0] for pattern in patterns}
    seedless = _without_seeds(patterns, chosen, seeds)
    broken = _broken_plugins(chosen, named)
    for checkpoint in with_progress(chosen, progress, lambda checkpoint: checkpoint.name):
        if checkpoint.architecture not in broken and (seeds is None or checkpoint.seed in seeds):
            try:
                target = _as_tried(from_checkpoint(checkpoint, dataset, passed), tried)
            except UserError as error:
                if {checkpoint.architecture, checkpoint.name} & named:
                    raise
                broken[checkpoint.name] = f"{error}; it is left out"
                continue
            card = target.card
            row = card.model, card.recipe, card.lambda_init
            groups.setdefault(row, []).append(target)
            places.setdefault(row, {}).setdefault(checkpoint.folder.parent, []).append(checkpoint.seed)
    if broken and not groups:
        raise UserError("; ".join(list(broken.values())[:SHOWN] + ["..."] * (len(broken) > SHOWN)))
    found = list(groups.values())
    for row, group in groups.items():
        if len(places[row]) > 1:
            group[0] = replace(group[0], notes=(*group[0].notes, _mixed(group[0].card, places[row])))
        if absent := sorted(set(seeds or ()) - {target.card.train_seed for target in group}):
            lacking = f"{group[0].card.model} {group[0].card.recipe} has no train seed {absent[0]}"
            note = f"{lacking}: its row averages fewer seeds than the others"
            group[0] = replace(group[0], notes=(*group[0].notes, note))
    first = found[0][0]
    found[0][0] = replace(first, notes=(*first.notes, *seedless), left_out=tuple(broken.values()))
    return found


def _mixed(card: ModelCard, places: Mapping[Path, Sequence[int]]) -> str:
    """Return a note that the seeds of a row are from several folders."""
    parts = [f"{folder} (seeds {', '.join(map(str, seeds))})" for folder, seeds in places.items()]
    return (
        f"the checkpoints of {card.model} {card.recipe} are from {' and '.join(parts)}: "
        "--only-zoo uses those of --zoo alone"
    )


def _without_seeds(
    patterns: Iterable[str], chosen: list[zoo.Checkpoint], seeds: Sequence[int] | None
) -> list[str]:
    """Return a note for each architecture and recipe that has none of the train seeds.

    Raises:
        UserError: if no checkpoint of a pattern that is no glob has one.
    """
    if seeds is None:
        return []
    for pattern in patterns:
        name = pattern.partition("@")[0]
        if name != "all" and not is_glob(name):
            zoo.select_seeds(pattern, chosen, seeds)
    kept = {(c.architecture, c.recipe) for c in chosen if c.seed in seeds}
    lost = {(c.architecture, c.recipe) for c in chosen} - kept
    wanted = ", ".join(map(str, seeds))
    return [f"{' '.join(row)} has no train seed {wanted}: it is left out" for row in sorted(lost)]


def _as_tried(target: Target, tried: LoadAttempts) -> Target:
    """Return the target with its earlier `load`.

    Raises:
        UserError: if the earlier attempt to load it failed.
    """
    before = tried.get(target.key)
    if isinstance(before, UserError):
        raise before
    return replace(target, load=before) if before else target


def from_checkpoint(
    checkpoint: zoo.Checkpoint, dataset: data.Dataset, passed: Passed | None = None
) -> Target:
    """Make a target of a checkpoint in the zoo's format. Its weights are not loaded yet.

    Args:
        checkpoint: The checkpoint.
        dataset: The data set that it is measured on.
        passed: Shared by several checkpoints; of those that differ only in their weights, one is checked in
            full. None checks this one in full.
    """
    cfg, record = checkpoint.config["pretrained_cfg"], checkpoint.record
    dataset = dataset.preprocessed_for(cfg)
    code = {
        "architecture": checkpoint.architecture,
        "arguments": checkpoint.config["model_args"],
        "normalisation": [cfg["mean"], cfg["std"]],
    } | zoo.MODELS.code(checkpoint.architecture)
    known = code | {"weights": checkpoint.sha256}
    kind = digest([code, cfg["num_classes"], cfg["input_size"]]), dataset
    alike = ({} if passed is None else passed).setdefault(kind, set())
    card = ModelCard(
        checkpoint.architecture,
        known,
        recipe=checkpoint.recipe,
        lambda_init=zoo.interval_text(record["lambda_init"]),
        train_seed=checkpoint.seed,
        seeds=(checkpoint.seed,),
        params_m=record["parameters"] / 1e6,
        weights_sha256=checkpoint.sha256,
        recorded_clean=record["clean_accuracy"],
    )
    notes: tuple[str, ...] = ()
    if checkpoint.dataset != dataset.name:
        card = replace(card, recorded_clean=None)
        notes = (f"{checkpoint.name} was trained on {checkpoint.dataset}, not on {dataset.name}",)
    load = TargetLoader(lambda: to_channels_last(classifier_of(checkpoint)), dataset, alike_passed_on=alike)
    return Target(card, load, notes, dataset, checkpoint=checkpoint.name)


def classifier_of(checkpoint: zoo.Checkpoint) -> Classifier:
    """Load a checkpoint as a classifier of pixels, with the normalisation of its training.

    Raises:
        UserError: if its weights cannot be read or do not fit.
    """
    cfg = checkpoint.config["pretrained_cfg"]
    return Classifier(checkpoint.load(), cfg["mean"], cfg["std"], checkpoint.name)


def _broken_plugins(chosen: Sequence[zoo.Checkpoint], named: Set[str]) -> dict[str, str]:
    """Return the architectures whose plug-in is broken, each with a note that says why.

    Raises:
        UserError: if such an architecture, or a checkpoint of one, is in `named`.
    """
    broken = {}
    for architecture in dict.fromkeys(checkpoint.architecture for checkpoint in chosen):
        try:
            if architecture in zoo.MODELS:
                zoo.is_model(architecture)
        except UserError as error:
            names = {c.name for c in chosen if c.architecture == architecture}
            if {architecture, *names} & named:
                raise
            broken[architecture] = f"{error}; it is left out"
    return broken

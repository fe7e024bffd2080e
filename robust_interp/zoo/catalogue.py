"""List the available checkpoints, and select checkpoints by name."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import robust_interp
from robust_interp.core.errors import UserError
from robust_interp.core.paths import expanded
from robust_interp.core.registry import is_glob, matching, unknown
from robust_interp.zoo.checkpoint import Checkpoint
from robust_interp.zoo.registered import is_model, may_be_registered


def bundled(folder: str = "model_zoo") -> Path:
    """Return a folder that is shipped with the package: inside it if installed, beside it in a checkout."""
    package = Path(robust_interp.__file__).parent
    inside = package / folder
    return inside if inside.is_dir() else package.parent / folder


def checkpoints(
    zoo: str | os.PathLike | None = None, dataset: str | None = None, only: bool = False
) -> list[Checkpoint]:
    """Return all checkpoints, or those of one data set, sorted by architecture, data set, recipe and seed.

    Args:
        zoo: A folder of checkpoints to search before ./model_zoo and the package.
        dataset: Name of the data set; None means all.
        only: Whether to search only `zoo`.

    Raises:
        UserError: if the folder does not exist, or if `only` is given without a folder.
    """
    if only and not zoo:
        raise UserError("--only-zoo needs a zoo folder: name it with --zoo")
    places = [expanded(zoo)] if zoo else []
    if places and not places[0].is_dir():
        raise UserError(f"there is no zoo folder {zoo}")
    found: dict[str, Checkpoint] = {}
    for place in places if only else [*places, Path("model_zoo"), bundled()]:
        for folder in sorted(place.iterdir()) if place.is_dir() else ():
            checkpoint = Checkpoint.at(folder)
            if checkpoint and dataset in (None, checkpoint.dataset):
                found.setdefault(checkpoint.name, checkpoint)
    return sorted(found.values(), key=lambda c: (c.architecture, c.dataset, c.recipe, c.seed))


def checkpoints_for(
    dataset: str, zoo: str | os.PathLike | None = None, only: bool = False
) -> list[Checkpoint]:
    """Return the checkpoints of a data set, in the order of `checkpoints`.

    Args:
        dataset: Name of the data set.
        zoo: A folder of checkpoints to search first.
        only: Whether to search only `zoo`.

    Raises:
        UserError: if there is no checkpoint, or in the cases of `checkpoints`.
    """
    if found := checkpoints(zoo, dataset, only):
        return found
    where = zoo if only else "the zoo"
    raise UserError(
        f"no checkpoint for {dataset} in {where}: train one with "
        f"robust-interp train --models in_resnet20 --dataset {dataset}, or name a folder with --zoo"
    )


def checkpoints_that_fit(
    classes: int, channels: int, dataset: str, zoo: str | os.PathLike | None, only: bool
) -> list[Checkpoint]:
    """Return the checkpoints that fit a user's own images, in the order of `checkpoints`; no broken ones.

    Args:
        classes: Number of classes of the images.
        channels: Number of channels of the images.
        dataset: Name of the images in messages.
        zoo: A folder of checkpoints to search first.
        only: Whether to search only `zoo`.

    Raises:
        UserError: if no checkpoint fits, or in the cases of `checkpoints`.
    """
    of_all = checkpoints(zoo, None, only)
    made_for = [(checkpoint, _made_for(checkpoint)) for checkpoint in of_all]
    if found := [checkpoint for checkpoint, images in made_for if images == (classes, channels)]:
        return found
    kinds = dict.fromkeys(images for _, images in made_for if images)
    there = " or ".join(f"{one[0]} classes and {one[1]} channels" for one in kinds)
    have = f" (they are for {there})" if there else ""
    raise UserError(
        f"no checkpoint in {zoo if only else 'the zoo'} is for {classes} classes and {channels} channels, as "
        f"{dataset} has{have}: name a folder with --zoo, or other models, such as timm:NAME with "
        "--checkpoint FILE"
    )


def _made_for(checkpoint: Checkpoint) -> tuple[int, int] | None:
    """Return the numbers of classes and channels of a checkpoint; None if it is broken."""
    try:
        cfg = checkpoint.config["pretrained_cfg"]
    except UserError:
        return None
    return cfg["num_classes"], cfg["input_size"][0]


_FULL_NAME = re.compile(r"[\w-]+\.([a-z0-9]+)_\w+_seed[0-9]+", re.ASCII)


def implied_dataset(names: Iterable[str]) -> str:
    """Return the data set in the full names of checkpoints; ``digits`` if there is none.

    Args:
        names: Names of models of any kind, paths of folders, or names of ensembles.

    Raises:
        UserError: if the names contain several data sets.
    """
    parts = [part.strip() for name in names for part in name.split("+")]
    found = {dataset for part in parts if (dataset := dataset_in(part))}
    if len(found) > 1:
        raise UserError(f"the checkpoints are for {' and '.join(sorted(found))}: choose one with --dataset")
    return next(iter(found), "digits")


def dataset_in(name: str) -> str | None:
    """Return the data set in the full name or path of a checkpoint; None for any other name."""
    found = _FULL_NAME.fullmatch(Path(name).name)
    return found[1] if found else None


def select(patterns: Iterable[str], candidates: list[Checkpoint]) -> list[Checkpoint]:
    """Return the candidates that match at least one pattern, in the order of the candidates.

    Args:
        patterns: 'all', architectures, full names of checkpoints, or globs for either. The suffix
            ``@RECIPE``, a name or glob, restricts a pattern to checkpoints of that recipe.
        candidates: The checkpoints to choose from.

    Raises:
        UserError: if a name, glob or recipe has no match.
    """
    chosen: dict[str, Checkpoint] = {}
    for pattern in patterns:
        name, at, recipe = pattern.partition("@")
        hits = [c for c in candidates if name == "all" or _matches(name, c)]
        if not hits:
            raise _no_checkpoint(name, candidates)
        if at:
            hits = _of_recipe(recipe, hits)
        chosen |= {c.name: c for c in hits}
    return [c for c in candidates if c.name in chosen]


def select_seeds(pattern: str, candidates: list[Checkpoint], seeds: Sequence[int] | None) -> list[Checkpoint]:
    """Return the candidates that match a pattern, as in `select`, and have one of the seeds; None takes all.

    Raises:
        UserError: if nothing matches, or no match has one of the seeds.
    """
    found = [c for c in select([pattern], candidates) if seeds is None or c.seed in seeds]
    if seeds is not None and not found:
        raise UserError(f"{pattern} has no checkpoint with train seed {', '.join(map(str, seeds))}")
    return found


def check_known(pattern: str, candidates: list[Checkpoint]) -> None:
    """Refuse a pattern that matches no candidate and no registered model. timm is not imported.

    Raises:
        UserError: if nothing matches.
    """
    name = pattern.partition("@")[0]
    hits = name == "all" or any(_matches(name, candidate) for candidate in candidates)
    if not hits:
        _check_dataset(name, candidates)
    if not hits and (is_glob(name) or not may_be_registered(name)):
        raise unknown("model", name, {c.architecture for c in candidates})


def _check_dataset(name: str, candidates: Iterable[Checkpoint]) -> None:
    """Refuse the full name of a checkpoint for another data set than the candidates'."""
    dataset, others = dataset_in(name), {candidate.dataset for candidate in candidates}
    if dataset and dataset not in others:
        raise UserError(f"{name} is a checkpoint for {dataset}: give --dataset {dataset}")


def _of_recipe(recipe: str, found: list[Checkpoint]) -> list[Checkpoint]:
    hits = [c for c in found if matching(recipe, [c.recipe])]
    if not hits:
        raise unknown("recipe", recipe, {c.recipe for c in found})
    return hits


def _no_checkpoint(pattern: str, candidates: list[Checkpoint]) -> UserError:
    have = sorted({c.architecture for c in candidates})
    if "+" in pattern:
        return UserError(
            f"{pattern} is no model: name its members, and the ensemble with --ensemble {pattern}"
        )
    _check_dataset(pattern, candidates)
    if not is_glob(pattern) and is_model(pattern):
        datasets = ", ".join(sorted({c.dataset for c in candidates}))
        return UserError(
            f"{pattern} has no checkpoint for {datasets} in the zoo (there are {', '.join(have)}): "
            "choose another data set with --dataset, train it with robust-interp train, or give its weights "
            "with --checkpoint"
        )
    return unknown("model", pattern, have)


def _matches(pattern: str, checkpoint: Checkpoint) -> bool:
    names = [checkpoint.architecture, checkpoint.name]
    return bool(matching(pattern, names)) if is_glob(pattern) else pattern in names

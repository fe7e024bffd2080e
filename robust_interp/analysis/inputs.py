"""The checkpoints that an analysis is about, and the images it looks at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from robust_interp import zoo
from robust_interp.classifiers.classifier import Classifier
from robust_interp.classifiers.zoo_names import classifier_of
from robust_interp.core.errors import UserError
from robust_interp.corruptions import Corruptor, resolve
from robust_interp.data import Dataset


def checkpoints(
    names: Iterable[str], folder: str | None, dataset: str, seeds: Sequence[int] | None = None
) -> list[zoo.Checkpoint]:
    """The zoo's checkpoints for a dataset that are named: architectures, full names or globs, in that order.

    Args:
        names: What is named.
        folder: A zoo folder besides the usual ones.
        dataset: The one that they were trained on.
        seeds: Train seeds to take; None is every one.

    Raises:
        UserError: for a name that matches none, or none with these seeds.
    """
    candidates = zoo.checkpoints_for(dataset, folder)
    chosen = {c.name: c for name in names for c in zoo.select([name], candidates)}
    found = [c for c in chosen.values() if seeds is None or c.seed in seeds]
    if seeds is not None and not found:
        raise UserError(f"no checkpoint with train seed {', '.join(map(str, seeds))} among the given models")
    return found


def singles(names: Iterable[str], folder: str | None, dataset: str) -> dict[str, zoo.Checkpoint]:
    """One checkpoint a model, by what a figure calls it: its first train seed, unless named in full.

    Args:
        names: As of `checkpoints`, like `folder` and `dataset`.

    Raises:
        UserError: for a name that matches none.
    """
    found: dict[str, zoo.Checkpoint] = {}
    for name in names:
        taken = set()
        for checkpoint in checkpoints([name], folder, dataset):
            model = checkpoint.architecture, checkpoint.recipe
            if model not in taken:
                found[checkpoint.name] = checkpoint
                taken.add(model)
    one_each = list(found.values())
    called = labels(one_each)
    return {
        f"{label} seed {c.seed}" if called.count(label) > 1 else label: c
        for label, c in zip(called, one_each, strict=True)
    }


def labels(found: Sequence[zoo.Checkpoint]) -> list[str]:
    """What a figure calls each: its architecture, with the recipe where they differ in it."""
    several = len({checkpoint.recipe for checkpoint in found}) > 1
    return [f"{c.architecture} @{c.recipe}" if several else c.architecture for c in found]


def classifier(checkpoint: zoo.Checkpoint, device: torch.device | str = "cpu") -> Classifier:
    """A checkpoint on [0, 1] pixels, in eval mode and frozen.

    Raises:
        UserError: if its weights cannot be read or do not fit.
    """
    return classifier_of(checkpoint).to(device).eval().requires_grad_(False)


def images(
    dataset: Dataset,
    ids: Iterable[int],
    corruption: tuple[str, int] | None = None,
    seed: int = 0,
    corruptions_dir: Path | None = None,
) -> tuple[Tensor, Tensor]:
    """Pixels (N, C, H, W) in [0, 1] and labels (N,) of test images, corrupted if asked for.

    Args:
        ids: of the images, counted from 0.
        corruption: name and severity, 1 to 5.
        seed: of a generated corruption.

    Raises:
        UserError: for an id outside the dataset, or a corruption or severity that is not there.
    """
    ids = list(ids)
    if beyond := [i for i in ids if not 0 <= i < len(dataset)]:
        raise UserError(f"{dataset.name} has test images 0 to {len(dataset) - 1}, not {beyond[0]}")
    if corruption is None:
        pixels = [dataset.pixels(i, i + 1) for i in ids]
    else:
        name, severity = corruption
        corruptor = Corruptor(dataset, seed, corruptions_dir)
        perturbation, *others = resolve(f"{name}(severity={severity})", corruptor)
        if others:
            raise UserError(f"{name} is a group: give one corruption of it")
        pixels = [corruptor.pixels(perturbation, i, i + 1) for i in ids]
    return torch.from_numpy(np.concatenate(pixels)), torch.from_numpy(dataset.labels[ids])

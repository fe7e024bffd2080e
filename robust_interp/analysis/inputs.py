"""Selection of the checkpoints and images for an analysis."""

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
from robust_interp.corruptions import Corruptor, parse_corruptions
from robust_interp.data import Dataset


def checkpoints(
    names: Iterable[str],
    folder: str | None,
    dataset: str,
    seeds: Sequence[int] | None = None,
    only: bool = False,
) -> list[zoo.Checkpoint]:
    """Select checkpoints from the zoo by name, in the order of the names.

    Args:
        names: Architectures, full checkpoint names or globs.
        folder: An additional zoo folder.
        dataset: The data set the checkpoints were trained on.
        seeds: The train seeds to keep; None keeps all.
        only: Whether to search in `folder` only.

    Raises:
        UserError: if a name matches no checkpoint, or none with one of the seeds.
    """
    candidates = zoo.checkpoints_for(dataset, folder, only)
    found: dict[str, zoo.Checkpoint] = {}
    for name in names:
        found |= {c.name: c for c in zoo.select_seeds(name, candidates, seeds)}
    return list(found.values())


def singles(
    names: Iterable[str], folder: str | None, dataset: str, only: bool = False
) -> dict[str, zoo.Checkpoint]:
    """Select one checkpoint per model, by figure label: the first train seed, unless named in full.

    Args:
        names: As in `checkpoints`; so are `folder`, `dataset` and `only`.

    Raises:
        UserError: if a name matches no checkpoint.
    """
    found: dict[str, zoo.Checkpoint] = {}
    for name in names:
        taken = set()
        for checkpoint in checkpoints([name], folder, dataset, only=only):
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
    """Return the figure label of each checkpoint: the architecture, plus the recipe if the recipes differ."""
    several = len({checkpoint.recipe for checkpoint in found}) > 1
    return [f"{c.architecture} @{c.recipe}" if several else c.architecture for c in found]


def classifier(checkpoint: zoo.Checkpoint, device: torch.device | str = "cpu") -> Classifier:
    """Load a checkpoint as a classifier of [0, 1] pixels, in eval mode and frozen.

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
    """Return pixels (N, C, H, W) in [0, 1] and labels (N,) of test images.

    Args:
        dataset: The data set.
        ids: Indices of the images, from 0.
        corruption: Name and severity (1 to 5) of a corruption to apply; None applies none.
        seed: Seed of a generated corruption.
        corruptions_dir: Passed on to `Corruptor`.

    Raises:
        UserError: if an id is outside the data set, or the corruption or severity does not exist.
    """
    ids = list(ids)
    if beyond := [i for i in ids if not 0 <= i < len(dataset)]:
        raise UserError(f"{dataset.name} has test images 0 to {len(dataset) - 1}, not {beyond[0]}")
    if corruption is None:
        pixels = [dataset.pixels(i, i + 1) for i in ids]
    else:
        name, severity = corruption
        corruptor = Corruptor(dataset, seed, corruptions_dir)
        perturbation, *others = parse_corruptions(f"{name}(severity={severity})", corruptor)
        if others:
            raise UserError(f"{name} is a group: give one corruption of it")
        pixels = [corruptor.pixels(perturbation, i, i + 1) for i in ids]
    return torch.from_numpy(np.concatenate(pixels)), torch.from_numpy(dataset.labels[ids])

"""Make a target of a model and a weights file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import nn

from robust_interp import zoo
from robust_interp.classifiers.target import Context, Target, from_module
from robust_interp.core.files import sha256_of


def with_weights(
    name: str, model: nn.Module, path: Path, context: Context, notes: tuple[str, ...] = ()
) -> Target:
    """Load weights into a model and make a target of it.

    Args:
        name: Name of the model.
        model: The model; the weights are loaded into it.
        path: Path of the weights file.
        context: The data set and the other settings. Its `mean` and `std` take precedence over a
            normalisation in the file; its `weights_key` chooses one of several state dicts.
        notes: Notes to add to the target's.

    Raises:
        UserError: if the file cannot be read or does not fit, or the model cannot be measured.
    """
    found = zoo.load_weights(model, path, context.weights_key)
    notes += found.notes
    sha256 = sha256_of(path)
    if found.normalisation and context.mean is None and context.std is None:
        mean, std = found.normalisation
        notes += (f"{path} contains a normalisation, mean {mean} and std {std}; it is applied",)
        context = replace(context, mean=mean, std=std)
    return from_module(name, model, context, sha256, notes)

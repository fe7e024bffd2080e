"""A model with the weights of a file."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from torch import nn

from robust_interp import zoo
from robust_interp.classifiers.target import Context, Target, from_module


def with_weights(
    name: str, model: nn.Module, path: Path, context: Context, notes: tuple[str, ...] = ()
) -> Target:
    """A model with the weights of a file, and with the normalisation that the file holds, if any.

    Args:
        name: What it is called.
        model: Of the architecture that the weights are for; they are loaded into it.
        path: The file.
        context: What it is to be measured on; a normalisation that it says comes before the file's. And which
            of several state dicts in the file is meant.
        notes: What a reader of its numbers must be told already.

    Raises:
        UserError: if the file cannot be read or does not fit, or the model cannot be measured.
    """
    found = zoo.load_weights(model, path, context.weights_key)
    notes += found.notes
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if found.normalisation and context.mean is None and context.std is None:
        mean, std = found.normalisation
        notes += (f"{path} contains a normalisation, mean {mean} and std {std}; it is applied",)
        context = replace(context, mean=mean, std=std)
    return from_module(name, model, context, sha256, notes)

"""Checkpoint folders and weights files as targets."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path

from robust_interp import zoo
from robust_interp.classifiers.target import Context, Target, check_fits, fast, size_note
from robust_interp.classifiers.weights import with_weights
from robust_interp.classifiers.zoo_names import from_checkpoint
from robust_interp.core.errors import UserError
from robust_interp.zoo import weights_files

WEIGHTS_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".tar", ".th")
WEIGHTS_IN_FOLDER = (zoo.WEIGHTS, "pytorch_model.bin")


_OF_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|.*\\")  # which no name of another kind looks like


def is_path(name: str) -> bool:
    """Whether a name is meant as a folder or a file."""
    written_as_one = os.sep in name or _OF_WINDOWS.match(name) or name.endswith(WEIGHTS_SUFFIXES)
    return bool(written_as_one) or (Path(name) / zoo.CONFIG).is_file()


def from_path(path: Path, context: Context) -> Target:
    """A checkpoint folder, ours or timm's, or a weights file beside a config.json.

    Raises:
        UserError: if it is none of these, or does not fit the dataset.
    """
    if path.is_dir():
        return _folder(path, context)
    if not path.is_file():
        raise UserError(f"there is no folder or file {path}")
    if (path.parent / zoo.CONFIG).is_file():
        return described(path, f"{path.resolve().parent.name}/{path.name}", context)
    weights_files.read_state(path)  # which says if it is no weights file at all
    raise UserError(
        f"{path} does not name an architecture, and there is no {zoo.CONFIG} beside it: use "
        f"--models timm:NAME --checkpoint {path}"
    )


def _folder(folder: Path, context: Context) -> Target:
    own = zoo.Checkpoint.at(folder.resolve())
    if own and (folder / zoo.RECORD).is_file():
        return _of_ours(own, context)
    found = [folder / name for name in WEIGHTS_IN_FOLDER if (folder / name).is_file()]
    if (folder / zoo.CONFIG).is_file() and found:
        return described(found[0], folder.resolve().name, context)
    if any(map(zoo.Checkpoint.at, folder.iterdir())):
        raise UserError(
            f"{folder} is a folder of checkpoints: give it with --zoo, or name one checkpoint in it"
        )
    raise UserError(f"{folder} is not a checkpoint folder: it lacks {zoo.CONFIG} or {zoo.WEIGHTS}")


def _of_ours(checkpoint: zoo.Checkpoint, context: Context) -> Target:
    """A checkpoint as the trainer writes them, with the same card as if it were in the zoo."""
    cfg = checkpoint.config["pretrained_cfg"]
    check_fits(str(checkpoint.folder), cfg["num_classes"], cfg["input_size"][0], context)
    target = from_checkpoint(checkpoint, context.dataset)
    if checkpoint.dataset == context.dataset.name:
        return target
    note = f"{checkpoint.name} was trained on {checkpoint.dataset}, not on {context.dataset.name}"
    return replace(target, card=replace(target.card, recorded_clean=None), notes=(note,))


def described(path: Path, name: str, context: Context) -> Target:
    """Weights beside a config.json as timm writes it, as a target.

    Args:
        path: Of the weights file.
        name: What the model is called.
        context: What it is to be measured on.

    Raises:
        UserError: if the description has another format, or does not fit the dataset or the weights.
    """
    config = _config(path.parent / zoo.CONFIG)
    cfg, arguments = config["pretrained_cfg"], dict(config.get("model_args") or {})
    size = cfg.get("input_size") or list(context.dataset.images.shape[1:])
    channels = arguments.pop("in_chans", size[0])
    classes = config.get("num_classes", cfg.get("num_classes"))
    classes = arguments.pop("num_classes", classes)
    check_fits(str(path.parent), classes, channels, context)
    notes = size_note(name, size, context)
    if context.mean is None and context.std is None:
        mean, std = cfg.get("mean"), cfg.get("std")
        if not mean or not std or len(mean) != channels:
            lacks = f"no mean and std for {channels} channels"
            raise UserError(f"{path.parent / zoo.CONFIG} has {lacks}: give --mean and --std")
        context = replace(context, mean=mean, std=std)
    model = zoo.create(config["architecture"], num_classes=classes, in_chans=channels, **arguments)
    return with_weights(name, fast(model), path, context, notes)


def _config(path: Path) -> dict:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    kinds = {"architecture": str, "pretrained_cfg": dict}
    if not isinstance(config, dict) or not all(isinstance(config.get(key), kinds[key]) for key in kinds):
        raise UserError(
            f"{path} does not have timm's format, with architecture and pretrained_cfg: for a model of "
            "transformers use hf:FOLDER, for one of another library package.module:factory"
        )
    cfg = config["pretrained_cfg"]
    optional = {
        "model_args": (config, dict),
        "input_size": (cfg, list),
        "mean": (cfg, list),
        "std": (cfg, list),
    }
    for key, (where, kind) in optional.items():
        if where.get(key) is not None and not isinstance(where[key], kind):
            raise UserError(f"{path}: {key} cannot be {where[key]!r}")
    return config

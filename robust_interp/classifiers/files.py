"""Make targets of checkpoint folders and weights files."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from robust_interp import zoo
from robust_interp.classifiers.target import Context, Target, check_fits, size_note, to_channels_last
from robust_interp.classifiers.weights import with_weights
from robust_interp.classifiers.zoo_names import from_checkpoint
from robust_interp.core.errors import UserError
from robust_interp.core.json_values import (
    Form,
    check,
    is_count,
    is_number,
    is_object,
    is_text,
    list_of,
    or_null,
    read_object,
)
from robust_interp.core.paths import expanded
from robust_interp.core.registry import module_hint
from robust_interp.zoo import weights_files

WEIGHTS_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".tar", ".th")
WEIGHTS_IN_FOLDER = (zoo.WEIGHTS, "pytorch_model.bin")


_OF_WINDOWS = re.compile(r"[A-Za-z]:[\\/]|.*\\")  # no other kind of name looks like a Windows path


def is_path(name: str) -> bool:
    """Whether a name is the path of a folder or file."""
    written_as_one = "/" in name or _OF_WINDOWS.match(name) or name.endswith(WEIGHTS_SUFFIXES)
    return bool(written_as_one) or (Path(name) / zoo.CONFIG).is_file()


def is_own_folder(name: str) -> bool:
    """Whether a name is the path of a checkpoint folder of this package, alone or as timm's local-dir."""
    return _own(expanded(name.removeprefix("timm:local-dir:"))) is not None


def _own(folder: Path) -> zoo.Checkpoint | None:
    return zoo.Checkpoint.at(folder.resolve()) if (folder / zoo.RECORD).is_file() else None


def from_path(path: Path, context: Context) -> Target:
    """Make a target of a checkpoint folder (ours or timm's) or of a weights file beside a config.json.

    Raises:
        UserError: if the path is none of these, or the model does not fit the data set.
    """
    if path.is_dir():
        return _folder(path, context)
    if not path.is_file():
        raise UserError(f"there is no folder or file {path}{module_hint(str(path))}")
    if (path.parent / zoo.CONFIG).is_file():
        return target_from_config(path, f"{path.resolve().parent.name}/{path.name}", context)
    weights_files.read_state(path)  # raises if it is not a weights file at all
    raise UserError(
        f"{path} does not name an architecture, and there is no {zoo.CONFIG} beside it: use "
        f"--models timm:NAME --checkpoint {path}"
    )


def _folder(folder: Path, context: Context) -> Target:
    if own := _own(folder):
        return _of_ours(own, context)
    found = [folder / name for name in WEIGHTS_IN_FOLDER if (folder / name).is_file()]
    if (folder / zoo.CONFIG).is_file() and found:
        return target_from_config(found[0], folder.resolve().name, context)
    if any(map(zoo.Checkpoint.at, folder.iterdir())):
        raise UserError(
            f"{folder} is a folder of checkpoints: give it with --zoo, or name one checkpoint in it"
        )
    raise UserError(f"{folder} is not a checkpoint folder: it lacks {zoo.CONFIG} or {zoo.WEIGHTS}")


def _of_ours(checkpoint: zoo.Checkpoint, context: Context) -> Target:
    """Make a target of a checkpoint of this package, with the same card as if it were in the zoo."""
    cfg = checkpoint.config["pretrained_cfg"]
    check_fits(str(checkpoint.folder), cfg["num_classes"], cfg["input_size"][0], context)
    return from_checkpoint(checkpoint, context.dataset)


def target_from_config(path: Path, name: str, context: Context) -> Target:
    """Make a target of a weights file beside a config.json in timm's format.

    Args:
        path: Path of the weights file.
        name: Name of the model.
        context: The data set and the other settings of the model.

    Raises:
        UserError: if config.json has another format, or does not fit the data set or the weights.
    """
    config = _config(path.parent / zoo.CONFIG)
    cfg, arguments = config["pretrained_cfg"], dict(config.get("model_args") or {})
    context = context.preprocessed_for(cfg)
    size = cfg.get("input_size") or list(context.dataset.shape)
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
    return with_weights(name, to_channels_last(model), path, context, notes)


_OPTIONAL: dict[str, Form] = {
    "input_size": list_of(is_count, 3),
    "mean": list_of(is_number),
    "std": list_of(is_number),
}


def _config(path: Path) -> dict:
    config = read_object(path)
    if not is_text(config.get("architecture")) or not is_object(config.get("pretrained_cfg")):
        raise UserError(
            f"{path} does not have timm's format, with architecture and pretrained_cfg: for a model of "
            "transformers use hf:FOLDER, for one of another library package.module:factory"
        )
    check(path, config, {}, {"model_args": or_null(is_object)})
    check(path, config["pretrained_cfg"], {}, {key: or_null(form) for key, form in _OPTIONAL.items()})
    return config

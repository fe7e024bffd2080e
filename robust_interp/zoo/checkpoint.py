"""One checkpoint: a folder of timm's format plus train.json, checked, loaded, saved."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robust_interp.core.errors import UserError
from robust_interp.core.files import new_folder
from robust_interp.zoo.registered import create

if TYPE_CHECKING:  # listing checkpoints needs no torch
    from torch import nn

    from robust_interp.zoo.weights_files import Fitted

WEIGHTS, CONFIG, RECORD = "model.safetensors", "config.json", "train.json"

_NAME = re.compile(
    r"(?P<architecture>\w+)\.(?P<dataset>[a-z0-9]+)_(?P<recipe>[a-z0-9_]+)_seed(?P<seed>\d+)", re.ASCII
)


def _is(*kinds: type) -> Callable[[object], bool]:
    return lambda value: isinstance(value, kinds) and not isinstance(value, bool)


def _numbers(above: float = -math.inf) -> Callable[[object], bool]:
    """A test for lists of finite numbers, each above a bound."""
    number = _is(int, float)
    return lambda value: isinstance(value, list) and all(number(v) and above < v < math.inf for v in value)


def _is_size(value: Any) -> bool:
    return _numbers(0)(value) and len(value) == 3


def _is_interval_or_none(value: Any) -> bool:
    return value is None or (_numbers()(value) and len(value) == 2)


def _is_model_args(value: object) -> bool:
    """Two of a model's arguments follow from its pretrained_cfg instead."""
    return isinstance(value, dict) and not value.keys() & {"num_classes", "in_chans"}


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint folder. Its facts are read from its name and its files."""

    folder: Path
    architecture: str
    dataset: str
    recipe: str
    seed: int

    @classmethod
    def at(cls, folder: Path) -> Checkpoint | None:
        """The checkpoint in a folder, or None if the folder's name is not a checkpoint's."""
        match = _NAME.fullmatch(folder.name)
        if not match:
            return None
        return cls(folder, match["architecture"], match["dataset"], match["recipe"], int(match["seed"]))

    @property
    def name(self) -> str:
        """The folder's: ``<architecture>.<dataset>_<recipe>_seed<k>``."""
        return self.folder.name

    @cached_property
    def config(self) -> dict:
        """config.json: architecture, model_args, and pretrained_cfg with classes, input size, mean and std.

        Raises:
            UserError: if the file is missing or is not of this form.
        """
        config = {"model_args": {}} | self._json(CONFIG)
        self._require(
            CONFIG, config, architecture=_is(str), pretrained_cfg=_is(dict), model_args=_is_model_args
        )
        if config["architecture"] != self.architecture:
            raise self._broken(
                f"{self.folder / CONFIG} describes another architecture, {config['architecture']}"
            )
        cfg = {"num_classes": _is(int), "input_size": _is_size, "mean": _numbers(), "std": _numbers(0)}
        self._require(CONFIG, config["pretrained_cfg"], **cfg)
        return config

    @cached_property
    def record(self) -> dict:
        """train.json: recipe, seed, data fingerprint, versions, curve, clean accuracy, λ per block.

        Raises:
            UserError: if the file is missing or is not of this form.
        """
        record = self._json(RECORD)
        counts = {"parameters": _is(int), "clean_n": _is(int), "clean_accuracy": _is(int, float)}
        self._require(RECORD, record, weights_sha256=_is(str), lambda_init=_is_interval_or_none, **counts)
        return record

    def _json(self, file: str) -> dict:
        path = self.folder / file
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise self._broken(f"cannot read {path}: {error}") from error
        if not isinstance(content, dict):
            raise self._broken(f"{path} does not contain a JSON object")
        return content

    def _require(self, file: str, content: dict, **needed: Callable[[object], bool]) -> None:
        """Refuse a file that lacks what is needed, or holds it in another form."""
        missing = [key for key in needed if key not in content]
        if missing:
            raise self._broken(f"{self.folder / file} lacks {', '.join(missing)}")
        wrong = [key for key, is_valid in needed.items() if not is_valid(content[key])]
        if wrong:
            raise self._broken(f"{self.folder / file}: {wrong[0]} cannot be {content[wrong[0]]!r}")

    def _broken(self, why: str) -> UserError:
        return UserError(f"broken checkpoint {self.name}: {why}")

    @cached_property
    def sha256(self) -> str:
        """Hash of the weights file, checked against the one in train.json.

        Raises:
            UserError: if the file cannot be read or is not the one that was written.
        """
        path = self.folder / WEIGHTS
        try:
            with path.open("rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise self._broken(f"cannot read {path}: {error}") from error
        if found != self.record["weights_sha256"]:
            raise self._broken(f"{path} is not the file that train.json describes")
        return found

    def load(self) -> nn.Module:
        """The model in eval mode with float32 weights; takes normalised images (N, C, H, W).

        Raises:
            UserError: if it cannot be built, or the weights do not fit.
        """
        config = self.config
        cfg = config["pretrained_cfg"]
        arguments = config["model_args"] | {
            "num_classes": cfg["num_classes"],
            "in_chans": cfg["input_size"][0],
        }
        try:
            model = create(config["architecture"], **arguments)
        except UserError as error:
            raise self._broken(str(error)) from error
        load_weights(model, self.folder / WEIGHTS)
        return model.eval()


def load_weights(model: nn.Module, path: Path, key: str | None = None) -> Fitted:
    """Load the weights file `path` into `model`, all of it or nothing.

    Args:
        model: Of the architecture that the weights are for.
        path: What `weights_files.read_state` reads, whatever prefix its names share.
        key: As there: which of several state dicts is meant.

    Returns:
        What was loaded, with the normalisation that is in the file but not in the model and must be applied
        before it, and with notes.

    Raises:
        UserError: if the file is not a weights file or does not fit; the message names the file and the first
            keys that are missing, unexpected or of another shape.
    """
    from robust_interp.zoo import weights_files  # needs torch, which listing checkpoints does not

    own = model.state_dict()
    read = weights_files.read_state(path, key)
    try:
        found = weights_files.fitted(read.tensors, model)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    state = found.state
    misfits = {
        "missing": [key for key in own if key not in state],
        "unexpected": [key for key in state if key not in own],
        "of another shape": [key for key in own if key in state and own[key].shape != state[key].shape],
    }
    for what, keys in misfits.items():
        if keys:
            shown = ", ".join(keys[:5]) + (", ..." if len(keys) > 5 else "")
            raise UserError(f"{path} does not fit the model: {len(keys)} keys {what}: {shown}")
    model.load_state_dict(state)
    return found._replace(notes=read.notes + tuple(f"{path}: {note}" for note in found.notes))


def interval_text(interval: Sequence[float] | None) -> str:
    """An interval of act(λ) as tables write it: ``0.20-0.25``; empty for None."""
    return "-".join(f"{end:.2f}" for end in interval) if interval else ""


def _named(folder: Path) -> Checkpoint:
    """The checkpoint whose files are, or will be, in a folder of this name.

    Raises:
        UserError: if it is no checkpoint's name.
    """
    checkpoint = Checkpoint.at(folder)
    if checkpoint is None:
        raise UserError(
            f"{folder.name} is not a checkpoint name: use <architecture>.<dataset>_<recipe>_seed<k>"
        )
    return checkpoint


def made_with(folder: Path, model_args: dict) -> Checkpoint | None:
    """The checkpoint in `folder`, or None if the folder does not exist.

    Args:
        model_args: Arguments of the architecture that it must have.

    Raises:
        UserError: if it was made with other arguments of the architecture.
    """
    if not folder.exists():
        return None
    checkpoint = _named(folder)
    there = checkpoint.config["model_args"]
    if json.loads(json.dumps(model_args)) != there:
        raise UserError(f"{folder} was made with {there}, not {model_args}: choose another --out")
    return checkpoint


def check_writable(folder: Path) -> None:
    """Refuse a checkpoint folder that cannot be written, before the training starts."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error}") from error
    if folder.exists():
        raise UserError(f"{folder} exists already; remove it to train again")
    if not os.access(folder.parent, os.W_OK | os.X_OK):
        raise UserError(f"cannot write {folder}: {folder.parent} is read-only")


def save(
    model: nn.Module,
    folder: Path,
    pretrained_cfg: dict,
    model_args: dict,
    record: dict,
    half: bool,
    texts: Mapping[str, str] | None = None,
) -> Checkpoint:
    """Write a checkpoint folder, whole or not at all.

    Args:
        model: With `num_features`, as timm's models have it.
        folder: Its name is the checkpoint's.
        pretrained_cfg: timm's: num_classes, input_size (C, H, W), mean, std and more, as JSON values.
        model_args: Arguments of the architecture beside classes and input channels, as JSON values.
        record: Content of train.json except the hash of the weights, as JSON values.
        half: Store floating-point weights in half precision.
        texts: Additional text files by name.

    Raises:
        UserError: if the folder cannot be written or exists.
    """
    import torch
    from safetensors.torch import save as to_bytes

    state = {
        key: value.detach().cpu().to(torch.float16 if half and value.is_floating_point() else value.dtype)
        for key, value in model.state_dict().items()
    }
    checkpoint = _named(folder)
    config = {
        "architecture": checkpoint.architecture,
        "num_classes": pretrained_cfg["num_classes"],
        "num_features": model.num_features,
        "model_args": model_args,
        "pretrained_cfg": pretrained_cfg,
    }
    weights = to_bytes({key: value.contiguous() for key, value in state.items()})
    record = record | {"weights_sha256": hashlib.sha256(weights).hexdigest()}
    files = {
        file: json.dumps(content, indent=1) + "\n" for file, content in ((CONFIG, config), (RECORD, record))
    }
    with new_folder(folder) as part:
        (part / WEIGHTS).write_bytes(weights)
        for file, text in (files | dict(texts or {})).items():
            (part / file).write_text(text, encoding="utf-8")
    return checkpoint

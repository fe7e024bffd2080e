"""Check, load and save a checkpoint: a folder in timm's format plus train.json."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robust_interp.core.errors import UserError
from robust_interp.core.files import new_folder, sha256_of
from robust_interp.core.json_values import (
    Form,
    check,
    is_count,
    is_number,
    is_object,
    is_text,
    list_of,
    object_of,
    or_null,
    read_object,
)
from robust_interp.core.texts import quoted
from robust_interp.zoo.registered import create

if TYPE_CHECKING:  # listing checkpoints must not import torch
    from torch import nn

    from robust_interp.zoo.weights_files import MatchedState

WEIGHTS, CONFIG, RECORD = "model.safetensors", "config.json", "train.json"

_NAME = re.compile(
    r"(?P<architecture>\w+)\.(?P<dataset>[a-z0-9]+)_(?P<recipe>[a-z0-9_]+)_seed(?P<seed>\d{1,19})", re.ASCII
)
_BLOCK = re.compile(r"stages\.\d{1,4}\.\d{1,4}", re.ASCII)


def _is_size(value: Any) -> bool:
    return list_of(is_count, 3)(value) and min(value) > 0


def _is_std(value: Any) -> bool:
    return list_of(is_number)(value) and all(one > 0 for one in value)


def _is_percentage(value: Any) -> bool:
    return is_number(value) and 0 <= value <= 100


_MISSING = object()  # not a JSON value


def _is_json(value: object) -> bool:
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _is_model_args(value: object) -> bool:
    """Whether it is a dict without num_classes and in_chans, which follow from the pretrained_cfg."""
    return isinstance(value, dict) and not value.keys() & {"num_classes", "in_chans"}


def are_coefficients(value: Any) -> bool:
    """Whether it is a dict of numbers by block name."""
    return object_of(is_number)(value) and all(map(_BLOCK.fullmatch, value))


def _is_epoch(value: Any) -> bool:
    """Whether it is the record of one epoch of the training curve."""
    if not isinstance(value, dict) or not is_count(value.get("epoch")):
        return False
    return is_number(value.get("lr", 0)) and are_coefficients(value.get("lambda", {}))


# Required fields of each file, and optional fields, with the test of their values.
_CONFIG: tuple[dict[str, Form], dict[str, Form]] = (
    {"architecture": is_text, "pretrained_cfg": is_object},
    {"model_args": _is_model_args},
)
_CFG: dict[str, Form] = {
    "num_classes": is_count,
    "input_size": _is_size,
    "mean": list_of(is_number),
    "std": _is_std,
}
_RECORD: tuple[dict[str, Form], dict[str, Form]] = (
    {
        "weights_sha256": is_text,
        "lambda_init": or_null(list_of(is_number, 2)),
        "parameters": is_count,
        "clean_n": is_count,
        "clean_accuracy": _is_percentage,
    },
    {"recipe": is_object, "lambda": are_coefficients, "curve": list_of(_is_epoch)},
)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder.

    Attributes:
        folder: The folder.
        architecture: timm name of the architecture, from the folder's name like the following ones.
        dataset: Name of the data set that it was trained on.
        recipe: Name of the recipe.
        seed: Train seed.
    """

    folder: Path
    architecture: str
    dataset: str
    recipe: str
    seed: int

    @classmethod
    def at(cls, folder: Path) -> Checkpoint | None:
        """Return the checkpoint in a folder; None if the folder's name is not a checkpoint's."""
        match = _NAME.fullmatch(folder.name)
        if not match or int(match["seed"]) >= 2**63:
            return None
        return cls(folder, match["architecture"], match["dataset"], match["recipe"], int(match["seed"]))

    @property
    def name(self) -> str:
        """Name of the folder: ``<architecture>.<dataset>_<recipe>_seed<k>``."""
        return self.folder.name

    @cached_property
    def config(self) -> dict:
        """Content of config.json: architecture, model_args, and timm's pretrained_cfg.

        Raises:
            UserError: if the file is missing or does not have this form.
        """
        path = self.folder / CONFIG
        with self._naming_errors():
            config = {"model_args": {}} | read_object(path)
            check(path, config, *_CONFIG)
            if config["architecture"] != self.architecture:
                raise UserError(f"{path} describes another architecture, {quoted(config['architecture'])}")
            check(path, config["pretrained_cfg"], _CFG)
        return config

    @cached_property
    def record(self) -> dict:
        """Content of train.json, such as recipe, seed, data fingerprint, curve, clean accuracy and act(λ).

        Raises:
            UserError: if the file is missing or does not have this form.
        """
        path = self.folder / RECORD
        with self._naming_errors():
            record = read_object(path)
            check(path, record, *_RECORD)
        return record

    @contextmanager
    def _naming_errors(self) -> Iterator[None]:
        """Add the checkpoint's name to a UserError."""
        try:
            yield
        except UserError as error:
            raise self._broken(str(error)) from error

    def _broken(self, why: str) -> UserError:
        return UserError(f"broken checkpoint {self.name}: {why}")

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the weights file, checked against train.json.

        Raises:
            UserError: if the file cannot be read or has another hash than in train.json.
        """
        path = self.folder / WEIGHTS
        try:
            found = sha256_of(path)
        except OSError as error:
            raise self._broken(f"cannot read {path}: {error}") from error
        if found != self.record["weights_sha256"]:
            raise self._broken(f"{path} is not the file that train.json describes")
        return found

    def load(self) -> nn.Module:
        """Return the model, in eval mode with float32 weights. It takes normalised images (N, C, H, W).

        Raises:
            UserError: if the model cannot be built, or the weights do not fit.
        """
        config = self.config
        cfg = config["pretrained_cfg"]
        arguments = config["model_args"] | {
            "num_classes": cfg["num_classes"],
            "in_chans": cfg["input_size"][0],
        }
        with self._naming_errors():
            model = create(config["architecture"], **arguments)
        load_weights(model, self.folder / WEIGHTS)
        return model.eval()


def default_of(candidates: Iterable[Checkpoint]) -> Checkpoint | None:
    """Return the checkpoint that a name means if several were trained; None if there is none.

    It is the one with the most epochs; then that with the lowest seed; then the first by name. Choosing by
    test accuracy would be biased. Broken checkpoints are left out.
    """
    ranked = []
    for checkpoint in candidates:
        with suppress(UserError):
            if checkpoint.config:  # raises UserError if it is broken
                epochs = len(checkpoint.record.get("curve", ()))
                ranked.append(((-epochs, checkpoint.seed, checkpoint.name), checkpoint))
    return min(ranked, key=itemgetter(0))[1] if ranked else None


def load_weights(model: nn.Module, path: Path, key: str | None = None) -> MatchedState:
    """Load a weights file into a model, completely or not at all.

    Args:
        model: A model of the architecture of the weights.
        path: A file for `weights_files.read_state`. Prefixes shared by all of its keys are removed.
        key: Key of the state dict in a file with several, see `weights_files.read_state`.

    Returns:
        The loaded state dict, a normalisation that is in the file but not in the model (the caller must apply
        it), and notes.

    Raises:
        UserError: if the file is not a weights file or does not fit; the message names the file and the first
            keys that are missing, unexpected or of another shape.
    """
    from robust_interp.zoo import weights_files  # imports torch

    own = model.state_dict()
    read = weights_files.read_state(path, key)
    try:
        found = weights_files.match_to_model(read.tensors, model)
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
    """Format an interval of act(λ) for tables: ``0.20-0.25``; empty for None."""
    return "-".join(f"{end:.2f}" for end in interval) if interval else ""


def _checkpoint_of(folder: Path) -> Checkpoint:
    """Return the checkpoint of a folder, which need not exist.

    Raises:
        UserError: if the folder's name is not a checkpoint's.
    """
    checkpoint = Checkpoint.at(folder)
    if checkpoint is None:
        raise UserError(
            f"{folder.name} is not a checkpoint name: use <architecture>.<dataset>_<recipe>_seed<k>"
        )
    return checkpoint


def made_with(folder: Path, model_args: dict) -> Checkpoint | None:
    """Return the checkpoint in a folder, and check its model arguments.

    Args:
        folder: The folder of the checkpoint.
        model_args: Arguments of the architecture that the checkpoint must have.

    Returns:
        The checkpoint; None if the folder does not exist.

    Raises:
        UserError: if the checkpoint has other arguments of the architecture.
    """
    if not folder.exists():
        return None
    checkpoint = _checkpoint_of(folder)
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


def check_savable(model: nn.Module, architecture: str, model_args: dict) -> None:
    """Refuse a model whose checkpoint could not be written, before the training.

    Args:
        model: The model.
        architecture: Its name, for the message.
        model_args: Its arguments besides num_classes and in_chans.

    Raises:
        UserError: if `num_features`, or first_conv or classifier in `pretrained_cfg`, is missing or not a
            JSON value; if the arguments are no JSON values; or if the state dict has more than tensors.
    """
    import torch

    cfg = getattr(model, "pretrained_cfg", None)
    cfg = cfg if isinstance(cfg, Mapping) else {}
    values = {"num_features": getattr(model, "num_features", _MISSING)}
    values |= {f"pretrained_cfg[{key!r}]": cfg.get(key, _MISSING) for key in ("first_conv", "classifier")}
    if lacking := [name for name, value in values.items() if not _is_json(value)]:
        raise UserError(
            f"cannot train {architecture}: its checkpoint needs attributes of timm's models, and these are "
            f"missing or not JSON values: {', '.join(lacking)}"
        )
    if others := [key for key, value in model.state_dict().items() if not isinstance(value, torch.Tensor)]:
        raise UserError(
            f"cannot train {architecture}: a checkpoint holds only tensors, and its state dict has others: "
            f"{', '.join(others)}"
        )
    if not _is_json(model_args):
        raise UserError(
            f"cannot train {architecture}: a checkpoint holds its arguments as JSON values, which these are "
            f"not: {quoted(model_args)}"
        )


def save(
    model: nn.Module,
    folder: Path,
    pretrained_cfg: dict,
    model_args: dict,
    record: dict,
    half: bool,
    texts: Mapping[str, str] | None = None,
) -> Checkpoint:
    """Write a checkpoint folder, completely or not at all.

    Args:
        model: The trained model, with the attribute `num_features` of timm's models.
        folder: The folder to create; its name is the checkpoint's.
        pretrained_cfg: timm's pretrained_cfg with num_classes, input_size (C, H, W), mean, std and more, as
            JSON values.
        model_args: Arguments of the architecture besides num_classes and in_chans, as JSON values.
        record: Content of train.json without the hash of the weights, as JSON values.
        half: Whether to store floating-point weights in half precision.
        texts: Contents of additional text files by name.

    Raises:
        UserError: if the folder cannot be written or exists.
    """
    import torch
    from safetensors.torch import save as to_bytes

    state = {
        key: value.detach().cpu().to(torch.float16 if half and value.is_floating_point() else value.dtype)
        for key, value in model.state_dict().items()
    }
    checkpoint = _checkpoint_of(folder)
    config = {
        "architecture": checkpoint.architecture,
        "num_classes": pretrained_cfg["num_classes"],
        "num_features": model.num_features,
        "model_args": model_args,
        "pretrained_cfg": pretrained_cfg,
    }
    # Copies, because safetensors refuses tensors that share memory, as layers with the same weights do.
    weights = to_bytes(
        {key: value.clone(memory_format=torch.contiguous_format) for key, value in state.items()}
    )
    record = record | {"weights_sha256": hashlib.sha256(weights).hexdigest()}
    files = {
        file: json.dumps(content, indent=1) + "\n" for file, content in ((CONFIG, config), (RECORD, record))
    }
    with new_folder(folder) as part:
        (part / WEIGHTS).write_bytes(weights)
        for file, text in (files | dict(texts or {})).items():
            (part / file).write_text(text, encoding="utf-8")
    return checkpoint

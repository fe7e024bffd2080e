"""What ``--models`` may name besides the zoo.

``timm:NAME``, ``robustbench:NAME``, ``package.module:factory``, a folder or a file.

The word before the colon says how the rest is read (`PREFIXES`); any other is a Python module to import.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from robust_interp import data, zoo
from robust_interp.classifiers.targets import Target, from_checkpoint, from_module
from robust_interp.core.errors import UserError
from robust_interp.core.registry import is_glob
from robust_interp.core.specs import OfEps, parse_spec
from robust_interp.zoo import weights_files

_PREFIXED = re.compile(r"(?P<prefix>[\w.-]+):(?P<rest>.+)", re.DOTALL)
WEIGHTS_SUFFIXES = (".safetensors", ".pt", ".pth", ".bin", ".ckpt", ".tar", ".th")
WEIGHTS_IN_FOLDER = (zoo.WEIGHTS, "pytorch_model.bin")
NOT_ARGUMENTS = {  # of timm.create_model: what the dataset, the prefix or --checkpoint say
    *("pretrained", "checkpoint_path", "num_classes", "in_chans", "features_only"),
    *("pretrained_cfg", "pretrained_cfg_overlay", "cache_dir", "scriptable", "exportable", "no_jit"),
}


@dataclass(frozen=True)
class Context:
    """What a model is loaded for, and what was said of it besides its name.

    Attributes:
        checkpoint: A weights file.
        mean: What its images are normalised with, in [0, 1] pixels; None is what comes with the model.
        std: Likewise.
    """

    dataset: data.Dataset
    checkpoint: Path | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None

    @property
    def channels(self) -> int:
        return self.dataset.images.shape[1]


def is_of_the_zoo(name: str) -> bool:
    """Whether a name is one for the zoo: an architecture, a checkpoint's name, a glob or 'all'."""
    return not _PREFIXED.fullmatch(name) and not _is_path(name)


def find(names: Sequence[str], context: Context) -> list[Target]:
    """The models that are named, none of them the zoo's, in their order.

    Args:
        context: Its checkpoint is for one of them: the one ``timm:NAME``, else the one factory.

    Raises:
        UserError: if one cannot be loaded or measured, or no single one takes the checkpoint.
    """
    taker = _takes_checkpoint(names) if context.checkpoint else None
    found = {
        name: _find(name, context if name == taker else replace(context, checkpoint=None)) for name in names
    }
    labels = Counter(target.card.label for target in found.values())
    return [
        target if labels[target.card.label] == 1 or target.card.recipe else _called(name, target)
        for name, target in found.items()
    ]


def _called(name: str, target: Target) -> Target:
    """Under the name that was typed: of two folders called alike, say."""
    return replace(target, card=replace(target.card, model=name))


def with_weights(names: Sequence[str] | None) -> Sequence[str]:
    """The names for a run with a checkpoint: a single registered one is meant as ``timm:NAME``."""
    if not names or len(names) > 1 or names[0] == "all" or is_glob(names[0]) or not is_of_the_zoo(names[0]):
        return names or ()
    return [f"timm:{names[0]}"]


def _takes_checkpoint(names: Sequence[str]) -> str:
    of_timm = [name for name in names if name.startswith("timm:")]
    takers = of_timm or list(filter(_is_factory, names))
    if len(takers) != 1:
        raise UserError(
            "--checkpoint goes with exactly one registered model name in --models, as NAME, timm:NAME or "
            "package.module:factory"
        )
    return takers[0]


def _find(name: str, context: Context) -> Target:
    prefixed = _PREFIXED.fullmatch(name)
    if prefixed is None:
        return _path(Path(name).expanduser(), context)
    if prefixed["prefix"] in PREFIXES:
        return PREFIXES[prefixed["prefix"]](prefixed["rest"], context)
    return _factory(name, context)


def _is_factory(name: str) -> bool:
    prefixed = _PREFIXED.fullmatch(name)
    return prefixed is not None and prefixed["prefix"] not in PREFIXES


def _is_path(name: str) -> bool:
    return os.sep in name or name.endswith(WEIGHTS_SUFFIXES) or (Path(name) / zoo.CONFIG).is_file()


def _call(text: str) -> tuple[str, dict]:
    """``name`` or ``name(key=value, ...)`` as the name, which may hold dots, and its arguments."""
    name, bracket, rest = text.partition("(")
    try:
        arguments = parse_spec(f"model{bracket}{rest}").params if bracket else {}
    except UserError as error:
        raise UserError(f"{text}: {error}") from error
    if worded := [key for key, value in arguments.items() if isinstance(value, OfEps)]:
        raise UserError(f"{text}: {worded[0]} cannot be a share of eps")
    return name.strip(), arguments


# --- timm ---------------------------------------------------------------------------------------------


def _timm(text: str, context: Context) -> Target:
    """A model that timm builds, with the weights of a file, else with those that timm has for it."""
    name, arguments = _call(text)
    if taken := sorted(NOT_ARGUMENTS & arguments.keys()):
        raise UserError(f"timm:{text}: {taken[0]} is no argument of the architecture")
    if context.checkpoint:
        model = zoo.create(name, num_classes=context.dataset.classes, in_chans=context.channels, **arguments)
        return _with_weights(text, _fast(model), context.checkpoint, context)
    _check_pretrained(name, context)
    try:
        model = zoo.create(name, pretrained=True, **arguments)
    except UserError as error:
        raise UserError(f"{error}; weights in a file are named with --checkpoint FILE") from error
    notes = _size_note(text, model.pretrained_cfg["input_size"], context) + _replaced(text, model, context)
    return _measured(text, _fast(model), context, notes=notes)


def _check_pretrained(name: str, context: Context) -> None:
    """Refuse what timm would meet with random weights: a head or a first layer that it has none for."""
    import timm  # which registers our models, too

    zoo.check_registered(name)
    try:
        cfg = timm.get_pretrained_cfg(name)
    except RuntimeError as error:
        raise UserError(f"timm:{name}: {error}") from error
    own_weights = "name a file with the weights of such a model with --checkpoint FILE"
    if cfg is None or not cfg.has_weights:
        raise UserError(f"timm has no weights for {name}: {own_weights}")
    _check_fits(f"timm's pretrained {name}", cfg.num_classes, cfg.input_size[0], context, own_weights)


def _check_fits(what: str, classes: int, channels: int, context: Context, hint: str = "") -> None:
    needed, name = (context.dataset.classes, context.channels), context.dataset.name
    if (classes, channels) != needed:
        raise UserError(
            f"{what} has {classes} classes and takes {channels} channels; {name} has {needed[0]} and "
            f"{needed[1]}" + (f": {hint}" if hint else "")
        )


def _size_note(name: str, size: Sequence[int], context: Context) -> tuple[str, ...]:
    shape = context.dataset.images.shape[1:]
    if tuple(size[1:]) == shape[1:]:
        return ()
    made, given = ("x".join(map(str, pair)) for pair in (size[1:], shape[1:]))
    return (f"{name} is described as made for {made} images; it is measured on {given}",)


def _replaced(name: str, model: nn.Module, context: Context) -> tuple[str, ...]:
    """A note if the mean and std that were given stand in for others that the model came with."""
    cfg = getattr(model, "pretrained_cfg", None)
    given = context.mean, context.std
    if not cfg or None in given or [tuple(cfg["mean"]), tuple(cfg["std"])] == list(map(tuple, given)):
        return ()
    return (f"{name} came with mean {cfg['mean']} and std {cfg['std']}; those that were given are applied",)


# --- RobustBench --------------------------------------------------------------------------------------


def _robustbench(text: str, context: Context) -> Target:
    """A model of RobustBench's zoo for this dataset, ``NAME`` or ``NAME(threat=L2)``; it takes pixels."""
    from robust_interp import robustbench_bridge

    name, arguments = _call(text)
    if other := sorted(arguments.keys() - {"threat"}):
        raise UserError(f"robustbench:{text}: takes threat=Linf, L2 or corruptions, not {other[0]}")
    chosen = name, context.dataset.name, arguments.get("threat", "Linf")
    model = robustbench_bridge.load(*chosen)
    target = _measured(text, model, context, robustbench_bridge.sha256(*chosen))
    recorded = robustbench_bridge.published_clean(*chosen)
    return replace(target, card=replace(target.card, recorded_clean=recorded))


# --- Python modules -----------------------------------------------------------------------------------


def _factory(text: str, context: Context) -> Target:
    """What a function of an importable module makes, or the torch module that it holds."""
    module_name, _, call = text.partition(":")
    attribute, arguments = _call(call)
    made = _imported(module_name, text)
    for part in attribute.split("."):
        if not hasattr(made, part):
            raise UserError(f"{text}: {module_name} has no {attribute}")
        made = getattr(made, part)
    if not isinstance(made, nn.Module):
        made = _made(text, made, arguments, context)
    elif arguments:
        raise UserError(f"{text}: {attribute} is a model already, and takes no arguments")
    if context.checkpoint:
        return _with_weights(text, made, context.checkpoint, context)
    return _measured(text, made, context, notes=_replaced(text, made, context))


def _imported(module_name: str, text: str):
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # where python -m looks, too
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a module may run anything
        missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise UserError(
                f"{text}: before the colon stands {', '.join(PREFIXES)} or a Python module, and there is no "
                f"module {missing} here"
            ) from error
        raise UserError(f"{text}: cannot import {module_name}: {_in_short(error)}") from error


def _made(text: str, factory: Callable, arguments: dict, context: Context) -> nn.Module:
    if not callable(factory):
        kind = type(factory).__name__
        raise UserError(f"{text} is a {kind}, not a torch module or a function that makes one")
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # of some built in
        signature = inspect.Signature()
    from_dataset = {"num_classes": context.dataset.classes, "in_chans": context.channels}
    arguments = {key: value for key, value in from_dataset.items() if key in signature.parameters} | arguments
    try:
        signature.bind(**arguments)
    except TypeError as error:
        hint = "arguments stand in brackets, as in module:factory(depth=20)"
        raise UserError(f"{text}: {error}; {hint}") from error
    try:
        made = factory(**arguments)
    except (Exception, SystemExit) as error:
        raise UserError(f"{text} failed: {_in_short(error)}") from error
    if not isinstance(made, nn.Module):
        raise UserError(f"{text} returned a {type(made).__name__}, not a torch module")
    return made


def _in_short(error: BaseException) -> str:
    return ": ".join([type(error).__name__, *str(error).splitlines()[:1]])


# --- folders and files --------------------------------------------------------------------------------


def _path(path: Path, context: Context) -> Target:
    if path.is_dir():
        return _folder(path, context)
    if not path.is_file():
        raise UserError(f"there is no folder or file {path}")
    if (path.parent / zoo.CONFIG).is_file():
        return _described(path, f"{path.resolve().parent.name}/{path.name}", context)
    weights_files.read_state(path)  # which says if it is no weights file at all
    raise UserError(
        f"{path} does not say its architecture, and there is no {zoo.CONFIG} beside it: "
        f"--models timm:NAME --checkpoint {path}"
    )


def _folder(folder: Path, context: Context) -> Target:
    own = zoo.Checkpoint.at(folder.resolve())
    if own and (folder / zoo.RECORD).is_file():
        return _of_ours(own, context)
    found = [folder / name for name in WEIGHTS_IN_FOLDER if (folder / name).is_file()]
    if (folder / zoo.CONFIG).is_file() and found:
        return _described(found[0], folder.resolve().name, context)
    if any(map(zoo.Checkpoint.at, folder.iterdir())):
        raise UserError(f"{folder} is a folder of checkpoints: name it with --zoo, or one of them here")
    raise UserError(f"{folder} is no checkpoint folder: it lacks {zoo.CONFIG} or {zoo.WEIGHTS}")


def _of_ours(checkpoint: zoo.Checkpoint, context: Context) -> Target:
    """A checkpoint as the trainer writes them, with the same card as if it were in the zoo."""
    cfg = checkpoint.config["pretrained_cfg"]
    _check_fits(str(checkpoint.folder), cfg["num_classes"], cfg["input_size"][0], context)
    target = from_checkpoint(checkpoint)
    if checkpoint.dataset == context.dataset.name:
        return target
    note = f"{checkpoint.name} was trained on {checkpoint.dataset}, not on {context.dataset.name}"
    return replace(target, card=replace(target.card, recorded_clean=None), notes=(note,))


def _described(path: Path, name: str, context: Context) -> Target:
    """Weights beside a config.json as timm writes it."""
    config = _config(path.parent / zoo.CONFIG)
    cfg, arguments = config["pretrained_cfg"], dict(config.get("model_args") or {})
    size = cfg.get("input_size") or list(context.dataset.images.shape[1:])
    channels = arguments.pop("in_chans", size[0])
    classes = config.get("num_classes", cfg.get("num_classes"))
    classes = arguments.pop("num_classes", classes)
    _check_fits(str(path.parent), classes, channels, context)
    notes = _size_note(name, size, context)
    if context.mean is None and context.std is None:
        mean, std = cfg.get("mean"), cfg.get("std")
        if not mean or not std or len(mean) != channels:
            lacks = f"no mean and std for {channels} channels"
            raise UserError(f"{path.parent / zoo.CONFIG} has {lacks}: give --mean and --std")
        context = replace(context, mean=mean, std=std)
    model = zoo.create(config["architecture"], num_classes=classes, in_chans=channels, **arguments)
    return _with_weights(name, _fast(model), path, context, notes)


def _config(path: Path) -> dict:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    kinds = {"architecture": str, "pretrained_cfg": dict}
    if not isinstance(config, dict) or not all(isinstance(config.get(key), kinds[key]) for key in kinds):
        raise UserError(
            f"{path} is not as timm writes it, with architecture and pretrained_cfg: for a model of another "
            "library give package.module:factory"
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


# --- what all of them come to -------------------------------------------------------------------------


def _with_weights(
    name: str, model: nn.Module, path: Path, context: Context, notes: tuple[str, ...] = ()
) -> Target:
    """A model with the weights of a file, and with the normalisation that the file holds, if any."""
    found = zoo.load_weights(model, path)
    with path.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    if found and context.mean is None and context.std is None:
        notes += (f"{path} holds a normalisation, mean {found[0]} and std {found[1]}, which is applied",)
        context = replace(context, mean=found[0], std=found[1])
    return _measured(name, model, context, sha256, notes)


def _measured(
    name: str, model: nn.Module, context: Context, sha256: str | None = None, notes: tuple[str, ...] = ()
) -> Target:
    return from_module(name, model, context.mean, context.std, context.dataset, sha256, notes)


def _fast(model: nn.Module) -> nn.Module:
    """Channels last: a sixth less time under attack on a CPU, and every timm model allows it."""
    return model.to(memory_format=torch.channels_last)


PREFIXES: dict[str, Callable[[str, Context], Target]] = {"timm": _timm, "robustbench": _robustbench}

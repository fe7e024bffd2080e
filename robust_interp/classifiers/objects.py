"""What is known for certain of a model that comes as an object: its timm name, and its checkpoint."""

from __future__ import annotations

import inspect
from dataclasses import replace

from torch import nn

from robust_interp import zoo
from robust_interp.classifiers.target import Context, Target, from_module, timm_cfg
from robust_interp.classifiers.zoo_names import from_checkpoint
from robust_interp.core import devices
from robust_interp.core.errors import UserError
from robust_interp.core.torch_internals import has_hooks, uncompiled

_FROM = ("timm.", "robust_interp.models.")  # modules of classes that timm's registered functions build


def name_of(model: nn.Module) -> str:
    """Return the name of a model: the architecture that timm built it by, otherwise its class.

    The tag of the cfg is no part of it, since timm fills it in for untrained weights, too. A model within
    torch.compile's wrapper or DataParallel has its own name.
    """
    model = uncompiled(model.module if isinstance(model, nn.DataParallel) else model)
    architecture = timm_cfg(model).get("architecture")
    if (
        isinstance(architecture, str)
        and type(model).__module__.startswith(_FROM)
        and zoo.is_model(architecture)
    ):
        return architecture
    return type(model).__name__


def as_checkpoint(target: Target, model: nn.Module, context: Context) -> Target:
    """Return the target of the bundled checkpoint that a model is, under the model's name.

    The model must have the code, the settings, all weights and the outputs of the checkpoint that its cfg
    names, bit for bit, its normalisation, no hooks and no replaced methods. It is then measured as that
    checkpoint, so that it is one row with it in every table if it has the architecture's name.

    Args:
        target: The target of the model as an object; returned if the model is no bundled checkpoint.
        model: The model.
        context: What `target` was made for.
    """
    cfg = timm_cfg(model)
    folder = zoo.bundled() / f"{cfg.get('architecture')}.{cfg.get('tag')}"
    checkpoint = zoo.Checkpoint.at(folder) if folder.is_dir() else None
    if checkpoint is None or any(map(has_hooks, model.modules())):
        return target
    known, name = target.card.identity, target.card.model
    try:
        found = from_checkpoint(checkpoint, context.dataset)
        if _listed(known) != _listed(found.card.identity):
            return target
        loaded = _loaded(checkpoint, model)
        if _own_routines(model) != _own_routines(loaded):  # such as another forward
            return target
        if known != from_module(name, loaded, context).card.identity:
            return target
    except UserError:
        return target
    if name == checkpoint.architecture:
        return found
    # Under another name it is no train seed of that name, which may be that of other networks.
    return replace(found, card=replace(found.card, model=name, train_seed=None, seeds=()))


def _own_routines(model: nn.Module) -> set[tuple[str, str, str]]:
    """Return the routines among the attributes of modules: module, attribute, name in its code."""
    return {
        (name, key, getattr(value, "__qualname__", ""))
        for name, part in model.named_modules()
        for key, value in vars(part).items()
        if inspect.isroutine(value)
    }


def _loaded(checkpoint: zoo.Checkpoint, model: nn.Module) -> nn.Module:
    """Return the checkpoint's network, with the cfg and on the device of `model`."""
    loaded = checkpoint.load()
    for cfg in ("pretrained_cfg", "default_cfg"):  # where the weights came from
        setattr(loaded, cfg, getattr(model, cfg, None))
    return loaded.to(devices.of_module(model) or "cpu")


def _listed(identity: dict) -> list[list[float]]:
    return [list(values) for values in identity["normalisation"] or ()]

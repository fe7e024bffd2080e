"""What is known for certain of a model that comes as an object: its timm name, and how it was trained."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from robust_interp import zoo
from robust_interp.classifiers.fingerprint import identity
from robust_interp.classifiers.target import Target, timm_cfg
from robust_interp.core.errors import UserError
from robust_interp.core.torch_internals import uncompiled

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


def with_training(target: Target, model: nn.Module) -> Target:
    """Add recipe, λ interval and train seed to the card of a model that equals a bundled checkpoint.

    It must have the code, the settings and all weights of the checkpoint that its cfg names, bit for bit.
    """
    cfg = timm_cfg(model)
    folder = zoo.bundled() / f"{cfg.get('architecture')}.{cfg.get('tag')}"
    checkpoint = zoo.Checkpoint.at(folder) if folder.is_dir() else None
    if checkpoint is None or not _is_of(checkpoint, model):
        return target
    card = replace(
        target.card,
        recipe=checkpoint.recipe,
        lambda_init=zoo.interval_text(checkpoint.record["lambda_init"]),
        train_seed=checkpoint.seed,
        seeds=(checkpoint.seed,),
    )
    return replace(target, card=card, checkpoint=checkpoint.name)


def _is_of(checkpoint: zoo.Checkpoint, model: nn.Module) -> bool:
    try:
        loaded = checkpoint.load()
    except UserError:
        return False
    for name in ("pretrained_cfg", "default_cfg"):  # where the weights came from
        setattr(loaded, name, getattr(model, name, None))
    return identity(loaded) == identity(model)

"""The checkpoints that come with the package, as timm's pretrained weights.

timm is told of our networks here, the moment that it is imported; see the package's `__init__`.
"""

from __future__ import annotations

from contextlib import suppress

from robust_interp.core.errors import UserError
from robust_interp.zoo.catalogue import bundled
from robust_interp.zoo.checkpoint import WEIGHTS, Checkpoint

DEFAULT_DATASET = "cifar10"  # of the weights that an architecture's bare name stands for


def _bundled() -> list[Checkpoint]:
    folders = sorted(bundled().iterdir()) if bundled().is_dir() else ()
    return [checkpoint for folder in folders if (checkpoint := Checkpoint.at(folder))]


def bundled_cfgs() -> dict[str, dict]:
    """timm pretrained cfgs of the bundled checkpoints, by ``<architecture>.<tag>``."""
    cfgs = {}
    for checkpoint in _bundled():
        with suppress(UserError):  # a broken one is named when it is asked for, and breaks no import
            config = checkpoint.config
            own = {"file": str(checkpoint.folder / WEIGHTS), "model_args": config["model_args"]}
            cfgs[checkpoint.name] = config["pretrained_cfg"] | own
    return cfgs


def default_tag(architecture: str) -> str | None:
    """The tag of the checkpoint that an architecture's bare name stands for; None if there is none.

    Of its bundled CIFAR-10 checkpoints the one trained for most epochs, of those the one with the lowest
    seed, then the first by name. No test accuracy is looked at: that would choose by luck.
    """
    ranked = []
    for checkpoint in _bundled():
        if (checkpoint.architecture, checkpoint.dataset) == (architecture, DEFAULT_DATASET):
            with suppress(UserError):
                curve = checkpoint.record.get("curve")
                epochs = len(curve) if isinstance(curve, list) else 0
                ranked.append((-epochs, checkpoint.seed, checkpoint.name))
    return min(ranked)[-1].partition(".")[2] if ranked else None


def register() -> None:
    """Register our networks with timm, with the checkpoints that come with the package as their weights."""
    from robust_interp.models import in_resnet, in_resnext
    from robust_interp.models.registration import register_all

    register_all((in_resnet, in_resnext), bundled_cfgs(), default_tag)

"""Register the networks of the package with timm, with the bundled checkpoints as pretrained weights.

This runs when timm is imported; see the package's `__init__`.
"""

from __future__ import annotations

from contextlib import suppress

from robust_interp.core.errors import UserError
from robust_interp.zoo.catalogue import bundled
from robust_interp.zoo.checkpoint import WEIGHTS, Checkpoint

DEFAULT_DATASET = "cifar10"  # data set of an architecture's default weights


def _bundled() -> list[Checkpoint]:
    folders = sorted(bundled().iterdir()) if bundled().is_dir() else ()
    return [checkpoint for folder in folders if (checkpoint := Checkpoint.at(folder))]


def bundled_cfgs() -> dict[str, dict]:
    """Return timm's pretrained_cfgs of the bundled checkpoints by ``<architecture>.<tag>``."""
    cfgs = {}
    for checkpoint in _bundled():
        with suppress(UserError):  # a broken checkpoint must not break the import of timm
            config = checkpoint.config
            own = {"file": str(checkpoint.folder / WEIGHTS), "model_args": config["model_args"]}
            cfgs[checkpoint.name] = config["pretrained_cfg"] | own
    return cfgs


def default_tag(architecture: str) -> str | None:
    """Return the tag of an architecture's default weights; None if there are none.

    Among its bundled CIFAR-10 checkpoints it is the one with the most epochs; then that with the lowest seed;
    then the first by name. Choosing by test accuracy would be biased.
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
    """Register our networks with timm, with the bundled checkpoints as pretrained weights."""
    from robust_interp.models import in_resnet, in_resnext
    from robust_interp.models.registration import register_all

    register_all((in_resnet, in_resnext), bundled_cfgs(), default_tag)

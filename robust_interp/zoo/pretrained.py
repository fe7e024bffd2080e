"""The checkpoints that come with the package, as timm's pretrained weights.

timm is told of our networks here, the moment that it is imported; see the package's `__init__`.
"""

from __future__ import annotations

from contextlib import suppress

from robust_interp.core.errors import UserError
from robust_interp.zoo.catalogue import bundled
from robust_interp.zoo.checkpoint import WEIGHTS, Checkpoint


def bundled_cfgs() -> dict[str, dict]:
    """timm pretrained cfgs of the bundled checkpoints, by ``<architecture>.<tag>``."""
    cfgs = {}
    for folder in sorted(bundled().iterdir()) if bundled().is_dir() else ():
        checkpoint = Checkpoint.at(folder)
        if not checkpoint:
            continue
        with suppress(UserError):  # a broken one is named when it is asked for, and breaks no import
            config = checkpoint.config
            own = {"file": str(folder / WEIGHTS), "model_args": config["model_args"]}
            cfgs[checkpoint.name] = config["pretrained_cfg"] | own
    return cfgs


def register() -> None:
    """Register our networks with timm, with the checkpoints that come with the package as their weights."""
    from robust_interp.models import in_resnet, in_resnext
    from robust_interp.models.registration import register_all

    register_all((in_resnet, in_resnext), bundled_cfgs())

"""Register the networks of the package with timm, with the bundled checkpoints as pretrained weights.

This runs when timm is imported; see the package's `__init__`.
"""

from __future__ import annotations

from contextlib import suppress

from robust_interp.core.errors import UserError
from robust_interp.zoo.catalogue import bundled
from robust_interp.zoo.checkpoint import WEIGHTS, Checkpoint, default_of

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

    It is the tag of one of its bundled CIFAR-10 checkpoints, by the rule of `default_of`.
    """
    wanted = (architecture, DEFAULT_DATASET)
    found = default_of(one for one in _bundled() if (one.architecture, one.dataset) == wanted)
    return found.name.partition(".")[2] if found else None


def register() -> None:
    """Register our networks with timm, with the bundled checkpoints as pretrained weights."""
    from robust_interp.models import in_resnet, in_resnext
    from robust_interp.models.registration import register_all

    register_all((in_resnet, in_resnext), bundled_cfgs(), default_tag)

"""The names by which RobustBench finds our trained networks: ``<architecture>_<dataset>_<threat model>``.

Before its own zoo, `robustbench.utils.load_model(name, dataset, threat_model)` asks timm for such a name,
and it feeds [0, 1] pixels. So a name stands for a checkpoint with the normalisation inside, and its cfg has
mean 0 and std 1: ``in_resnet20_cifar10_linf``; ``_l2`` and ``_corruptions`` are the same network.

The names are registered when `robustbench()` is first entered, for each checkpoint of one of our
architectures and one of RobustBench's datasets that the zoo (./model_zoo, then the package) has then. Of
several it is the longest training, and of that the lowest seed. They are for RobustBench only:
`robust-interp` lists and measures the checkpoints.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from timm.models import generate_default_cfgs, register_model
from torch import nn

from robust_interp.core.errors import UserError
from robust_interp.core.json_values import is_number
from robust_interp.core.normalize import Normalize
from robust_interp.models import in_resnet, in_resnext
from robust_interp.models.network import InterpolationNet
from robust_interp.zoo import WEIGHTS, Checkpoint

__all__ = ["Normalize"]

DATASETS = ("cifar10", "cifar100")
THREAT_MODELS = ("linf", "l2", "corruptions")
_OURS = in_resnet.ARCHITECTURES | in_resnext.ARCHITECTURES


def _on_pixels(
    build: Callable[..., InterpolationNet], mean: Sequence[float], std: Sequence[float]
) -> Callable[..., InterpolationNet]:
    """What builds the same networks with the normalisation before their first convolution.

    It is the first layer of the stem, so that all ways into the network pass it and no key of the state dict
    changes: weights of the network itself fit, RobustBench's `custom_checkpoint` among them.
    """

    def build_on_pixels(**arguments: Any) -> InterpolationNet:
        model = build(**arguments)
        where = {"device": arguments.get("device"), "dtype": arguments.get("dtype")}
        layers = OrderedDict(normalize=Normalize(mean, std, **where), **dict(model.stem.named_children()))
        model.stem = nn.Sequential(layers)
        return model

    return build_on_pixels


def chosen(candidates: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Of the candidates one checkpoint for each of our architectures and RobustBench's datasets."""
    chosen: dict[tuple[str, str], tuple[float, Checkpoint]] = {}
    for checkpoint in candidates:  # which come in the order of recipe and seed
        key = checkpoint.architecture, checkpoint.dataset
        if checkpoint.architecture not in _OURS or checkpoint.dataset not in DATASETS:
            continue
        with suppress(UserError):  # a broken one is named when it is asked for, and breaks no import
            epochs = _epochs(checkpoint)
            if checkpoint.config and (key not in chosen or epochs > chosen[key][0]):
                chosen[key] = epochs, checkpoint
    return [checkpoint for _, checkpoint in chosen.values()]


def _epochs(checkpoint: Checkpoint) -> float:
    recipe = checkpoint.record.get("recipe")
    epochs = recipe.get("epochs") if isinstance(recipe, dict) else None
    return float(epochs) if epochs is not None and is_number(epochs) else 0.0


_OF_CFG = ("num_classes", "input_size", "pool_size", "crop_pct", "interpolation", "first_conv", "classifier")


def _cfg(checkpoint: Checkpoint) -> dict[str, Any]:
    cfg = checkpoint.config["pretrained_cfg"]
    channels = len(cfg["mean"])
    own = {
        "mean": (0.0,) * channels,
        "std": (1.0,) * channels,
        "file": str(checkpoint.folder.resolve() / WEIGHTS),
    }
    return {key: cfg[key] for key in _OF_CFG if key in cfg} | own


def _register(name: str, checkpoint: Checkpoint) -> None:
    cfg, model_args = checkpoint.config["pretrained_cfg"], checkpoint.config["model_args"]
    architecture = _OURS[checkpoint.architecture]
    pixels = replace(architecture, model_class=_on_pixels(architecture.model_class, cfg["mean"], cfg["std"]))

    def entrypoint(pretrained: bool = False, **kwargs: Any) -> InterpolationNet:
        if not pretrained:
            raise ValueError(
                f"it exists only with trained weights (pretrained=True): use {checkpoint.architecture}"
            )
        return pixels.create(name, pretrained, **(model_args | kwargs))

    entrypoint.__name__ = entrypoint.__qualname__ = name
    entrypoint.__doc__ = f"{checkpoint.name} on [0, 1] pixels."
    register_model(entrypoint)


default_cfgs: dict[str, Any] = {}  # where timm looks for those of this module's names


def register(candidates: Iterable[Checkpoint]) -> None:
    """Register with timm the names of the checkpoints that are chosen of these, but for those it has."""
    named = {
        f"{checkpoint.architecture}_{checkpoint.dataset}_{threat_model}": checkpoint
        for checkpoint in chosen(candidates)
        for threat_model in THREAT_MODELS
    }
    new = {name: checkpoint for name, checkpoint in named.items() if name not in default_cfgs}
    default_cfgs.update(generate_default_cfgs({name: _cfg(checkpoint) for name, checkpoint in new.items()}))
    for name, checkpoint in new.items():
        _register(name, checkpoint)

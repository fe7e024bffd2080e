"""Register our trained networks with timm as ``<architecture>_<dataset>_<threat model>`` for RobustBench.

`robustbench.utils.load_model(name, dataset, threat_model)` looks for such a name in timm before its own zoo,
and passes pixels in [0, 1] to the model. So these models include the normalisation, and their cfg has mean 0
and std 1. For example, ``in_resnet20_cifar10_linf``, ``..._l2`` and ``..._corruptions`` are the same network.

`robustbench()` registers the names, one checkpoint of the zoo (./model_zoo, then the package) for each pair
of our architectures and RobustBench's data sets: the one with the most epochs, then that with the lowest
seed, then the first by name. The names are for RobustBench only; `robust-interp` uses the
checkpoints directly.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from timm.models import generate_default_cfgs, register_model
from torch import nn

from robust_interp.core.normalize import Normalize
from robust_interp.models import in_resnet, in_resnext
from robust_interp.models.network import InterpolationNet
from robust_interp.zoo import WEIGHTS, Checkpoint, default_of

__all__ = ["Normalize"]

DATASETS = ("cifar10", "cifar100")
THREAT_MODELS = ("linf", "l2", "corruptions")
_OURS = in_resnet.ARCHITECTURES | in_resnext.ARCHITECTURES


def _on_pixels(
    build: Callable[..., InterpolationNet], mean: Sequence[float], std: Sequence[float]
) -> Callable[..., InterpolationNet]:
    """Return a function like `build` whose networks begin with a normalisation.

    The normalisation is the first layer of the stem, so that no key of the state dict changes. So weights of
    the original network fit, also those of RobustBench's `custom_checkpoint`.

    Args:
        build: Builds the network.
        mean: Per-channel mean, in [0, 1] pixels.
        std: Per-channel standard deviation.
    """

    def build_on_pixels(**arguments: Any) -> InterpolationNet:
        model = build(**arguments)
        where = {"device": arguments.get("device"), "dtype": arguments.get("dtype")}
        layers = OrderedDict(normalize=Normalize(mean, std, **where), **dict(model.stem.named_children()))
        model.stem = nn.Sequential(layers)
        return model

    return build_on_pixels


def chosen(candidates: Iterable[Checkpoint]) -> list[Checkpoint]:
    """Choose one of the candidates for each of our architectures and RobustBench's data sets.

    The rule is that of `zoo.default_of`. Broken checkpoints are left out: they must not break RobustBench.
    """
    of_name: dict[tuple[str, str], list[Checkpoint]] = {}
    for checkpoint in candidates:
        if checkpoint.architecture in _OURS and checkpoint.dataset in DATASETS:
            of_name.setdefault((checkpoint.architecture, checkpoint.dataset), []).append(checkpoint)
    return [one for several in of_name.values() if (one := default_of(several))]


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
        return pixels.create(name, pretrained, **(model_args | kwargs))

    entrypoint.__name__ = entrypoint.__qualname__ = name
    entrypoint.__doc__ = f"{checkpoint.name} on [0, 1] pixels."
    register_model(entrypoint)


default_cfgs: dict[str, Any] = {}  # timm reads the cfgs of this module's names here


def register(candidates: Iterable[Checkpoint]) -> None:
    """Register names for the chosen candidates with timm, without those registered before."""
    named = {
        f"{checkpoint.architecture}_{checkpoint.dataset}_{threat_model}": checkpoint
        for checkpoint in chosen(candidates)
        for threat_model in THREAT_MODELS
    }
    new = {name: checkpoint for name, checkpoint in named.items() if name not in default_cfgs}
    default_cfgs.update(generate_default_cfgs({name: _cfg(checkpoint) for name, checkpoint in new.items()}))
    for name, checkpoint in new.items():
        _register(name, checkpoint)

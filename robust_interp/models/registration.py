"""Registration of the networks as timm models."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import nn

from robust_interp.models.merges import damped
from robust_interp.models.network import InterpolationNet

_TAG_ARGUMENTS: dict[str, Mapping[str, Any]] = {}
_DEFAULT_TAGS: dict[str, Callable[[str], str | None]] = {}  # architecture -> function that returns its tag

# mean and std: per channel, over all pixels of CIFAR-10's training images
_CIFAR: dict[str, Any] = {
    "num_classes": 10,
    "input_size": (3, 32, 32),
    "pool_size": (8, 8),
    "interpolation": "bilinear",
    "crop_pct": 1.0,
    "mean": (0.4914, 0.4822, 0.4465),
    "std": (0.2470, 0.2435, 0.2616),
    "first_conv": "stem.conv",
    "classifier": "fc",
}


@dataclass(frozen=True)
class Architecture:
    """Definition of a timm model.

    Args:
        model_class: Class of the network, called with `arguments`, `merge` and the caller's arguments.
        arguments: Fixed arguments of the class, such as the depth.
        merge: Class of the merge in the blocks that carry a λ.
        damping: Default arguments of `damped` for this merge; the caller may change lambda_init and stored.
            None for a merge without λ.
    """

    model_class: Callable[..., InterpolationNet]
    arguments: Mapping[str, Any]
    merge: type[nn.Module]
    damping: Mapping[str, Any] | None = None

    def create(self, variant: str, pretrained: bool, **kwargs: Any) -> InterpolationNet:
        """Build the network; timm calls this.

        Args:
            variant: The timm name.
            pretrained: Load the weights of the tag's checkpoint. Without a tag, it is the tag that
                `default_tag` of `register_all` returns.
            kwargs: Arguments of the caller and of timm.

        Raises:
            TypeError: If the network does not take an argument.
            ValueError: If an argument has a wrong value.
        """
        # timm hands over the tag of "name.tag" as pretrained_cfg.
        if pretrained and kwargs.get("pretrained_cfg") is None:
            choose = _DEFAULT_TAGS.get(variant)
            kwargs["pretrained_cfg"] = choose(variant) if choose else None
        kwargs = {**_TAG_ARGUMENTS.get(f"{variant}.{kwargs.get('pretrained_cfg')}", {}), **kwargs}
        merge: Callable[..., nn.Module] = self.merge
        if self.damping is not None:
            chosen: dict[str, Any] = {
                key: kwargs.pop(key) for key in ("lambda_init", "stored") if key in kwargs
            }
            merge = damped(merge, **{**self.damping, **chosen})
        return build_model_with_cfg(
            self.model_class,
            variant,
            pretrained,
            # all our feature levels as the default of features_only
            feature_cfg={"out_indices": (0, 1, 2, 3), "flatten_sequential": True},
            merge=merge,
            **self.arguments,
            **kwargs,
        )


def register(name: str, module: str, architecture: Architecture) -> Callable[..., InterpolationNet]:
    """Make the timm entrypoint of an architecture and register it.

    Args:
        name: Name of the timm model and of the function.
        module: Name of the module that the function claims to be defined in; timm looks its cfgs up there.
        architecture: The architecture that the function creates.
    """

    def entrypoint(pretrained: bool = False, **kwargs: Any) -> InterpolationNet:
        return architecture.create(name, pretrained, **kwargs)

    entrypoint.__name__ = entrypoint.__qualname__ = name
    entrypoint.__module__ = module
    entrypoint.__doc__ = f"{name}: {architecture.model_class.__name__} with {architecture.merge.__name__}."
    return register_model(entrypoint)


def timm_cfgs(
    architectures: Mapping[str, Architecture], checkpoints: Mapping[str, Mapping[str, Any]]
) -> dict[str, Any]:
    """Return timm's `default_cfgs` of a module: one per architecture without weights, one per checkpoint.

    Args:
        architectures: The architectures of the module, by name.
        checkpoints: Pretrained cfgs by "architecture.tag". Each has `file` and may have "model_args", the
            arguments that the architecture needs to load it, such as `stored`. Checkpoints of other
            architectures are ignored.
    """
    cfgs: dict[str, Any] = {name: _CIFAR for name in architectures}
    for name, pretrained_cfg in checkpoints.items():
        if name.split(".")[0] in architectures:
            cfg = {**_CIFAR, **pretrained_cfg}
            _TAG_ARGUMENTS[name] = cfg.pop("model_args", {})
            cfgs[name] = cfg
    default_cfgs = generate_default_cfgs(cfgs)
    for cfg in default_cfgs.values():
        # For a name without a tag, timm prefers a tag with weights: `in_resnet14` would then take the
        # settings of some checkpoint, for example one input channel.
        cfg.tags.remove("")
        cfg.tags.appendleft("")
    return default_cfgs


def register_all(
    families: Iterable[ModuleType],
    checkpoints: Mapping[str, Mapping[str, Any]],
    default_tag: Callable[[str], str | None],
) -> None:
    """Register the ARCHITECTURES of modules with timm, which finds functions and cfgs in the modules.

    Args:
        families: Modules with a dict ARCHITECTURES, name -> `Architecture`.
        checkpoints: As for `timm_cfgs`.
        default_tag: Maps an architecture to the tag whose weights are loaded for its name without a tag;
            None if there is no such tag. Called only when pretrained weights are requested.
    """
    for family in families:
        vars(family)["default_cfgs"] = timm_cfgs(family.ARCHITECTURES, checkpoints)
        for name, architecture in family.ARCHITECTURES.items():
            setattr(family, name, register(name, family.__name__, architecture))
            _DEFAULT_TAGS[name] = default_tag

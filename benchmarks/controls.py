"""Plug-in: control networks of depth 20, which tell apart why In-ResNet-110 is robust.

    robust-interp train --plugin benchmarks/controls.py --models preact_resnet20_burst1000 ...

- `resnet20_in110_front`, `resnet20_in110_warmup_front`, `resnet20_resnet110_front`: the stem and the first
  4 of the 18 blocks of the first stage are those of a network of depth 110, frozen. The second and the third
  stage of a ResNet-20 follow, without λ. So these networks differ in the weights of the front alone.
- `preact_resnet20_burst100`, `preact_resnet20_burst1000`: a ResNet-20, in whose first 10 steps the gradients
  of the stem and the first stage are multiplied by 100 or 1000.
- `in_resnet20_fixed`: an In-ResNet-20 whose λ stay at their initial values of 0.20 to 0.25.

Numbers: docs/findings.md.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import timm
import torch
from timm.models import build_model_with_cfg, generate_default_cfgs, register_model
from torch import Tensor, nn

from robust_interp.models import PreActResNet
from robust_interp.models.merges import Coefficient, Damp, damped

BLOCKS = 4  # of a front
BURST = 10  # steps


class Frozen(nn.Sequential):
    """Modules that stay in eval mode, with weights that no optimizer changes."""

    def __init__(self, *modules: nn.Module) -> None:
        super().__init__(*modules)
        self.requires_grad_(False)

    def train(self, mode: bool = True) -> "Frozen":
        return super().train(False)


class FixedFront(PreActResNet):
    """A ResNet-20 whose stem and first stage are those of `front`, a timm name, and are not trained."""

    def __init__(self, front: str, **arguments: Any) -> None:
        super().__init__(depth=20, **arguments)
        source: Any = timm.create_model(front, pretrained=True)
        self.stem = Frozen(source.stem)
        self.stages[0] = Frozen(*source.stages[0][:BLOCKS])


class Burst(PreActResNet):
    """A ResNet-20 whose stem and first stage have `factor` times their gradients in the first BURST steps."""

    steps: Tensor

    def __init__(self, factor: float, **arguments: Any) -> None:
        super().__init__(depth=20, **arguments)
        self.factor = factor
        self.register_buffer("steps", torch.zeros(()))  # in the state, so that a resumed training goes on
        for part in (self.stem, self.stages[0]):
            for parameter in part.parameters():
                parameter.register_hook(self._enlarged)

    def _enlarged(self, gradient: Tensor) -> Tensor:
        return gradient * self.factor if self.steps <= BURST else gradient

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.steps += 1
        return super().forward(x)


class FixedDamping(PreActResNet):
    """An In-ResNet-20 that does not train its λ."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(depth=20, merge=damped(Damp, lambda_init=(0.20, 0.25)), **arguments)
        for module in self.modules():
            if isinstance(module, Coefficient):
                module.requires_grad_(False)


CONTROLS: dict[str, Callable[..., PreActResNet]] = {
    "resnet20_in110_front": partial(FixedFront, front="in_resnet110.cifar10_quick_seed0"),
    "resnet20_in110_warmup_front": partial(
        FixedFront, front="in_resnet110.cifar10_quick_warmup_epochs_1_bf16_seed0"
    ),
    "resnet20_resnet110_front": partial(FixedFront, front="preact_resnet110.cifar10_quick_bf16_seed0"),
    "preact_resnet20_burst100": partial(Burst, factor=100),
    "preact_resnet20_burst1000": partial(Burst, factor=1000),
    "in_resnet20_fixed": FixedDamping,
}

default_cfgs = generate_default_cfgs(
    {
        name: {
            "num_classes": 10,
            "input_size": (3, 32, 32),
            "mean": (0.4914, 0.4822, 0.4465),
            "std": (0.2470, 0.2435, 0.2616),
            "first_conv": "stem.conv",
            "classifier": "fc",
        }
        for name in CONTROLS
    }
)


def _register(name: str, network: Callable[..., PreActResNet]) -> None:
    def entrypoint(pretrained: bool = False, **arguments: Any) -> PreActResNet:
        return build_model_with_cfg(network, name, pretrained, **arguments)

    entrypoint.__name__ = name
    entrypoint.__module__ = __name__
    globals()[name] = register_model(entrypoint)


for _name, _network in CONTROLS.items():
    _register(_name, _network)

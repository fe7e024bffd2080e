"""Plug-in: control networks, which tell apart why In-ResNet-110 is robust.

    robust-interp train --plugin benchmarks/controls.py --models preact_resnet20_burst1000 ...

- `resnet20_in110_front`, `resnet20_in110_warmup_front`, `resnet20_resnet110_front`: the stem and the first
  4 of the 18 blocks of the first stage are those of a network of depth 110, frozen. The second and the third
  stage of a ResNet-20 follow, without λ. So these networks differ in the front alone: in its weights, and
  in one skip connection (λ = 4.7 in the second block of `in110_front`; the others do not damp).
- `preact_resnet20_burst100`, `preact_resnet20_burst1000`: a ResNet-20, in whose first 10 steps the gradients
  of the stem and the first stage are multiplied by 100 or 1000.
- `in_resnet20_fixed`, `in_resnet110_fixed`: an In-ResNet whose λ stay at their initial 0.20 to 0.25.

Numbers: docs/findings.md.
"""

import sys
from typing import Any

import timm
import torch
from torch import Tensor, nn

from robust_interp.models import PreActResNet
from robust_interp.models.merges import Add, Coefficient, Damp
from robust_interp.models.registration import Architecture, register_all

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
    """A network whose stem and first stage are those of `front`, a timm name, and are not trained."""

    def __init__(self, front: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        source: Any = timm.create_model(front, pretrained=True)
        self.stem = Frozen(source.stem)
        self.stages[0] = Frozen(*source.stages[0][:BLOCKS])


class Burst(PreActResNet):
    """A network whose stem and first stage have `factor` times their gradients in the first BURST steps."""

    steps: Tensor

    def __init__(self, factor: float, **arguments: Any) -> None:
        super().__init__(**arguments)
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
    """A network that does not train its λ."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        for module in self.modules():
            if isinstance(module, Coefficient):
                module.requires_grad_(False)


def _fixed(depth: int) -> Architecture:
    return Architecture(FixedDamping, {"depth": depth}, Damp, {"lambda_init": (0.20, 0.25)})


def _front(name: str) -> Architecture:
    return Architecture(FixedFront, {"depth": 20, "front": name}, Add)


ARCHITECTURES = {
    "resnet20_in110_front": _front("in_resnet110.cifar10_quick_seed0"),
    "resnet20_in110_warmup_front": _front("in_resnet110.cifar10_quick_warmup_epochs_1_bf16_seed0"),
    "resnet20_resnet110_front": _front("preact_resnet110.cifar10_quick_bf16_seed0"),
    "preact_resnet20_burst100": Architecture(Burst, {"depth": 20, "factor": 100}, Add),
    "preact_resnet20_burst1000": Architecture(Burst, {"depth": 20, "factor": 1000}, Add),
    "in_resnet20_fixed": _fixed(20),
    "in_resnet110_fixed": _fixed(110),
}

register_all([sys.modules[__name__]], checkpoints={}, default_tag=lambda name: None)

"""Pre-activation networks for CIFAR-sized images: ResNet, plain net, (λ-)In-ResNet and their exact steps.

Layout: a 3x3 convolution to 16 channels without pooling (the stem); three stages, of which the second and
the third halve height and width; BN-ReLU, global average pooling and a linear classifier. Depth 164 has
bottleneck blocks, the other depths have basic blocks. Where the dimensions change, the shortcut is a
BN-ReLU-1x1 convolution with the stride of the block; its BN is not shared with the branch. A block carries
a λ if its shortcut is the identity and it is not the first block of the network: 51 blocks at depths 110
and 164, 6 at depth 20, 3 at depth 14.

A timm name sets the arguments depth, bottleneck and merge of `PreActResNet`; the caller may pass the
others. A name with a λ also takes two arguments of `merges.damped`: `lambda_init=(low, high)`, the interval
from which the initial act(λ) is drawn (by default the paper's: 0.10 to 0.20 at depth 164, else 0.20 to
0.25), and `stored`, the parameter that is trained and saved: `"lambda"` for λ or `"keep"` for 1 - λ.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from robust_interp.core.architectures import RESNETS
from robust_interp.models.merges import (
    Add,
    Branch,
    Damp,
    Device,
    Dtype,
    Exponential,
    ScaledDamp,
    ScaledExponential,
)
from robust_interp.models.network import Block, InterpolationNet, Stage, blocks_per_stage, conv, stem_conv
from robust_interp.models.registration import Architecture

__all__ = ["PreActResNet"]

_STEM_WIDTH = 16


class PreActResNet(InterpolationNet):
    """A pre-activation CIFAR network; `merge` makes it a ResNet, an In-ResNet, a plain net, ...

    Args:
        depth: 6n + 2, or with bottleneck 9n + 2.
        merge: called as merge(channels, device=..., dtype=...) for each block that carries a λ;
            `robust_interp.models.merges.damped` gives such a callable.
        bottleneck: blocks of 1x1, 3x3, 1x1 convolutions with four times the channels between them.
        num_classes, global_pool, drop_rate: see `InterpolationNet`.
        in_chans: channels of the images.
        device, dtype: of the parameters.

    Input (N, in_chans, H, W) with any H and W, normalised; output logits (N, num_classes).

    Raises:
        ValueError: for values outside these.
    """

    def __init__(
        self,
        depth: int,
        merge: Callable[..., nn.Module] = Add,
        bottleneck: bool = False,
        num_classes: int = 10,
        in_chans: int = 3,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        blocks = blocks_per_stage(depth, convs_per_block=3 if bottleneck else 2)
        branch, expansion = (_bottleneck, 4) if bottleneck else (_basic, 1)
        widths = [_STEM_WIDTH, *(expansion * _STEM_WIDTH * 2**i for i in range(3))]
        stem = nn.Sequential(OrderedDict(conv=stem_conv(in_chans, _STEM_WIDTH, **dd)))
        stages = [
            Stage(*_stage(branch, widths[i], widths[i + 1], blocks, merge, first_stage=i == 0, **dd))
            for i in range(3)
        ]
        norm = nn.Sequential(_norm_act(widths[-1], **dd))
        super().__init__(stem, stages, norm, widths, num_classes, global_pool, drop_rate)


def _stage(
    branch: Callable[..., nn.Module],
    in_channels: int,
    channels: int,
    blocks: int,
    merge: Callable[..., nn.Module],
    first_stage: bool,
    **dd: Any,
) -> Iterator[Block]:
    stride = 1 if first_stage else 2
    changes = stride > 1 or in_channels != channels
    shortcut = _projection(in_channels, channels, stride, **dd) if changes else nn.Identity()
    yield Block(branch(in_channels, channels, stride, **dd), shortcut, Add(channels, **dd))
    for _ in range(blocks - 1):
        yield Block(branch(channels, channels, 1, **dd), nn.Identity(), merge(channels, **dd))


def _norm_act(channels: int, **dd: Any) -> OrderedDict[str, nn.Module]:
    return OrderedDict(norm=nn.BatchNorm2d(channels, **dd), act=nn.ReLU())


def _norm_act_convs(*convs: nn.Conv2d, **dd: Any) -> nn.Sequential:
    """Chain BN, ReLU and the convolution for each of the convolutions; layer names are numbered from 1."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i, layer in enumerate(convs, start=1):
        layers[f"norm{i}"] = nn.BatchNorm2d(layer.in_channels, **dd)
        layers[f"act{i}"] = nn.ReLU()
        layers[f"conv{i}"] = layer
    return nn.Sequential(layers)


def _basic(in_channels: int, channels: int, stride: int, **dd: Any) -> nn.Sequential:
    return _norm_act_convs(
        conv(in_channels, channels, 3, stride, **dd),
        conv(channels, channels, 3, **dd),
        **dd,
    )


def _bottleneck(in_channels: int, channels: int, stride: int, **dd: Any) -> nn.Sequential:
    inner = channels // 4
    return _norm_act_convs(
        conv(in_channels, inner, 1, **dd),
        conv(inner, inner, 3, stride, **dd),
        conv(inner, channels, 1, **dd),
        **dd,
    )


def _projection(in_channels: int, channels: int, stride: int, **dd: Any) -> nn.Sequential:
    return _norm_act_convs(conv(in_channels, channels, 1, stride, **dd), **dd)


# family -> merge class, and the arguments of `damped` for a merge with λ (None without λ)
_MERGES: dict[str, tuple[type[nn.Module], dict[str, Any] | None]] = {
    "preact_resnet{}": (Add, None),
    "plain_net{}": (Branch, None),
    "in_resnet{}": (Damp, {}),
    "in_resnet{}_sig": (Damp, {"act": "sigmoid"}),
    "in_resnet{}_gating": (Damp, {"gated": True}),
    "in_resnet{}_gating_sig": (Damp, {"gated": True, "act": "sigmoid"}),
    "lambda_in_resnet{}": (ScaledDamp, {}),
    "exp_in_resnet{}": (Exponential, {}),
    "exp_lambda_in_resnet{}": (ScaledExponential, {}),
}


def _architectures() -> Iterator[tuple[str, Architecture]]:
    for family, depths in RESNETS.items():
        merge, damping = _MERGES[family]
        for depth in depths:
            # The paper's initial intervals: one for depth 164, one for the others.
            interval = (0.10, 0.20) if depth == 164 else (0.20, 0.25)
            arguments = {"depth": depth, "bottleneck": depth == 164}
            damped = None if damping is None else {"lambda_init": interval, **damping}
            yield family.format(depth), Architecture(PreActResNet, arguments, merge, damped)


ARCHITECTURES = dict(_architectures())

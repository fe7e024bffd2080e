"""ResNeXt, In-ResNeXt and λ-In-ResNeXt for CIFAR-sized images.

Layout: a 3x3 convolution to 64 channels with BN and ReLU (the stem); three stages of 256, 512 and 1024
channels, of which the second and the third halve height and width; global average pooling and a linear
classifier. A block is a 1x1, a grouped 3x3 and a 1x1 convolution, each with BN. Its output is merged with
the shortcut before the last ReLU. Where the dimensions change, the shortcut is a 1x1 convolution with BN.
The blocks whose shortcut is the identity carry a λ: 6 at depth 29. This is the CIFAR form of Xie et al.,
*Aggregated Residual Transformations for Deep Neural Networks*, CVPR 2017.

A timm name with a λ also takes the arguments `lambda_init` and `stored`, as in `in_resnet`.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from robust_interp.core.architectures import RESNEXT_LAYOUTS, RESNEXTS
from robust_interp.models.merges import Add, Damp, Device, Dtype, ScaledDamp
from robust_interp.models.network import Block, InterpolationNet, Stage, blocks_per_stage, conv, stem_conv
from robust_interp.models.registration import Architecture

__all__ = ["CifarResNeXt"]

_STEM_WIDTH = 64


class CifarResNeXt(InterpolationNet):
    """A CIFAR ResNeXt; `merge` makes it an In-ResNeXt or λ-In-ResNeXt.

    Args:
        depth: 9n + 2.
        cardinality: groups of the 3x3 convolutions.
        base_width: channels of each group in the first stage; twice and four times that in the others.
        merge, num_classes, in_chans, global_pool, drop_rate, device, dtype: as for `PreActResNet`.

    Input (N, in_chans, H, W) with any H and W, normalised; output logits (N, num_classes).

    Raises:
        ValueError: for values outside these.
    """

    def __init__(
        self,
        depth: int,
        cardinality: int,
        base_width: int,
        merge: Callable[..., nn.Module] = Add,
        num_classes: int = 10,
        in_chans: int = 3,
        global_pool: str = "avg",
        drop_rate: float = 0.0,
        device: Device = None,
        dtype: Dtype = None,
    ) -> None:
        if cardinality < 1 or base_width < 1:
            raise ValueError(f"cardinality={cardinality} and base_width={base_width} must be at least 1")
        dd: dict[str, Any] = {"device": device, "dtype": dtype}
        blocks = blocks_per_stage(depth, convs_per_block=3)
        widths = [_STEM_WIDTH, *(4 * _STEM_WIDTH * 2**i for i in range(3))]
        stem = nn.Sequential(
            OrderedDict(
                conv=stem_conv(in_chans, _STEM_WIDTH, **dd),
                norm=nn.BatchNorm2d(_STEM_WIDTH, **dd),
                act=nn.ReLU(),
            )
        )
        stages = []
        for i in range(3):
            inner = cardinality * base_width * 2**i
            stage = _stage(widths[i], inner, widths[i + 1], blocks, cardinality, merge, **dd)
            stages.append(Stage(*stage))
        super().__init__(stem, stages, nn.Identity(), widths, num_classes, global_pool, drop_rate)


def _stage(
    in_channels: int,
    inner: int,
    channels: int,
    blocks: int,
    groups: int,
    merge: Callable[..., nn.Module],
    **dd: Any,
) -> Iterator[Block]:
    stride = 1 if in_channels == _STEM_WIDTH else 2
    shortcut = nn.Sequential(
        OrderedDict(
            conv=conv(in_channels, channels, 1, stride, **dd),
            norm=nn.BatchNorm2d(channels, **dd),
        )
    )
    yield Block(
        _branch(in_channels, inner, channels, stride, groups, **dd),
        shortcut,
        Add(channels, **dd),
        nn.ReLU(),
    )
    for _ in range(blocks - 1):
        yield Block(
            _branch(channels, inner, channels, 1, groups, **dd),
            nn.Identity(),
            merge(channels, **dd),
            nn.ReLU(),
        )


def _branch(
    in_channels: int, inner: int, channels: int, stride: int, groups: int, **dd: Any
) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict(
            conv1=conv(in_channels, inner, 1, **dd),
            norm1=nn.BatchNorm2d(inner, **dd),
            act1=nn.ReLU(),
            conv2=conv(inner, inner, 3, stride, groups, **dd),
            norm2=nn.BatchNorm2d(inner, **dd),
            act2=nn.ReLU(),
            conv3=conv(inner, channels, 1, **dd),
            norm3=nn.BatchNorm2d(channels, **dd),
        )
    )


# The paper's interval of the initial act(λ), for both damped families
_DAMPING = {"lambda_init": (0.20, 0.25)}


# family -> merge class, and the arguments of `damped` for a merge with λ (None without λ)
_MERGES = {
    "resnext{}": (Add, None),
    "in_resnext{}": (Damp, _DAMPING),
    "lambda_in_resnext{}": (ScaledDamp, _DAMPING),
}


def _architectures() -> Iterator[tuple[str, Architecture]]:
    for layout, arguments in RESNEXT_LAYOUTS.items():
        for family in RESNEXTS:
            yield family.format(layout), Architecture(CifarResNeXt, arguments, *_MERGES[family])


ARCHITECTURES = dict(_architectures())

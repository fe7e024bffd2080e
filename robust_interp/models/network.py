"""Base of the pre-activation and the ResNeXt networks: blocks, stages, head and timm's interface."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from timm.layers import SelectAdaptivePool2d
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from robust_interp.models.merges import Coefficient

__all__ = ["Block", "InterpolationNet", "Stage"]

_POOLS = ("avg", "max", "avgmax", "catavgmax", "")


class Block(nn.Module):
    """act(merge(shortcut(x), branch(x))); `branch` is the f of the equations."""

    def __init__(
        self, branch: nn.Module, shortcut: nn.Module, merge: nn.Module, act: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.branch = branch
        self.shortcut = shortcut
        self.merge = merge
        self.act = act or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C', H', W')."""
        return self.act(self.merge(self.shortcut(x), self.branch(x)))


def coefficient_of(block: Block) -> Coefficient | None:
    """Return the module that computes the λ of a block; None for a block without λ."""
    found = getattr(block.merge, "coefficient", None)
    return found if isinstance(found, Coefficient) else None


class Stage(nn.Sequential):
    """Blocks of one width; optionally none of their activations is kept for the backward pass."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__(*blocks)
        self.grad_checkpointing = False

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> (N, C', H', W')."""
        for block in self:
            if self.grad_checkpointing and not torch.jit.is_scripting():
                # Not reentrant: attacks ask for gradients by torch.autograd.grad.
                x = checkpoint(block, x, use_reentrant=False)
            else:
                x = block(x)
        return x


class InterpolationNet(nn.Module):
    """stem, three stages, norm, global pooling and a linear classifier, behind timm's model interface.

    Feature levels, for `forward_intermediates` and `features_only`, are the stem and each stage, at
    reductions 1, 1, 2 and 4. Stages hold Blocks, named "stages.<stage>.<block>".

    Args:
        stem: an nn.Sequential that begins with "conv".
        norm: what follows the last stage.
        widths: channels of the feature levels.
        num_classes: 0 for none: the pooled features come out.
        global_pool: "avg", "max", "avgmax", "catavgmax", or "" for none (only without a classifier).
        drop_rate: dropout before the classifier, in [0, 1].

    Raises:
        ValueError: for values outside these.
    """

    def __init__(
        self,
        stem: nn.Sequential,
        stages: list[Stage],
        norm: nn.Module,
        widths: list[int],
        num_classes: int,
        global_pool: str,
        drop_rate: float,
    ) -> None:
        super().__init__()
        if num_classes and not global_pool:
            raise ValueError("a classifier needs a global_pool: '' is possible with num_classes=0 only")
        first = stem.get_submodule("conv")
        if not isinstance(first, nn.Conv2d):
            raise ValueError("the first layer of a stem must be a convolution named conv")
        self.in_chans = first.in_channels
        self.drop_rate = drop_rate
        self.feature_info = _feature_info(stem, widths)
        self.num_levels = len(widths)
        self.stem = stem
        self.stages = nn.Sequential(*stages)
        self.norm = norm
        self.num_features = widths[-1]
        self.head_drop = nn.Dropout(drop_rate)
        self.reset_classifier(num_classes, global_pool)
        self.init_weights()

    @torch.no_grad()
    def init_weights(self) -> None:
        """He initialisation of the convolutions; the classifier keeps torch's own for nn.Linear.

        The λ are drawn last, so that one torch seed gives all networks of a layout the same convolutions.
        """
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif isinstance(module, nn.BatchNorm2d):
                module.reset_parameters()  # scale 1, shift 0, running mean 0 and variance 1
        for module in self.modules():
            if isinstance(module, Coefficient):
                module.reset_parameters()

    def named_blocks(self) -> Iterator[tuple[str, Block]]:
        """(name, block) in the order of depth; the names are those of `named_modules`."""
        for name, module in self.named_modules():
            if isinstance(module, Block):
                yield name, module

    @torch.no_grad()
    def interpolation_coefficients(self, x: Tensor | None = None) -> dict[str, Tensor]:
        """act(λ) of each block that has one, in the order of depth.

        Args:
            x: a batch (N, C, H, W), normalised as for `forward`; needed by gated variants only, whose λ
                depends on it. It is run in eval mode; the model is left as it was.

        Returns:
            Block name -> detached float32: a 0-dim tensor, or for a gated variant (N, C', H', W'), one λ
            for each channel and position. Empty for networks without λ.

        Raises:
            ValueError: for a gated variant without x.
        """
        coefficients = {
            name: coefficient
            for name, block in self.named_blocks()
            if (coefficient := coefficient_of(block)) is not None
        }
        if not any(coefficient.depends_on_input for coefficient in coefficients.values()):
            nothing = torch.empty(0)  # which a scalar λ does not look at
            return {name: coefficient(nothing).float() for name, coefficient in coefficients.items()}
        if x is None:
            raise ValueError("the λ of a gated network depends on its input: pass a batch of images, x")
        return self._record(coefficients, x)

    def _record(self, modules: Mapping[str, nn.Module], x: Tensor) -> dict[str, Tensor]:
        """The outputs of these modules when x is run in eval mode, as float32."""
        outputs: dict[str, Tensor] = {}

        def keep(name: str) -> Callable[..., None]:
            return lambda _module, _inputs, output: outputs.update({name: output.float()})

        hooks = [module.register_forward_hook(keep(name)) for name, module in modules.items()]
        try:
            with _eval_mode(self):
                self.forward_features(x)
        finally:
            for hook in hooks:
                hook.remove()
        return outputs

    @torch.jit.ignore
    def group_matcher(self, coarse: bool = False) -> dict[str, Any]:
        """timm: which parameters belong together, for layer-wise learning rates; if coarse, whole stages."""
        blocks = r"^stages\.(\d+)" if coarse else [(r"^stages\.(\d+)\.(\d+)", None), (r"^norm", (99999,))]
        return {"stem": r"^stem", "blocks": blocks}

    @torch.jit.ignore
    def set_grad_checkpointing(self, enable: bool = True) -> None:
        """Whether (`enable`) each block is computed again in the backward pass instead of kept."""
        for module in self.modules():
            if isinstance(module, Stage):
                module.grad_checkpointing = enable

    @torch.jit.ignore
    def get_classifier(self) -> nn.Module:
        """The last linear layer, nn.Identity if there is none."""
        return self.fc

    def reset_classifier(self, num_classes: int, global_pool: str | None = None) -> None:
        """A new linear layer for num_classes (0: none), and with global_pool another pooling.

        Raises:
            ValueError: for a negative number of classes, or a pooling that is not known.
        """
        if num_classes < 0:
            raise ValueError(f"num_classes={num_classes} is negative")
        pool = self.global_pool.pool_type if global_pool is None else global_pool
        if pool not in _POOLS:
            raise ValueError(f"global_pool={pool!r} is not one of {', '.join(map(repr, _POOLS))}")
        # Without pooling the maps stay maps: nothing is flattened.
        self.global_pool: SelectAdaptivePool2d = SelectAdaptivePool2d(
            pool_type=pool, flatten=bool(pool)
        ).train(self.training)
        self.num_classes = num_classes
        self.head_hidden_size = self.num_features * self.global_pool.feat_mult()
        like = next(self.stem.parameters())
        self.fc: nn.Module = nn.Identity()
        if num_classes:
            self.fc = nn.Linear(self.head_hidden_size, num_classes, device=like.device, dtype=like.dtype)
        self.fc.train(self.training)

    def forward_features(self, x: Tensor) -> Tensor:
        """(N, C, H, W) -> the last stage's maps (N, num_features, H/4, W/4), normalised."""
        return self.norm(self.stages(self.stem(x)))

    def forward_head(self, x: Tensor, pre_logits: bool = False) -> Tensor:
        """Maps -> logits (N, num_classes); with pre_logits the pooled features."""
        x = self.head_drop(self.global_pool(x))
        return x if pre_logits else self.fc(x)

    def forward(self, x: Tensor) -> Tensor:
        """Normalised images (N, C, H, W) -> logits (N, num_classes)."""
        return self.forward_head(self.forward_features(x))

    def forward_intermediates(
        self,
        x: Tensor,
        indices: int | list[int] | None = None,
        norm: bool = False,
        stop_early: bool = False,
        output_fmt: str = "NCHW",
        intermediates_only: bool = False,
    ) -> list[Tensor] | tuple[Tensor, list[Tensor]]:
        """timm: the maps of the chosen feature levels, and the features unless intermediates_only.

        Args:
            indices: the levels (0 the stem, then the stages; negative ones count from the end); an int
                for the last so many; None for all.
            norm: apply the final norm to the last level.
            stop_early: leave out what follows the last chosen level.
            output_fmt: "NCHW".

        Raises:
            ValueError: for an index out of range or another output_fmt.
        """
        if output_fmt != "NCHW":
            raise ValueError("output_fmt must be NCHW")
        take, last = _take_indices(self.num_levels, indices)
        stopped = stop_early and last < self.num_levels - 1
        intermediates: list[Tensor] = []
        x = self.stem(x)
        if 0 in take:
            intermediates.append(x)
        for level, stage in enumerate(self.stages, start=1):
            if not stopped or level <= last:
                x = stage(x)
            if level in take:
                intermediates.append(x)
        if not stopped and (norm or not intermediates_only):
            x = self.norm(x)
            if norm and last == self.num_levels - 1:
                intermediates[-1] = x
        if intermediates_only:
            return intermediates
        return x, intermediates

    def prune_intermediate_layers(
        self, indices: int | list[int] = 1, prune_norm: bool = False, prune_head: bool = True
    ) -> list[int]:
        """timm: remove what `forward_intermediates(indices=indices)` does not need; returns the levels.

        Args:
            indices: as there.
            prune_norm: remove the final norm, too, where the last level is kept.
            prune_head: remove the classifier and the pooling.
        """
        take, last = _take_indices(self.num_levels, indices)
        shortened = last < len(self.stages)
        self.stages = self.stages[:last]
        if prune_norm or shortened:
            self.norm = nn.Identity()
        if shortened:
            self.num_features = self.feature_info[last]["num_chs"]
        if prune_head or shortened:
            self.reset_classifier(0, "")
        return take


def conv(
    in_channels: int, out_channels: int, kernel_size: int, stride: int = 1, groups: int = 1, **dd: Any
) -> nn.Conv2d:
    """Build a square convolution without bias that keeps the size at stride 1; `dd`: device and dtype."""
    padding = kernel_size // 2
    return nn.Conv2d(in_channels, out_channels, kernel_size, stride, padding, groups=groups, bias=False, **dd)


def stem_conv(in_chans: int, width: int, **dd: Any) -> nn.Conv2d:
    """Build the first convolution, 3x3 from `in_chans` to `width` channels; `dd`: device and dtype.

    Raises:
        ValueError: If in_chans is less than 1.
    """
    if in_chans < 1:
        raise ValueError(f"in_chans={in_chans} must be at least 1")
    return conv(in_chans, width, 3, **dd)


def blocks_per_stage(depth: int, convs_per_block: int) -> int:
    """Return the n of depth = 3 * convs_per_block * n + 2: three stages of n blocks, stem and classifier.

    Raises:
        ValueError: If no n >= 1 gives this depth.
    """
    n, rest = divmod(depth - 2, 3 * convs_per_block)
    if rest or n < 1:
        raise ValueError(f"depth={depth} must be {3 * convs_per_block}n + 2 with n >= 1")
    return n


def _feature_info(stem: nn.Sequential, widths: list[int]) -> list[dict[str, Any]]:
    *_, last_of_stem = (name for name, _ in stem.named_children())
    modules = [f"stem.{last_of_stem}", *(f"stages.{i}" for i in range(len(widths) - 1))]
    return [
        {"num_chs": width, "reduction": reduction, "module": module}
        for width, reduction, module in zip(widths, (1, 1, 2, 4), modules, strict=True)
    ]


def _take_indices(count: int, indices: int | list[int] | None) -> tuple[list[int], int]:
    """Return the chosen levels, counted from the start, and the highest of them; must suit TorchScript."""
    if indices is None:
        indices = count
    if isinstance(indices, int):
        if not 0 < indices <= count:
            raise ValueError(f"cannot return the last {indices} of {count} feature levels")
        take = [count - indices + i for i in range(indices)]
    else:
        take = [i + count if i < 0 else i for i in indices]
        if min(take) < 0 or max(take) >= count:
            raise ValueError(f"feature levels are 0 to {count - 1}, not {indices}")
    return take, max(take)


@contextmanager
def _eval_mode(model: nn.Module) -> Iterator[None]:
    """Put the model in eval mode; afterwards each module has its former mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes:
            module.training = mode

"""The training step compiled by torch.compile: the same arithmetic in fewer, fused kernels."""

from __future__ import annotations

from torch import nn

from robust_interp.models.network import Block


def compile_blocks(model: nn.Module) -> None:
    """Compile a network in place, block by block; one of another family than ours as a whole.

    The blocks of a stage share one compilation, since their weights are inputs of it: depth 110 compiles no
    longer than depth 20. The parameters and their names stay what they are. It is compiled at the first
    batch of each shape.
    """
    blocks: list[nn.Module] = [module for module in model.modules() if isinstance(module, Block)]
    for module in blocks or [model]:
        module.compile(dynamic=False)

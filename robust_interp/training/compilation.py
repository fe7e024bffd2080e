"""Compile the training step with torch.compile: the same arithmetic in fewer, fused kernels."""

from __future__ import annotations

from torch import nn

from robust_interp.models.network import Block

# of a block's forward: up to eight kinds of blocks, each for full batches and for the last one of an epoch,
# for each architecture that one process trains; beyond torch's own limit, 8, blocks would run uncompiled
MOST_COMPILATIONS = 256


def compile_blocks(model: nn.Module) -> None:
    """Compile a network in place: ours block by block, others as a whole.

    The blocks of a stage share one compilation, because their weights are inputs of it. So depth 110 compiles
    no longer than depth 20. The parameters and their names do not change. The compilation runs at the first
    batch of each shape.
    """
    blocks: list[nn.Module] = [module for module in model.modules() if isinstance(module, Block)]
    for module in blocks or [model]:
        module.compile(dynamic=False)

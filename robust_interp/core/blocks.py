"""The position of a residual block in its network, read from its name, without a model and without torch."""

from __future__ import annotations

from collections.abc import Iterable

STAGES = 3  # number of stages of all our networks; all stages have the same number of blocks


def places(blocks: Iterable[str]) -> dict[str, dict[str, int]]:
    """Return the position of each block of one network.

    Args:
        blocks: Names ``stages.<stage>.<i>`` of all blocks with a λ, both numbers counted from 0. The last
            block of a stage must be included, since it gives the number of blocks.

    Returns:
        For each name: ``stage``, counted from 0; ``depth``, the index of the residual block in the network,
        counted from 1; and ``blocks``, the number of residual blocks of the network.
    """
    numbers = {block: tuple(map(int, block.split(".")[1:])) for block in blocks}
    per_stage = 1 + max((i for _, i in numbers.values()), default=0)
    return {
        block: {"stage": stage, "depth": stage * per_stage + i + 1, "blocks": STAGES * per_stage}
        for block, (stage, i) in numbers.items()
    }

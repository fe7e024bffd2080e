"""Where a residual block stands in its network, read from its name: without a model, and without torch."""

from __future__ import annotations

from collections.abc import Iterable

STAGES = 3  # of every network of ours; they have as many blocks each


def places(blocks: Iterable[str]) -> dict[str, dict[str, int]]:
    """The place of each block of one network.

    Args:
        blocks: Names ``stages.<stage>.<i>``, both counted from 0, of all blocks that carry a λ: the last
            block of a stage is one of them, so that the names tell how many there are.

    Returns:
        Name -> ``stage``, from 0; ``depth``, which residual block of the network it is, from 1; and
        ``blocks``, how many the network has.
    """
    numbers = {block: tuple(map(int, block.split(".")[1:])) for block in blocks}
    per_stage = 1 + max((i for _, i in numbers.values()), default=0)
    return {
        block: {"stage": stage, "depth": stage * per_stage + i + 1, "blocks": STAGES * per_stage}
        for block, (stage, i) in numbers.items()
    }

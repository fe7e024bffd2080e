"""Interpolation coefficients act(λ) of trained networks: over depth, in shares, and over training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from torch import Tensor, nn

from robust_interp import zoo
from robust_interp.analysis import inputs
from robust_interp.core.blocks import places
from robust_interp.core.errors import UserError
from robust_interp.core.normalize import Normalize
from robust_interp.core.work import Tell, each, untold
from robust_interp.models import ARCHITECTURES

QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
# name -> (low, high]: the paper counts the first; forward Euler over Δt = 1 is stable up to 2
BANDS = {
    "above_0.01": (0.01, np.inf),
    "in_0.01_1": (0.01, 1.0),
    "in_1_2": (1.0, 2.0),
    "above_2": (2.0, np.inf),
}


def over_depth(
    checkpoints: Sequence[zoo.Checkpoint], pixels: Tensor | None = None, tell: Tell = untold
) -> pd.DataFrame:
    """act(λ) of each block that carries one.

    Args:
        checkpoints: Networks, of which some carry λ.
        pixels: (N, C, H, W) in [0, 1]; needed by gated variants, whose λ depends on it and is then described
            by its distribution over images, channels and positions.
        tell: Told how far it is.

    Returns:
        One line a checkpoint and block: model, train_seed, block, stage, depth (which residual block it is,
        from 1), blocks (how many there are), images (that a gated λ was read at; 0 for one number a block),
        mean, the QUANTILES, and the share (0 to 1) of its values in each of the BANDS. Checkpoints without λ
        have no line.

    Raises:
        UserError: if none of them has a λ, or one is gated and there are no pixels.
    """
    names = inputs.labels(checkpoints)
    called = list(zip(checkpoints, names, strict=True))
    lines = [line for pair in each(called, tell, lambda pair: pair[0].name) for line in _lines(*pair, pixels)]
    if not lines:
        raise UserError(f"{', '.join(dict.fromkeys(names))}: no block has a λ")
    return pd.DataFrame(lines)


def _lines(checkpoint: zoo.Checkpoint, label: str, pixels: Tensor | None) -> Iterable[dict]:
    model = checkpoint.load()
    coefficients = _coefficients(checkpoint, model, pixels)
    for block, place in places(coefficients).items():
        values = coefficients[block]
        yield (
            {"model": label, "train_seed": checkpoint.seed, "block": block}
            | place
            | {"images": len(values) if values.ndim else 0}
            | describe(values.double().numpy())
        )


def _coefficients(checkpoint: zoo.Checkpoint, model: nn.Module, pixels: Tensor | None) -> dict[str, Tensor]:
    read = getattr(model, "interpolation_coefficients", None)
    if read is None:
        return {}
    cfg = checkpoint.config["pretrained_cfg"]
    normalize = Normalize(cfg["mean"], cfg["std"])
    try:
        return read(None if pixels is None else normalize(pixels))
    except ValueError as error:
        raise UserError(f"{checkpoint.name}: {error}") from error


def is_gated(architecture: str) -> bool:
    """Whether the λ of the network that this architecture names depends on its input; False if not ours."""
    known = ARCHITECTURES.get(architecture)
    return bool(known and known.damping and known.damping.get("gated"))


def describe(values: np.ndarray) -> dict[str, float]:
    """Mean, QUANTILES and shares (0 to 1) in the BANDS of one block's λ: `values`, a number or an array."""
    quantiles = np.quantile(values, list(QUANTILES.values()))
    shares = {name: float(((values > low) & (values <= high)).mean()) for name, (low, high) in BANDS.items()}
    return {"mean": float(values.mean()), **dict(zip(QUANTILES, quantiles.tolist(), strict=True)), **shares}


def shares(table: pd.DataFrame) -> pd.DataFrame:
    """How many of a network's λ lie where, in percent.

    Args:
        table: Of `over_depth`.

    Returns:
        One line a checkpoint: model, train_seed, lambdas (the n of the percentages), a column for each of the
        BANDS, in which a gated block counts by the share of its values; and the share above 0.01 as the paper
        counts it, out of all blocks (`blocks`, 54 at depth 110), although some use no λ: from
        `of_blocks_low`, where none of those counts as above, to `of_blocks_high`, where all do, as parameters
        must that no gradient reaches and nothing decays.
    """
    lines = []
    for (model, seed), part in table.groupby(["model", "train_seed"], sort=False):
        blocks, above = int(part["blocks"].iloc[0]), part["above_0.01"].sum()
        unused = blocks - len(part)
        lines.append(
            {"model": model, "train_seed": seed, "lambdas": len(part)}
            | {name: 100 * part[name].mean() for name in BANDS}
            | {"blocks": blocks}
            | {"of_blocks_low": 100 * above / blocks, "of_blocks_high": 100 * (above + unused) / blocks}
        )
    return pd.DataFrame(lines)


def over_training(checkpoints: Sequence[zoo.Checkpoint]) -> pd.DataFrame:
    """act(λ) after each epoch, as the trainer recorded it in the checkpoints' train.json.

    Returns:
        One line a checkpoint, epoch and block: model, train_seed, epoch, block, stage, depth, blocks,
        coefficient, and lr, the learning rate of the epoch (NaN if it was not recorded). Empty if none of
        them recorded any, as gated variants do not.
    """
    lines = []
    for checkpoint, label in zip(checkpoints, inputs.labels(checkpoints), strict=True):
        for epoch in checkpoint.record.get("curve", []):
            recorded = epoch.get("lambda", {})
            for block, place in places(recorded).items():
                head = {"model": label, "train_seed": checkpoint.seed, "epoch": epoch["epoch"]}
                told = {"coefficient": recorded[block], "lr": epoch.get("lr", np.nan)}
                lines.append(head | {"block": block} | place | told)
    return pd.DataFrame(lines)

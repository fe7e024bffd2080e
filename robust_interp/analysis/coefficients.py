"""Interpolation coefficients act(λ) of trained networks: by depth, as shares in ranges, and by epoch."""

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
from robust_interp.core.work import ProgressCallback, no_progress, with_progress
from robust_interp.models import ARCHITECTURES

QUANTILES = {"q05": 0.05, "q25": 0.25, "q50": 0.5, "q75": 0.75, "q95": 0.95}
# name -> range (low, high]. The paper counts the first. Forward Euler with Δt = 1 is stable up to 2.
BANDS = {
    "above_0.01": (0.01, np.inf),
    "in_0.01_1": (0.01, 1.0),
    "in_1_2": (1.0, 2.0),
    "above_2": (2.0, np.inf),
}


def over_depth(
    checkpoints: Sequence[zoo.Checkpoint],
    pixels: Tensor | None = None,
    progress: ProgressCallback = no_progress,
) -> pd.DataFrame:
    """Compute statistics of act(λ) for each block that has a λ.

    Args:
        checkpoints: The networks; at least one must have a λ.
        pixels: Images (N, C, H, W) in [0, 1]. Only needed by gated variants: their λ depends on the image;
            then the statistics are over images, channels and positions.
        progress: Progress callback.

    Returns:
        One row per checkpoint and block: model, train_seed, block, stage, depth (position of the residual
        block, from 1), blocks (number of residual blocks), images (number of images a gated λ was computed
        on; 0 if λ is one number per block), mean, the QUANTILES, and the share (0 to 1) of the values in each
        of the BANDS. Checkpoints without λ have no row.

    Raises:
        UserError: if no checkpoint has a λ, or one is gated and `pixels` is None.
    """
    names = inputs.labels(checkpoints)
    called = list(zip(checkpoints, names, strict=True))
    lines = [
        line
        for pair in with_progress(called, progress, lambda pair: pair[0].name)
        for line in _lines(*pair, pixels)
    ]
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
    """Return whether the λ of this architecture depends on the input; False for unknown architectures."""
    known = ARCHITECTURES.get(architecture)
    return bool(known and known.damping and known.damping.get("gated"))


def describe(values: np.ndarray) -> dict[str, float]:
    """Return the mean, the QUANTILES and the shares (0 to 1) in the BANDS of one block's act(λ)."""
    quantiles = np.quantile(values, list(QUANTILES.values()))
    shares = {name: float(((values > low) & (values <= high)).mean()) for name, (low, high) in BANDS.items()}
    return {"mean": float(values.mean()), **dict(zip(QUANTILES, quantiles.tolist(), strict=True)), **shares}


def shares(table: pd.DataFrame) -> pd.DataFrame:
    """Return the percentage of each network's act(λ) in each of the BANDS.

    Args:
        table: The result of `over_depth`.

    Returns:
        One row per checkpoint: model, train_seed, lambdas (number of blocks with λ), and one column per band,
        in %. A gated block counts with the share of its values. The paper divides the number above 0.01 by
        the number of all blocks (`blocks`, 54 at depth 110), including those that use no λ. So the row also
        has `of_blocks_low`, where no unused λ counts as above 0.01, and `of_blocks_high`, where all do (they
        keep their initial value if they get no gradient and no weight decay).
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
    """Return act(λ) after each epoch, as recorded in the checkpoints' train.json.

    Returns:
        One row per checkpoint, epoch and block: model, train_seed, epoch, block, stage, depth, blocks,
        coefficient, and lr, the learning rate of the epoch (NaN if not recorded). Empty if no checkpoint has
        a record; gated variants have none.
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

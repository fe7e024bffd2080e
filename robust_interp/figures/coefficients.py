"""Interpolation coefficients over depth and over training, from the tables of `analysis.coefficients`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from robust_interp.figures import style
from robust_interp.figures.style import Look

if TYPE_CHECKING:
    from pandas.core.groupby import DataFrameGroupBy

DEPTH_SHOWS = "act(λ) over depth."
TRAINING_SHOWS = "act(λ) over the epochs of training."
STABILITY = 2.0  # forward Euler is stable for λ Δt below 2, here with Δt = 1
_TOP = 2.15  # end of the axis, above the line at 2
_SMALL = 0.5  # if all values are below it, the axis ends above the largest one instead
_NO_COEFFICIENT: Look = {"color": style.MUTED, "linestyle": "none", "marker": "x", "markersize": 3.5}


@style.styled
def depth_figure(table: pd.DataFrame) -> Figure:
    """Draw act(λ) over depth, one panel per model, on a common scale.

    The axis ends above 2, or above the largest value if all values are small.

    Args:
        table: Table of `analysis.coefficients.over_depth`.
    """
    models = list(table["model"].unique())
    figure, axes = style.panels(len(models), 1, 0.5 + 1.75 * len(models), sharey=True)
    largest = float(table[[name for name in ("mean", "q95") if name in table]].max().max())
    is_small = largest < _SMALL
    top = 1.3 * max(largest, 0.01) if is_small else max(_TOP, 1.05 * table["mean"].max())
    for i, model in enumerate(models):
        panel = axes[i][0]
        draw_depth(panel, table[table["model"] == model], style.colour(i))
        panel.set_ylim(-0.04 * top, top)
    axes[-1][0].set_xlabel("residual block, from the input")
    draw_key(figure, is_small)
    return style.make_room(figure)


def draw_depth(axes: Axes, table: pd.DataFrame, colour: str) -> None:
    """Draw one model: the mean over seeds, with a band of one standard deviation, and a thin line per seed.

    For a gated model the line is the mean of the medians over the seeds. The bands reach from the 25 % to the
    75 % quantile and from the 5 % to the 95 % quantile.

    Args:
        axes: The panel.
        table: The model's rows of `analysis.coefficients.over_depth`.
        colour: Colour of the lines and bands.
    """
    _draw_guides(axes, int(table["blocks"].iloc[0]))
    images = int(table["images"].max())
    gated = images > 0
    centre = "q50" if gated else "mean"
    seeds = table["train_seed"].nunique()
    for _, stage in table.groupby("stage"):  # blocks between stages have no λ, so no line connects the stages
        for _, one in stage.groupby("train_seed"):
            axes.plot(one["depth"], one[centre], color=colour, linewidth=0.5, alpha=0.5)
        over_seeds = stage.groupby("depth")
        middle = over_seeds[centre].mean()
        for low, high, alpha in _bands(over_seeds, gated, seeds):
            axes.fill_between(middle.index, low, high, color=colour, alpha=alpha, linewidth=0)
        axes.plot(middle.index, middle, color=colour, marker="o", markersize=2.5)
    without = sorted(set(range(1, int(table["blocks"].iloc[0]) + 1)) - set(table["depth"]))
    axes.plot(without, [0] * len(without), clip_on=False, **_NO_COEFFICIENT)
    spread = f"quantiles over channels and positions of {images} images" if gated else "mean ± std"
    number = f"{seeds} seeds" if seeds > 1 else "1 seed"
    said = f", {spread}" if gated or seeds > 1 else ""
    axes.set_title(f"{table['model'].iloc[0]} ({number}{said})")
    axes.set_ylabel("act(λ)")


def _bands(over_seeds: DataFrameGroupBy, gated: bool, seeds: int) -> list[tuple[pd.Series, pd.Series, float]]:
    """Return (low, high, opacity) of each band, with the ends as a series over depth."""
    if gated:
        ends = (("q05", "q95", 0.15), ("q25", "q75", 0.3))
        return [(over_seeds[low].mean(), over_seeds[high].mean(), alpha) for low, high, alpha in ends]
    if seeds == 1:
        return []
    mean, std = over_seeds["mean"].mean(), over_seeds["mean"].std()
    return [((mean - std).clip(lower=0), mean + std, 0.25)]


def _draw_guides(axes: Axes, blocks: int) -> None:
    axes.axhspan(0, 1, color=style.LINES[2], alpha=0.08, linewidth=0, zorder=0)
    axes.axhspan(1, STABILITY, color=style.LINES[4], alpha=0.12, linewidth=0, zorder=0)
    axes.axhline(STABILITY, color=style.MUTED, linewidth=0.8, linestyle="--", zorder=0.5)
    style.mark_stages(axes, blocks)


def draw_key(figure: Figure, is_small: bool = False) -> None:
    """Draw the legend of `draw_depth` below the panels; `is_small` tells that the axes end below 1."""
    interpolation = "[0, 1]: interpolation" + (" (enlarged: 1 and 2/Δt lie above)" if is_small else "")
    beyond = [
        Patch(color=style.LINES[4], alpha=0.2, linewidth=0, label="(1, 2]: negative skip"),
        Line2D([], [], color=style.MUTED, linewidth=0.8, linestyle="--", label="2/Δt: stability limit"),
    ]
    style.key(
        figure,
        [
            Patch(color=style.LINES[2], alpha=0.15, linewidth=0, label=interpolation),
            *([] if is_small else beyond),
            Line2D([], [], label="block without λ", **_NO_COEFFICIENT),
            Line2D([], [], color=style.MUTED, linewidth=0.6, linestyle=":", label="stage boundary"),
        ],
    )


@style.styled
def training_figure(table: pd.DataFrame) -> Figure:
    """Draw act(λ) over the epochs: one row per model, one panel per stage, one line per block.

    Lines are coloured by depth.

    Args:
        table: Table of `analysis.coefficients.over_training`, not empty.
    """
    models, stages = list(table["model"].unique()), sorted(table["stage"].unique())
    figure, axes = style.panels(
        len(models), len(stages), 0.7 + 1.75 * len(models), sharex="row", sharey="row"
    )
    depths = Normalize(1, table["blocks"].max())
    for row, model in zip(axes, models, strict=True):
        mine = table[table["model"] == model]
        seeds = mine["train_seed"].nunique()
        said = f"mean of {seeds} seeds" if seeds > 1 else "1 seed"
        for panel, stage in zip(row, stages, strict=True):
            draw_training(panel, mine[mine["stage"] == stage], depths)
            panel.set_title(f"{model} ({said}), stage {stage + 1}")
        row[0].set_ylabel("act(λ)")
        row[0].set_ylim(bottom=0)
    for panel in axes[-1]:
        panel.set_xlabel("epoch")
    figure.colorbar(
        ScalarMappable(depths, style.ON_WHITE),
        ax=[panel for row in axes for panel in row],
        label="residual block, from the input",
        aspect=30,
    )
    if len(drops(table)):
        style.key(figure, [Line2D([], [], label="learning rate drops", **_DROP)])
    return style.make_room(figure)


_DROP: Look = {"color": style.MUTED, "linestyle": "--", "linewidth": 0.7}


def draw_training(axes: Axes, table: pd.DataFrame, depths: Normalize) -> None:
    """Draw one stage of a model: each block's mean over seeds, a thin line per seed, and learning rate drops.

    Args:
        axes: The panel.
        table: The stage's rows of `analysis.coefficients.over_training`.
        depths: Maps the depth of a block to [0, 1], for its colour.
    """
    marker = "o" if table["epoch"].nunique() <= 12 else None
    for _, block in table.groupby("depth"):
        colour = style.ON_WHITE(depths(int(block["depth"].iloc[0])))
        for _, one in block.groupby("train_seed"):
            axes.plot(one["epoch"], one["coefficient"], color=colour, linewidth=0.4, alpha=0.5)
        mean = block.groupby("epoch")["coefficient"].mean()
        axes.plot(mean.index, mean, color=colour, marker=marker, markersize=2)
    for epoch in drops(table):
        axes.axvline(epoch - 0.5, zorder=0.5, **_DROP)
    axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 2.5, 5, 10], integer=True))


def drops(table: pd.DataFrame) -> list[int]:
    """Return the epochs at which the learning rate drops to half or less of the previous epoch's.

    These are steps of a schedule; a smooth decay has none.
    """
    found: set[int] = set()
    for _, one in table.dropna(subset="lr").groupby(["model", "train_seed"]):
        rates = one.drop_duplicates("epoch").sort_values("epoch").set_index("epoch")["lr"]
        found |= set(rates.index[rates <= 0.5 * rates.shift()])
    return sorted(found)

"""Interpolation coefficients over depth and over training, from the tables of `analysis.coefficients`."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from robust_interp.figures import style

STABILITY = 2.0  # forward Euler is stable for λ Δt below 2, here with Δt = 1
_TOP = 2.15  # so that the line at 2 is in every figure


@style.styled
def depth_figure(table: pd.DataFrame) -> Figure:
    """act(λ) over depth, a panel a model, on one scale.

    Args:
        table: of `analysis.coefficients.over_depth`.
    """
    models = list(table["model"].unique())
    figure, axes = style.panels(len(models), 1, 0.5 + 1.75 * len(models), sharey=True)
    for i, model in enumerate(models):
        panel = axes[i][0]
        draw_depth(panel, table[table["model"] == model], style.colour(i))
        panel.set_ylim(-0.04, max(_TOP, 1.05 * table["mean"].max()))
    axes[-1][0].set_xlabel("residual block, from the input")
    draw_key(figure)
    return style.make_room(figure)


def draw_depth(axes: Axes, table: pd.DataFrame, colour: str) -> None:
    """One model: mean over seeds with a band of one standard deviation, and each seed as a thin line.

    For a gated model the line is the mean over seeds of the medians, and the bands reach from the 25 % to
    the 75 % and from the 5 % to the 95 % quantile.
    """
    _draw_guides(axes, int(table["blocks"].iloc[0]))
    images = int(table["images"].max())
    gated = images > 0
    centre = "q50" if gated else "mean"
    seeds = table["train_seed"].nunique()
    for _, stage in table.groupby("stage"):  # no line leads over the blocks in between, which have no λ
        for _, one in stage.groupby("train_seed"):
            axes.plot(one["depth"], one[centre], color=colour, linewidth=0.5, alpha=0.5)
        over_seeds = stage.groupby("depth")
        middle = over_seeds[centre].mean()
        for low, high, alpha in _bands(over_seeds, gated, seeds):
            axes.fill_between(middle.index, low, high, color=colour, alpha=alpha, linewidth=0)
        axes.plot(middle.index, middle, color=colour, marker="o", markersize=2.5)
    spread = f"quantiles over channels and positions of {images} images" if gated else "mean ± std"
    number = f"{seeds} seeds" if seeds > 1 else "1 seed"
    said = f", {spread}" if gated or seeds > 1 else ""
    axes.set_title(f"{table['model'].iloc[0]} ({number}{said})")
    axes.set_ylabel("act(λ)")


def _bands(over_seeds, gated: bool, seeds: int) -> list[tuple[pd.Series, pd.Series, float]]:
    """(low, high, opacity) over depth."""
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


def draw_key(figure: Figure) -> None:
    """What the bands and lines of `draw_depth` mean, below the panels."""
    style.key(
        figure,
        [
            Patch(color=style.LINES[2], alpha=0.15, linewidth=0, label="[0, 1]: interpolation"),
            Patch(color=style.LINES[4], alpha=0.2, linewidth=0, label="(1, 2]: negative skip"),
            Line2D([], [], color=style.MUTED, linewidth=0.8, linestyle="--", label="2/Δt: stability limit"),
            Line2D([], [], color=style.MUTED, linewidth=0.6, linestyle=":", label="stage boundary"),
        ],
    )


@style.styled
def training_figure(table: pd.DataFrame) -> Figure:
    """act(λ) over the epochs of training, a panel a model, a line a block coloured by its depth.

    Args:
        table: of `analysis.coefficients.over_training`, not empty.
    """
    models = list(table["model"].unique())
    figure, axes = style.panels(len(models), 1, 0.4 + 1.75 * len(models), sharex=True, sharey=True)
    depths = Normalize(1, table["blocks"].max())
    for panel, model in zip((row[0] for row in axes), models, strict=True):
        draw_training(panel, table[table["model"] == model], depths)
    axes[-1][0].set_xlabel("epoch")
    figure.colorbar(
        ScalarMappable(depths, style.ON_WHITE),
        ax=[row[0] for row in axes],
        label="residual block, from the input",
        aspect=30,
    )
    return style.make_room(figure)


def draw_training(axes: Axes, table: pd.DataFrame, depths: Normalize) -> None:
    """One model: a block's mean over seeds, and each seed as a thin line."""
    marker = "o" if table["epoch"].nunique() <= 12 else None
    for depth, block in table.groupby("depth"):
        colour = style.ON_WHITE(depths(depth))
        for _, one in block.groupby("train_seed"):
            axes.plot(one["epoch"], one["coefficient"], color=colour, linewidth=0.4, alpha=0.5)
        mean = block.groupby("epoch")["coefficient"].mean()
        axes.plot(mean.index, mean, color=colour, marker=marker, markersize=2)
    seeds = table["train_seed"].nunique()
    axes.set_title(f"{table['model'].iloc[0]} ({f'mean of {seeds} seeds' if seeds > 1 else '1 seed'})")
    axes.set_ylabel("act(λ)")
    axes.set_ylim(bottom=0)
    axes.xaxis.get_major_locator().set_params(integer=True)

"""Stability of the blocks and growth over depth, from the tables of `analysis.stability`."""

from __future__ import annotations

from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

from robust_interp.figures import style

JACOBIAN_SHOWS = (
    "Real parts of the rightmost eigenvalues of the blocks' Jacobians with and without damping, and their "
    "spectral norms, over depth."
)
GROWTH_SHOWS = (
    "Growth over depth of a small change of the image, by random signs and by FGSM: of the change itself, "
    "and relative to the norm of the features."
)
_PERTURBATIONS = {"noise": "random signs", "fgsm": "FGSM"}
_MEASURES = {"growth": "‖δₙ‖ / ‖δ₀‖", "relative": "‖δₙ‖‖x₀‖ / (‖δ₀‖‖xₙ‖)"}

FEW_DECADES = 1000  # ratio of the ends of a logarithmic axis up to which 2 and 5 are labelled, too

_BARS = Line2D([], [], color=style.MUTED, linewidth=0.7, label="bars: least to largest over images and seeds")


@style.styled
def jacobian_figure(table: pd.DataFrame) -> Figure:
    """Draw rightmost eigenvalues with and without damping, and spectral norms, over depth; one row per model.

    Args:
        table: Table of `analysis.stability.jacobians` with an additional column `model`.
    """
    models = list(table["model"].unique())
    figure, axes = style.panels(len(models), 2, 0.3 + 1.8 * len(models), sharex=True, sharey="col")
    for i, model in enumerate(models):
        part = table[table["model"] == model]
        draw_eigenvalues(axes[i][0], part, style.colour(i))
        draw_norms(axes[i][1], part, style.colour(i))
        axes[i][0].set_title(f"{model} ({_counted(part)})")
        axes[i][1].set_title(model)
    for row in axes:
        for panel in row:
            panel.legend()
    axes[0][1].set_ylim(0, 1.05 * table["norm"].max())
    axes[0][0].set_xlim(0.5, table["blocks"].max() + 0.5)  # shared by all rows
    for panel in axes[-1]:
        panel.set_xlabel("residual block, from the input")
    style.key(figure, [_BARS])
    return style.make_room(figure)


def _counted(table: pd.DataFrame) -> str:
    images, seeds = table["sample"].nunique(), table["train_seed"].nunique()
    return f"n = {images} images × {seeds} seeds" if seeds > 1 else f"n = {images} images"


def draw_eigenvalues(axes: Axes, table: pd.DataFrame, colour: str) -> None:
    """Draw the mean real parts of the rightmost eigenvalues, with bars from the smallest to the largest."""
    axes.axhline(0, color=style.MUTED, linewidth=0.8, linestyle="--", zorder=0.5)
    _draw_ranges(axes, table, "undamped", -0.12, color=style.MUTED, marker="o", fillstyle="none", label="J")
    said = "ρ(λ) J − λ" if table["first_order"].all() else "Jacobian of merge − x"
    _draw_ranges(axes, table, "damped", 0.12, color=colour, marker="o", label=said)
    style.mark_stages(axes, int(table["blocks"].iloc[0]))
    axes.set_ylabel("largest real part")


def draw_norms(axes: Axes, table: pd.DataFrame, colour: str) -> None:
    """Draw the mean spectral norms of the blocks' Jacobians, with bars from the smallest to the largest."""
    axes.axhline(1, color=style.MUTED, linewidth=0.8, linestyle="--", zorder=0.5)
    _draw_ranges(axes, table, "norm", 0, color=colour, marker="s", label="block with skip")
    style.mark_stages(axes, int(table["blocks"].iloc[0]))
    axes.set_ylabel("‖∂xₙ₊₁/∂xₙ‖₂")


def _draw_ranges(axes: Axes, table: pd.DataFrame, column: str, shift: float, **look: Any) -> None:
    values = table.groupby("depth")[column]
    mean = values.mean()
    bars = [mean - values.min(), values.max() - mean]
    axes.errorbar(mean.index + shift, mean, bars, linestyle="none", elinewidth=0.7, **look)


@style.styled
def growth_figure(table: pd.DataFrame) -> Figure:
    """Draw the growth of a small input change over depth: one column per perturbation, one row per measure.

    Args:
        table: Table of `analysis.stability.growth_summary`.
    """
    figure, axes = style.panels(2, 2, 4.1, sharex=True, sharey="row")
    for row, measure in zip(axes, _MEASURES, strict=True):
        for panel, perturbation in zip(row, _PERTURBATIONS, strict=True):
            draw_growth(panel, table[table["perturbation"] == perturbation], measure)
        row[0].set_ylabel(_MEASURES[measure])
    for panel, perturbation in zip(axes[0], _PERTURBATIONS.values(), strict=True):
        panel.set_title(f"{perturbation}, n = {table['n'].max()} images")
    for panel in axes[-1]:
        panel.set_xlabel("residual blocks passed")
    band = Patch(color=style.MUTED, alpha=0.2, linewidth=0, label="95 % interval of the mean over images")
    style.key(figure, [*axes[0][0].get_legend_handles_labels()[0], band])
    return style.make_room(figure)


def draw_growth(axes: Axes, table: pd.DataFrame, measure: str) -> None:
    """Draw one line per model, with the 95 % interval of its mean, on a logarithmic axis."""
    for i, (model, one) in enumerate(table.groupby("model", sort=False)):
        axes.plot(one["depth"], one[measure], label=model, color=style.colour(i), linestyle=style.dash(i))
        ends = one[f"{measure}_low"], one[f"{measure}_high"]
        axes.fill_between(one["depth"], *ends, color=style.colour(i), alpha=0.2, linewidth=0)
    axes.axhline(1, color=style.MUTED, linewidth=0.6, linestyle=":", zorder=0.5)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < FEW_DECADES * low else (1,)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    style.mark_stages(axes, int(table["blocks"].max()))
    axes.set_xlim(0, table["blocks"].max())

"""Accuracy against the strength of attacks and corruptions, from the tables of `report.curves`."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from robust_interp.figures import style

_KINDS = ("single models", "ensembles")


@style.styled
def eps_figure(points: pd.DataFrame) -> Figure:
    """Accuracy against eps, a panel an attack; ensembles below the single models.

    Args:
        points: of `curves.points`, with at least one attack.
    """
    figure = _by_series(points, "attack", columns=3, height=2.05)
    figure.axes[0].set_ylim(0, 103)  # shared by all
    return figure


@style.styled
def severity_figure(points: pd.DataFrame) -> Figure:
    """Accuracy against severity, a panel a corruption; ensembles below the single models.

    Args:
        points: of `curves.points`, with at least one corruption.
    """
    return _by_series(points, "corruption", columns=4, height=1.75)


def _by_series(points: pd.DataFrame, kind: str, columns: int, height: float) -> Figure:
    shown = points[points["kind"] == kind]
    names = list(dict.fromkeys(shown["series"]))
    kinds = [which for which in (0, 1) if ((shown["members"] > 1) == which).any()]
    columns = min(columns, len(names))
    rows = -(-len(names) // columns)
    looks = _looks(points["entry"])
    width = style.FULL * (0.45 + 0.55 * min(1, (columns - 1) / 2))
    figure, axes = style.panels(
        rows * len(kinds), columns, 0.6 + height * rows * len(kinds), width, sharey=True
    )
    for row, which in enumerate(kinds):
        mine = points[(points["members"] > 1) == which]
        panels = [panel for line in axes[row * rows : (row + 1) * rows] for panel in line]
        for panel in panels[len(names) :]:
            panel.remove()
        for i, (panel, name) in enumerate(zip(panels, names, strict=False)):
            part = mine[(mine["kind"] == "clean") | ((mine["kind"] == kind) & (mine["series"] == name))]
            draw_curves(panel, part, looks)
            panel.set_title(name)
            panel.set_xlabel(_strength(kind, part))
            if i % columns == 0:
                panel.set_ylabel(f"{_KINDS[which]}\naccuracy (%)" if len(kinds) > 1 else "accuracy (%)")
    drawn = {_without_members(entry) for entry in shown["entry"]}
    style.key(figure, [Line2D([], [], label=model, **looks[model]) for model in looks if model in drawn])
    return style.make_room(figure)


def _strength(kind: str, part: pd.DataFrame) -> str:
    if kind == "corruption":
        return "severity (0: clean)"
    norms = set(part["norm"].dropna())
    return "ε (1/255)" if norms <= {"Linf"} else f"ε ({', '.join(sorted(norms))})"


def draw_curves(axes: Axes, points: pd.DataFrame, looks: dict[str, dict]) -> None:
    """A line an entry, from the clean images on; entries without anything else are left out.

    Several train seeds have a band. A single run has bars, moved apart a little: its intervals are so wide
    that bands would lie on each other.
    """
    curves = {
        entry: one.sort_values("x")
        for entry, one in points.groupby("entry", sort=True)
        if set(one["kind"]) != {"clean"}
    }
    apart = 0.015 * points["x"].max()
    for i, (entry, one) in enumerate(curves.items()):
        look = looks[_without_members(entry)]
        if (one["seeds"] > 1).any():
            ends = one["band_low"], one["band_high"]
            axes.fill_between(one["x"], *ends, color=look["color"], alpha=0.15, linewidth=0)
            axes.plot(one["x"], one["accuracy"], **look)
        else:
            at = one["x"] + apart * (i - (len(curves) - 1) / 2)
            below, above = one["accuracy"] - one["band_low"], one["band_high"] - one["accuracy"]
            errors = below.clip(lower=0), above.clip(lower=0)  # at 100 %, rounding makes less than nothing
            axes.errorbar(at, one["accuracy"], errors, elinewidth=0.7, **look)
    ticks = sorted(set(points["x"]))
    axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
    axes.margins(x=0.05)


def _looks(entries: Iterable[str]) -> dict[str, dict]:
    """Colour, dash and marker of each model, the same for its ensemble."""
    models = sorted({_without_members(entry) for entry in entries})
    return {
        model: {"color": style.colour(i), "linestyle": style.dash(i), "marker": style.marker(i)}
        for i, model in enumerate(models)
    }


def _without_members(entry: str) -> str:
    return entry.rpartition(" ×")[0] or entry


@style.styled
def improvement_figure(table: pd.DataFrame) -> Figure:
    """How far each ensemble is above the mean of its members, bars by perturbation.

    Args:
        table: of `curves.improvements`, not empty.
    """
    figure, axes = style.panels(1, 1, 2.6)
    panel = axes[0][0]
    draw_improvements(panel, table)
    style.key(figure, panel.get_legend_handles_labels()[0])
    return figure


def draw_improvements(axes: Axes, table: pd.DataFrame) -> None:
    """Bars in percentage points, an ensemble a colour."""
    columns, entries = list(dict.fromkeys(table["column"])), list(dict.fromkeys(table["entry"]))
    width, looks = 0.8 / len(entries), _looks(entries)
    for i, entry in enumerate(entries):
        gains = table[table["entry"] == entry].drop_duplicates("column").set_index("column")["improvement"]
        at = [columns.index(column) + (i - (len(entries) - 1) / 2) * width for column in gains.index]
        axes.bar(at, gains, width * 0.92, color=looks[_without_members(entry)]["color"], label=entry)
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_xticks(range(len(columns)), columns, rotation=30 if len(columns) > 7 else 0)
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.set_ylabel("above its members (points)")

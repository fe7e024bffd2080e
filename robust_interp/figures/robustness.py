"""Accuracy against the strength of attacks and corruptions, from the tables of `report.curves`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from robust_interp.figures import style

_KINDS = ("single models", "ensembles")


@style.styled
def eps_figure(
    points: pd.DataFrame,
    differences: pd.DataFrame | None = None,
    baseline: str = "",
    chance: float | None = None,
    published: pd.DataFrame | None = None,
) -> Figure:
    """Accuracy against eps, a panel an attack; ensembles below the single models.

    Args:
        points: of `curves.points`, with at least one attack.
        differences: of `curves.differences`, drawn below the accuracies.
        baseline: what the differences are to.
        chance: accuracy of a guess, in percent.
        published: of `curves.published`, drawn in grey.
    """
    return _by_series(
        points,
        "attack",
        columns=3,
        height=2.05,
        below=_Below(differences, baseline),
        behind=_Behind(chance, published),
    )


@style.styled
def severity_figure(points: pd.DataFrame, chance: float | None = None) -> Figure:
    """Accuracy against severity, a panel a corruption with an axis of its own; ensembles below single models.

    Args:
        points: of `curves.points`, with at least one corruption.
        chance: accuracy of a guess, in percent.
    """
    return _by_series(points, "corruption", columns=4, height=1.75, behind=_Behind(chance))


@dataclass(frozen=True)
class _Below:
    """What stands below the accuracies."""

    differences: pd.DataFrame | None = None
    baseline: str = ""

    def of(self, which: int) -> pd.DataFrame | None:
        """Of single models (0) or ensembles (1), if there are any."""
        if self.differences is None:
            return None
        mine = self.differences[(self.differences["members"] > 1) == bool(which)]
        return mine if len(mine) else None


@dataclass(frozen=True)
class _Behind:
    """Lines of reference."""

    chance: float | None = None
    published: pd.DataFrame | None = None

    def draw(self, axes: Axes, kind: str, which: int, series: str) -> None:
        if self.chance is not None and kind == "attack":
            axes.axhline(self.chance, color=style.MUTED, linewidth=0.7, linestyle=":", zorder=0.5)
        if self.published is not None:
            mine = (self.published["members"] > 1) == bool(which)
            for at, (_, one) in enumerate(self.published.groupby("entry", sort=True)):
                part = one[mine.loc[one.index] & one["series"].isin(["clean", series])].sort_values("x")
                if (part["series"] == series).any():
                    axes.plot(part["x"], part["accuracy"], zorder=1, **_published_look(at))

    def handles(self, kind: str) -> list[Line2D]:
        handles = []
        if self.published is not None:
            for at, entry in enumerate(sorted(set(self.published["entry"]))):
                handles.append(Line2D([], [], label=entry, **_published_look(at)))
        if self.chance is not None and kind == "attack":
            label = f"chance ({self.chance:g} %)"
            handles.append(Line2D([], [], label=label, color=style.MUTED, linewidth=0.7, linestyle=":"))
        return handles


def _published_look(at: int) -> dict:
    marker = style.marker(at)
    return {
        "color": "#9a9a9a",
        "linestyle": style.dash(at),
        "linewidth": 0.8,
        "marker": marker,
        "markersize": 2.5,
    }


def _by_series(
    points: pd.DataFrame,
    kind: str,
    columns: int,
    height: float,
    below: _Below = _Below(),
    behind: _Behind = _Behind(),
) -> Figure:
    shown = points[points["kind"] == kind]
    names = list(dict.fromkeys(shown["series"]))
    kinds = [which for which in (0, 1) if ((shown["members"] > 1) == which).any()]
    blocks = [
        block
        for which in kinds
        for block in ((which, None), (which, below.of(which)))[: 1 + (below.of(which) is not None)]
    ]
    columns = min(columns, len(names))
    rows = -(-len(names) // columns)
    looks = _looks(points["entry"])
    width = style.FULL * (0.45 + 0.55 * min(1, (columns - 1) / 2))
    tall = 0.6 + height * rows * len(blocks)
    figure, axes = style.panels(rows * len(blocks), columns, tall, width)
    for row, (which, differences) in enumerate(blocks):
        mine = points[(points["members"] > 1) == bool(which)]
        panels = [panel for line in axes[row * rows : (row + 1) * rows] for panel in line]
        for panel in panels[len(names) :]:
            panel.remove()
        for i, (panel, name) in enumerate(zip(panels, names, strict=False)):
            part = _of_series(mine, kind, name)
            if differences is None:
                behind.draw(panel, kind, which, name)
                draw_curves(panel, part, looks)
                _set_range(panel, kind)
            else:
                draw_differences(panel, _of_series(differences, kind, name), looks)
            _set_ticks(panel, part["x"])
            panel.set_title(name)
            panel.set_xlabel(_strength(kind, part))
            if i % columns == 0:
                what = "accuracy (%)" if differences is None else f"minus {below.baseline} (points)"
                what = style.wrapped(what, 0.8 * height)
                panel.set_ylabel(f"{_KINDS[which]}\n{what}" if len(kinds) > 1 else what)
        if differences is not None:
            _share_range(panels[: len(names)])
    drawn = {_without_members(entry) for entry in shown["entry"]}
    handles = [Line2D([], [], label=model, **looks[model]) for model in looks if model in drawn]
    style.key(figure, [*handles, *behind.handles(kind)])
    return style.make_room(figure)


def _of_series(table: pd.DataFrame, kind: str, name: str) -> pd.DataFrame:
    return table[(table["kind"] == "clean") | ((table["kind"] == kind) & (table["series"] == name))]


def _set_range(axes: Axes, kind: str) -> None:
    """From 0 under attack; of corruptions, which take little away, what the panel needs."""
    if kind == "attack":
        axes.set_ylim(0, 103)
        return
    low, high = axes.dataLim.intervaly
    axes.set_ylim(max(0, min(low, high - 10) - 1), min(103, high + 1.5))


def _share_range(panels: Sequence[Axes]) -> None:
    ends = [end for panel in panels for end in panel.get_ylim()]
    for panel in panels:
        panel.set_ylim(min(ends), max(ends))


def _set_ticks(axes: Axes, x: pd.Series) -> None:
    ticks = sorted(set(x))
    axes.set_xticks(ticks, [f"{at:g}" for at in ticks])
    axes.margins(x=0.05)


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
        look = looks[_without_members(str(entry))]
        if (one["seeds"] > 1).any():
            ends = one["band_low"], one["band_high"]
            axes.fill_between(one["x"], *ends, color=look["color"], alpha=0.15, linewidth=0)
            axes.plot(one["x"], one["accuracy"], **look)
        else:
            at = one["x"] + apart * (i - (len(curves) - 1) / 2)
            below, above = one["accuracy"] - one["band_low"], one["band_high"] - one["accuracy"]
            errors = below.clip(lower=0), above.clip(lower=0)  # at 100 %, rounding makes less than nothing
            axes.errorbar(at, one["accuracy"], errors, elinewidth=0.7, **look)


def draw_differences(axes: Axes, table: pd.DataFrame, looks: dict[str, dict]) -> None:
    """A line an entry with bars of its 95 % interval, moved apart a little; the baseline is the line at 0."""
    axes.axhline(0, color="black", linewidth=0.6, zorder=0.5)
    curves = [
        (entry, one.sort_values("x"))
        for entry, one in table.groupby("entry", sort=True)
        if set(one["kind"]) != {"clean"}
    ]
    apart = 0.015 * table["x"].max() if len(table) else 0
    for i, (entry, one) in enumerate(curves):
        at = one["x"] + apart * (i - (len(curves) - 1) / 2)
        bars = one["difference"] - one["low"], one["high"] - one["difference"]
        errors = [bar.clip(lower=0).fillna(0) for bar in bars]
        axes.errorbar(at, one["difference"], errors, elinewidth=0.7, **looks[_without_members(str(entry))])


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
    """Bars in percentage points, an ensemble a colour, with the 95 % interval over the images as a line."""
    columns, entries = list(dict.fromkeys(table["column"])), list(dict.fromkeys(table["entry"]))
    width, looks = 0.8 / len(entries), _looks(entries)
    for i, entry in enumerate(entries):
        gains = table[table["entry"] == entry].drop_duplicates("column").set_index("column")
        at = [columns.index(column) + (i - (len(entries) - 1) / 2) * width for column in gains.index]
        axes.bar(
            at, gains["improvement"], width * 0.92, color=looks[_without_members(entry)]["color"], label=entry
        )
        if {"low", "high"} <= set(gains):
            known = gains[["low", "high"]].notna().all(axis=1)
            axes.vlines(
                [x for x, is_known in zip(at, known, strict=True) if is_known],
                gains["low"][known],
                gains["high"][known],
                color="black",
                linewidth=0.7,
            )
    axes.axhline(0, color="black", linewidth=0.6)
    axes.set_xticks(range(len(columns)), columns, rotation=30 if len(columns) > 7 else 0)
    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.set_ylabel("above its members (points)")

"""Plots of accuracy against the strength of attacks and corruptions, from the tables of `report.curves`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from robust_interp.figures import style

EPS_SHOWS = "Accuracy against the attacks' radius ε; 0 is the clean images."
_KINDS = ("single models", "ensembles")


@style.styled
def eps_figure(
    points: pd.DataFrame,
    differences: pd.DataFrame | None = None,
    baseline: str = "",
    chance: float | None = None,
    published: pd.DataFrame | None = None,
) -> Figure:
    """Draw accuracy against eps, one panel per attack, with the ensembles below the single models.

    With differences, each panel has another one with the differences to its right, and the ensembles are
    beside the single models.

    Args:
        points: Table of `curves.points` with at least one attack.
        differences: Table of `curves.differences`, drawn beside the accuracies; None draws none.
        baseline: Name of the model that the differences are to.
        chance: Accuracy of random guessing in percent, drawn as a line; None draws none.
        published: Table of `curves.published`, drawn in grey; None draws none.
    """
    beside = None if differences is None else _Beside(differences, baseline)
    height = 1.9 if beside else 2.05
    return _by_series(points, "attack", 3, height, beside, _Behind(chance, published))


@style.styled
def severity_figure(points: pd.DataFrame) -> Figure:
    """Draw accuracy against severity, one panel per corruption, with the ensembles below the single models.

    Each panel has a separate axis.

    Args:
        points: Table of `curves.points` with at least one corruption.
    """
    return _by_series(points, "corruption", columns=4, height=1.75, behind=_Behind())


@dataclass(frozen=True)
class _Beside:
    """Differences to a baseline, drawn beside the accuracies."""

    differences: pd.DataFrame
    baseline: str

    def of(self, which: int) -> pd.DataFrame:
        """Return the differences of single models (0) or ensembles (1)."""
        return self.differences[(self.differences["members"] > 1) == bool(which)]


class _Panel(NamedTuple):
    """Content of a panel.

    Attributes:
        series: Name of the attack or corruption.
        which: 0 for single models, 1 for ensembles.
        is_difference: Whether the panel shows differences; otherwise it shows accuracies.
    """

    series: str
    which: int
    is_difference: bool = False


@dataclass(frozen=True)
class _Behind:
    """Reference lines behind the curves: the accuracy of guessing, and published curves."""

    chance: float | None = None
    published: pd.DataFrame | None = None

    def draw(self, axes: Axes, which: int, series: str) -> None:
        if self.chance is not None:
            axes.axhline(self.chance, color=style.MUTED, linewidth=0.7, linestyle=":", zorder=0.5)
        for at, part in self._curves(which, series):
            axes.plot(part["x"], part["accuracy"], zorder=1, **_published_look(at))

    def strengths(self, which: int, series: str) -> set[float]:
        """Return the strengths at which published curves have a value."""
        return {x for _, part in self._curves(which, series) for x in part["x"]}

    def _curves(self, which: int, series: str) -> Iterator[tuple[int, pd.DataFrame]]:
        """Yield each published curve of this attack, with its index among all published curves."""
        if self.published is None:
            return
        mine = (self.published["members"] > 1) == bool(which)
        for at, (_, one) in enumerate(self.published.groupby("entry", sort=True)):
            part = one[mine.loc[one.index] & one["series"].isin(["clean", series])].sort_values("x")
            if (part["series"] == series).any():
                yield at, part

    def handles(self) -> list[Line2D]:
        handles = []
        if self.published is not None:
            for at, entry in enumerate(sorted(set(self.published["entry"]))):
                handles.append(Line2D([], [], label=entry, **_published_look(at)))
        if self.chance is not None:
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
    beside: _Beside | None = None,
    behind: _Behind = _Behind(),
) -> Figure:
    shown = points[points["kind"] == kind]
    names = list(dict.fromkeys(shown["series"]))
    kinds = [which for which in (0, 1) if ((shown["members"] > 1) == which).any()]
    rows = _in_pairs(names, kinds, beside) if beside else _in_rows(names, kinds, columns)
    columns = len(rows[0])
    looks = _looks(points["entry"])
    width = style.FULL * (0.45 + 0.55 * min(1, (columns - 1) / 2))
    figure, axes = style.panels(len(rows), columns, 0.6 + height * len(rows), width)
    of_differences: dict[int, list[Axes]] = {}
    for of_row, line in zip(rows, axes, strict=True):
        for i, (of, panel) in enumerate(zip(of_row, line, strict=True)):
            if of is None:
                panel.remove()
                continue
            mine = points[(points["members"] > 1) == bool(of.which)]
            part = _of_series(mine, kind, of.series)
            if of.is_difference and beside:
                draw_differences(panel, _of_series(beside.of(of.which), kind, of.series), looks)
                of_differences.setdefault(of.which, []).append(panel)
            else:
                behind.draw(panel, of.which, of.series)
                draw_curves(panel, part, looks)
                _set_range(panel, kind)
            _set_ticks(panel, part["x"], behind.strengths(of.which, of.series))
            panel.set_xlabel(_strength(kind, part))
            _name(panel, of, len(kinds) > 1, beside, is_first=i == 0)
    for panels in of_differences.values():
        _share_range(panels)
    handles = [Line2D([], [], label=label, **look) for label, look in _key(shown["entry"], looks)]
    style.key(figure, [*handles, *behind.handles()])
    return style.make_room(figure)


def _in_rows(names: Sequence[str], kinds: Sequence[int], columns: int) -> list[list[_Panel | None]]:
    """Arrange panels of accuracies in rows of `columns`, those of ensembles below those of single models."""
    columns = min(columns, len(names))
    return [
        _filled([_Panel(name, which) for name in names[at : at + columns]], columns)
        for which in kinds
        for at in range(0, len(names), columns)
    ]


def _in_pairs(names: Sequence[str], kinds: Sequence[int], beside: _Beside) -> list[list[_Panel | None]]:
    """Arrange each panel of accuracies with its differences to its right, two such pairs per row."""
    pairs = [
        (_Panel(name, which), _Panel(name, which, True) if len(beside.of(which)) else None)
        for name in names
        for which in kinds
    ]
    in_a_row = min(2, len(pairs))
    return [
        _filled([panel for pair in pairs[at : at + in_a_row] for panel in pair], 2 * in_a_row)
        for at in range(0, len(pairs), in_a_row)
    ]


def _filled(row: list[_Panel | None], columns: int) -> list[_Panel | None]:
    return row + [None] * (columns - len(row))


def _name(axes: Axes, of: _Panel, are_several_kinds: bool, beside: _Beside | None, is_first: bool) -> None:
    """Set the title and the label of a panel.

    The kind of models is in the title of each pair, or in the label of the first panel of each row.
    """
    of_kind = _KINDS[of.which] if are_several_kinds else ""
    if of.is_difference and beside:
        axes.set_title(f"vs {beside.baseline}")
        axes.set_ylabel("difference (points)")
    elif beside:
        axes.set_title(", ".join(filter(None, [of.series, of_kind])))
        axes.set_ylabel("accuracy (%)")
    else:
        axes.set_title(of.series)
        if is_first:
            axes.set_ylabel("\n".join(filter(None, [of_kind, "accuracy (%)"])))


def _of_series(table: pd.DataFrame, kind: str, name: str) -> pd.DataFrame:
    return table[(table["kind"] == "clean") | ((table["kind"] == kind) & (table["series"] == name))]


def _set_range(axes: Axes, kind: str) -> None:
    """Set the range of accuracies: from 0 for attacks, that of the data for corruptions (smaller effects)."""
    if kind == "attack":
        axes.set_ylim(0, 103)
        return
    low, high = axes.dataLim.intervaly
    if low > high:  # models of this kind were not measured under this corruption
        return
    axes.set_ylim(max(0, min(low, high - 10) - 1), min(103, high + 1.5))


def _share_range(panels: Sequence[Axes]) -> None:
    ends = [end for panel in panels for end in panel.get_ylim()]
    for panel in panels:
        panel.set_ylim(min(ends), max(ends))


def _set_ticks(axes: Axes, measured: Iterable[float], published: Iterable[float]) -> None:
    """Set a tick at each strength. If labels would touch, those of measured strengths are kept."""
    first, others = sorted(set(measured)), sorted(set(published))
    ticks = sorted({*first, *others})
    apart = 0.08 * (ticks[-1] - ticks[0])
    labelled: list[float] = []
    for at in (*first[:1], *first[-1:], *first, *others):
        if all(abs(at - other) >= apart for other in labelled):
            labelled.append(at)
    axes.set_xticks(ticks, [f"{at:g}" if at in labelled else "" for at in ticks])
    axes.margins(x=0.05)


def _strength(kind: str, part: pd.DataFrame) -> str:
    if kind == "corruption":
        return "severity (0: clean)"
    norms = set(part["norm"].dropna())
    return "ε (1/255)" if norms <= {"Linf"} else f"ε ({', '.join(sorted(norms))})"


def draw_curves(axes: Axes, points: pd.DataFrame, looks: dict[str, dict]) -> None:
    """Draw one line per entry, which starts at the clean images; entries with only these are left out.

    Entries with several train seeds have a band. Others have error bars, slightly shifted, because their
    intervals are wide and bands would overlap.
    """
    curves = {
        entry: one.sort_values("x")
        for entry, one in points.groupby("entry", sort=True)
        if set(one["kind"]) != {"clean"}
    }
    apart = 0.015 * points["x"].max()
    for i, (entry, one) in enumerate(curves.items()):
        look = looks[str(entry)]
        if (one["seeds"] > 1).any():
            ends = one["band_low"], one["band_high"]
            axes.fill_between(one["x"], *ends, color=look["color"], alpha=0.15, linewidth=0)
            axes.plot(one["x"], one["accuracy"], **look)
        else:
            at = one["x"] + apart * (i - (len(curves) - 1) / 2)
            below, above = one["accuracy"] - one["band_low"], one["band_high"] - one["accuracy"]
            errors = below.clip(lower=0), above.clip(lower=0)  # at 100 %, rounding may give a negative length
            axes.errorbar(at, one["accuracy"], errors, elinewidth=0.7, **look)


def draw_differences(axes: Axes, table: pd.DataFrame, looks: dict[str, dict]) -> None:
    """Draw one line per entry, slightly shifted, with bars of its 95 % interval; the baseline is at 0.

    A point whose interval is not known has no bar: one of length zero would look exact.
    """
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
        errors = [bar.clip(lower=0) for bar in bars]
        axes.errorbar(at, one["difference"], errors, elinewidth=0.7, **looks[str(entry)])


def _looks(entries: Iterable[str]) -> dict[str, dict]:
    """Return colour, line style and marker by entry; a model's smallest ensemble has those of the model."""
    entries = sorted(set(entries), key=_size)
    models = sorted({_without_members(entry) for entry in entries})
    first = {_without_members(entry): entry for entry in reversed(entries) if _size(entry) > 1}
    others = [e for e in entries if _size(e) > 1 and e != first[_without_members(e)]]
    places = {name: i for i, name in enumerate([*models, *others])}
    at = {entry: places[entry if entry in others else _without_members(entry)] for entry in entries}
    return {
        entry: {"color": style.colour(i), "linestyle": style.dash(i), "marker": style.marker(i)}
        for entry, i in at.items()
    }


def _key(entries: Iterable[str], looks: dict[str, dict]) -> list[tuple[str, dict]]:
    """Return label and look of each line of the key; a model and its only ensemble are one line."""
    models: dict[str, list[str]] = {}
    for entry in sorted(set(entries), key=_size):
        models.setdefault(_without_members(entry), []).append(entry)
    lines = []
    for model, alike in sorted(models.items()):
        several = sum(_size(entry) > 1 for entry in alike) > 1
        by_look: dict[str, list[str]] = {}
        for entry in alike:
            by_look.setdefault(str(looks[entry]), []).append(entry)
        lines += [(", ".join(same) if several else model, looks[same[0]]) for same in by_look.values()]
    return lines


def _size(entry: str) -> int:
    """Return the number of members in the name of an entry; 1 for a single model."""
    number = entry.rpartition(" ×")[2]
    return int(number) if number != entry and number.isdigit() else 1


def _without_members(entry: str) -> str:
    return entry.rpartition(" ×")[0] if _size(entry) > 1 else entry


@style.styled
def improvement_figure(table: pd.DataFrame) -> Figure:
    """Draw the improvement of each ensemble over the mean of its members as bars, by perturbation.

    Args:
        table: Table of `curves.improvements`, not empty.
    """
    figure, axes = style.panels(1, 1, 2.6)
    panel = axes[0][0]
    draw_improvements(panel, table)
    style.key(figure, panel.get_legend_handles_labels()[0])
    return figure


def draw_improvements(axes: Axes, table: pd.DataFrame) -> None:
    """Draw bars in percentage points, a colour per ensemble, with the 95 % interval over images as a line."""
    columns, entries = list(dict.fromkeys(table["column"])), list(dict.fromkeys(table["entry"]))
    width, looks = 0.8 / len(entries), _looks(entries)
    for i, entry in enumerate(entries):
        gains = table[table["entry"] == entry].drop_duplicates("column").set_index("column")
        at = [columns.index(column) + (i - (len(entries) - 1) / 2) * width for column in gains.index]
        axes.bar(at, gains["improvement"], width * 0.92, color=looks[entry]["color"], label=entry)
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

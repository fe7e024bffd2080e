"""Accuracy by class and confusion matrix, from the table of `results.classes`."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from robust_interp.figures import style

_WRITTEN = 20  # largest number of classes for which names and numbers are written


def confusion_shows(column: str) -> str:
    """Return what the figure of a column of the leaderboard shows, for a caption."""
    return (
        f"Accuracy ({column}) of each class with its 95 % interval, and how often its images are predicted "
        "as each class."
    )


@style.styled
def confusion_figure(entries: dict[str, pd.DataFrame]) -> Figure:
    """Draw the accuracy of each class, with its interval, and the confusion matrix; one row per entry.

    Args:
        entries: Rows of `results.classes.by_class` for each entry, by the name of the entry.
    """
    tables = list(entries.values())
    confusions = [table.filter(regex="^predicted_") for table in tables]
    columns = 2 if any(len(confusion.columns) for confusion in confusions) else 1
    height = 0.9 + 0.17 * min(_WRITTEN, len(tables[0]))
    widths = [1, 2][:columns]
    figure, axes = style.panels(len(tables), columns, height * len(tables), width_ratios=widths, sharey="row")
    for row, (name, table), confusion in zip(axes, entries.items(), confusions, strict=True):
        draw_accuracies(row[0], table)
        row[0].set_title(f"{name}, {table['column'].iloc[0]}")
        if columns > 1:
            draw_confusion(row[1], confusion.to_numpy(float), _names(table))
            row[1].set_title(f"predicted, % of the label (n = {table['n'].sum()})")
        _name_classes(row[0], _names(table))
    return style.make_room(figure)


def draw_accuracies(axes: Axes, table: pd.DataFrame) -> None:
    """Draw the accuracy of each class in percent with its 95 % interval, the first class on top."""
    below, above = table["accuracy"] - table["ci_low"], table["ci_high"] - table["accuracy"]
    errors = np.clip([below, above], 0, None)
    look: style.Look = {"linestyle": "none", "marker": "o", "elinewidth": 0.7, "color": style.colour(0)}
    axes.errorbar(table["accuracy"], table["label"], xerr=errors, **look)
    axes.set_xlim(0, 103)
    axes.set_ylim(len(table) - 0.5, -0.5)
    axes.set_xlabel("accuracy (%)")
    axes.set_ylabel("label")


def draw_confusion(axes: Axes, counts: np.ndarray, names: list[str]) -> None:
    """Draw the confusion matrix, as the share in percent of the images of each label.

    Args:
        axes: The panel.
        counts: Numbers of images (labels, predictions + 1). The last column is for images without a
            prediction that counts. Those before it that are no class and were never predicted are left out.
        names: Names of the classes.
    """
    predicted = [at for at in range(counts.shape[1] - 1) if at < len(names) or counts[:, at].any()]
    counts = counts[:, [*predicted, -1]]
    total = counts.sum(axis=1, keepdims=True)
    shares = 100 * np.divide(counts, total, out=np.full_like(counts, np.nan), where=total > 0)
    axes.imshow(shares, cmap=style.SEQUENTIAL, vmin=0, vmax=100, aspect="auto", interpolation="nearest")
    axes.set_xlabel("predicted")
    if len(predicted) > _WRITTEN:
        return
    called = [names[at] if at < len(names) else str(at) for at in predicted]
    axes.set_xticks(range(len(called) + 1), [*called, "none"])
    if max(map(len, names)) > 2:
        axes.tick_params(axis="x", labelrotation=45)
        for label in axes.get_xticklabels():
            label.set(horizontalalignment="right", rotation_mode="anchor")
    for label, predicted in np.argwhere(np.round(shares) > 0):
        share = shares[label, predicted]
        colour = "black" if share > 50 else "white"
        axes.text(predicted, label, f"{share:.0f}", ha="center", va="center", color=colour)


def _name_classes(axes: Axes, names: list[str]) -> None:
    if len(names) <= _WRITTEN:
        axes.set_yticks(range(len(names)), names)


def _names(table: pd.DataFrame) -> list[str]:
    return [name or str(label) for name, label in zip(table["name"], table["label"], strict=True)]

"""Loss landscapes, from what `analysis.landscape` computes and what is written beside the figures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from robust_interp.figures import style

ACROSS = "orthogonal direction (1/255)"
CLASSES = {
    "cifar10": ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
}


@style.styled
def line_figure(tables: Mapping[str, pd.DataFrame]) -> Figure:
    """Loss along the FGSM direction: several models on one axis, a panel an image.

    Args:
        tables: title of the image -> table of `analysis.landscape.line`.
    """
    columns = min(2, len(tables))
    rows = -(-len(tables) // columns)
    width = style.HALF if columns == 1 else style.FULL
    figure, axes = style.panels(rows, columns, 0.4 + 2.3 * rows, width)
    panels = [panel for row in axes for panel in row]
    for panel in panels[len(tables) :]:
        panel.remove()
    for panel, (title, table) in zip(panels, tables.items(), strict=False):
        draw_line(panel, table)
        panel.set_title(title)
    style.key(figure, panels[0].get_legend_handles_labels()[0])
    return style.make_room(figure)


def draw_line(axes: Axes, table: pd.DataFrame) -> None:
    """The loss of each model; dots where it predicts another class than at the image itself."""
    for i, (model, one) in enumerate(table.groupby("model", sort=False)):
        colour = style.colour(i)
        axes.plot(one["eps_255"], one["loss"], color=colour, linestyle=style.dash(i), label=model)
        at_image = one["predicted"].iloc[one["eps_255"].abs().argmin()]
        other = one[one["predicted"] != at_image]
        axes.plot(
            other["eps_255"],
            other["loss"],
            linestyle="none",
            marker=".",
            markersize=3,
            color=colour,
            clip_on=False,
        )
    axes.axvline(0, color=style.MUTED, linewidth=0.6, linestyle=":", zorder=0.5)
    axes.set_xlabel(_along(table["direction_of"].iloc[0]))
    axes.set_ylabel("cross-entropy (nats)")
    axes.set_ylim(bottom=0)
    axes.margins(x=0)


def _along(direction_of) -> str:
    """Nothing, which a CSV gives back as NaN, is each model's own."""
    shared = isinstance(direction_of, str) and direction_of
    label = f"FGSM direction of {direction_of} (1/255)" if shared else "own FGSM direction (1/255)"
    return style.wrapped(label, 2.4)  # of a panel of half the width


@style.styled
def plane_figure(arrays: Mapping[str, np.ndarray], classes: Sequence[str] | None = None) -> Figure:
    """Loss surface and decision regions around one image, a row a model.

    Args:
        arrays: of `analysis.landscape.plane`, or the .npz file that it was written to.
        classes: names of the classes; by default their numbers.
    """
    models, losses, predicted = arrays["models"], arrays["loss"], arrays["predicted"]
    label = int(arrays["label"])
    colours = class_colours([label, *np.unique(predicted).tolist()])
    figure, axes = style.panels(len(models), 2, 0.7 + 2.45 * len(models), 6.2, sharex=True, sharey=True)
    scale = Normalize(0, float(losses.max()))
    for i, model in enumerate(models):
        surface, regions = axes[i]
        draw_surface(surface, arrays["radii_255"], losses[i], scale)
        draw_regions(regions, arrays["radii_255"], predicted[i], colours)
        surface.set_title(f"{model}: loss")
        regions.set_title(f"{model}: predicted class")
        surface.set_ylabel(ACROSS)
    for panel in axes[-1]:
        panel.set_xlabel(_along(str(arrays["direction_of"])))
    figure.colorbar(
        ScalarMappable(scale, style.SEQUENTIAL),
        ax=[row[0] for row in axes],
        label="cross-entropy (nats)",
        aspect=30,
        shrink=0.7,
    )
    _draw_classes(figure, colours, label, classes)
    return style.make_room(figure)


def draw_surface(axes: Axes, radii_255: np.ndarray, loss: np.ndarray, scale: Normalize) -> None:
    """A loss (R, R) with lines of equal loss, and the image itself marked."""
    axes.imshow(loss, extent=_extent(radii_255), origin="lower", norm=scale, cmap=style.SEQUENTIAL)
    levels = np.linspace(scale.vmin, scale.vmax, 12)[1:-1]
    if loss.min() < levels[-1] and loss.max() > levels[0]:
        axes.contour(radii_255, radii_255, loss, levels, colors="white", linewidths=0.4, alpha=0.7)
    _mark_image(axes)


def _extent(radii_255: np.ndarray) -> tuple[float, float, float, float]:
    """Of an image whose pixels lie around these positions on both axes."""
    half = (radii_255[1] - radii_255[0]) / 2
    low, high = radii_255[0] - half, radii_255[-1] + half
    return low, high, low, high


def draw_regions(
    axes: Axes, radii_255: np.ndarray, predicted: np.ndarray, colours: Mapping[int, str]
) -> None:
    """A grid of predicted classes (R, R), in the colour of each, with the image itself marked."""
    painted = np.array([[to_rgb(colours[k]) for k in row] for row in predicted.tolist()])
    axes.imshow(painted, extent=_extent(radii_255), origin="lower", interpolation="nearest")
    _mark_image(axes)


def class_colours(present: Iterable[int]) -> dict[int, str]:
    """A colour for each class that occurs: of ten classes always the same, else in their order."""
    present = sorted(set(present))
    fixed = present[-1] < len(style.AREAS)
    return {k: style.AREAS[(k if fixed else i) % len(style.AREAS)] for i, k in enumerate(present)}


def _mark_image(axes: Axes) -> None:
    axes.plot(0, 0, marker="+", color="white", markersize=8, markeredgewidth=2.4)
    axes.plot(0, 0, marker="+", color="black", markersize=7, markeredgewidth=1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(7))


def _draw_classes(
    figure: Figure, colours: Mapping[int, str], label: int, classes: Sequence[str] | None
) -> None:
    """The legend of the regions: the classes that occur, and the true one even if it does not."""
    handles = []
    for k, colour in colours.items():
        name = str(k) if classes is None else classes[k]
        edge, said = ("black", f"{name} (true)") if k == label else ("none", name)
        handles.append(Patch(facecolor=colour, edgecolor=edge, label=said))
    style.key(figure, handles, ncols=6)

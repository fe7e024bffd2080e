"""Loss landscapes, from the tables and arrays of `analysis.landscape`, or from files with these."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Polygon
from matplotlib.ticker import MaxNLocator

from robust_interp.figures import style

LINE_SHOWS = (
    "Cross-entropy along the FGSM direction, mean and quantiles over test images, and the share of them "
    "whose predicted class changes."
)
PLANE_SHOWS = (
    "Cross-entropy and predicted class around a test image, over the FGSM direction and a random orthogonal "
    "one; the cross marks the image, the outlines the Linf balls of the radii ε that are usually measured."
)
ACROSS = "orthogonal direction (1/255)"


@style.styled
def line_figure(table: pd.DataFrame) -> Figure:
    """Draw the loss and the share of changed predictions along the FGSM direction, over many images.

    Args:
        table: Table of `analysis.landscape.lines`.
    """
    figure, axes = style.panels(1, 2, 3.1)
    losses, changes = axes[0]
    draw_losses(losses, table)
    draw_changes(changes, table)
    images = table["sample"].nunique()
    losses.set_title(f"{images} image{'s' if images > 1 else ''}: mean")
    changes.set_title("predicted as another class than the image itself")
    bands = [
        Patch(color=style.MUTED, alpha=alpha, linewidth=0, label=f"{low:.0%} to {high:.0%} of the images")
        for low, high, alpha in _QUANTILES
    ]
    style.key(figure, [*losses.get_legend_handles_labels()[0], *bands])
    return style.make_room(figure)


_QUANTILES = ((0.05, 0.95, 0.1), (0.25, 0.75, 0.2))  # from, to, opacity


def draw_losses(axes: Axes, table: pd.DataFrame) -> None:
    """Draw the mean loss of each model over the images, with bands between quantiles."""
    for i, (model, one) in enumerate(table.groupby("model", sort=False)):
        losses = one.groupby("eps_255")["loss"]
        mean = losses.mean()
        for low, high, alpha in _QUANTILES:
            ends = losses.quantile(low), losses.quantile(high)
            axes.fill_between(mean.index, *ends, color=style.colour(i), alpha=alpha, linewidth=0)
        axes.plot(mean.index, mean, color=style.colour(i), linestyle=style.dash(i), label=model)
    _finish_line(axes, table)
    axes.set_ylabel("cross-entropy (nats)")
    axes.set_ylim(bottom=0)


def draw_changes(axes: Axes, table: pd.DataFrame) -> None:
    """Draw, for each model, the share (%) of images with another predicted class than at the image itself."""
    for i, (_, one) in enumerate(table.groupby("model", sort=False)):
        by_image = one.pivot(index="eps_255", columns="sample", values="predicted")
        at_image = by_image.iloc[np.abs(by_image.index).argmin()]
        share = 100 * (by_image != at_image).mean(axis="columns")
        axes.plot(share.index, share, color=style.colour(i), linestyle=style.dash(i))
    _finish_line(axes, table)
    axes.set_ylabel("share of the images (%)")
    axes.set_ylim(0, 103)


def _finish_line(axes: Axes, table: pd.DataFrame) -> None:
    axes.axvline(0, color=style.MUTED, linewidth=0.6, linestyle=":", zorder=0.5)
    axes.set_xlabel(_along(table["direction_of"].iloc[0]))
    axes.margins(x=0)


def _along(direction_of: object) -> str:
    """Return the label of the axis along the FGSM direction.

    Args:
        direction_of: Name of the model that the direction belongs to. Empty, or NaN if read from a CSV file,
            means that each model has its own direction.
    """
    shared = isinstance(direction_of, str) and direction_of
    label = f"FGSM direction of {direction_of} (1/255)" if shared else "own FGSM direction (1/255)"
    return style.wrapped(label, 2.4)  # inches: the width of a panel in a figure with two columns


@style.styled
def plane_figure(arrays: Mapping[str, np.ndarray], classes: Sequence[str] | None = None) -> Figure:
    """Draw the loss surface and the decision regions around one image, one row per model.

    Args:
        arrays: Arrays of `analysis.landscape.plane`, or the .npz file that they were written to. Optional
            further entries are `image` (C, H, W) in [0, 1], which is drawn, with its `sample` id, the `seed`
            of the orthogonal direction and `what` it is (clean, or a corruption); and `eps_255` (E,), radii
            whose balls are drawn. Files that were written before the array `ball` show none.
        classes: Names of the classes; None shows their numbers.
    """
    models, losses, predicted = arrays["models"], arrays["loss"], arrays["predicted"]
    label = int(arrays["label"])
    colours = class_colours([label, *np.unique(predicted).tolist()])
    shows_image = "image" in arrays
    balls = _balls_inside(arrays)
    size = (0.7 + 2.45 * len(models), 6.2) if not shows_image else (0.8 + 2.4 * len(models), 7.8)
    figure, axes = style.panels(len(models), 2 + shows_image, *size)
    scale = Normalize(0, float(losses.max()))
    for i, model in enumerate(models):
        surface, regions = axes[i][:2]
        draw_surface(surface, arrays["radii_255"], losses[i], scale)
        draw_regions(regions, arrays["radii_255"], predicted[i], colours)
        surface.set_title(f"{model}: loss")
        regions.set_title(f"{model}: predicted class")
        surface.set_ylabel(ACROSS)
        for panel in (surface, regions):
            draw_balls(panel, balls[i].values())
    for panel in axes[-1][:2]:
        panel.set_xlabel(_along(str(arrays["direction_of"])))
    if shows_image:
        draw_image(axes[0][2], arrays, classes)
        for row in axes[1:]:
            row[2].remove()
        for panel in figure.axes:
            panel.set_anchor("N")  # panels are square: their titles must be at the top of the cells
    figure.colorbar(
        ScalarMappable(scale, style.SEQUENTIAL),
        ax=[row[0] for row in axes],
        label="cross-entropy (nats)",
        aspect=30,
        shrink=0.7,
    )
    _draw_classes(figure, colours, label, classes, sorted(set().union(*balls)))
    return style.make_room(figure)


def draw_image(axes: Axes, arrays: Mapping[str, np.ndarray], classes: Sequence[str] | None) -> None:
    """Draw the image, and write its id, its class and the seed of the orthogonal direction."""
    image, label = np.asarray(arrays["image"]), int(arrays["label"])
    pixels = image[0] if len(image) == 1 else np.moveaxis(image[:3], 0, -1)
    axes.imshow(pixels, cmap="gray", vmin=0, vmax=1, interpolation="nearest")
    axes.set_xticks([])
    axes.set_yticks([])
    name = str(label) if classes is None else classes[label]
    axes.set_title(f"test image {int(arrays['sample'])}")
    axes.set_xlabel(f"{arrays['what']}, class {name},\northogonal direction: seed {int(arrays['seed'])}")


def _balls_inside(arrays: Mapping[str, np.ndarray]) -> list[dict[float, np.ndarray]]:
    """Return for each model the corners (K, 2) of the balls, by eps, that lie inside its panels."""
    end = arrays["radii_255"][-1]
    return [
        {float(eps): eps * corners for eps in arrays.get("eps_255", ()) if np.abs(eps * corners).max() < end}
        for corners in arrays.get("ball", [np.full((1, 2), np.inf)] * len(arrays["models"]))
    ]


def draw_balls(axes: Axes, balls: Iterable[np.ndarray]) -> None:
    """Draw the outline of each polygon with these corners (K, 2)."""
    for corners in balls:
        for width, colour in ((1.6, "white"), (0.7, "black")):
            axes.add_patch(Polygon(corners, fill=False, edgecolor=colour, linewidth=width))


def draw_surface(axes: Axes, radii_255: np.ndarray, loss: np.ndarray, scale: Normalize) -> None:
    """Draw a loss surface (R, R) with contour lines, and mark the image itself."""
    axes.imshow(loss, extent=_extent(radii_255), origin="lower", norm=scale, cmap=style.SEQUENTIAL)
    levels = np.linspace(scale.vmin or 0.0, scale.vmax or 0.0, 12)[1:-1]
    if loss.min() < levels[-1] and loss.max() > levels[0]:
        axes.contour(radii_255, radii_255, loss, levels, colors="white", linewidths=0.4, alpha=0.7)
    _mark_image(axes)


def _extent(radii_255: np.ndarray) -> tuple[float, float, float, float]:
    """Return the extent (left, right, bottom, top) of an image with pixels centred at these positions."""
    half = (radii_255[1] - radii_255[0]) / 2
    low, high = radii_255[0] - half, radii_255[-1] + half
    return low, high, low, high


def draw_regions(
    axes: Axes, radii_255: np.ndarray, predicted: np.ndarray, colours: Mapping[int, str]
) -> None:
    """Draw a grid of predicted classes (R, R) in the colours of the classes, and mark the image itself."""
    painted = np.array([[to_rgb(colours[k]) for k in row] for row in predicted.tolist()])
    axes.imshow(painted, extent=_extent(radii_255), origin="lower", interpolation="nearest")
    _mark_image(axes)


def class_colours(present: Iterable[int]) -> dict[int, str]:
    """Return a colour for each class that occurs, all different for up to 256 classes.

    Classes 0 to 9 have fixed colours, if no others occur.
    """
    present = sorted(set(present))
    if len(present) > len(style.AREAS):
        shades = style.MANY_AREAS(np.linspace(0, 1, len(present)))
        return {k: to_hex(shade) for k, shade in zip(present, shades, strict=True)}
    fixed = present[-1] < len(style.AREAS)
    return {k: style.AREAS[k if fixed else i] for i, k in enumerate(present)}


def _mark_image(axes: Axes) -> None:
    axes.plot(0, 0, marker="+", color="white", markersize=8, markeredgewidth=2.4)
    axes.plot(0, 0, marker="+", color="black", markersize=7, markeredgewidth=1)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(7))


def _draw_classes(
    figure: Figure,
    colours: Mapping[int, str],
    label: int,
    classes: Sequence[str] | None,
    eps_255: Sequence[float],
) -> None:
    """Draw the legend: the classes in `colours`, with the true class marked, and the radii of the balls."""
    handles = []
    for k, colour in colours.items():
        name = str(k) if classes is None else classes[k]
        edge, said = ("black", f"{name} (true)") if k == label else ("none", name)
        handles.append(Patch(facecolor=colour, edgecolor=edge, label=said))
    if eps_255:
        said = ", ".join(f"{eps:g}" for eps in eps_255)
        handles.append(Patch(fill=False, edgecolor="black", label=f"in the ball of ε = {said} (1/255)"))
    style.key(figure, handles, ncols=6)

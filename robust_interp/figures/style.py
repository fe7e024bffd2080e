"""How every figure looks, and how it is written: the one place that sets matplotlib."""

from __future__ import annotations

from pathlib import Path

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from robust_interp.errors import UserError

FULL, HALF = 6.9, 3.4  # inches: the text's and a column's width of a two-column page

# Okabe & Ito (2008), told apart by readers with any colour vision; yellow is too pale for a line.
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", (0, (4, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# Tol's 'muted' and pale grey: ten areas that stay apart beside each other
AREAS = (
    "#88CCEE",
    "#CC6677",
    "#DDCC77",
    "#117733",
    "#332288",
    "#AA4499",
    "#44AA99",
    "#999933",
    "#882255",
    "#DDDDDD",
)
SEQUENTIAL = matplotlib.colormaps["cividis"]  # lightness rises evenly, in grey too
ON_WHITE = ListedColormap(
    SEQUENTIAL(np.linspace(0, 0.85, 256))
)  # the same without what is too pale for lines
MUTED = "#666666"  # guides, stage boundaries, notes

_RC = {
    "figure.constrained_layout.use": True,
    "savefig.dpi": 300,
    "font.family": "DejaVu Sans",  # comes with matplotlib: the same letters everywhere
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.labelsize": 8,
    "xtick.labelsize": 7,
    "ytick.labelsize": 7,
    "legend.fontsize": 7,
    "legend.frameon": False,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "lines.linewidth": 1.3,
    "lines.markersize": 3.5,
    "patch.linewidth": 0.6,
    "text.parse_math": False,  # a $ in a model's name is a $
    "svg.hashsalt": "robust_interp",  # ids in the file that do not change from run to run
    "svg.fonttype": "path",
}

# Decorates what makes artists, which take their defaults when they are made. A user's own matplotlibrc does
# not come in.
styled = matplotlib.style.context(["default", _RC])


@styled
def panels(
    rows: int, columns: int, height: float, width: float = FULL, **options
) -> tuple[Figure, list[list[Axes]]]:
    """A figure of this size in inches, and its axes by row and column."""
    figure = Figure(figsize=(width, height))
    return figure, figure.subplots(rows, columns, squeeze=False, **options).tolist()


@styled
def save(figure: Figure, stem: Path) -> list[Path]:
    """Write `stem`.png and `stem`.svg; the same figure gives the same bytes. Returns their paths.

    Raises:
        UserError: if they cannot be written.
    """
    written = []
    try:
        stem.parent.mkdir(parents=True, exist_ok=True)
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None})):
            path = stem.with_name(f"{stem.name}.{kind}")
            figure.savefig(path, format=kind, metadata=metadata)
            written.append(path)
    except OSError as error:
        raise UserError(f"cannot write {stem}: {error}") from error
    return written


def mark_stages(axes: Axes, blocks: int) -> None:
    """Dotted lines between the three stages of a network with this many blocks, numbered from 1."""
    for boundary in (blocks / 3, 2 * blocks / 3):
        axes.axvline(boundary + 0.5, color=MUTED, linewidth=0.6, linestyle=":", zorder=0.5)
    axes.set_xlim(0.5, blocks + 0.5)


def colour(index: int) -> str:
    return LINES[index % len(LINES)]


def marker(index: int) -> str:
    return MARKERS[index % len(MARKERS)]


def dash(index: int):
    return DASHES[index % len(DASHES)]

"""Style of all figures, and writing them. Only this module configures matplotlib."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

import matplotlib.style
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import text_to_path

from robust_interp.core.files import make_folder, new_file
from robust_interp.figures.origin import FigureOrigin

Look: TypeAlias = dict[str, Any]  # keyword arguments of matplotlib artists, such as lines or markers

FULL = 6.9  # inches: the width of the text of a page

# Okabe & Ito (2008), distinguishable with any colour vision; their yellow is too pale for lines.
LINES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES = ("-", "--", "-.", (0, (4, 1, 1, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
# Tol's 'muted' and pale grey: ten colours for areas, distinguishable side by side
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
MANY_AREAS = matplotlib.colormaps["turbo"]  # for more areas than that; 256 shades
SEQUENTIAL = matplotlib.colormaps["cividis"]  # lightness rises evenly, also when printed in grey
ON_WHITE = ListedColormap(
    SEQUENTIAL(np.linspace(0, 0.85, 256))
)  # the same without colours that are too pale for lines
MUTED = "#666666"  # guides, stage boundaries, notes

_FONT, _TEXT, _SMALL = "DejaVu Sans", 8, 7  # font family, contained in matplotlib, and sizes in points
_LEADING = 1.25 / 72  # inches between lines, per point of text size
_SIGN, _GAP = 0.65, 0.2  # inches of a legend's symbol with its gaps, and of its margins

_RC = {
    "figure.constrained_layout.use": True,
    "savefig.dpi": 300,
    "font.family": _FONT,  # the same font on all machines
    "font.size": _TEXT,
    "axes.titlesize": _TEXT,
    "axes.labelsize": _TEXT,
    "xtick.labelsize": _SMALL,
    "ytick.labelsize": _SMALL,
    "legend.fontsize": _SMALL,
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
    "text.hinting": "none",  # widths then do not depend on the resolution
    "text.parse_math": False,  # no formulas: a model's name may contain $
    "svg.hashsalt": "robust_interp",  # the same ids in the file in each run
    "svg.fonttype": "path",
}

# Decorator of functions that create artists, because artists take their defaults when they are created. The
# user's matplotlibrc is not used.
styled = matplotlib.style.context(["default", _RC])


@styled
def panels(
    rows: int, columns: int, height: float, width: float = FULL, **options: Any
) -> tuple[Figure, list[list[Axes]]]:
    """Create a figure with a grid of panels.

    Args:
        rows: Number of rows.
        columns: Number of columns.
        height: Height of the figure in inches.
        width: Width of the figure in inches.
        **options: Arguments of matplotlib's ``Figure.subplots``.

    Returns:
        The figure, and its axes by row and column.
    """
    figure = Figure(figsize=(width, height))
    return figure, figure.subplots(rows, columns, squeeze=False, **options).tolist()


@styled
def save(figure: Figure, stem: Path, origin: FigureOrigin | None = None) -> list[Path]:
    """Write `stem`.png and `stem`.svg, and return their paths. The same figure gives the same bytes.

    Args:
        figure: The figure.
        stem: Path without an extension.
        origin: Data and checkpoints of the figure, to be stored in the SVG file.

    Raises:
        UserError: if a file cannot be written.
    """
    written = []
    told = {"Description": origin.as_text()} if origin else {}
    with _laid_out(figure):
        for kind, metadata in (("png", {"Software": None}), ("svg", {"Date": None, **told})):
            path = make_folder(stem.parent) / f"{stem.name}.{kind}"
            with new_file(path) as part:
                figure.savefig(part, format=kind, metadata=metadata)
            written.append(path)
    return written


def _lay_out(figure: Figure) -> None:
    """Place the panels; matplotlib otherwise does it whenever it draws."""
    if engine := figure.get_layout_engine():
        engine.execute(figure)


@contextmanager
def _laid_out(figure: Figure) -> Iterator[None]:
    """Place the panels once, for all that is drawn in the context: it takes longer than drawing them."""
    engine = figure.get_layout_engine()
    _lay_out(figure)
    # None is the engine that these two name, also where savefig puts it back.
    with matplotlib.rc_context({"figure.constrained_layout.use": False, "figure.autolayout": False}):
        figure.set_layout_engine(None)
        try:
            yield
        finally:
            figure.set_layout_engine(engine)


def wrapped(text: str, inches: float, points: float = _TEXT) -> str:
    """Break a text into lines.

    Args:
        text: The text. It is broken after spaces and punctuation, and within a word only if necessary.
        inches: Maximum width of a line.
        points: Size of the text.
    """
    lines, left = [""], inches
    for piece in re.split(r"(?<=[\W_])(?<![(\[{])(?=[^\W_]|[(\[{])", text):
        if width_of(piece.rstrip(), points) > left and lines[-1]:
            lines.append("")
            left = inches
        for letter in piece:
            width = width_of(letter, points)
            if width > left and not letter.isspace():
                lines.append("")
                left = inches
            lines[-1] += letter
            left -= width
    return "\n".join(line.rstrip() for line in lines)


def width_of(text: str, points: float) -> float:
    """Return an upper bound of the width of a text in inches, which ignores kerning; `points` is its size."""
    return sum(map(_of_letter, text)) * points / 72


@cache
def _of_letter(letter: str) -> float:
    """Return the width of a letter as a share of the text size."""
    font = FontProperties(family=_FONT, size=100)
    return text_to_path.get_text_width_height_descent(letter, font, False)[0] / 100


def key(figure: Figure, handles: Sequence, ncols: int | None = None) -> None:
    """Draw a legend below the panels, with as many columns as fit; long names are broken into lines.

    Args:
        figure: The figure.
        handles: Artists with labels.
        ncols: Maximum number of columns; None sets no limit.
    """
    names = [handle.get_label() for handle in handles]
    room = figure.get_figwidth() - _GAP
    widest = max(width_of(name, _SMALL) for name in names)
    columns = max(1, min(len(names), ncols or len(names), int(room / (_SIGN + widest))))
    labels = [wrapped(name, room - _SIGN, _SMALL) for name in names]
    figure.legend(handles, labels, loc="outside lower center", ncols=columns)
    each = -(-len(labels) // columns)
    lines = sum(1 + label.count("\n") for label in labels[:each])  # in the longest column
    _heighten(figure, max(0, lines - 2) * _SMALL * _LEADING * 1.2)  # two lines need no additional height


def make_room(figure: Figure) -> Figure:
    """Break titles that are wider than their panels, and make the figure higher by the additional lines."""
    places = {panel: place for panel in figure.axes if (place := panel.get_subplotspec())}
    titles = {panel: panel.get_title("left") for panel in places}
    for panel in titles:
        panel.set_title("")  # the layout would make room for a long title
    _lay_out(figure)
    rows: dict[int, int] = {}
    for panel, title in titles.items():
        if title:
            title = wrapped(title, panel.get_position().width * figure.get_figwidth())
            panel.set_title(title)
            row = places[panel].rowspan.start
            rows[row] = max(rows.get(row, 0), title.count("\n"))
    _heighten(figure, sum(rows.values()) * _TEXT * _LEADING)
    return figure


def _heighten(figure: Figure, inches: float) -> None:
    figure.set_figheight(figure.get_figheight() + inches)


def mark_stages(axes: Axes, blocks: int) -> None:
    """Draw dotted lines between the three stages of a network with `blocks` blocks, numbered from 1."""
    for boundary in (blocks / 3, 2 * blocks / 3):
        axes.axvline(boundary + 0.5, color=MUTED, linewidth=0.6, linestyle=":", zorder=0.5)
    axes.set_xlim(0.5, blocks + 0.5)


def colour(index: int) -> str:
    return LINES[index % len(LINES)]


def marker(index: int) -> str:
    return MARKERS[index % len(MARKERS)]


def dash(index: int) -> str | tuple[int, tuple[int, ...]]:
    return DASHES[index % len(DASHES)]

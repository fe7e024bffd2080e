"""Paths of figures, and writing them with their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from robust_interp.core.csv_text import csv_text
from robust_interp.core.files import make_folder, new_file, write_text
from robust_interp.figures import style
from robust_interp.figures.origin import FigureOrigin


def stem(out: Path, name: str) -> Path:
    """Return `out` without its extension if it is .png or .svg, else the path `name` in the folder `out`."""
    return out.with_suffix("") if out.suffix.lower() in (".png", ".svg") else out / name


def extended(path: Path, more: str) -> Path:
    """Append text to the name of a path without an extension: fig1 -> fig1_training. Dots in a name stay."""
    return path.with_name(f"{path.name}{more}")


def with_table(
    figure: Figure, table: pd.DataFrame, path: Path, origin: FigureOrigin | None = None
) -> list[Path]:
    """Write a figure, and its numbers as CSV.

    Args:
        figure: The figure.
        table: Its numbers.
        path: Path without an extension.
        origin: Data and checkpoints of the figure, to be stored in the SVG file.

    Returns:
        Paths of the written files.

    Raises:
        UserError: if a file cannot be written.
    """
    return [*style.save(figure, path, origin), write_table(table, path)]


def with_arrays(
    figure: Figure, arrays: Mapping[str, np.ndarray], path: Path, origin: FigureOrigin | None = None
) -> list[Path]:
    """Write a figure, and its numbers as .npz.

    Args:
        figure: The figure.
        arrays: Its numbers, by name.
        path: Path without an extension.
        origin: Data and checkpoints of the figure, to be stored in the SVG file.

    Returns:
        Paths of the written files.

    Raises:
        UserError: if a file cannot be written.
    """
    written = style.save(figure, path, origin)
    held = make_folder(path.parent) / f"{path.name}.npz"
    with new_file(held) as part:
        np.savez_compressed(part, **arrays)  # type: ignore[arg-type]  # mypy: a name could be allow_pickle
    return [*written, held]


def write_table(table: pd.DataFrame, path: Path) -> Path:
    """Write a table as CSV with six significant digits. `path` has no extension; return the path written."""
    written = make_folder(path.parent) / f"{path.name}.csv"
    write_text(written, csv_text(table, "%.6g"))
    return written

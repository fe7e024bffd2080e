"""Where a figure goes, and the numbers beside it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from robust_interp.core.csv_text import csv_text
from robust_interp.core.files import make_folder, new_file, write_text
from robust_interp.figures import style
from robust_interp.figures.origin import Origin


def stem(out: Path, name: str) -> Path:
    """The path without its ending: that of `out` if it ends as an image, else `name` in the folder `out`."""
    return out.with_suffix("") if out.suffix.lower() in (".png", ".svg") else out / name


def extended(path: Path, more: str) -> Path:
    """fig1 -> fig1_training: dots in a name stay."""
    return path.with_name(f"{path.name}{more}")


def with_table(figure: Figure, table: pd.DataFrame, path: Path, origin: Origin | None = None) -> list[Path]:
    """Write a figure, and its numbers as CSV; `path` is without an ending, `origin` what they are of."""
    return [*style.save(figure, path, origin), write_table(table, path)]


def with_arrays(
    figure: Figure, arrays: Mapping[str, np.ndarray], path: Path, origin: Origin | None = None
) -> list[Path]:
    """Write a figure, and its numbers as .npz; `path` is without an ending, `origin` what they are of."""
    written = style.save(figure, path, origin)
    held = make_folder(path.parent) / f"{path.name}.npz"
    with new_file(held) as part:
        np.savez_compressed(part, **arrays)  # type: ignore[arg-type]  # a name might be allow_pickle
    return [*written, held]


def write_table(table: pd.DataFrame, path: Path) -> Path:
    """Write a table as CSV, numbers with six significant digits; `path` is without an ending."""
    written = make_folder(path.parent) / f"{path.name}.csv"
    write_text(written, csv_text(table, "%.6g"))
    return written

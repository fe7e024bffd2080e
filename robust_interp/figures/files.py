"""Where a figure goes, and the numbers beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from robust_interp.core.errors import UserError
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
    return [*written, _write(extended(path, ".npz"), lambda to: np.savez_compressed(to, **arrays))]


def write_table(table: pd.DataFrame, path: Path) -> Path:
    """Write a table as CSV, numbers with six significant digits; `path` is without an ending."""
    options = {"index": False, "float_format": "%.6g", "lineterminator": "\n"}
    return _write(extended(path, ".csv"), lambda to: table.to_csv(to, **options))


def _write(path: Path, write: Callable[[Path], None]) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(path)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error}") from error
    return path

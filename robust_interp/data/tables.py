"""Read data sets in Hugging Face's formats: Parquet files, saved folders, and cached data sets of the hub.

The library `datasets` (extra ``hf``) memory-maps them. Nothing is downloaded unless the user asks for it, and
no code that comes with a data set is run.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from robust_interp.core.errors import UserError
from robust_interp.core.extras import install
from robust_interp.core.paths import expanded
from robust_interp.core.texts import reason_of
from robust_interp.data.dataset import checked_labels
from robust_interp.data.files import FileDataset, size_of
from robust_interp.data.options import SourceOptions

SPLITS = ("test", "validation", "valid", "val")  # the first that exists is used, else the only split

IMAGES, LABELS = ("image", "img", "pixel_values"), ("label", "labels")

_WITH_SPLIT = re.compile(r"(?P<name>.+?)(\[(?P<split>[\w.-]+)\])?")


class Rows:
    """The encoded images in a column of a table.

    Args:
        table: A `datasets.Dataset`.
        column: Name of the column. Its values are structs with ``bytes`` and ``path``, or bytes.
    """

    turns_upright = True  # as `datasets` does when it decodes

    def __init__(self, table: Any, column: str) -> None:
        self._table, self._name = table, column

    def __getstate__(self) -> dict:
        return {"_table": self._table, "_name": self._name}  # each process maps the column itself

    @property
    def mode(self) -> str | None:
        return getattr(self._table.features[self._name], "mode", None) or None

    @cached_property
    def _column(self) -> Any:
        return self._table.select_columns([self._name]).with_format("arrow")[:].column(0)

    @cached_property
    def _is_struct(self) -> bool:
        import pyarrow

        return pyarrow.types.is_struct(self._column.type)

    @cached_property
    def _paths(self) -> list[str | None]:
        import pyarrow.compute

        if not self._is_struct or all(field.name != "path" for field in self._column.type):
            return [None] * len(self._table)
        return pyarrow.compute.struct_field(self._column, "path").to_pylist()

    @cached_property
    def names(self) -> Sequence[str]:
        return [
            f"row {at}" + (f" ({Path(path).name})" if path else "") for at, path in enumerate(self._paths)
        ]

    @cached_property
    def sizes(self) -> Sequence[int]:
        import pyarrow.compute

        content = pyarrow.compute.struct_field(self._column, "bytes") if self._is_struct else self._column
        sizes = pyarrow.compute.binary_length(content).to_pylist()
        return [
            size if size is not None else size_of(path) if path else 0
            for size, path in zip(sizes, self._paths, strict=True)
        ]

    def open(self, at: int) -> BinaryIO:
        found = self._column[at].as_py()
        content = found["bytes"] if isinstance(found, dict) else found
        if content is None and (path := self._paths[at]):
            return open(path, "rb")
        return io.BytesIO(content or b"")


def from_parquet(text: str, options: SourceOptions) -> FileDataset:
    """Open ``parquet:FILE``, a Parquet file with a column of images and one of labels.

    Raises:
        UserError: if `datasets` is missing, or the file cannot be read or lacks these columns.
    """
    options.refuse("parquet:", "class_map")
    path = expanded(text)
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    datasets = _library("parquet:")
    with _quiet(datasets):
        table = _read(f"parquet:{text}", lambda: datasets.Dataset.from_parquet(str(path)))
    return _dataset(f"parquet:{path.stem}", table, options)


def from_hub(text: str, options: SourceOptions) -> FileDataset:
    """Open ``hf:NAME`` or ``hf:NAME[SPLIT]``, where NAME is a folder or a cached data set of the hub.

    Raises:
        UserError: if `datasets` is missing, or there is no such data set or split, or it lacks images or
            labels.
    """
    options.refuse("hf:", "class_map")
    found = _loaded(text, download=False)
    named = _named(text)[0]
    folder = expanded(named)
    return _dataset(f"hf:{folder.resolve().name if folder.is_dir() else named}", found, options)


def download(text: str) -> None:
    """Download ``hf:NAME`` from the hub into the cache of `datasets`.

    Raises:
        UserError: if the download fails.
    """
    _loaded(text, download=True)


def _named(text: str) -> tuple[str, str | None]:
    """Split ``NAME[SPLIT]`` into name and split; the split is None if it is missing."""
    found = _WITH_SPLIT.fullmatch(text)
    assert found
    return found["name"], found["split"]


def _loaded(text: str, download: bool) -> Any:
    datasets = _library("hf:")
    name, split = _named(text)
    folder = expanded(name)
    with _quiet(datasets), _offline(datasets, not download):
        if folder.is_dir() and any((folder / file).is_file() for file in ("state.json", "dataset_dict.json")):
            found = _read(f"hf:{text}", lambda: datasets.load_from_disk(str(folder)))
        else:
            place = str(folder) if folder.is_dir() else name
            hint = (
                ""
                if folder.is_dir() or download
                else f": robust-interp data 'hf:{text}' --download fetches it"
            )
            found = _read(f"hf:{text}", lambda: datasets.load_dataset(place), hint)
    if isinstance(found, datasets.Dataset):
        if split:
            raise UserError(f"hf:{text}: it has no splits")
        return found
    chosen = split or next((each for each in SPLITS if each in found), None)
    chosen = chosen or (next(iter(found)) if len(found) == 1 else None)
    if chosen not in found:
        lacks = f"no split {chosen}" if chosen else "no split called test or validation"
        raise UserError(f"hf:{text} has {lacks}, only {', '.join(found)}: choose one with hf:{name}[SPLIT]")
    return found[chosen]


def _dataset(name: str, table: Any, options: SourceOptions) -> FileDataset:
    if not len(table):
        raise UserError(f"{name} has no rows")
    images, labels = _columns(name, table)
    feature = table.features[labels]
    known = getattr(feature, "num_classes", None)
    of_rows, classes = _checked(name, table, labels, known)
    return options.dataset(name, Rows(table, images), of_rows, classes)


def _checked(name: str, table: Any, column: str, classes: int | None) -> tuple[np.ndarray, int]:
    values = table.select_columns([column]).with_format("arrow")[:].column(0).to_numpy()
    try:
        return checked_labels(values, len(table), classes)
    except UserError as error:
        raise UserError(f"{name}, column {column}: {error}") from error


def _columns(name: str, table: Any) -> tuple[str, str]:
    """Return the names of the columns of images and labels.

    The images are the only column of images, or of several the one that is named so.

    Raises:
        UserError: if they cannot be determined.
    """
    features = table.features
    images = [column for column in features if type(features[column]).__name__ == "Image"]
    images = [column for column in images or features if column in IMAGES] or images
    for what, found in (("images", images), ("labels", labels := _label_columns(name, features))):
        if len(found) != 1:
            raise UserError(
                f"{name}: it is not clear which column holds the {what} ({', '.join(found) or 'none does'}): "
                f"it has {', '.join(features)}"
            )
    return images[0], labels[0]


def _label_columns(name: str, features: Any) -> list[str]:
    """Return the names of the columns that may hold the labels.

    They are the columns that are named so, or else those with named classes, or else those of integers.

    Raises:
        UserError: if a column is named so, and none of these holds integers. Then any other column may be
            something else, such as a row's id or split.
    """
    whole = [column for column in features if getattr(features[column], "dtype", "").lstrip("u")[:3] == "int"]
    named = [column for column in LABELS if column in features]
    if named and not set(named) & set(whole):
        kind = getattr(features[named[0]], "dtype", type(features[named[0]]).__name__)
        raise UserError(f"{name}, column {named[0]}: labels must be class indices, not {kind}")
    with_names = [column for column in whole if hasattr(features[column], "num_classes")]
    return [column for column in named if column in whole] or with_names or whole


def _library(source: str) -> Any:
    try:
        import datasets
        import pyarrow  # noqa: F401, required by datasets
    except ImportError as error:
        raise UserError(f"{source} needs an extra package: {install('hf')}") from error
    return datasets


@contextmanager
def _quiet(datasets: Any) -> Iterator[None]:
    """Silence the progress bars and logs of `datasets`; restore its settings afterwards."""
    level, bars = datasets.utils.logging.get_verbosity(), datasets.utils.are_progress_bars_disabled()
    datasets.utils.logging.set_verbosity_error()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        datasets.utils.logging.set_verbosity(level)
        if not bars:
            datasets.enable_progress_bars()


@contextmanager
def _offline(datasets: Any, offline: bool) -> Iterator[None]:
    """Forbid downloads if `offline` is true; restore the setting afterwards."""
    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = offline or before
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def _read(source: str, read: Callable[[], Any], hint: str = "") -> Any:
    """Call `read`, and turn any exception into a UserError of one line.

    Raises:
        UserError: if `read` fails.
    """
    try:
        return read()
    except Exception as error:  # files may be anything, and the network fails in many ways
        reason = reason_of(error)
        raise UserError(f"cannot read {source}: {reason[:200]}{hint}") from error

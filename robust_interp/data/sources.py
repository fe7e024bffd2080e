"""Sources of images on the command line, such as ``folder:PATH`` and ``npz:FILE``."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from robust_interp.core.errors import UserError
from robust_interp.core.registry import unknown
from robust_interp.data.dataset import DATASETS, Dataset
from robust_interp.data.folder import from_folder, from_imagenet
from robust_interp.data.npz import from_npz
from robust_interp.data.options import SourceOptions
from robust_interp.data.tables import download, from_hub, from_parquet

Opener = Callable[[str, SourceOptions], Dataset]


@dataclass(frozen=True)
class SourceKind:
    """A kind of source.

    Attributes:
        what: What follows the prefix, and a description, for a listing.
        open: Function that opens a source of this kind.
    """

    what: str
    open: Opener


def _npz(text: str, options: SourceOptions) -> Dataset:
    options.refuse("npz:, whose images are arrays", "class_map", "preprocessing", "skip_unreadable")
    return from_npz(text)


SOURCES = {
    "folder": SourceKind("PATH: one folder a class, as torchvision's ImageFolder", from_folder),
    "imagenet": SourceKind("PATH: ImageNet's validation folder in torchvision's layout", from_imagenet),
    "parquet": SourceKind("FILE: a Parquet file with a column of images (extra hf)", from_parquet),
    "hf": SourceKind(
        "NAME or FOLDER: a data set of Hugging Face that is on this machine (extra hf)", from_hub
    ),
    "npz": SourceKind("FILE: arrays images and labels, as numpy.savez writes them", _npz),
}

_FORM = re.compile(r"(?P<kind>[a-z]+):(?P<rest>.*)", re.DOTALL)


def is_source(text: str) -> bool:
    """Whether a text is a source, such as ``folder:PATH``, and not the name of a registered data set.

    Raises:
        UserError: if it has the form of a source, but the kind is unknown.
    """
    found = _FORM.fullmatch(text)
    if found and found["kind"] not in SOURCES:
        raise unknown("source", found["kind"], [*SOURCES, *DATASETS])
    if found and not found["rest"]:
        raise UserError(f"{text} names nothing: {text}{SOURCES[found['kind']].what}")
    if not found and text not in DATASETS and (kind := _kind_of(Path(text))):
        raise UserError(f"{text} is no data set's name: if the file or folder is meant, {kind}:{text}")
    return found is not None


def _kind_of(path: Path) -> str | None:
    """Return the kind of source for an existing file or folder, such as ``npz``; None if there is none."""
    try:
        if path.suffix in (".npz", ".parquet") and path.is_file():
            return path.suffix[1:]
        return "folder" if len(path.parts) > 1 and path.is_dir() else None
    except (OSError, ValueError):  # not a valid path
        return None


def open_source(text: str, options: SourceOptions | None = None) -> Dataset:
    """Open a source as a data set, in its own order.

    Args:
        text: The source, such as ``folder:images/val``.
        options: Options of the source; None takes the defaults.

    Raises:
        UserError: if the kind of source is unknown, it cannot be read, or does not support an option.
    """
    found = _FORM.fullmatch(text)
    if found is None or found["kind"] not in SOURCES:
        raise unknown("source", text, SOURCES)
    try:
        return SOURCES[found["kind"]].open(found["rest"], options or SourceOptions())
    except OSError as error:
        raise UserError(f"cannot read {text}: {error.strerror or error}") from error


def download_source(text: str) -> None:
    """Download a source; only ``hf:NAME`` can be downloaded.

    Raises:
        UserError: if it is another kind of source, or the download fails.
    """
    kind, _, name = text.partition(":")
    if kind != "hf":
        raise UserError(f"{text} is a place on this machine: only hf:NAME can be downloaded")
    download(name)

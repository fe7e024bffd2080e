"""Released images: arrays as in CIFAR-10-C, and folders of pictures as in ImageNet-C."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import numpy as np

from robust_interp.core.errors import UserError
from robust_interp.corruptions.names import GROUPS, RELEASED_MD5, SEVERITIES
from robust_interp.corruptions.severities import CIFAR_C, constants_of
from robust_interp.data import DATASETS, Dataset


class Released(Protocol):
    """Corrupted images that were released, not generated here."""

    def source(self, name: str) -> str:
        """Return ``released`` for verified images of a corruption, else a text with a hash of the files.

        Raises:
            UserError: if the images are missing or have wrong content.
        """

    def images(self, name: str, severity: int, start: int, stop: int) -> np.ndarray:
        """Return the images [start, stop) under a corruption, uint8 (N, C, H, W).

        Raises:
            UserError: if an image cannot be read.
        """


def released(dataset: Dataset, folder: Path) -> Released:
    """Return the released images of a data set from a folder.

    Args:
        dataset: The clean images, in any order.
        folder: Folder of released images, or the folder above it.

    Raises:
        UserError: if there are no released images, or not those of this data set.
    """
    name = archive(dataset)
    return Arrays(dataset, folder, name) if name else Pictures(dataset, folder)


def archive(dataset: Dataset) -> str | None:
    """Return the name of the released arrays of a data set; None if there are none."""
    return DATASETS[dataset.name].corruption_archive if dataset.name in DATASETS else None


class Arrays:
    """Released arrays ``<corruption>.npy``, channels last, five severities stacked, and ``labels.npy``."""

    def __init__(self, dataset: Dataset, folder: Path, name: str) -> None:
        self.dataset = dataset
        self.folder = folder / name if (folder / name).is_dir() else folder
        labels = _open_array(self.folder / "labels.npy")
        order = dataset.places
        fits = labels.shape == (5 * len(dataset),)
        if not fits or not (labels.reshape(5, -1)[:, order] == dataset.labels).all():
            raise UserError(
                f"{self.folder / 'labels.npy'} must contain the {dataset.name} test labels five times"
            )

    def source(self, name: str) -> str:
        """Check the MD5 and return ``released``, or, without an official MD5, a text with the file's MD5."""
        open_released(self.folder, name, self.dataset)
        path = self.folder / f"{name}.npy"
        found = _md5(path)
        known = RELEASED_MD5.get(name) if self.dataset.name == "cifar10" else None
        if known is None or len(self.dataset) != 10_000:
            return f"released(unverified, MD5 {found})"
        if found != known:
            raise UserError(f"{path} is not the released file: its MD5 is not {known}")
        return "released"

    def images(self, name: str, severity: int, start: int, stop: int) -> np.ndarray:
        first = (severity - 1) * len(self.dataset)
        rows = open_released(self.folder, name, self.dataset)
        return rows[first + self.dataset.places[start:stop]].transpose(0, 3, 1, 2)


def open_released(folder: Path, name: str, dataset: Dataset) -> np.ndarray:
    """Open the images of one corruption, uint8 (5 N, H, W, C), memory-mapped.

    Raises:
        UserError: if the file is missing, or is not an array of this shape and type.
    """
    rows = _open_array(folder / f"{name}.npy")
    C, H, W = dataset.shape
    expected = (5 * len(dataset), H, W, C)
    if rows.shape != expected or rows.dtype != np.uint8:
        raise UserError(
            f"{folder / f'{name}.npy'} must be uint8 of shape {expected}, not {rows.dtype} {rows.shape}"
        )
    return rows


def _open_array(path: Path) -> np.ndarray:
    try:
        return np.lib.format.open_memmap(path, mode="r")  # opens only .npy files without pickled objects
    except FileNotFoundError as error:
        raise UserError(
            f"cannot read {path}: no such file; a released folder, such as CIFAR-10-C, holds labels.npy and "
            f"{', '.join(f'{name}.npy' for name in GROUPS['all'])}"
        ) from error
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}") from error


def _md5(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest()


PICTURES = {".jpeg", ".jpg", ".png"}


class Pictures:
    """Folders ``<corruption>/<severity>/<class>/<picture>``, as in ImageNet-C and Tiny-ImageNet-C.

    The pictures are not resized or cropped. The picture of an image is the one with the same class folder and
    file name; the suffix may differ. If the names differ, the pictures sorted by class and name must be in
    the data set's own order. The corruptions may lie in folders of groups, as in ``noise/gaussian_noise``.

    Raises:
        UserError: if there is no corruption in the folder.
    """

    def __init__(self, dataset: Dataset, folder: Path) -> None:
        self.dataset, self.folder = dataset, folder
        if not any(self._places(name) for name in GROUPS["all"]):
            raise UserError(
                f"there are no released corruption arrays for {dataset.name}, and no folders "
                f"<corruption>/<severity>/<class> in {folder}, as ImageNet-C has them"
            )
        self._listed: tuple[Path, list[str]] | None = None  # the folder that was listed last
        self._matched: tuple[Path, list[str]] | None = None  # likewise, for `_names`

    def source(self, name: str) -> str:
        """Return ``released(ImageNet-C, files 0123456789ab)``, with a hash of all file names and sizes."""
        sha = hashlib.sha256()
        for severity in SEVERITIES:
            place = self._place(name, severity)
            self._names(place)
            for picture in self._all_names(place):
                sha.update(f"{severity}/{picture} {os.stat(place / picture).st_size}\n".encode())
        constants = constants_of(self.dataset.shape)
        benchmark = "" if constants == CIFAR_C else f"{constants}, "
        return f"released({benchmark}files {sha.hexdigest()[:12]})"

    def images(self, name: str, severity: int, start: int, stop: int) -> np.ndarray:
        place = self._place(name, severity)
        paths = [place / picture for picture in self._names(place)[start:stop]]
        with ThreadPoolExecutor() as readers:  # decoding releases the GIL
            return np.stack(list(readers.map(self._read, paths)))

    def _read(self, path: Path) -> np.ndarray:
        from PIL import Image

        channels, height, width = self.dataset.shape
        try:
            with Image.open(path) as picture:
                found = np.asarray(picture.convert("L" if channels == 1 else "RGB"))
        except (OSError, SyntaxError, ValueError) as error:  # all errors of Pillow for damaged files
            raise UserError(f"cannot read {path}: {error}") from error
        if found.shape[:2] != (height, width):
            size = f"{found.shape[0]} x {found.shape[1]}"
            raise UserError(
                f"{path} is {size}, and released images are taken as they are: those of {self.dataset.name} "
                f"must be {size}, too, not {height} x {width}"
            )
        return found[None] if channels == 1 else found.transpose(2, 0, 1)

    def _places(self, name: str) -> list[Path]:
        """Return the folders of a corruption: in the folder itself, or one level below as in the archives."""
        return [
            place for place in (self.folder / name, *sorted(self.folder.glob(f"*/{name}"))) if place.is_dir()
        ]

    def _place(self, name: str, severity: int) -> Path:
        for place in self._places(name):
            if (place / str(severity)).is_dir():
                return place / str(severity)
        raise UserError(f"{self.folder} has no folder {name}/{severity}")

    def _names(self, place: Path) -> list[str]:
        """Return the picture of each image at a severity, as ``class/file``."""
        if self._matched and self._matched[0] == place:
            return self._matched[1]
        listed = self._all_names(place)
        wanted = [self.dataset.name_of(at) for at in range(len(self.dataset))]
        found = _by_name(wanted, listed)
        if not any(found):
            found = self._in_order(place, listed)
        elif "" in found:
            raise UserError(f"{place} has no picture of {wanted[found.index('')]}")
        self._matched = place, found
        return found

    def _in_order(self, place: Path, listed: list[str]) -> list[str]:
        """Return the pictures of images with other names, matched by their order."""
        classes = sorted({name.partition("/")[0] for name in listed})
        labels = np.searchsorted(classes, [name.partition("/")[0] for name in listed])
        order = self.dataset.places
        if len(labels) != len(self.dataset) or not np.array_equal(labels[order], self.dataset.labels):
            raise UserError(
                f"{place} must hold the {len(self.dataset)} images of {self.dataset.name}, by their names or "
                f"in the same order, class by class; it holds {len(labels)} of {len(classes)} classes"
            )
        return [listed[at] for at in order]

    def _all_names(self, place: Path) -> list[str]:
        """Return all pictures of a severity, as ``class/file``, sorted by class and then by file."""
        if self._listed and self._listed[0] == place:
            return self._listed[1]
        try:
            classes = sorted(each.name for each in os.scandir(place) if each.is_dir())
            names = [
                [f"{each}/{file}" for file in sorted(os.listdir(place / each)) if _is_picture(file)]
                for each in classes
            ]
        except OSError as error:
            raise UserError(f"cannot read {place}: {error.strerror}") from error
        self._listed = place, [name for files in names for name in files]
        return self._listed[1]


def _is_picture(file: str) -> bool:
    return os.path.splitext(file)[1].lower() in PICTURES and not file.startswith(".")


def _by_name(wanted: Sequence[str], listed: Sequence[str]) -> list[str]:
    """Return the listed file for each name, ``class/file``; '' if there is none.

    The suffixes may differ, unless several files differ in nothing else.

    Raises:
        UserError: if several files fit a name, and none of them exactly; or one file is left for two names.
    """
    by_stem: dict[str, list[str]] = {}
    for name in listed:
        by_stem.setdefault(os.path.splitext(name)[0], []).append(name)
    found = []
    for name in wanted:
        fitting = by_stem.get(os.path.splitext(name)[0], [""])
        if len(fitting) > 1 and name not in fitting:
            raise UserError(f"{' and '.join(fitting)} could both be the picture of {name}")
        found.append(name if name in fitting else fitting[0])
    taken: dict[str, str] = {}
    for name, file in zip(wanted, found, strict=True):
        if file and taken.setdefault(file, name) != name:
            raise UserError(f"{file} could be the picture of both {taken[file]} and {name}")
    return found

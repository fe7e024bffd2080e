"""The source of a run's corrupted images, and the corruptions that a command line requests."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from pathlib import Path

import numpy as np

from robust_interp.core.errors import UserError
from robust_interp.core.registry import unknown
from robust_interp.core.specs import Spec, parse_spec, split_specs
from robust_interp.corruptions.digital import jpeg_library
from robust_interp.corruptions.names import GROUPS, RELEASED_MD5, SEVERITIES
from robust_interp.corruptions.table import CORRUPTIONS, corrupt, obstacle
from robust_interp.data import DATASETS, Dataset, as_pixels
from robust_interp.store.cells import Perturbation


class Corruptor:
    """Source of the corrupted images: the released arrays if a folder is given, otherwise the generator.

    Args:
        dataset: The clean images, in official order.
        seed: Seed of the generated corruptions.
        folder: Folder with the released ``<corruption>.npy`` and ``labels.npy``, or the folder above it.

    Attributes:
        notes: Warnings about the results, one line each; `resolve` adds to them.

    Raises:
        UserError: if the folder's labels are missing or not those of the dataset.
    """

    def __init__(self, dataset: Dataset, seed: int, folder: Path | None = None) -> None:
        self.dataset = dataset
        self.seed = seed
        self.folder = _released_folder(dataset, folder) if folder else None
        self.notes: list[str] = []
        self._sources: dict[str, str] = {}  # hashing a released file takes a while
        self._generated = _Recent(CACHED_BYTES)

    def source(self, name: str) -> str:
        """Where images of the corruption `name` come from.

        ``generated@<seed>``, ``released``, or with the file's MD5 where there is no official one.

        Generated JPEG that cannot equal the released names its library: ``generated@0(libjpeg-turbo)``.

        Raises:
            UserError: if a released file is missing or has wrong content.
        """
        if name not in self._sources:
            self._sources[name] = self._source(name)
        return self._sources[name]

    def _source(self, name: str) -> str:
        if self.folder is None:
            library = jpeg_library() if name == JPEG else None
            return f"generated@{self.seed}({library})" if library else f"generated@{self.seed}"
        open_released(self.folder, name, self.dataset)
        found = _md5(self.folder / f"{name}.npy")
        known = RELEASED_MD5.get(name) if self.dataset.name == "cifar10" else None
        if known is None or len(self.dataset) != 10_000:
            return f"released(unverified, MD5 {found})"
        if found != known:
            raise UserError(f"{self.folder / f'{name}.npy'} is not the released file: its MD5 is not {known}")
        return "released"

    def obstacle(self, name: str) -> str | None:
        """Why a corruption is not possible, or None. Released images need no generator."""
        return obstacle(name, self.dataset.shape) if self.folder is None else None

    def note(self, line: str) -> None:
        """Add a line to the notes, once."""
        if line not in self.notes:
            self.notes.append(line)

    def pixels(self, perturbation: Perturbation, start: int, stop: int) -> np.ndarray:
        """Samples [start, stop) under a corruption, which `resolve` gave; float32 NCHW in [0, 1]."""
        name, severity = perturbation.name, perturbation.integer("severity")
        if self.folder:
            return as_pixels(self._released(self.folder, name, severity, start, stop))
        key = (name, severity, start, stop)
        images = self._generated.get(key)
        if images is None:
            clean = self.dataset.rows(start, stop)
            images = corrupt(clean, name, severity, range(start, stop), self.seed)
            self._generated.put(key, images)
        return as_pixels(images)

    def _released(self, folder: Path, name: str, severity: int, start: int, stop: int) -> np.ndarray:
        size = len(self.dataset)
        rows = open_released(folder, name, self.dataset)
        first = (severity - 1) * size  # the five severities are stacked
        return rows[first + start : first + stop].transpose(0, 3, 1, 2)


class _Recent:
    """The arrays that were used last, as many as there is room for."""

    def __init__(self, room: int) -> None:
        self._room, self._arrays = room, OrderedDict[tuple, np.ndarray]()

    def get(self, key: tuple) -> np.ndarray | None:
        if key in self._arrays:
            self._arrays.move_to_end(key)
        return self._arrays.get(key)

    def put(self, key: tuple, array: np.ndarray) -> None:
        if array.nbytes > self._room:
            return
        self._arrays[key] = array
        while sum(kept.nbytes for kept in self._arrays.values()) > self._room:
            self._arrays.popitem(last=False)


JPEG = "jpeg_compression"

# What is generated once is kept for the classifiers that follow: a thousand CIFAR images are 3 MB at each of
# 75 corruptions and severities, so that all of them fit. What does not is generated again, the same.
CACHED_BYTES = 256 * 2**20


def _archive(dataset: Dataset) -> str | None:
    return DATASETS[dataset.name].corruption_archive if dataset.name in DATASETS else None


def _released_folder(dataset: Dataset, folder: Path) -> Path:
    archive = _archive(dataset)
    if archive is None:
        raise UserError(f"there are no released corruption arrays for {dataset.name}")
    inner = folder / archive
    folder = inner if inner.is_dir() else folder
    labels = _open_array(folder / "labels.npy")
    if labels.shape != (5 * len(dataset),) or not np.array_equal(labels, np.tile(dataset.labels, 5)):
        raise UserError(f"{folder / 'labels.npy'} must contain the {dataset.name} test labels five times")
    return folder


def open_released(folder: Path, name: str, dataset: Dataset) -> np.ndarray:
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
        return np.lib.format.open_memmap(path, mode="r")  # reads nothing but .npy, and no pickled objects
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


def resolve(text: str, corruptor: Corruptor) -> list[Perturbation]:
    """Perturbations for a comma-separated list of names, groups or ``name(severity=3)``; 'none' is empty.

    Without a severity, all five are taken; repeated names are measured once. A corruption that cannot be
    generated for these images is an error if it is named. In a group it is left out with a note, and the mean
    of the group is then absent.

    Args:
        text: As on the command line.
        corruptor: Source of the corrupted images; notes are added to it.

    Raises:
        UserError: for an unknown name, a severity that is not a whole number from 1 to 5, or a corruption
            that cannot be generated.
    """
    if text.strip() == "none":
        return []
    found = {}
    for part in split_specs(text):
        spec = parse_spec(part)
        for name in GROUPS.get(spec.name, (spec.name,)):
            severities = _severities(name, spec)
            reason = corruptor.obstacle(name)
            if reason and spec.name not in GROUPS:
                raise UserError(f"{name} cannot be generated: {reason}")
            if reason:
                corruptor.note(f"{name} and all means that include it are left out: {reason}")
                continue
            found.update(dict.fromkeys((name, severity) for severity in severities))
    if not found:
        raise UserError("no corruption given; use none to measure without corruptions")
    if any(name == JPEG for name, _ in found) and (line := _jpeg_note(corruptor)):
        corruptor.note(line)
    return [
        Perturbation(
            "corruption", name, f"{name}_{severity}", {"severity": severity}, source=corruptor.source(name)
        )
        for name, severity in found
    ]


def _jpeg_note(corruptor: Corruptor) -> str | None:
    """Said where released arrays exist that the generated ones could be taken for."""
    library = None if corruptor.folder or not _archive(corruptor.dataset) else jpeg_library()
    return library and (
        f"{JPEG} is generated with {library}: about a third to a half of the values differ from the released "
        "arrays, which were made with libjpeg 9"
    )


def _severities(name: str, spec: Spec) -> tuple[int, ...]:
    if name not in CORRUPTIONS:
        raise unknown("corruption", name, [*CORRUPTIONS, *GROUPS])
    if unexpected := set(spec.params) - {"severity"}:
        raise UserError(f"{spec.name} has no parameter {min(unexpected)!r}; it takes severity=1 to 5")
    severity = spec.params.get("severity")
    if severity is None:
        return SEVERITIES
    if isinstance(severity, bool) or severity not in SEVERITIES:
        raise UserError(f"severity must be 1, 2, 3, 4 or 5, not {severity}")
    return (int(severity),)

"""The source of a run's corrupted images, and the corruptions that a command line requests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from robust_interp.core.errors import UserError
from robust_interp.core.specs import Spec, parse_spec, split_specs
from robust_interp.corruptions.ahead import Maker, Wanted
from robust_interp.corruptions.cache import Cache
from robust_interp.corruptions.digital import jpeg_library
from robust_interp.corruptions.names import GROUPS, SEVERITIES
from robust_interp.corruptions.released import archive, released
from robust_interp.corruptions.severities import CIFAR_C, constants_of
from robust_interp.corruptions.table import check_name, obstacle
from robust_interp.data import Dataset, as_pixels
from robust_interp.store.cells import Perturbation


class Corruptor:
    """Source of the corrupted images: the released ones if a folder is given, otherwise the generator.

    Args:
        dataset: The clean images, in official order.
        seed: Seed of the generated corruptions.
        folder: Folder of released images, or the folder above it: ``<corruption>.npy`` and ``labels.npy``, or
            pictures in ``<corruption>/<severity>/<class>``.
        cache: Cache on disk of generated images; None uses none.

    Raises:
        UserError: if the released images are missing or not those of the data set.
    """

    def __init__(
        self, dataset: Dataset, seed: int, folder: Path | None = None, cache: Cache | None = None
    ) -> None:
        self.dataset = dataset
        self.seed = seed
        self._folder = folder
        self.released = released(dataset, folder) if folder else None
        self._cache = cache
        self._maker = Maker(dataset, seed, cache)
        self._notes: list[str] = []
        self._sources: dict[str, str] = {}  # hashing a released file takes a while

    def for_dataset(self, dataset: Dataset) -> Corruptor:
        """Return the same source for other clean images, such as those with a model's preprocessing."""
        return Corruptor(dataset, self.seed, self._folder, self._cache)

    @property
    def notes(self) -> list[str]:
        """Warnings about the results, one line each; `parse_corruptions` adds to them."""
        trouble = self._cache.trouble if self._cache else None
        return [*self._notes, trouble] if trouble else self._notes[:]

    def source(self, name: str) -> str:
        """Return where the images of the corruption `name` come from.

        This is ``generated@<seed>`` or ``released``, the latter with a hash if there is no official one.

        Constants other than those of CIFAR-C are named, as in ``generated@0(ImageNet-C)``. So is a JPEG
        library that cannot reproduce the released images, as in ``generated@0(libjpeg-turbo)``.

        Raises:
            UserError: if a released file is missing or has wrong content.
        """
        if name not in self._sources:
            self._sources[name] = self.released.source(name) if self.released else self._generated(name)
        return self._sources[name]

    def _generated(self, name: str) -> str:
        constants = constants_of(self.dataset.shape)
        library = jpeg_library() if name == JPEG else None
        beside = [constants if constants != CIFAR_C else "", library or ""]
        return f"generated@{self.seed}" + "".join(f"({each})" for each in beside if each)

    def obstacle(self, name: str) -> str | None:
        """Return why a corruption cannot be generated; None if it can, or if the images are released ones."""
        return None if self.released else obstacle(name, self.dataset.shape)

    def note(self, line: str) -> None:
        """Add a line to the notes, unless they contain it."""
        if line not in self._notes:
            self._notes.append(line)

    def pixels(self, perturbation: Perturbation, start: int, stop: int) -> np.ndarray:
        """Return the images [start, stop) under a corruption, float32 (n, C, H, W) in [0, 1].

        Args:
            perturbation: A corruption, as returned by `parse_corruptions`.
            start: Id of the first image.
            stop: Id after the last image.

        Raises:
            UserError: if a released image cannot be read.
        """
        name, severity = perturbation.name, perturbation.integer("severity")
        return as_pixels((self.released or self._maker).images(name, severity, start, stop))

    @contextmanager
    def prefetch(self, wanted: Iterable[tuple[Perturbation, int, int]], workers: int) -> Iterator[None]:
        """Let workers generate corrupted images in advance while the context is active.

        Args:
            wanted: Corruptions with the images [start, stop) of each that will be requested, in this order.
            workers: Maximum number of workers.
        """
        if self.released:
            yield
            return
        blocks = [Wanted(one.name, one.integer("severity"), start, stop) for one, start, stop in wanted]
        with self._maker.prefetch(blocks, workers):
            yield


JPEG = "jpeg_compression"


def parse_corruptions(text: str, corruptor: Corruptor) -> list[Perturbation]:
    """Return the perturbations of a comma-separated list of names, groups or ``name(severity=3)``.

    The text ``none`` gives an empty list.
    Without a severity, all five are taken; repeated names are measured once. A corruption that cannot be
    generated for these images is an error if it is named. In a group it is left out with a note, and the mean
    of the group is then absent.

    Args:
        text: The list, as on the command line.
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
    """Return a note if generated JPEG images differ from the released arrays of the data set."""
    library = None if corruptor.released or not archive(corruptor.dataset) else jpeg_library()
    return library and (
        f"{JPEG} is generated with {library}: about a third to a half of the values differ from the released "
        "arrays, which were made with libjpeg 9"
    )


def _severities(name: str, spec: Spec) -> tuple[int, ...]:
    check_name(name)
    if unexpected := set(spec.params) - {"severity"}:
        raise UserError(f"{spec.name} has no parameter {min(unexpected)!r}; it takes severity=1 to 5")
    severity = spec.params.get("severity")
    if severity is None:
        return SEVERITIES
    if isinstance(severity, bool) or severity not in SEVERITIES:
        raise UserError(f"severity must be 1, 2, 3, 4 or 5, not {severity}")
    return (int(severity),)

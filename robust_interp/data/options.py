"""Options of a source of images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robust_interp.core.errors import UserError
from robust_interp.data.decoding import unreadable
from robust_interp.data.files import Encoded, FileDataset
from robust_interp.data.preprocessing import Preprocessing


@dataclass(frozen=True)
class SourceOptions:
    """Options of a source of images, besides its place.

    Attributes:
        class_map: Path of a CSV file with the class of each folder; None numbers the sorted folders.
        preprocessing: Preprocessing for all models; None uses that of each model.
        skip_unreadable: Whether images that cannot be decoded are left out instead of refused.
        workers: Number of processes that decode images; None chooses it, see `worker_count`.
    """

    class_map: str | None = None
    preprocessing: Preprocessing | None = None
    skip_unreadable: bool = False
    workers: int | None = None

    def dataset(
        self,
        name: str,
        encoded: Encoded,
        labels: np.ndarray,
        classes: int,
        notes: tuple[str, ...] = (),
        class_names: tuple[str, ...] = (),
    ) -> FileDataset:
        """Make a data set of encoded images.

        Args:
            name: Name of the data set in tables.
            encoded: The encoded images.
            labels: Class indices (N,).
            classes: Number of classes.
            notes: Notes for a reader of the results.
            class_names: Names of the classes; empty if they have none.

        Raises:
            UserError: if unreadable images are left out, and no image can be read.
        """
        order, metadata = np.arange(len(labels)), dict[str, str | int]()
        if self.skip_unreadable and (bad := unreadable(encoded, self.workers)):
            order = np.delete(order, list(bad))
            metadata = {"skipped": len(bad)}
            first = next(iter(bad.values()))
            which = "images cannot be read and are" if len(bad) > 1 else "images cannot be read and is"
            more = ", ..." if len(bad) > 1 else ""
            notes += (f"{len(bad)} of {len(labels)} {which} left out: {first}{more}",)
            if not len(order):
                raise UserError(f"{name}: no image can be read: {first}")
        return FileDataset(
            name,
            encoded,
            labels,
            classes,
            order,
            self.preprocessing,
            self.workers,
            metadata,
            notes,
            class_names,
        )

    def refuse(self, source: str, *names: str) -> None:
        """Refuse options that a kind of source does not support.

        Args:
            source: Name of the kind of source for the message.
            names: Names of the attributes that must not be set.

        Raises:
            UserError: if one of them is set.
        """
        for name in names:
            if getattr(self, name):
                option = {"preprocessing": "resize, crop"}.get(name, name)
                raise UserError(f"{option} cannot be used with {source}")

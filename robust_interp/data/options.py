"""What is said of a source of images besides where it is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robust_interp.core.errors import UserError
from robust_interp.data.decoding import unreadable
from robust_interp.data.files import Encoded, FileDataset
from robust_interp.data.preprocessing import Preprocessing


@dataclass(frozen=True)
class SourceOptions:
    """What is said of a source of images besides where it is.

    Attributes:
        class_map: A CSV file that says which folder is which class.
        preprocessing: How all models take the images; None is each in its own way.
        skip_unreadable: Whether images that cannot be decoded are left out, instead of refused.
        workers: Processes that decode; None is one for each CPU.
    """

    class_map: str | None = None
    preprocessing: Preprocessing | None = None
    skip_unreadable: bool = False
    workers: int | None = None

    def dataset(
        self, name: str, encoded: Encoded, labels: np.ndarray, classes: int, notes: tuple[str, ...] = ()
    ) -> FileDataset:
        """The dataset of encoded images.

        Args:
            name: What tables call it.
            encoded: The images.
            labels: (N,).
            classes: How many there are.
            notes: What a reader must be told.

        Raises:
            UserError: if none of them can be decoded, and those are left out.
        """
        order, told = np.arange(len(labels)), dict[str, str | int]()
        if self.skip_unreadable and (bad := unreadable(encoded, self.workers)):
            order = np.delete(order, list(bad))
            told = {"skipped": len(bad)}
            first = next(iter(bad.values()))
            notes += (
                f"{len(bad)} of {len(labels)} images are left out, as they cannot be read: {first}, ...",
            )
            if not len(order):
                raise UserError(f"{name}: no image can be read: {first}")
        return FileDataset(
            name, encoded, labels, classes, order, self.preprocessing, self.workers, told, notes
        )

    def refuse(self, source: str, *names: str) -> None:
        """Refuse those of the options that a kind of source has no use for.

        Raises:
            UserError: naming the first that was given.
        """
        for name in names:
            if getattr(self, name):
                option = {"preprocessing": "resize, crop"}.get(name, name)
                raise UserError(f"{option} cannot be used with {source}")

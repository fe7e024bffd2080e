"""The outcome of a cell for consecutive images."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ZERO_GRADIENT = 1  # flag bits of an image

NOT_FINITE = 2

AGREE = 4  # ensembles: whether all members predict the same class; neither bit is set if that is unknown

DISAGREE = 8

INHERITED = 16

ROUNDED_RIGHT = 32  # attacks: whether the image rounded to 8 bits is correct; neither bit if not measured

ROUNDED_WRONG = 64


@dataclass(frozen=True)
class Outcome:
    """The outcome of a cell for consecutive images.

    Attributes:
        predictions: Predicted labels, (n,), of any signed integer type; -1 if the logits or the image were
            not finite, or the image is inherited.
        flags: Flag bits, (n,) uint8. ZERO_GRADIENT: the attack's gradient was exactly zero. NOT_FINITE: a
            gradient, the image or the logits were not finite. INHERITED: not measured, because a cell that
            this one follows broke the image. AGREE or DISAGREE: the members of an ensemble.
            ROUNDED_RIGHT or ROUNDED_WRONG: the attacked image, classified rounded to multiples of 1/255.
        deltas: Size of the change of each image by an attack, (n,) float32, in [0, 1] pixels and the norm of
            the attack; None without an attack.
        seconds: Time that measuring took.
        device: Device, such as ``cpu``; for compiled passes with the engine, ``cpu compiled``. Several
            are joined by ``+``.
        content: Hashes of the images as they were read, see `Dataset.content`; None if the fingerprint of
            the data set covers them.
    """

    predictions: np.ndarray
    flags: np.ndarray
    deltas: np.ndarray | None
    seconds: float
    device: str
    content: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.predictions)

    def __getitem__(self, part: slice) -> Outcome:
        predictions = self.predictions[part]
        seconds = self.seconds * len(predictions) / len(self)
        deltas = None if self.deltas is None else self.deltas[part]
        return Outcome(predictions, self.flags[part], deltas, seconds, self.device)

    @property
    def max_delta(self) -> float | None:
        """Largest change of an image, in the unit of `deltas`; None without an attack."""
        return None if self.deltas is None else float(self.deltas.max())

    @property
    def places(self) -> str:
        """Devices that measured it, joined by ``+``."""
        return "+".join(sorted({one.partition(" ")[0] for one in self.device.split("+")}))

    @property
    def engine(self) -> str:
        """Engines that ran the model, joined by ``+``: ``compiled``, ``compiled+eager``; empty for eager."""
        found = {one.partition(" ")[2] for one in self.device.split("+")}
        return "+".join(sorted(one or "eager" for one in found)) if found != {""} else ""

    def correct(self, labels: np.ndarray) -> np.ndarray:
        """Return which images count as correct, (n,) bool, given the labels of at least these images.

        An image with a zero or non-finite gradient was not attacked, so it does not count as correct. An
        inherited image is broken.
        """
        return (self.predictions == labels[: len(self)]) & (self.flags & (ZERO_GRADIENT | NOT_FINITE) == 0)

    @property
    def correct_rounded(self) -> np.ndarray:
        """Images that are correct when rounded to multiples of 1/255, (n,) bool; False if not measured."""
        right = (self.flags & ROUNDED_RIGHT).astype(bool)
        return right & (self.flags & (ZERO_GRADIENT | NOT_FINITE) == 0)

    @property
    def agreement(self) -> float | None:
        """Percentage of images on which all members of an ensemble agree; None if unknown."""
        if not (self.flags & (AGREE | DISAGREE)).all():
            return None
        return 100 * float((self.flags & AGREE).astype(bool).mean())

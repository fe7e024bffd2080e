"""What a cell yields for consecutive samples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

ZERO_GRADIENT = 1  # flag bits of a sample

NOT_FINITE = 2

AGREE = 4  # of ensembles: all members predict the same class, or not; neither bit where that was not noted

DISAGREE = 8

INHERITED = 16

ROUNDED_RIGHT = 32  # of attacks: right or wrong with whole pixel values; neither where that was not measured

ROUNDED_WRONG = 64


@dataclass(frozen=True)
class Outcome:
    """What a cell yields for consecutive samples.

    Attributes:
        predictions: (n,) predicted labels, of any signed integer type; -1 where the logits or the images were
            not finite, or where the sample is inherited.
        flags: (n,) uint8; ZERO_GRADIENT where the attack's gradient was exactly zero, NOT_FINITE where a
            gradient, an image or the logits were not finite, INHERITED where nothing was measured because a
            cell that this one follows had broken the sample; AGREE or DISAGREE of an ensemble's members;
            ROUNDED_RIGHT or ROUNDED_WRONG where the attacked image was also classified with whole pixels.
        deltas: (n,) float32, the size of each sample's change by an attack, in [0, 1] pixels and the attack's
            norm (Linf: its largest change of a pixel); None where nothing was attacked.
        device: Where it was measured, such as ``cpu``; behind a space what ran, if not Python code: ``cpu
            compiled``. Several are joined by ``+``.
        content: As of `Dataset.content`, of the samples as they were read; None where that need not be known.
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
        seconds = self.seconds * len(predictions) / len(self)  # its share
        deltas = None if self.deltas is None else self.deltas[part]
        return Outcome(predictions, self.flags[part], deltas, seconds, self.device)

    @property
    def max_delta(self) -> float | None:
        """The largest change of a sample, in the unit of `deltas`; None where nothing was attacked."""
        return None if self.deltas is None else float(self.deltas.max())

    @property
    def places(self) -> str:
        """The devices that it was measured on, joined by ``+``."""
        return "+".join(sorted({one.partition(" ")[0] for one in self.device.split("+")}))

    @property
    def engine(self) -> str:
        """What ran the model, joined by ``+``: ``compiled``, ``compiled+eager``; empty for Python code."""
        found = {one.partition(" ")[2] for one in self.device.split("+")}
        return "+".join(sorted(one or "eager" for one in found)) if found != {""} else ""

    def correct(self, labels: np.ndarray) -> np.ndarray:
        """Which samples count as right, (n,) bool, by the labels of these samples and any that follow.

        A sample whose gradient was zero or not finite was not attacked, and so is not counted as robust; one
        that is inherited is broken.
        """
        return (self.predictions == labels[: len(self)]) & (self.flags & (ZERO_GRADIENT | NOT_FINITE) == 0)

    @property
    def correct_rounded(self) -> np.ndarray:
        """Which samples count as right with whole pixels, (n,) bool; none where that was not measured."""
        right = (self.flags & ROUNDED_RIGHT).astype(bool)
        return right & (self.flags & (ZERO_GRADIENT | NOT_FINITE) == 0)

    @property
    def agreement(self) -> float | None:
        """Percentage of the samples whose class all members of an ensemble agree on; None if not noted."""
        if not (self.flags & (AGREE | DISAGREE)).all():
            return None
        return 100 * float((self.flags & AGREE).astype(bool).mean())

"""Several networks in training side by side, a step of each at a time: in turn, or as one CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from robust_interp.training.cuda_graph import RecordedSteps
from robust_interp.training.trainer import Fit, Status

REPORT_EVERY = 0.5  # seconds between two reports within an epoch


class Group:
    """Networks in training on one device, none of which changes what becomes of another.

    Dropout on CUDA is the exception: it draws from the device's one generator.
    """

    def __init__(self, fits: Sequence[Fit]) -> None:
        self.fits = [fit for fit in fits if fit.unfinished]
        on_cuda = any(fit.loader.labels.is_cuda for fit in fits)
        self._step_all = RecordedSteps() if on_cuda else in_turn

    def drop(self, fit: Fit) -> None:
        """Train this one (`fit`) no further."""
        self.fits.remove(fit)

    def epochs(
        self, report: Callable[[Fit, Status], None], stopping: Callable[[], bool]
    ) -> Iterator[tuple[Fit, dict | None]]:
        """Train all to the end.

        Yields each network with the curve's line of an epoch, when it has ended. If it is to stop, yields
        each unfinished one with None, and no more.

        Args:
            report: Called for each at the end of each epoch, and about every half second within one.
            stopping: Asked after each step.
        """
        for fit in self.fits:
            fit.begin()
        reported = time.perf_counter()
        while self.fits:
            now = self._step()
            if now - reported >= REPORT_EVERY:  # reading the loss waits for the device: not at each step
                reported = now
                for fit in self.fits:
                    report(fit, fit.status())
            for fit in [fit for fit in self.fits if fit.at_epoch_end]:
                report(fit, fit.end_epoch())
                yield fit, fit.curve[-1]
            self.fits = [fit for fit in self.fits if fit.unfinished]
            if stopping():
                yield from ((fit, None) for fit in self.fits)
                return

    def _step(self) -> float:
        """One step of every network; when it was done."""
        started = time.perf_counter()
        self._step_all(self.fits, [fit.loader.draw() for fit in self.fits])
        for fit in self.fits:
            fit.step += 1
            if fit.at_epoch_end:
                fit.loss_sum.item()  # waits for the device, which may be many steps behind
        now = time.perf_counter()
        for fit in self.fits:
            fit.epoch_seconds += now - started
        return now


def in_turn(fits: Sequence[Fit], draws: Sequence[Tensor]) -> None:
    for fit, drawn in zip(fits, draws, strict=True):
        torch.set_rng_state(fit.rng)
        fit.train_step(*fit.loader.cut(drawn))
        fit.rng = torch.get_rng_state()

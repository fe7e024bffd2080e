"""Train several networks side by side: one step of each at a time, in turn or as one CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from robust_interp.training.cuda_graph import RecordedSteps
from robust_interp.training.trainer import Fit, Status

REPORT_EVERY = 0.5  # seconds between two reports within an epoch


class Group:
    """Networks that are trained on one device, each with the same result as if trained alone.

    Dropout on CUDA is the exception, because all networks share the device's random generator.

    Args:
        fits: The trainings; finished ones are ignored.
    """

    def __init__(self, fits: Sequence[Fit]) -> None:
        self.fits = [fit for fit in fits if fit.unfinished]
        on_cuda = any(fit.loader.labels.is_cuda for fit in fits)
        self._step_all = RecordedSteps() if on_cuda else in_turn

    def drop(self, fit: Fit) -> None:
        """Stop training `fit`."""
        self.fits.remove(fit)

    def epochs(
        self, report: Callable[[Fit, Status], None], stopping: Callable[[], bool]
    ) -> Iterator[tuple[Fit, dict | None]]:
        """Train all networks to the end.

        Yields a network and the record of its epoch whenever an epoch ends. If the training stops early,
        yields each unfinished network with None, and ends.

        Args:
            report: Called with each network and its status at the end of an epoch, and about every half
                second.
            stopping: Returns whether to stop; called after each step.
        """
        for fit in self.fits:
            fit.begin()
        reported = time.perf_counter()
        while self.fits:
            now = self._step()
            if now - reported >= REPORT_EVERY:  # reading the loss waits for the device
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
        """Do one step of every network, and return the time at its end."""
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

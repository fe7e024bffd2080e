"""Train several networks side by side: one step of each at a time, in turn or as one CUDA graph."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from robust_interp.training.cuda_graph import RecordedSteps
from robust_interp.training.trainer import Status, Trainer

REPORT_EVERY = 0.5  # seconds between two reports within an epoch


class TrainerGroup:
    """Networks that are trained on one device, on a CPU each with the same result as if trained alone.

    On CUDA rounding differs, because the algorithms of cuDNN are not deterministic, and all networks share
    the device's random generator, which dropout uses.

    Args:
        trainers: The trainings; finished ones are ignored.
    """

    def __init__(self, trainers: Sequence[Trainer]) -> None:
        self.trainers = [trainer for trainer in trainers if trainer.unfinished]
        on_cuda = any(trainer.loader.labels.is_cuda for trainer in trainers)
        self._step_all = RecordedSteps() if on_cuda else step_sequentially

    def drop(self, trainer: Trainer) -> None:
        """Stop training `trainer`."""
        self.trainers.remove(trainer)

    def epochs(
        self, report: Callable[[Trainer, Status], None], stopping: Callable[[], bool]
    ) -> Iterator[tuple[Trainer, dict | None]]:
        """Train all networks to the end.

        Yields a network and the record of its epoch whenever an epoch ends. If the training stops early,
        yields each unfinished network with None, and ends.

        Args:
            report: Called with each network and its status at the end of an epoch, and about every half
                second.
            stopping: Returns whether to stop; called after each step.
        """
        for trainer in self.trainers:
            trainer.begin()
        reported = time.perf_counter()
        while self.trainers:
            now = self._step()
            if now - reported >= REPORT_EVERY:  # reading the loss waits for the device
                reported = now
                for trainer in self.trainers:
                    report(trainer, trainer.status())
            for trainer in [trainer for trainer in self.trainers if trainer.at_epoch_end]:
                report(trainer, trainer.end_epoch())
                yield trainer, trainer.curve[-1]
            self.trainers = [trainer for trainer in self.trainers if trainer.unfinished]
            if stopping():
                yield from ((trainer, None) for trainer in self.trainers)
                return

    def _step(self) -> float:
        """Do one step of every network, and return the time at its end."""
        started = time.perf_counter()
        self._step_all(self.trainers, [trainer.loader.draw() for trainer in self.trainers])
        for trainer in self.trainers:
            trainer.step += 1
            if trainer.at_epoch_end:
                trainer.loss_sum.item()  # waits for the device, which may be many steps behind
        now = time.perf_counter()
        for trainer in self.trainers:
            trainer.epoch_seconds += now - started
        return now


def step_sequentially(trainers: Sequence[Trainer], draws: Sequence[Tensor]) -> None:
    for trainer, drawn in zip(trainers, draws, strict=True):
        torch.set_rng_state(trainer.rng)
        trainer.train_step(*trainer.loader.cut(drawn))
        trainer.rng = torch.get_rng_state()

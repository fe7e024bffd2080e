"""Run the training step of several networks as one CUDA graph with a branch per network.

Networks for CIFAR are so small that launching their kernels takes longer than running them. A graph is
launched as a whole, and its branches share the device. A graph replays the recorded kernels on the same
memory. The random draws of the batches are copied into it at each step. A new learning rate, another batch
size or another set of networks requires a new graph.
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, cuda

from robust_interp.core.texts import first_line_of
from robust_interp.training.trainer import Trainer


@dataclass(frozen=True)
class _Recorded:
    graph: cuda.CUDAGraph
    inputs: list[Tensor]


class RecordedSteps:
    """Runs one training step of each network. Call it with the networks and the draws of their next batches.

    The first step with given batch sizes runs without a graph, as a warm-up. The second is recorded; from
    then on the graph is replayed. If a network cannot be recorded, for example because it reads a value back,
    a warning is shown and all steps run without a graph.
    """

    def __init__(self) -> None:
        self._streams: dict[Trainer, cuda.Stream] = defaultdict(cuda.Stream)
        self._of: list[tuple[Trainer, float]] = []
        self._recorded: dict[tuple[int, ...], _Recorded | None] = {}  # by batch sizes; None after the warm-up
        self._records = True

    def __call__(self, trainers: Sequence[Trainer], draws: Sequence[Tensor]) -> None:
        with cuda.device(trainers[0].loader.labels.device):  # streams and graphs use the current device
            self._run(trainers, draws)

    def _run(self, trainers: Sequence[Trainer], draws: Sequence[Tensor]) -> None:
        self._forget_others([(trainer, trainer.lr) for trainer in trainers])
        pinned = [drawn.pin_memory() for drawn in draws]  # copies from pageable memory block
        step = self._step(trainers, draws)
        if step is None:
            self._branches(
                trainers, [_copied(drawn, trainer) for trainer, drawn in zip(trainers, pinned, strict=True)]
            )
            return
        for kept, drawn in zip(step.inputs, pinned, strict=True):
            kept.copy_(drawn, non_blocking=True)
        step.graph.replay()

    def _step(self, trainers: Sequence[Trainer], draws: Sequence[Tensor]) -> _Recorded | None:
        """Return the recorded step for these batch sizes; None if the step must run without a graph."""
        sizes = tuple(map(len, draws))
        if sizes not in self._recorded:
            self._recorded[sizes] = None
        elif self._recorded[sizes] is None and self._records:
            self._recorded[sizes] = self._record(trainers, draws)
        return self._recorded[sizes]

    def _forget_others(self, now: list[tuple[Trainer, float]]) -> None:
        if now != self._of:
            cuda.synchronize()  # a running graph needs its memory
            self._of, self._recorded = now, {}

    def _record(self, trainers: Sequence[Trainer], draws: Sequence[Tensor]) -> _Recorded | None:
        """Record a step without running it. If that is not possible, warn and return None."""
        graph = cuda.CUDAGraph()
        inputs = [_copied(drawn, trainer) for trainer, drawn in zip(trainers, draws, strict=True)]
        stream = cuda.Stream()  # torch's default capture stream belongs to the first device used
        try:
            # cuda.graph does not restore the stream if recording fails, so enter the stream here, too.
            with cuda.stream(stream), cuda.graph(graph, stream=stream):
                self._branches(trainers, inputs)
        except RuntimeError as error:
            self._records = False
            reason = first_line_of(error)
            warnings.warn(f"training is slower: it cannot run as a CUDA graph ({reason})", stacklevel=2)
            return None
        return _Recorded(graph, inputs)

    def _branches(self, trainers: Sequence[Trainer], inputs: Sequence[Tensor]) -> None:
        """Run the step of each network on its own stream, forked from the current stream and joined again."""
        here = cuda.current_stream()
        streams = [self._streams[trainer] for trainer in trainers]
        for trainer, given, stream in zip(trainers, inputs, streams, strict=True):
            stream.wait_stream(here)
            with cuda.stream(stream):
                trainer.train_step(*trainer.loader.cut(given))
        for stream in streams:
            here.wait_stream(stream)


def _copied(draws: Tensor, trainer: Trainer) -> Tensor:
    return draws.to(trainer.loader.labels.device, non_blocking=True)

"""The step of several networks as one CUDA graph: a single launch, in which each network is a branch.

Networks of CIFAR's size are so small that launching their kernels takes longer than running them. A graph is
launched as a whole, and its branches share the device. A graph repeats what was recorded, on the same memory:
what changes from step to step is copied into it (the batches' draws), or makes another graph necessary (the
learning rate, the size of the last batch of an epoch, which networks are left).
"""

from __future__ import annotations

import warnings
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor, cuda

from robust_interp.training.trainer import Fit


@dataclass(frozen=True)
class _Recorded:
    graph: cuda.CUDAGraph
    inputs: list[Tensor]


class RecordedSteps:
    """Called with networks and what was drawn for their next batches: one step of each.

    The first step of a kind runs as it is, which warms it up; the second is recorded, and replayed from then
    on. Where a network cannot be recorded, as one that reads a value back, all steps run as they are, with a
    warning.
    """

    def __init__(self) -> None:
        self._streams: dict[Fit, cuda.Stream] = defaultdict(cuda.Stream)
        self._of: list[tuple[Fit, float]] = []
        self._recorded: dict[tuple[int, ...], _Recorded | None] = {}  # by batch sizes; None: ran once
        self._records = True

    def __call__(self, fits: Sequence[Fit], draws: Sequence[Tensor]) -> None:
        with cuda.device(fits[0].loader.labels.device):  # streams and graphs are the current device's
            self._run(fits, draws)

    def _run(self, fits: Sequence[Fit], draws: Sequence[Tensor]) -> None:
        self._forget_others([(fit, fit.lr) for fit in fits])
        pinned = [drawn.pin_memory() for drawn in draws]  # from ordinary memory a copy waits for the device
        step = self._step(fits, draws)
        if step is None:
            self._branches(fits, [_copied(drawn, fit) for fit, drawn in zip(fits, pinned, strict=True)])
            return
        for kept, drawn in zip(step.inputs, pinned, strict=True):
            kept.copy_(drawn, non_blocking=True)
        step.graph.replay()

    def _step(self, fits: Sequence[Fit], draws: Sequence[Tensor]) -> _Recorded | None:
        """What is recorded of a step of these sizes; None where it is to run as it is."""
        sizes = tuple(map(len, draws))
        if sizes not in self._recorded:
            self._recorded[sizes] = None
        elif self._recorded[sizes] is None and self._records:
            self._recorded[sizes] = self._record(fits, draws)
        return self._recorded[sizes]

    def _forget_others(self, now: list[tuple[Fit, float]]) -> None:
        if now != self._of:
            cuda.synchronize()  # a graph that still runs is not to lose its memory
            self._of, self._recorded = now, {}

    def _record(self, fits: Sequence[Fit], draws: Sequence[Tensor]) -> _Recorded | None:
        """The step as a graph, which has not run yet; None, and a warning, if it cannot be one."""
        graph = cuda.CUDAGraph()
        inputs = [_copied(drawn, fit) for fit, drawn in zip(fits, draws, strict=True)]
        stream = cuda.Stream()  # torch's own is of the device that first recorded anything in this process
        try:
            # entered by itself too: where recording fails, cuda.graph does not leave its stream
            with cuda.stream(stream), cuda.graph(graph, stream=stream):
                self._branches(fits, inputs)
        except RuntimeError as error:
            self._records = False
            reason = str(error).strip().partition("\n")[0]
            warnings.warn(f"training is slower: it cannot run as a CUDA graph ({reason})", stacklevel=2)
            return None
        return _Recorded(graph, inputs)

    def _branches(self, fits: Sequence[Fit], inputs: Sequence[Tensor]) -> None:
        """Every network's step on a stream of its own, from here and back to here."""
        here = cuda.current_stream()
        streams = [self._streams[fit] for fit in fits]
        for fit, given, stream in zip(fits, inputs, streams, strict=True):
            stream.wait_stream(here)
            with cuda.stream(stream):
                fit.train_step(*fit.loader.cut(given))
        for stream in streams:
            here.wait_stream(stream)


def _copied(draws: Tensor, fit: Fit) -> Tensor:
    return draws.to(fit.loader.labels.device, non_blocking=True)

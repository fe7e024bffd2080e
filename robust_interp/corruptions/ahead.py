"""Generated images in blocks: from memory, from disk, from workers that make them ahead, or made here."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import NamedTuple

import numpy as np

from robust_interp.core.registry import BUILT_IN
from robust_interp.corruptions.cache import Cache
from robust_interp.corruptions.table import CORRUPTIONS, corrupt
from robust_interp.corruptions.workers import Worker, WorkerGone, made_by
from robust_interp.data import Dataset

# A block holds as many images as a batch on a CPU has, or fewer of large ones.
MOST_IMAGES, MOST_BYTES = 250, 4 * 2**20

# What is generated once is kept for the classifiers that follow: a thousand CIFAR images are 3 MB at each of
# 75 corruptions and severities, so that all of them fit. What does not is read or generated again, the same.
CACHED_BYTES = 256 * 2**20
AHEAD_BYTES = 128 * 2**20  # of what workers have made and nobody has asked for yet

TRIED_FOR, WORTH_IT = 1.0, 4.0  # seconds: made here before workers start, if so many more are left to make


class Block(NamedTuple):
    """Images of one corruption, from `start` on as far as blocks go."""

    name: str
    severity: int
    start: int


class Wanted(NamedTuple):
    """Images [start, stop) of one corruption that a run is going to ask for."""

    name: str
    severity: int
    start: int
    stop: int


class Maker:
    """The generated images of one dataset under one seed.

    Args:
        dataset: The clean images. Its rows may be asked for from another thread.
        seed: Of the generated corruptions.
        cache: Where blocks are kept beyond this process, if anywhere.
    """

    def __init__(self, dataset: Dataset, seed: int, cache: Cache | None = None) -> None:
        self.dataset, self.seed, self.cache = dataset, seed, cache
        self._recent = _Recent(CACHED_BYTES)
        self._stops: dict[Block, int] = {}  # of the blocks that a run is going to ask for
        self._workforce: _Workforce | None = None
        self._workers, self._seconds, self._made = 0, 0.0, 0

    @cached_property
    def block_size(self) -> int:
        """How many images a block has."""
        return max(1, min(MOST_IMAGES, MOST_BYTES // max(1, math.prod(self.dataset.shape))))

    def images(self, name: str, severity: int, start: int, stop: int) -> np.ndarray:
        """Samples [start, stop) under a corruption, uint8 (N, C, H, W)."""
        parts = []
        for first in range(start - start % self.block_size, stop, self.block_size):
            images = self._block(Block(name, severity, first), min(stop, first + self.block_size))
            parts.append(images[max(0, start - first) : stop - first])
        return np.concatenate(parts) if parts else np.empty((0, *self.dataset.shape), np.uint8)

    @contextmanager
    def prefetch(self, wanted: Iterable[Wanted], workers: int) -> Iterator[None]:
        """Inside, what is wanted may be made ahead by worker processes, in this order.

        They are started once it proves to take so long that it pays.

        Args:
            wanted: What is going to be asked for.
            workers: How many there may be at most.
        """
        self._workers, self._seconds, self._made = workers, 0.0, 0
        for one in wanted:
            for first in range(one.start - one.start % self.block_size, one.stop, self.block_size):
                block = Block(one.name, one.severity, first)
                stop = min(one.stop, first + self.block_size)
                self._stops[block] = max(stop, self._stops.get(block, 0))
        try:
            yield
        finally:
            if self._workforce:
                self._workforce.end()
            self._workforce = None
            self._stops.clear()

    def _block(self, block: Block, stop: int) -> np.ndarray:
        """A block's images, those up to `stop` at least."""
        images = self._recent.get(block)
        if images is not None and len(images) >= stop - block.start:
            self._stops.pop(block, None)
            return images
        stop = max(stop, self._stops.get(block, 0))
        images = self._workforce.take(block) if self._workforce else None
        if images is None or len(images) < stop - block.start:
            images = self._kept(block, stop)
        if images is None:
            images = self._make_here(block, stop)
        self._stops.pop(block, None)
        self._recent.put(block, images)
        return images

    def _kept(self, block: Block, stop: int) -> np.ndarray | None:
        found = self.cache.get(self._key(block, stop), self.dataset.shape) if self.cache else None
        return found if found is not None and len(found) >= stop - block.start else None

    def _make_here(self, block: Block, stop: int) -> np.ndarray:
        began = time.perf_counter()
        clean = self._clean(block, stop)
        images = corrupt(clean, block.name, block.severity, range(block.start, stop), self.seed)
        self._keep(block, images)
        self._seconds += time.perf_counter() - began
        self._made += len(images)
        if self._workers and not self._workforce and self._seconds > TRIED_FOR:
            self._start_workforce(after=block)
        return images

    def _start_workforce(self, after: Block) -> None:
        todo = {
            block: stop
            for block, stop in self._stops.items()
            if block != after
            and CORRUPTIONS.origins(block.name) == [BUILT_IN]  # workers know no plug-ins
            and not self._seems_kept(block, stop)
        }
        left = sum(stop - block.start for block, stop in todo.items())
        if left * self._seconds / self._made > WORTH_IT:
            self._workforce = _Workforce(todo, self._workers, self._clean, self._make_there)

    def _clean(self, block: Block, stop: int) -> np.ndarray:
        return self.dataset.rows(block.start, stop)

    def _make_there(self, worker: Worker, block: Block, clean: np.ndarray) -> np.ndarray:
        images = worker.make(clean, block.name, block.severity, block.start, self.seed)
        self._keep(block, images)
        return images

    def _seems_kept(self, block: Block, stop: int) -> bool:
        """Whether there is a file; images are not read to find out."""
        if self.cache is None or 0 in self._hashes(block, stop):
            return False
        return self.cache.has(self._key(block, stop))

    def _keep(self, block: Block, images: np.ndarray) -> None:
        if self.cache:
            self.cache.put(self._key(block, block.start + len(images)), images)

    def _hashes(self, block: Block, stop: int) -> np.ndarray:
        """Of the clean images, where a fingerprint does not stand for their content; 0 of those not read."""
        found = self.dataset.content(np.arange(block.start, stop))
        return np.empty(0, np.uint64) if found is None else found

    def _key(self, block: Block, stop: int) -> dict[str, object]:
        """All that the images of a block depend on."""
        if 0 in self._hashes(block, stop):
            self._clean(block, stop)
        hashes = self._hashes(block, stop)
        content = {"content": hashlib.sha256(hashes.tobytes()).hexdigest()} if len(hashes) else {}
        return content | {
            "dataset": self.dataset.fingerprint,
            "seed": self.seed,
            "corruption": block.name,
            "severity": block.severity,
            "start": block.start,
            "made_by": made_by(),
            **CORRUPTIONS.code(block.name),
        }


class _Workforce:
    """Workers that make blocks in order, each driven by a thread, until they are far enough ahead.

    Args:
        todo: The blocks, and where each stops.
        count: Of the workers.
        clean: The clean images of a block up to a stop; called in order, one call at a time.
        make: Has a worker make a block of its clean images.
    """

    def __init__(
        self,
        todo: dict[Block, int],
        count: int,
        clean: Callable[[Block, int], np.ndarray],
        make: Callable[[Worker, Block, np.ndarray], np.ndarray],
    ) -> None:
        self._todo, self._clean, self._make = todo, clean, make
        self._reading = threading.Lock()
        self._busy: set[Block] = set()
        self._made: dict[Block, np.ndarray] = {}
        self._changed = threading.Condition()
        self._is_over = False
        self._workers: list[Worker] = []
        self._threads = [threading.Thread(target=self._drive, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def take(self, block: Block) -> np.ndarray | None:
        """A block that a worker has made, or is making; None if none is: it is then the caller's to make."""
        with self._changed:
            self._changed.wait_for(lambda: block not in self._busy)
            self._todo.pop(block, None)
            images = self._made.pop(block, None)
            self._changed.notify_all()
        return images

    def end(self) -> None:
        """End the workers, whatever they are doing."""
        with self._changed:
            self._is_over = True
            self._changed.notify_all()
            for worker in self._workers:
                worker.end()
        for thread in self._threads:
            thread.join()

    def _drive(self) -> None:
        try:
            worker = self._hire()
        except WorkerGone:
            return
        while self._serve(worker):
            pass
        worker.end()

    def _serve(self, worker: Worker) -> bool:
        """Have the worker make the next block; False at the end, or if it cannot."""
        images, block = None, None
        try:
            with self._reading:  # files that are decoded in order come fastest
                if (found := self._next()) is None:
                    return False
                block, stop = found
                clean = self._clean(block, stop)
            images = self._make(worker, block, clean)
        except Exception:  # it is made again where it is asked for, which tells why
            return False
        finally:
            if block is not None:
                with self._changed:
                    self._busy.discard(block)
                    if images is not None:
                        self._made[block] = images
                    self._changed.notify_all()
        return True

    def _hire(self) -> Worker:
        worker = Worker()
        with self._changed:
            self._workers.append(worker)
            if self._is_over:
                worker.end()
        return worker

    def _next(self) -> tuple[Block, int] | None:
        """The next block to make and where it stops, once there is room for it; None at the end."""

        def is_ready() -> bool:
            waiting = sum(images.nbytes for images in self._made.values())
            return self._is_over or not self._todo or waiting < AHEAD_BYTES

        with self._changed:
            self._changed.wait_for(is_ready)
            if self._is_over or not self._todo:
                return None
            block = next(iter(self._todo))
            self._busy.add(block)
            return block, self._todo.pop(block)


class _Recent:
    """The arrays that were used last, as many as there is room for."""

    def __init__(self, room: int) -> None:
        self._room, self._arrays = room, OrderedDict[Block, np.ndarray]()

    def get(self, key: Block) -> np.ndarray | None:
        if key in self._arrays:
            self._arrays.move_to_end(key)
        return self._arrays.get(key)

    def put(self, key: Block, array: np.ndarray) -> None:
        self._arrays.pop(key, None)
        if array.nbytes > self._room:
            return
        self._arrays[key] = array
        while sum(kept.nbytes for kept in self._arrays.values()) > self._room:
            self._arrays.popitem(last=False)

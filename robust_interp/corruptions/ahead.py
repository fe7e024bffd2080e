"""Provide generated images in blocks.

A block comes from memory, from the cache on disk, or from a worker that made it in advance. Otherwise this
process generates it.
"""

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

# A block has as many images as a batch on a CPU, or fewer if they are large.
MOST_IMAGES, MOST_BYTES = 250, 4 * 2**20

# Blocks in memory, for the next classifiers: a thousand CIFAR images take 3 MB for each of 75 corruptions and
# severities, so all of them fit. Blocks that do not fit are read or generated again, with the same result.
CACHED_BYTES = 256 * 2**20
AHEAD_BYTES = 128 * 2**20  # limit for blocks that workers have made but that are not requested yet

TRIED_FOR, WORTH_IT = 1.0, 4.0  # seconds of work here after which workers start, and least work left


class CorruptedBlock(NamedTuple):
    """The block of images of one corruption whose first image has the id `start`."""

    name: str
    severity: int
    start: int


class Wanted(NamedTuple):
    """Images [start, stop) of one corruption that a run will request."""

    name: str
    severity: int
    start: int
    stop: int


class Maker:
    """Source of the generated images of one data set and one seed.

    Args:
        dataset: The clean images. They may be read from another thread.
        seed: Seed of the generated corruptions.
        cache: Cache on disk; None keeps blocks in memory only.
    """

    def __init__(self, dataset: Dataset, seed: int, cache: Cache | None = None) -> None:
        self.dataset, self.seed, self.cache = dataset, seed, cache
        self._recent = _Recent(CACHED_BYTES)
        self._stops: dict[CorruptedBlock, int] = {}  # the end of each block that the run will request
        self._workforce: _Workforce | None = None
        self._workers, self._seconds, self._made = 0, 0.0, 0

    @cached_property
    def block_size(self) -> int:
        """Number of images per block."""
        return max(1, min(MOST_IMAGES, MOST_BYTES // max(1, math.prod(self.dataset.shape))))

    def images(self, name: str, severity: int, start: int, stop: int) -> np.ndarray:
        """Return the images [start, stop) under a corruption, uint8 (N, C, H, W)."""
        parts = []
        for first in range(start - start % self.block_size, stop, self.block_size):
            images = self._block(CorruptedBlock(name, severity, first), min(stop, first + self.block_size))
            parts.append(images[max(0, start - first) : stop - first])
        return np.concatenate(parts) if parts else np.empty((0, *self.dataset.shape), np.uint8)

    @contextmanager
    def prefetch(self, wanted: Iterable[Wanted], workers: int) -> Iterator[None]:
        """Let workers generate images in advance while the context is active.

        The workers start only after generation has proved slow enough to need them.

        Args:
            wanted: The images that will be requested, in this order.
            workers: Maximum number of workers.
        """
        self._workers, self._seconds, self._made = workers, 0.0, 0
        for one in wanted:
            for first in range(one.start - one.start % self.block_size, one.stop, self.block_size):
                block = CorruptedBlock(one.name, one.severity, first)
                stop = min(one.stop, first + self.block_size)
                self._stops[block] = max(stop, self._stops.get(block, 0))
        try:
            yield
        finally:
            if self._workforce:
                self._workforce.end()
            self._workforce = None
            self._stops.clear()

    def _block(self, block: CorruptedBlock, stop: int) -> np.ndarray:
        """Return the images of a block, at least those up to `stop`."""
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

    def _kept(self, block: CorruptedBlock, stop: int) -> np.ndarray | None:
        cache = self._cache_of(block)
        found = cache.get(self._key(block, stop), self.dataset.shape) if cache else None
        return found if found is not None and len(found) >= stop - block.start else None

    def _make_here(self, block: CorruptedBlock, stop: int) -> np.ndarray:
        began = time.perf_counter()
        clean = self._clean(block, stop)
        images = corrupt(clean, block.name, block.severity, range(block.start, stop), self.seed)
        self._keep(block, images)
        self._seconds += time.perf_counter() - began
        self._made += len(images)
        if self._workers and not self._workforce and self._seconds > TRIED_FOR:
            self._start_workforce(after=block)
        return images

    def _start_workforce(self, after: CorruptedBlock) -> None:
        todo = {
            block: stop
            for block, stop in self._stops.items()
            if block != after
            and CORRUPTIONS.origins(block.name) == [BUILT_IN]  # workers load no plug-ins
            and not self._seems_kept(block, stop)
        }
        left = sum(stop - block.start for block, stop in todo.items())
        if left * self._seconds / self._made > WORTH_IT:
            self._workforce = _Workforce(todo, self._workers, self._clean, self._make_there)

    def _clean(self, block: CorruptedBlock, stop: int) -> np.ndarray:
        return self.dataset.rows(block.start, stop)

    def _make_there(self, worker: Worker, block: CorruptedBlock, clean: np.ndarray) -> np.ndarray:
        images = worker.make(clean, block.name, block.severity, block.start, self.seed)
        self._keep(block, images)
        return images

    def _seems_kept(self, block: CorruptedBlock, stop: int) -> bool:
        """Return whether the cache has a file for the block. This reads no images."""
        cache = self._cache_of(block)
        if cache is None or 0 in self._hashes(block, stop):
            return False
        return cache.has(self._key(block, stop))

    def _keep(self, block: CorruptedBlock, images: np.ndarray) -> None:
        if cache := self._cache_of(block):
            cache.put(self._key(block, block.start + len(images)), images)

    def _cache_of(self, block: CorruptedBlock) -> Cache | None:
        """Return the cache; None for a plug-in's corruption, which may read files that no key can name."""
        return self.cache if CORRUPTIONS.origins(block.name) == [BUILT_IN] else None

    def _hashes(self, block: CorruptedBlock, stop: int) -> np.ndarray:
        """Return a hash of each clean image of a block, (n,) uint64; 0 for images that are not read yet.

        The array is empty if the fingerprint of the data set covers the content.
        """
        found = self.dataset.content(np.arange(block.start, stop))
        return np.empty(0, np.uint64) if found is None else found

    def _key(self, block: CorruptedBlock, stop: int) -> dict[str, object]:
        """Return all that the images of a block depend on: their key in the cache."""
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
        }


class _Workforce:
    """Workers that generate blocks in order, each controlled by a thread.

    They pause while `AHEAD_BYTES` or more of finished blocks have not been taken.

    Args:
        todo: The end of each block to generate, in order.
        count: Number of workers.
        clean: Returns the clean images of a block up to an end. Called in order, one call at a time.
        make: Lets a worker generate a block from its clean images.
    """

    def __init__(
        self,
        todo: dict[CorruptedBlock, int],
        count: int,
        clean: Callable[[CorruptedBlock, int], np.ndarray],
        make: Callable[[Worker, CorruptedBlock, np.ndarray], np.ndarray],
    ) -> None:
        self._todo, self._clean, self._make = todo, clean, make
        self._reading = threading.Lock()
        self._busy: set[CorruptedBlock] = set()
        self._made: dict[CorruptedBlock, np.ndarray] = {}
        self._changed = threading.Condition()
        self._is_over = False
        self._workers: list[Worker] = []
        self._threads = [threading.Thread(target=self._drive, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def take(self, block: CorruptedBlock) -> np.ndarray | None:
        """Return a block that a worker has generated or is generating.

        None if no worker has it, or if the worker failed: the caller must then generate the block.
        """
        with self._changed:
            self._changed.wait_for(lambda: block not in self._busy)
            self._todo.pop(block, None)
            images = self._made.pop(block, None)
            self._changed.notify_all()
        return images

    def end(self) -> None:
        """End the workers, even if they are working."""
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
        """Let the worker generate the next block. Return False if there is none left, or if this failed."""
        images, block = None, None
        try:
            with self._reading:  # files are decoded fastest in order
                if (found := self._next()) is None:
                    return False
                block, stop = found
                clean = self._clean(block, stop)
            images = self._make(worker, block, clean)
        except Exception:  # the main thread generates the block again and reports the error
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

    def _next(self) -> tuple[CorruptedBlock, int] | None:
        """Wait until there is room, and return the next block and its end; None if no block is left."""

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
    """The most recently used arrays, of up to `room` bytes."""

    def __init__(self, room: int) -> None:
        self._room, self._arrays = room, OrderedDict[CorruptedBlock, np.ndarray]()

    def get(self, key: CorruptedBlock) -> np.ndarray | None:
        if key in self._arrays:
            self._arrays.move_to_end(key)
        return self._arrays.get(key)

    def put(self, key: CorruptedBlock, array: np.ndarray) -> None:
        self._arrays.pop(key, None)
        if array.nbytes > self._room:
            return
        self._arrays[key] = array
        while sum(kept.nbytes for kept in self._arrays.values()) > self._room:
            self._arrays.popitem(last=False)

"""A pool of worker processes, on this machine or in a cluster. This is the only module that uses Ray.

A worker is a process with one object, which is created once and called with one task after another. If a
worker is lost, another one repeats its task. A task fails after it has lost three workers.
"""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, TypeVar

import robust_interp
from robust_interp.core import threads
from robust_interp.core.errors import RandomModelError, UserError
from robust_interp.core.extras import install
from robust_interp.core.texts import first_line_of, reason_of

MAX_ATTEMPTS = 3  # lost workers after which a task has failed
STORE_BYTES = (
    200 * 2**20
)  # shared memory of a Ray that is started here; weights and arrays pass through it once
POLL_SECONDS = 0.5  # seconds between two checks for a signal while waiting for results
FILE_NAME = "workers.log"
PINNED_PACKAGES = ("torch", "torchattacks")  # packages that must have the same version in all workers

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Workers:
    """Number, place and resources of the workers.

    Attributes:
        count: Number of workers; None starts one per GPU (or per GPU share).
        address: Address of a running Ray, ``auto`` or ``ray://HOST:PORT``; None starts Ray on this machine.
        gpus: GPUs per worker, such as 0.5; None is the largest equal share of a GPU with which
            all workers have room.
        threads: CPU threads per worker; None is an equal share of this machine's CPUs, or 1 in a cluster.
        needs_gpu: Whether a GPU was requested, so that the workers never use CPUs instead.
    """

    count: int | None = None
    address: str | None = None
    gpus: float | None = None
    threads: int | None = None
    needs_gpu: bool = False

    @property
    def device(self) -> str:
        """The device that each worker uses, if all numbers are filled in."""
        return "cuda" if self.gpus else "cpu"

    def on(self, device: str | None) -> Workers:
        """Return these workers on the requested device: without GPUs for the CPU, and never without for CUDA.

        Args:
            device: The device as it was requested, such as ``cpu`` or ``cuda:1``; None leaves it to `gpus`.

        Raises:
            UserError: if `gpus` asks for another device.
        """
        kind = None if device is None else str(device).partition(":")[0]
        if kind == "cpu" and self.gpus:
            raise UserError(f"--device {device} uses no GPU, but --gpus-per-worker is {self.gpus:g}")
        if kind == "cuda" and self.gpus == 0:
            raise UserError(f"--device {device} needs a GPU, but --gpus-per-worker is 0")
        return replace(self, gpus=0) if kind == "cpu" else replace(self, needs_gpu=kind == "cuda")


@dataclass(eq=False)
class _Worker:
    number: int
    handle: Any
    is_open: bool = False


@dataclass(eq=False)
class _Submission(Generic[T]):
    task: T
    lost: int = 0


@dataclass(frozen=True)
class _Reply:
    """Reply of a worker: a value, or an error message in one line and its kind."""

    value: Any = None
    error: str = ""
    kind: str = ""


@dataclass(frozen=True)
class _WorkerAddress:
    """Host and process id of a worker."""

    host: str
    pid: int


class _WorkerActor:
    """The Ray actor of a worker: creates the object of the worker and calls it."""

    def handshake(self, versions: dict[str, str], folder: str, path: list[str]) -> _Reply:
        """Check versions, and set the working folder and the import path for unpickling what is sent next."""
        here = own_versions()
        if different := [name for name in versions if here.get(name) != versions[name]]:
            found, needed = (
                ", ".join(f"{name} {known.get(name)}" for name in different) for known in (here, versions)
            )
            return _Reply(error=f"{platform.node()} has {found}, not {needed}", kind="version")
        with suppress(OSError):  # another machine may not have this folder
            os.chdir(folder)
        sys.path += [place for place in path if place not in sys.path]
        warnings.simplefilter("ignore")  # the runner's notes report what matters
        return _Reply(_WorkerAddress(platform.node(), os.getpid()))

    def open(self, count: int, make: Callable, *arguments: Any) -> _Reply:
        """Create the object of the worker, and use `count` threads from now on."""
        threads.use(count)
        return _replied(lambda: self._made(count, make, arguments))

    def _made(self, count: int, make: Callable, arguments: Sequence) -> None:
        self._object = make(*arguments)
        threads.use(count)  # a torch that was imported just now takes no more than there are CPUs

    def do(self, task: Any, mailbox: Any, number: int) -> _Reply:
        """Run a task. With a mailbox, the task gets a channel for its news, sent as worker `number`."""
        if mailbox is None:
            return _replied(lambda: self._object(task))
        channel = Channel(mailbox, number)
        try:
            return _replied(lambda: self._object(task, channel))
        finally:
            channel.wait()


class _Mailbox:
    """A Ray actor that passes news from workers to the main process, and its request to stop to workers."""

    def __init__(self) -> None:
        self._news: list[tuple[int, Any]] = []
        self._is_to_stop = False

    def put(self, number: int, news: Any) -> bool:
        self._news.append((number, news))
        return self._is_to_stop

    def take(self) -> list[tuple[int, Any]]:
        found, self._news = self._news, []
        return found

    def stop(self) -> None:
        self._is_to_stop = True


class Channel:
    """Sends news from a task in a worker to the main process.

    Attributes:
        is_to_stop: Whether the main process asks the task to stop and to save its state.
    """

    def __init__(self, mailbox: Any, number: int) -> None:
        self._ray, self._mailbox, self._number = _imported(), mailbox, number
        self._sent: list[Any] = []
        self.is_to_stop = False

    def __call__(self, news: Any) -> None:
        """Send news, made of JSON values, without waiting until they arrive."""
        self._sent.append(self._mailbox.put.remote(self._number, news))
        ready, self._sent = self._ray.wait(self._sent, num_returns=len(self._sent), timeout=0)
        self._hear(ready)

    def wait(self) -> None:
        """Wait until all news have arrived."""
        self._hear(self._sent)

    def _hear(self, answers: list[Any]) -> None:
        with suppress(self._ray.exceptions.RayError):  # a task does not need the mailbox
            self.is_to_stop |= any(self._ray.get(answers))


def _replied(call: Callable[[], Any]) -> _Reply:
    try:
        return _Reply(call())
    except RandomModelError as error:
        return _Reply(error=str(error), kind="random")
    except UserError as error:
        return _Reply(error=str(error), kind="user")


def own_versions() -> dict[str, str]:
    """Return the versions that must be the same in every worker."""
    found = {"robust_interp": robust_interp.__version__, "python": platform.python_version()}
    return found | {name: importlib.metadata.version(name) for name in PINNED_PACKAGES}


@contextmanager
def cluster(workers: Workers) -> Iterator[Workers]:
    """Connect to Ray or start it, and stop it at the end of the context.

    A Ray that the calling program has already initialised is used and left running.

    Args:
        workers: The requested workers.

    Yields:
        The same workers, with all numbers filled in.

    Raises:
        UserError: if Ray is not installed or cannot be reached, or has not enough CPUs or GPUs.
    """
    ray = _imported()
    is_ours = not ray.is_initialized()
    if is_ours:
        with _own_sigterm():
            _connect(ray, workers)
    try:
        yield _filled(ray, workers)
    finally:
        if is_ours:
            ray.shutdown()


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Have this process's own handler of SIGTERM again afterwards: Ray's ends it at once, by abort."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


def _imported() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    os.environ.setdefault(
        "RAY_raylet_start_wait_time_s", "180"
    )  # a busy machine needs longer than Ray allows
    try:
        import ray
    except ImportError as error:
        raise UserError(f"workers need Ray: {install('ray')}") from error
    return ray


def _connect(ray: Any, workers: Workers) -> None:
    quiet = {"log_to_driver": False, "logging_level": "ERROR"}
    try:
        if workers.address:
            ray.init(workers.address, **quiet)
            return
        ray.init(
            "local",
            num_cpus=workers.count,
            include_dashboard=False,
            object_store_memory=STORE_BYTES,
            **quiet,
        )
    except Exception as error:  # Ray raises a bare one if a machine is too busy for it to start in time
        ray.shutdown()
        reason = first_line_of(error)
        where = f"to Ray at {workers.address}" if workers.address else "to a Ray on this machine"
        raise UserError(f"cannot connect {where}: {reason}") from error


def _filled(ray: Any, workers: Workers) -> Workers:
    has = ray.cluster_resources()
    gpus, cpus, count = has.get("GPU", 0.0), int(has.get("CPU", 0)), workers.count
    share = workers.gpus
    if workers.needs_gpu and not gpus:
        raise UserError("--device cuda needs a GPU, and there is none in the cluster")
    if count is None:
        if share == 0:
            raise UserError("workers on the CPU cannot be counted by GPUs: say how many with --workers")
        if not gpus:
            raise UserError("there is no GPU in the cluster to count workers by: say how many with --workers")
        share = share or 1.0
        count = int(gpus / share)
        if not count:
            raise UserError(f"--gpus-per-worker {share:g} needs more GPUs than the cluster's {gpus:g}")
    if share is None:
        share = 1 / math.ceil(count / gpus) if gpus else 0.0  # a worker's share is of one GPU
    number = workers.threads or (1 if workers.address else max(1, threads.available_cpus() // count))
    at_least = count * number if workers.address else count
    if at_least > cpus or count * share > gpus + 1e-6:
        needed = f"{at_least} CPUs" + (f" and {count * share:g} GPUs" if share else "")
        raise UserError(f"{count} workers need {needed}; the cluster has {cpus} and {gpus:g}")
    return replace(workers, count=count, gpus=share, threads=number)


class WorkerPool(Generic[T, R]):
    """A pool of workers, each of which executes one task at a time.

    Args:
        workers: The workers, from `cluster`.
        make: A class or function at the top level of a module. It is called once in each worker, and returns
            the object that is called with the tasks.
        arguments: Arguments of `make`, which are sent once to each machine.
        name: Returns the name of a task.
        log: Called with a line of text for each worker and each task.
        news: Called with a task and what it reports while it runs. If given, the object is called with the
            task and a `Channel`.

    Raises:
        UserError: if the arguments cannot be sent to another process.
    """

    def __init__(
        self,
        workers: Workers,
        make: Callable[..., Callable[..., R]],
        arguments: Sequence,
        name: Callable[[T], str] = str,
        log: Callable[[str], None] = lambda line: None,
        news: Callable[[T, Any], None] | None = None,
    ) -> None:
        self._ray, self._workers, self._make, self._name, self._log = _imported(), workers, make, name, log
        self._sent = [self._put(value) for value in arguments]
        self._todo: deque[_Submission[T]] = deque()
        self._pending: dict[Any, tuple[_Worker, _Submission[T] | None]] = {}
        self._members: set[_Worker] = set()
        self._idle: list[_Worker] = []
        self._begun = self._failed = 0
        self._news = news
        self._mailbox: Any = None

    def __enter__(self) -> WorkerPool[T, R]:
        if self._news:
            self._mailbox = self._ray.remote(_Mailbox).options(num_cpus=0).remote()
        for _ in range(self._workers.count or 0):
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in list(self._members):
            self._drop(worker)
        if self._mailbox:
            self._end(self._mailbox)

    @property
    def alive(self) -> tuple[int, int]:
        """Number of workers that are ready, and number requested."""
        return sum(worker.is_open for worker in self._members), self._workers.count or 0

    @property
    def has_capacity(self) -> bool:
        """Whether there are fewer tasks than workers, including workers that are starting."""
        return self._at_hand < len(self._members)

    @property
    def is_busy(self) -> bool:
        """Whether a task was submitted and not returned yet."""
        return self._at_hand > 0

    @property
    def _at_hand(self) -> int:
        return len(self._todo) + sum(given is not None for _, given in self._pending.values())

    def submit(self, task: T) -> None:
        """Submit a task."""
        self._todo.append(_Submission(task))
        self._assign()

    def wait(self, count: int = 1) -> None:
        """Wait until `count` workers are ready.

        Raises:
            UserError: if no worker can be used.
        """
        while self.alive[0] < count:
            self._look()

    def next_result(self) -> tuple[T, R | str]:
        """Wait for a task to finish.

        Returns:
            The task and its result, or a text with the reason why it failed.

        Raises:
            UserError: if the task raised one in a worker, or no worker can be used.
        """
        while True:
            self._assign()
            if done := self._look():
                return done

    def stop(self, seconds: float) -> None:
        """Start no more tasks, ask the running ones to stop, and wait for them for at most `seconds`."""
        self._todo.clear()
        until = time.monotonic() + seconds
        with suppress(self._ray.exceptions.RayError, UserError):
            if self._mailbox:
                self._ray.get(self._mailbox.stop.remote(), timeout=seconds)
            while self.is_busy and time.monotonic() < until:
                self._look()
                self._todo.clear()  # a task whose worker was lost is not repeated

    def _look(self) -> tuple[T, R | str] | None:
        """Wait at most POLL_SECONDS seconds for a reply; return a finished task, if there is one."""
        ready, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=POLL_SECONDS)
        self._hear()
        for reference in ready:
            worker, given = self._pending.pop(reference)
            found = self._arrived(reference, worker, given)
            if given and found is not None:
                return given.task, found
        return None

    def _hear(self) -> None:
        """Pass on the news of running tasks. All news of a task arrive before its result."""
        if not self._mailbox or not self._news:
            return
        try:
            told = self._ray.get(self._mailbox.take.remote())
        except self._ray.exceptions.RayError as error:
            self._mailbox = None
            self._log(f"no more is told of how far tasks are: {first_line_of(error)}")
            return
        at_hand = {worker.number: given for worker, given in self._pending.values() if given}
        for number, news in told:
            if given := at_hand.get(number):
                self._news(given.task, news)

    def _assign(self) -> None:
        while self._todo and self._idle:
            worker, given = self._idle.pop(), self._todo.popleft()
            sent = worker.handle.do.remote(given.task, self._mailbox, worker.number)
            self._pending[sent] = worker, given

    def _arrived(self, reference: Any, worker: _Worker, given: _Submission[T] | None) -> R | str | None:
        """Return the result of a task; None if the task is repeated, or for a reply of a starting worker."""
        try:
            answer: _Reply = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, self._ray.exceptions.RaySystemError):  # unpickling failed there
                reason = first_line_of(error.cause).removeprefix("System error: ")
                raise UserError(f"a worker cannot read what it was sent: {reason}") from error
            raise error.cause or error from None
        except self._ray.exceptions.RayError as error:
            return self._lose(worker, given, reason_of(error))
        if answer.kind == "version":
            self._refuse(worker, answer.error)
            return None
        if answer.error:
            raise (RandomModelError if answer.kind == "random" else UserError)(answer.error)
        if isinstance(answer.value, _WorkerAddress):
            self._log(f"worker {worker.number} is process {answer.value.pid} on {answer.value.host}")
            return None
        if given is None:
            worker.is_open, self._failed = True, 0
        else:
            self._log(f"worker {worker.number}: {self._name(given.task)}")
        self._idle.append(worker)
        return answer.value

    def _drop(self, worker: _Worker) -> None:
        self._members.discard(worker)
        self._pending = {ref: one for ref, one in self._pending.items() if one[0] is not worker}
        self._end(worker.handle)

    def _end(self, handle: Any) -> None:
        with suppress(Exception):  # the worker or the cluster has ended
            self._ray.kill(handle)

    def _refuse(self, worker: _Worker, why: str) -> None:
        self._drop(worker)
        self._log(f"worker {worker.number} is refused: {why}")
        if not self._members:
            raise UserError(f"no worker can be used: {why}")

    def _lose(self, worker: _Worker, given: _Submission[T] | None, why: str) -> str | None:
        self._drop(worker)
        self._log(f"worker {worker.number} was lost: {why}")
        self._failed += given is None
        if self._failed >= MAX_ATTEMPTS * (self._workers.count or 1):
            raise UserError(f"workers are lost while they start: {why}")
        self._start()
        if given is None:
            return None
        given.lost += 1
        if given.lost >= MAX_ATTEMPTS:
            lost = f"{MAX_ATTEMPTS} workers were lost in it, the last one because: {why}"
            return f"{self._name(given.task)}: {lost}"
        self._todo.appendleft(given)
        return None

    def _start(self) -> None:
        self._begun += 1
        options = {
            "num_cpus": (self._workers.threads or 1) if self._workers.address else 1,
            "num_gpus": self._workers.gpus or 0,
            "max_restarts": 0,
            "scheduling_strategy": "SPREAD",
        }
        handle = self._ray.remote(_WorkerActor).options(**options).remote()
        worker = _Worker(self._begun, handle)
        count = self._workers.threads or 1
        greeted = handle.handshake.remote(own_versions(), os.getcwd(), sys.path)
        opened = handle.open.remote(count, self._make, *self._sent)
        self._members.add(worker)
        self._pending |= {greeted: (worker, None), opened: (worker, None)}

    def _put(self, value: Any) -> Any:
        try:
            return self._ray.put(value)
        except Exception as error:  # pickling an object may raise anything
            reason = first_line_of(error)
            raise UserError(f"cannot be sent to another process: {reason}") from error


def log_in(folder: Path | None) -> Callable[[str], None]:
    """Return a function that appends a line with the time to the log in a folder; None writes no log.

    A line that cannot be written, because the disk is full, is lost: it is worth less than the results.
    """

    def log(line: str) -> None:
        if folder:
            with suppress(OSError), (folder / FILE_NAME).open("a", encoding="utf-8") as file:
                file.write(f"{datetime.now(UTC).isoformat(timespec='seconds')} {line}\n")

    return log

"""A pool of worker processes, on this machine or in a cluster. This is the only module that uses Ray.

A worker is a process with one object, which is created once and called with one task after another. If a
worker is lost, another one repeats its task. A task fails after it has lost three workers.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import robust_interp
from robust_interp.core import threads
from robust_interp.core.errors import RandomModelError, UserError
from robust_interp.core.texts import first_line_of

TRIES = 3  # lost workers after which a task has failed
STORE_BYTES = (
    200 * 2**20
)  # shared memory of a Ray that is started here; weights and arrays pass through it once
LOOK = 0.5  # seconds between two checks for a signal while waiting for results
ALIKE = ("torch", "torchattacks")  # packages that must have the same version in all workers

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True)
class Workers:
    """Number, place and resources of the workers.

    Attributes:
        count: Number of workers; None starts one per GPU (or per GPU share).
        address: Address of a running Ray, ``auto`` or ``ray://HOST:PORT``; None starts Ray on this machine.
        gpus: GPUs per worker, such as 0.5; None is an equal share of all GPUs, at most 1.
        threads: CPU threads per worker; None is an equal share of this machine's CPUs, or 1 in a cluster.
    """

    count: int | None = None
    address: str | None = None
    gpus: float | None = None
    threads: int | None = None


@dataclass(eq=False)
class _Worker:
    number: int
    handle: Any
    is_open: bool = False


@dataclass(eq=False)
class _Given(Generic[T]):
    task: T
    lost: int = 0


@dataclass(frozen=True)
class _Answer:
    """Reply of a worker: a value, or an error message in one line and its kind."""

    value: Any = None
    error: str = ""
    kind: str = ""


@dataclass(frozen=True)
class _Place:
    """Host and process id of a worker."""

    host: str
    pid: int


class _Post:
    """The Ray actor of a worker: creates the object of the worker and calls it."""

    def greet(self, versions: dict[str, str], folder: str, path: list[str]) -> _Answer:
        """Check versions, and set the working folder and the import path for unpickling what is sent next."""
        here = own_versions()
        if different := [name for name in versions if here.get(name) != versions[name]]:
            found, needed = (
                ", ".join(f"{name} {known.get(name)}" for name in different) for known in (here, versions)
            )
            return _Answer(error=f"{platform.node()} has {found}, not {needed}", kind="version")
        with suppress(OSError):  # another machine may not have this folder
            os.chdir(folder)
        sys.path += [place for place in path if place not in sys.path]
        warnings.simplefilter("ignore")  # the runner's notes report what matters
        return _Answer(_Place(platform.node(), os.getpid()))

    def open(self, count: int, make: Callable, *arguments: Any) -> _Answer:
        """Create the object of the worker, and use `count` threads from now on."""
        self._threads = threads.used(count)
        self._threads.__enter__()
        return _answered(lambda: self._made(make, arguments))

    def _made(self, make: Callable, arguments: Sequence) -> None:
        self._object = make(*arguments)

    def do(self, task: Any) -> _Answer:
        return _answered(lambda: self._object(task))


def _answered(call: Callable[[], Any]) -> _Answer:
    try:
        return _Answer(call())
    except RandomModelError as error:
        return _Answer(error=str(error), kind="random")
    except UserError as error:
        return _Answer(error=str(error), kind="user")


def own_versions() -> dict[str, str]:
    """Return the versions that must be the same in every worker."""
    found = {"robust_interp": robust_interp.__version__, "python": platform.python_version()}
    return found | {name: importlib.metadata.version(name) for name in ALIKE}


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
        _connect(ray, workers)
    try:
        yield _filled(ray, workers)
    finally:
        if is_ours:
            ray.shutdown()


def _imported() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise UserError("workers need Ray: pip install 'robust-interp[ray]'") from error
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
    except (ConnectionError, RuntimeError, ValueError, OSError, ImportError) as error:
        reason = first_line_of(error)
        where = f"to Ray at {workers.address}" if workers.address else "to a Ray on this machine"
        raise UserError(f"cannot connect {where}: {reason}") from error


def _filled(ray: Any, workers: Workers) -> Workers:
    has = ray.cluster_resources()
    gpus, cpus, count = has.get("GPU", 0.0), int(has.get("CPU", 0)), workers.count
    share = workers.gpus
    if count is None:
        if not gpus or share == 0:
            raise UserError("there is no GPU in the cluster to count workers by: say how many with --workers")
        share = share or 1.0
        count = int(gpus / share)
    if share is None:
        share = min(1.0, gpus / count)
    number = workers.threads or (1 if workers.address else max(1, threads.available_cpus() // count))
    if count > cpus or count * share > gpus + 1e-6:
        needed = f"{count} CPUs" + (f" and {count * share:g} GPUs" if share else "")
        raise UserError(f"{count} workers need {needed}; the cluster has {cpus} and {gpus:g}")
    return Workers(count, workers.address, share, number)


class Crew(Generic[T, R]):
    """A pool of workers, each of which executes one task at a time.

    Args:
        workers: The workers, from `cluster`.
        make: A class or function at the top level of a module. It is called once in each worker, and returns
            the object that is called with the tasks.
        arguments: Arguments of `make`, which are sent once to each machine.
        name: Returns the name of a task.
        log: Called with a line of text for each worker and each task.

    Raises:
        UserError: if the arguments cannot be sent to another process.
    """

    def __init__(
        self,
        workers: Workers,
        make: Callable[..., Callable[[T], R]],
        arguments: Sequence,
        name: Callable[[T], str] = str,
        log: Callable[[str], None] = lambda line: None,
    ) -> None:
        self._ray, self._workers, self._make, self._name, self._log = _imported(), workers, make, name, log
        self._sent = [self._put(value) for value in arguments]
        self._todo: deque[_Given[T]] = deque()
        self._pending: dict[Any, tuple[_Worker, _Given[T] | None]] = {}
        self._crew: set[_Worker] = set()
        self._idle: list[_Worker] = []
        self._begun = self._failed = 0

    def __enter__(self) -> Crew[T, R]:
        for _ in range(self._workers.count or 0):
            self._start()
        return self

    def __exit__(self, *_: object) -> None:
        for worker in list(self._crew):
            self._drop(worker)

    @property
    def alive(self) -> tuple[int, int]:
        """Number of workers that are ready, and number requested."""
        return sum(worker.is_open for worker in self._crew), self._workers.count or 0

    @property
    def has_room(self) -> bool:
        """Whether there are fewer tasks than workers, including workers that are starting."""
        return self._at_hand < len(self._crew)

    @property
    def is_busy(self) -> bool:
        """Whether a task was submitted and not returned yet."""
        return self._at_hand > 0

    @property
    def _at_hand(self) -> int:
        return len(self._todo) + sum(given is not None for _, given in self._pending.values())

    def give(self, task: T) -> None:
        """Submit a task."""
        self._todo.append(_Given(task))
        self._assign()

    def wait(self, count: int = 1) -> None:
        """Wait until `count` workers are ready.

        Raises:
            UserError: if no worker can be used.
        """
        while self.alive[0] < count:
            self._look()

    def take(self) -> tuple[T, R | str]:
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

    def _look(self) -> tuple[T, R | str] | None:
        """Wait at most LOOK seconds for a reply; return a finished task, if there is one."""
        ready, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=LOOK)
        for reference in ready:
            worker, given = self._pending.pop(reference)
            found = self._arrived(reference, worker, given)
            if given and found is not None:
                return given.task, found
        return None

    def _assign(self) -> None:
        while self._todo and self._idle:
            worker, given = self._idle.pop(), self._todo.popleft()
            self._pending[worker.handle.do.remote(given.task)] = worker, given

    def _arrived(self, reference: Any, worker: _Worker, given: _Given[T] | None) -> R | str | None:
        """Return the result of a task; None if the task is repeated, or for a reply of a starting worker."""
        try:
            answer: _Answer = self._ray.get(reference)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, self._ray.exceptions.RaySystemError):  # unpickling failed there
                reason = next(iter(str(error.cause).splitlines())).removeprefix("System error: ")
                raise UserError(f"a worker cannot read what it was sent: {reason}") from error
            raise error.cause or error from None
        except self._ray.exceptions.RayError as error:
            return self._lose(worker, given, " ".join(str(error).split()))
        if answer.kind == "version":
            self._refuse(worker, answer.error)
            return None
        if answer.error:
            raise (RandomModelError if answer.kind == "random" else UserError)(answer.error)
        if isinstance(answer.value, _Place):
            self._log(f"worker {worker.number} is process {answer.value.pid} on {answer.value.host}")
            return None
        if given is None:
            worker.is_open, self._failed = True, 0
        else:
            self._log(f"worker {worker.number}: {self._name(given.task)}")
        self._idle.append(worker)
        return answer.value

    def _drop(self, worker: _Worker) -> None:
        self._crew.discard(worker)
        self._pending = {ref: one for ref, one in self._pending.items() if one[0] is not worker}
        with suppress(Exception):  # the worker or the cluster has ended
            self._ray.kill(worker.handle)

    def _refuse(self, worker: _Worker, why: str) -> None:
        self._drop(worker)
        self._log(f"worker {worker.number} is refused: {why}")
        if not self._crew:
            raise UserError(f"no worker can be used: {why}")

    def _lose(self, worker: _Worker, given: _Given[T] | None, why: str) -> str | None:
        self._drop(worker)
        self._log(f"worker {worker.number} was lost: {why}")
        self._failed += given is None
        if self._failed >= TRIES * (self._workers.count or 1):
            raise UserError(f"workers are lost while they start: {why}")
        self._start()
        if given is None:
            return None
        given.lost += 1
        if given.lost >= TRIES:
            return f"{self._name(given.task)}: {TRIES} workers were lost in it, the last one because: {why}"
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
        handle = self._ray.remote(_Post).options(**options).remote()
        worker = _Worker(self._begun, handle)
        count = self._workers.threads or 1
        greeted = handle.greet.remote(own_versions(), os.getcwd(), sys.path)
        opened = handle.open.remote(count, self._make, *self._sent)
        self._crew.add(worker)
        self._pending |= {greeted: (worker, None), opened: (worker, None)}

    def _put(self, value: Any) -> Any:
        try:
            return self._ray.put(value)
        except Exception as error:  # pickling an object may raise anything
            reason = first_line_of(error)
            raise UserError(f"cannot be sent to another process: {reason}") from error

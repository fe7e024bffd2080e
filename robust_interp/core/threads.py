"""Number of CPU threads, and their waiting policy.

By default a waiting OpenMP thread spins. On a busy machine it then blocks the core that the thread it waits
for needs, and two threads can take five times as long as one. So the command asks for passive waiting, counts
only the CPUs that this process may use, and measures which number of threads is fastest.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from robust_interp.core.errors import UserError
from robust_interp.core.numeric import whole_number

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")  # the user's choice if one of them is set
COUNTING = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")  # likewise for the number of threads
ROUNDS = 3  # trials of each number of threads, interleaved since the load of the machine changes
AT_LEAST, AT_MOST = 0.05, 4.0  # seconds: shortest trial, much longer than a time slice; limit for all trials
WORTH_IT = 0.9  # more threads are used if they take at most this share of the time


@dataclass(frozen=True)
class Threads:
    """The number of threads of a run, with the reason.

    Attributes:
        count: Number of threads, at least 1.
        cpus: Number of CPUs that this process may use.
        why: Reason in a few words, for the header of the run.
    """

    count: int
    cpus: int
    why: str

    def __str__(self) -> str:
        threads = f"{self.count} thread{'s' * (self.count > 1)}"
        return f"{threads} of {self.cpus} CPU{'s' * (self.cpus > 1)} ({self.why})"


def wait_passively(environ: MutableMapping[str, str] = os.environ) -> None:
    """Ask OpenMP for threads that sleep while they wait, unless the user has set a waiting policy.

    Must be called before torch is imported.

    Args:
        environ: Environment variables, which are changed; by default those of this process.
    """
    if not any(name in environ for name in WAITING):
        environ["OMP_WAIT_POLICY"] = "PASSIVE"


def available_cpus(environ: Mapping[str, str] = os.environ, root: Path = Path("/")) -> int:
    """Return the number of CPUs for this process, by affinity, cgroup quota and SLURM; at least 1.

    Args:
        environ: Environment variables, with SLURM's allocation.
        root: Parent folder of /proc and /sys.
    """
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limits = [affinity, *_quotas(root)]
    if environ.get("SLURM_CPUS_PER_TASK", "").isdecimal():
        limits.append(int(environ["SLURM_CPUS_PER_TASK"]))
    return max(1, int(min(limits)))


def spare_cpus(busy: int) -> int:
    """Return the number of CPUs for background work while `busy` threads are running.

    These are the CPUs that the threads leave free, but at least one of several CPUs: the work is needed in
    any case, and the threads would have to wait for it otherwise. With a single CPU it is 0.
    """
    cpus = available_cpus()
    return max(1, cpus - busy) if cpus > 1 else 0


def _quotas(root: Path) -> Iterator[float]:
    """Yield the CPU quotas of this process's cgroups and their parents, as numbers of CPUs."""
    for line in _lines(root / "proc/self/cgroup"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers == "":
            yield from _upwards(root / "sys/fs/cgroup", path, _quota_v2)
        elif "cpu" in controllers.split(","):
            yield from _upwards(root / "sys/fs/cgroup" / controllers, path, _quota_v1)
            yield from _upwards(root / "sys/fs/cgroup/cpu", path, _quota_v1)


def _upwards(mount: Path, path: str, quota: Callable[[Path], float | None]) -> Iterator[float]:
    own = Path(path.lstrip("/"))
    for folder in [own, *own.parents]:
        if (found := quota(mount / folder)) is not None:
            yield found


def _quota_v2(folder: Path) -> float | None:
    words = " ".join(_lines(folder / "cpu.max")).split()
    return _share(*words) if len(words) == 2 else None


def _quota_v1(folder: Path) -> float | None:
    quota, period = (_lines(folder / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
    return _share(quota[0], period[0]) if quota and period else None


def _share(quota: str, period: str) -> float | None:
    """Return quota / period; None for no limit ('max' or -1)."""
    return int(quota) / int(period) if quota.isdecimal() and period.isdecimal() and int(period) else None


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return []


def choose(asked: int | None, step: Callable[[], object] | None) -> Threads:
    """Choose the number of threads for work that repeats `step`.

    Args:
        asked: Number that the user set, which is used as it is; None chooses by measuring.
        step: One step of the work; None if it does not run on the CPU.

    Raises:
        UserError: if `asked` is not a valid number of threads.
    """
    import torch

    cpus = available_cpus()
    if asked is not None:
        return Threads(checked(asked), cpus, "as requested")
    if given := next((name for name in COUNTING if os.environ.get(name)), None):
        return Threads(torch.get_num_threads(), cpus, f"by {given}")
    most = min(torch.get_num_threads(), cpus)
    if step is None or most == 1:
        return Threads(most, cpus, "all available")
    return Threads(fastest(step, most), cpus, "fastest in a short test")


def checked(count: object) -> int:
    """Return a number of threads.

    Raises:
        UserError: if it is not a whole number from 1 to 4096.
    """
    number = whole_number(count)
    if number is None or not 1 <= number <= 4096:
        raise UserError(f"threads must be a whole number from 1 to 4096, not {count!r}")
    return number


def fastest(step: Callable[[], object], most: int) -> int:
    """Time `step` with 1, 2, 4, ..., `most` threads, and return the best number of threads.

    A larger number must save at least 10 % of the time of the best smaller one, see WORTH_IT.
    """
    counts = sorted({*(2**power for power in range(most.bit_length())), most})
    times: dict[int, list[float]] = {count: [] for count in counts}
    step()  # warm-up
    started = time.perf_counter()
    for _ in range(ROUNDS):
        for count in counts:
            with used(count):
                times[count].append(_seconds(step))
        if time.perf_counter() - started > AT_MOST:
            break
    chosen = counts[0]
    for count in counts[1:]:
        if statistics.median(times[count]) <= WORTH_IT * statistics.median(times[chosen]):
            chosen = count
    return chosen


def _seconds(step: Callable[[], object]) -> float:
    started, steps = time.perf_counter(), 0
    while (passed := time.perf_counter() - started) < AT_LEAST:
        step()
        steps += 1
    return passed / steps


def use(count: int) -> None:
    """Use `count` threads per operation in this process, also if torch is imported only later."""
    os.environ["OMP_NUM_THREADS"] = str(count)
    if "torch" in sys.modules:
        import torch

        torch.set_num_threads(count)


@contextmanager
def used(count: int) -> Iterator[None]:
    """Context in which torch uses `count` threads per operation."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)

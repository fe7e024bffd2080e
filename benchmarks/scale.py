"""How far it carries: planning, the driver's work for a chunk, tables of many predictions, and workers.

    python benchmarks/scale.py            # all parts; minutes
    python benchmarks/scale.py plan driver tables workers digits startup

No model is measured but in `digits`; in `startup` models are only loaded. Predictions are made up, and tasks
of `workers` sleep. Each part prints lines of the table in docs/scale.md.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.torch import load_file, save_file

from robust_interp import zoo
from robust_interp.benchmark.pending import missing, prerequisites
from robust_interp.benchmark.scheduler import Job, Scheduler
from robust_interp.store import Outcome, Store
from robust_interp.store.cells import CLEAN, Cell, ModelCard, Perturbation, Plan

SAMPLES = 10_000
BATCH = 250
WORKERS = (1, 2, 4, 8)
NAP = 1.0  # seconds that a task of `workers` sleeps
TASKS_OF_EACH = 8
SEEDS = 50  # of each of the four bundled digits networks, in `startup`


def show(what: str, value: str) -> None:
    print(f"| {what} | {value} |", flush=True)


class Took:
    """Seconds since the start, and those that the CPU was used for: on a busy machine the first are more."""

    def __init__(self) -> None:
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def __call__(self) -> tuple[float, float]:
        return time.perf_counter() - self._wall, time.process_time() - self._cpu


def plan_of(models: int, perturbations: int, n: int) -> Plan:
    cells = []
    for model in range(models):
        card = ModelCard(f"net{model}", {"weights": str(model)}, train_seed=0, params_m=1.0)
        for number in range(perturbations):
            attack = Perturbation(
                "attack", "pgd", f"pgd_{number}", {"eps": number / 255, "steps": 10}, seed=0
            )
            cells.append(Cell(card, "cifar10", "f", attack if number else CLEAN, {"torch": "2"}))
    return Plan("cifar10", n, "final", tuple(cells))


def made_up(rng: np.random.Generator, n: int) -> Outcome:
    predictions = rng.integers(0, 10, n).astype(np.int16)
    return Outcome(predictions, np.zeros(n, np.uint8), np.full(n, 0.01, np.float32), 1.0, "cpu")


def scheduler_of(plan: Plan, store: Store, labels: np.ndarray) -> Scheduler:
    jobs = [
        Job(plan, cell, plan.n, cell.classifier.model, prerequisites=prerequisites(plan, cell))
        for cell in missing(plan, store)
    ]
    return Scheduler(jobs, store, labels, lambda _, start, n, unbroken: min(n, start + BATCH))


def planning() -> None:
    """10,000 cells of 10,000 samples, from the plan to the first task, on an empty store."""
    labels = np.zeros(SAMPLES, np.int64)
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder)) as store:
        took = Took()
        plan = plan_of(500, 20, SAMPLES)
        scheduler_of(plan, store, labels).next()
        wall, cpu = took()
    what = f"planning {len(plan.cells):,} cells of {SAMPLES:,} samples, to the first task"
    show(what, f"{wall:.1f} s ({cpu:.1f} s)")


def driver() -> None:
    """What the one process that writes does for each chunk: take it, store it, note it as finished."""
    labels, rng = np.zeros(SAMPLES, np.int64), np.random.default_rng(0)
    plan = plan_of(5, 10, SAMPLES)
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder)) as store:
        scheduler, chunk, count = scheduler_of(plan, store, labels), made_up(rng, BATCH), 0
        took = Took()
        while task := scheduler.next():
            store.append(task.cell.key, task.start, chunk)
            scheduler.finish(task)
            count += 1
        wall, cpu = (1000 * seconds / count for seconds in took())
    show(f"driver, for each of {count:,} chunks of {BATCH} samples", f"{wall:.2f} ms ({cpu:.2f} ms)")


def tables() -> None:
    """The leaderboard of stored predictions, in a process of its own."""
    for models, perturbations in ((5, 20), (50, 20)):
        with tempfile.TemporaryDirectory() as folder:
            predictions = _filled(Path(folder), models, perturbations)
            code = (
                "import sys, time; from pathlib import Path; from robust_interp.store import Store\n"
                "from robust_interp.results.scores import scores\n"
                "from robust_interp.results.leaderboard import entries_frame\n"
                "started = time.perf_counter(), time.process_time()\n"
                "with Store(Path(sys.argv[1]), read_only=True) as store:\n"
                "    entries_frame(scores(store.plans()[0], store))\n"
                "print(time.perf_counter() - started[0], time.process_time() - started[1])"
            )
            run = [sys.executable, "-c", code, folder]
            done = subprocess.run(run, capture_output=True, text=True, check=True)
            wall, cpu = map(float, done.stdout.split())
            show(f"leaderboard of {predictions:,} stored predictions", f"{wall:.2f} s ({cpu:.2f} s)")


def _filled(folder: Path, models: int, perturbations: int) -> int:
    plan, rng = plan_of(models, perturbations, SAMPLES), np.random.default_rng(0)
    with Store(folder) as store:
        store.put_labels("f", rng.integers(0, 10, SAMPLES))
        for cell in plan.cells:
            store.append(cell.key, 0, made_up(rng, SAMPLES))
        store.put_plan(plan)
    return len(plan.cells) * SAMPLES


class Sleeping:
    """A worker whose tasks cost no CPU time."""

    def __call__(self, task: int) -> int:
        time.sleep(NAP)
        return task


def workers() -> None:
    """Tasks that sleep, by workers on nodes that Ray emulates on this machine, two workers on each."""
    import ray
    from ray.cluster_utils import Cluster

    from robust_interp.core.worker_pool import WorkerPool, Workers, cluster

    nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 80 * 2**20})
    for _ in range(max(WORKERS) // 2):
        nodes.add_node(num_cpus=2, object_store_memory=80 * 2**20)
    ray.init(nodes.address, log_to_driver=False, logging_level="ERROR")
    try:
        for count in WORKERS:
            with cluster(Workers(count, gpus=0)) as filled, WorkerPool(filled, Sleeping, ()) as pool:
                pool.wait(count)
                tasks = count * TASKS_OF_EACH
                took = Took()
                _done(pool, tasks)
                seconds, _ = took()
            best = TASKS_OF_EACH * NAP
            show(
                f"{count} workers, tasks of {NAP:g} s: efficiency",
                f"{100 * best / seconds:.0f} % ({1000 * (seconds - best) / TASKS_OF_EACH:.1f} ms a task)",
            )
    finally:
        ray.shutdown()
        nodes.shutdown()


def _done(pool, tasks: int) -> None:
    left = iter(range(tasks))
    given = done = 0
    while done < tasks:
        while pool.has_capacity and given < tasks:
            pool.submit(next(left))
            given += 1
        pool.next_result()
        done += 1


def digits() -> None:
    """Real cells of digits, by the command, with one thread for each process."""
    command = "bench --models in_resnet20,preact_resnet20 --seeds 2 --n 450 --attacks pgd --corruptions none"
    with tempfile.TemporaryDirectory() as folder:
        for more in ("", "--workers 1", "--workers 2"):
            out = Path(folder) / f"out{more[-1:]}"
            argv = [*command.split(), "--quiet", "--device", "cpu", "--threads", "1", "--batch-size", "50"]
            run = [sys.executable, "-m", "robust_interp", *argv, *more.split(), "--out", str(out)]
            said = subprocess.run(run, capture_output=True, text=True, check=True).stdout
            line = next(line for line in said.splitlines() if line.startswith("measured"))
            show(f"digits, {more or 'no worker'}", line.partition(";")[0])


def startup() -> None:
    """`bench --models all`, from the start of its process until every checkpoint is loaded and checked."""
    code = (
        "import sys, time; started = time.perf_counter()\n"
        "from robust_interp.benchmark.benchmark import Benchmark\n"
        "from robust_interp.benchmark.request import Request\n"
        "from robust_interp.store import Store\n"
        "benchmark = Benchmark(Request(models=('all',), zoo=sys.argv[1], only_zoo=True))\n"
        "with Store(None) as store:\n"
        "    benchmark.load(store)\n"
        "print(time.perf_counter() - started, time.process_time())"
    )
    for seeds in (1, SEEDS):
        with tempfile.TemporaryDirectory() as folder:
            count = _copies(Path(folder), seeds)
            run = [sys.executable, "-c", code, folder]
            done = subprocess.run(run, capture_output=True, text=True, check=True)
        wall, cpu = map(float, done.stdout.split())
        show(f"start of `bench --models all` with {count} checkpoints", f"{wall:.1f} s ({cpu:.1f} s)")


def _copies(folder: Path, seeds: int) -> int:
    """A zoo of the bundled digits networks with as many seeds, no two with the same weights; how many."""
    firsts = [one for one in zoo.checkpoints(dataset="digits") if one.seed == 0]
    for first in firsts:
        state = load_file(first.folder / zoo.WEIGHTS)
        for seed in range(seeds):
            copy = folder / first.name.replace("seed0", f"seed{seed}")
            copy.mkdir()
            save_file(state | {"fc.bias": state["fc.bias"] + 0.001 * seed}, copy / zoo.WEIGHTS)
            weights = hashlib.sha256((copy / zoo.WEIGHTS).read_bytes()).hexdigest()
            record = first.record | {"seed": seed, "weights_sha256": weights}
            (copy / zoo.RECORD).write_text(json.dumps(record))
            shutil.copy(first.folder / zoo.CONFIG, copy)
    return seeds * len(firsts)


PARTS = {
    "plan": planning,
    "driver": driver,
    "tables": tables,
    "workers": workers,
    "digits": digits,
    "startup": startup,
}


def main() -> None:
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, load {load:.1f}\n"
    )
    for name in sys.argv[1:] or PARTS:
        PARTS[name]()
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    show("largest memory of this process", f"{memory:.0f} MB")


if __name__ == "__main__":
    main()

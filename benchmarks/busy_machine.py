"""What `robust-interp bench` takes beside other work: on one thread, as it chooses, on threads that spin.

    python benchmarks/busy_machine.py            # beside two busy loops, and alone
    python benchmarks/busy_machine.py --dataset cifar10 --n 50 --rounds 1

Each way runs as a process of its own, in turn within a round. Two times are printed for each: of the whole
process, with its imports and the short test of the number of threads, and of the measurements alone.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

OMP = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "MKL_NUM_THREADS")
ALL = str(os.cpu_count())
WAYS: dict[str, dict[str, str]] = {
    "one thread": {"OMP_NUM_THREADS": "1"},
    "as it chooses": {},
    f"{ALL} threads that spin": {"OMP_NUM_THREADS": ALL, "OMP_WAIT_POLICY": "ACTIVE"},
}


def seconds(environ: dict[str, str], arguments: argparse.Namespace) -> tuple[float, float]:
    """Of the whole process, and of its measurements."""
    clean = {name: value for name, value in os.environ.items() if name not in OMP}
    with tempfile.TemporaryDirectory() as out:
        command = [sys.executable, "-m", "robust_interp", "bench", "--quiet", "--out", out]
        command += ["--models", arguments.models, "--seeds", "1", "--dataset", arguments.dataset]
        command += ["--n", str(arguments.n), "--corruptions", "none", "--attacks", "pgd"]
        started = time.perf_counter()
        subprocess.run(command, env=clean | environ, check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - started, pd.read_csv(Path(out) / "results.csv")["seconds"].sum()


def spin() -> None:
    while True:
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--models", default="in_resnet20")
    parser.add_argument("--dataset", default="digits")
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--loops", type=int, default=2, help="busy loops beside it (default: 2)")
    arguments = parser.parse_args()
    for loops in (0, arguments.loops):
        beside = [multiprocessing.Process(target=spin, daemon=True) for _ in range(loops)]
        for process in beside:
            process.start()
        found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
        for _ in range(arguments.rounds):
            for way, environ in WAYS.items():
                found[way].append(seconds(environ, arguments))
        for process in beside:
            process.kill()
        print(f"beside {loops} busy loops, median of {arguments.rounds}:")
        base = [statistics.median(times) for times in zip(*found["one thread"], strict=True)]
        for way, pairs in found.items():
            whole, measured = (statistics.median(times) for times in zip(*pairs, strict=True))
            print(
                f"  {way:22} {whole:6.1f} s ({whole / base[0]:4.2f} x one thread), "
                f"measuring {measured:6.1f} s ({measured / base[1]:4.2f} x)",
                flush=True,
            )


if __name__ == "__main__":
    main()

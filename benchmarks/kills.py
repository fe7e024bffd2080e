"""Kill `bench` and `sweep` again and again, and see that nothing is lost: python benchmarks/kills.py.

Real processes are killed with SIGKILL, half of them at a random moment of their start and half after a random
part of what was left, and started again with the same command; the last one runs to its end. One point of the
sweep diverges. After each kill all that was kept before must still be there as it was, to the second that it
took: neither lost nor made again. At the end the tables must be those of a run that nobody disturbed. Exit
status 1 if something differs.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import pandas as pd

from robust_interp.store import FILE_NAME

START = 0.2, 4.0  # seconds after its start within which a process is killed
LOOK = 0.1  # seconds between two looks at what it has finished; it is killed at a random moment between two
COMMON = ("--quiet", "--device", "cpu", "--threads", "1", "--corruptions", "none")
COMMANDS = {
    "bench": "bench --models in_resnet20 --seeds 2 --n {n} --attacks fgsm,pgd --batch-size {part} "
    "--compile off",
    "sweep": "sweep --models in_resnet14 --lambda-init 0.2,0.25 --lambda-init 1e20,2e20 --seeds 2 --epochs 3 "
    "--n 40 --attacks fgsm",
}
PARTS = 8  # in which a cell of bench is stored
TABLES = {"bench": ["leaderboard.csv"], "sweep": ["leaderboard.csv", "sweep.csv"]}

Kept = dict[str, object]  # what is finished, by its name


def start(command: str, n: int, out: Path) -> subprocess.Popen:
    asked = COMMANDS[command].format(n=n, part=max(1, n // PARTS)).split()
    run = [sys.executable, "-m", "robust_interp", *asked, *COMMON, "--out", str(out)]
    return subprocess.Popen(run, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)


def kill(run: subprocess.Popen, chance: random.Random, is_to_wait: Callable[[], bool]) -> None:
    """Kill a process within START, or once there is no more to wait for; if it ends before, let it."""
    least, most = START
    try:
        run.communicate(timeout=chance.uniform(least, most))
    except subprocess.TimeoutExpired:
        while run.poll() is None and is_to_wait():
            time.sleep(chance.uniform(0, LOOK))
        run.kill()
        run.communicate()


def kept(out: Path, copy: Path) -> Kept:
    """All that is finished in a folder: parts of cells, checkpoints, and trainings that failed."""
    found: Kept = {}
    for path in sorted((out / "zoo").glob("in_resnet14.*")):
        record = path if path.suffix == ".json" else path / "train.json"
        found[path.name] = record.read_text(), record.stat().st_mtime_ns
    if (out / FILE_NAME).is_file():
        shutil.rmtree(copy, ignore_errors=True)
        copy.mkdir()
        for name in (FILE_NAME, f"{FILE_NAME}-wal"):
            if (out / name).is_file():
                shutil.copy(out / name, copy)
        with closing(sqlite3.connect(copy / FILE_NAME)) as db:
            tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            rows = db.execute("SELECT * FROM chunks").fetchall() if "chunks" in tables else []
        found |= {f"part {row[:2]}": row for row in rows}
    return found


def count(out: Path) -> int:
    """How much is finished in a folder that a process writes to."""
    made = len(list((out / "zoo").glob("in_resnet14.*")))
    try:
        with closing(sqlite3.connect(f"file:{out / FILE_NAME}?mode=ro", uri=True)) as db:
            return made + db.execute("SELECT COUNT(*) FROM chunks").fetchone()[0]
    except sqlite3.OperationalError:  # there is no store yet
        return made


def differences(out: Path, whole: Path, command: str) -> list[str]:
    """The tables in which a folder differs from that of an undisturbed run."""
    found = [name for name in TABLES[command] if (out / name).read_bytes() != (whole / name).read_bytes()]
    mine, theirs = (
        pd.read_csv(folder / "results.csv", dtype=str).drop(columns=["seconds", "device"])
        for folder in (out, whole)
    )
    return found + ["results.csv"] * (not mine.equals(theirs))


def disturbed(command: str, n: int, folder: Path, kills: int, chance: random.Random) -> list[str]:
    """Run a command undisturbed, then killed so many times, and print what became of it; a line a fault."""
    whole, out, copy = folder / "whole", folder / "out", folder / "copy"
    began = time.perf_counter()
    undisturbed = start(command, n, whole)
    if undisturbed.communicate() and undisturbed.returncode:
        return [f"{command}: undisturbed it ends with {undisturbed.returncode}"]
    took = time.perf_counter() - began
    in_all = count(whole)
    faults: list[str] = []
    before: Kept = {}
    killed = 0
    for number in range(kills):
        run = start(command, n, out)
        share = chance.uniform(0, 2 / (kills - number))  # the work lasts until the last kill
        enough = len(before) + int(share * (in_all - len(before))) if number % 2 else None
        kill(run, chance, lambda enough=enough: enough is not None and count(out) <= enough)
        killed += run.returncode < 0
        now = kept(out, copy)
        faults += [f"{command}, kill {number}: lost or made again: {name}" for name in lost(before, now)]
        before = now
    run = start(command, n, out)
    _, told = run.communicate()
    if run.returncode:
        return [*faults, f"{command}: the last run ends with {run.returncode}: {told.strip()}"]
    faults += [f"{command}: lost or made again at the end: {name}" for name in lost(before, kept(out, copy))]
    faults += [f"{command}: {name} differs" for name in differences(out, whole, command)]
    left = sorted(path.name for path in out.rglob("*") if path.name.startswith(".") or ".part" in path.name)
    faults += [f"{command}: {name} was left behind" for name in left]
    print(
        f"{command}: {killed} of {kills} killed, {len(before)} things kept by then, {took:.0f} s undisturbed",
        flush=True,
    )
    return faults


def lost(before: Kept, now: Kept) -> list[str]:
    return [name for name, value in before.items() if now.get(name) != value]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("commands", nargs="*", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--kills", type=int, default=20, help="of each command")
    parser.add_argument("--n", type=int, default=80, help="images that bench measures")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    chance, faults = random.Random(asked.seed), []
    for command in asked.commands:
        with tempfile.TemporaryDirectory() as folder:
            faults += disturbed(command, asked.n, Path(folder), asked.kills, chance)
    print("\n".join(faults) if faults else "nothing was lost, and nothing was made again")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())

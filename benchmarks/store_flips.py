"""Flip single bits of a store, and see that no wrong number comes out: python benchmarks/store_flips.py.

Each flip is made in a fresh copy of a small store. Then the leaderboard and the results are rebuilt, and
after that the same runs are stored again, as a bench would. A table may be the same as before; it may lack
what a line names; or the store may be refused in one line. Any other value, anything missing without a line,
and any other exception is a fault. Exit status 1 if there was one.
"""

import argparse
import collections
import random
import shutil
import sqlite3
import sys
import tempfile
import warnings
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pandas as pd

from robust_interp.core.errors import DamageWarning, UserError
from robust_interp.results.folders import runs_in
from robust_interp.results.leaderboard import entries_frame
from robust_interp.results.scores import scores
from robust_interp.store import FILE_NAME, Outcome, Store
from robust_interp.store.cells import CLEAN, Cell, ModelCard, Perturbation, Plan, digest
from robust_interp.store.check import NOT_IN_THE_FILE, repair

N = 600  # three chunks a cell
VERSIONS = {"precision": "float32", "torch": "2.9", "torchattacks": "3.5.1"}
LABELS = np.arange(N) % 10
FINE = "same", "named", "refused"
NAMES_A_ROW = ["model", "train_seed", "members", "perturbation", "eps_255", "protocol", "n", "severity"]


def plans(
    protocols: Sequence[str] = ("final", "worst"), models: Sequence[str] = ("one", "two")
) -> list[Plan]:
    """A run under each protocol: two seeds of each model and an ensemble, clean, a corruption and attacks."""
    found = []
    for protocol in protocols:
        cards = [
            ModelCard(model, {"weights": f"{model}-{seed}"}, "quick", "", seed, (seed,), params_m=0.25)
            for model in models
            for seed in (0, 1)
        ]
        members = [card.identity for card in cards[:2]]
        cards.append(ModelCard("one", {"ensemble": members}, "quick", "", None, (0, 1), members=2))
        made = [CLEAN, Perturbation("corruption", "fog", "fog_3", {"severity": 3}, "generated@0")]
        made += [
            Perturbation("attack", name, f"{name}_8", {"eps": 8 / 255}, seed=0) for name in ("fgsm", "pgd")
        ]
        cells = [Cell(card, "digits", "images", one, VERSIONS) for card in cards for one in made]
        found.append(Plan("digits", N, protocol, tuple(cells)))
    return found


def fill(store: Store, asked: list[Plan]) -> None:
    """Store runs and an audit, all of it each time: as a bench that measures what it must."""
    store.put_labels("images", LABELS)
    for plan in asked:
        for cell in plan.cells:
            chance = np.random.default_rng(int(cell.key[:8], 16))
            right = chance.random(N) < 0.8
            predictions = np.where(right, LABELS, (LABELS + 1) % 10).astype(np.int16)
            deltas = np.full(N, 8 / 255, np.float32) if cell.perturbation.kind == "attack" else None
            store.append(cell.key, 0, Outcome(predictions, np.zeros(N, np.uint8), deltas, 3.0, "cpu"))
        store.put_plan(plan)
        store.put_audit(digest(plan.cells[0].classifier.identity), "images", "pass(n=200)", "[]")


def tables(folder: Path) -> tuple[dict, dict]:
    """The leaderboard and the results: of each line by its name the filled columns."""
    runs, _ = runs_in([folder])
    board = entries_frame(*runs).drop(columns="rank").to_dict("records")
    seeds = ["model", "recipe", "seeds", "members", "protocol", "n_examples"]
    return _named(board, seeds), _named([score.row for run in runs for score in run], NAMES_A_ROW)


def _named(lines: list[dict], names: list[str]) -> dict:
    filled = [
        {key: value for key, value in line.items() if value != "" and not pd.isna(value)} for line in lines
    ]
    return {tuple(line.get(name) for name in names): line for line in filled}


def verdict(folder: Path, whole: tuple[dict, dict]) -> str:
    """What becomes of the tables of a store: one of FINE, else what is wrong."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            found = tables(folder)
        except UserError as refusal:
            return "refused" if "\n" not in str(refusal) else f"several lines: {refusal}"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    if found == whole:
        return "same"
    named = any(issubclass(one.category, DamageWarning) for one in told)
    board, results = found
    for name, line in results.items():
        if wrong := [key for key, value in line.items() if whole[1].get(name, {}).get(key) != value]:
            return f"wrong {', '.join(wrong)} of {name}"
    for name, line in board.items():
        known = whole[0].get(name)
        if known and (wrong := [key for key, value in line.items() if known.get(key) != value]):
            return f"wrong {', '.join(wrong)} of {name}"
    return "named" if named else "missing without a word"


def verdict_of_repair(folder: Path, whole: tuple[dict, dict]) -> str:
    """What becomes of the tables of a store that is repaired first: it must be sound then."""
    try:
        done = repair(folder)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if done.left.beyond(*NOT_IN_THE_FILE):
        return f"not sound: {done.left.lines('')}"
    found = verdict(folder, whole)
    # Which run was lost nobody can say any more; the repair has said that one was.
    return "named" if found == "missing without a word" and done.damage else found


def verdict_of_bench(folder: Path, asked: list[Plan], whole: list[dict]) -> str:
    """What becomes of the same runs, stored again: the same tables of their own, or a refusal."""
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        try:
            with Store(folder) as store:
                fill(store, asked)
                found = own_tables(store, asked)
        except UserError:
            return "refused"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "same" if found == whole else "another table"


def own_tables(store: Store, asked: list[Plan]) -> list[dict]:
    """The results of the runs, as a bench writes them."""
    return [_named([score.row for score in scores(plan, store)], NAMES_A_ROW) for plan in asked]


STEPS = "leaderboard", "bench", "repair"


def measure(
    folder: Path,
    asked: list[Plan],
    flips: int,
    seed: int = 0,
    of_log: bool = False,
    steps: Sequence[str] = STEPS,
) -> tuple[collections.Counter, list[str]]:
    """Flip bits of a store of these runs, one a copy.

    Args:
        folder: An empty one, for the copies.
        of_log: Not of the database, but of what a process that was killed has left in its log: the last run.
        steps: What is done after each flip, in a copy of its own: some of STEPS.

    Returns:
        How many of each verdict there were by step, and a line for each fault.
    """
    made, origin, chance = folder / "made", folder / "origin", random.Random(seed)
    with Store(made) as store:
        fill(store, asked[:-1])
    # As long as it reads, what is written after it has begun stays in the log.
    with closing(sqlite3.connect(made / FILE_NAME, isolation_level=None)) as reader, Store(made) as store:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM counts").fetchall()
        fill(store, asked)
        expected = own_tables(store, asked)
        if of_log:
            shutil.copytree(made, origin)
    if not of_log:
        shutil.copytree(made, origin)
    whole, counts, faults = tables(made), collections.Counter(), []
    done = {
        "leaderboard": lambda copy: verdict(copy, whole),
        "bench": lambda copy: verdict_of_bench(copy, asked, expected),
        "repair": lambda copy: verdict_of_repair(copy, whole),
    }
    for number in range(flips):
        copies = {step: folder / step for step in steps}
        for copy in copies.values():
            shutil.copytree(origin, copy, ignore=shutil.ignore_patterns("*-shm"))
        name = f"{FILE_NAME}-wal" if of_log else FILE_NAME
        content = bytearray((origin / name).read_bytes())
        at, bit = chance.randrange(len(content)), chance.randrange(8)
        content[at] ^= 1 << bit
        for step, copy in copies.items():
            (copy / name).write_bytes(content)
            found = done[step](copy)
            counts[step, found if found in FINE else "fault"] += 1
            faults += [] if found in FINE else [f"flip {number}, bit {bit} of byte {at}: {step}: {found}"]
            shutil.rmtree(copy)
    return counts, faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flips", type=int, default=1000, help="of the database, and a tenth of the log")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    failed = False
    for what, flips in (("database", arguments.flips), ("log", max(1, arguments.flips // 10))):
        with tempfile.TemporaryDirectory() as folder:
            counts, faults = measure(Path(folder), plans(), flips, arguments.seed, what == "log")
        print(f"{flips} flips of the {what}")
        for (step, found), count in sorted(counts.items()):
            print(f"  {step}: {found} {count}")
        print("\n".join(faults))
        failed |= bool(faults)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

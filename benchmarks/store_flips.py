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
import sys
import tempfile
import warnings
from pathlib import Path

import numpy as np

from robust_interp.core.errors import DamageWarning, UserError
from robust_interp.results.combine import gather
from robust_interp.results.folders import runs_in
from robust_interp.results.scores import results_frame, scores
from robust_interp.store import FILE_NAME, Outcome, Store
from robust_interp.store.cells import CLEAN, Cell, ModelCard, Perturbation, Plan, digest
from robust_interp.store.check import repair
from robust_interp.store.damage import Fault

N = 600  # three chunks a cell
VERSIONS = {"precision": "float32", "torch": "2.9", "torchattacks": "3.5.1"}
LABELS = np.arange(N) % 10
FINE = "same", "named", "refused"
NAMES_A_ROW = ["model", "train_seed", "members", "perturbation", "eps_255", "protocol", "n", "severity"]


def plans() -> list[Plan]:
    """A run under each protocol: two seeds of two models and an ensemble, clean, a corruption and attacks."""
    found = []
    for protocol in ("final", "worst"):
        cards = [
            ModelCard(model, {"weights": f"{model}-{seed}"}, "quick", "", seed, (seed,), params_m=0.25)
            for model in ("one", "two")
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
    board, _, _ = gather([folder])
    runs, _ = runs_in([folder])
    results = results_frame(score for run in runs for score in run)
    seeds = ["model", "recipe", "seeds", "members", "protocol", "n_examples"]
    return _lines(board.drop(columns="rank"), seeds), _lines(results, NAMES_A_ROW)


def _lines(frame, names: list[str]) -> dict:
    frame = frame.astype(object).where(frame.notna(), None)
    lines = {tuple(line[name] for name in names): line for line in frame.to_dict("records")}
    return {
        name: {key: value for key, value in line.items() if value not in (None, "")}
        for name, line in lines.items()
    }


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
    if done.left.beyond(Fault.MISSING, Fault.LOG):
        return f"not sound: {done.left.lines('')}"
    found = verdict(folder, whole)
    # Which run was lost nobody can say any more; the repair has said that one was.
    return "named" if found == "missing without a word" and done.damage else found


def verdict_of_bench(folder: Path, whole: dict) -> str:
    """What becomes of the same runs, stored again: the same tables of their own, or a refusal."""
    with warnings.catch_warnings(record=True):
        warnings.simplefilter("always")
        try:
            with Store(folder) as store:
                fill(store, plans())
                found = own_tables(store)
        except UserError:
            return "refused"
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return "same" if found == whole else "another table"


def own_tables(store: Store) -> list[dict]:
    """The results of the runs, as a bench writes them."""
    return [_lines(results_frame(scores(plan, store)), NAMES_A_ROW) for plan in plans()]


def flip(file: Path, chance: random.Random) -> str:
    """Flip one bit of a file; which one it was."""
    content = bytearray(file.read_bytes())
    at, bit = chance.randrange(len(content)), chance.randrange(8)
    content[at] ^= 1 << bit
    file.write_bytes(content)
    return f"bit {bit} of byte {at} of {file.name}"


def measure(
    folder: Path, flips: int, seed: int, with_log: bool = False
) -> tuple[collections.Counter, list[str]]:
    """Flip bits, one a copy; `with_log`: of the write-ahead log of a process that was killed.

    Returns:
        How many of each verdict there were, and a line for each fault.
    """
    origin, chance = folder / "origin", random.Random(seed)
    with Store(folder / "made") as store:
        fill(store, plans()[:1])
    with Store(folder / "made") as store:
        fill(store, plans())
        expected = own_tables(store)
        if with_log:
            shutil.copytree(folder / "made", origin)
    if not with_log:
        shutil.copytree(folder / "made", origin)
    whole, counts, faults = tables(folder / "made"), collections.Counter(), []
    for number in range(flips):
        copy = Path(shutil.copytree(origin, folder / "copy", ignore=shutil.ignore_patterns("*-shm")))
        files = sorted(copy.glob(f"{FILE_NAME}*"))
        where = flip(files[-1 if with_log else 0], chance)
        shutil.copytree(copy, folder / "third")
        again = Path(shutil.copytree(copy, folder / "again"))
        for step, found in (
            ("repair", verdict_of_repair(folder / "third", whole)),
            ("leaderboard", verdict(copy, whole)),
            ("bench", verdict_of_bench(again, expected)),
        ):
            counts[step, found if found in FINE else "fault"] += 1
            faults += [] if found in FINE else [f"flip {number}, {where}: {step}: {found}"]
        shutil.rmtree(copy)
        shutil.rmtree(again)
        shutil.rmtree(folder / "third")
    return counts, faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flips", type=int, default=1000, help="of the database, and a tenth of the log")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    failed = False
    for what, flips in (("database", arguments.flips), ("log", max(1, arguments.flips // 10))):
        with tempfile.TemporaryDirectory() as folder:
            counts, faults = measure(Path(folder), flips, arguments.seed, what == "log")
        print(f"{flips} flips of the {what}")
        for (step, found), count in sorted(counts.items()):
            print(f"  {step}: {found} {count}")
        print("\n".join(faults))
        failed |= bool(faults)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

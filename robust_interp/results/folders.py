"""Results folders: write the tables of the last run, read the scores of all finished runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from robust_interp import zoo
from robust_interp.core.errors import UserError
from robust_interp.core.files import write_text
from robust_interp.core.registry import all_matching
from robust_interp.results.entries import entry_key
from robust_interp.results.export import results_csv, to_csv
from robust_interp.results.scores import Score, scores
from robust_interp.store import FILE_NAME, Store, unfinished
from robust_interp.store.cells import Plan
from robust_interp.store.finished import is_finished


def write(folder: Path, results: pd.DataFrame, board: pd.DataFrame) -> None:
    """Write results.csv and leaderboard.csv."""
    write_text(folder / "results.csv", results_csv(results))
    write_text(folder / "leaderboard.csv", to_csv(board))


def runs_in(
    folders: Sequence[Path], dataset: str | None = None, partial: bool = False
) -> tuple[list[list[Score]], str]:
    """Return the scores of all finished runs on one data set, and the data set.

    The runs are those of one folder after the other, oldest first in each. What comes last counts as newest.

    Scores from an older version of a plug-in are left out if a newer version measured the same perturbation.

    Args:
        folders: Results folders.
        dataset: Name of the data set to choose, if the folders have several.
        partial: Whether to add the finished cells of unfinished runs, each after the runs that had finished
            when it began.

    Raises:
        UserError: For the same reasons as `dataset_in`, or if no score can be read.
    """
    dataset = dataset_in(folders, dataset, partial)
    runs = []
    for folder in folders:
        # The unfinished runs first: one that finishes now is then found as finished.
        begun = unfinished.plans(folder) if partial else []
        with Store(folder, read_only=True) as store:
            finished = store.runs()
            done = {plan.key for _, plan in finished}
            ordered = [*finished, *(one for one in begun if one[1].key not in done)]
            ordered.sort(key=lambda one: one[0])  # stable: an unfinished run after those finished before it
            runs += [
                scores(plan, store) if plan.key in done else _unfinished(plan, store)
                for _, plan in ordered
                if plan.dataset == dataset
            ]
    if not any(runs):
        where, what = ", ".join(map(str, folders)), "" if partial else "finished "
        raise UserError(
            f"no measurement of the {what}runs in {where} can be read: repeat their robust-interp bench"
        )
    return _of_newest_code(runs), dataset


def _unfinished(plan: Plan, store: Store) -> list[Score]:
    """Return the scores of the finished cells of an unfinished run."""
    planned: Counter[tuple] = Counter()
    done: Counter[tuple] = Counter()
    for part in plan.parts:
        for cell in part.cells:
            key = entry_key(cell.classifier)
            planned[key] += 1
            done[key] += is_finished(cell, store, part.n)
    told = {key: "" if done[key] == count else f"{done[key]}/{count}" for key, count in planned.items()}
    found = scores(plan, store, unfinished=True)
    return [replace(score, incomplete=told[entry_key(score.classifier)]) for score in found]


def dataset_in(folders: Sequence[Path], dataset: str | None = None, partial: bool = False) -> str:
    """Return the data set of the finished runs in results folders.

    Args:
        folders: Results folders.
        dataset: Name of the data set; None if there is only one.
        partial: Whether unfinished runs count, too.

    Raises:
        UserError: If a folder has no finished run, if no run is on the named data set, or if none is
            named and there are several.
    """
    found = sorted({plan.dataset for folder in folders for plan in _plans(folder, partial)})
    where = ", ".join(map(str, folders))
    if dataset is None and len(found) > 1:
        raise UserError(f"{where} has runs for {', '.join(found)}: choose one with --dataset")
    if dataset not in (None, *found):
        what = "run" if partial else "finished run"
        raise UserError(f"{where} has no {what} for {dataset}, only for {', '.join(found)}")
    return dataset or found[0]


def of_models(runs: Sequence[list[Score]], patterns: Iterable[str] | None) -> list[list[Score]]:
    """Return the scores of the models that match any of the patterns.

    Args:
        runs: Scores of each run.
        patterns: Model names or glob patterns; None selects all models.

    Raises:
        UserError: If a pattern matches no model.
    """
    if patterns is None:
        return list(runs)
    names = dict.fromkeys(score.classifier.model for run in runs for score in run)
    chosen = all_matching("model", patterns, names)
    return [[score for score in run if score.classifier.model in chosen] for run in runs]


def _of_newest_code(runs: list[list[Score]]) -> list[list[Score]]:
    newest = {_what(score): score.code for run in runs for score in run if score.code}
    return [[s for s in run if not s.code or newest[_what(s)] == s.code] for run in runs]


def _what(score: Score) -> tuple:
    return score.column, *sorted(perturbation.name for perturbation in score.perturbations)


def bundled_boards() -> dict[str, Path]:
    """Return the files of the bundled leaderboards by name."""
    return {path.stem: path for path in zoo.bundled("leaderboards").glob("*.csv")}


def _plans(folder: Path, partial: bool = False) -> list[Plan]:
    if folder.is_file():
        raise UserError(f"{folder} is a file, and a results folder is needed")
    if not (folder / FILE_NAME).is_file():
        if str(folder) in bundled_boards():
            raise UserError(f"{folder} is a bundled leaderboard, without predictions: name a results folder")
        raise UserError(f"there are no results in {folder}: run robust-interp bench --out {folder}")
    with Store(folder, read_only=True) as store:
        plans = store.plans()
    if partial:
        plans += [plan for _, plan in unfinished.plans(folder)]
    if not plans:
        more = f"; robust-interp leaderboard {folder} --partial shows what is complete"
        raise UserError(
            f"no robust-interp bench in {folder} has finished: run the same bench command again to continue"
            + (more if unfinished.plans(folder) else "")
        )
    return plans

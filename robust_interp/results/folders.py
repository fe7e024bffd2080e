"""Results folders: write the tables of the last run, read the scores of all finished runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from robust_interp.core.errors import UserError
from robust_interp.core.files import write_text
from robust_interp.core.registry import all_matching
from robust_interp.results.export import results_csv, to_csv
from robust_interp.results.scores import Score, scores
from robust_interp.store import FILE_NAME, Store
from robust_interp.store.cells import Plan


def write(folder: Path, results: pd.DataFrame, board: pd.DataFrame) -> None:
    """Write results.csv and leaderboard.csv."""
    write_text(folder / "results.csv", results_csv(results))
    write_text(folder / "leaderboard.csv", to_csv(board))


def runs_in(folders: Sequence[Path], dataset: str | None = None) -> tuple[list[list[Score]], str]:
    """Return the scores of all finished runs on one data set, and the data set.

    The runs are those of one folder after the other, oldest first in each. What comes last counts as newest.

    Scores from an older version of a plug-in are left out if a newer version measured the same perturbation.

    Args:
        folders: Results folders.
        dataset: Name of the data set to choose, if the folders have several.

    Raises:
        UserError: For the same reasons as `dataset_in`, or if no score can be read.
    """
    dataset = dataset_in(folders, dataset)
    runs = []
    for folder in folders:
        with Store(folder, read_only=True) as store:
            runs += [scores(plan, store) for plan in store.plans() if plan.dataset == dataset]
    if not any(runs):
        where = ", ".join(map(str, folders))
        raise UserError(
            f"no measurement of the finished runs in {where} can be read: repeat their robust-interp bench"
        )
    return _of_newest_code(runs), dataset


def class_names_in(folders: Sequence[Path], dataset: str) -> tuple[str, ...]:
    """Return the class names that the last finished run on a data set stored; empty if no run has any."""
    named = [plan.class_names for folder in folders for plan in _plans(folder) if plan.dataset == dataset]
    return next((names for names in reversed(named) if names), ())


def dataset_in(folders: Sequence[Path], dataset: str | None = None) -> str:
    """Return the data set of the finished runs in results folders.

    Args:
        folders: Results folders.
        dataset: Name of the data set; None if there is only one.

    Raises:
        UserError: If a folder has no finished run, if no run is on the named data set, or if none is
            named and there are several.
    """
    found = sorted({plan.dataset for folder in folders for plan in _plans(folder)})
    where = ", ".join(map(str, folders))
    if dataset is None and len(found) > 1:
        raise UserError(f"{where} has runs for {', '.join(found)}: choose one with --dataset")
    if dataset not in (None, *found):
        raise UserError(f"{where} has no finished run for {dataset}, only for {', '.join(found)}")
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


def _plans(folder: Path) -> list[Plan]:
    if folder.is_file():
        raise UserError(f"{folder} is a file, and a results folder is needed")
    if not (folder / FILE_NAME).is_file():
        raise UserError(f"there are no results in {folder}: run robust-interp bench --out {folder}")
    with Store(folder, read_only=True) as store:
        plans = store.plans()
    if not plans:
        raise UserError(
            f"no robust-interp bench in {folder} has finished: run the same bench command again to continue"
        )
    return plans

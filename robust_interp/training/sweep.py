"""A declared grid of networks, each trained with several seeds, measured and tabulated; all of it resumable.

The paper's table of initial intervals and its table of variants are two such grids. As there, a run that
fails to train is left out of the averages; here it is counted besides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from robust_interp import zoo
from robust_interp.core.errors import UserError
from robust_interp.core.registry import unknown
from robust_interp.models import ARCHITECTURES, default_lambda_init
from robust_interp.results.columns import ENTRY_COLUMNS
from robust_interp.training.recipe import Recipe
from robust_interp.training.train import Training
from robust_interp.training.trainer import TrainingError

INTERVALS = ((0.0, 0.1), (0.1, 0.2), (0.2, 0.25), (0.25, 0.3), (0.3, 0.4))  # of the paper's table
VARIANTS = ("in_resnet{}", "in_resnet{}_sig", "in_resnet{}_gating", "in_resnet{}_gating_sig")
NAMES = ["model", "lambda_init", "recipe", "seeds", "failed"]


@dataclass(frozen=True)
class Point:
    """One network of a grid; act(λ) starts in `lambda_init`, None is the architecture's own interval."""

    architecture: str
    lambda_init: tuple[float, float] | None = None

    @property
    def interval(self) -> str:
        """The interval as a leaderboard writes it."""
        return zoo.interval_text(self.lambda_init or default_lambda_init(self.architecture))


def grid(models: Iterable[str], intervals: Sequence[tuple[float, float]]) -> list[Point]:
    """Each model in each interval, or in its own if there are none; one without λ once; no point twice.

    Args:
        models: Names of this package's architectures.
        intervals: (low, high) that act(λ) starts in.

    Raises:
        UserError: for a name that is not of this package's architectures.
    """
    points = []
    for model in models:
        if model not in ARCHITECTURES:
            raise unknown("architecture", model, ARCHITECTURES)
        varied = intervals if default_lambda_init(model) else ()
        points += [Point(model, interval) for interval in varied] or [Point(model)]
    return list(dict.fromkeys(points))


def initialisation(depth: int) -> list[Point]:
    """The paper's trade-off table at a depth: ResNet, and both damped networks started in five intervals."""
    names = ("preact_resnet{}", "in_resnet{}", "lambda_in_resnet{}")
    return grid([name.format(depth) for name in names], INTERVALS)


def variants(depth: int) -> list[Point]:
    """The paper's table of shortcut functions at a depth."""
    return grid([name.format(depth) for name in ("preact_resnet{}", *VARIANTS)], ())


RecipeOf = Callable[[str, tuple[float, float] | None], Recipe]
GRIDS: dict[str, Callable[[int], list[Point]]] = {"initialisation": initialisation, "variants": variants}


@dataclass(frozen=True)
class Trained:
    """The checkpoints of a grid, and how many seeds of each point failed to train."""

    checkpoints: list[zoo.Checkpoint]
    failed: Counter[Point]


def trainings(
    points: Sequence[Point], recipe_of: RecipeOf, seeds: Sequence[int]
) -> list[tuple[Point, Training]]:
    """Every point with every seed.

    Args:
        points: The networks.
        recipe_of: The recipe of an architecture whose act(λ) starts in an interval, or None.
        seeds: Train seeds.
    """
    return [
        (point, Training(point.architecture, recipe_of(point.architecture, point.lambda_init), seed))
        for point in points
        for seed in seeds
    ]


def trained(
    asked: Sequence[tuple[Point, Training]], outcomes: Sequence[zoo.Checkpoint | TrainingError]
) -> Trained:
    """What became of the trainings of a grid.

    Args:
        asked: As of `trainings`.
        outcomes: Of each its checkpoint, or why it failed.

    Raises:
        UserError: if all of them failed.
    """
    checkpoints = [outcome for outcome in outcomes if not isinstance(outcome, TrainingError)]
    failed = Counter(
        point
        for (point, _), outcome in zip(asked, outcomes, strict=True)
        if isinstance(outcome, TrainingError)
    )
    if not checkpoints:
        raise UserError("every training of the grid failed")
    return Trained(checkpoints, failed)


def tabulate(
    points: Sequence[Point], board: pd.DataFrame, failed: Counter[Point], recipe_of: RecipeOf
) -> pd.DataFrame:
    """A line for each point, in order: how many seeds trained and failed, and the leaderboard's numbers.

    Args:
        points: The networks of the grid.
        board: A leaderboard of their checkpoints.
        failed: How many seeds of each failed to train.
        recipe_of: As for `trainings`.
    """
    measured = [str(column) for column in board if column not in ENTRY_COLUMNS and column not in NAMES]
    lines = []
    for point in points:
        recipe = recipe_of(point.architecture, point.lambda_init).name
        found = board[
            (board["model"] == point.architecture)
            & (board["lambda_init"] == point.interval)
            & (board["recipe"] == recipe)
            & (board["members"] == 1)
        ]
        names = {"model": point.architecture, "lambda_init": point.interval, "recipe": recipe}
        numbers = found.iloc[0][measured].to_dict() if len(found) else {}
        seeds = int(found["seeds"].iloc[0]) if len(found) else 0
        lines.append(names | {"seeds": seeds, "failed": failed[point]} | numbers)
    return pd.DataFrame(lines, columns=[*NAMES, *measured])

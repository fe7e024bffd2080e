"""Train and tabulate a grid of networks, each with several seeds.

The paper's table of initial intervals and its table of variants are such grids. As in the paper, trainings
that fail are left out of the averages; here they are also counted.
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
from robust_interp.training.job import Training
from robust_interp.training.recipe import Recipe
from robust_interp.training.trainer import DamagedError, TrainingError

INTERVALS = ((0.0, 0.1), (0.1, 0.2), (0.2, 0.25), (0.25, 0.3), (0.3, 0.4))  # in the paper's table
VARIANTS = ("in_resnet{}", "in_resnet{}_sig", "in_resnet{}_gating", "in_resnet{}_gating_sig")
NAMES = ["model", "lambda_init", "recipe", "seeds", "failed"]


@dataclass(frozen=True)
class Point:
    """A network of a grid.

    Attributes:
        architecture: Name of an architecture of this package.
        lambda_init: Interval of the initial act(λ); None takes the recipe's, otherwise the architecture's.
    """

    architecture: str
    lambda_init: tuple[float, float] | None = None


def grid(models: Iterable[str], intervals: Sequence[tuple[float, float]]) -> list[Point]:
    """Return all pairs of a model and an interval, without duplicates.

    Models without λ occur once, without an interval. If there are no intervals, so do all models.

    Args:
        models: Names of architectures of this package.
        intervals: Intervals (low, high) of the initial act(λ).

    Raises:
        UserError: if a name is not an architecture of this package, or intervals are given and none has a λ.
    """
    points, models = [], list(models)
    for model in models:
        if model not in ARCHITECTURES:
            raise unknown("architecture", model, ARCHITECTURES)
        varied = intervals if default_lambda_init(model) else ()
        points += [Point(model, interval) for interval in varied] or [Point(model)]
    if intervals and not any(point.lambda_init for point in points):
        raise UserError(f"--lambda-init needs a model with λ; {', '.join(models)} has none")
    return list(dict.fromkeys(points))


def interval(architecture: str, recipe: Recipe) -> str:
    """Return the interval in which act(λ) of a network starts, as text, as in a leaderboard."""
    return zoo.interval_text(recipe.lambda_init or default_lambda_init(architecture))


def initialisation(depth: int) -> list[Point]:
    """Return the paper's trade-off table for a depth: ResNet, and both damped networks in five intervals."""
    names = ("preact_resnet{}", "in_resnet{}", "lambda_in_resnet{}")
    return grid([name.format(depth) for name in names], INTERVALS)


def variants(depth: int) -> list[Point]:
    """Return the paper's table of shortcut functions for a depth."""
    return grid([name.format(depth) for name in ("preact_resnet{}", *VARIANTS)], ())


RecipeOf = Callable[[str, tuple[float, float] | None], Recipe]
GRIDS: dict[str, Callable[[int], list[Point]]] = {"initialisation": initialisation, "variants": variants}


@dataclass(frozen=True)
class Trained:
    """Results of the trainings of a grid.

    Attributes:
        checkpoints: The checkpoints.
        failed: Number of failed seeds of each point.
        is_incomplete: Whether a saved state is damaged, so that its network is still to be trained.
    """

    checkpoints: list[zoo.Checkpoint]
    failed: Counter[Point]
    is_incomplete: bool


def trainings(
    points: Sequence[Point], recipe_of: RecipeOf, seeds: Sequence[int]
) -> list[tuple[Point, Training]]:
    """Return the trainings of a grid: every point with every seed.

    Args:
        points: The networks of the grid.
        recipe_of: Returns the recipe for an architecture and an interval of the initial act(λ), or None.
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
    """Collect the results of the trainings of a grid.

    Args:
        asked: The trainings, from `trainings`.
        outcomes: The checkpoint or the error of each training, in the same order.

    Raises:
        UserError: if there is no checkpoint.
    """
    checkpoints = [outcome for outcome in outcomes if not isinstance(outcome, TrainingError)]
    failed = Counter(
        point
        for (point, _), outcome in zip(asked, outcomes, strict=True)
        if isinstance(outcome, TrainingError) and not isinstance(outcome, DamagedError)
    )
    if not checkpoints:
        raise UserError("no network of the grid is trained: every training failed, or its state is damaged")
    return Trained(checkpoints, failed, any(isinstance(outcome, DamagedError) for outcome in outcomes))


def tabulate(
    points: Sequence[Point], board: pd.DataFrame, failed: Counter[Point], recipe_of: RecipeOf
) -> pd.DataFrame:
    """Return a table with a row per point: number of seeds, of failed seeds, and the leaderboard's numbers.

    Args:
        points: The networks of the grid.
        board: A leaderboard of their checkpoints.
        failed: Number of failed seeds of each point.
        recipe_of: See `trainings`.
    """
    measured = [str(column) for column in board if column not in ENTRY_COLUMNS and column not in NAMES]
    lines = []
    for point in points:
        recipe = recipe_of(point.architecture, point.lambda_init)
        starts = interval(point.architecture, recipe)
        names = {"model": point.architecture, "lambda_init": starts, "recipe": recipe.name}
        found = board[(board[list(names)] == pd.Series(names)).all(axis=1) & (board["members"] == 1)]
        numbers = found.iloc[0][measured].to_dict() if len(found) else {}
        seeds = int(found["seeds"].iloc[0]) if len(found) else 0
        lines.append(names | {"seeds": seeds, "failed": failed[point]} | numbers)
    return pd.DataFrame(lines, columns=[*NAMES, *measured])

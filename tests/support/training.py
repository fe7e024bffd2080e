"""Trainings of one network, and of networks with arguments that no recipe has."""

from contextlib import contextmanager

import pytest

from robust_interp.training.job import Training
from robust_interp.training.recipe import Recipe
from robust_interp.training.train import train_together
from robust_interp.training.trainer import TrainingError


@contextmanager
def more_arguments(arguments):
    """Networks are built with these arguments in addition to those of their recipes."""
    plain = Recipe.model_args
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Recipe, "model_args", lambda recipe: plain(recipe) | arguments)
        yield


def train_one(
    architecture, dataset, recipe, seed, out, arguments=None, report=lambda status: None, **options
):
    """Trains one network, and raises its error if that fails."""
    what = Training(architecture, recipe, seed)
    with more_arguments(arguments or {}):
        (outcome,) = train_together(
            [what], dataset, out, report=lambda _, status: report(status), **options
        ).values()
    if isinstance(outcome, TrainingError):
        raise outcome
    return outcome

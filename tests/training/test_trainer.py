"""The loop by hand: the learning rate, what weight decay does to λ, and when a training has failed."""

import itertools
import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from robust_interp import data, zoo
from robust_interp.training import trainer
from robust_interp.training.loader import Loader
from robust_interp.training.recipe import Recipe
from robust_interp.training.side_by_side import TrainerGroup
from robust_interp.training.trainer import Trainer, TrainingError, learning_rate

DIGITS = data.DATASETS["digits"]


def test_the_learning_rate_warms_up_in_a_straight_line_and_drops_at_the_steps():
    recipe = Recipe("any", epochs=4, lr=0.1, steps=(0.5, 0.75), warmup_epochs=1)
    rates = [learning_rate(recipe, step, 4) for step in range(16)]
    expected = [0.025, 0.05, 0.075, 0.1] + 4 * [0.1] + 4 * [0.01] + 4 * [0.001]
    assert rates == pytest.approx(expected)
    assert learning_rate(replace(recipe, warmup_epochs=0), 0, 4) == 0.1


@pytest.mark.parametrize(
    ("stored", "lambda_decay", "expected"),
    [
        # without a gradient v = 0.9 v + 0.1 p, p = p - 0.5 v: 0.2, then 0.19 (v 0.02), then 0.1715 (v 0.037)
        ("lambda", True, 0.1715),
        ("keep", True, 1 - 0.8 * 0.1715 / 0.2),  # what decays is 1 - λ: λ rises to 0.314
        ("lambda", False, 0.2),
        ("keep", False, 0.2),
    ],
)
def test_weight_decay_moves_lambda_as_worked_out_by_hand(monkeypatch, stored, lambda_decay, expected):
    monkeypatch.setattr(trainer.F, "cross_entropy", lambda logits, labels: (logits * 0).sum())
    recipe = Recipe(
        "hand", 1, lr=0.5, steps=(), momentum=0.9, weight_decay=0.1, batch_size=4, lambda_decay=lambda_decay
    ).filled(DIGITS)
    model = zoo.create("in_resnet14", num_classes=10, in_chans=1, lambda_init=(0.2, 0.2), stored=stored)
    start = model.fc.weight.clone()
    images = np.random.default_rng(0).random((8, 1, 8, 8), dtype=np.float32)
    training = Trainer(model, Loader(images, np.zeros(8, dtype=np.int64), recipe, False, 0, "cpu"), recipe)
    ((_, line),) = TrainerGroup([training]).epochs(lambda *_: None, lambda: False)
    assert len(line["lambda"]) == 3
    assert list(line["lambda"].values()) == pytest.approx([expected] * 3, abs=1e-6)
    # all else decays in either case
    torch.testing.assert_close(model.fc.weight, start * (0.1715 / 0.2))


def curve(losses, accuracy=10.0):
    return [{"epoch": i, "loss": loss, "accuracy": accuracy} for i, loss in enumerate(losses, start=1)]


def check(lines, classes=10, epochs=40, steps=1000, **fields):
    recipe = Recipe("any", epochs, **fields)
    Trainer.check(SimpleNamespace(curve=lines, recipe=recipe, step=steps), classes)


def fails(lines, epochs, classes=10):
    """The first epoch after which a training with this curve has failed, and the message."""
    for done in range(1, len(lines) + 1):
        try:
            check(lines[:done], classes, epochs)
        except TrainingError as error:
            return done, str(error)
    return None


CHANCE, WELL = 2.3026, 1.0


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_has_diverged(loss):
    with pytest.raises(TrainingError, match=f"diverged: the loss of epoch 2 is {loss}"):
        check(curve([2.0, loss], accuracy=50.0))


def test_five_epochs_at_chance_are_a_failure():
    check(curve([CHANCE] * 4))
    message = r"in epochs 2 to 6 the loss stayed at 2\.303 .* accuracy at 10\.0 %"
    with pytest.raises(TrainingError, match=message):
        check(curve([2.0] + [CHANCE] * 5))
    with pytest.raises(TrainingError, match=r"chance: 4\.605"):
        check(curve([4.61] * 5, accuracy=1.0), classes=100)


@pytest.mark.parametrize(
    ("epochs", "patience"), [(10, 5), (22, 5), (40, 5), (47, 5), (48, 6), (60, 7), (160, 20), (300, 37)]
)
def test_a_long_training_may_start_at_chance_for_an_eighth_of_its_epochs(epochs, patience):
    late = curve([CHANCE] * (patience - 1) + [2.2] * (epochs - patience + 1))
    assert fails(late, epochs) is None
    again = curve(([CHANCE] * (patience - 1) + [2.2]) * (epochs // patience) + [2.2] * (epochs % patience))
    assert fails(again, epochs) is None
    assert fails(curve([CHANCE] * epochs), epochs)[0] == patience
    assert fails(curve([WELL] * 3 + [CHANCE] * (epochs - 3)), epochs)[0] == 3 + patience


@pytest.mark.parametrize(
    ("losses", "shown"),
    [
        ([CHANCE] * 2, "in epochs 1 to 2 the loss stayed at"),
        ([CHANCE] * 4, "in epochs 1 to 4 the loss stayed at"),
        ([WELL, CHANCE], "in epoch 2 the loss was"),
        ([WELL] * 6 + [CHANCE] * 4, "in epochs 7 to 10 the loss stayed at"),
        ([CHANCE] * 3 + [WELL] * 5 + [CHANCE] * 2, "in epochs 9 to 10 the loss stayed at"),
        ([WELL] * 159 + [CHANCE], "in epoch 160 the loss was"),
    ],
)
def test_a_training_that_ends_at_chance_has_failed_however_it_got_there(losses, shown):
    epoch, message = fails(curve(losses), len(losses))
    assert epoch == len(losses)
    assert message == (
        f"training ended at chance level: {shown} 2.303 (chance: 2.303) and the accuracy "
        f"{'at ' if 'stayed' in shown else ''}10.0 %"
    )


def test_the_only_epoch_of_a_training_is_no_evidence_because_it_starts_untrained():
    assert fails(curve([2.31]), 1) is None
    assert fails(curve([math.nan]), 1)[0] == 1
    # no more are two epochs of warm-up, or of one step each
    check(curve([2.31] * 2), epochs=2, warmup_epochs=2)
    check(curve([2.31] * 2), epochs=2, steps=2)
    with pytest.raises(TrainingError, match="ended at chance level"):
        check(curve([2.31] * 2), epochs=2, warmup_epochs=1, steps=20)


def test_a_slow_training_is_not_a_failure():
    check(curve([2.29] * 5))  # below ln(10) - 0.01
    check(curve([2.31] * 5, accuracy=16.0))
    check(curve([2.3026] * 4 + [2.2], accuracy=12.0))
    check(curve([4.61] * 5, accuracy=3.0), classes=100)
    check(curve([0.70] * 5, accuracy=56.0), classes=2)  # a few errors with much confidence: ln(2) is 0.693
    with pytest.raises(TrainingError, match=r"chance: 0\.693"):
        check(curve([0.70] * 5, accuracy=54.0), classes=2)


def test_a_line_of_the_curve_is_the_mean_over_images_and_the_rate_that_its_epoch_began_with(monkeypatch):
    """Losses of 1 and 4 on batches of 4 and 2 images: (4 x 1 + 2 x 4) / 6 = 2."""
    losses = itertools.cycle([1.0, 4.0])
    monkeypatch.setattr(trainer.F, "cross_entropy", lambda logits, labels: (logits * 0).sum() + next(losses))
    recipe = Recipe("hand", 2, lr=0.1, steps=(0.5,), batch_size=4).filled(DIGITS)
    model = zoo.create("preact_resnet14", num_classes=10, in_chans=1)
    images = np.random.default_rng(0).random((6, 1, 8, 8), dtype=np.float32)
    training = Trainer(model, Loader(images, np.zeros(6, np.int64), recipe, False, 0, "cpu"), recipe)
    lines = [line for _, line in TrainerGroup([training]).epochs(lambda *_: None, lambda: False)]
    assert [line["loss"] for line in lines] == [2, 2]
    assert [line["lr"] for line in lines] == pytest.approx([0.1, 0.01])


def test_a_drop_between_two_steps_comes_at_the_nearest_even_one():
    """Three quarters of 22 epochs of 391 steps are 6451.5 steps."""
    rates = [learning_rate(Recipe("any", 22), step, 391) for step in (6451, 6452)]
    assert rates == pytest.approx([0.01, 0.001])

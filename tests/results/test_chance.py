"""Which clean accuracies are no better than guessing, what is said of them, and that they have no rank."""

import numpy as np
import pytest
from support.hand_made import LABELS, attack, card, first

from robust_interp.results.chance import guessing, is_at_chance
from robust_interp.results.leaderboard import entries_frame
from robust_interp.results.ranks import about_ranks, ranked_by
from robust_interp.results.scores import Score
from robust_interp.results.warnings import findings


def clean(predictions, labels, classifier=None):
    predictions, labels = np.asarray(predictions), np.asarray(labels)
    right = predictions == labels
    row = {"n": len(labels), "protocol": "final", "subset_hash": "all", "ci_high": 100.0}
    return Score(
        classifier or card(), "clean", 100 * float(right.mean()), row, right, labels, predictions=predictions
    )


def partly_right(right, classes, n):
    """The first `right` of n images are right, and every class is predicted equally often."""
    labels = np.arange(n) % classes
    return clean(np.where(np.arange(n) < right, labels, (labels + 1) % classes), labels)


@pytest.mark.parametrize("classes", [2, 10, 100])
def test_guessing_among_balanced_classes_is_right_once_per_class(classes):
    assert guessing(partly_right(0, classes, 1000)) == pytest.approx(100 / classes)


def test_the_same_answer_for_every_image_is_guessing_whatever_the_labels():
    labels = np.array([0] * 90 + [1] * 10)
    constant = clean(np.zeros(100, int), labels)
    assert constant.accuracy == guessing(constant) == 90
    assert is_at_chance(constant)
    # 85 of the 90 and 4 of the 10: fewer right, but of 100 such answers 0.91 x 0.9 + 0.09 x 0.1 = 82.8 %
    told = clean([0] * 85 + [1] * 5 + [0] * 6 + [1] * 4, labels)
    assert guessing(told) == pytest.approx(82.8)
    assert not is_at_chance(clean(labels, labels))


@pytest.mark.parametrize(
    ("right", "n", "at_chance"),
    [
        (1000, 10_000, True),
        (1200, 10_000, True),  # 11.4 to 12.7 %: not more than 2 points above 10 %
        (1300, 10_000, False),  # from 12.4 % on
        (170, 1000, False),  # from 14.8 % on
        (140, 1000, True),  # from 12.0 % - 0.02 on
        (3, 10, True),
        (9, 10, False),
    ],
)
def test_an_accuracy_must_be_clearly_above_guessing(right, n, at_chance):
    assert is_at_chance(partly_right(right, 10, n)) is at_chance


@pytest.mark.parametrize(("right", "at_chance"), [(50, True), (100, True), (130, False), (1000, False)])
def test_of_a_thousand_classes_two_percent_are_far_above_guessing(right, at_chance):
    # 0.1 % is guessing, 0.2 % chance level; of 50,000 images 130 are 0.22 % at least, and 100 are 0.2 %
    assert is_at_chance(partly_right(right, 1000, 50_000)) is at_chance


def test_images_of_one_class_tell_nothing():
    always = clean(np.zeros(50, int), np.zeros(50, int))
    assert is_at_chance(always)
    (line,) = findings([always])
    assert "100.0 % of images that are all of one class" in line


def test_less_than_guessing_is_said_to_be_below():
    opposite = clean(1 - np.arange(100) % 2, np.arange(100) % 2)
    opposite.row["ci_high"] = 3.7  # Wilson, 0 of 100
    (line,) = findings([opposite])
    assert line.startswith(
        "net seed 0: clean accuracy 0.0 % is below chance level (50.0 % for these labels and predictions): "
    )


def test_a_score_without_predictions_is_not_judged():
    assert not is_at_chance(Score(card(), "clean", 10.0, {}, np.zeros(10, bool), LABELS[:10]))


def test_chance_level_is_remarked_on():
    (line,) = findings([partly_right(119, 10, 1000)])
    assert line.startswith(
        "net seed 0: clean accuracy 11.9 % is at chance level (10.0 % for these labels and predictions): "
    )
    (line,) = findings([partly_right(3, 10, 10)])
    assert line.endswith("accuracy 30.0 % of 10 images is not clearly above chance (10.0 %): use more images")


def under_pgd(model, right, seed=0):
    marks = np.array([mark == "1" for mark in first(right, 20)])
    row = {"n": 20, "protocol": "final", "subset_hash": "all"}
    return Score(card(model, seed), "pgd_8", 5.0 * right, row, marks, perturbations=(attack("pgd", 8),))


def test_a_constant_classifier_has_no_rank_and_the_reason_is_told():
    board = entries_frame(
        [
            clean(np.zeros(20, int), LABELS, card("constant")),
            under_pgd("constant", 2),  # 10 %, more than the real one keeps
            clean(LABELS, LABELS, card("real")),
            under_pgd("real", 1),
        ]
    )
    assert board[["model", "rank", "at_chance"]].fillna(0).values.tolist() == [
        ["real", 1, ""],
        ["constant", 0, "yes"],
    ]
    assert about_ranks(board, ranked_by(board)).endswith(
        "; no rank for 1 of 2 rows: clean accuracy not clearly above chance"
    )


def test_one_seed_at_chance_leaves_the_mean_of_several_its_rank():
    board = entries_frame(
        [
            clean(np.zeros(20, int), LABELS, card("real", 0)),
            under_pgd("real", 2, 0),
            clean(LABELS, LABELS, card("real", 1)),
            under_pgd("real", 1, 1),
        ]
    )
    assert board["rank"].tolist() == [1]
    assert "at_chance" not in board

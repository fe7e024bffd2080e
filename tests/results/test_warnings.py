"""What a reader is warned of, on hand-made scores."""

import numpy as np
import pytest

from robust_interp.results.scores import Score
from robust_interp.results.warnings import findings
from robust_interp.store.cells import ModelCard, Perturbation

CARD = ModelCard("net", {"weights": "a"}, "quick", train_seed=0, seeds=(0,))
SURE = ModelCard("net", {"weights": "a"}, "quick", train_seed=0, seeds=(0,), recorded_clean=95.0)


def score(column, accuracy, card=CARD, zero_grad=0.0, not_finite=0, open_by=0.0, **params):
    name, _, eps = column.partition("_")
    attacked = bool(eps)
    row = {
        "perturbation": name,
        "norm": "Linf" if attacked else None,
        "eps_255": float(eps) if attacked else None,
        "zero_grad": zero_grad if attacked else None,
        "ci_high": accuracy + open_by,
    }
    made = (Perturbation("attack", name, column, {"eps": float(eps) / 255, **params}),) if attacked else ()
    right = np.zeros(0, bool)
    return Score(card, column, accuracy, row, right, perturbations=made, not_finite=not_finite)


def said(accuracies, card=CARD):
    return findings([score(column, accuracy, card) for column, accuracy in accuracies.items()])


HEALTHY = {"clean": 95, "fgsm_2": 70, "ifgsm_2": 60, "pgd_2": 58, "fgsm_4": 40, "ifgsm_4": 20, "pgd_4": 18}


def test_a_healthy_run_has_no_findings():
    assert said(HEALTHY) == []
    assert said(HEALTHY, card=SURE) == []
    assert findings([]) == []


def test_clean_accuracy_below_the_checkpoints_record_is_remarked_on():
    (line,) = said({"clean": 89.9}, card=SURE)  # recorded 95, and 5 points are allowed
    assert "89.9 %" in line
    assert "95.0 %" in line
    assert said({"clean": 90.1}, card=SURE) == []
    assert said({"clean": 89.9}) == []


@pytest.mark.parametrize("iterative", ["ifgsm_2", "pgd_2"])
def test_one_step_that_beats_many_is_remarked_on(iterative):
    (line,) = said({"clean": 95, "fgsm_2": 50, iterative: 52.1})
    assert iterative in line
    assert "one FGSM step 50.0 %" in line
    assert said({"clean": 95, "fgsm_2": 50, iterative: 51.9}) == []


@pytest.mark.parametrize(("params", "lines"), [({}, 1), ({"queries": 300}, 0), ({"target": "random"}, 0)])
def test_what_does_not_follow_the_loss_may_be_weaker_than_one_step(params, lines):
    found = [score("clean", 95), score("fgsm_2", 50), score("pgd_2", 60, **params)]
    assert len(findings(found)) == lines


def test_one_step_is_compared_at_the_same_radius_only():
    assert said({"clean": 95, "fgsm_4": 30, "pgd_2": 60}) == []


def test_accuracy_that_rises_with_the_radius_is_remarked_on():
    (line,) = said({"clean": 95, "pgd_2": 50, "pgd_4": 52.1, "pgd_8": 10})
    assert "accuracy under pgd is 52.1 % at eps 4/255 and 50.0 % at 2/255" in line
    assert said({"clean": 95, "pgd_2": 50, "pgd_4": 51.9}) == []


def test_accuracy_that_rises_between_radii_of_different_attacks_is_not():
    assert said({"clean": 95, "fgsm_2": 30, "pgd_4": 50}) == []


def test_remarks_on_two_recipes_of_a_network_name_the_recipe():
    other = ModelCard("net", {"weights": "b"}, "long", train_seed=0, seeds=(0,))
    scores = [score("pgd_2", 50, zero_grad=0.25), score("pgd_2", 50, other, zero_grad=0.5)]
    assert [line.partition(",")[0] for line in findings(scores)] == ["net seed 0@quick", "net seed 0@long"]


def test_zero_gradients_are_remarked_on():
    (line,) = findings([score("clean", 95), score("pgd_2", 50, zero_grad=0.25)])
    assert "net seed 0, pgd_2" in line
    assert "25.0%" in line
    assert "not counted as robust" in line


def test_values_that_are_not_finite_are_remarked_on():
    (line,) = findings([score("clean", 95, not_finite=3)])
    assert "3 images" in line
    assert "not finite" in line


def test_each_classifier_is_judged_by_its_own_numbers():
    other = ModelCard("net", {"weights": "b"}, "quick", train_seed=1, seeds=(1,))
    scores = [score("clean", 95), score("fgsm_2", 20), score("clean", 95, other), score("pgd_2", 60, other)]
    assert findings(scores) == []
    (line,) = findings([*scores, score("fgsm_2", 30, other)])
    assert line.startswith("net seed 1")


def test_what_few_samples_leave_open_is_not_remarked_on():
    few = [
        score("clean", 60, SURE, open_by=36),
        score("fgsm_2", 40, open_by=9),
        score("pgd_2", 48, open_by=9),
    ]
    assert findings(few) == []
    assert len(findings([few[1], score("pgd_2", 50)])) == 1

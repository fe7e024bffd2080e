"""Accuracy by class and confusion matrices of hand-made cells: labels 0, 1, ... 9, 0, 1, ..."""

from dataclasses import replace

import numpy as np
import pytest
from support.hand_made import attack, card, corruption, first, run

from robust_interp.core.errors import UserError
from robust_interp.core.statistics import wilson
from robust_interp.data import DATASETS
from robust_interp.figures.classes import confusion_figure
from robust_interp.results import classes, leaderboard
from robust_interp.results.folders import of_models, runs_in
from robust_interp.results.scores import scores
from robust_interp.store import NOT_FINITE, ZERO_GRADIENT, Store
from robust_interp.store.cells import CLEAN


def table(folder, lines, column, protocol="final", **options):
    with Store(folder) as store:
        run(store, lines, protocol)
    runs, _ = runs_in([folder])
    return classes.by_class(runs, column, 10, **options), runs


def test_seeds_are_averaged_and_an_image_counts_once(tmp_path):
    lines = [(card(seed=seed), CLEAN, first(right, 20)) for seed, right in ((0, 20), (1, 15))]
    lines += [(card(seed=seed), attack("pgd", 2), first(right, 20)) for seed, right in ((0, 12), (1, 5))]
    found, runs = table(tmp_path, lines, "pgd_2", names="abcdefghij")
    # seed 0 has samples 0 to 11 right, seed 1 samples 0 to 4: of class 0 samples 0 and 10
    assert found["n"].tolist() == [2] * 10
    assert found["accuracy"].tolist() == [75, 75, 50, 50, 50, 25, 25, 25, 25, 25]
    assert found.loc[0, ["ci_low", "ci_high"]].tolist() == list(wilson(1.5, 2))
    assert (found["measurements"] == 2).all()
    assert found["name"].tolist() == list("abcdefghij")
    # a wrong prediction is the next class
    matrix = found.filter(like="predicted_").to_numpy()
    assert matrix.shape == (10, 11)
    assert matrix[0].tolist() == [3, 1, *[0] * 9]
    assert matrix[9].tolist() == [3, *[0] * 8, 1, 0]
    assert (matrix.sum(axis=1) == 4).all()
    [board] = leaderboard.entries_frame(*runs)["pgd_2"]
    assert (found["accuracy"] * found["n"]).sum() / 20 == pytest.approx(board)


def test_what_does_not_count_is_not_on_the_diagonal(tmp_path):
    flags = f"{ZERO_GRADIENT}{NOT_FINITE}00{ZERO_GRADIENT}00000"
    found, _ = table(tmp_path, [(card(), attack("pgd", 2), "1111000000", flags)], "pgd_2")
    matrix = found.filter(like="predicted_").to_numpy()
    assert found["accuracy"].tolist() == [0, 0, 100, 100, *[0] * 6]
    assert found["predicted_none"].tolist() == [1, 1, *[0] * 8]
    assert matrix[4, 5] == 1  # wrong anyway: what it was taken for is known
    assert np.diag(matrix).tolist() == [0, 0, 1, 1, *[0] * 6]


def test_a_confusion_matrix_of_very_many_classes_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(classes, "MOST_PREDICTED", 9)
    found, _ = table(tmp_path, [(card(), attack("pgd", 2), first(12, 20))], "pgd_2")
    assert found.filter(like="predicted_").empty
    assert found["accuracy"].tolist() == [100, 100, *[50] * 8]


def test_under_worst_an_image_that_is_wrong_when_clean_does_not_count(tmp_path):
    lines = [(card(), CLEAN, "0111111111"), (card(), attack("fgsm", 2), "1111100000")]
    found, runs = table(tmp_path, lines, "fgsm_2", "worst")
    assert found["accuracy"].tolist() == [0, 100, 100, 100, 100, *[0] * 5]
    assert found["predicted_none"].tolist() == [1, *[0] * 9]
    worst = classes.by_class(runs, "worst_2", 10)
    assert worst["accuracy"].tolist() == found["accuracy"].tolist()
    assert not [name for name in worst if name.startswith("predicted_")]


def test_a_corruption_is_the_mean_of_its_severities(tmp_path):
    lines = [(card(), corruption("fog", severity), first(10 - severity)) for severity in range(1, 6)]
    found, _ = table(tmp_path, lines, "fog")
    assert found["accuracy"].tolist() == [100] * 5 + [80, 60, 40, 20, 0]
    assert (found["measurements"] == 5).all()


def test_a_class_without_images_has_no_accuracy(tmp_path):
    found, _ = table(tmp_path, [(card(), CLEAN, first(3, 4))], "clean")
    assert found["n"].tolist() == [1] * 4 + [0] * 6
    assert found["accuracy"].isna().tolist() == [False] * 4 + [True] * 6


def test_an_unknown_column_or_model_is_named(tmp_path):
    with pytest.raises(UserError, match=r"unknown column 'pgd_3'; .*clean"):
        table(tmp_path, [(card(), CLEAN, first(3))], "pgd_3")
    with pytest.raises(UserError, match=r"unknown model 'nix'"):
        of_models(runs_in([tmp_path])[0], ["nix"])


PGD = attack("pgd", 2)
APART = {
    "recipe": ([(card(), PGD), (card(recipe="long"), PGD)], {"net @quick", "net @long"}),
    "precision": ([(card(), PGD), (card(), replace(PGD, precision="bf16"))], {"net", "net attacks in bf16"}),
    "attack seed": (
        [(card(), PGD), (card(), attack("pgd", 2, seed=1))],
        {"net (attack seed 0)", "net (attack seed 1)"},
    ),
    "train seed": ([(card(), PGD), (card(seed=1), PGD)], {"net (seed 0)", "net (seed 1)"}),
}


@pytest.mark.parametrize("differs", APART)
def test_lines_of_one_model_are_named_by_what_differs(tmp_path, differs):
    made, names = APART[differs]
    with Store(tmp_path) as store:
        for at, (classifier, perturbation) in enumerate(made):
            run(store, [(classifier, CLEAN, first(10)), (classifier, perturbation, first(4 + at))])
    found = classes.by_entry(classes.by_class(runs_in([tmp_path])[0], "pgd_2", 10))
    assert found.keys() == names
    assert sorted(part["accuracy"].mean() for part in found.values()) == [40, 50]
    assert all(part["label"].tolist() == list(range(10)) for part in found.values())


@pytest.mark.parametrize("name", ["digits", "cifar10", "cifar100"])
def test_each_class_has_one_name(name):
    kind = DATASETS[name]
    assert len(set(kind.class_names)) == kind.classes
    assert kind.class_names[:1] == ("0",) or list(kind.class_names) == sorted(kind.class_names)


@pytest.mark.slow
def test_the_names_are_those_of_the_official_files(cifar_root):
    from torchvision.datasets import CIFAR10

    files = CIFAR10(cifar_root, train=False)
    assert tuple(files.classes) == DATASETS["cifar10"].class_names


def test_each_entry_has_the_class_names_of_its_own_run(tmp_path):
    """Of labels 0 to 9 in one run, and of a class map with two classes in the other."""
    ten, two = tuple("abcdefghij"), ("even", "odd")
    with Store(tmp_path) as store:
        plans = [run(store, [(card(model), CLEAN, first(20, 20))]) for model in ("one", "two")]
        named = [replace(plan, class_names=names) for plan, names in zip(plans, (ten, two), strict=True)]
        (one,), (other,) = (scores(plan, store) for plan in named)
    other = replace(other, labels=other.labels % 2, predictions=other.predictions % 2)
    found = classes.by_entry(classes.by_class([[one], [other]], "clean")).values()
    assert [tuple(part["name"]) for part in found] == [ten, two]
    assert [part["n"].tolist() for part in found] == [10 * [2], [10, 10]]
    panels = confusion_figure(classes.by_entry(classes.by_class([[one], [other]], "clean"))).axes
    assert [text.get_text() for text in panels[1].get_xticklabels()] == [*ten, "none"]
    assert [text.get_text() for text in panels[3].get_xticklabels()] == ["even", "odd", "none"]
    assert panels[3].images[0].get_array().tolist() == [[100, 0, 0], [0, 100, 0]]

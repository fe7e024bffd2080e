"""Which weights of a train seed count, in everything that leaves older ones out."""

from dataclasses import replace

import pytest
from support.hand_made import attack, card, ensemble, first, run

from robust_interp.core.errors import UserError
from robust_interp.report import curves
from robust_interp.results import compare
from robust_interp.results.folders import runs_in
from robust_interp.results.newest import by_age
from robust_interp.store import Store
from robust_interp.store.cells import CLEAN

PGD = attack("pgd", 2)


def measured(folder, *runs):
    """Runs of a train seed, each with its weights and its perturbations; weights A are right on 9 of 10."""
    with Store(folder) as store:
        for weights, perturbations in runs:
            one = replace(card("a"), identity={"weights": weights})
            lines = [(one, perturbation, first({"A": 9, "B": 5}[weights])) for perturbation in perturbations]
            run(store, [*lines, *[(card("b"), perturbation, first(2)) for perturbation in perturbations]])
    return runs_in([folder])[0]


def twice_trained(folder):
    """Networks a and b of seeds 0 and 1 with their ensembles; those of a were trained again."""

    def lines(name, weights, alone, joint):
        members = [
            replace(card(name, seed), identity={"weights": f"{name}{weights}{seed}"}) for seed in (0, 1)
        ]
        return [
            *[(one, CLEAN, first(alone)) for one in members],
            (ensemble(*members), CLEAN, first(joint)),
        ]

    with Store(folder) as store:
        run(store, [*lines("a", "A", 2, 9), *lines("b", "B", 3, 5)])
        run(store, lines("a", "C", 4, 6))


def told(scores):
    return [(score.classifier.identity["weights"], score.column) for score in scores]


def test_the_weights_measured_last_count_with_all_their_scores(tmp_path):
    runs = measured(tmp_path, ("A", [CLEAN, PGD]), ("B", [CLEAN, PGD]), ("A", [CLEAN]))
    newest, older = by_age([[score for score in run if score.classifier.model == "a"] for run in runs])
    assert [told(run) for run in newest] == [[("A", "clean"), ("A", "pgd_2")], [], [("A", "clean")]]
    assert told(older) == [("B", "clean"), ("B", "pgd_2")]


def test_weights_on_other_images_are_no_older_weights(tmp_path):
    runs = measured(tmp_path, ("A", [CLEAN]))
    with Store(tmp_path) as store:
        run(store, [(replace(card("a"), identity={"weights": "B"}), CLEAN, first(5, 20))])
    assert by_age(runs_in([tmp_path])[0]).newest[0] == runs[0]
    assert by_age(runs_in([tmp_path])[0]).older == []


def test_a_comparison_and_the_curves_show_the_same_weights(tmp_path):
    runs = measured(tmp_path, ("A", [CLEAN, PGD]), ("B", [CLEAN, PGD]), ("A", [CLEAN]))
    table = curves.points(runs)
    curve = table[table["entry"] == "a"].set_index("series")["accuracy"].to_dict()
    compared = compare.from_folders([tmp_path], "a", "b")
    assert curve == {"clean": 90, "pgd": 90}
    assert compared.frame.set_index("column")["accuracy_a"].to_dict() == {"clean": 90, "pgd_2": 90}
    assert by_age(runs).trained_again() == ["a seed 0"]
    assert compared.left_out == [
        "a: train seed 0 measured with several weights; only those measured last are compared"
    ]


def test_an_ensemble_of_older_weights_is_older_too(tmp_path):
    twice_trained(tmp_path)
    compared = compare.from_folders([tmp_path], "ax2", "bx2")
    assert compared.frame["accuracy_a"].tolist() == [60]
    assert compared.left_out == [
        "ax2: train seeds 0, 1 measured with several weights; only those measured last are compared"
    ]
    runs = runs_in([tmp_path])[0]
    assert by_age(runs).trained_again() == ["a seed 0", "a seed 1", "a x2"]
    gains = curves.improvements(runs).set_index("entry")["improvement"].to_dict()
    assert gains == {"a ×2": 20, "b ×2": 20}


def test_an_ensemble_whose_member_was_trained_again_is_older(tmp_path):
    """Seed 0 of a was trained again after the ensemble was measured."""
    with Store(tmp_path) as store:
        members = [card("a", seed) for seed in (0, 1)]
        lines = [*((one, CLEAN, first(5)) for one in members), (ensemble(*members), CLEAN, first(9))]
        run(store, [*lines, (card("b"), CLEAN, first(3))])
        run(store, [(replace(members[0], identity={"weights": "again"}), CLEAN, first(7))])
    runs = runs_in([tmp_path])[0]
    assert by_age(runs).trained_again() == ["a seed 0", "a x2"]
    with pytest.raises(UserError, match="ax2 was measured before a member was trained again"):
        compare.from_folders([tmp_path], "ax2", "b")


def test_an_ensemble_is_not_older_on_images_on_which_its_members_are_the_newest(tmp_path):
    """Seed 0 of a was trained again, and measured on ten images; all of twenty is of the first weights."""
    with Store(tmp_path) as store:
        members = [card("a", seed) for seed in (0, 1)]
        on_twenty = [
            *((one, CLEAN, first(5, 20)) for one in members),
            (ensemble(*members), CLEAN, first(9, 20)),
        ]
        run(store, [(one, CLEAN, first(5)) for one in members])
        run(store, on_twenty)
        run(store, [(replace(members[0], identity={"weights": "again"}), CLEAN, first(7))])
    newest, older = by_age(runs_in([tmp_path])[0])
    assert [(score.classifier.label, score.row["n"]) for score in older] == [("a seed 0", 10)]
    assert [score.row["n"] for score in newest[1]] == [20, 20, 20]


def test_a_curve_of_an_ensemble_alone_knows_that_a_member_was_trained_again(tmp_path, command):
    old, other = card("a"), card("b")
    new = replace(old, identity={"weights": "again"})
    with Store(tmp_path / "results") as store:
        for member, right in ((old, 5), (new, 8)):
            lines = [(one, made, first(right)) for one in (member, other) for made in (CLEAN, PGD)]
            both = replace(ensemble(member, other), model="a+b", seeds=())
            run(store, [*lines, *((both, made, first(right)) for made in (CLEAN, PGD))])
    status, out, _ = command("plot", "curve", tmp_path / "results", "--models", "a+b")
    assert status == 0
    assert [line.split("|")[1].strip() for line in out.splitlines() if "pgd" in line] == ["a+b ×2"]
    assert "only the newest weights are drawn: a+b" in out

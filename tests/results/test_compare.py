"""Comparisons from hand-made stores: counts and p-values worked out from the patterns, intervals by scipy."""

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from rich.console import Console
from scipy.stats import binomtest, permutation_test, ttest_ind
from support.hand_made import LABELS, attack, card, corruption, ensemble, first, measured, run

from robust_interp.cli import console, main
from robust_interp.core.errors import UserError
from robust_interp.corruptions import GROUPS
from robust_interp.results import compare, export
from robust_interp.results.columns import COMPARISON_COLUMNS
from robust_interp.results.combine import gather
from robust_interp.store import NOT_FINITE, ZERO_GRADIENT, Outcome, Store
from robust_interp.store.cells import CLEAN, Cell, Plan

PGD = attack("pgd", 2)


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path) as store:
        yield store


@pytest.fixture
def versus(store, tmp_path):
    """Compares two entries of what was stored: the lines of the table by column."""

    def lines(a="a", b="b", **choice):
        found = compare.from_folders([tmp_path], a, b, **choice)
        return {line["column"]: line for line in found.frame.to_dict("records")}

    return lines


@pytest.fixture
def command(store, tmp_path, capsys):
    """Runs `leaderboard compare` of A,B on what was stored: exit status, standard output, standard error."""

    def compared(*argv):
        status = main.main(["leaderboard", "compare", str(tmp_path), "--models", *argv])
        return status, *capsys.readouterr()

    return compared


def refused(outcome, *parts):
    status, out, err = outcome
    assert (status, out) == (1, "")
    assert err.startswith("robust-interp: ")
    assert err.count("\n") == 1
    for part in parts:
        assert part in err
    return err


# The numbers.


def test_discordant_images_and_their_exact_test(store, versus):
    #                          012345678901
    run(store, [(card("a"), CLEAN, "111111110110"), (card("b"), CLEAN, "110000001110")])
    line = versus()["clean"]  # only a: 2 to 7; only b: 8; both: 0 1 9 10
    assert (line["only_a"], line["only_b"]) == (6, 1)
    assert (line["accuracy_a"], line["accuracy_b"]) == pytest.approx((1000 / 12, 500 / 12))
    assert line["difference"] == pytest.approx(500 / 12)
    assert line["p"] == pytest.approx(2 * (1 + 7) / 128)
    assert line["p_mid"] == pytest.approx((2 * (1 + 7) - 7) / 128)
    assert line["p"] == pytest.approx(binomtest(6, 7).pvalue)
    assert (line["seeds_a"], line["seeds_b"]) == (1, 1)
    assert (line["a"], line["b"], line["dataset"], line["protocol"], line["n"]) == (
        "a",
        "b",
        "digits",
        "final",
        12,
    )


def test_turned_round_everything_changes_its_sign(store, versus):
    measured = [("a", 0, 18), ("a", 1, 15), ("b", 0, 9), ("b", 1, 12)]
    run(store, [(card(name, seed), CLEAN, first(right, 20)) for name, seed, right in measured])
    one, other = versus("a", "b")["clean"], versus("b", "a")["clean"]
    assert (one["only_a"], one["only_b"]) == (other["only_b"], other["only_a"])
    assert one["difference"] == -other["difference"]
    assert (one["ci_low"], one["ci_high"]) == pytest.approx((-other["ci_high"], -other["ci_low"]))
    for same in ("p", "p_mid", "p_holm", "verdict"):
        assert one[same] == other[same]


SEEDS = {  # by model and train seed; 12 images
    "a": ["111111110110", "101111110110", "111111100111"],
    "b": ["110000001110", "111010001100", "010010001110"],
}


def seeds(perturbation=CLEAN):
    return [
        (card(name, seed), perturbation, pattern)
        for name, patterns in SEEDS.items()
        for seed, pattern in enumerate(patterns)
    ]


def test_over_seeds_counts_are_summed_and_images_are_what_is_tested(store, versus):
    run(store, seeds())
    right = {name: np.array([[mark == "1" for mark in row] for row in rows]) for name, rows in SEEDS.items()}
    line = versus()["clean"]
    assert line["only_a"] == (right["a"] & ~right["b"]).sum()
    assert line["only_b"] == (~right["a"] & right["b"]).sum()
    theirs = permutation_test(
        (right["a"].sum(0), right["b"].sum(0)),
        lambda one, other, axis: np.sum(one - other, axis=axis),
        permutation_type="samples",
        n_resamples=np.inf,
        vectorized=True,
    )
    assert line["p"] == pytest.approx(theirs.pvalue)
    assert line["p"] > binomtest(int(line["only_a"]), int(line["only_a"] + line["only_b"])).pvalue
    accuracies = [100 * right[name].mean(axis=1) for name in "ab"]
    interval = ttest_ind(*accuracies, equal_var=False).confidence_interval()
    assert (line["ci_low"], line["ci_high"]) == pytest.approx((interval.low, interval.high))
    assert (line["accuracy_a"], line["accuracy_b"]) == pytest.approx([mean.mean() for mean in accuracies])
    assert (line["seeds_a"], line["seeds_b"]) == (3, 3)


def test_the_accuracies_are_those_of_the_leaderboard(store, versus, tmp_path):
    noise = [corruption(name, s) for name in GROUPS["noise"] for s in range(1, 6)]
    rng = np.random.default_rng(0)
    measured = [
        (card(name, seed), perturbation, "".join(rng.choice(["0", "1"], 10)))
        for name in "ab"
        for seed in range(2)
        for perturbation in (CLEAN, *noise, attack("fgsm", 1), PGD)
    ]
    run(store, measured)
    board = gather([tmp_path])[0].set_index("model")
    lines = versus()
    columns = [name for name in board if f"{name}_std" in board]
    assert list(lines) == columns
    assert {"clean", "noise", "shot_noise", "fgsm_1", "pgd_2"} <= set(columns)
    for column, line in lines.items():
        assert line["accuracy_a"] == pytest.approx(board.loc["a", column])
        assert line["accuracy_b"] == pytest.approx(board.loc["b", column])
        parts = {"noise": 20, "shot_noise": 5}.get(column, 5 if column.endswith("_noise") else 1)
        share = (line["only_a"] - line["only_b"]) / (10 * 2 * parts)
        assert line["difference"] == pytest.approx(100 * share)


def test_five_severities_of_an_image_are_not_five_images(store, versus):
    run(
        store,
        [
            (card(name), corruption("shot_noise", severity), pattern)
            for name, pattern in (("a", "11111100"), ("b", "00000011"))
            for severity in range(1, 6)
        ],
    )
    (line,) = versus().values()
    assert (line["column"], line["only_a"], line["only_b"]) == ("shot_noise", 30, 10)
    assert line["p"] == pytest.approx(binomtest(6, 8).pvalue)


def test_p_values_are_adjusted_over_the_table(store, versus):
    patterns = {CLEAN.column: "1" * 10, "fgsm_2": "1" * 7 + "000", "pgd_2": "1" * 5 + "0" * 5}
    for perturbation in (CLEAN, attack("fgsm", 2), PGD):
        pattern = patterns[perturbation.column]
        run(store, [(card("a"), perturbation, pattern), (card("b"), perturbation, "0" * 10)])
    lines = versus()
    assert [line["p"] for line in lines.values()] == pytest.approx([2 / 2**10, 2 / 2**7, 2 / 2**5])
    assert [line["p_holm"] for line in lines.values()] == pytest.approx([6 / 2**10, 4 / 2**7, 2 / 2**5])
    assert [line["verdict"] for line in lines.values()] == [
        "significant for these weights only",
        "significant for these weights only",
        "not significant",
    ]


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ([20, 20, 19], [8, 9, 10], "significant"),
        ([8, 9, 10], [20, 20, 19], "significant"),
        ([20, 20], [19, 4], "not significant"),  # 16 images all say so, two seeds do not
        ([20, 20, 19], [19, 20, 19], "not significant"),
        ([20], [10], "significant for these weights only"),
        ([20], [16], "not significant"),
        ([20, 20], [10, 10], "significant for these weights only"),  # how much seeds differ is not known
        ([20, 20, 20], [10, 11, 10], "significant"),
    ],
)
def test_a_difference_stands_only_if_images_and_seeds_say_so(store, versus, a, b, verdict):
    run(
        store,
        [
            (card(name, seed), CLEAN, first(right, 20))
            for name, rights in (("a", a), ("b", b))
            for seed, right in enumerate(rights)
        ],
    )
    line = versus()["clean"]
    assert line["verdict"] == verdict
    known = len(a) > 1 and len({*a}) + len({*b}) > 2
    assert math.isnan(line["ci_low"]) == math.isnan(line["p_seeds"]) == (not known)


def test_several_columns_are_held_to_more_over_seeds_as_well(store, versus):
    """Each column has p = 2 / 2**17 over images, and 0.0222 over seeds: three times that is 0.0667."""
    rights = {"a": (20, 17), "b": (5, 3)}
    columns = [CLEAN, corruption("fog", 1), corruption("snow", 2)]
    run(
        store,
        [
            (card(name, seed), column, first(right, 20))
            for name, per_seed in rights.items()
            for seed, right in enumerate(per_seed)
            for column in columns
        ],
    )
    p = ttest_ind(*([5 * right for right in of_one] for of_one in rights.values()), equal_var=False).pvalue
    assert p < 0.05 < 3 * p
    for line in versus().values():
        assert line["p"] < p
        assert (line["p_seeds"], line["p_holm"]) == pytest.approx((p, 3 * p))
        assert line["ci_low"] > 0
        assert line["verdict"] == "not significant"


@pytest.mark.parametrize("flag", [ZERO_GRADIENT, NOT_FINITE])
def test_a_sample_that_could_not_be_attacked_is_not_robust_here_either(store, versus, flag):
    run(store, [(card("a"), PGD, first(9), f"{flag}" * 8 + "00"), (card("b"), PGD, first(1), "0" * 10)])
    line = versus()["pgd_2"]
    assert (line["only_a"], line["only_b"]) == (1, 1)  # a has 8 alone left, b has 0
    assert line["accuracy_a"] == line["accuracy_b"] == 10


def worst(name, clean, fgsm, pgd=None):
    attacks = [(attack("fgsm", 2), fgsm), *([(PGD, pgd)] if pgd else [])]
    return [(card(name), CLEAN, clean), *((card(name), kind, pattern) for kind, pattern in attacks)]


def test_protocol_worst_compares_what_survives_everything(store, versus):
    run(
        store,
        worst("a", "1111111100", "1111100111", "1111011111") + worst("b", "1110000011", "1" * 10, "1" * 10),
        "worst",
    )
    lines = versus()
    assert (lines["fgsm_2"]["only_a"], lines["fgsm_2"]["only_b"]) == (3, 2)  # a: 0-4 7; b: 0-2 8 9
    assert (lines["worst_2"]["accuracy_a"], lines["worst_2"]["accuracy_b"]) == (50, 50)  # a: 0-3 7
    assert (lines["worst_2"]["only_a"], lines["worst_2"]["only_b"]) == (2, 2)


# What is compared with what.


def test_only_the_seeds_that_both_have_are_compared(store, versus):
    measured = [("a", 0, 20), ("a", 1, 18), ("a", 7, 0), ("b", 0, 10), ("b", 1, 10), ("b", 3, 20)]
    run(store, [(card(name, seed), CLEAN, first(right, 20)) for name, seed, right in measured])
    line = versus()["clean"]
    assert (line["accuracy_a"], line["accuracy_b"], line["only_a"], line["seeds_a"]) == (95, 50, 18, 2)


def test_without_a_common_seed_there_is_nothing_to_compare(store, command):
    run(store, [(card("a", 0), CLEAN, first(8)), (card("b", 1), CLEAN, first(6))])
    refused(command("a,b"), "have no common column", "train seed")


def test_a_seed_that_was_trained_again_is_compared_as_it_is_now(store, versus):
    run(store, [(card("a"), CLEAN, first(0)), (card("b"), CLEAN, first(0)), (card("a"), PGD, first(9))])
    anew = replace(card("a"), identity={"weights": "trained again"})
    run(store, [(anew, CLEAN, first(10)), (card("b"), PGD, first(0))])
    lines = versus()
    assert list(lines) == ["clean"]  # the PGD of the old weights is not that of the new ones
    assert lines["clean"]["only_a"] == 10


def test_weights_that_were_measured_again_keep_all_their_scores(store, versus):
    """As in the report's curves: what the newest weights were measured on before the others did counts."""
    run(store, [(card("a"), CLEAN, first(9)), (card("a"), PGD, first(5)), (card("b"), CLEAN, first(6))])
    anew = replace(card("a"), identity={"weights": "trained again"})
    run(store, [(anew, CLEAN, first(8)), (anew, PGD, first(1)), (card("b"), PGD, first(3))])
    run(store, [(card("a"), CLEAN, first(9))])
    found = {column: line["accuracy_a"] for column, line in versus().items()}
    assert found == {"clean": 90, "pgd_2": 50}


def test_train_seeds_that_only_one_entry_has_are_named(tmp_path):
    with Store(tmp_path) as store:
        run(store, [(card("a", seed), CLEAN, first(9 - seed)) for seed in (0, 1, 2)])
        run(store, [(card("b", seed), CLEAN, first(6)) for seed in (1, 3)])
    found = compare.from_folders([tmp_path], "a", "b")
    assert found.left_out == [
        "train seed 0 of a is left out: b was not measured with it",
        "train seed 2 of a is left out: b was not measured with it",
        "train seed 3 of b is left out: a was not measured with it",
    ]
    again = compare.from_folders([tmp_path], "a@quick", "b")
    assert again.left_out[0] == "train seed 0 of a@quick is left out: b was not measured with it"
    assert found.frame["accuracy_a"].tolist() == [80]


def test_weights_that_are_left_out_are_named(tmp_path):
    other = [replace(card("a", seed), identity={"weights": f"other {seed}"}) for seed in (0, 1)]
    with Store(tmp_path) as store:
        run(store, [(card(name, seed), CLEAN, first(8)) for name in "ab" for seed in (0, 1)])
        assert compare.from_folders([tmp_path], "a", "b").left_out == []
        run(store, [(one, CLEAN, first(9)) for one in other])
    found = compare.from_folders([tmp_path], "a", "b")
    assert found.left_out == [
        "a: train seeds 0, 1 measured with several weights; only those measured last are compared"
    ]
    assert found.frame["accuracy_a"].tolist() == [90]


def trio(name, rights, together):
    members = [card(name, seed) for seed in range(len(rights))]
    measured = [(member, CLEAN, first(right, 20)) for member, right in zip(members, rights, strict=True)]
    return [*measured, (ensemble(*members), CLEAN, first(together, 20))]


def test_an_ensemble_is_compared_with_an_ensemble_and_with_single_models(store, versus):
    run(store, trio("a", (12, 14, 16), 20) + trio("b", (6, 8, 7), 10))
    both = versus("ax3", "bx3")["clean"]
    assert (both["accuracy_a"], both["accuracy_b"], both["only_a"]) == (100, 50, 10)
    assert both["p"] == pytest.approx(2 / 2**10)
    assert (both["seeds_a"], both["seeds_b"], both["verdict"]) == (1, 1, "significant for these weights only")
    single = versus("ax3", "a")["clean"]
    assert (single["accuracy_a"], single["accuracy_b"]) == (100, 70)
    assert (single["only_a"], single["only_b"]) == (8 + 6 + 4, 0)
    assert single["p"] == pytest.approx(2 / 2**8)  # eight images, seen three times
    assert (single["seeds_a"], single["seeds_b"]) == (1, 3)
    assert versus("b", "ax3")["clean"]["only_b"] == 14 + 12 + 13


def test_models_of_no_seed_are_compared_by_their_names(store, versus):
    mine = [replace(card(name, None), recipe="", lambda_init="") for name in ("mine@home", "other")]
    run(store, [(mine[0], CLEAN, first(9)), (mine[1], CLEAN, first(3))])
    assert versus("mine@home", "other")["clean"]["only_a"] == 6


def test_an_unknown_entry_is_answered_with_the_near_ones(store, command):
    run(store, trio("in_resnet20", (12, 14, 16), 20) + trio("plain_net20", (12, 14, 16), 20))
    for wrong, near in (("in_resnet21", "in_resnet20"), ("in_resnet20x5", "in_resnet20x3"), ("plain", "")):
        refused(command(f"{wrong},plain_net20"), f"unknown entry '{wrong}'", "did you mean", near)
        refused(command(f"plain_net20,{wrong}"), f"unknown entry '{wrong}'", near)
    refused(command("in_resnet20@papr,plain_net20"), "unknown entry", "in_resnet20@quick@0.20-0.25")
    refused(command("in_resnet20,in_resnet20@quick"), "the same entry")


def test_entries_that_share_a_name_are_told_apart_by_a_tag(store, command, versus):
    low = replace(card("a"), lambda_init="0.10-0.20", identity={"weights": "low"})
    run(
        store,
        [
            (card("a"), CLEAN, first(9)),
            (card("a", recipe="paper"), CLEAN, first(7)),
            (low, CLEAN, first(5)),
            (card("b"), CLEAN, first(0)),
        ],
    )
    refused(
        command("a,b"),
        "'a' matches 3 entries",
        "choose one of a@paper@0.20-0.25, a@quick@0.10-0.20, a@quick@0.20-0.25",
    )
    refused(command("a@quick,b"), "matches 2 entries", "choose one of a@0.10-0.20, a@0.20-0.25")
    assert versus("a@paper")["clean"]["only_a"] == 7
    assert versus("a@0.10-0.20")["clean"]["only_a"] == 5
    assert versus("a@quick@0.20-0.25")["clean"]["only_a"] == 9
    assert versus("a@0.20-0.25@quick", "a@paper")["clean"]["difference"] == pytest.approx(20)


def test_ensembles_of_other_seeds_are_told_apart(store, command, versus):
    zero, one, two = (card("a", seed) for seed in range(3))
    pairs = [(ensemble(zero, one), CLEAN, first(9)), (ensemble(zero, two), CLEAN, first(4))]
    run(store, [*pairs, (card("b"), CLEAN, first(0))])
    refused(command("ax2,b"), "matches 2 entries", "ax2@seeds=0,1@id=", "ax2@seeds=0,2@id=")
    assert versus("ax2@seeds=0,2")["clean"]["only_a"] == 4


def test_entries_on_other_samples_are_refused(store, command):
    run(store, [(card("a"), CLEAN, first(8, 20))])
    run(store, [(card("b"), CLEAN, first(8, 10))])
    err = refused(command("a,b"), "protocol and images", "a has final, n = 20", "b has final, n = 10")
    hashes = {part.split(")")[0] for part in err.split("(subset ")[1:]}
    assert len(hashes) == 2


def test_other_images_of_the_same_number_are_refused(store, command):
    for name, images in (("a", "one"), ("b", "two")):
        cell = Cell(card(name), "custom", images, CLEAN, {"precision": "float32", "torch": "2.9"})
        store.append(cell.key, 0, Outcome(LABELS[:10], np.zeros(10, np.uint8), None, 1.0, "cpu"))
        store.put_labels(images, LABELS)
        store.put_plan(Plan("custom", 10, "final", (cell,)))
    refused(command("a,b"), "protocol and images", "a has final, n = 10 (subset ", "b has final, n = 10")


def test_of_several_images_of_the_same_number_those_of_the_last_run_are_compared(store, versus, command):
    """As after --subset random@1: the same names, protocol and n. A run on the first images comes last."""
    for images, rights in (("one", (9, 5)), ("two", (8, 2)), ("one", (9, 5))):
        cells = []
        for name, right in zip("ab", rights, strict=True):
            cells.append(Cell(card(name), "digits", images, CLEAN, {"precision": "float32", "torch": "2.9"}))
            if not store.covered(cells[-1].key):
                predictions = np.where(np.arange(10) < right, LABELS[:10], -1).astype(np.int16)
                store.append(cells[-1].key, 0, Outcome(predictions, np.zeros(10, np.uint8), None, 1.0, "cpu"))
        store.put_labels(images, LABELS)
        store.put_plan(Plan("digits", 10, "final", tuple(cells)))
    assert versus()["clean"]["only_a"] == 4
    status, _, err = command("a,b")
    assert status == 0
    assert "both entries also have final, n = 10 (subset " in err
    assert err.count("\n") == 1


def test_protocols_are_not_mixed(store, command):
    run(store, worst("a", first(8), first(6)), "worst")
    run(store, worst("b", first(8), first(6)), "final")
    refused(command("a,b"), "the same protocol", "a has worst, n = 10", "b has final, n = 10")


def test_of_several_choices_one_is_asked_for(store, command, versus):
    for n, protocol in ((20, "final"), (10, "final"), (10, "worst")):
        run(store, worst("a", first(n, n), first(9, n)) + worst("b", first(n, n), first(1, n)), protocol)
    refused(command("a,b"), "choose one with --protocol and --n", "final, n = 20", "worst, n = 10")
    refused(command("a,b", "--n", "10"), "choose one", "final, n = 10", "worst, n = 10")
    refused(command("a,b", "--n", "15"), "protocol and images")
    assert versus(protocol="worst")["clean"]["n"] == 10
    assert versus(protocol="final", n=20)["fgsm_2"]["accuracy_a"] == 45
    status, out, _ = command("a,b", "--protocol", "final", "--n", "10")
    assert status == 0
    assert "n = 10, protocol final" in out


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (attack("pgd", 2, steps=20), attack("pgd", 2, steps=50)),
        (attack("pgd", 2, seed=0), attack("pgd", 2, seed=1)),
        (corruption("shot_noise", 3, "released"), corruption("shot_noise", 3, "generated@0")),
    ],
    ids=["parameters", "attack seed", "corruption source"],
)
def test_what_was_not_measured_in_the_same_way_is_left_out(store, command, one, other):
    run(store, [(card("a"), CLEAN, first(8)), (card("a"), one, first(8))])
    run(store, [(card("b"), CLEAN, first(6)), (card("b"), other, first(6))])
    status, out, err = command("a,b", "--format", "csv")
    assert status == 0
    assert [line["column"] for line in csv.DictReader(io.StringIO(out))] == ["clean"]
    assert err == f"warning: {one.column} is left out: it was measured with different settings\n"


def test_a_mean_over_corruptions_of_several_sources_is_left_out(store, command):
    for at, name in enumerate(GROUPS["noise"]):
        source = ("released", "generated@0")[at % 2]
        noise = [corruption(name, severity, source) for severity in range(1, 6)]
        run(store, [(card(model), made, first(8)) for model in "ab" for made in noise])
    status, out, err = command("a,b", "--format", "csv")
    assert status == 0
    assert [line["column"] for line in csv.DictReader(io.StringIO(out))] == list(GROUPS["noise"])
    assert err == "warning: noise is left out: its images are generated@0 and released\n"


def test_strong_attacks_are_named_with_the_options_that_compare_them(store, command):
    lines = [(card(name), made, first(8)) for name in "ab" for made in (CLEAN, PGD)]
    plan = measured(store, lines)
    fewer = measured(store, [(c, made, first(3, 5)) for c, made, _ in lines], "worst")
    store.put_plan(replace(plan, strong=fewer))
    status, _, err = command("a,b")
    assert status == 0
    said = "strong_... is left out, which is on other images: compare it with --protocol worst --n 5"
    assert err == f"warning: {said}\n"
    status, out, err = command("a,b", "--protocol", "worst", "--n", "5", "--format", "csv")
    assert [line["column"] for line in csv.DictReader(io.StringIO(out))] == ["strong_2"]


def test_the_worst_of_other_attacks_is_another_measurement(store, command):
    run(store, worst("a", first(8), first(6), first(5)), "worst")
    run(store, worst("b", first(8), first(6)), "worst")
    status, out, err = command("a,b", "--format", "json")
    assert status == 0
    assert [line["column"] for line in json.loads(out)] == ["clean", "fgsm_2"]
    assert "worst_2 is left out" in err


def test_nothing_in_common_is_refused(store, command):
    run(store, [(card("a"), CLEAN, first(8)), (card("b"), PGD, first(6))])
    refused(command("a,b"), "a and b have no common column")


@pytest.mark.slow
def test_the_entries_and_the_folder_are_given_in_three_ways(store, tmp_path, capsys, monkeypatch):
    run(store, [(card("a"), CLEAN, first(8)), (card("b"), CLEAN, first(6))])

    def told(*argv):
        assert main.main(["leaderboard", "compare", "--format", "csv", *argv]) == 0
        return capsys.readouterr().out

    tables = {
        told(str(tmp_path), "--models", "a,b"),
        told("a", "b", "--results", str(tmp_path)),  # as it was spelt once
        told("--models", "a,b", "--results", str(tmp_path)),
    }
    monkeypatch.chdir(tmp_path.parent)
    (tmp_path.parent / "results").symlink_to(tmp_path)
    tables |= {told("a", "b"), told("--models", "a,b")}
    assert len(tables) == 1


def test_the_commas_of_a_tag_separate_no_entries(store, command):
    members = [card("a", seed) for seed in (0, 1, 2)]
    pairs = [ensemble(*members[:2]), ensemble(members[0], members[2])]
    run(store, [(pairs[0], CLEAN, first(8)), (pairs[1], CLEAN, first(6))])
    status, out, _ = command("ax2@seeds=0,1,ax2@seeds=0,2", "--format", "csv")
    assert status == 0
    assert out.splitlines()[1].split(",clean,")[1].startswith("80.00,60.00,20.00,")


def test_a_file_is_no_results_folder(command, tmp_path):
    (tmp_path / "board.csv").touch()
    with pytest.raises(UserError, match="is a file, and a results folder is needed"):
        compare.from_folders([tmp_path / "board.csv"], "a", "b")


@pytest.mark.parametrize(
    "options", [["a"], [], ["a,b,c"], ["a,b", "--n", "0"], ["a,b", "--protocol", "best"]]
)
def test_bad_usage_is_one_line(command, capsys, options):
    with pytest.raises(SystemExit) as stop:
        command(*options)
    assert stop.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


# What is printed.


CSV = (
    "a,b,dataset,protocol,n,subset_hash,column,accuracy_a,accuracy_b,difference,only_a,only_b,"
    "p,p_mid,p_seeds,p_holm,ci_low,ci_high,seeds_a,seeds_b,verdict\n"
    # Nine images of size 2 and two of size 1: p = 2 / 2**11. Welch: the difference 50 has the standard error
    # 3.535534 and two degrees of freedom, t at 0.975 is 4.3026527.
    "a,b,digits,final,20,{hash},clean,97.50,47.50,50.00,20,0,0.000977,0.000488,0.00496,0.00993,"
    "34.787825,65.212175,2,2,significant\n"
    "a,b,digits,final,20,{hash},pgd_2,5.00,0.00,5.00,1,0,1,0.5,,1,,,1,1,not significant\n"
)


def two_columns(store):
    run(
        store,
        [
            *((card("a", seed), CLEAN, first(20 - seed, 20)) for seed in range(2)),
            *((card("b", seed), CLEAN, first(10 - seed, 20)) for seed in range(2)),
            (card("a"), PGD, first(1, 20)),
            (card("b"), PGD, first(0, 20)),
        ],
    )


def test_the_formats_hold_the_same_numbers(store, command):
    two_columns(store)
    _, text, _ = command("a,b", "--format", "csv")
    assert command("a,b", "--format", "csv")[1] == text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert text == CSV.format(hash=rows[0]["subset_hash"])
    _, markdown, _ = command("a,b", "--format", "markdown")
    lines = [[part.strip() for part in line.strip("|").split("|")] for line in markdown.splitlines()]
    assert [lines[0], *lines[2:]] == list(
        csv.reader(io.StringIO(text.replace("787825", "79").replace("212175", "21")))
    )
    first_line, second = json.loads(command("a,b", "--format", "json")[1])
    assert (first_line["p"], first_line["only_a"], first_line["ci_low"]) == (0.000977, 20, 34.787825)
    assert (second["p"], second["ci_low"], second["verdict"]) == (1, None, "not significant")


def test_the_columns_are_the_contract():
    assert CSV.splitlines()[0].split(",") == COMPARISON_COLUMNS


def test_small_p_values_are_not_rounded_to_nothing():
    frame = pd.DataFrame({"p": [1.23456e-20], "p_holm": [0.049999], "difference": [0.0]})
    assert export.to_csv(frame).splitlines()[1] == "1.23e-20,0.05,0.00"


def test_the_table_says_what_was_compared_and_what_no_seed_interval_means(store, command):
    two_columns(store)
    status, out, err = command("a,b")
    assert (status, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == "A a, B b: digits, n = 20, protocol final; accuracy in %, means of 1 to 2 train seeds"
    words = [" ".join(line.split()) for line in lines]
    assert words[2] == "clean 97.5 47.5 +50.0 20 / 0 0.00098 0.005 0.0099 +34.8 to +65.2 significant"
    assert words[3] == "pgd_2 5.0 0.0 +5.0 1 / 0 1 1 not significant"
    assert "no interval over seeds" in lines[5]


def test_the_table_says_how_many_train_seeds_each_mean_is_over(store, command):
    two = [(card("a", seed), CLEAN, first(8 - seed)) for seed in (0, 1)]
    run(store, [*two, (ensemble(*(one for one, *_ in two)), CLEAN, first(9)), (card("b"), CLEAN, first(2))])
    told = {
        "a,ax2": ", A the mean of 2 train seeds",
        "ax2,a": ", B the mean of 2 train seeds",
        "ax2,b": "",
    }
    for names, said in told.items():
        assert command(names)[1].splitlines()[0].endswith(f"accuracy in %{said}")


def test_a_narrow_terminal_gets_one_table_that_fits(store, tmp_path, capsys, monkeypatch):
    two_columns(store)
    monkeypatch.setattr(
        console, "console", lambda: Console(width=50, force_terminal=True, color_system=None, markup=False)
    )
    console.print_comparison(compare.from_folders([tmp_path], "a", "b"))
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line.rstrip()) for line in lines) <= 50
    assert sum(line.split()[:1] == ["clean"] for line in lines) == 1
    assert "significant" in "\n".join(lines)
    # 8 + 7 + 6 + 7 characters of column, A, B and A - B leave room for 12 of a verdict, and Holm p has 8
    assert "not shown for lack of space: only A / B, p, " in " ".join(lines)


def test_the_folder_and_the_dataset_are_chosen_as_for_the_leaderboard(store, command, tmp_path, capsys):
    for dataset in ("digits", "cifar10"):
        run(store, [(card("a"), CLEAN, first(8)), (card("b"), CLEAN, first(6))], dataset=dataset)
    refused(command("a,b"), "cifar10, digits", "--dataset")
    assert "cifar10, n = 10" in command("a,b", "--dataset", "cifar10")[1]
    with pytest.raises(UserError, match="there are no results in"):
        compare.from_folders([tmp_path / "nowhere"], "a", "b")
    with pytest.raises(UserError, match="digits is a bundled leaderboard, without predictions: name a res"):
        compare.from_folders([Path("digits")], "a", "b")


def test_a_further_accuracy_of_rounded_images_is_no_difference_of_the_attack(store, versus):
    whole, rounded = attack("pgd", 2), replace(attack("pgd", 2), rounded=True)
    run(store, [(card("a"), whole, first(8)), (card("b"), rounded, first(5))])
    assert versus()["pgd_2"]["difference"] == pytest.approx(30)

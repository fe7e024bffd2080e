"""Tables from hand-made stores: ten samples a cell, every expected value worked out from the patterns."""

import csv
import io
import json
import math
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from support.hand_made import LABELS, attack, card, corruption, ensemble, first, measured, run

from robust_interp.cli.main import main
from robust_interp.core.errors import UserError
from robust_interp.core.files import write_text
from robust_interp.results import brief, export, leaderboard, ranks
from robust_interp.results.columns import RESULT_COLUMNS
from robust_interp.results.combine import gather
from robust_interp.results.export import results_csv
from robust_interp.results.folders import write
from robust_interp.results.scores import results_frame, scores
from robust_interp.store import FILE_NAME, NOT_FINITE, ZERO_GRADIENT, Outcome, Store, unfinished
from robust_interp.store.cells import CLEAN, Cell, Plan

NOISES = ("impulse_noise", "speckle_noise", "gaussian_noise", "shot_noise")


def board(store, *measured, protocol="final"):
    """The leaderboard of one run, one line a dict."""
    scored = scores(run(store, measured, protocol), store)
    return leaderboard.entries_frame(scored).to_dict("records")


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path) as store:
        yield store


def test_the_columns_of_results_csv_are_the_contract():
    assert ",".join(RESULT_COLUMNS) == (
        "model,weights_sha256,recipe,lambda_init,train_seed,members,dataset,subset_hash,n,"
        "perturbation,norm,eps_255,alpha_255,steps,restarts,severity,attack_seed,protocol,"
        "accuracy,ci_low,ci_high,max_delta_255,zero_grad,asr,agreement,improvement,corruption_source,"
        "precision,torch,torchattacks,device,seconds"
    )


def test_the_columns_of_the_leaderboard_are_the_contract(store, tmp_path):
    measured = [(card(), CLEAN, first(9))]
    measured += [(card(), corruption(name, s), first(5)) for name in NOISES for s in range(1, 6)]
    measured += [
        (card(), attack(name, eps), first(4)) for name in ("fgsm", "ifgsm", "pgd") for eps in (1, 2, 4)
    ]
    scored = scores(run(store, measured), store)
    write(tmp_path, results_frame(scored), leaderboard.entries_frame(scored))
    head = (tmp_path / "leaderboard.csv").read_text().splitlines()[0]
    assert head == (
        "rank,model,recipe,lambda_init,seeds,members,params_m,n_examples,protocol,agreement,improvement,"
        "clean,clean_std,noise,noise_std,"
        "impulse_noise,impulse_noise_std,speckle_noise,speckle_noise_std,"
        "gaussian_noise,gaussian_noise_std,shot_noise,shot_noise_std,"
        "fgsm_1,fgsm_1_std,fgsm_2,fgsm_2_std,fgsm_4,fgsm_4_std,"
        "ifgsm_1,ifgsm_1_std,ifgsm_2,ifgsm_2_std,ifgsm_4,ifgsm_4_std,"
        "pgd_1,pgd_1_std,pgd_2,pgd_2_std,pgd_4,pgd_4_std,"
        "corruption_source,source"
    )
    assert (tmp_path / "results.csv").read_text().splitlines()[0] == ",".join(RESULT_COLUMNS)
    assert len((tmp_path / "results.csv").read_text().splitlines()) == 1 + 1 + 20 + 9


def test_a_line_of_results_csv_says_what_was_measured(store):
    classifier = card(weights_sha256="abc")
    pgd = attack("pgd", 2, seed=7, alpha=0.5 / 255, steps=5)
    plan = run(
        store,
        [
            (classifier, CLEAN, first(9)),
            (classifier, pgd, first(8)),
            (classifier, corruption("shot_noise", 3), first(5)),
        ],
    )
    clean, attacked, noisy = results_frame(scores(plan, store)).to_dict("records")
    for line in (clean, attacked, noisy):
        assert (line["model"], line["weights_sha256"], line["recipe"]) == ("net", "abc", "quick")
        assert (line["lambda_init"], line["train_seed"], line["members"]) == ("0.20-0.25", 0, 1)
        assert (line["dataset"], line["n"], line["protocol"]) == ("digits", 10, "final")
        assert (line["precision"], line["torch"], line["device"]) == ("float32", "2.9", "cpu")
        assert line["seconds"] == 2.0
    assert [line["perturbation"] for line in (clean, attacked, noisy)] == ["clean", "pgd", "shot_noise"]
    assert (attacked["norm"], attacked["eps_255"], attacked["alpha_255"]) == ("Linf", 2.0, 0.5)
    assert (attacked["steps"], attacked["restarts"], attacked["attack_seed"]) == (5, 1, 7)
    assert (attacked["max_delta_255"], attacked["zero_grad"], attacked["torchattacks"]) == (2.0, 0.0, "3.5.1")
    assert (noisy["severity"], noisy["corruption_source"]) == (3, "generated@0")
    for name in ("norm", "eps_255", "steps", "attack_seed", "max_delta_255", "torchattacks"):
        assert pd.isna(clean[name])
        assert pd.isna(noisy[name])


def test_accuracy_and_its_wilson_interval(store):
    plan = run(store, [(card(), CLEAN, "1101111101"), (card(), attack("fgsm", 2), first(0))])
    clean, broken = results_frame(scores(plan, store)).to_dict("records")
    assert clean["accuracy"] == 80
    assert (clean["ci_low"], clean["ci_high"]) == pytest.approx((49.0162, 94.3318), abs=1e-4)
    assert broken["accuracy"] == 0
    assert (broken["ci_low"], broken["ci_high"]) == pytest.approx((0, 27.7533), abs=1e-4)


def test_all_rows_of_a_run_name_the_same_samples(store, tmp_path):
    def hashes(n):
        plan = run(store, [(card(), CLEAN, first(3, n)), (card("other"), attack("fgsm", 2), first(1, n))])
        return {score.row["subset_hash"] for score in scores(plan, store)}

    few, many = hashes(5), hashes(10)
    assert len(few) == len(many) == 1
    assert few != many


def test_mean_and_std_over_train_seeds(store):
    (line,) = board(
        store,
        (card(seed=0), CLEAN, first(8)),
        (card(seed=1), CLEAN, first(6)),
        (card(seed=2), CLEAN, first(10)),
    )
    assert (line["seeds"], line["members"]) == (3, 1)
    assert line["clean"] == pytest.approx(80)
    assert line["clean_std"] == pytest.approx(20)  # sqrt((0 + 400 + 400) / 2)


def test_one_seed_has_no_std(store):
    (line,) = board(store, (card(), CLEAN, first(8)))
    assert line["clean"] == 80
    assert math.isnan(line["clean_std"])


def test_recipes_and_intervals_are_entries_of_their_own(store):
    lines = board(
        store,
        (card(recipe="quick"), CLEAN, first(8)),
        (card(recipe="paper"), CLEAN, first(9)),
        (replace(card(), lambda_init="0.10-0.20", identity={"weights": "low"}), CLEAN, first(7)),
    )
    assert [(line["recipe"], line["lambda_init"], line["clean"], line["seeds"]) for line in lines] == [
        ("paper", "0.20-0.25", 90, 1),
        ("quick", "0.10-0.20", 70, 1),
        ("quick", "0.20-0.25", 80, 1),
    ]


# Right ones of ten at severities 1 to 5, by train seed and corruption.
NOISY = {
    0: {
        "impulse_noise": (10, 9, 8, 7, 6),  # mean 80
        "speckle_noise": (9, 9, 9, 9, 9),  # 90
        "gaussian_noise": (10, 8, 6, 4, 2),  # 60
        "shot_noise": (5, 4, 3, 2, 1),  # 30
    },
    1: {
        "impulse_noise": (6, 6, 6, 6, 6),  # 60
        "speckle_noise": (7, 7, 7, 7, 7),  # 70
        "gaussian_noise": (10, 10, 10, 10, 10),  # 100
        "shot_noise": (4, 4, 3, 2, 2),  # 30
    },
}


def noisy(but=None):
    return [
        (card(seed=seed), corruption(name, severity), first(right))
        for seed, by_name in NOISY.items()
        for name, counts in by_name.items()
        for severity, right in enumerate(counts, start=1)
        if (seed, name, severity) != but
    ]


def test_noise_is_the_mean_of_four_corruptions_each_the_mean_of_five_severities(store):
    (line,) = board(store, *noisy())
    expected = {  # mean and std of the two seeds' values
        "impulse_noise": (70, math.sqrt(200)),
        "speckle_noise": (80, math.sqrt(200)),
        "gaussian_noise": (80, math.sqrt(800)),
        "shot_noise": (30, 0),
        "noise": (65, 0),  # (80 + 90 + 60 + 30) / 4 and (60 + 70 + 100 + 30) / 4
    }
    for name, (mean, std) in expected.items():
        assert line[name] == pytest.approx(mean)
        assert line[f"{name}_std"] == pytest.approx(std, abs=1e-9)
    assert line["corruption_source"] == "generated@0"
    assert "shot_noise_1" not in line  # single severities stay in results.csv


def test_noise_is_absent_where_a_severity_is_missing_everywhere(store):
    measured = [cell for cell in noisy() if cell[1].column != "shot_noise_3"]
    (line,) = board(store, *measured)
    assert "noise" not in line
    assert "shot_noise" not in line
    assert line["impulse_noise"] == pytest.approx(70)
    assert line["shot_noise_2"] == 40  # what was measured of it has columns of its own


def test_severities_are_shown_of_the_entries_that_have_no_mean_of_all(store):
    whole = [(card("whole"), corruption("fog", severity), first(severity)) for severity in range(1, 6)]
    low = [(card("low"), corruption("fog", severity), first(9 - severity)) for severity in (1, 2)]
    high = [(card("high"), corruption("fog", severity), first(severity)) for severity in (3, 4, 5)]
    lines = {line["model"]: line for line in board(store, *low, *high)}
    assert "fog" not in lines["low"]
    assert (lines["low"]["fog_2"], lines["high"]["fog_4"]) == (70, 40)
    lines = {line["model"]: line for line in board(store, *low, *whole)}
    assert (lines["whole"]["fog"], lines["low"]["fog_1"], lines["low"]["fog_2"]) == (30, 80, 70)
    assert math.isnan(lines["low"]["fog"])


def test_the_worst_of_other_attacks_is_neither_ranked_with_it_nor_put_in_its_place(store):
    def measured(name, fgsm, *pgd):
        attacked = [(card(name), attack("fgsm", 2), first(fgsm))]
        return [
            (card(name), CLEAN, first(9)),
            *attacked,
            *((card(name), attack("pgd", 2), first(p)) for p in pgd),
        ]

    runs = [measured("a", 6, 3), measured("b", 5), measured("c", 7, 4), measured("a", 6)]
    frame = leaderboard.entries_frame(*(scores(run(store, lines, "worst"), store) for lines in runs))
    found = {(line["model"], line["worst_2"]): line["rank"] for line in frame.to_dict("records")}
    assert found == {("c", 40): 1, ("a", 30): 2, ("a", 60): 1, ("b", 50): 2}


def test_severities_of_a_row_are_shown_whatever_other_rows_of_the_model_have(tmp_path):
    """Of ten images severity 3 of fog and 1 and 2 of snow; of twenty all of fog, and 3 to 5 of snow."""
    with Store(tmp_path) as store:
        few = [corruption("fog", 3), corruption("snow", 1), corruption("snow", 2)]
        many = [*(corruption("fog", s) for s in range(1, 6)), *(corruption("snow", s) for s in (3, 4, 5))]
        run(store, [(card(), made, first(5)) for made in few])
        run(store, [(card(), made, first(5, 20)) for made in many])
    board = gather([tmp_path])[0].set_index("n_examples")
    assert board.loc[10, ["fog_3", "snow_1", "snow_2"]].tolist() == [50, 50, 50]
    assert board.loc[20, ["fog", "snow_3", "snow_4", "snow_5"]].tolist() == [25, 25, 25, 25]
    assert not {"fog_1", "snow"} & set(board)


def test_noise_is_empty_where_a_severity_is_missing_for_one_seed(store):
    (line,) = board(store, *noisy(but=(1, "shot_noise", 3)))
    assert math.isnan(line["noise"])
    assert math.isnan(line["shot_noise"])
    assert line["impulse_noise"] == pytest.approx(70)


def test_a_column_that_not_every_seed_has_stays_empty(store):
    (line,) = board(
        store,
        (card(seed=0), CLEAN, first(8)),
        (card(seed=1), CLEAN, first(6)),
        (card(seed=0), attack("pgd", 2), first(4)),
    )
    assert line["clean"] == pytest.approx(70)
    assert math.isnan(line["pgd_2"])
    assert math.isnan(line["pgd_2_std"])
    assert pd.isna(line["rank"])


def test_rank_is_by_pgd_at_the_middle_radius_and_ties_share_it(store):
    by_model = {"a": (9, 2, 1), "b": (1, 5, 0), "c": (8, 5, 8), "d": (9, 1, 9)}  # right at pgd_1, _2, _4
    measured = [
        (card(model), attack("pgd", eps), first(right))
        for model, counts in by_model.items()
        for eps, right in zip((1, 2, 4), counts, strict=True)
    ]
    lines = board(store, *measured)
    assert [(line["rank"], line["model"]) for line in lines] == [(1, "b"), (1, "c"), (3, "a"), (4, "d")]


def test_rank_is_empty_without_pgd(store):
    lines = board(store, (card("a"), attack("fgsm", 2), first(3)), (card("b"), attack("fgsm", 2), first(4)))
    assert [pd.isna(line["rank"]) for line in lines] == [True, True]


def test_ranks_are_given_only_within_the_same_protocol_and_n(store):
    plans = [
        run(store, [(card("a"), CLEAN, first(5, 5)), (card("a"), attack("pgd", 2), first(5, 5))]),
        run(store, [(card("b"), CLEAN, first(10)), (card("b"), attack("pgd", 2), first(1))]),
        run(store, [(card("c"), CLEAN, first(10)), (card("c"), attack("pgd", 2), first(2))]),
        run(
            store, [(card("d"), CLEAN, first(10)), (card("d"), attack("pgd", 2), first(3))], protocol="worst"
        ),
    ]
    frame = leaderboard.entries_frame(*(scores(plan, store) for plan in plans))
    assert frame[["protocol", "n_examples", "rank", "model"]].values.tolist() == [
        ["final", 10, 1, "c"],
        ["final", 10, 2, "b"],
        ["final", 5, 1, "a"],
        ["worst", 10, 1, "d"],
    ]


def test_an_ensemble_has_a_line_of_its_own(store):
    members = [card(seed=0), card(seed=1), card(seed=4)]
    lines = board(
        store,
        *((member, CLEAN, first(right)) for member, right in zip(members, (8, 6, 4), strict=True)),
        (ensemble(*members), CLEAN, first(9)),
    )
    assert [(line["seeds"], line["members"], line["clean"]) for line in lines] == [(3, 1, 60), (3, 3, 90)]
    assert math.isnan(lines[1]["clean_std"])


def test_what_has_no_train_seed_is_not_averaged(store):
    zero, one, two = (card(seed=seed) for seed in range(3))
    lines = board(store, (ensemble(zero, one), CLEAN, first(9)), (ensemble(zero, two), CLEAN, first(7)))
    assert sorted((line["seeds"], line["members"], line["clean"]) for line in lines) == [
        (2, 2, 70),
        (2, 2, 90),
    ]


# Ten samples, by hand: w = right when clean and under FGSM and under PGD.
#         0123456789
WORST = {
    "clean": "1111111100",
    "fgsm_2": "1110111001",  # final 70, worst 6: 0 1 2 4 5 6
    "pgd_2": "1101110010",  # final 60, worst 5: 0 1 3 4 5
    #     both: 0 1 4 5
    "fgsm_4": "1100000011",  # final 40, worst 2: 0 1
    "pgd_4": "0110000000",  # final 20, worst 2: 1 2
    #     both: 1
}


def worst_case():
    attacks = [(card(), attack(*name.split("_")[:1], int(name[-1])), WORST[name]) for name in list(WORST)[1:]]
    return [(card(), CLEAN, WORST["clean"]), *attacks]


def test_protocol_final_is_the_accuracy_over_all_samples(store):
    (line,) = board(store, *worst_case())
    assert {name: line[name] for name in WORST} == {
        "clean": 80,
        "fgsm_2": 70,
        "pgd_2": 60,
        "fgsm_4": 40,
        "pgd_4": 20,
    }
    assert "worst_2" not in line


def test_protocol_worst_asks_of_each_sample_to_survive_everything(store):
    (line,) = board(store, *worst_case(), protocol="worst")
    assert {name: line[name] for name in WORST} == {
        "clean": 80,
        "fgsm_2": 60,
        "pgd_2": 50,
        "fgsm_4": 20,
        "pgd_4": 20,
    }
    assert (line["worst_2"], line["worst_4"]) == (40, 10)
    assert list(line)[-7:-2] == ["worst_2", "worst_2_std", "worst_4", "worst_4_std", "worst_attacks"]


def test_ranks_order_and_files_go_by_the_attacks_at_the_ranking_radius(store, tmp_path, command):
    """At 2/255 all rows are under fgsm, at 4/255 (the middle of the two) b is under pgd, too."""
    fgsm, pgd = ({eps: attack(name, eps) for eps in (2, 4)} for name in ("fgsm", "pgd"))
    more = {"a": [], "b": [(pgd[4], 5)], "c": [(pgd[2], 6)]}
    for name, at_4 in (("a", 6), ("b", 8), ("c", 7)):
        found = [(CLEAN, 10), (fgsm[2], 9), (fgsm[4], at_4), *more[name]]
        run(store, [(card(name), made, first(right)) for made, right in found], "worst")
    board = leaderboard.entries_frame(*[scores(plan, store) for plan in store.plans()])
    told = board[["model", "rank", "worst_4", "worst_attacks"]].values.tolist()
    assert told == [
        ["c", 1, 70, "worst_2: fgsm+pgd; worst_4: fgsm"],
        ["a", 2, 60, "fgsm"],
        ["b", 1, 50, "worst_2: fgsm; worst_4: fgsm+pgd"],
    ]
    path = tmp_path / "board.csv"
    path.write_text(export.to_csv(board))
    again, _, ranked_by = gather([path])
    assert ranked_by == {"worst": "worst_4"}
    assert ranks.begins_of_groups(again, ranked_by) == [2]


def test_rows_that_differ_in_their_weights_alone_say_which(store):
    """Two runs of one train seed each, and two sets of weights without a seed."""
    plain = card("own", None, "")
    own = [replace(plain, identity={"weights": sha}, weights_sha256=sha * 64) for sha in "ab"]
    for at, classifier in enumerate([card("a", 0), card("a", 1), *own, card("b", 5)]):
        run(store, [(classifier, CLEAN, first(9 - at)), (classifier, attack("pgd", 2), first(5 - at))])
    board = leaderboard.entries_frame(*[scores(plan, store) for plan in store.plans()])
    told = dict(zip(board["clean"], board["weights"], strict=True))
    assert told == {90: "seed 0", 80: "seed 1", 70: "a" * 8, 60: "b" * 8, 50: ""}
    assert set(brief.for_readers(board)["weights"]) == {"seed 0", "seed 1", "a" * 8, "b" * 8, ""}


def test_a_seed_that_was_trained_again_has_other_weights_and_another_start_of_the_attack_has_not(store):
    again = replace(card("a"), identity={"weights": "again"})
    for classifier, start, right in ((card("a"), 0, 5), (again, 0, 4), (card("b"), 0, 3), (card("b"), 1, 2)):
        run(store, [(classifier, CLEAN, first(9)), (classifier, attack("pgd", 2, seed=start), first(right))])
    board = leaderboard.entries_frame(*[scores(plan, store) for plan in store.plans()])
    told = dict(zip(board["pgd_2"], board["weights"], strict=True))
    assert [told[20], told[30]] == ["", ""]
    assert told[40] != told[50]
    assert all(re.fullmatch("seed 0 #[0-9a-f]{6}", told[accuracy]) for accuracy in (40, 50))


def test_no_model_is_no_choice(store, command):
    for action in ([], ["classes"]):
        status, out, err = command("leaderboard", *action, "--models", "")
        assert (status, out) == (2, "")
        assert "it names no model" in err


def test_the_worst_of_other_attacks_is_ranked_apart_and_takes_no_ones_place(store):
    a, b = card("a"), card("b")
    fgsm, pgd, other_start = attack("fgsm", 2), attack("pgd", 2), attack("pgd", 2, seed=1)
    run(store, [(a, CLEAN, first(9)), (a, fgsm, first(8))], "worst")
    run(store, [(classifier, CLEAN, first(9)) for classifier in (b, a)] + both(b, a, fgsm, pgd), "worst")
    run(store, [(a, CLEAN, first(9)), (a, fgsm, first(8)), (a, other_start, first(3))], "worst")
    runs = [scores(plan, store) for plan in store.plans()]
    named = {s.row["perturbation"] for scored in runs for s in scored if s.column == "worst_2"}
    assert named == {"worst(fgsm)", "worst(fgsm+pgd)"}
    board = leaderboard.entries_frame(*runs)
    lines = sorted(board[["model", "worst_2", "rank"]].values.tolist())
    assert lines == [["a", 30, 3], ["a", 60, 1], ["a", 80, 1], ["b", 50, 2]]
    assert ranks.begins_of_groups(board, {"worst": "worst_2"}) == [1]  # one row under fgsm, three under both
    told = dict(zip(board["worst_2"], board["worst_attacks"], strict=True))
    assert told == {80: "fgsm", 60: "fgsm+pgd", 50: "fgsm+pgd", 30: "fgsm+pgd"}
    assert brief.for_readers(board)["worst_attacks"] == list(board["worst_attacks"])
    assert "images and attacks" in ranks.about_ranks(board, {"worst": "worst_2"})
    alike = board[board["worst_attacks"] != "fgsm"]
    assert "worst_attacks" not in brief.for_readers(alike)
    assert "protocol and images" in ranks.about_ranks(alike, {"worst": "worst_2"})


def both(first_classifier, second_classifier, fgsm, pgd):
    """Two classifiers under two attacks, each with a pattern of its own."""
    return [
        (first_classifier, fgsm, first(7)),
        (first_classifier, pgd, first(5)),
        (second_classifier, fgsm, first(8)),
        (second_classifier, pgd, first(6)),
    ]


def test_the_lines_that_protocol_worst_adds_to_results_csv(store):
    plan = run(store, worst_case(), protocol="worst")
    frame = results_frame(scores(plan, store))
    worst = frame[frame["perturbation"] == "worst(fgsm+pgd)"]
    assert worst[["eps_255", "accuracy"]].values.tolist() == [[2, 40], [4, 10]]
    assert worst["ci_high"].tolist() == pytest.approx([68.7326, 40.4150], abs=1e-3)
    assert set(frame["protocol"]) == {"worst"}
    assert set(worst["norm"]) == {"Linf"}


def test_protocol_worst_without_a_clean_cell_derives_nothing(store):
    assert board(store, (card(), attack("fgsm", 2), first(3)), protocol="worst") == []


@pytest.mark.parametrize("flag", [ZERO_GRADIENT, NOT_FINITE, ZERO_GRADIENT | NOT_FINITE])
@pytest.mark.parametrize("protocol", ["final", "worst"])
def test_a_sample_that_could_not_be_attacked_never_counts_as_robust(store, flag, protocol):
    flags = f"{flag}{flag}{flag}0000000"
    plan = run(store, [(card(), CLEAN, first(10)), (card(), attack("pgd", 2), first(8), flags)], protocol)
    scored = scores(plan, store)
    accuracy = {score.column: score.accuracy for score in scored}
    assert accuracy["clean"] == 100
    assert accuracy["pgd_2"] == 50  # eight right, three of them not attacked
    assert accuracy.get("worst_2", 50) == 50
    (attacked,) = [score for score in scored if score.column == "pgd_2"]
    assert attacked.row["zero_grad"] == (0.3 if flag & ZERO_GRADIENT else 0)
    assert attacked.not_finite == (3 if flag & NOT_FINITE else 0)


def test_close_radii_do_not_share_a_column(store):
    (line,) = board(
        store, (card(), attack("pgd", 8), first(3)), (card(), attack("pgd", 0.031 * 255), first(4))
    )
    assert (line["pgd_8"], line["pgd_7.905"]) == (30, 40)


def test_runs_in_one_folder_are_joined(store, tmp_path):
    seeds = [card(seed=0), card(seed=1)]
    run(store, [(seed, CLEAN, first(8)) for seed in seeds])
    run(store, [(seed, attack("pgd", 2), first(4)) for seed in seeds])
    run(store, [(card("other"), CLEAN, first(9)), (card("other"), attack("pgd", 2), first(3))])
    frame, dataset, _ = gather([tmp_path])
    assert dataset == "digits"
    assert frame[["rank", "model", "seeds", "clean", "pgd_2"]].values.tolist() == [
        [1, "net", 2, 80, 40],
        [2, "other", 1, 90, 30],
    ]


def test_runs_over_other_seeds_are_not_averaged_together(store, tmp_path):
    run(store, [(card(seed=0), CLEAN, first(8)), (card(seed=1), CLEAN, first(6))])
    run(store, [(card(seed=0), CLEAN, first(8))])
    frame, _, _ = gather([tmp_path])
    assert sorted(frame[["seeds", "clean"]].values.tolist()) == [[1, 80], [2, 70]]


def test_runs_on_other_images_of_the_same_name_are_kept_apart(store, tmp_path):
    environment = {"precision": "float32", "torch": "2.9"}
    for images, right in (("one", 4), ("two", 9)):
        cell = Cell(card(), "custom", images, attack("pgd", 2), environment)
        predictions = np.where(np.arange(10) < right, LABELS[:10], -1).astype(np.int16)
        store.append(cell.key, 0, Outcome(predictions, np.zeros(10, np.uint8), None, 1.0, "cpu"))
        store.put_labels(images, LABELS)
        store.put_plan(Plan("custom", 10, "final", (cell,)))
    frame, _, _ = gather([tmp_path])
    assert sorted(frame[["rank", "pgd_2"]].values.tolist()) == [[1, 40], [1, 90]]


def test_noise_of_several_sources_is_never_averaged_into_one_line(store, tmp_path):
    whole = [(card(), corruption("shot_noise", s, "generated@0"), first(5)) for s in range(1, 6)]
    released = [(card(), corruption("shot_noise", s, "released"), first(3)) for s in range(1, 6)]
    run(store, whole)
    run(store, released)
    frame, _, _ = gather([tmp_path])
    shown = sorted(frame[["corruption_source", "shot_noise"]].values.tolist())
    assert shown == [["generated@0", 50], ["released", 30]]


def test_attacks_of_several_seeds_stand_in_lines_of_their_own(store, tmp_path):
    def pgd(seed):
        return replace(attack("pgd", 2), seed=seed)

    run(store, [(card(), CLEAN, first(9)), (card(), pgd(0), first(5))])
    run(store, [(card(), pgd(1), first(4))])
    run(store, [(card(), corruption("shot_noise", 1, "generated@0"), first(3))])
    frame, _, _ = gather([tmp_path])
    assert sorted(frame["pgd_2"].tolist()) == [40, 50]
    assert frame.loc[frame["pgd_2"] == 50, ["clean", "shot_noise_1"]].values.tolist() == [[90, 30]]


def test_the_dataset_is_asked_for_where_a_folder_has_two(store, tmp_path, capsys):
    run(store, [(card(), CLEAN, first(8))], dataset="digits")
    run(store, [(card(), CLEAN, first(6))], dataset="cifar10")
    assert main(["leaderboard", str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "cifar10, digits" in message
    assert "--dataset" in message
    for dataset, accuracy in (("digits", 80), ("cifar10", 60)):
        frame, name, _ = gather([tmp_path], dataset)
        assert (name, frame["clean"].tolist()) == (dataset, [accuracy])
    assert main(["leaderboard", str(tmp_path), "--dataset", "cifar100"]) == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "cifar100" in message
    assert "cifar10, digits" in message


def test_a_folder_without_results_is_refused_and_left_as_it_was(tmp_path, capsys):
    assert main(["leaderboard", str(tmp_path)]) == 1
    assert f"there are no results in {tmp_path}" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_folder_without_a_finished_run_says_so(store, tmp_path, capsys):
    assert main(["leaderboard", str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "finished" in message


def severities(model, patterns):
    return [(model, corruption("fog", at), pattern) for at, pattern in enumerate(patterns, 1)]


def stopped(store, lines, left, protocol="final"):
    """Store cells of a run that was stopped before it measured `left`, (card, perturbation) each."""
    done = measured(store, lines, protocol)
    more = measured(store, [(*one, "1") for one in left], protocol)  # one image of ten
    plan = replace(done, cells=(*done.cells, *more.cells))
    unfinished.begin(plan, store)
    return plan


def half_done(store):
    """A stopped run: `a` is complete but for a severity and one seed's PGD, `b` has begun, `c` has not."""
    seeds, pgd, b = [card("a", seed) for seed in (0, 1)], attack("pgd", 2), card("b")
    lines = [(one, CLEAN, first(8 - one.train_seed)) for one in seeds]
    lines += [(seeds[0], pgd, first(5)), *severities(seeds[0], [first(7)] * 5)]
    lines += [*severities(seeds[1], [first(6)] * 4), (b, CLEAN, first(9))]
    left = [(seeds[1], pgd), (seeds[1], corruption("fog", 5)), (b, pgd), (card("c"), CLEAN)]
    return stopped(store, lines, left)


def test_of_a_stopped_run_complete_cells_are_shown_on_request(store, tmp_path, capsys):
    half_done(store)
    assert main(["leaderboard", str(tmp_path)]) == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert f"robust-interp leaderboard {tmp_path} --partial" in message
    assert main(["leaderboard", str(tmp_path), "--partial", "--format", "csv"]) == 0
    out, err = capsys.readouterr()
    assert err == ""  # nothing is damaged
    a, b = csv.DictReader(io.StringIO(out))
    assert (a["model"], a["seeds"], a["clean"], a["clean_std"]) == ("a", "2", "75.00", "7.071068")
    assert [a[f"fog_{severity}"] for severity in range(1, 5)] == ["65.00"] * 4
    assert "fog_5" not in a
    assert (a["fog"], a["pgd_2"], a["rank"]) == ("", "", "")  # one seed has them: no mean, and no rank
    assert a["incomplete"] == "12/14"
    assert (b["model"], b["clean"], b["pgd_2"], b["rank"], b["incomplete"]) == ("b", "90.00", "", "", "1/2")
    assert main(["leaderboard", str(tmp_path), "--partial"]) == 0
    table = capsys.readouterr().out
    assert "incomplete" in table
    assert "no rank for 2 of 2 rows: ranks go by pgd_<eps>, which was not measured" in table


def test_a_run_that_ends_leaves_nothing_unfinished(store, tmp_path):
    plan = half_done(store)
    run(store, [(card("z"), CLEAN, first(9)), (card("z"), attack("pgd", 2), first(4))])
    assert list(gather([tmp_path])[0]["model"]) == ["z"]
    board = gather([tmp_path], partial=True)[0].set_index("model")
    assert list(board.index) == ["z", "a", "b"]
    assert list(board["incomplete"]) == ["", "12/14", "1/2"]
    assert list(board["rank"].dropna()) == [1]
    unfinished.end(plan, store)
    assert unfinished.plans(tmp_path) == []
    pd.testing.assert_frame_equal(gather([tmp_path], partial=True)[0], gather([tmp_path])[0])


def by_code(store, version, lines):
    """A plan in which the plug-in attack `mine` was measured by one version of its code."""
    plan = measured(store, lines)
    clean, mine = plan.cells
    made = replace(mine, perturbation=attack("mine", 2), environment={**mine.environment, "plugin": version})
    store.append(made.key, 0, store.read(mine.key, plan.n))
    return replace(plan, cells=(clean, made))


def two_versions(store):
    """Plans of an older version, under which `mine` left 8 of 10, and of a newer one, which left 3."""
    return (
        by_code(store, version, [(card("a"), CLEAN, first(9)), (card("a"), attack(name, 2), first(right))])
        for version, name, right in (("v1", "mine_once", 8), ("v2", "mine_again", 3))
    )


@pytest.mark.parametrize("partial", [False, True])
def test_what_finished_after_a_stopped_run_began_is_newer(store, tmp_path, partial):
    old, new = two_versions(store)
    left = measured(store, [(card("a"), attack("pgd", 2), "1")])
    unfinished.begin(replace(old, cells=(*old.cells, *left.cells)), store)
    store.put_plan(new)
    (line,) = gather([tmp_path], partial=partial)[0].to_dict("records")
    assert line["mine_2"] == 30


def test_what_began_after_a_finished_run_is_newer(store, tmp_path):
    old, new = two_versions(store)
    store.put_plan(old)
    left = measured(store, [(card("a"), attack("pgd", 2), "1")])
    unfinished.begin(replace(new, cells=(*new.cells, *left.cells)), store)
    (line,) = gather([tmp_path], partial=True)[0].to_dict("records")
    assert (line["mine_2"], line["incomplete"]) == (30, "2/3")


def test_a_run_that_is_repeated_after_a_stopped_one_is_newer(store, tmp_path):
    old, new = two_versions(store)
    store.put_plan(new)
    left = measured(store, [(card("a"), attack("pgd", 2), "1")])
    unfinished.begin(replace(old, cells=(*old.cells, *left.cells)), store)
    store.put_plan(new)
    (line,) = gather([tmp_path], partial=True)[0].to_dict("records")
    assert line["mine_2"] == 30


def test_a_run_that_finishes_while_it_is_read_is_no_fault(store, tmp_path):
    half_done(store)
    (path,) = tmp_path.glob("unfinished-*.json")
    path.unlink()
    path.symlink_to(tmp_path / "gone")
    assert unfinished.plans(tmp_path) == []


def test_a_complete_row_of_a_stopped_run_is_not_marked_and_ranked(store, tmp_path):
    whole = [(card("a"), CLEAN, first(8)), (card("a"), attack("pgd", 2), first(4))]
    stopped(store, whole, [(card("b"), CLEAN)])
    board = gather([tmp_path], partial=True)[0]
    assert list(zip(board["model"], board["rank"], strict=True)) == [("a", 1)]
    assert "incomplete" not in board


def test_the_strong_attacks_of_a_stopped_run_count_with_their_own_images(store, tmp_path):
    lines = [(card("a"), CLEAN, first(8)), (card("a"), attack("pgd", 2), first(4))]
    done = measured(store, lines)
    strong = replace(measured(store, [(card("a"), CLEAN, first(3, 4))], "worst"), n=4)
    left = measured(store, [(card("a"), attack("apgd_ce", 2), "1")])
    unfinished.begin(replace(done, strong=replace(strong, cells=(*strong.cells, *left.cells))), store)
    (line,) = gather([tmp_path], partial=True)[0].to_dict("records")
    assert (line["clean"], line["pgd_2"], line["incomplete"]) == (80, 40, "3/4")
    assert "strong_2" not in line


def test_a_damaged_plan_is_one_line(store, tmp_path, capsys):
    half_done(store)
    (path,) = tmp_path.glob("unfinished-*.json")
    for text in ("[]", "{", path.read_text().replace('"a"', '"x"', 1).replace("quick", "other")):
        path.write_text(text)
        assert main(["leaderboard", str(tmp_path), "--partial"]) == 1
        message = capsys.readouterr().err
        assert message.count("\n") == 1
        assert f"{path} is damaged: remove it" in message


def two_entries(store):
    seeds = [card("a", seed=0), card("a", seed=1)]
    run(
        store,
        [
            (seeds[0], CLEAN, first(8)),
            (seeds[1], CLEAN, first(7)),
            (card("b", recipe="paper"), CLEAN, first(10)),
            (card("b", recipe="paper"), attack("pgd", 2), "1010100000"),
        ],
    )


CSV = (
    "rank,model,recipe,lambda_init,seeds,members,params_m,n_examples,protocol,agreement,improvement,"
    "clean,clean_std,pgd_2,pgd_2_std,corruption_source,source\n"
    "1,b,paper,0.20-0.25,1,1,0.272,10,final,,,100.00,,30.00,,,measured\n"
    ",a,quick,0.20-0.25,2,1,0.272,10,final,,,75.00,7.071068,,,,measured\n"
)


def test_the_csv_has_up_to_six_decimals_and_the_same_bytes_each_time(store, tmp_path):
    two_entries(store)
    texts = [export.to_csv(gather([tmp_path])[0]) for _ in range(2)]
    assert texts == [CSV, CSV]
    for _ in range(2):
        write(tmp_path, pd.DataFrame(), gather([tmp_path])[0])
        assert (tmp_path / "leaderboard.csv").read_bytes() == CSV.encode()


def test_the_table_of_a_file_has_the_digits_of_its_store(store, tmp_path, capsys):
    """The deviation of 60, 60 and 80 is 11.547: 11.5, but 11.6 if it were first rounded to 11.55."""
    run(store, [(card("a", seed=seed), CLEAN, first(right)) for seed, right in enumerate((6, 6, 8))])
    assert main(["leaderboard", str(tmp_path), "--format", "csv"]) == 0
    (tmp_path / "digits.csv").write_text(capsys.readouterr().out)
    for source in (tmp_path, tmp_path / "digits.csv"):
        assert main(["leaderboard", str(source), "--format", "markdown"]) == 0
        assert " 66.7 ± 11.5 " in capsys.readouterr().out


@pytest.mark.slow
def test_the_formats_of_the_leaderboard_command(store, tmp_path, capsys):
    two_entries(store)

    def printed(name, *options):
        assert main(["leaderboard", str(tmp_path), "--format", name, *options]) == 0
        return capsys.readouterr().out

    assert printed("csv") == printed("csv", "--plain-numbers") == CSV
    rows = list(csv.reader(io.StringIO(CSV)))
    lines = printed("markdown", "--plain-numbers").splitlines()
    assert len(lines) == 4
    assert set(lines[1]) == set("| -")
    for line, row in zip([lines[0], *lines[2:]], rows, strict=True):
        shorter = [text.replace("7.071068", "7.07") for text in row]
        assert [part.strip() for part in line.strip("|").split("|")] == shorter
    second = json.loads(printed("json"))[1]
    assert second["model"] == "a"
    assert (second["rank"], second["pgd_2"], second["clean"], second["clean_std"]) == (
        None,
        None,
        75,
        7.071068,
    )
    assert second["params_m"] == 0.272
    assert printed("markdown") == (
        "| rank | model | recipe | seeds | members | clean | **pgd_2** |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n"
        "| 1 | b | paper | 1 | 1 | 100.0 | 30.0 |\n"
        "|  | a | quick | 2 | 1 | 75.0 ± 7.1 |  |\n"
    )
    assert len(printed("latex", "--plain-numbers").splitlines()[3].split(" & ")) == len(rows[0])
    table = printed("table")
    assert "digits, n = 10, protocol final" in table
    assert "75.0 ±7.1" in table


def test_intervals_are_named_once_in_each_table(store, tmp_path, capsys):
    two_entries(store)  # 3 of 10: 10.8 to 60.3; 10 of 10: 72.2 to 100 (statsmodels: Wilson's interval)

    def printed(name):
        assert main(["leaderboard", str(tmp_path), "--format", name, "--intervals"]) == 0
        return capsys.readouterr().out

    named = "95 % Wilson interval over the images in brackets, ± standard deviation over train seeds"
    assert printed("markdown") == (
        "| rank | model | recipe | seeds | members | clean | **pgd_2** |\n"
        "| --- | --- | --- | --- | --- | --- | --- |\n"
        "| 1 | b | paper | 1 | 1 | 100.0 (72.2–100.0) | 30.0 (10.8–60.3) |\n"
        f"|  | a | quick | 2 | 1 | 75.0 ± 7.1 |  |\n\n{named}\n"
    )
    latex = printed("latex")
    assert r"1 & b & paper & 1 & 1 & 100.0 (72.2--100.0) & 30.0 (10.8--60.3) \\" in latex
    note = r"\par\smallskip{\footnotesize " + named.replace("%", r"\%").replace("±", r"$\pm$") + r"\par}"
    assert latex.endswith(f"\n{note}\n")
    table = printed("table")
    assert "30.0 (10.8–60.3)" in table
    assert table.count(named) == 1


@pytest.mark.parametrize("form", [["csv"], ["json"], ["markdown", "--plain-numbers"]], ids=" ".join)
def test_intervals_as_numbers_are_in_results_csv(store, tmp_path, capsys, form):
    two_entries(store)
    with pytest.raises(SystemExit) as ended:
        main(["leaderboard", str(tmp_path), "--intervals", "--format", *form])
    out, err = capsys.readouterr()
    assert (ended.value.code, out, err.count("\n")) == (2, "", 1)
    assert "ci_low and ci_high in the results.csv" in err


def test_results_keep_enough_digits_to_count_the_samples_again(store):
    plan = run(store, [(card(), CLEAN, "1100000")])
    text = results_csv(results_frame(scores(plan, store)))
    (line,) = csv.DictReader(io.StringIO(text))
    assert float(line["accuracy"]) * 7 / 100 == pytest.approx(2, abs=1e-4)


def test_a_file_that_cannot_be_written_is_one_line_and_leaves_the_old_one(tmp_path):
    (tmp_path / "leaderboard.csv").mkdir()
    with pytest.raises(UserError, match=r"cannot write .*leaderboard\.csv"):
        write_text(tmp_path / "leaderboard.csv", "text")
    assert [path.name for path in tmp_path.iterdir()] == ["leaderboard.csv"]


PROBE = """
import sys
from robust_interp.cli.main import main

def answer(*arguments):
    try:
        return main(list(arguments))
    except SystemExit as stop:
        return stop.code

assert answer("--help") == 0
assert answer("bench", "--help") == 0
assert answer("leaderboard", sys.argv[1]) == 0
assert answer("leaderboard", "compare", sys.argv[1], "--models", "a,b") == 0
heavy = {"torch", "torchvision", "torchattacks", "timm", "sklearn"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else 0)
"""


@pytest.mark.slow
def test_help_and_leaderboard_need_neither_torch_nor_timm(store, tmp_path):
    two_entries(store)
    done = subprocess.run([sys.executable, "-c", PROBE, tmp_path], capture_output=True, text=True, timeout=60)
    left_out = "warning: train seed 1 of a is left out: b was not measured with it\n"
    assert (done.returncode, done.stderr) == (0, left_out)
    assert "usage: robust-interp" in done.stdout


def test_a_published_folder_is_read_without_its_images_or_models(store, tmp_path):
    two_entries(store)
    store.close()
    alone = tmp_path / "published"
    alone.mkdir()
    (tmp_path / FILE_NAME).rename(alone / FILE_NAME)
    code = (
        "import sys; from pathlib import Path; from robust_interp.results.combine import gather; "
        "assert len(gather([Path(sys.argv[1])]).board) == 2; "
        "assert not {'torch', 'timm'} & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code, str(alone)], check=True, cwd=alone)


def test_a_recipe_that_all_lines_share_is_left_out_for_readers(store):
    shared = pd.DataFrame(board(store, (card("a"), CLEAN, first(8)), (card("b"), CLEAN, first(9))))
    assert "recipe" not in brief.for_readers(shared)
    assert "recipe" in brief.for_readers(shared.assign(recipe=["quick", "paper"]))

"""The columns strong_<eps>: the worst of the row's PGD and stronger attacks, over samples of their own."""

import csv
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from support.hand_made import attack, card, first, measured, run
from support.masked_models import trained_on_digits

import robust_interp
from robust_interp import data
from robust_interp.benchmark.plan import make_plan
from robust_interp.benchmark.request import Request
from robust_interp.benchmark.settings import corruptor_of
from robust_interp.core.errors import UserError
from robust_interp.results import columns, combine, compare, leaderboard
from robust_interp.results.scores import results_frame, scores
from robust_interp.results.warnings import findings
from robust_interp.store import INHERITED, Store
from robust_interp.store.cells import CLEAN, Plan

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

# Of the first 8 samples 6 survive PGD, and 3 all of these: 1, 3 and 4, counted from 1.
CLEAN_RIGHT, PGD, APGD_CE, APGD_T = "1111111110", "1111110000", "11110000", "10110000"


def finished(store, classifiers, n=8, stronger=("apgd_ce", "apgd_t"), protocol="final"):
    """A run over 10 samples with its strong part over the first n."""
    main, strong = [], []
    for classifier in classifiers:
        main += [(classifier, CLEAN, CLEAN_RIGHT), (classifier, attack("pgd", 2), PGD)]
        strong += [(classifier, CLEAN, CLEAN_RIGHT[:n]), (classifier, attack("pgd", 2), PGD[:n])]
        patterns = {"apgd_ce": APGD_CE, "apgd_t": APGD_T}
        strong += [(classifier, attack(name, 2, seed=0), patterns[name][:n]) for name in stronger]
    plan = replace(measured(store, main, protocol), strong=measured(store, strong, "worst"))
    store.put_plan(plan)
    return plan


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path) as store:
        yield store


def test_a_plan_with_a_strong_part_is_read_as_it_was_written(store):
    plan = finished(store, [card()])
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.key not in (replace(plan, strong=None).key, plan.strong.key)
    without = replace(plan, strong=None)
    assert Plan.from_json(without.to_json()) == without


def test_a_line_says_what_stands_against_all_of_them(store):
    table = results_frame(scores(finished(store, [card()]), store))
    assert list(table["perturbation"]) == ["clean", "pgd", "strong(pgd+apgd_ce+apgd_t)"]
    line = table.iloc[2]
    assert (line["accuracy"], line["n"], line["eps_255"], line["norm"]) == (37.5, 8, 2, "Linf")
    assert line["protocol"] == "worst"
    assert (line["ci_low"], line["ci_high"]) == pytest.approx((13.684, 69.426), abs=1e-3)  # Wilson, 3 of 8
    assert line["subset_hash"] != table.iloc[0]["subset_hash"]
    assert list(table["accuracy"][:2]) == [90, 60]


def test_a_column_stands_beside_the_row_and_does_not_rank(store, tmp_path):
    weaker = card("other")
    plan = finished(store, [card(), weaker])
    board = leaderboard.entries_frame(scores(plan, store))
    assert list(board)[len(columns.ENTRY_COLUMNS) : -2] == [
        *("clean", "clean_std", "pgd_2", "pgd_2_std", "strong_2", "strong_2_std"),
        *("strong_n", "strong_attacks"),
    ]
    assert set(board["strong_attacks"]) == {"pgd+apgd_ce+apgd_t"}
    assert list(board["strong_2"]) == [37.5, 37.5]
    assert list(board["strong_n"]) == [8, 8]
    assert list(board["rank"]) == [1, 1]  # by PGD, which is the same
    assert set(board["n_examples"]) == {10}
    assert set(board["protocol"]) == {"final"}
    rebuilt, _, _ = combine.gather([tmp_path])
    pd.testing.assert_frame_equal(rebuilt, board)


def test_the_mean_over_seeds_is_that_of_the_strong_accuracies(store):
    with Store(None) as other:
        plan = finished(other, [card(seed=0), card(seed=1)])
        (line,) = leaderboard.entries_frame(scores(plan, other)).to_dict("records")
    assert (line["strong_2"], line["strong_2_std"], line["seeds"]) == (37.5, 0, 2)


def test_runs_with_other_strong_attacks_or_samples_are_lines_of_their_own(store):
    runs = [
        scores(finished(store, [card()], **options), store)
        for options in ({}, {"n": 4}, {"stronger": ("apgd_ce",)})
    ]
    board = leaderboard.entries_frame(*runs)
    # n = 4: 1, 3 and 4 of four; without the targeted one: the first four of eight.
    assert sorted(zip(board["strong_n"], board["strong_2"], strict=True)) == [(4, 75), (8, 37.5), (8, 50)]
    plain = scores(replace(finished(store, [card()]), strong=None), store)
    assert len(leaderboard.entries_frame(runs[0], plain)) == 1


@pytest.mark.slow
def test_the_columns_are_written_read_and_merged(store, tmp_path, command):
    finished(store, [card()])
    text = command("leaderboard", tmp_path, "--format", "csv")[1]
    path = tmp_path / "board.csv"
    path.write_text(text)
    assert command("leaderboard", path, "--format", "csv")[1] == text
    (line,) = csv.DictReader(path.open())
    assert (line["strong_2"], line["strong_n"]) == ("37.50", "8")
    with Store(tmp_path / "plain") as plain:
        run(plain, [(card("b"), CLEAN, first(8)), (card("b"), attack("pgd", 2), first(5))], "worst")
    board, _, _ = combine.gather([path, tmp_path / "plain"])
    assert [name for name in board if name.startswith(("pgd", "worst", "strong")) and "_std" not in name] == [
        *("pgd_2", "worst_2", "strong_2", "strong_n", "worst_attacks", "strong_attacks"),
    ]
    assert list(board["worst_attacks"]) == ["pgd", ""]
    assert "strong_n" in command("leaderboard", path)[1]


def test_two_models_are_compared_on_the_whole_run_unless_asked_otherwise(store, tmp_path):
    finished(store, [card("a"), card("b")])
    whole = compare.from_folders([tmp_path], "a", "b")
    assert (whole.samples.protocol, whole.samples.n) == ("final", 10)
    assert list(whole.frame["column"]) == ["clean", "pgd_2"]
    strong = compare.from_folders([tmp_path], "a", "b", protocol="worst")
    assert strong.samples.n == 8
    assert list(strong.frame["column"]) == ["strong_2"]


def test_a_strong_line_is_no_sign_of_masked_gradients(store):
    scored = scores(finished(store, [card()]), store)
    assert findings(scored) == []


# ---- planned


PIXELS = data.from_arrays(np.zeros((10, 3, 6, 6), np.float32), np.arange(10), 10)


def strong_columns(**options):
    """The attacks behind each strong column of a plan, by their ball."""
    request = Request(modules={}, dataset=PIXELS, corruptions="none", **options)
    plan = make_plan(request, PIXELS, corruptor_of(request, PIXELS), [card()])
    found = {}
    for cell in plan.strong.cells:
        if cell.perturbation.kind == "attack":
            found.setdefault(cell.perturbation.ball, []).append(cell.perturbation.column)
    return found


APGD_L2 = "apgd_ce(norm=L2,eps=0.5)"


@pytest.mark.parametrize(
    ("attacked", "strong", "columns"),
    [
        # by default: every radius, with the PGD of the row
        ("fgsm,pgd", "apgd_ce", {("Linf", e): [f"pgd_{e}", f"apgd_ce_{e}"] for e in (1, 2, 4)}),
        ("none", "apgd_ce", {("Linf", e): [f"pgd_{e}", f"apgd_ce_{e}"] for e in (1, 2, 4)}),
        # another norm than PGD's: its own PGD, with the row's parameters if the row has it
        ("pgd_l2(eps=0.5)", APGD_L2, {("L2", 0.5): ["pgd_l2_0.5", "apgd_ce_l2_0.5"]}),
        ("pgd_l2(eps=0.5,steps=9)", APGD_L2, {("L2", 0.5): ["pgd_l2(steps=9)_0.5", "apgd_ce_l2_0.5"]}),
        ("pgd", APGD_L2, {("L2", 0.5): ["pgd_l2_0.5", "apgd_ce_l2_0.5"]}),
        ("pgd_l2(eps=0.25)", APGD_L2, {("L2", 0.5): ["pgd_l2_0.5", "apgd_ce_l2_0.5"]}),
        # another radius than PGD's
        ("pgd(eps=8/255)", "apgd_ce", {("Linf", e): [f"pgd_{e}", f"apgd_ce_{e}"] for e in (1, 2, 4)}),
        ("pgd", "apgd_ce(eps=8/255)", {("Linf", 8): ["pgd_8", "apgd_ce_8"]}),
        ("pgd(eps=8/255,steps=9)", "apgd_ce(eps=8/255)", {("Linf", 8): ["pgd(steps=9)_8", "apgd_ce_8"]}),
        # several balls
        (
            "pgd,pgd_l2(eps=1)",
            f"apgd_ce(eps=2/255),{APGD_L2}",
            {("Linf", 2): ["pgd_2", "apgd_ce_2"], ("L2", 0.5): ["pgd_l2_0.5", "apgd_ce_l2_0.5"]},
        ),
        # an attack that PGD does not beat is one more where another one is stronger
        ("pgd", "fgsm(eps=8/255),apgd_ce(eps=8/255)", {("Linf", 8): ["fgsm_8", "pgd_8", "apgd_ce_8"]}),
    ],
)
def test_each_strong_column_has_pgd_and_a_stronger_attack_in_its_own_ball(attacked, strong, columns):
    assert strong_columns(attacks=attacked, strong=strong) == columns


def test_pgd_that_is_added_is_the_cell_that_a_list_of_attacks_has():
    def keys(plan):
        return {c.key for c in plan.cells if c.perturbation.name == "pgd"}

    def plan(**options):
        request = Request(modules={}, dataset=PIXELS, corruptions="none", protocol="worst", **options)
        return make_plan(request, PIXELS, corruptor_of(request, PIXELS), [card()])

    listed = keys(plan(attacks="pgd"))
    assert len(listed) == 3
    assert keys(plan(attacks="none", strong="apgd_ce").strong) == listed
    assert keys(plan(attacks="pgd(eps=8/255)", strong="apgd_ce").strong) == listed


def test_pgd_that_aims_at_a_class_is_no_pgd_of_a_strong_column():
    request = Request(
        modules={}, dataset=PIXELS, corruptions="none", attacks="pgd(target=next,eps=8/255)", strong="apgd_ce"
    )
    plan = make_plan(request, PIXELS, corruptor_of(request, PIXELS), [card()])
    params = [one.perturbation.params for one in plan.strong.cells if one.perturbation.name == "pgd"]
    assert len(params) == 3
    assert not any("target" in one for one in params)


@pytest.mark.parametrize(
    ("strong", "message"),
    [
        ("cw", "strong needs attacks with an eps, and cw has none"),
        ("apgd_ce,deepfool", "strong needs attacks with an eps, and deepfool has none"),
        ("apgd_ce(eps=8/255),fgsm", "strong needs an attack stronger than pgd.*, not fgsm alone at fgsm_1"),
        (f"apgd_ce,pgd_l2(eps=1),{APGD_L2}", "not pgd_l2 alone at pgd_l2_1"),
    ],
)
def test_a_strong_attack_that_makes_no_strong_number_is_refused(strong, message):
    with pytest.raises(UserError, match=message):
        strong_columns(attacks="pgd", strong=strong)


# ---- measured


@pytest.fixture(scope="module")
def net():
    return trained_on_digits(width=64, seed=0)


QUICK = {"corruptions": "none", "eps": (16 / 255,)}


def stands(folder, n):
    """Which of the first n samples stand, by name of attack, from the store."""
    with Store(folder) as store:
        found = {}
        for plan in store.plans():
            for cell in plan.cells:
                outcome = store.read(cell.key, n)
                found[cell.perturbation.name] = outcome.correct(store.labels(cell.fingerprint))
        return found


@pytest.mark.slow
def test_it_is_the_worst_of_all_and_attacks_only_what_still_stands(tmp_path, net):
    each = "pgd,apgd_ce(steps=30),apgd_t(steps=20,targets=2)"
    robust_interp.evaluate({"net": net}, "digits", attacks=each, n=40, out=tmp_path / "each", **QUICK)
    expected = np.logical_and.reduce(list(stands(tmp_path / "each", 40).values()))
    assert 0 < expected.sum() < stands(tmp_path / "each", 40)["clean"].sum()

    strong = "apgd_ce(steps=30),apgd_t(steps=20,targets=2)"
    options = {"attacks": "fgsm,pgd", "n": 60, "strong": strong, "strong_n": 40, "out": tmp_path / "strong"}
    table = robust_interp.evaluate({"net": net}, "digits", **options, **QUICK)
    (line,) = table[table["perturbation"].str.startswith("strong")].to_dict("records")
    assert line["accuracy"] == pytest.approx(100 * expected.mean())
    assert line["n"] == 40
    assert set(table["n"][:3]) == {60}
    with Store(tmp_path / "strong") as store:
        (plan,) = store.plans()
        outcomes = {cell.perturbation.name: store.read(cell.key, 40) for cell in plan.strong.cells}
    assert outcomes["pgd"] is None  # the row's own is whole
    assert (outcomes["apgd_ce"].flags & INHERITED).any()
    assert (outcomes["apgd_t"].flags & INHERITED).sum() >= (outcomes["apgd_ce"].flags & INHERITED).sum()
    again = robust_interp.evaluate({"net": net}, "digits", **options, **QUICK)
    pd.testing.assert_frame_equal(again, table)  # seconds included: nothing was measured


HARDER = "apgd_ce(steps=20)"


@pytest.mark.parametrize("weak", ["fgsm", "fgsm,ifgsm", "pgd", "VANILA", "GN", "pgd(steps=5)"])
def test_what_is_no_stronger_than_pgd_makes_no_strong_column(weak, net):
    with pytest.raises(UserError, match="strong needs an attack stronger than pgd, such as"):
        robust_interp.evaluate({"net": net}, "digits", attacks="none", n=4, strong=weak, **QUICK)


def test_none_is_no_strong_column(net):
    table = robust_interp.evaluate({"net": net}, "digits", attacks="none", n=4, strong="none", **QUICK)
    assert list(table["perturbation"]) == ["clean"]


@pytest.mark.parametrize("strong", [True, "", 3, ["apgd_ce"]])
def test_what_names_no_strong_attack_is_refused(strong, net):
    with pytest.raises(UserError, match="strong must name attacks, such as apgd_ce,apgd_t, or be none"):
        robust_interp.evaluate({"net": net}, "digits", attacks="none", n=4, strong=strong, **QUICK)


@pytest.mark.slow
def test_by_default_it_is_pgd_and_the_first_200_samples_or_n(tmp_path, net):
    table = robust_interp.evaluate({"net": net}, "digits", attacks="none", n=30, strong=HARDER, **QUICK)
    (line,) = table[table["perturbation"].str.startswith("strong")].to_dict("records")
    assert (line["perturbation"], line["n"]) == ("strong(pgd+apgd_ce(steps=20))", 30)
    table = robust_interp.evaluate({"net": net}, "digits", attacks="none", n="all", strong=HARDER, **QUICK)
    assert list(table["n"]) == [450, 200]


@pytest.mark.slow
def test_the_command(tmp_path, tiny_zoo, command):
    quick = ("--zoo", tiny_zoo, "--n", 4, "--eps", 16, "--attacks", "none", "--corruptions", "none")
    quick += ("--models", "preact_resnet14", "--out", tmp_path, "--quiet")
    assert (
        "strong, n = 3: the worst of"
        in command("bench", *quick, "--strong", HARDER, "--strong-n", 3, "--dry-run")[1]
    )
    status, out, _ = command("bench", *quick, "--strong", HARDER, "--strong-n", 3)
    assert status == 0
    (line,) = csv.DictReader((tmp_path / "leaderboard.csv").open())
    assert line["strong_n"] == "3"
    assert line["rank"] == ""
    assert "strong_16" in out
    planned = command("bench", *quick, "--strong", "--dry-run")[1]
    assert "pgd, apgd_ce, apgd_t at eps 16" in planned


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strong_n": 5}, "strong_n needs strong"),
        ({"strong": "apgd", "n": 5}, "unknown attack 'apgd'"),
        ({"strong": "apgd_ce", "strong_n": 451}, "n must be 1 to 450"),
    ],
)
def test_what_makes_no_sense_is_refused(net, options, message):
    with pytest.raises(UserError, match=message):
        robust_interp.evaluate({"net": net}, "digits", attacks="none", **QUICK, **options)

"""The masking audit: verdicts worked out from patterns by hand, then models that hide their gradients."""

import csv
import io
import json
import sqlite3
from contextlib import closing
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from support.hand_made import attack, card, first, run
from support.masked_models import Blocked, HugeLogits, Quantised, Random, SignSaturated, trained_on_digits
from support.own_images import write_folder
from support.stored import chunks
from torch import nn

from robust_interp import data, plugins, zoo
from robust_interp.attacks import ATTACKS as KNOWN
from robust_interp.attacks import parse_attacks
from robust_interp.audit import checks
from robust_interp.audit.checks import AuditedModel, Finding, MeasuredAttack
from robust_interp.audit.options import Options
from robust_interp.audit.parts import parts_of
from robust_interp.audit.run import Audit
from robust_interp.audit.table import lines
from robust_interp.audit.thresholds import Thresholds
from robust_interp.audit.trace import trace
from robust_interp.benchmark.benchmark import Benchmark
from robust_interp.benchmark.request import Request
from robust_interp.core import statistics
from robust_interp.core.errors import UserError
from robust_interp.results import combine, leaderboard
from robust_interp.results.columns import AUDIT
from robust_interp.results.scores import scores
from robust_interp.store import FILE_NAME, Store
from robust_interp.store.cells import CLEAN, digest
from robust_interp.store.verdicts import FAIL, NOT_RUN, OPEN, PASS, WARN, Conclusion, join_conclusions, worst

USUAL = Thresholds()


def pattern(right, n=200, from_end=False):
    """The first (or last) `right` of n samples."""
    marks = np.arange(n) < right
    return marks[::-1] if from_end else marks


def left(right, name="pgd", eps_255=2.0, n=200, blind=0, **where):
    return MeasuredAttack(name, eps_255, pattern(right, n, **where), pattern(blind, n))


# ---- the checks


def test_a_challenger_fails_the_model_only_if_it_beats_every_white_box_attack():
    row, strong = left(100), left(60, "apgd_ce")
    beaten = checks.challenge("black_box", left(40, "square"), row, [row, strong])
    assert beaten.verdict == FAIL  # 10 points ahead of apgd_ce, all 20 discordant samples on one side
    assert (beaten.value, beaten.n, beaten.eps_255, beaten.threshold) == (10, 200, 2.0, 0)
    assert 0 < beaten.ci_low < 10 < beaten.ci_high + 1
    assert (
        "accuracy under square: 20.0 % (15.0 to 26.1), accuracy under apgd_ce: 30.0 % (24.1 to 36.7)"
        in beaten.detail
    )

    ahead_of_row = checks.challenge("black_box", left(80, "square"), row, [row, strong])
    assert ahead_of_row.verdict == WARN
    assert ahead_of_row.value == 10
    assert "accuracy under pgd: 50.0 %" in ahead_of_row.detail

    weaker = checks.challenge("black_box", left(120, "square"), row, [row, strong])
    assert (weaker.verdict, weaker.value) == (PASS, -30)


def test_a_challenger_that_is_ahead_within_the_interval_passes():
    row = left(100)
    assert checks.challenge("transfer", left(96, "transfer"), row, [row]).verdict == PASS  # b = 4, c = 0
    assert (
        checks.challenge("transfer", left(95, "transfer"), row, [row]).verdict == OPEN
    )  # -0.1 to 5.02 points
    assert checks.challenge("transfer", left(94, "transfer"), row, [row]).verdict == FAIL  # b = 6, p = .03125
    # As many points ahead, but on other samples: 94 and 100 discordant ones either way leave much open.
    apart = left(94, "transfer", from_end=True)
    assert checks.challenge("transfer", apart, row, [row]).verdict == OPEN


@pytest.mark.parametrize(
    ("left_over", "verdict"), [(120, PASS), (100, PASS), (96, PASS), (95, OPEN), (94, WARN), (60, WARN)]
)
def test_a_stronger_attack_may_gain_two_points(left_over, verdict):
    found = checks.gain("restarts", left(left_over, "pgd(restarts=5)"), left(100), USUAL)
    assert (found.verdict, found.value, found.threshold) == (verdict, (100 - left_over) / 2, 2)
    assert checks.gain("restarts", left(94), left(100), Thresholds(gain=3)).verdict == PASS


def test_accuracy_must_not_rise_with_the_radius():
    series = [left(60, eps_255=4.0), left(190, "clean", 0.0), left(100, eps_255=1.0), left(80, eps_255=2.0)]
    found = checks.monotone(series)
    assert [(f.eps_255, f.verdict, f.value) for f in found] == [
        (1.0, PASS, -45),
        (2.0, PASS, -10),
        (4.0, PASS, -10),
    ]
    risen = checks.monotone([left(100, eps_255=1.0), left(120, eps_255=2.0), left(122, eps_255=4.0)])
    assert [(f.verdict, f.value) for f in risen] == [(FAIL, 10), (PASS, 1)]


@pytest.mark.parametrize(
    ("standing", "verdict"), [(0, PASS), (2, PASS), (3, OPEN), (4, OPEN), (5, FAIL), (200, FAIL)]
)
def test_next_to_nothing_may_stand_in_a_large_ball(standing, verdict):
    found = checks.large_eps(left(standing, eps_255=64.0), USUAL)
    assert (found.verdict, found.value, found.threshold) == (verdict, standing / 2, 1)
    assert (found.ci_low, found.ci_high) == statistics.wilson(standing, 200)


@pytest.mark.parametrize(("blind", "verdict"), [(0, PASS), (2, PASS), (3, OPEN), (5, FAIL)])
def test_hardly_a_gradient_may_be_zero(blind, verdict):
    found = checks.gradients(left(100, blind=blind), USUAL)
    assert (found.verdict, found.value, found.n) == (verdict, blind / 2, 200)


def test_the_loss_must_rise():
    # Of four samples one ends higher; one ends lower after a rise, one where it began, and one holds a NaN.
    # Of eight steps one falls; the NaN's do not.
    four = np.array([[1.0, 1.0, 1.0, 1.0], [2.0, 3.0, 1.0, np.nan], [3.0, 0.5, 1.0, np.nan]])
    losses = np.tile(four, 25)
    rises, steps = checks.loss("pgd", 2.0, losses, USUAL)
    assert (rises.verdict, rises.value, rises.n) == (FAIL, 75, 100)
    assert (steps.verdict, steps.value) == (PASS, 12.5)
    rises, steps = checks.loss("pgd", 2.0, losses, Thresholds(flat=75, falls=5))
    assert (rises.verdict, steps.verdict) == (OPEN, WARN)  # 75 % of 100 may be 82 %
    # 12.5 successes of 100, by Wilson: centre (.125 + 1.9207/100) / 1.038415 = .138873; half-width
    # sqrt(.125 * .875 / 100 + .9604/10000) * 1.959964 / 1.038415 = .065090
    assert (steps.ci_low, steps.ci_high) == pytest.approx((7.378, 20.396), abs=2e-3)


@pytest.mark.parametrize(("steps", "verdict"), [(2, PASS), (1, NOT_RUN), (3, NOT_RUN)])
def test_steps_of_several_gradients_or_of_none_are_not_judged(steps, verdict):
    losses = np.linspace(0, 1, 3)[:, None] * np.ones(100)  # two gradients and the end
    rises, found = checks.loss("pgd", 2.0, losses, USUAL, steps)
    assert (rises.verdict, rises.value) == (PASS, 0)
    assert (found.check, found.verdict, found.n, found.eps_255) == ("loss_steps", verdict, 100, 2.0)
    if verdict == NOT_RUN:
        assert found.value is None
        assert found.detail.startswith(f"pgd computes 2 gradients in {steps} step")


def clearly_right(n):
    """Each check that goes by samples, given all that an honest network under a good attack could show."""
    none, all_of_them = left(0, n=n), left(n, "clean", 0.0, n=n)
    rising = np.linspace(0, 1, 5)[:, None] * np.ones(n)
    yield checks.gradients(none, USUAL)
    yield checks.logits("pgd", 2.0, none.stands, "", USUAL)
    yield from checks.loss("pgd", 2.0, rising, USUAL)
    yield checks.challenge("one_step", none, none, [none])
    yield from checks.monotone([all_of_them, left(0, eps_255=1.0, n=n), none])
    yield checks.large_eps(none, USUAL)
    for check in ("more_steps", "restarts", "strongest"):
        yield checks.gain(check, none, none, USUAL)
    for check in ("black_box", "transfer"):
        yield checks.challenge(check, none, none, [none])


def clearly_wrong(n):
    """The same, given the worst that there could be."""
    none, all_of_them = left(0, n=n), left(n, n=n, blind=n)
    falling = np.linspace(1, 0, 5)[:, None] * np.ones(n)
    yield checks.gradients(all_of_them, USUAL)
    yield checks.logits("pgd", 2.0, all_of_them.stands, "", USUAL)
    yield from checks.loss("pgd", 2.0, falling, USUAL)
    yield checks.challenge("one_step", none, all_of_them, [all_of_them])
    yield from checks.monotone([left(0, "clean", 0.0, n=n), left(n, eps_255=1.0, n=n)])
    yield checks.large_eps(all_of_them, USUAL)
    for check in ("more_steps", "restarts", "strongest"):
        yield checks.gain(check, none, all_of_them, USUAL)
    for check in ("black_box", "transfer"):
        yield checks.challenge(check, none, all_of_them, [all_of_them])


OF_SAMPLES = set(checks.CHECKS) - {"deterministic", "step_size"}


def test_no_check_passes_on_what_so_few_samples_cannot_tell():
    # Bounds on what may be behind none of n: z^2 / (n + z^2) of a share, z sqrt(2) / (n + 2) of a difference.
    # 20: 16.1 % and 12.6 points, 30: 11.4 % and 8.7 points, more than 5 beyond any limit but that of falls
    for n in (1, 2, 4, 20, 30):
        verdicts = {finding.check: finding.verdict for finding in clearly_right(n)}
        assert set(verdicts) == OF_SAMPLES
        few = verdicts if n < 4 else verdicts.keys() - {"loss_steps"}
        assert {verdicts[check] for check in few} == {OPEN}, n
    # 60: 6.02 %, 61: 5.93 % where 1 + 5 are allowed
    assert {finding.check for finding in clearly_right(60) if finding.verdict != PASS} == {
        "gradients",
        "large_eps",
    }
    assert {finding.verdict for finding in clearly_right(61)} == {PASS}


def test_no_check_accuses_a_model_for_what_may_be_chance():
    """One sample in twenty is 5 %, and may be 0.9 %."""
    one, none = left(1, n=20, blind=1), left(0, n=20)
    losses = np.vstack([np.zeros(20), pattern(19, 20)])
    found = [
        checks.large_eps(one, USUAL),
        checks.gradients(one, USUAL),
        checks.loss("pgd", 2.0, losses, replace(USUAL, flat=1))[0],
        checks.gain("restarts", none, one, USUAL),
        checks.challenge("black_box", none, one, [one]),
        *checks.monotone([left(0, "clean", 0.0, n=20), one]),
    ]
    assert {finding.value for finding in found} == {5}
    assert {finding.verdict for finding in found} == {OPEN}


@pytest.mark.parametrize("n", [8, 200])
def test_what_is_plainly_wrong_shows_in_a_few_samples(n):
    found = list(clearly_wrong(n))
    assert {finding.check for finding in found} == OF_SAMPLES
    warned = {"loss_steps", "more_steps", "restarts", "strongest"}
    assert {f.check: f.verdict for f in found} == {
        check: WARN if check in warned else FAIL for check in OF_SAMPLES
    }


def test_the_verdict_is_the_worst_of_those_that_were_run():
    def verdict(*each):
        return AuditedModel(card(), [Finding("gradients", one, "", 1) for one in each]).verdict

    assert verdict(PASS, WARN, PASS, NOT_RUN) == WARN
    assert verdict(WARN, FAIL, PASS) == FAIL
    assert verdict(PASS, NOT_RUN) == PASS
    assert verdict(PASS, OPEN, NOT_RUN) == OPEN
    assert verdict(OPEN, WARN) == WARN
    assert verdict() == ""


def findings(n=200, without=(), **others):
    """One of each check, all of them passed but for `others`; those in `without` were never begun."""
    return [
        Finding(check, others.get(check, PASS), "", 8 if check == "deterministic" else n)
        for check in checks.CHECKS
        if check not in without
    ]


@pytest.mark.parametrize(
    ("found", "text"),
    [
        (findings(), "pass(n=200)"),
        (findings(n=4), "pass(n=4)"),  # not the 8 images that a model is looked at for being random
        (findings(transfer=NOT_RUN), "partial(n=200,checks=13/14)"),
        (findings(without=["black_box", "strongest"]), "partial(n=200,checks=12/14)"),
        (findings(without=["black_box"], transfer=NOT_RUN), "partial(n=200,checks=12/14)"),
        (findings(n=20, large_eps=OPEN), "open(n=20)"),
        (findings(n=20, large_eps=OPEN, transfer=NOT_RUN), "open(n=20,checks=13/14)"),
        (findings(large_eps=OPEN, restarts=WARN), "warn(n=200)"),
        (findings(monotone=FAIL, restarts=WARN, without=["transfer"]), "fail(n=200,checks=13/14)"),
        ([Finding("deterministic", FAIL, "", 8)], "fail(n=8,checks=1/14)"),
    ],
)
def test_a_conclusion_says_how_many_samples_and_checks_it_rests_on(found, text):
    assert str(AuditedModel(card(), found).conclusion) == text
    assert join_conclusions([text]) == text  # and is read again as it is written


def at(eps_255, *which):
    return [Finding(check, PASS, "", 90, eps_255) for check in which]


def test_a_conclusion_names_the_radii_of_the_audited_attack():
    usual = [check for check in checks.CHECKS if check not in ("deterministic", "monotone", "large_eps")]
    found = [
        Finding("deterministic", PASS, "", 8),
        *at(2.0, *usual, "monotone"),
        *at(0.5, *usual, "monotone"),
    ]
    found += at(64.0, "monotone", "large_eps")  # where other attacks are run
    assert str(AuditedModel(card(), found).conclusion) == "pass(n=90 eps=0.5,2)"
    found = [one for one in found if one.check != "transfer"]
    text = str(AuditedModel(card(), found).conclusion)
    assert text == "partial(n=90 eps=0.5,2 checks=13/14)"
    assert join_conclusions([text]) == text


@pytest.mark.parametrize(
    ("texts", "text"),
    [
        (["pass(n=200)", "pass(n=200)"], "pass(n=200)"),
        (["pass(n=200)", "pass(n=20)"], "pass(n=20)"),
        (["pass(n=200)", "partial(n=300,checks=12/13)"], "partial(n=200,checks=12/13)"),
        (["partial(n=9,checks=12/13)", "partial(n=10,checks=9/13)"], "partial(n=9,checks=9/13)"),
        (["fail(n=8,checks=1/13)", "open(n=20)"], "fail(n=8,checks=1/13)"),
        (["open(n=20)", "partial(n=200,checks=11/13)"], "open(n=20,checks=11/13)"),
        (["pass(n=200)", ""], ""),  # one was not audited
        (["pass(n=200)", "pass"], ""),  # or it is not known on how many samples
        (["open(n=50 eps=2)", "open(n=64 eps=2)"], "open(n=50 eps=2)"),
        (["pass(n=100 eps=1,2)", "pass(n=100 eps=2,4.5)"], "pass(n=100 eps=2)"),
        (["warn(n=100 eps=1,2)", "pass(n=100 eps=2,4.5)"], "warn(n=100 eps=1,2)"),  # perhaps at 1 only
        (["warn(n=9 eps=1,2)", "warn(n=9 eps=2,4)", "pass(n=9 eps=2,8)"], "warn(n=9 eps=1,2,4)"),
        (["warn(n=100 eps=1,2)", "partial(n=90 eps=1,2 checks=9/14)"], "warn(n=90 eps=1,2 checks=9/14)"),
        (["fail(n=8,checks=1/14)", "pass(n=200 eps=2)"], "fail(n=8,checks=1/14)"),  # random: no attack
        (["pass(n=200 eps=1)", "fail(n=200 eps=2)"], ""),  # audited at no common radius
    ],
)
def test_several_audits_come_to_no_more_than_each(texts, text):
    assert join_conclusions(texts) == join_conclusions(texts[::-1]) == text


# ---- the leaderboard's column


def audited(store, classifier, verdict, dataset="digits", eps=()):
    lines_of = lines(
        AuditedModel(classifier, [one for radius in eps for one in at(radius, "step_size")]), dataset
    )
    store.put_audit(
        digest(classifier.identity),
        f"{dataset}-images",
        str(Conclusion(verdict, 200)),
        json.dumps(list(lines_of)),
    )


def boards(folder):
    board, _, _ = combine.gather([folder])
    return board


def test_the_verdict_is_a_column_of_the_leaderboard(tmp_path):
    one, two, other, old = card(seed=0), card(seed=1), card("other"), card("old")
    with Store(tmp_path) as store:
        plan = run(store, [(classifier, CLEAN, first(8)) for classifier in (one, two, other, old)])
        assert "audit" not in leaderboard.entries_frame(scores(plan, store))
        audited(store, one, PASS)
        audited(store, two, FAIL)
        audited(store, two, WARN)  # which replaces the first
        audited(store, old, FAIL, dataset="cifar10")
        direct = leaderboard.entries_frame(scores(plan, store))
    board = boards(tmp_path)
    pd.testing.assert_frame_equal(board, direct)
    assert list(board)[-3:] == ["audit", "corruption_source", "source"]
    assert dict(zip(board["model"], board["audit"], strict=True)) == {
        "net": "warn(n=200)",
        "other": "",
        "old": "",
    }


def test_the_column_names_the_audited_radii_also_of_audits_stored_without_them(tmp_path):
    one, two = card(seed=0), card(seed=1)
    with Store(tmp_path) as store:
        run(store, [(classifier, CLEAN, first(8)) for classifier in (one, two, card("other"))])
        audited(store, one, OPEN, eps=(1.0, 2.0, 4.0))
        audited(store, two, PASS, eps=(2.0, 1.0))
        audited(store, card("other"), PASS, eps=(0.5,))
        assert store.verdict(digest(one.identity), "digits-images") == "open(n=200 eps=1,2,4)"
    assert dict(zip(boards(tmp_path)["model"], boards(tmp_path)["audit"], strict=True)) == {
        "net": "open(n=200 eps=1,2,4)",
        "other": "pass(n=200 eps=0.5)",
    }


def test_an_entry_has_a_verdict_only_if_each_of_its_seeds_has(tmp_path):
    with Store(tmp_path) as store:
        run(
            store,
            [(card(seed=0), CLEAN, first(8)), (card(seed=1), CLEAN, first(8)), (card("b"), CLEAN, first(8))],
        )
        audited(store, card(seed=0), FAIL)
        audited(store, card("b"), PASS)
    assert dict(zip(boards(tmp_path)["model"], boards(tmp_path)["audit"], strict=True)) == {
        "net": "",
        "b": "pass(n=200)",
    }


@pytest.mark.slow
def test_the_column_is_written_read_and_merged(tmp_path, command):
    for folder, verdict in (("a", PASS), ("b", None)):
        with Store(tmp_path / folder) as store:
            classifier = card(folder)
            run(store, [(classifier, CLEAN, first(8)), (classifier, attack("pgd", 2), first(5))])
            if verdict:
                audited(store, classifier, verdict, eps=(1.0, 2.0))
    status, text, _ = command("leaderboard", tmp_path / "a", "--format", "csv")
    assert status == 0
    (tmp_path / "a.csv").write_text(text)
    again = command("leaderboard", tmp_path / "a.csv", "--format", "csv")[1]
    assert again == text
    (line,) = csv.DictReader(io.StringIO(text))
    assert line["audit"] == "pass(n=200 eps=1,2)"
    merged = combine.gather([tmp_path / "a.csv", tmp_path / "b"])[0]
    assert dict(zip(merged["model"], merged["audit"].fillna(""), strict=True)) == {
        "a": "pass(n=200 eps=1,2)",
        "b": "",
    }
    shown = command("leaderboard", tmp_path / "a")[1]
    assert "audit" in shown


def test_a_folder_without_an_audit_takes_none_away(tmp_path):
    for name, perturbation in (("a", CLEAN), ("b", attack("pgd", 2))):
        with Store(tmp_path / name) as store:
            run(store, [(card(), perturbation, first(8))])
            if name == "a":
                audited(store, card(), FAIL)
    for folders in ("ab", "ba"):
        board, _, _ = combine.gather([tmp_path / name for name in folders])
        assert board["audit"].tolist() == ["fail(n=200)"]


def test_a_verdict_is_not_that_of_attacks_on_another_classifier(tmp_path):
    own = card("net")
    transferred = replace(own, model="net(member:0)", attacked_as="member:0")
    with Store(tmp_path) as store:
        plan = run(store, [(one, CLEAN, first(8)) for one in (own, transferred)])
        store.put_audit(digest(own.identity), plan.cells[0].fingerprint, "pass(n=10)", "[]")
        found = {score.classifier.model: score.audit for score in scores(plan, store)}
    assert found == {"net": "pass(n=10)", "net(member:0)": ""}


def test_a_store_from_before_there_were_audits_can_be_read(tmp_path):
    with Store(tmp_path) as store:
        run(store, [(card(), CLEAN, first(8))])
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as db:
        for table in ("audits", "counts", "pixels"):
            db.execute(f"DROP TABLE {table}")
        for table in ("chunks", "labels", "runs"):
            db.execute(f"ALTER TABLE {table} DROP COLUMN digest")
        db.execute("PRAGMA user_version = 0")
    assert list(boards(tmp_path)["clean"]) == [80]


# ---- models that hide their gradients, and an honest one

QUICK = Request(eps=(16 / 255,), n=100)
ATTACKS = Options(black_box="square(queries=150)", strongest="apgd_ce(steps=20)", source="source")


@pytest.fixture(scope="module")
def honest():
    return trained_on_digits(width=64, seed=0)


@pytest.fixture(scope="module")
def source():
    """Another honest model, to transfer attacks from."""
    return trained_on_digits(width=48, seed=1)


def audited_alone(model, source, request=QUICK, options=ATTACKS):
    """The verdict on one model and its findings at the one radius, by check."""
    audit = Audit(replace(request, modules={"net": model, "source": source}), options)
    audit.load()
    audit.targets = audit.targets[:1]  # what attacks are transferred from is not in question
    with Store(None) as store:
        (one,) = audit.run(store)
        assert store.verdict(digest(one.card.identity), audit.dataset.fingerprint) == str(one.conclusion)
    return one.verdict, {finding.check: finding for finding in one.findings}


def failed(findings):
    return {check for check, finding in findings.items() if finding.verdict == FAIL}


@pytest.mark.slow
def test_an_honest_network_passes(honest, source):
    verdict, findings = audited_alone(honest, source)
    assert verdict == PASS, findings
    assert set(findings) == set(checks.CHECKS)
    assert findings["large_eps"].value == findings["gradients"].value == findings["loss_rises"].value == 0
    assert findings["black_box"].value < 0
    assert findings["transfer"].value < 0
    assert {f.n for check, f in findings.items() if check not in ("deterministic", "step_size")} == {100}


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_bundled_checkpoint_passes(digits_classifier, source):
    few = replace(
        ATTACKS, attack="pgd(steps=6)", strongest="apgd_ce(steps=10)", black_box="square(queries=50)"
    )
    verdict, findings = audited_alone(digits_classifier, source, replace(QUICK, n=80, eps=(8 / 255,)), few)
    assert verdict == PASS, findings
    assert findings["large_eps"].value == 0


@pytest.mark.slow
def test_an_input_layer_that_rounds_fails(honest, source):
    verdict, findings = audited_alone(Quantised(honest), source)
    assert verdict == FAIL
    assert failed(findings) >= {"gradients", "loss_rises", "large_eps", "black_box", "transfer"}
    assert findings["gradients"].value == findings["loss_rises"].value == 100


@pytest.mark.slow
@pytest.mark.parametrize(
    ("steepness", "catches"), [(1e4, "gradients"), (100, "large_eps"), (30, "large_eps")]
)
def test_an_input_layer_that_saturates_fails(steepness, catches, honest, source):
    """At 1e4 float32 knows no slope; at 30 every gradient is there, and of little use."""
    verdict, findings = audited_alone(SignSaturated(honest, steepness), source)
    assert verdict == FAIL
    assert catches in failed(findings)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [1e3, 1e5])
def test_logits_that_saturate_the_softmax_fail(factor, honest, source):
    verdict, findings = audited_alone(HugeLogits(honest, factor), source)
    assert verdict == FAIL
    assert failed(findings) >= {"gradients", "loss_rises", "large_eps", "black_box", "transfer"}
    # All that is classified right with a margin has no gradient left.
    assert findings["gradients"].value > 80


@pytest.mark.slow
def test_heads_that_blunt_the_gradient_fail(honest, source):
    """Logits times 4, whose gradients are all there, and outputs that are no logits."""
    few = replace(QUICK, n=61)
    quick = replace(ATTACKS, attack="pgd(steps=2)", strongest="none", black_box="none")
    softmax, sigmoid = nn.Sequential(honest, nn.Softmax(1)), nn.Sequential(honest, nn.Sigmoid())
    for model, detail in (
        (HugeLogits(honest, 4), "images start with a probability that is 1 in float32"),
        (softmax, "the outputs are probabilities, as of a softmax"),
        (sigmoid, "the outputs are in [0, 1], as of a sigmoid"),
    ):
        findings = audited_alone(model, source, few, quick)[1]
        assert findings["logits"].verdict == FAIL
        assert detail in findings["logits"].detail
        assert findings["gradients"].value == 0
    assert audited_alone(honest, source, few, quick)[1]["logits"].verdict == PASS


@pytest.mark.slow
def test_a_step_larger_than_the_radius_is_warned_of(honest, source):
    large = replace(ATTACKS, attack="pgd(alpha=20/255)", strongest="none", black_box="none")
    verdict, findings = audited_alone(honest, source, options=large)
    assert verdict == WARN
    assert findings["step_size"].verdict == WARN
    assert (findings["step_size"].value, findings["step_size"].threshold) == pytest.approx((20, 16))
    assert "strongest" not in findings
    assert "black_box" not in findings


def test_a_random_model_fails_and_does_not_stop_the_others(honest):
    models = {"noisy": Random(honest), "blocked": Blocked(honest)}
    audit = Audit(replace(QUICK, modules=models), replace(ATTACKS, source=None))
    with Store(None) as store:
        noisy, blocked = audit.run(store)
    (finding,) = noisy.findings
    assert (noisy.card.model, noisy.verdict, finding.check) == ("noisy", FAIL, "deterministic")
    assert "noisy is random" in finding.detail
    assert (blocked.card.model, blocked.verdict) == ("blocked", FAIL)
    assert {f.check: f.verdict for f in blocked.findings} == {"deterministic": PASS, "gradients": FAIL}


def test_what_is_named_twice_is_audited_once_in_the_order_of_the_names(tiny_zoo):
    names = (
        "preact_resnet14",
        "in_resnet14.digits_none_seed1",
        str(tiny_zoo / "preact_resnet14.digits_none_seed0"),
    )
    audit = Audit(replace(QUICK, models=names, zoo=str(tiny_zoo)), replace(ATTACKS, source=None))
    assert [found.card.label for found in audit.targets] == ["preact_resnet14 seed 0", "in_resnet14 seed 1"]


def test_options_of_models_from_elsewhere_go_with_checkpoints_beside_them(tiny_zoo, tmp_path, monkeypatch):
    (tmp_path / "own_net.py").write_text(
        "from torch import nn\ndef make():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    names = ("in_resnet14", "own_net:make")
    mixed = replace(QUICK, models=names, zoo=str(tiny_zoo), seeds=(0,), mean=(0.5,), std=(0.5,))
    audit = Audit(replace(mixed, ensembles=False), replace(ATTACKS, source=None))
    assert [found.card.label for found in audit.targets] == ["in_resnet14 seed 0", "own_net:make"]


@pytest.mark.slow
def test_other_images_under_the_same_names_are_refused(tiny_zoo, tmp_path):
    few = Options(attack="pgd(steps=2)", strongest="none", black_box="none")
    request = replace(QUICK, models=("preact_resnet14",), zoo=str(tiny_zoo), n=20, decode_workers=0)
    images = np.random.default_rng(0).integers(0, 256, (2, 20, 1, 8, 8), dtype=np.uint8)
    own, other = (
        write_folder(tmp_path / name, of_folder, np.arange(20) // 2, suffix="bmp")
        for name, of_folder in zip(("own", "other"), images, strict=True)
    )
    with Store(tmp_path / "out") as store:
        Audit(replace(request, dataset=f"folder:{own}"), few).run(store)
        with pytest.raises(UserError, match=r"[a-j]/000\d\d.bmp is not the image that was measured before"):
            Audit(replace(request, dataset=f"folder:{other}"), few).run(store)
        Audit(replace(request, dataset=f"folder:{own}"), few).run(store)


@pytest.mark.slow
def test_without_a_model_to_transfer_from_that_check_is_not_run(honest):
    options = replace(ATTACKS, source=None, attack="pgd(steps=5)", strongest="none", black_box="none")
    for modules in ({"net": honest}, {"net": honest, "blocked": Blocked(honest)}):
        with Store(None) as store:
            net, *_ = Audit(replace(QUICK, modules=modules, n=10), options).run(store)
        assert {f.check: f.verdict for f in net.findings}["transfer"] == NOT_RUN
        assert net.verdict in (OPEN, WARN)  # by the others, at n = 10


def linear_of(side, seed):
    """A linear model of three classes whose ``pretrained_cfg`` names its input size."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Flatten(), nn.Linear(3 * side * side, 3))
    form = {"input_size": (3, side, side), "crop_pct": 1.0, "interpolation": "bilinear"}
    model.pretrained_cfg = form | {"mean": (0.5,) * 3, "std": (0.5,) * 3}
    return model


@pytest.mark.parametrize(
    ("beside", "source", "why"),
    [
        ((), None, "there is no other model to transfer attacks from: give one with --source"),
        ((), "net", "the model of --source is the audited model itself: give another one"),
        (("fitting",), "net", "the model of --source is the audited model itself: give another one"),
        (
            ("large",),
            None,
            "no other model of the run takes images of its preprocessing: give one with --source",
        ),
        (
            ("large",),
            "large",
            "the model of --source takes images of another preprocessing: give another one",
        ),
        (("blocked",), None, "blocked lets no gradient through: give another model with --source"),
        (
            ("blocked", "fitting"),
            "blocked",
            "blocked lets no gradient through: give another model with --source",
        ),
        (("fitting",), None, None),
        (("large", "fitting"), "fitting", None),
    ],
)
def test_a_transfer_that_is_not_run_says_why_and_what_to_do(tmp_path, beside, source, why):
    images = np.random.default_rng(0).integers(0, 256, (6, 3, 8, 8), dtype=np.uint8)
    others = {"fitting": linear_of(6, 1), "large": linear_of(12, 2), "blocked": Blocked(linear_of(6, 3))}
    others["blocked"].pretrained_cfg = others["fitting"].pretrained_cfg
    modules = {"net": linear_of(6, 0)} | {name: others[name] for name in beside}
    folder = write_folder(tmp_path / "own", images, np.arange(6) // 2)
    request = Request(modules=modules, dataset=f"folder:{folder}", eps=(16 / 255,), n=6, decode_workers=0)
    options = Options(attack="pgd(steps=2)", strongest="none", black_box="none", source=source)
    audit = Audit(request, options)
    with Store(None) as store:
        net = next(one for one in audit.run(store) if one.card.model == "net")
    (transfer,) = [found for found in net.findings if found.check == "transfer"]
    assert (transfer.detail if transfer.verdict == NOT_RUN else None) == why


def test_more_steps_and_restarts_are_more_than_those_of_the_audited_attack():
    def parts(attack):
        found = parts_of(Options(attack=attack), [8 / 255], {}, 0)
        more = [attack for part in ("more_steps", "restarts") for attack in found[part].values()]
        return [(one.integer("steps"), one.integer("restarts"), one.params.get("stop")) for one in more]

    assert parts("pgd(steps=20)") == [(100, 1, None), (20, 5, None)]
    assert parts("pgd(steps=20,restarts=10)") == [(100, 10, None), (20, 50, None)]
    assert parts("pgd(steps=20,stop=broken)") == [(100, 1, "broken"), (20, 5, "broken")]


def test_options_of_the_audited_models_are_not_those_of_the_source(tiny_zoo, tmp_path):
    request = Request(models=("in_resnet14",), seeds=(0,), n=4, zoo=str(tiny_zoo), ensembles=False)
    audit = Audit(request, Options(source=str(tiny_zoo / "in_resnet14.digits_none_seed1")))
    assert audit.targets[0].card.train_seed == 0
    weights = tmp_path / "weights.pth"
    torch.save(
        {"ema": zoo.Checkpoint.at(tiny_zoo / "in_resnet14.digits_none_seed0").load().state_dict()}, weights
    )
    of_file = {"models": ("in_resnet14",), "checkpoint": str(weights), "weights_key": "ema", "seeds": None}
    normalised = {"mean": (0.5,), "std": (0.5,)}
    Audit(replace(request, **of_file, **normalised), Options(source="preact_resnet14"))


class Constant(nn.Module):
    """Two classes of one-pixel images: the logit of class 1 is the pixel."""

    def forward(self, images):
        return torch.cat([0 * images.flatten(1), images.flatten(1)], dim=1)


@pytest.mark.slow
@pytest.mark.parametrize("spec", ["ifgsm(alpha=eps/4)", "mifgsm(alpha=eps/4)", "DIFGSM(steps=5)"])
def test_an_attack_that_is_not_restarted_or_takes_one_sample_at_a_time_is_audited(spec, honest):
    options = replace(ATTACKS, attack=spec, black_box="none", strongest="none", source=None)
    with Store(None) as store:
        (one,) = Audit(replace(QUICK, modules={"net": honest}, n=12), options).run(store)
    by_check = {finding.check: finding for finding in one.findings}
    assert by_check["restarts"].verdict == NOT_RUN
    assert by_check["loss_rises"].n == 12
    assert "has no random start" in by_check["restarts"].detail


def test_the_trace_is_the_loss_at_every_step():
    images = np.array([0.5, 0.75], dtype=np.float32).reshape(2, 1, 1, 1)
    request = Request(
        modules={"net": Constant()},
        dataset=data.from_arrays(images, np.array([1, 0]), 2),
        attacks="none",
        corruptions="none",
    )
    benchmark = Benchmark(request)
    step = attack("ifgsm", 25.5, alpha=0.1, steps=2)  # down by .1 and no further for class 1, up for class 0
    losses = trace(step, benchmark.runner.load(benchmark.targets[0]), benchmark.runner, 2)
    pixels = np.array([[0.5, 0.75], [0.4, 0.85], [0.4, 0.85]])
    expected = np.log1p(np.exp(pixels)) - pixels * np.array([1, 0])  # log(1 + e^x) less the label's logit
    np.testing.assert_allclose(losses, expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spec", "gradients"),
    [
        ("ifgsm(alpha=eps/4,steps=3)", None),
        ("NIFGSM(steps=3)", None),
        ("EOTPGD(steps=3)", 6),  # 2 draws per step
        ("SINIFGSM(steps=3)", 15),  # 5 scales
        ("VMIFGSM(steps=3)", 18),  # 5 neighbours and the iterate
    ],
)
def test_the_loss_is_judged_only_where_there_is_one_gradient_per_step(spec, gradients, honest):
    options = replace(ATTACKS, attack=spec, black_box="none", strongest="none", source=None)
    with Store(None) as store:
        (one,) = Audit(replace(QUICK, modules={"net": honest}, n=4), options).run(store)
    (found,) = [finding for finding in one.findings if finding.check == "loss_steps"]
    assert (found.verdict == NOT_RUN) == (gradients is not None)
    if gradients:
        assert f"{gradients} gradients in 3 steps" in found.detail


@plugins.attack(random=True)
def jumps(model, images, labels, *, eps, alpha=0.1, steps=2):
    """Brightens by alpha, and first by a draw that is for one image or another."""
    found = images + eps * (np.random.rand() > 2)
    for _ in range(steps):
        pixels = found.clone().requires_grad_()
        torch.autograd.grad(model(pixels).sum(), pixels)
        found = (found + alpha).clamp(0, 1)
    return found


def gradient(model, images, labels):
    pixels = images.detach().requires_grad_()
    loss = torch.nn.functional.cross_entropy(model(pixels), labels, reduction="sum")
    return torch.autograd.grad(loss, pixels)[0]


@plugins.attack()
def until_all_are_broken(model, images, labels, *, eps, alpha=0.05, steps=8):
    found = images
    for _ in range(steps):
        found = (found + alpha * gradient(model, found, labels).sign()).clamp(images - eps, images + eps)
        found = found.clamp(0, 1)
        if (model(found).argmax(1) != labels).all():
            break
    return found


@plugins.attack()
def on_those_not_broken(model, images, labels, *, eps, alpha=0.05, steps=8):
    found = images.clone()
    for _ in range(steps):
        left = (model(found).argmax(1) == labels).nonzero().flatten()
        if len(left):
            step = alpha * gradient(model, found[left], labels[left]).sign()
            found[left] = (found[left] + step).clamp(images[left] - eps, images[left] + eps).clamp(0, 1)
    return found


@plugins.attack()
def on_two_copies(model, images, labels, *, eps, alpha=0.1, steps=2):
    found = images
    for _ in range(steps):
        step = gradient(model, torch.cat([found, found]), labels.repeat(2))[: len(images)]
        found = (found + alpha * step.sign()).clamp(images - eps, images + eps).clamp(0, 1)
    return found


@plugins.attack()
def with_an_empty_pass(model, images, labels, *, eps, alpha=0.1, steps=2):
    gradient(model, images[:0], labels[:0])
    return (images + eps * gradient(model, images, labels).sign()).clamp(0, 1)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [2, 250])
@pytest.mark.parametrize(
    "name", ["until_all_are_broken", "on_those_not_broken", "on_two_copies", "with_an_empty_pass"]
)
def test_an_attack_with_another_number_of_gradients_for_each_image_is_audited(name, batch_size, honest):
    options = replace(ATTACKS, attack=name, black_box="none", strongest="none", source=None)
    request = replace(QUICK, modules={"net": honest}, n=5, batch_size=batch_size, eps=(96 / 255,))
    with KNOWN.registered(name, globals()[name]), Store(None) as store:
        (one,) = Audit(request, options).run(store)
    by_check = {finding.check: finding for finding in one.findings}
    assert by_check["loss_rises"].n == by_check["gradients"].n == 5
    assert by_check["loss_rises"].verdict in (PASS, OPEN)
    assert by_check["gradients"].verdict in (PASS, OPEN)
    is_traced = name == "on_two_copies"  # one gradient in each step
    assert (by_check["loss_steps"].verdict != NOT_RUN) == is_traced


def test_the_trace_of_a_plug_in_that_runs_on_one_image_at_a_time_is_in_order():
    images = np.array([0.25, 0.5, 0.75], dtype=np.float32).reshape(3, 1, 1, 1)
    request = Request(
        modules={"net": Constant()},
        dataset=data.from_arrays(images, np.array([1, 1, 1]), 2),
        attacks="none",
        corruptions="none",
    )
    benchmark = Benchmark(request)
    with KNOWN.registered("jumps", jumps):
        (given,) = parse_attacks("jumps(eps=0.2,alpha=0.1,steps=2)", [], {}, 0)
        losses = trace(given, benchmark.runner.load(benchmark.targets[0]), benchmark.runner, 3)
    pixels = np.array([[0.25, 0.5, 0.75], [0.35, 0.6, 0.85], [0.45, 0.7, 0.95]])
    np.testing.assert_allclose(losses, np.log1p(np.exp(-pixels)), rtol=1e-5)


# ---- the command


def audit_command(command, folder, tiny_zoo, *more):
    quick = ["--n", 4, "--eps", 32, "--attack", "pgd(steps=2,alpha=eps)", "--black-box", "square(queries=5)"]
    quick += ["--strongest", "apgd_ce(steps=3)", "--out", folder, "--zoo", tiny_zoo, "--quiet"]
    return command("audit", "in_resnet14", *quick, *more)


@pytest.mark.slow
def test_the_command_writes_prints_and_keeps_its_verdicts(tmp_path, tiny_zoo, command):
    status, out, _ = audit_command(command, tmp_path, tiny_zoo)
    lines = list(csv.DictReader((tmp_path / "audit.csv").open()))
    assert list(lines[0]) == [column.name for column in AUDIT]
    verdicts = {}
    for line in lines:
        verdicts.setdefault((line["model"], line["train_seed"]), []).append(line["verdict"])
    assert list(verdicts) == [("in_resnet14", "0"), ("in_resnet14", "1")]
    verdict_of = {seed: worst(found) for (_, seed), found in verdicts.items()}
    assert status == (3 if FAIL in verdict_of.values() else 0)
    assert {line["check"] for line in lines} == set(checks.CHECKS)
    for seed, verdict in verdict_of.items():
        assert f"in_resnet14 seed {seed}, digits: {verdict}(n=4 eps=32)\n" in out
    assert "audit.csv" in out

    measured = chunks(tmp_path)
    again = audit_command(command, tmp_path, tiny_zoo)
    assert again[:2] == (status, out)
    assert chunks(tmp_path) == measured

    bench = ("--n", 4, "--attacks", "none", "--corruptions", "none", "--no-ensembles", "--out", tmp_path)
    assert command("bench", "--models", "in_resnet14", *bench, "--zoo", tiny_zoo, "--quiet")[0] == 0
    (line,) = csv.DictReader((tmp_path / "leaderboard.csv").open())
    assert line["audit"] == f"{worst(verdict_of.values())}(n=4 eps=32)"

    # The same audit with a check left out is another: it says so wherever it is shown.
    loose = [
        part
        for name in ("standing", "gain", "blind", "saturated", "flat", "falls")
        for part in (f"--max-{name}", 100)
    ]
    out = audit_command(command, tmp_path, tiny_zoo, "--black-box", "none", *loose)[1]
    assert out.count("(n=4 eps=32 checks=13/14)\n") == 2
    assert command("bench", "--models", "in_resnet14", *bench, "--zoo", tiny_zoo, "--quiet")[0] == 0
    (line,) = csv.DictReader((tmp_path / "leaderboard.csv").open())
    assert line["audit"].endswith("(n=4 eps=32 checks=13/14)")


@pytest.mark.exhaustive
@pytest.mark.slow
def test_an_audit_does_not_drop_the_others_of_its_folder(tmp_path, tiny_zoo, command):
    quick = ("--n", 4, "--strongest", "none", "--black-box", "none", "--eps", 16, "--quiet")
    places = ("--zoo", tiny_zoo, "--out", tmp_path)
    for model in ("preact_resnet14", "in_resnet14"):
        assert command("audit", model, "--seeds", "1", *quick, *places)[0] in (0, 3)
    found = {line["model"] for line in csv.DictReader((tmp_path / "audit.csv").open())}
    assert found == {"preact_resnet14", "in_resnet14"}
    before = (tmp_path / "audit.csv").read_bytes()
    command("audit", "preact_resnet14", "--seeds", "1", *quick, *places)
    assert (tmp_path / "audit.csv").read_bytes() == before


@pytest.mark.slow
def test_thresholds_are_options_and_printed_and_decide_the_exit_status(tmp_path, tiny_zoo, command):
    loose = [f"--max-{name}" for name in ("standing", "blind", "flat", "falls", "gain")]
    loose = [part for name in loose for part in (name, 100)]
    status, out, _ = audit_command(command, tmp_path, tiny_zoo, *loose, "--large-eps", 48, "--seeds", "0,")
    by_check = {line["check"]: line for line in csv.DictReader((tmp_path / "audit.csv").open())}
    for check in (
        "large_eps",
        "gradients",
        "loss_rises",
        "loss_steps",
        "more_steps",
        "restarts",
        "strongest",
    ):
        assert (by_check[check]["threshold"], by_check[check]["verdict"]) == ("100", PASS)
    assert by_check["large_eps"]["eps_255"] == "48"
    assert "at most" in out
    assert status == 0

    strict = [
        "--large-eps",
        0.01,
        "--max-standing",
        0,
        "--n",
        40,
        "--seeds",
        "0,",
    ]  # one class in ten is right
    status, out, _ = audit_command(command, tmp_path, tiny_zoo, *loose[2:], *strict)
    by_check = {line["check"]: line for line in csv.DictReader((tmp_path / "audit.csv").open())}
    assert (by_check["large_eps"]["verdict"], status) == (FAIL, 3)
    assert "in_resnet14 seed 0, digits: fail" in out


@pytest.mark.parametrize(
    ("options", "parts"),
    [
        (["--attack", "fgsm"], ["alpha and steps", "fgsm"]),
        (["--attack", "pgd,ifgsm"], ["one attack"]),
        (["--attack", "pgd(eps=8/255)"], ["one attack without eps"]),
        (["--attack", "none"], ["one attack", "'none'"]),
        (["--black-box", "sqare"], ["unknown attack 'sqare'", "square"]),
        (["--strongest", "apgd_ce,square"], ["give one Linf attack", "apgd_ce,square"]),
        (["--strongest", "apgd_ce(norm=L2,eps=1)"], ["Linf"]),
        (["--strongest", "apgd_ce(eps=8/255)"], ["without eps", "apgd_ce(eps=8/255)"]),
        (["--black-box", "square(eps=8/255)"], ["without eps", "square(eps=8/255)"]),
        (["--source", "in_resnet1"], ["in_resnet14"]),
        (["--max-gain", "-1"], ["not a percentage"]),
        (["--large-eps", "500"], ["eps must be above 0"]),
    ],
)
def test_what_cannot_be_audited_is_one_line(tmp_path, tiny_zoo, command, options, parts):
    status, _, err = audit_command(command, tmp_path / "results", tiny_zoo, *options)
    assert status in (1, 2)
    assert err.count("\n") == 1
    assert all(part in err for part in parts)
    assert not (tmp_path / "results").exists()

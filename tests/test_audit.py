"""The masking audit: verdicts worked out from patterns by hand, then models that hide their gradients."""

import csv
import io

import numpy as np
import pandas as pd
import pytest
from hand_made import attack, card, first, run
from scipy.stats import multinomial

from robust_interp import checks, leaderboard, merge, metrics
from robust_interp.cells import CLEAN, digest
from robust_interp.checks import FAIL, NOT_RUN, PASS, WARN, Audited, Finding, Measured, Thresholds
from robust_interp.store import Store

USUAL = Thresholds()


def pattern(right, n=200, from_end=False):
    """The first (or last) `right` of n samples."""
    marks = np.arange(n) < right
    return marks[::-1] if from_end else marks


def left(right, name="pgd", eps_255=2.0, n=200, blind=0, **where):
    return Measured(name, eps_255, pattern(right, n, **where), pattern(blind, n))


# ---- paired difference


def test_the_interval_of_a_paired_difference_is_bonett_and_prices():
    first_right, second_right = np.ones(100, bool), np.ones(100, bool)
    second_right[:12], first_right[12:15] = False, False  # b = 12, c = 3
    found = metrics.paired_difference(first_right, second_right)
    assert found.points == pytest.approx(9)
    # 13/102 - 4/102 = .088235; sqrt((17/102 - .088235**2) / 102) = .039467; times 1.959964 = .077354
    assert (found.low, found.high) == pytest.approx((1.0881, 16.5590), abs=1e-3)
    back = metrics.paired_difference(second_right, first_right)
    assert (back.points, back.low, back.high) == pytest.approx((-9, -found.high, -found.low))


def test_a_paired_difference_of_nothing_still_has_an_interval():
    found = metrics.paired_difference(pattern(50), pattern(50))
    # sqrt(2 / 202 / 202) times 1.959964
    assert (found.points, found.low, found.high) == pytest.approx((0, -1.3722, 1.3722), abs=1e-3)


def test_the_interval_of_a_paired_difference_covers_what_it_should():
    n, only_first, only_second = 40, 0.2, 0.1
    law = multinomial(n, [only_first, only_second, 1 - only_first - only_second])
    covered = 0.0
    for b in range(n + 1):
        for c in range(n + 1 - b):
            one, other = np.zeros(n, bool), np.zeros(n, bool)
            one[:b], other[b : b + c] = True, True
            found = metrics.paired_difference(one, other)
            covered += law.pmf([b, c, n - b - c]) * (found.low <= 10 <= found.high)
    assert 0.94 < covered < 0.97


# ---- the checks


def test_a_challenger_fails_the_model_only_if_it_beats_every_white_box_attack():
    row, strong = left(100), left(60, "apgd_ce")
    beaten = checks.challenge("black_box", left(40, "square"), row, [row, strong])
    assert beaten.verdict == FAIL  # 10 points ahead of apgd_ce, all 20 discordant samples on one side
    assert (beaten.value, beaten.n, beaten.eps_255, beaten.threshold) == (10, 200, 2.0, 0)
    assert 0 < beaten.ci_low < 10 < beaten.ci_high + 1
    assert "square leaves 20.0 % (15.0 to 26.1), apgd_ce leaves 30.0 % (24.1 to 36.7)" in beaten.detail

    ahead_of_row = checks.challenge("black_box", left(80, "square"), row, [row, strong])
    assert ahead_of_row.verdict == WARN
    assert ahead_of_row.value == 10
    assert "pgd leaves 50.0 %" in ahead_of_row.detail

    weaker = checks.challenge("black_box", left(120, "square"), row, [row, strong])
    assert (weaker.verdict, weaker.value) == (PASS, -30)


def test_a_challenger_that_is_ahead_within_the_interval_passes():
    row = left(100)
    assert checks.challenge("transfer", left(95, "transfer"), row, [row]).verdict == PASS  # b = 5, p = .0625
    assert checks.challenge("transfer", left(94, "transfer"), row, [row]).verdict == FAIL  # b = 6, p = .03125
    # As many points ahead, but on other samples: 100 discordant pairs each way make 6 points nothing.
    apart = left(94, "transfer", from_end=True)
    assert checks.challenge("transfer", apart, row, [row]).verdict == PASS


@pytest.mark.parametrize(("left_over", "verdict"), [(100, PASS), (96, PASS), (95, WARN), (120, PASS)])
def test_a_stronger_attack_may_gain_two_points(left_over, verdict):
    found = checks.gain("restarts", left(left_over, "pgd(restarts=5)"), left(100), USUAL)
    assert (found.verdict, found.value, found.threshold) == (verdict, (100 - left_over) / 2, 2)
    assert checks.gain("restarts", left(95), left(100), Thresholds(gain=2.5)).verdict == PASS


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


@pytest.mark.parametrize(("standing", "verdict"), [(0, PASS), (2, PASS), (3, FAIL), (200, FAIL)])
def test_next_to_nothing_may_stand_in_a_large_ball(standing, verdict):
    found = checks.large_eps(left(standing, eps_255=64.0), USUAL)
    assert (found.verdict, found.value, found.threshold) == (verdict, standing / 2, 1)
    assert (found.ci_low, found.ci_high) == metrics.wilson(standing, 200)


@pytest.mark.parametrize(("blind", "verdict"), [(0, PASS), (2, PASS), (3, FAIL)])
def test_hardly_a_gradient_may_be_zero(blind, verdict):
    found = checks.gradients(left(100, blind=blind), USUAL)
    assert (found.verdict, found.value, found.n) == (verdict, blind / 2, 200)


def test_the_loss_must_rise():
    # Of four samples one ends where it began and one holds a NaN; of eight steps one falls, the NaN's do not.
    losses = np.array([[1.0, 1.0, 1.0, 1.0], [2.0, 3.0, 1.0, np.nan], [3.0, 2.0, 1.0, np.nan]])
    rises, steps = checks.loss("pgd", 2.0, losses, USUAL)
    assert (rises.verdict, rises.value, rises.n) == (FAIL, 50, 4)
    assert (steps.verdict, steps.value) == (PASS, 12.5)
    rises, steps = checks.loss("pgd", 2.0, losses, Thresholds(flat=50, falls=12))
    assert (rises.verdict, steps.verdict) == (PASS, WARN)


def test_the_verdict_is_the_worst_of_those_that_were_run():
    def verdict(*each):
        return Audited(card(), [Finding("gradients", one, "", 1) for one in each]).verdict

    assert verdict(PASS, WARN, PASS, NOT_RUN) == WARN
    assert verdict(WARN, FAIL, PASS) == FAIL
    assert verdict(PASS, NOT_RUN) == PASS
    assert verdict() == ""


# ---- the leaderboard's column


def audited(store, victim, verdict, dataset="digits"):
    store.put_audit(digest(victim.identity), f"{dataset}-images", verdict, "{}")


def boards(folder):
    board, _ = merge.gather([folder])
    return board


def test_the_verdict_is_a_column_of_the_leaderboard(tmp_path):
    one, two, other, old = card(seed=0), card(seed=1), card("other"), card("old")
    with Store(tmp_path) as store:
        plan = run(store, [(victim, CLEAN, first(8)) for victim in (one, two, other, old)])
        assert "audit" not in leaderboard.entries_frame(leaderboard.scores(plan, store))
        audited(store, one, PASS)
        audited(store, two, FAIL)
        audited(store, two, WARN)  # which replaces the first
        audited(store, old, FAIL, dataset="cifar10")
        direct = leaderboard.entries_frame(leaderboard.scores(plan, store))
    board = boards(tmp_path)
    pd.testing.assert_frame_equal(board, direct)
    assert list(board)[-3:] == ["audit", "corruption_source", "source"]
    assert dict(zip(board["model"], board["audit"], strict=True)) == {"net": WARN, "other": "", "old": ""}


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
        "b": PASS,
    }


def test_the_column_is_written_read_and_merged(tmp_path, command):
    for folder, verdict in (("a", PASS), ("b", None)):
        with Store(tmp_path / folder) as store:
            victim = card(folder)
            run(store, [(victim, CLEAN, first(8)), (victim, attack("pgd", 2), first(5))])
            if verdict:
                audited(store, victim, verdict)
    status, text, _ = command("leaderboard", tmp_path / "a", "--format", "csv")
    assert status == 0
    (tmp_path / "a.csv").write_text(text)
    again = command("leaderboard", tmp_path / "a.csv", "--format", "csv")[1]
    assert again == text
    (line,) = csv.DictReader(io.StringIO(text))
    assert line["audit"] == PASS
    merged = merge.gather([tmp_path / "a.csv", tmp_path / "b"])[0]
    assert dict(zip(merged["model"], merged["audit"].fillna(""), strict=True)) == {"a": PASS, "b": ""}
    shown = command("leaderboard", tmp_path / "a")[1]
    assert "audit" in shown


def test_a_store_from_before_there_were_audits_can_be_read(tmp_path):
    with Store(tmp_path) as store:
        run(store, [(card(), CLEAN, first(8))])
        store._db.execute("DROP TABLE audits")
    assert list(boards(tmp_path)["clean"]) == [80]

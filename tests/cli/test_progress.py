"""What long work shows: a bar on a terminal, lines now and then elsewhere, nothing with --quiet."""

import io
import math
import re
import time

import pytest
from rich.console import Console

from robust_interp.benchmark.watch import Watch
from robust_interp.cli.bench import measured
from robust_interp.cli.display import ProgressState, bar_line, duration
from robust_interp.cli.main import main
from robust_interp.cli.progress import Reporter, Trainings, progress_bar, total_work, track
from robust_interp.cli.time_left import TimeLeft
from robust_interp.core.errors import UserError
from robust_interp.store.cells import CLEAN, Cell, ModelCard, Perturbation
from robust_interp.training.job import Start, Training
from robust_interp.training.recipe import Recipe
from robust_interp.training.trainer import Status


class Clock:
    """A clock that stands until it is moved."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now

    def wait(self, seconds):
        self.now += seconds


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def screen():
    return io.StringIO()


def plain(screen, width=200):
    return Console(file=screen, width=width, markup=False, highlight=False)


def terminal(screen, width=80):
    return Console(file=screen, width=width, markup=False, highlight=False, force_terminal=True)


def last_line(screen):
    """What stands on the terminal at the end, without what moves and colours it."""
    text = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "\r", screen.getvalue())
    return [line for line in re.split(r"[\r\n]+", text) if line.strip()][-1]


def test_times_are_in_the_unit_that_suits_them():
    assert [duration(seconds) for seconds in (0.2, 99, 610, 21_000)] == ["0 s", "99 s", "10 min", "5.8 h"]


# --- the time that is left ----------------------------------------------------------------------------

A, B, C = ("a", "clean"), ("a", "attack"), ("b", "attack")


def expecting(**units):
    time_left = TimeLeft()
    time_left.expect({{"a": A, "b": B, "c": C}[name]: amount for name, amount in units.items()})
    return time_left


def started(*kinds, **units):
    """Work whose first unit of each operation is done, at a speed that must not count."""
    time_left = expecting(**units)
    for kind in kinds:
        time_left.expect({kind: 1.0})
        time_left.finish(kind, 1.0, 500.0)
        assert time_left.seconds is None
    return time_left


def test_nothing_is_known_before_anything_was_done_nor_from_the_first_moment():
    time_left = expecting(a=5.0)
    assert (time_left.seconds, time_left.share) == (None, 0)
    time_left.finish(A, 1.0, 1.5)  # a first pass is slow
    assert time_left.seconds is None
    time_left.finish(A, 1.0, 0.5)
    assert time_left.seconds is not None
    assert time_left.share == pytest.approx(2 / 5)


def test_the_time_left_is_that_of_the_work_left_at_the_speed_seen():
    time_left = started(A, B, a=1000.0, b=100.0)
    time_left.finish(A, 500.0, 20.0)  # 0.04 s a unit
    time_left.finish(B, 50.0, 1.0)  # has a speed of its own: 0.02 s a unit
    assert time_left.seconds == pytest.approx(0.04 * 500 + 0.02 * 50)
    assert time_left.share == pytest.approx(552 / 1102)


def test_there_is_no_estimate_while_most_of_the_work_left_is_unlike_what_was_done():
    time_left = started(A, a=150.0, b=100.0)
    time_left.finish(A, 40.0, 4.0)  # 110 are left, and 100 of an operation that is not known
    assert time_left.seconds == pytest.approx(0.1 * 210)
    time_left.finish(A, 20.0, 2.0)
    assert time_left.seconds is None
    time_left.finish(B, 5.0, 5.0)  # the first of it includes start-up
    assert time_left.seconds is None
    time_left.finish(B, 10.0, 2.0)
    assert time_left.seconds == pytest.approx(0.1 * 90 + 0.2 * 85)


def test_what_was_not_met_is_taken_to_be_as_fast_as_what_does_the_same():
    time_left = started(A, B, a=10.0, b=10.0, c=30.0)
    time_left.finish(A, 10.0, 5.0)
    time_left.finish(B, 10.0, 1.0)  # an attack, as c is
    assert time_left.seconds == pytest.approx(0.1 * 30)


def test_work_counted_before_its_seconds_does_not_end_the_estimate():
    time_left = started(A, B, b=110.0, c=110.0)
    time_left.finish(B, 100.0, 50.0)  # 0.5 s a unit
    time_left.finish(C, 10.0, 0.0)  # a step of another model: the same operation
    assert time_left.seconds == pytest.approx(0.5 * 10 + 0.5 * 100)
    time_left.finish(C, 0.0, 1.0)  # its second comes later; of 2 s that make a speed reliable it is half
    own = 1 / (10 * math.exp(-1 / 20))
    assert time_left.seconds == pytest.approx(0.5 * 10 + (0.5 * own + 0.5 * 0.5) * 100)
    time_left.finish(C, 10.0, 1.0)
    own = (1 * math.exp(-1 / 20) + 1) / (10 * math.exp(-2 / 20) + 10)
    assert time_left.seconds == pytest.approx(0.5 * 10 + own * 90)


def test_one_slow_batch_does_not_turn_the_estimate_over():
    time_left = started(A, a=1000.0)
    for _ in range(5):
        time_left.finish(A, 100.0, 1.0)
    before = time_left.seconds
    time_left.finish(A, 100.0, 5.0)  # five times as slow, once
    # Of what is s seconds old, exp(-s / 20) counts: five times 1 s and 100 units, then 5 s and 100 units.
    weights = [math.exp(-age / 20) for age in (9, 8, 7, 6, 5)]
    seconds, units = sum(weights) + 5, 100 * (sum(weights) + 1)
    assert time_left.seconds == pytest.approx(400 * seconds / units, rel=1e-6)
    assert time_left.seconds < 2 * before


def test_what_was_done_before_is_a_share_and_no_speed():
    time_left = expecting(a=100.0)
    time_left.skip(A, 60.0)
    assert (time_left.share, time_left.seconds) == (0.6, None)
    time_left.finish(A, 1.0, 50.0)  # resumed: loading and compiling come before the first step
    assert time_left.seconds is None
    time_left.finish(A, 19.0, 3.8)
    assert time_left.seconds == pytest.approx(20 * 3.8 / 19)
    assert time_left.share == pytest.approx(0.8)


def test_what_will_not_be_done_is_not_waited_for():
    time_left = started(A, a=100.0, c=10.0)
    time_left.finish(A, 49.0, 4.9)
    time_left.drop(A, 1.0)
    time_left.drop(C, 10.0)
    assert (time_left.share, time_left.seconds) == (pytest.approx(0.5), pytest.approx(5.0))
    time_left.forget()
    assert time_left.share == 1


# --- the line -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [20, 40, 80, 200])
def test_a_line_fits_and_begins_with_name_share_and_time_left(width):
    state = ProgressState(0.421, "lambda_in_resnet20 seed 2 pgd_32", ("123 images/s", "x" * 60), 754)
    line = bar_line(state, 30, width)
    assert len(line) <= max(width, 12 + len("   42%  13 min left"))
    assert line.split()[0].startswith("lambda_in_r")
    assert " 42%  13 min left" in line
    assert ("123 images/s" in line, "xxx" in line) == (width >= 80, width >= 200)


def test_a_line_says_what_it_took_at_the_end_and_that_it_does_not_know_yet_at_the_start():
    assert bar_line(ProgressState(1.0, "net", (), 0.0), 130, 30) == "net  100%  took 2 min"
    assert bar_line(ProgressState(0.999, "net", (), 0.2), 130, 28) == "net   99%  0 s left"
    assert bar_line(ProgressState(0.0, "net", (), math.nan), 1, 30) == "net    0%  estimating"


def test_the_bar_takes_the_room_that_is_left():
    line = bar_line(ProgressState(0.5, "net", (), 10), 5, 40)
    bar = line.rpartition("  ")[2]
    assert (bar.count("━"), len(bar), len(line)) == (9, 18, 40)  # 20 for the rest, 2 between


# --- work that is shown only where it takes long ------------------------------------------------------


@pytest.mark.parametrize("console", [plain, terminal])
def test_work_of_less_than_five_seconds_shows_nothing(screen, clock, console):
    with track(console(screen), "reading", quiet=False, clock=clock) as progress:
        for at in range(5):
            progress(at / 5, "x")
            clock.wait(0.9)
        progress(1.0, "x")
    assert screen.getvalue() == ""


@pytest.mark.parametrize("console", [plain, terminal])
def test_quiet_work_shows_nothing_however_long(screen, clock, console):
    with track(console(screen), "reading", quiet=True, clock=clock) as progress:
        progress(0.0, "x")
        clock.wait(1000)
        progress(0.5, "x")
    assert screen.getvalue() == ""


def test_longer_work_is_told_now_and_then_and_at_the_end(screen, clock):
    with track(plain(screen), "reading", quiet=False, clock=clock) as progress:
        for at in range(100):  # 50 s
            progress(at / 100, f"file {at}")
            clock.wait(0.5)
    assert screen.getvalue().splitlines() == [
        " 10%  reading file 10  45 s left",  # after 5 s, then every 10 s
        " 30%  reading file 30  35 s left",
        " 50%  reading file 50  25 s left",
        " 70%  reading file 70  15 s left",
        " 90%  reading file 90  5 s left",
        "100%  reading  took 50 s",
    ]


def test_longer_work_has_a_bar_on_a_terminal_that_says_at_the_end_what_it_took(screen, clock):
    with track(terminal(screen), "reading", quiet=False, clock=clock) as progress:
        progress(0.0, "a")
        clock.wait(1.9)  # with what is imported first, which says nothing of the rest
        progress(0.1, "b")
        clock.wait(3)
        progress(0.4, "c")
        assert screen.getvalue() == ""
        clock.wait(1)
        progress(0.5, "d")
        assert last_line(screen).startswith("reading d   50%  5 s left  ━")
    assert last_line(screen).startswith("reading  100%  took 6 s  ━")


def test_a_long_first_piece_is_shown_before_it_is_done(screen):
    with track(terminal(screen), "reading", quiet=False, after=0.01) as progress:
        progress(0.0, "a")
        patience = time.monotonic() + 20
        while not screen.getvalue() and time.monotonic() < patience:
            pass
        assert "reading a" in last_line(screen)


def test_work_that_fails_claims_no_end(screen, clock):
    def fail():
        with track(plain(screen), "reading", quiet=False, clock=clock) as progress:
            progress(0.2, "a")
            clock.wait(60)
            raise UserError("broken")

    with pytest.raises(UserError):
        fail()
    assert "took" not in screen.getvalue()


# --- a benchmark --------------------------------------------------------------------------------------

SMALL, LARGE = (ModelCard(name, {}, params_m=size) for name, size in (("small", 1.0), ("large", 3.0)))
PGD = Perturbation("attack", "pgd", "pgd_2", {"eps": 2 / 255})
PASSES = {"clean": 1, "pgd": 10}


def cell(card, perturbation=CLEAN):
    return Cell(card, "digits", "0", perturbation, {})


def cost(of):
    return PASSES[of.perturbation.name]


def test_the_work_of_cells_is_their_passes_weighed_by_the_size_of_the_model():
    work = [(cell(SMALL), 5), (cell(SMALL, PGD), 5), (cell(LARGE, PGD), 2)]
    assert total_work(work, cost) == {
        ("small", "clean"): 5,
        ("small", "attack"): 50,
        ("large", "attack"): 60,
    }


def test_a_benchmark_moves_within_a_batch_and_ends_with_what_it_took(screen, clock):
    with progress_bar(terminal(screen), quiet=False, clock=clock) as bar:
        bar.time.expect(total_work([(cell(SMALL, PGD), 10)], cost))
        watch = Reporter(bar, cost, clock)
        clock.wait(1)
        watch.step(cell(SMALL, PGD), 1.0)
        clock.wait(3.2)
        watch.step(cell(SMALL, PGD), 4.0)  # with the first, half of the 10 samples' worth
        assert (bar.time.share, bar.time.seconds) == (0.5, pytest.approx(4.0))
        clock.wait(3)
        watch.step(cell(SMALL, PGD), 4.0)
        clock.wait(0.8)
        watch(cell(SMALL, PGD), 10)  # the batch, of which the steps were a part
        assert bar.time.share == 1
    assert last_line(screen).startswith("small pgd_2  100%  took 8 s  1 images/s  ━")


def test_what_a_benchmark_tells_of_is_what_the_display_listens_to():
    told, heard = ({name for name in dir(kind) if name[0] != "_"} for kind in (Watch, Reporter))
    assert told == heard  # a misspelt method would never be called
    assert all(getattr(Reporter, name) is not getattr(Watch, name) for name in (*told, "__call__"))


def test_a_benchmark_with_nothing_to_do_shows_nothing(screen):
    with progress_bar(terminal(screen), quiet=False) as bar:
        Reporter(bar, cost)
    assert screen.getvalue() == ""


def test_a_benchmark_counts_its_own_cells_and_those_of_another_process(screen):
    other = ModelCard("other", {"weights": "1"}, params_m=1.0)
    mine, both, theirs = cell(SMALL), cell(SMALL, PGD), cell(other)
    with progress_bar(plain(screen), quiet=True) as bar:
        watch = Reporter(bar, cost)
        for of in (mine, both, both):
            watch(of, 5)
        for of in (both, theirs):
            watch.elsewhere(of, 5)
    assert (watch.own, watch.others) == ({mine.key, both.key}, {both.key, theirs.key})
    assert measured(watch.own, watch.others, "9 s") == (
        "measured 2 new cells in 9 s, 1 of them together with another process, "
        "1 more came from another process"
    )
    assert measured({"a"}, set(), "9 s") == "measured 1 new cell in 9 s"
    assert measured(set(), {"a", "b"}, "9 s") == "measured 0 new cells in 9 s, 2 came from another process"
    assert measured(set(), set(), "9 s") == "nothing new to measure"


def test_images_that_need_no_measurement_are_no_work_left(screen, clock):
    with progress_bar(plain(screen), quiet=True, clock=clock) as bar:
        bar.time.expect(total_work([(cell(SMALL, PGD), 10), (cell(SMALL), 10)], cost))
        watch = Reporter(bar, cost, clock)
        for _ in range(2):  # the speed of the first work is not used
            clock.wait(4)
            watch(cell(SMALL, PGD), 1)
        before = bar.time.seconds
        watch.skipped(cell(SMALL, PGD), 6)
        assert before - bar.time.seconds == pytest.approx(6 * 4)
        for of, images in ((cell(SMALL, PGD), 2), (cell(SMALL), 10)):
            watch(of, images)
        assert bar.time.share == 1


def test_a_training_that_begins_again_is_where_its_state_is(screen, clock, capsys):
    first, second = seeds(0, 1)
    with progress_bar(plain(screen), quiet=False, clock=clock) as bar:
        watch = Trainings(bar, [[first], [second]], {first: 100.0, second: 100.0})
        watch.begins(first)
        clock.wait(10)
        watch(first, at(0.75, 3))
        assert bar.time.share == 0.375
        watch.begins(first)  # its worker was lost
        assert bar.time.share == 0.0
        watch.resumed(first, Start(step=20, steps=40, epoch=3, epochs=4))
        assert bar.time.share == 0.25
        clock.wait(10)
        watch(first, at(1.0, 4, ends=True))
        assert bar.time.share == 0.5
    assert "in_resnet20 seed 0 goes on from epoch 3/4, step 20/40" in capsys.readouterr().err


def test_an_attack_tells_of_its_steps_what_the_plan_says_it_costs(digits_classifier, digits_test):
    """FGSM and PGD take as many passes as they are planned with, but for the last one, which judges."""
    from robust_interp import attacks

    images, labels = digits_test[0][:5], digits_test[1][:5]
    for spec in ("fgsm", "pgd(steps=4)"):
        (perturbation,), steps = attacks.parse_attacks(spec, [8 / 255], {}, 0), []
        attacks.AttackRunner(perturbation, digits_classifier, steps.append)(images, labels, range(5))
        assert sum(steps) == 5 * (attacks.passes(perturbation) - 1)


# --- trainings ----------------------------------------------------------------------------------------

RECIPE = Recipe("any", epochs=4)


def seeds(*of):
    return [Training("in_resnet20", RECIPE, seed) for seed in of]


def at(share, epoch, ends=False):
    return Status(epoch, 4, 1.25, 61.5, 0.01, 812.3, share, line={"epoch": epoch} if ends else None)


def test_several_seeds_have_one_bar_for_the_whole(screen, clock):
    first, second = seeds(0, 1)
    with progress_bar(terminal(screen, 200), quiet=False, clock=clock) as bar:
        watch = Trainings(bar, [[first], [second]], {first: 300.0, second: 300.0})
        watch.begin()
        clock.wait(60)
        watch(first, at(0.1, 1))  # the first step was compiled
        clock.wait(8)
        watch(first, at(0.5, 2, ends=True))
        assert (bar.time.share, bar.time.seconds) == (0.25, pytest.approx(30.0))
        clock.wait(10)
        watch(first, at(1.0, 4, ends=True))
        clock.wait(100)  # a test set was classified: no time of a step
        watch.begin()
        clock.wait(5)
        watch(second, at(0.25, 1, ends=True))
        assert (bar.time.share, bar.time.seconds) == (0.625, pytest.approx(15.0))
    assert last_line(screen).startswith(
        "in_resnet20 seed 1  epoch 1/4   62%  15 s left  2 of 2  loss 1.2500  accuracy 61.50 %  lr 0.01"
    )


def test_a_training_that_goes_on_says_from_where_and_what_was_done_is_no_speed(screen, clock, capsys):
    (what,) = seeds(3)
    with progress_bar(plain(screen), quiet=False, clock=clock) as bar:
        watch = Trainings(bar, [[what]], {what: 80.0})
        watch.begin()
        watch.resumed(what, Start(step=30, steps=40, epoch=4, epochs=4))
        assert bar.time.share == 0.75
        clock.wait(60)  # reading the data and building the network are no speed, either
        watch(what, at(0.8, 4))
        assert bar.time.seconds is None
        clock.wait(6)
        watch(what, at(0.9, 4))
        assert bar.time.seconds == pytest.approx(6.0)
    assert capsys.readouterr().err == "in_resnet20 seed 3 goes on from epoch 4/4, step 30/40\n"


def test_one_that_fails_is_not_waited_for(screen, clock):
    first, second = seeds(0, 1)
    with progress_bar(plain(screen), quiet=False, clock=clock) as bar:
        watch = Trainings(bar, [[first, second]], {first: 100.0, second: 100.0})
        watch.begin()
        clock.wait(10)
        watch(first, at(0.25, 1))
        clock.wait(5)
        watch(first, at(0.5, 2))
        watch.failed(second)
        assert (bar.time.share, bar.time.seconds) == (0.5, pytest.approx(10.0))


def test_elsewhere_there_is_a_line_at_once_and_now_and_then_and_at_the_end_of_each_training(screen, clock):
    first, second = seeds(0, 1)
    with progress_bar(plain(screen), quiet=False, clock=clock) as bar:
        watch = Trainings(bar, [[first], [second]], {first: 1.0, second: 1.0})
        for what, seconds in ((first, 1), (second, 12)):
            watch.begin()
            for epoch in (1, 2, 3, 4):
                clock.wait(seconds)
                watch(what, at(epoch / 4, epoch, ends=True))
    lines = screen.getvalue().splitlines()
    heads = [" ".join(line.split()[:6]) for line in lines]
    assert heads == [
        "12% in_resnet20 seed 0 epoch 1/4",  # soon, so that nobody wonders for a minute
        "50% in_resnet20 seed 0 epoch 4/4",
        "62% in_resnet20 seed 1 epoch 1/4",
        "75% in_resnet20 seed 1 epoch 2/4",
        "87% in_resnet20 seed 1 epoch 3/4",
        "100% in_resnet20 seed 1 epoch 4/4",
    ]
    assert lines[-1].endswith("  812 images/s  took 52 s")


@pytest.mark.slow
def test_the_command_reports_on_stderr(tmp_path, capsys):
    options = ["--epochs", "2", "--device", "cpu", "--set", "batch_size=1347", "--out", str(tmp_path)]
    assert main(["train", "preact_resnet14", *options]) == 0
    out, err = capsys.readouterr()
    first, last = err.splitlines()
    assert re.fullmatch(r" *\d+%  preact_resnet14 seed 0  epoch 1/2  loss .*", first)
    assert re.fullmatch(r"100%  preact_resnet14 seed 0  epoch 2/2  loss .*  took \d+ s", last)
    assert out.splitlines()[0] == (
        "recipe digits_2epochs_batch_size_1347: epochs 2 instead of 60, batch_size 1347 instead of 128"
    )

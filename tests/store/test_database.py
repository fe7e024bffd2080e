"""The store: what is finished stays, once, whoever writes at the same time and whatever is killed."""

import errno
import itertools
import mmap
import random
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing

import numpy as np
import pandas as pd
import pytest
from support.one_pixel import Net, evaluate

from robust_interp.cli.main import main
from robust_interp.core.errors import DamageWarning, UserError
from robust_interp.store import CHUNK, FILE_NAME, NOT_FINITE, ZERO_GRADIENT, Outcome, Store
from robust_interp.store.cells import CLEAN, Cell, ModelCard, Perturbation, Plan
from robust_interp.store.connection import FORMAT, format_of, put


def outcome(predictions, flags=None, max_delta=None, seconds=0.0, device="cpu"):
    predictions = np.asarray(predictions, dtype=np.int16)
    flags = np.zeros(len(predictions)) if flags is None else np.asarray(flags)
    deltas = None if max_delta is None else np.full(len(predictions), max_delta, np.float32)
    return Outcome(predictions, flags.astype(np.uint8), deltas, seconds, device)


def chunk_rows(folder, columns="cell, start, count"):
    """The raw rows, read past the code under test."""
    with closing(sqlite3.connect(folder / FILE_NAME)) as db:
        return db.execute(f"SELECT {columns} FROM chunks ORDER BY cell, start").fetchall()


def assert_whole(folder, n=None):
    """The file is sound, and the chunks of each cell follow one another from 0 without gap or overlap."""
    with closing(sqlite3.connect(folder / FILE_NAME)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    rows = chunk_rows(folder)
    assert rows
    for _, chunks in itertools.groupby(rows, key=lambda row: row[0]):
        covered = 0
        for _, start, count in chunks:
            assert start == covered
            covered += count
        assert n in (None, covered)


@pytest.fixture
def connections(monkeypatch):
    """Every connection to a database that is opened after this, in order."""
    opened, plain = [], sqlite3.connect

    def connect(*args, **options):
        opened.append(plain(*args, **options))
        return opened[-1]

    monkeypatch.setattr(sqlite3, "connect", connect)
    return opened


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path) as store:
        yield store


def test_what_was_appended_is_read(store):
    store.append("a", 0, outcome([3, 99, -1], [0, ZERO_GRADIENT, 3], 0.25, 1.5, "cuda:0"))
    found = store.read("a", 3)
    assert found.predictions.tolist() == [3, 99, -1]
    assert found.flags.tolist() == [0, ZERO_GRADIENT, ZERO_GRADIENT | NOT_FINITE]
    assert (found.max_delta, found.seconds, found.device) == (0.25, 1.5, "cuda:0")


def test_a_cell_extends_and_any_prefix_is_read(store):
    store.append("a", 0, outcome([0, 1, 2], max_delta=0.125, seconds=1))
    store.append("a", 3, outcome([3, 4], max_delta=0.375, seconds=2, device="cuda:0"))
    assert store.covered("a") == 5
    for n in range(1, 6):
        assert store.read("a", n).predictions.tolist() == list(range(n))
    whole = store.read("a", 5)
    assert (whole.max_delta, whole.seconds, whole.device) == (0.375, 3, "cpu+cuda:0")
    first = store.read("a", 2)
    assert (first.max_delta, first.device) == (0.125, "cpu")


def test_a_prefix_reads_its_own_largest_change_and_its_share_of_the_time(store):
    store.append("a", 0, Outcome(np.arange(4), np.zeros(4), np.float32([0, 0.25, 0.5, 0]), 2.0, "cpu"))
    assert [store.read("a", n).max_delta for n in (1, 2, 3, 4)] == [0, 0.25, 0.5, 0.5]
    assert [store.read("a", n).seconds for n in (1, 2, 4)] == [0.5, 1.0, 2.0]


def test_a_cell_without_enough_samples_is_not_read(store):
    assert store.covered("a") == 0
    assert store.read("a", 1) is None
    store.append("a", 0, outcome([7, 7]))
    assert store.read("a", 3) is None
    assert store.read("b", 1) is None


def test_a_gap_is_refused(store, tmp_path):
    store.append("a", 0, outcome([1, 2]))
    with pytest.raises(ValueError, match="covers 2 images: cannot append from 3"):
        store.append("a", 3, outcome([4]))
    with pytest.raises(ValueError, match="covers 0 images"):
        store.append("b", 1, outcome([4]))
    assert chunk_rows(tmp_path) == [("a", 0, 2)]
    store.append("a", 2, outcome([3]))  # the refusal left no transaction open
    assert store.read("a", 3).predictions.tolist() == [1, 2, 3]


def test_samples_that_are_there_already_are_left_alone(store, tmp_path):
    store.append("a", 0, outcome([1, 2, 3], seconds=3))
    store.append("a", 1, outcome([9, 9, 4, 5], seconds=8))
    found = store.read("a", 5)
    assert found.predictions.tolist() == [1, 2, 3, 4, 5]
    assert found.seconds == 3 + 8 * 2 / 4  # two of the four samples were new
    store.append("a", 0, outcome([9, 9, 9, 9, 9]))
    store.append("a", 2, outcome([9]))
    assert chunk_rows(tmp_path) == [("a", 0, 3), ("a", 3, 2)]
    assert store.read("a", 5).predictions.tolist() == [1, 2, 3, 4, 5]


def test_a_chunk_holds_at_most_250_samples(store, tmp_path):
    store.append("a", 0, outcome(np.arange(601), seconds=6.01))
    store.append("b", 0, outcome(np.arange(100)))
    store.append("b", 0, outcome(np.arange(400)))
    assert CHUNK == 250
    assert chunk_rows(tmp_path) == [
        ("a", 0, 250),
        ("a", 250, 250),
        ("a", 500, 101),
        ("b", 0, 100),
        ("b", 100, 250),
        ("b", 350, 50),
    ]
    assert store.read("a", 601).predictions.tolist() == list(range(601))
    assert store.read("a", 601).seconds == pytest.approx(6.01)
    assert store.read("b", 400).predictions.tolist() == list(range(400))


def test_the_largest_change_is_none_where_nothing_was_attacked(store):
    store.append("a", 0, outcome([1]))
    assert store.read("a", 1).max_delta is None


def test_finished_chunks_are_durable_and_visible_at_once(connections, store, tmp_path):
    store.append("a", 0, outcome([1, 2]))
    with Store(tmp_path) as other:
        assert other.read("a", 2).predictions.tolist() == [1, 2]
        other.append("a", 2, outcome([3]))
    assert store.covered("a") == 3
    db = connections[0]
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert db.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL: synced at every commit


def test_the_file_alone_holds_what_a_killed_process_had_finished(store, tmp_path):
    """People copy cells.sqlite and leave the log beside it."""
    for start in range(5):
        store.append("a", start, outcome([start]))
        copy = tmp_path / f"copy{start}"
        copy.mkdir()
        shutil.copy(tmp_path / FILE_NAME, copy)
        with Store(copy) as copied:
            assert copied.covered("a") == start + 1


def test_a_file_system_without_shared_memory_gets_a_rollback_journal(connections, tmp_path, monkeypatch):
    def fails(*_):
        raise OSError(errno.ENODEV, "No such device")

    monkeypatch.setattr(mmap, "mmap", fails)
    with Store(tmp_path) as store:
        store.append("a", 0, outcome([1, 2]))
        assert connections[0].execute("PRAGMA journal_mode").fetchone() == ("delete",)
        assert store.read("a", 2).predictions.tolist() == [1, 2]


@pytest.mark.skipif(sys.platform == "win32", reason="has no such locks")
def test_a_file_system_without_locks_is_refused_at_once(tmp_path, monkeypatch):
    import fcntl

    def fails(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "lockf", fails)
    with pytest.raises(
        UserError, match=r"no file can be locked there \(No locks available\): choose a folder"
    ):
        Store(tmp_path)


def test_a_sample_that_could_not_be_attacked_is_not_right():
    labels = np.array([1, 2, 3, 4])
    found = outcome([1, 2, 3, 0], [0, ZERO_GRADIENT, NOT_FINITE, 0])
    assert found.correct(labels).tolist() == [True, False, False, False]


def test_labels_that_are_not_the_datasets_are_replaced_and_named(tmp_path):
    with Store(tmp_path) as store:
        store.put_labels("print", np.array([0, 99, 7]))
        store.put_labels("print", np.array([0, 99, 7]))
    store = Store(tmp_path)
    store.put_labels("print", np.array([1, 1, 1]))  # its fingerprint covers them: these are right
    assert store.labels("print").tolist() == [1, 1, 1]
    with pytest.warns(DamageWarning, match=r"labels are damaged \(print\)"):
        store.close()


def test_finished_runs_come_back_as_they_were_oldest_first(store):
    card = ModelCard(
        "net", {"weights": "ab", "mean": [0.5]}, "quick", "0.20-0.25", 1, (1,), 1, 0.27, "ab", 99.1
    )
    attack = Perturbation("attack", "pgd", "pgd_2", {"eps": 2 / 255, "alpha": 1 / 255, "steps": 5}, seed=3)
    noise = Perturbation("corruption", "shot_noise", "shot_noise_1", {"severity": 1}, "generated@0")
    cells = tuple(Cell(card, "digits", "f", p, {"torch": "2"}) for p in (CLEAN, attack, noise))
    first, second = Plan("digits", 10, "final", cells), Plan("digits", 20, "final", cells[:1])
    store.put_plan(first)
    store.put_plan(second)
    assert store.plans() == [first, second]
    assert [cell.key for cell in store.plans()[0].cells] == [cell.key for cell in cells]
    store.put_plan(first)
    assert store.plans() == [second, first]


def test_a_store_in_memory_leaves_no_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with Store(None) as store:
        store.append("a", 0, outcome([1]))
        assert store.covered("a") == 1
    assert not list(tmp_path.iterdir())


WRITER = """
import sys, time
from pathlib import Path
import numpy as np
from robust_interp.store import Outcome, Store

folder, step, n = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
(folder / f"ready{step}").touch()
while not (folder / "go").exists():
    time.sleep(0.001)
with Store(folder / "store") as store:
    for cell in range(3):
        for start in range(0, n, step):
            ids = np.arange(start, min(n, start + step), dtype=np.int16)
            flags = np.zeros(len(ids), dtype=np.uint8)
            deltas = np.full(len(ids), 0.5, np.float32)
            store.append(str(cell), start, Outcome(ids * 10 + cell, flags, deltas, 1.0, "cpu"))
"""


@pytest.mark.slow
def test_processes_that_append_the_same_ranges_at_once_neither_corrupt_nor_double(tmp_path):
    steps, n = (7, 10, 11, 33), 200  # each process cuts the same samples into other ranges
    writers = [
        subprocess.Popen([sys.executable, "-c", WRITER, tmp_path, str(step), str(n)], stderr=subprocess.PIPE)
        for step in steps
    ]
    while not all((tmp_path / f"ready{step}").exists() for step in steps):
        time.sleep(0.01)
    (tmp_path / "go").touch()
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert (writer.returncode, errors.decode()) == (0, "")
    assert_whole(tmp_path / "store", n)
    with Store(tmp_path / "store") as store:
        for cell in range(3):
            assert store.read(str(cell), n).predictions.tolist() == [10 * i + cell for i in range(n)]


def test_a_store_that_another_process_creates_meanwhile_is_not_taken_for_a_damaged_one(tmp_path):
    path = tmp_path / FILE_NAME

    def create(statement):
        if "sqlite_master" in statement and not path.with_suffix(".created").exists():
            path.with_suffix(".created").touch()
            Store(tmp_path).close()

    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode=wal")
        db.set_trace_callback(create)  # called between reading the format's number and the columns
        assert format_of(db, path) == 0
        db.set_trace_callback(None)
        assert path.with_suffix(".created").exists()
        assert format_of(db, path) == FORMAT


def test_a_store_that_another_process_is_creating_is_waited_for(tmp_path):
    with closing(
        sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None, check_same_thread=False)
    ) as other:
        other.execute("BEGIN IMMEDIATE")  # not in WAL mode yet
        release = threading.Timer(0.2, other.execute, ["COMMIT"])
        release.start()
        with Store(tmp_path) as store:
            store.append("a", 0, outcome([1]))
        release.join()
    assert chunk_rows(tmp_path) == [("a", 0, 1)]


def below_a_file(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    return tmp_path / "file" / "results"


def on_a_file(tmp_path):
    (tmp_path / "results").write_text("not a folder")
    return tmp_path / "results"


def not_a_database(tmp_path):
    (tmp_path / FILE_NAME).write_text("<html>not a database</html>" * 100)
    return tmp_path


def a_folder_in_its_place(tmp_path):
    (tmp_path / FILE_NAME).mkdir()
    return tmp_path


@pytest.mark.parametrize("spoilt", [below_a_file, on_a_file, not_a_database, a_folder_in_its_place])
def test_a_place_that_cannot_be_a_store_is_refused_in_one_line(tmp_path, spoilt):
    folder = spoilt(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError) as refusal:
        Store(folder)
    assert str(folder / FILE_NAME) in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_database_of_something_else_is_refused_in_one_line_and_left_alone(tmp_path):
    with closing(sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)) as db:
        db.execute("CREATE TABLE chunks (mine TEXT)")
        db.execute("INSERT INTO chunks VALUES ('kept')")
    with pytest.raises(UserError, match=FILE_NAME) as refusal, Store(tmp_path) as store:
        store.covered("a")
    assert "\n" not in str(refusal.value)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as db:
        assert db.execute("SELECT * FROM chunks").fetchall() == [("kept",)]


def test_a_damaged_database_is_reported_in_one_line(tmp_path):
    with Store(tmp_path) as store:
        for cell in "abcdefgh":
            store.append(cell, 0, outcome(np.zeros(2000)))
    path = tmp_path / FILE_NAME
    whole = path.read_bytes()
    path.write_bytes(whole[:4096] + b"\xff" * (len(whole) - 4096))  # the header page is sound
    with pytest.raises(UserError, match=FILE_NAME) as refusal, Store(tmp_path) as store:
        store.read("a", 2000)
    assert "\n" not in str(refusal.value)


def fill(store, cell):
    for start in range(250, 25_000, 250):
        store.append(cell, start, outcome(np.arange(start, start + 250)))


def test_a_full_disk_loses_nothing_that_was_finished(connections, store, tmp_path):
    db = connections[0]
    store.append("a", 0, outcome(np.arange(250)))
    pages = db.execute("PRAGMA page_count").fetchone()[0]
    db.execute(f"PRAGMA max_page_count = {pages + 1}")
    with pytest.raises(UserError, match=r"full; finished results are kept") as refusal:
        store.append("a", 250, outcome(np.arange(250, 25_000)))
    assert store.covered("a") == 250  # all of an append or nothing of it
    store.append("b", 0, outcome([1]))
    with pytest.raises(UserError, match=r"full; finished results are kept"):
        fill(store, "a")
    assert "\n" not in str(refusal.value)
    kept = store.covered("a")
    assert 250 <= kept < 25_000
    assert_whole(tmp_path)
    db.execute("PRAGMA max_page_count = 1000000")
    store.append("a", kept, outcome(np.arange(kept, kept + 250)))
    assert store.read("a", kept + 250).predictions.tolist() == list(range(kept + 250))


# A whole bench: three classifiers (two seeds and their ensemble), four cells each, five chunks a cell.
CELLS, N, BATCH = 12, 40, 8
MEASURED = (
    "--models in_resnet14 --corruptions gaussian_noise(severity=3) --attacks fgsm,pgd(steps=3) --eps 16"
)


def bench(zoo, out, n=N):
    options = f"{MEASURED} --n {n} --batch-size {BATCH} --device cpu --quiet"
    return ["bench", "--zoo", str(zoo), "--out", str(out), *options.split()]


@pytest.fixture(scope="module")
def undisturbed(tiny_zoo, tmp_path_factory):
    """The results folder of one run that nothing disturbs."""
    out = tmp_path_factory.mktemp("undisturbed")
    assert main(bench(tiny_zoo, out)) == 0
    assert_whole(out, N)
    assert len(chunk_rows(out)) == CELLS * N // BATCH
    return out


def assert_same_tables(out, expected):
    assert (out / "leaderboard.csv").read_bytes() == (expected / "leaderboard.csv").read_bytes()
    mine, theirs = (
        pd.read_csv(folder / "results.csv", dtype=str).drop(columns=["seconds", "device"])
        for folder in (out, expected)
    )
    pd.testing.assert_frame_equal(mine, theirs)


def durable_chunks(out, copy):
    """All columns of the chunks that a kill at this moment would leave.

    Read from a copy, so that what a kill leaves open is recovered by the next run and not by the test.
    """
    copy.mkdir(exist_ok=True)
    for file in (copy / FILE_NAME, copy / f"{FILE_NAME}-wal", copy / f"{FILE_NAME}-shm"):
        file.unlink(missing_ok=True)
    try:
        for file in (FILE_NAME, f"{FILE_NAME}-wal"):
            if (out / file).exists():
                shutil.copy(out / file, copy / file)
        return chunk_rows(copy, "*")
    except (FileNotFoundError, sqlite3.DatabaseError):  # it has no tables yet, or changed during the copy
        return []


@pytest.mark.exhaustive
@pytest.mark.slow
def test_a_bench_killed_again_and_again_ends_like_an_undisturbed_one(
    undisturbed, tiny_zoo, tmp_path, start_command
):
    chance = random.Random(0)
    out, copy, whole = tmp_path / "results", tmp_path / "copy", CELLS * N // BATCH
    moments = [0, *sorted(chance.sample(range(1, whole), 6)), whole]  # chunks that are there at the kill
    kept, killed = [], 0
    for moment in moments:
        run = start_command(bench(tiny_zoo, out))
        while run.is_alive() and len(durable_chunks(out, copy)) < moment:
            time.sleep(0.002)
        time.sleep(chance.uniform(0, 0.02))
        run.kill()
        run.join()
        killed += run.exitcode == -9
        found = durable_chunks(out, copy)
        assert set(kept) <= set(found)  # to the second that they took: nothing was measured again
        kept = found
    assert killed >= 5
    assert 0 < len(kept) <= whole
    assert main(bench(tiny_zoo, out)) == 0
    assert_whole(out, N)
    assert set(kept) <= set(chunk_rows(out, "*"))
    assert_same_tables(out, undisturbed)


@pytest.mark.exhaustive
def test_two_benches_on_one_store_at_once_end_like_one(undisturbed, tiny_zoo, tmp_path, start_command):
    runs = [start_command(bench(tiny_zoo, tmp_path)) for _ in range(2)]
    for run in runs:
        run.join(timeout=120)
    assert [run.exitcode for run in runs] == [0, 0]
    assert_whole(tmp_path, N)
    assert_same_tables(tmp_path, undisturbed)


@pytest.mark.slow
def test_a_second_run_computes_nothing(undisturbed, tiny_zoo, monkeypatch):
    from robust_interp.classifiers.classifier import Classifier
    from robust_interp.classifiers.ensemble import Ensemble

    def forward(self, images):
        raise AssertionError("a classifier was asked again")

    monkeypatch.setattr(Classifier, "forward", forward)
    monkeypatch.setattr(Ensemble, "forward", forward)
    before = chunk_rows(undisturbed, "*"), (undisturbed / "results.csv").read_bytes()
    assert main(bench(tiny_zoo, undisturbed)) == 0
    assert before == (chunk_rows(undisturbed, "*"), (undisturbed / "results.csv").read_bytes())


@pytest.mark.slow
def test_a_larger_n_extends_and_a_smaller_one_reads(tiny_zoo, tmp_path, undisturbed):
    assert main(bench(tiny_zoo, tmp_path, n=24)) == 0
    few, small = chunk_rows(tmp_path, "*"), (tmp_path / "leaderboard.csv").read_bytes()
    assert_whole(tmp_path, 24)
    assert main(bench(tiny_zoo, tmp_path, n=N)) == 0
    many = chunk_rows(tmp_path, "*")
    assert set(few) < set(many)
    assert_whole(tmp_path, N)
    assert_same_tables(tmp_path, undisturbed)
    assert main(bench(tiny_zoo, tmp_path, n=24)) == 0
    assert chunk_rows(tmp_path, "*") == many
    assert (tmp_path / "leaderboard.csv").read_bytes() == small


@pytest.mark.slow
def test_a_disk_that_fills_during_a_bench_stops_it_with_one_line(
    connections, tiny_zoo, tmp_path, monkeypatch, capsys
):
    plain = Store.append

    def append(self, cell, start, part):
        db = connections[0]
        pages = db.execute("PRAGMA page_count").fetchone()[0]
        db.execute(f"PRAGMA max_page_count = {min(pages, 12)}")
        plain(self, cell, start, part)

    with monkeypatch.context() as patch:
        patch.setattr(Store, "append", append)
        assert main(bench(tiny_zoo, tmp_path)) == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "full; finished results are kept" in message
    assert not list(tmp_path.glob("*.csv"))
    kept = chunk_rows(tmp_path, "*")
    assert kept
    assert main(bench(tiny_zoo, tmp_path)) == 0
    assert set(kept) <= set(chunk_rows(tmp_path, "*"))
    assert_whole(tmp_path, N)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_smaller_n_has_its_own_largest_change_and_its_share_of_the_time(tmp_path):
    # The first four are wrong and 0.02 from the border, which stops the attack; the others move by 0.1.
    pixels = np.array([0.02, 0.98, 0.02, 0.98, 0.3, 0.7, 0.3, 0.7, 0.3, 0.7], np.float32)
    dataset = pixels.reshape(-1, 1, 1, 1), [1, 0, 1, 0, 0, 1, 0, 1, 0, 1]
    model = Net()
    whole = evaluate(model, dataset, out=tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as db, db:
        for *values, _, device, _ in db.execute("SELECT * FROM chunks").fetchall():
            put(db, "chunks", *values, 20.0, device)
    few = evaluate(model, dataset, n=4, out=tmp_path)
    assert whole["max_delta_255"][1] == pytest.approx(25.5, abs=1e-3)
    assert few["max_delta_255"][1] == pytest.approx(5.1, abs=1e-3)
    assert few["seconds"].tolist() == [8, 8]
    assert evaluate(model, dataset, out=tmp_path)["seconds"].tolist() == [20, 20]
    assert few["accuracy"].tolist() == [0, 0]
    assert whole["accuracy"].tolist() == [60, 60]

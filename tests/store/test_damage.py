"""A damaged store gives no wrong number: what is damaged is named, left out, and measured again."""

import shutil
import sqlite3
import warnings
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from support.hand_made import LABELS, attack, card, first, run
from support.stored import killed

from robust_interp.core.errors import DamageWarning, UserError
from robust_interp.results.folders import runs_in
from robust_interp.store import FILE_NAME, Outcome, Store, log
from robust_interp.store.cells import CLEAN
from robust_interp.store.check import check, repair
from robust_interp.store.connection import put
from robust_interp.store.damage import Fault

OLD = Path(__file__).parents[1] / "results" / "fixtures" / "results_0_1"
CHUNKS = [[0, 1, 2], [3, 4], [5, 6, 7, 8]]


def part(predictions, device="cpu"):
    predictions = np.array(predictions, np.int16)
    return Outcome(predictions, np.zeros(len(predictions), np.uint8), None, 1.0, device)


def three_chunks(folder, cells="ab"):
    """A store in which each cell has the samples 0 to 8, whose prediction is their number."""
    with Store(folder) as store:
        for cell in cells:
            for chunk in CHUNKS:
                store.append(cell, chunk[0], part(chunk))
    return folder


def change(folder, *statements):
    with closing(sqlite3.connect(folder / FILE_NAME)) as db, db:
        for statement in statements:
            db.execute(statement)


def scored(folder):
    """The accuracies of all runs by model and column, and what was said of damage."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            runs, _ = runs_in([folder])
        except UserError as error:
            if "no measurement" not in str(error):
                raise
            runs = []
    lines = list(dict.fromkeys(str(one.message) for one in told if issubclass(one.category, DamageWarning)))
    return {(s.classifier.label, s.column): s.accuracy for scores in runs for s in scores}, lines


def closed(store):
    """Close a store; what it says of damage."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        store.close()
    return [str(one.message) for one in told]


@pytest.mark.parametrize(
    ("changed", "covered"),
    [
        ("predictions = x'090009'", 3),
        ("predictions = x'03000500'", 3),
        ("flags = x'0001'", 3),
        ("deltas = x'0000000000000000'", 3),
        ("seconds = 1.5", 3),
        ("seconds = 'long'", 3),
        ("device = 'cpv'", 3),
        ("count = 3", 3),
        ("start = 4", 3),
        ("start = 2", 3),
        ("start = -3", 0),
        ("cell = 'c'", 3),
        ("digest = NULL", 3),
        ("digest = x'00'", 3),
    ],
)
def test_a_chunk_that_does_not_say_what_was_written_is_left_out_and_measured_again(
    tmp_path, changed, covered
):
    three_chunks(tmp_path)
    change(tmp_path, f"UPDATE chunks SET {changed} WHERE cell = 'a' AND start = 3")
    store = Store(tmp_path)
    assert store.covered("a") == covered
    assert store.read("a", 9) is None
    assert store.read("b", 9).predictions.tolist() == list(range(9))
    store.append("a", covered, part(range(covered, 5), "new"))
    assert store.covered("a") == 5  # what followed the damaged one has gone with it
    store.append("a", 5, part(range(5, 9), "new"))
    assert store.read("a", 9).predictions.tolist() == list(range(9))
    (line,) = closed(store)
    assert "1 batch of predictions is damaged or missing (cell a from image" in line
    with Store(tmp_path) as again:
        assert again.read("a", 9).device == ("cpu+new" if covered else "new")


def test_chunks_in_each_others_place_are_found(tmp_path):
    three_chunks(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as db, db:
        rows = db.execute("SELECT predictions, digest, cell FROM chunks WHERE start = 3").fetchall()
        for (predictions, digest, _), (*_, other) in zip(rows, rows[::-1], strict=True):
            values = predictions, digest, other
            db.execute("UPDATE chunks SET predictions = ?, digest = ? WHERE start = 3 AND cell = ?", values)
    store = Store(tmp_path)
    assert [store.covered(cell) for cell in "ab"] == [3, 3]
    (line,) = closed(store)  # one for both
    assert "2 batches of predictions are damaged or missing (cell a from image 4 on and 1 more)" in line


def test_a_chunk_that_has_vanished_leaves_no_sum_that_is_right_by_chance(tmp_path):
    three_chunks(tmp_path)
    change(tmp_path, "DELETE FROM chunks WHERE start = 3")
    store = Store(tmp_path)
    assert store.covered("a") == 3
    assert store.read("a", 4) is None
    assert store.read("a", 3).predictions.tolist() == [0, 1, 2]
    assert closed(store)


def test_of_two_processes_that_mend_a_cell_the_second_keeps_what_the_first_has_measured(tmp_path):
    three_chunks(tmp_path)
    change(tmp_path, "UPDATE chunks SET flags = x'0001' WHERE start = 3")
    one, two = Store(tmp_path), Store(tmp_path)
    assert one.covered("a") == two.covered("a") == 3
    one.append("a", 3, part([3, 4], "one"))
    two.append("a", 3, part([3, 4, 5], "two"))
    one.append("a", 5, part([5, 6], "one"))
    assert two.read("a", 7).predictions.tolist() == list(range(7))
    change(tmp_path, "DELETE FROM chunks WHERE cell = 'a' AND start >= 3")  # as a repair may meanwhile
    with pytest.raises(UserError, match=r"covers 3 images: cannot append from 7.*repeat the command"):
        two.append("a", 7, part([7]))
    two.append("a", 3, part([3]))
    assert one.covered("a") == 4
    assert closed(one)
    assert closed(two)


# ---- tables that are rebuilt


@pytest.fixture
def folder(tmp_path):
    """Two models, clean and under two attacks of one radius, under protocol worst; a second run of clean."""
    with Store(tmp_path / "results") as store:
        lines = []
        for name, right in (("a", (9, 6, 5)), ("b", (8, 4, 7))):
            perturbations = CLEAN, attack("fgsm", 2), attack("pgd", 2)
            lines += [(card(name), one, first(n)) for one, n in zip(perturbations, right, strict=True)]
        run(store, lines, "worst")
        run(store, [(card("c"), CLEAN, first(7))])
        store.put_audit("model", "digits-images", "pass(n=200)", "[]")
    return tmp_path / "results"


WHOLE = {
    ("a seed 0", "clean"): 90,
    ("a seed 0", "fgsm_2"): 60,
    ("a seed 0", "pgd_2"): 50,
    ("a seed 0", "worst_2"): 50,
    ("b seed 0", "clean"): 80,
    ("b seed 0", "fgsm_2"): 40,
    ("b seed 0", "pgd_2"): 70,
    ("b seed 0", "worst_2"): 40,
    ("c seed 0", "clean"): 70,
}


def test_a_sound_store_says_nothing(folder):
    assert scored(folder) == (WHOLE, [])
    assert check(folder).lines("") == []
    assert repair(folder).old is None


def test_the_worst_of_attacks_is_not_told_of_fewer(folder):
    with Store(folder) as store:
        plan = next(plan for plan in store.plans() if plan.protocol == "worst")
    (cell,) = [
        cell for cell in plan.cells if (cell.classifier.model, cell.perturbation.column) == ("b", "fgsm_2")
    ]
    change(folder, f"DELETE FROM chunks WHERE cell = '{cell.key}'")
    found, (line,) = scored(folder)
    assert found == {name: one for name, one in WHOLE.items() if name not in LOST}
    assert "1 measurement of a finished run is missing (b seed 0 fgsm_2, n = 10)" in line


LOST = ("b seed 0", "fgsm_2"), ("b seed 0", "worst_2")


@pytest.mark.parametrize(
    ("statement", "left", "said"),
    [
        ("DELETE FROM runs WHERE finished = 2", 8, "1 table has lost rows (runs: 1 of 2 are there)"),
        ("UPDATE runs SET finished = 9 WHERE finished = 2", 8, "1 finished run is damaged"),
        ("UPDATE runs SET dataset = 'digitz' WHERE finished = 2", 8, "1 finished run is damaged"),
        ("UPDATE runs SET plan = 'x' || plan WHERE finished = 2", 8, "1 finished run is damaged"),
        ("UPDATE runs SET text = replace(text, '\"c\"', '\"d\"')", 8, "1 finished run is damaged"),
        ("UPDATE counts SET rows = 3", 9, "number of rows is damaged (runs"),
        ("DELETE FROM counts", 9, "number of rows is damaged (runs"),
    ],
)
def test_a_run_that_is_damaged_or_gone_is_named_and_the_others_are_shown(folder, statement, left, said):
    change(folder, statement)
    found, lines = scored(folder)
    assert found == dict(list(WHOLE.items())[:left])
    assert any(said in line for line in lines)
    assert len(lines) <= 2
    assert check(folder)
    done = repair(folder)
    assert not done.left
    assert scored(folder) == (dict(list(WHOLE.items())[:left]), [])


def test_labels_that_are_damaged_or_gone_are_refused_until_they_are_written_again(folder):
    for statement in ("UPDATE labels SET labels = zeroblob(40)", "DELETE FROM labels"):
        change(folder, statement)
        with pytest.raises(UserError, match="has lost the labels of the data set digits-image"):
            runs_in([folder])
        with Store(folder) as store:
            store.put_labels("digits-images", LABELS)
            store.damage.take(store.damage)
        assert scored(folder)[0] == WHOLE


def test_an_audit_that_is_damaged_is_left_out(folder):
    change(folder, "UPDATE audits SET verdict = 'fail(n=200)'")
    store = Store(folder)
    assert (store.audits(), store.verdict("model", "digits-images")) == ([], "")
    (line,) = closed(store)
    assert "1 audit is damaged (of the model model)" in line


def test_a_newer_store_is_refused_in_one_line(folder):
    change(folder, "PRAGMA user_version = 3")
    for use in (Store, check, repair):
        with pytest.raises(UserError, match=r"newer version of robust-interp \(format 3") as refusal:
            use(folder)
        assert "\n" not in str(refusal.value)


def test_a_field_that_is_not_known_spoils_nothing(folder):
    with Store(folder) as store:
        text = store.plans()[1].to_json()
        with closing(sqlite3.connect(folder / FILE_NAME)) as db:
            old = db.execute("SELECT * FROM runs WHERE finished = 2").fetchone()
    for field, known in (('{"note": 1, "dataset"', True), ('{"note": 1, "n": 5, "dataset"', False)):
        other = text.replace('{"dataset"', field, 1).replace(', "n": 10', "" if not known else ', "n": 10', 1)
        with closing(sqlite3.connect(folder / FILE_NAME)) as db, db:
            put(db, "runs", *old[:3], other)
        found, lines = scored(folder)
        assert (("c seed 0", "clean") in found) == known
        assert len(found) >= 8
        assert len(lines) == (0 if known else 1)


# ---- files


@pytest.mark.slow
def test_an_old_store_is_sealed_when_it_is_opened_to_write(tmp_path):
    folder = tmp_path / "results"
    folder.mkdir()
    shutil.copy(OLD / FILE_NAME, folder)
    change(
        folder, "UPDATE chunks SET flags = x'00' WHERE start = 0 AND cell = (SELECT MIN(cell) FROM chunks)"
    )
    before, _ = scored(folder)
    with closing(sqlite3.connect(folder / FILE_NAME)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (0,)  # reading changes nothing
    with Store(folder) as store:
        assert not store.damage
    after, lines = scored(folder)
    assert after == before
    assert any("missing" in line for line in lines)
    with closing(sqlite3.connect(folder / FILE_NAME)) as db:
        assert db.execute("PRAGMA user_version").fetchone() == (2,)
        assert db.execute("SELECT COUNT(*) FROM chunks WHERE digest IS NULL").fetchone() == (1,)
        assert db.execute("SELECT COUNT(*) FROM runs WHERE digest IS NULL").fetchone() == (0,)
    change(folder, "UPDATE chunks SET digest = NULL")  # no longer taken as it is
    assert scored(folder)[0] == {}


def spoil(path, at, content):
    whole = bytearray(path.read_bytes())
    whole[at : at + len(content)] = content
    path.write_bytes(whole)


@pytest.mark.parametrize(
    ("at", "content"),
    [(0, b"X"), (16, b"\0\0"), (19, b"\x07"), (100, b"\0"), (103, b"\0\1"), (4096, b"\0" * 8)],
)
def test_a_repair_finds_the_rows_of_a_file_that_cannot_be_opened(folder, at, content):
    path = folder / FILE_NAME
    spoil(path, at, content)
    damaged = path.read_bytes()
    assert check(folder).lines(path)
    done = repair(folder)
    assert done.old.read_bytes() == damaged
    found, lines = scored(folder)
    assert found.items() <= WHOLE.items()
    assert found == WHOLE or lines or at == 4096
    assert not check(folder).beyond(Fault.MISSING)


def test_a_repair_keeps_all_but_the_page_that_is_gone(tmp_path):
    with Store(tmp_path) as store:
        for number in range(40):
            store.append(f"{number:064}", 0, part(np.arange(300)))
    path = tmp_path / FILE_NAME
    pages = len(path.read_bytes()) // 4096
    spoil(path, (pages - 4) * 4096, b"\xff" * 4096)
    done = repair(tmp_path)
    assert not done.left
    assert 60 <= done.kept["chunks"] < 80
    with Store(tmp_path) as store:
        whole = [store.read(f"{number:064}", 300) for number in range(40)]
        assert sum(one is not None for one in whole) >= 30
        assert all(one.predictions.tolist() == list(range(300)) for one in whole if one)


def parts_that_wait(folder):
    """Cell a: images 0 to 3 are stored, 6 to 12 wait. Cell b: none is stored, 3 to 6 wait."""
    with Store(folder) as store:
        assert [store.claim("a", 12, lambda at: at + 3)[0] for _ in range(4)] == [0, 3, 6, 9]
        assert [store.claim("b", 6, lambda at: at + 3)[0] for _ in range(2)] == [0, 3]
        for cell, start in (("a", 0), ("a", 9), ("a", 6), ("b", 3)):
            store.append(cell, start, part(range(start, start + 3)))


def left_to_measure(folder):
    """The parts of at most three images that a run would still measure, per cell."""
    with Store(folder) as store:
        parts = {"a": [], "b": []}
        for cell, n in (("a", 12), ("b", 6)):
            while taken := store.claim(cell, n, lambda at: at + 3):
                parts[cell].append(taken)
    return parts


def finished(folder, *missing):
    """The predictions of both cells once the missing parts are measured, with predictions 100 higher."""
    with Store(folder) as store:
        for cell, start, stop in missing:
            store.append(cell, start, part(range(100 + start, 100 + stop)))
        return [store.read(cell, n).predictions.tolist() for cell, n in (("a", 12), ("b", 6))]


LOST_COUNTS = "DELETE FROM counts"  # a damage that needs a repair, and hides nothing


def test_a_repair_keeps_parts_that_wait(tmp_path):
    parts_that_wait(tmp_path)
    change(tmp_path, LOST_COUNTS)
    done = repair(tmp_path)
    assert not done.left
    assert (done.kept["chunks"], done.kept["waiting"]) == (1, 3)
    assert left_to_measure(tmp_path) == {"a": [(3, 6)], "b": [(0, 3)]}
    assert finished(tmp_path, ("a", 3, 6), ("b", 0, 3)) == [
        [0, 1, 2, 103, 104, 105, 6, 7, 8, 9, 10, 11],
        [100, 101, 102, 3, 4, 5],
    ]


@pytest.mark.slow
def test_the_command_counts_the_parts_that_wait(tmp_path, command):
    parts_that_wait(tmp_path)
    change(tmp_path, LOST_COUNTS)
    status, out, _ = command("store", "repair", tmp_path)
    assert status == 0
    assert "built anew with 1 chunks, 3 waiting chunks; the damaged file is" in out


def test_a_repair_leaves_out_a_damaged_part_that_waits(tmp_path):
    parts_that_wait(tmp_path)
    change(tmp_path, LOST_COUNTS, "UPDATE waiting SET predictions = zeroblob(6) WHERE start = 6")
    assert repair(tmp_path).kept["waiting"] == 2
    assert left_to_measure(tmp_path) == {"a": [(3, 6), (6, 9)], "b": [(0, 3)]}


def test_a_repair_adds_the_parts_that_no_longer_wait(tmp_path):
    parts_that_wait(tmp_path)
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as db, db:
        for cell, start, count in (("a", 3, 3), ("b", 0, 2), ("b", 1, 2)):
            (*values, _) = db.execute("SELECT * FROM waiting WHERE cell = 'b' AND start = 3").fetchone()
            ids = np.arange(start, start + count, dtype="<i2").tobytes()
            put(db, "waiting", cell, start, count, ids, bytes(count), *values[5:])
        db.execute(LOST_COUNTS)
    done = repair(tmp_path)
    # Of cell b, image 1 is in two parts: the second one is added by the next run, from image 2 on.
    assert (done.kept["chunks"], done.kept["waiting"]) == (5, 2)
    assert left_to_measure(tmp_path) == {"a": [], "b": []}
    assert finished(tmp_path) == [list(range(12)), list(range(6))]


@pytest.mark.parametrize(("at", "content"), [(0, b"X"), (19, b"\x07"), (103, b"\0\1")])
def test_a_repair_finds_parts_that_wait_in_a_file_that_cannot_be_opened(tmp_path, at, content):
    parts_that_wait(tmp_path)
    spoil(tmp_path / FILE_NAME, at, content)
    assert repair(tmp_path).kept["waiting"] == 3
    assert left_to_measure(tmp_path) == {"a": [(3, 6)], "b": [(0, 3)]}


@pytest.mark.slow
def test_the_command_says_what_is_damaged_and_repairs_it(folder, command):
    path = folder / FILE_NAME
    assert command("store", "check", folder) == (0, f"{path} is sound\n", "")
    assert command("store", "repair", folder) == (0, f"{path} is sound: there is nothing to repair\n", "")
    change(folder, "UPDATE chunks SET seconds = 3 WHERE cell = (SELECT MIN(cell) FROM chunks)")
    status, out, err = command("store", "check", folder)
    assert (status, err, out.count("\n")) == (1, "", 2)
    assert "batch of predictions is damaged" in out
    assert "measurement of a finished run is missing" in out
    shown = command("leaderboard", folder, "--format", "csv")
    assert shown[0] == 0
    assert shown[2].count("warning: ") == shown[2].count("\n") == 2
    status, out, err = command("store", "repair", folder)
    assert (status, err) == (0, "")
    assert f"built anew with 6 chunks, 1 labels, 2 runs, 1 audits; the damaged file is {path}.damaged1" in out
    status, out, _ = command("store", "check", folder)
    assert (status, out.count("\n")) == (1, 1)
    assert "the same bench measures it again" in out
    status, out, err = command("store", "check", folder / "nowhere")
    assert (status, out, err.count("\n")) == (1, "", 1)


def test_a_repair_keeps_the_journal_that_was_chosen(folder):
    Store(folder, journal="delete").close()
    change(folder, "UPDATE chunks SET seconds = 3 WHERE cell = (SELECT MIN(cell) FROM chunks)")
    assert repair(folder).kept
    Store(folder).close()  # a command without the option
    with closing(sqlite3.connect(folder / FILE_NAME)) as db:
        assert db.execute("PRAGMA journal_mode").fetchone()[0] == "delete"


@pytest.mark.slow
def test_a_log_that_ends_too_early_is_named(folder, tmp_path):
    copy = killed(folder, tmp_path / "copy")
    path, file = copy / FILE_NAME, copy / f"{FILE_NAME}-wal"
    assert log.unreadable(path) == ""
    written = file.read_bytes()
    for begun in (32, 33, 100):  # the header, and no whole page yet: another process is about to write
        file.write_bytes(written[:begun])
        assert log.unreadable(path) == ""
    file.write_bytes(written)
    whole = file.read_bytes()
    for at in (0, 5, 16, 24, 32 + 4, 32 + 8, 32 + 16, 32 + 24 + 100, len(whole) - 1):
        spoil(file, at, bytes([whole[at] ^ 4]))
        assert log.unreadable(path), at
        file.write_bytes(whole)
    file.write_bytes(whole[:-1])  # a page that was not written to its end was not stored
    assert log.unreadable(path) == ""
    spoil(file, 32 + 24 + 100, bytes([whole[32 + 24 + 100] ^ 4]))
    found, lines = scored(copy)
    assert ("late seed 0", "clean") not in found
    assert any(
        "write-ahead log cannot be read to its end (from page 1 of the log on)" in line for line in lines
    )


@pytest.mark.parametrize("what", ["removed", "replaced"])
def test_a_store_that_is_removed_while_it_is_used_is_named_at_the_next_write(tmp_path, what):
    three_chunks(tmp_path / "results")
    store = Store(tmp_path / "results")
    shutil.move(tmp_path / "results", tmp_path / "elsewhere")
    if what == "replaced":
        three_chunks(tmp_path / "results")
    with pytest.raises(UserError, match=r"cells.sqlite was removed or replaced during the run: repeat"):
        store.append("a", 9, part([9]))
    store.close()


@pytest.mark.parametrize("content", [b"garbage", b"seventeen bytes!!"])
def test_a_file_shorter_than_a_header_is_built_anew_with_nothing(command, tmp_path, content):
    (tmp_path / FILE_NAME).write_bytes(content)
    _, out, err = command("store", "repair", tmp_path)
    assert "is built anew with nothing, since no row is left" in " ".join(out.split())
    assert err == ""
    assert (tmp_path / f"{FILE_NAME}.damaged1").read_bytes() == content

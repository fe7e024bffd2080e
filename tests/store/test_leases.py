"""Several processes at work on one store: each takes other parts, and those of a dead one are taken over."""

import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import numpy as np
import pytest

from robust_interp.core.errors import UserError
from robust_interp.store import FILE_NAME, Outcome, Store, connection, leases


def outcome(start, stop):
    """What any measurement of these samples yields: their number."""
    ids = np.arange(start, stop, dtype=np.int16)
    return Outcome(ids, np.zeros(len(ids), np.uint8), np.full(len(ids), 0.5, np.float32), 1.0, "cpu")


def by(size):
    """Parts that end at multiples of a size."""
    return lambda at: (at // size + 1) * size


@pytest.fixture
def two(tmp_path):
    with Store(tmp_path) as one, Store(tmp_path) as other:
        yield one, other


def test_no_two_take_the_same(two):
    one, other = two
    taken = [store.claim("a", 25, by(10)) for store in (one, other, one, other)]
    assert taken == [(0, 10), (10, 20), (20, 25), None]
    assert other.claim("b", 25, by(10)) == (0, 10)


def test_parts_that_come_in_any_order_end_without_gaps(two):
    one, other = two
    parts = [(one, one.claim("a", 40, by(10))), (other, other.claim("a", 40, by(10)))]
    parts += [(one, one.claim("a", 40, by(10))), (other, other.claim("a", 40, by(10)))]
    for store, part in reversed(parts):
        assert store.covered("a") == 0
        store.append("a", part[0], outcome(*part))
    assert one.covered("a") == other.covered("a") == 40
    assert one.read("a", 40).predictions.tolist() == list(range(40))
    assert one.claim("a", 40, by(10)) is None


def test_what_waits_is_not_measured_again_by_another(tmp_path):
    with Store(tmp_path) as one:
        assert [one.claim("a", 30, by(10)) for _ in range(2)] == [(0, 10), (10, 20)]
        one.append("a", 10, outcome(10, 20))
    with Store(tmp_path) as other:  # the first part was given back when the store was closed
        assert [other.claim("a", 30, by(10)) for _ in range(3)] == [(0, 10), (20, 30), None]
        other.append("a", 0, outcome(0, 10))
        assert other.covered("a") == 20


def test_parts_of_other_sizes_do_not_overlap(two):
    one, other = two
    assert one.claim("a", 100, by(40)) == (0, 40)
    assert other.claim("a", 100, by(25)) == (40, 50)
    assert one.claim("a", 100, by(40)) == (50, 80)
    other.append("a", 40, outcome(40, 50))
    one.append("a", 0, outcome(0, 40))
    assert one.covered("a") == 50


def test_a_gap_before_what_was_not_taken_is_refused(two):
    one, other = two
    assert [one.claim("a", 20, by(10)) for _ in range(2)] == [(0, 10), (10, 20)]
    with pytest.raises(UserError, match="cannot append from 10"):
        other.append("a", 10, outcome(10, 20))


def test_a_part_that_is_given_up_is_anothers_to_measure(two):
    one, other = two
    assert one.claim("a", 10, by(10)) == (0, 10)
    assert other.claim("a", 10, by(10)) is None
    one.release("a", 0)
    assert other.claim("a", 10, by(10)) == (0, 10)


def test_a_damaged_part_that_waits_is_measured_again(tmp_path):
    with Store(tmp_path) as store:
        assert [store.claim("a", 20, by(10)) for _ in range(2)] == [(0, 10), (10, 20)]
        store.append("a", 10, outcome(10, 20))
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as db, db:
        db.execute("UPDATE waiting SET predictions = zeroblob(20)")
    with Store(tmp_path) as store:
        assert [store.claim("a", 20, by(10)) for _ in range(2)] == [(0, 10), (10, 20)]


TAKER = """
import sys, time
from pathlib import Path
from robust_interp.store import Store
with Store(Path(sys.argv[1])) as store:
    print(store.claim("a", 10, lambda at: 10), flush=True)
    time.sleep(60)
"""


@pytest.mark.slow
def test_what_a_killed_process_had_taken_is_free_at_once(tmp_path):
    taker = subprocess.Popen([sys.executable, "-c", TAKER, tmp_path], stdout=subprocess.PIPE, text=True)
    assert taker.stdout.readline() == "(0, 10)\n"
    with Store(tmp_path) as store:
        assert store.claim("a", 10, by(10)) is None
        taker.kill()
        taker.communicate()
        time.sleep(leases.LOOK)
        assert store.claim("a", 10, by(10)) == (0, 10)


def test_on_another_machine_it_is_free_when_there_was_no_sign_for_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "LOOK", 0.0)
    now = [0.0]
    monkeypatch.setattr(leases.time, "monotonic", lambda: now[0])
    with monkeypatch.context() as patch, Store(tmp_path) as store:
        patch.setattr(leases, "BEAT", 3600.0)
        patch.setattr(leases, "machine", lambda: "elsewhere")
        with Store(tmp_path) as far:
            assert far.claim("a", 10, by(10)) == (0, 10)
            far_name = store_holders(tmp_path)[0]
            for passed, taken in ((1.0, None), (leases.EXPIRY, None)):
                now[0] += passed
                assert store.claim("a", 10, by(10)) is taken
            sign(tmp_path, far_name)  # it was only slow
            now[0] += leases.EXPIRY - 1
            assert store.claim("a", 10, by(10)) is None
            now[0] += leases.EXPIRY + 1
            assert store.claim("a", 10, by(10)) == (0, 10)
            far.append("a", 0, outcome(0, 10))  # it was asleep: what it has measured counts
        store.append("a", 0, outcome(0, 10))
        assert store.covered("a") == 10


def by_whom(store, cell, n):
    """Who measured each image, as a letter: `outcome_of` marks each prediction with its process."""
    found = store.read(cell, n)
    assert found.seconds == pytest.approx(n)  # one second per image: none counts twice
    assert (found.predictions % 100).tolist() == list(range(n))
    return "".join("AB"[who] for who in found.predictions // 100)


def outcome_of(who, start, stop):
    """What process A or B measures: the number of each image, plus 100 for B; it takes a second per image."""
    ids = np.arange(start, stop, dtype=np.int16) + 100 * "AB".index(who)
    return Outcome(ids, np.zeros(len(ids), np.uint8), np.full(len(ids), 0.5, np.float32), stop - start, who)


@pytest.fixture
def suspended(tmp_path, monkeypatch):
    """Two processes, A and B. B measures images 0 to 10. A was suspended while it measured 10 to 30."""
    monkeypatch.setattr(leases, "LOOK", 0.0)
    monkeypatch.setattr(leases, "BEAT", 3600.0)
    now = [0.0]
    monkeypatch.setattr(leases.time, "monotonic", lambda: now[0])
    with Store(tmp_path) as a, Store(tmp_path) as b:
        assert b.claim("a", 30, by(10)) == (0, 10)
        assert [a.claim("a", 30, by(10)) for _ in range(2)] == [(10, 20), (20, 30)]
        assert b.claim("a", 30, by(10)) is None  # B sees the heartbeat of A
        now[0] += leases.EXPIRY + 1
        sign(tmp_path, holder_of(tmp_path, "a", 0))  # B was not suspended
        yield a, b


@pytest.mark.parametrize(
    ("size", "before", "after", "expected"),
    [
        # Size of the parts that B takes meanwhile; those it stores before A, and after A; who is stored
        # for images 10 to 30: whoever was first.
        (10, [], [(10, 20)], "A" * 20),
        (10, [(10, 20)], [], "B" * 10 + "A" * 10),
        (10, [(10, 20), (20, 30)], [], "B" * 20),
        (10, [(20, 30)], [(10, 20)], "A" * 10 + "B" * 10),
        (5, [(10, 15)], [(15, 20)], "B" * 5 + "A" * 15),
        (5, [(15, 20)], [(10, 15), (20, 25)], "A" * 5 + "B" * 5 + "A" * 10),
        (30, [(10, 30)], [], "B" * 20),
        (30, [], [(10, 30)], "A" * 20),
        (15, [(10, 15)], [(15, 30)], "B" * 5 + "A" * 15),
        (15, [(15, 30)], [(10, 15)], "A" * 5 + "B" * 15),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_a_suspended_process_adds_what_is_still_missing(suspended, size, before, after, expected, order):
    a, b = suspended
    taken = []
    while len(taken) < len(before + after):
        taken.append(b.claim("a", 30, by(size)))
    assert set(before + after) <= set(taken)
    for part in before:
        b.append("a", part[0], outcome_of("B", *part))
    for part in [(10, 20), (20, 30)][::order]:
        a.append("a", part[0], outcome_of("A", *part))
        assert b.covered("a") == 0
    for part in after:
        b.append("a", part[0], outcome_of("B", *part))
    b.append("a", 0, outcome_of("B", 0, 10))
    assert by_whom(b, "a", 30) == "B" * 10 + expected
    assert a.claim("a", 30, by(size)) is None


def test_a_process_that_was_suspended_does_not_get_its_own_parts_again(suspended):
    a, b = suspended
    assert b.claim("b", 10, by(10)) == (0, 10)  # frees the parts of A
    assert a.claim("a", 30, by(10)) is None
    a.append("a", 10, outcome_of("A", 10, 20))
    assert b.claim("a", 30, by(10)) == (20, 30)


def test_a_process_that_was_suspended_at_its_first_heartbeat_counts_as_alive_again(suspended, tmp_path):
    a, b = suspended
    name = holder_of(tmp_path, "a", 10)
    assert b.claim("a", 30, by(10)) == (10, 20)  # A is considered ended
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as db, db:
        # The heartbeat of A goes on, from 0 again.
        db.execute("INSERT INTO holders VALUES (?, 'elsewhere', 1, 0)", (name,))
    assert a.claim("b", 10, by(10)) == (0, 10)
    assert b.claim("b", 10, by(10)) is None


def holder_of(folder, cell, start):
    with closing(sqlite3.connect(folder / FILE_NAME)) as db:
        query = "SELECT holder FROM leases WHERE (cell, start) = (?, ?)"
        return db.execute(query, (cell, start)).fetchone()[0]


def store_holders(folder):
    with closing(sqlite3.connect(folder / FILE_NAME)) as db:
        return [name for (name,) in db.execute("SELECT name FROM holders")]


def sign(folder, name):
    with closing(sqlite3.connect(folder / FILE_NAME)) as db, db:
        db.execute("UPDATE holders SET beat = beat + 1 WHERE name = ?", (name,))


def test_a_process_gives_signs_of_life_while_it_measures(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "BEAT", 0.01)
    with Store(tmp_path) as store:
        store.claim("a", 10, by(10))
        beats, give_up = set(), time.monotonic() + 10
        while len(beats) < 3 and time.monotonic() < give_up:
            with closing(sqlite3.connect(tmp_path / FILE_NAME)) as db:
                beats |= set(db.execute("SELECT beat FROM holders"))
        assert len(beats) >= 3
    assert not store_holders(tmp_path)


# The journal.


def mode(folder):
    with closing(sqlite3.connect(folder / FILE_NAME)) as db:
        return db.execute("PRAGMA journal_mode").fetchone()[0]


def test_the_journal_is_as_declared_and_stays(tmp_path):
    Store(tmp_path).close()
    assert mode(tmp_path) == "wal"
    Store(tmp_path, journal="delete").close()
    Store(tmp_path).close()  # a command without the option
    assert mode(tmp_path) == "delete"
    with Store(tmp_path) as store:
        store.claim("a", 10, by(10))
        store.append("a", 0, outcome(0, 10))
    with Store(tmp_path, read_only=True) as store:
        assert store.covered("a") == 10
    Store(tmp_path, journal="wal").close()
    assert mode(tmp_path) == "wal"


def test_wal_in_use_elsewhere_is_refused_with_a_hint(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "PATIENCE_WITH_WAL", 0.0)
    monkeypatch.setattr(connection, "PATIENCE", 0.1)
    with Store(tmp_path), pytest.raises(UserError, match="end that process first") as refusal:
        Store(tmp_path, journal="delete")
    assert "\n" not in str(refusal.value)


MOUNTS = """\
/dev/sda1 / ext4 rw 0 0
server:/home /home nfs4 rw 0 0
/dev/sdb1 /home/me/local\\040disk xfs rw 0 0
sshfs#host:/ /mnt/far fuse.sshfs rw 0 0
"""


@pytest.mark.parametrize(
    ("path", "is_on_network"),
    [
        ("/data/results", False),
        ("/home/me/results", True),
        ("/home/me/local disk/results", False),
        ("/homely/results", False),
        ("/mnt/far/results", True),
    ],
)
def test_a_network_file_system_is_known_by_its_mount(tmp_path, path, is_on_network):
    table = tmp_path / "mounts"
    table.write_text(MOUNTS)
    assert connection.on_network(connection.Path(path), table) is is_on_network


def test_a_store_on_a_network_file_system_gets_a_rollback_journal(tmp_path, monkeypatch):
    monkeypatch.setattr(connection, "on_network", lambda path: True)
    Store(tmp_path).close()
    assert mode(tmp_path) == "delete"

"""Results in a folder that cannot be written."""

import contextlib
import os
import shutil
import sqlite3
import stat
import tempfile
from pathlib import Path, PurePosixPath, PureWindowsPath

import pandas  # noqa: F401 - before the tests give up the rights to read it
import pytest
from support.hand_made import card, first, results_beyond_ascii, run
from support.stored import killed

from robust_interp.store import FILE_NAME, Store, connection
from robust_interp.store.cells import CLEAN


@pytest.fixture
def results(tmp_path):
    return results_beyond_ascii(tmp_path / "results")


@contextlib.contextmanager
def without_privileges():
    """For root, whom no permission binds: another user's rights for a while."""
    if not hasattr(os, "geteuid"):
        pytest.skip("permissions are of another kind here")
    if os.geteuid() != 0:
        yield
        return
    try:
        os.seteuid(65534)
    except OSError as error:
        pytest.skip(f"root cannot give up its rights here: {error}")
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def read_only():
    """Makes a copy of a results folder that cannot be written, where any user can read it."""
    with contextlib.ExitStack() as stack:

        def make(folder):
            place = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            place.chmod(0o755)
            copy = Path(shutil.copytree(folder, place / "results"))
            stack.callback(copy.chmod, 0o755)
            for file in copy.iterdir():
                file.chmod(stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH)
            copy.chmod(0o555)
            with without_privileges(), contextlib.suppress(OSError):
                (copy / "probe").write_text("")
                pytest.skip("a folder cannot be made read-only here")
            return copy

        yield make


def test_a_log_that_cannot_be_merged_is_named(command, results, read_only, tmp_path):
    """SQLite needs a file beside the database to read the log, and cannot make it here."""
    place = tmp_path / "copy"
    copy = read_only(killed(results, place))
    assert (copy / f"{FILE_NAME}-wal").stat().st_size
    with without_privileges():
        status, out, err = command("leaderboard", copy, "--format", "csv")
    assert status == 0
    assert "late" not in out
    assert err.startswith("warning: ")
    assert "-wal is ignored, which has the last results" in err
    assert err.count("\n") == 1
    assert "late" in command("leaderboard", place, "--format", "csv")[1]


def test_a_locked_store_is_not_read_behind_the_back_of_its_writer(results, monkeypatch):
    monkeypatch.setattr(connection, "PATIENCE", 0.1)
    with contextlib.closing(sqlite3.connect(results / FILE_NAME, isolation_level=None)) as other:
        other.execute("PRAGMA journal_mode=DELETE")
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            connection.open_for_reading(results / FILE_NAME)


@pytest.mark.parametrize("end", ["closed", "killed"])
def test_results_that_cannot_be_written_can_be_shown_and_compared(command, results, read_only, end):
    with Store(results) as store:
        if end == "killed":
            run(store, [(card("late"), CLEAN, first(6))])
            copy = read_only(results)
    if end == "closed":
        copy = read_only(results)
    expected = command("leaderboard", results, "--format", "csv")
    compared = command("leaderboard", "compare", results, "--models", "λ-net,net")
    assert ("late" in expected[1]) == (end == "killed")
    before = sorted(path.name for path in copy.iterdir())
    with without_privileges():
        found = command("leaderboard", copy, "--format", "csv")
        again = command("leaderboard", "compare", copy, "--models", "λ-net,net")
    assert expected[0] == compared[0] == 0
    assert (found, again) == (expected, compared)
    assert sorted(path.name for path in copy.iterdir()) == before


@pytest.mark.parametrize(
    ("path", "uri"),
    [
        (PurePosixPath("/tmp/a b/c"), "file:///tmp/a%20b/c"),
        (PureWindowsPath("C:/r/c"), "file:///C:/r/c"),
        (PureWindowsPath("//server/share/r/c"), "file:////server/share/r/c"),  # SQLite takes no host
    ],
)
def test_a_path_is_the_uri_that_sqlite_takes(path, uri):
    assert connection.uri_of(path) == uri

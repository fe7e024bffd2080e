"""What strangers stored: digests are no secret, so that a sealed row may say anything."""

import json
import sqlite3
from contextlib import closing

import pytest
from support.hand_made import attack, card, first, run
from support.spoilt_json import VALUES, places, spoilt

from robust_interp.core.errors import DamageWarning, UserError
from robust_interp.results.export import results_csv, to_csv
from robust_interp.results.folders import runs_in
from robust_interp.results.leaderboard import entries_frame
from robust_interp.results.scores import results_frame
from robust_interp.store import FILE_NAME, Store
from robust_interp.store.cells import CLEAN, Plan
from robust_interp.store.check import check
from robust_interp.store.seal import seal


@pytest.fixture
def folder(tmp_path):
    with Store(tmp_path / "results") as store:
        run(store, [(card(), CLEAN, first(9)), (card(), attack("pgd", 2), first(4))])
    return tmp_path / "results"


def written(folder, table, *values):
    with closing(sqlite3.connect(folder / FILE_NAME)) as db, db:
        marks = ", ".join("?" * (len(values) + 1))
        db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({marks})", (*values, seal(table, values)))


def stored(folder, table):
    with closing(sqlite3.connect(folder / FILE_NAME)) as db:
        return [row[:-1] for row in db.execute(f"SELECT * FROM {table}")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::robust_interp.core.errors.DamageWarning")
@pytest.mark.parametrize("fault", ["a list", "a text", "of 400 digits", "below 0", "a command"])
def test_a_plan_may_say_anything(folder, fault):
    ((_, _, finished, text),) = stored(folder, "runs")
    content = json.loads(text)
    for at in [at for at in places(content) if at[:2] != ("cells", 0)]:
        changed = spoilt(content, at, VALUES[fault])
        try:
            plan = Plan.from_json(changed)
        except (ValueError, LookupError, TypeError, AttributeError):
            continue
        with closing(sqlite3.connect(folder / FILE_NAME)) as db, db:
            db.execute("DELETE FROM runs")
        written(folder, "runs", plan.key, plan.dataset, finished, changed)
        try:
            runs, _ = runs_in([folder])
        except UserError:
            continue
        assert to_csv(entries_frame(*runs)).replace("\n", "").isprintable(), at
        assert results_csv(results_frame(runs[0])).replace("\n", "").isprintable(), at


@pytest.mark.parametrize(("column", "value"), [(6, "text"), (6, float("inf")), (7, 5), (3, b"\0"), (4, "ab")])
def test_a_chunk_of_the_wrong_types_is_left_out(folder, column, value):
    row = list(stored(folder, "chunks")[0])
    row[column] = value
    written(folder, "chunks", *row)
    damage = check(folder)
    assert "damaged or missing" in damage.lines("x")[0]


def test_an_audit_of_the_wrong_types_is_left_out(folder):
    line = {"dataset": "digits", "model": "net", "recipe": "", "check": "c", "verdict": "pass", "detail": ""}
    for bad in (5, [5], [line | {"n": 10**400}], [line | {"value": "x"}], [{}]):
        written(folder, "audits", "v", "d", "pass", json.dumps(bad))
        with pytest.warns(DamageWarning, match="audit is damaged"), Store(folder, read_only=True) as store:
            assert store.audits() == []
    written(folder, "audits", "v", "d", "pass", json.dumps([line]))
    with Store(folder, read_only=True) as store:
        assert len(store.audits()) == 1


def test_a_run_without_a_measurement_says_so(folder):
    with closing(sqlite3.connect(folder / FILE_NAME)) as db, db:
        db.execute("DELETE FROM chunks")
    with (
        pytest.warns(DamageWarning, match="2 measurements of finished runs are missing"),
        pytest.raises(UserError, match=r"no measurement of the finished runs in .*: repeat"),
    ):
        runs_in([folder])


def test_where_no_store_is_there_is_a_hint(folder, tmp_path):
    (tmp_path / "empty").mkdir()
    for place, hint in (
        (tmp_path / "nix", "there is no such folder"),
        (folder / FILE_NAME, "it is a file"),
        (tmp_path, f"did you mean {folder}?"),
        (tmp_path / "empty", "robust-interp bench --out"),
    ):
        with pytest.raises(UserError) as refusal:
            check(place)
        assert hint in str(refusal.value)

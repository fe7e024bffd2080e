"""What lies in a results folder, read past the code under test."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

from support.hand_made import card, first, run

from robust_interp.store import FILE_NAME, Store
from robust_interp.store.cells import CLEAN


def chunks(folder):
    """Every stored chunk, whole, by cell and place."""
    with closing(sqlite3.connect(folder / FILE_NAME)) as db:
        return db.execute("SELECT * FROM chunks ORDER BY cell, start").fetchall()


def killed(folder, place):
    """A copy of a store whose process was killed, with what lies in its log, as beside another that reads."""
    with closing(sqlite3.connect(folder / FILE_NAME, isolation_level=None)) as reader, Store(folder) as store:
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM runs").fetchall()
        run(store, [(card("late"), CLEAN, first(6))])
        return Path(shutil.copytree(folder, place, ignore=shutil.ignore_patterns("*-shm")))

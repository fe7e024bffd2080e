"""What lies in a results folder, read past the code under test."""

import sqlite3
from contextlib import closing

from robust_interp.store import FILE_NAME


def chunks(folder):
    """Every stored chunk, whole, by cell and place."""
    with closing(sqlite3.connect(folder / FILE_NAME)) as db:
        return db.execute("SELECT * FROM chunks ORDER BY cell, start").fetchall()

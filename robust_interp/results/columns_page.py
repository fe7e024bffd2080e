"""Write docs/columns.md: python -m robust_interp.results.columns_page > docs/columns.md"""

from __future__ import annotations

from collections.abc import Iterable

from robust_interp.results.columns import AUDIT_FILE, TABLES, Column

_HEAD = """\
# Columns

<!-- Written by python -m robust_interp.results.columns_page from robust_interp/results/columns.py. -->

A results folder contains the store `cells.sqlite`, with all measurements, and tables of the
last run: `results.csv` with one row per measurement, `leaderboard.csv` with one row per entry, and
`audit.csv` if an audit was run. Column names and their order are fixed. An empty field means that the value
does not apply or was not measured.

Types: `text`, `integer`, `number`. Percentages run from 0 to 100. Points are percentage points.
"""
_BEFORE = {
    "leaderboard.csv": """\
Percentages have two to six decimals, `params_m` has three. Each measured column is the mean over train seeds,
and is followed by the standard deviation over them. The measured columns depend on the request.
""",
    AUDIT_FILE: "One row per finding, over all audits of the folder.\n",
    "external.csv": "One row per file and model that `robust-interp verify` judged. They are never ranked.\n",
    "leaderboard classes": "The table that `robust-interp leaderboard classes --format csv` prints.\n",
    "leaderboard compare": "The table that `robust-interp leaderboard compare --format csv` prints.\n",
}
_AFTER = {
    "results.csv": "The same cells give the same results.csv, except for `device` and `seconds`.\n",
    "leaderboard.csv": """\
The same cells give a leaderboard.csv that is equal byte for byte. Published tables may start with a column
`dataset`, as `leaderboards/robustbench.csv` does.
""",
}
_TAIL = """\
## sweep.csv

`sweep` writes `model`, `lambda_init`, `recipe`, `seeds`, `failed` (train seeds that failed to train and are
left out of the means), and then the measured columns as in leaderboard.csv.
"""
_TITLES = {"datasets": "Data sets"}  # titles of pages that differ from the name of the file


def page() -> str:
    """Return the page as Markdown."""
    parts = [_HEAD]
    for name, columns in TABLES.items():
        parts += [f"## {name}\n", _BEFORE.get(name, ""), table(columns), _AFTER.get(name, "")]
    return "\n".join(part for part in [*parts, _TAIL] if part)


def table(columns: Iterable[Column]) -> str:
    """Return a Markdown table with one row per column: its name, type, unit and meaning."""
    cells = [["column", "type", "unit", "meaning"], ["---"] * 4]
    cells += [[f"`{column.name}`", column.type, column.unit, _meaning(column)] for column in columns]
    return "".join("|" + "".join(f" {cell} |" if cell else " |" for cell in line) + "\n" for line in cells)


def _meaning(column: Column) -> str:
    title = _TITLES.get(column.see, column.see.capitalize())
    return column.meaning + (f" See [{title}]({column.see}.md)." if column.see else "")


if __name__ == "__main__":
    print(page(), end="")

"""Names of models stand literally in every table, whatever the format means by their characters."""

import csv
import html
import io
import json

import pandas as pd
import pytest
from support.one_pixel import Net, evaluate

# The networks here are untrained or built to mislead, which evaluate remarks on.
pytestmark = [pytest.mark.usefixtures("elsewhere"), pytest.mark.filterwarnings("ignore::UserWarning")]

NAMES = ["[red]markup[/red]", "[/]", "a|b", "|", '"quoted", and more', "*bold* <b>_x_</b>", "λ=0.5 ✓"]


@pytest.mark.slow
def test_names_stand_literally_in_every_table(command, tmp_path):
    evaluate({name: Net() for name in NAMES}, out=tmp_path)

    def shown(form, *options):
        status, out, err = command("leaderboard", tmp_path, "--format", form, *options)
        assert (status, err) == (0, "")
        return out

    table = shown("table")
    assert all(name in table for name in NAMES)
    assert len(table.splitlines()) == 3 + len(
        NAMES
    )  # what it is, the heads, the names, why there are no ranks
    header, *rows = csv.reader(io.StringIO(shown("csv")))
    assert sorted(row[1] for row in rows) == sorted(NAMES)
    assert {len(row) for row in rows} == {len(header)}
    lines = shown("markdown", "--plain-numbers").splitlines()
    assert len(lines) == 2 + len(NAMES)
    assert {line.count("|") for line in lines} == {len(header) + 1}
    found = [html.unescape(line.split("|")[2].strip().replace("\\", "")) for line in lines[2:]]
    assert sorted(found) == sorted(NAMES)
    assert sorted(entry["model"] for entry in json.loads(shown("json"))) == sorted(NAMES)
    assert len(shown("latex").splitlines()) == 6 + len(NAMES)
    for file in ("leaderboard.csv", "results.csv"):
        assert set(pd.read_csv(tmp_path / file)["model"]) == set(NAMES)

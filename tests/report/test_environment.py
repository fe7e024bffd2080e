"""environment.json of a results folder on the report's page."""

import json
import re

import pytest
from support.hand_made import CLEAN, card, first, run

from robust_interp.core import environment
from robust_interp.core.errors import UserError
from robust_interp.report import page, provenance
from robust_interp.store import Store


@pytest.fixture
def results(tmp_path):
    with Store(tmp_path / "results") as store:
        run(store, [(card("net"), CLEAN, first(9))])
    return tmp_path / "results"


def written(folder, told):
    (folder / environment.FILE_NAME).write_text(json.dumps(told), encoding="utf-8")
    return provenance.environments([folder]).values.tolist()


def test_facts_of_any_form_are_told_and_missing_ones_left_out(results):
    facts = {
        "command": "robust-interp bench --n 60",
        "git": None,
        "packages": {"torch": "2.9", "timm": "1.0.9"},
        "cpu": {"model": "A CPU", "features": ["avx2", "amx_bf16"]},
        "a_new_key": 3,
        "gpu": [],
    }
    assert written(results, facts) == [
        ["results", "command", "robust-interp bench --n 60"],
        ["results", "packages", "torch 2.9, timm 1.0.9"],
        ["results", "cpu", "model A CPU, features avx2, amx_bf16"],
        ["results", "a new key", "3"],
    ]
    assert written(results, {}) == []
    assert provenance.environments([results.parent]).empty


def test_what_this_process_says_of_itself_is_shown(results, tmp_path):
    told = environment.describe(["robust-interp", "bench", "<b>"], {"device": "cpu", "threads": 2})
    written(results, told)
    text = page.write([results], tmp_path / "report").read_text(encoding="utf-8")
    made = text.partition("<h3>Environment</h3>")[2]
    for fact in (told["date"], told["python"], "&lt;b&gt;", told["platform"]):
        assert fact in made
    assert re.search(r"<span class=\"wrap\">threads</span></td><td><span class=\"wrap\">2</span>", made)
    assert ">results</th>" not in made  # of one folder


@pytest.mark.parametrize(("text", "why"), [("{", "cannot read"), ("[]", "does not contain a JSON object")])
def test_a_broken_file_is_named(results, text, why):
    (results / environment.FILE_NAME).write_text(text)
    with pytest.raises(UserError, match=why):
        provenance.environments([results])

"""Integers in tables are exact, also beside missing values. Seeds go up to 2**63 - 1; float64 to 2**53."""

import csv
import json
from dataclasses import replace

import pandas as pd
import pytest
from support.hand_made import attack, card, first, run

from robust_interp.audit.checks import AuditedModel, Finding
from robust_interp.audit.table import all_in, lines
from robust_interp.benchmark import external
from robust_interp.report import provenance
from robust_interp.results.columns import EXTERNAL_COLUMNS
from robust_interp.results.export import results_csv
from robust_interp.results.scores import results_frame, scores
from robust_interp.store import Store
from robust_interp.store.cells import CLEAN

LARGE = pytest.mark.parametrize("seed", [2**53 + 1, 2**63 - 1])


def listed(text, name):
    return [line[name] for line in csv.DictReader(text.splitlines())]


@LARGE
def test_seeds_in_results_csv_and_in_the_report(tmp_path, seed):
    seedless = replace(card("given"), train_seed=None)
    with Store(tmp_path) as store:
        measured = [(one, CLEAN, first(9)) for one in (card(seed=seed), seedless)]
        measured += [(card(seed=seed), attack("pgd", 8, seed=seed), first(4))]
        measured += [(card(seed=seed), attack("fgsm", 8), first(4))]
        scored = scores(run(store, measured), store)
    text = results_csv(results_frame(scored))
    assert listed(text, "train_seed") == [str(seed), str(seed), str(seed), ""]
    assert listed(text, "attack_seed") == ["", str(seed), "", ""]
    in_report = provenance.attacks(scored)["attack_seed"]
    assert str(in_report.to_numpy(object)[0]) == str(seed)
    assert pd.isna(in_report[1])


@LARGE
def test_train_seeds_in_audit_csv(tmp_path, seed):
    findings = [Finding("clean", "pass", "as expected", 10)]
    known = AuditedModel(card(seed=seed), findings)
    refused = AuditedModel(replace(card("given"), train_seed=None), findings)
    with Store(tmp_path) as store:
        store.put_audit("classifier", "images", "pass(n=10)", json.dumps(list(lines(known, "digits"))))
        text = results_csv(all_in(store, [refused], "digits"))
    assert listed(text, "train_seed") == [str(seed), ""]


@LARGE
def test_train_seeds_in_external_csv(tmp_path, seed):
    row = dict.fromkeys(EXTERNAL_COLUMNS, "x")
    external.write(tmp_path, [row | {"train_seed": each, "members": 1, "n": 3} for each in (seed, None)])
    assert listed((tmp_path / external.FILE_NAME).read_text(), "train_seed") == [str(seed), ""]

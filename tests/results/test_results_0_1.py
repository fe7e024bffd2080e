"""A results folder that version 0.1.0 wrote: it opens, its tables come out the same, and nothing is new.

Its store holds, on digits: a run of two architectures with two seeds, ensembles, an L2 attack and strong
columns; one under protocol ``worst`` with an ensemble that is attacked on one of its members; and two audits.
"""

import re
import shutil
from io import StringIO
from pathlib import Path

import pandas as pd
import pytest

FOLDER = Path(__file__).parent / "fixtures" / "results_0_1"
TORCH = "2.14.1+cu130"  # what computed it, which is part of the keys
RUN = ["--models", "in_resnet20,preact_resnet20", "--seeds", "2", "--n", "30", "--eps", "8,16"]
RUN += ["--attacks", "fgsm,pgd(steps=5),pgd_l2(eps=0.5,steps=3)", "--corruptions", "noise"]
RUN += ["--strong", "apgd_ce(steps=5)", "--strong-n", "12", "--ensemble", "in_resnet20+preact_resnet20"]
WORST = ["--models", "in_resnet20", "--seeds", "2", "--n", "24", "--eps", "16", "--protocol", "worst"]
WORST += ["--attacks", "fgsm,pgd(steps=5,restarts=2),square(queries=20)"]
WORST += ["--corruptions", "gaussian_noise(severity=3),fog", "--ensemble-attack"]
AUDIT = ["in_resnet20", "preact_resnet20", "--seeds", "1", "--n", "10", "--eps", "16"]
AUDIT += ["--strongest", "apgd_ce(steps=5)", "--black-box", "square(queries=20)"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A copy of the folder, seen by the torch that computed it."""
    import torch

    monkeypatch.setattr(torch, "__version__", TORCH)
    shutil.copytree(FOLDER, tmp_path / "results")
    return tmp_path / "results"


@pytest.fixture
def computes_nothing(monkeypatch):
    """No sample is classified by what measures cells."""
    from robust_interp.store import Store

    def refuse(*_, **__):
        raise AssertionError("a cell that is stored was computed again")

    monkeypatch.setattr(Store, "append", refuse)


def two_decimals(text):
    """leaderboard.csv with percentages as in 0.1."""
    return re.sub(r"\d+\.\d{4,6}", lambda number: f"{float(number[0]):.2f}", text)


@pytest.mark.slow
def test_the_leaderboard_of_all_its_runs(command, folder):
    status, out, _ = command("leaderboard", folder, "--format", "csv")
    assert status == 0
    assert two_decimals(out) == (FOLDER / "all_runs.csv").read_text()


@pytest.fixture
def appended(monkeypatch):
    """The keys of the cells that are computed."""
    from robust_interp.store import Store

    found = []
    append = Store.append
    monkeypatch.setattr(
        Store, "append", lambda store, key, *rest: found.append(key) or append(store, key, *rest)
    )
    return found


def computed(folder, appended):
    """The classifiers' attacked parts and the attacks of these cells."""
    from robust_interp.store import Store

    with Store(folder, read_only=True) as store:
        plans = [part for plan in store.plans() for part in plan.parts]
    cells = {cell.key: cell for plan in plans for cell in plan.cells}
    return {(cells[key].classifier.attacked_as, cells[key].perturbation.name) for key in appended}


def without_l2(text):
    """A file without pgd_l2, whose steps were too short in 0.1, and without times."""
    table = pd.read_csv(StringIO(text), dtype=str, keep_default_na=False)
    rows = table[table["perturbation"] != "pgd_l2"] if "perturbation" in table else table
    left_out = [name for name in table if name.startswith(("pgd_l2", "seconds"))]
    return rows.drop(columns=left_out).to_csv(index=False)


@pytest.mark.slow
def test_the_same_run_computes_an_l2_attack_alone_and_writes_the_same_numbers(command, folder, appended):
    status, _, err = command("bench", *RUN, "--out", folder, "--quiet")
    assert status == 0, err
    assert computed(folder, appended) == {("", "pgd_l2")}
    for file in ("leaderboard.csv", "results.csv"):
        now, then = (without_l2((place / file).read_text()) for place in (folder, FOLDER))
        assert (two_decimals(now) if file == "leaderboard.csv" else now) == then


@pytest.mark.slow
def test_so_does_a_run_under_worst(command, folder, computes_nothing):
    status, out, err = command("bench", *WORST, "white-box", "--out", folder, "--quiet")
    assert status == 0, err
    assert "worst_16" in out


@pytest.mark.slow
def test_what_a_member_judged_is_measured_again(command, folder, appended):
    """0.1 asked the attacked member which images were broken, for restarts and for attacks that skip them."""
    status, _, err = command("bench", *WORST, "white-box,member:0", "--out", folder, "--quiet")
    assert status == 0, err
    assert computed(folder, appended) == {("member:0", "pgd"), ("member:0", "square")}


def numbers_in(text):
    return re.findall(r"[0-9.]+", text)


@pytest.mark.slow
def test_so_does_an_audit(command, folder, computes_nothing):
    status, _, err = command("audit", *AUDIT, "--out", folder, "--quiet")
    assert status == 0, err
    now, then = (pd.read_csv(place / "audit.csv", dtype=str) for place in (folder, FOLDER))
    # Since then a check was added, and whether a model is deterministic is tried on more images.
    assert set(now["check"]) - set(then["check"]) == {"logits"}
    now, then = (
        table[~table["check"].isin(["logits", "deterministic"])].reset_index(drop=True)
        for table in (now, then)
    )
    now = now.drop(columns="weights_sha256")  # a column that was added since
    pd.testing.assert_frame_equal(now.drop(columns="detail"), then.drop(columns="detail"))
    # The sentences are worded otherwise since; the numbers in them are the same.
    assert now["detail"].map(numbers_in).tolist() == then["detail"].map(numbers_in).tolist()

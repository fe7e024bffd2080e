"""The leaderboard in Python: the rows and columns of the CSV."""

import io
import subprocess
import sys

import pandas as pd
import pytest
from support.hand_made import attack, card, first, run

import robust_interp
from robust_interp.core.errors import UserError
from robust_interp.results import export
from robust_interp.store import Store
from robust_interp.store.cells import CLEAN


@pytest.fixture
def results(tmp_path):
    """A folder with one entry of two seeds under `final`, and one of one seed under `worst`."""
    with Store(tmp_path / "results") as store:
        both = [
            (card("a", seed), made, first(7 - seed)) for seed in (0, 1) for made in (CLEAN, attack("pgd", 2))
        ]
        run(store, both)
        run(store, [(card("b"), CLEAN, first(9)), (card("b"), attack("pgd", 2), first(4))], protocol="worst")
    return tmp_path / "results"


def test_the_table_is_that_of_the_csv(results, command):
    table = robust_interp.leaderboard(results)
    assert command("leaderboard", results, "--format", "csv")[1] == export.to_csv(table)
    assert list(table["clean"]) == [65, 90]
    assert table["pgd_2"][0] == pytest.approx(65)


def test_a_protocol_selects_its_rows(results):
    whole = robust_interp.leaderboard(str(results), dataset="Digits")
    for protocol, model in (("final", "a"), ("worst", "b")):
        table = robust_interp.leaderboard(results, protocol=protocol)
        assert list(table["model"]) == [model]
        assert list(table) == list(whole)
        assert list(table.index) == [0]


def test_bundled_leaderboards_and_folders_are_combined(results):
    table = robust_interp.leaderboard(results, "digits")
    published = robust_interp.leaderboard("digits")
    assert list(table["model"]) == ["a", "b", *published["model"]]
    assert pd.read_csv(io.StringIO(export.to_csv(published)))["pgd_16"].max() == pytest.approx(
        100 * 412 / 450, abs=1e-6
    )


@pytest.mark.parametrize(
    ("sources", "options", "said"),
    [
        ([], {}, "needs a results folder"),
        (["digits"], {"protocol": "wurst"}, "unknown protocol 'wurst'; did you mean worst?"),
        (["digits"], {"protocol": "worst"}, "no row of digits is of protocol worst"),
        (["robustbench"], {}, "choose one with --dataset"),
        (["cifar10"], {"dataset": "digits"}, "is for cifar10 by its name"),
    ],
)
def test_what_cannot_be_shown_is_one_line(sources, options, said):
    with pytest.raises(UserError) as caught:
        robust_interp.leaderboard(*sources, **options)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


PROBE = """
import sys, robust_interp
assert not {"pandas", "torch"} & set(sys.modules)
robust_interp.leaderboard("cifar10", "robustbench", dataset="cifar10")
assert not {"torch", "timm", "sklearn"} & set(sys.modules)
"""


@pytest.mark.slow
def test_it_imports_no_torch():
    done = subprocess.run([sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")

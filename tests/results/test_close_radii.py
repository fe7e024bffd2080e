"""Radii and step sizes that differ little are told apart in every table."""

import re

import pandas as pd
import pytest
from support.one_pixel import Net, evaluate

from robust_interp import attacks

# The networks here are untrained or built to mislead, which evaluate remarks on.
pytestmark = [pytest.mark.usefixtures("elsewhere"), pytest.mark.filterwarnings("ignore::UserWarning")]

SMALL = "--n 10 --attacks none --corruptions none --device cpu --quiet"


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["final", "worst"])
def test_close_radii_have_columns_of_their_own(command, tiny_zoo, tmp_path, protocol):
    chosen = ["--models", "preact_resnet14", "--zoo", tiny_zoo, "--protocol", protocol]
    radii = ["--attacks", "fgsm", "--eps", "100.0001,100.0002"]
    assert command("bench", *SMALL.split(), *chosen, *radii)[0] == 0
    board = pd.read_csv(tmp_path / "results" / "leaderboard.csv")
    names = ["fgsm"] + (["worst"] if protocol == "worst" else [])
    columns = [f"{name}_{eps}" for name in names for eps in ("100.0001", "100.0002")]
    assert [c for c in board if re.fullmatch(rf"({'|'.join(names)})_[0-9.]+", c)] == columns
    assert not board[columns].isna().any().any()
    results = pd.read_csv(tmp_path / "results" / "results.csv")
    for name in (name.replace("worst", "worst(fgsm)") for name in names):
        assert results.loc[results["perturbation"] == name, "eps_255"].tolist() == [100.0001, 100.0002]


def test_tiny_steps_keep_their_digits(tmp_path):
    steps = {"1e-9": 2.55e-7, "2e-9": 5.1e-7, "3e-9": 7.65e-7}
    spec = ",".join(f"ifgsm(alpha={alpha},steps=1)" for alpha in steps)
    found = attacks.parse_attacks(spec, [0.1], {}, 0)
    shown = [perturbation.column.partition("alpha=")[2].partition("/255")[0] for perturbation in found]
    assert [float(text) for text in shown] == pytest.approx(list(steps.values()), rel=1e-2)
    table = evaluate(Net(), attacks=spec, out=tmp_path)
    assert table["alpha_255"].tolist()[1:] == pytest.approx(list(steps.values()), rel=1e-2)
    written = pd.read_csv(tmp_path / "results.csv")["alpha_255"]
    assert written.tolist()[1:] == pytest.approx(list(steps.values()), rel=1e-2)

"""The same weights under two train seeds."""

import shutil

import numpy as np
import pandas as pd
import pytest

import robust_interp

# The networks here are untrained or built to mislead, which evaluate remarks on.
pytestmark = [pytest.mark.usefixtures("elsewhere"), pytest.mark.filterwarnings("ignore::UserWarning")]


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["final", "worst"])
def test_a_copied_checkpoint_has_all_its_rows(own_zoo, tmp_path, protocol):
    shutil.copytree(own_zoo / "in_resnet14.digits_none_seed0", own_zoo / "in_resnet14.digits_none_seed7")
    options = {"attacks": "fgsm,pgd(steps=2)", "eps": (0.1,), "corruptions": "none", "n": 20}
    robust_interp.evaluate("in_resnet14", zoo=own_zoo, protocol=protocol, out=tmp_path, **options)
    table = pd.read_csv(tmp_path / "results.csv")
    each = ["clean", "fgsm", "worst(fgsm+pgd(steps=2))" if protocol == "worst" else "pgd"]
    assert len(table) == 4 * len(each)
    by_seed = {seed: lines for seed, lines in table.groupby(table["train_seed"].fillna(-1))}
    assert sorted(by_seed) == [-1, 0, 1, 7]
    for lines in by_seed.values():
        assert lines["perturbation"].tolist() == each
    assert by_seed[0]["accuracy"].tolist() == by_seed[7]["accuracy"].tolist()
    assert set(by_seed[-1]["members"]) == {3}
    board = pd.read_csv(tmp_path / "leaderboard.csv").set_index("members")
    assert board["seeds"].to_dict() == {1: 3, 3: 3}
    mean = np.mean([by_seed[seed]["accuracy"].iloc[0] for seed in (0, 1, 7)])
    assert board.loc[1, "clean"] == pytest.approx(mean, abs=0.005)

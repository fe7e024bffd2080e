"""`attack_precision`: its column, its self-check, and what is refused."""

from collections import Counter

import numpy as np
import pytest
import torch
from support.attacked import Tiny, tiny_batch
from support.watching import Counting
from torch import nn

from robust_interp import evaluate
from robust_interp.benchmark.benchmark import Benchmark
from robust_interp.benchmark.request import Request
from robust_interp.core.errors import UserError
from robust_interp.data import from_arrays
from robust_interp.store import Store

# The networks here are untrained, which evaluate remarks on.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Blunt(nn.Module):
    """A network that in bf16 has no gradient for images whose first pixel is dark."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.model = Tiny()

    def forward(self, images):
        if torch.is_autocast_enabled("cpu"):
            dark = (images[:, :1, :1, :1] < 0.5).float()
            images = images.detach() * dark + images * (1 - dark)
        return self.model(images)


def data(n=16):
    """Images that the network gets right, a quarter of them dark in the first pixel and far from 0.5."""
    images, _ = tiny_batch(n)
    images[:, 0, 0, 0] = torch.where(torch.arange(n) % 4 == 0, 0.2, 0.8)
    with torch.no_grad():
        return images, Blunt().eval()(images).argmax(1), 5


def table(given="bf16", spec="fgsm,pgd(steps=2)", **settings):
    usual = {"eps": "1,2,3", "corruptions": "none", "attack_precision": given, "batch_size": 8}
    return evaluate(Blunt(), data(), attacks=spec, **usual | settings)


def of(frame, name):
    return frame[frame["perturbation"] == name]


@pytest.mark.slow
def test_the_row_says_the_precision():
    found = table(spec="fgsm,square(queries=2)")
    named = found.groupby("perturbation")["attack_precision"].agg(lambda each: set(each.dropna()))
    assert named.to_dict() == {"clean": set(), "fgsm": {"bf16"}, "square(queries=2)": {"float32"}}
    assert set(found["precision"]) == {"float32"}
    assert "attack_precision" not in table("float32")


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["final", "worst"])
def test_one_attack_of_a_model_is_checked_against_float32_on_the_first_batch(protocol):
    found = table(protocol=protocol, spec="pgd(steps=2)")
    checked = found[found["attack_precision_difference"].notna()]
    in_float32 = table("float32", protocol=protocol, spec="pgd(steps=2)", n=8)
    in_bf16 = table(protocol=protocol, spec="pgd(steps=2)", n=8)
    expected = of(in_bf16, "pgd")["accuracy"].iloc[1] - of(in_float32, "pgd")["accuracy"].iloc[1]
    assert set(of(checked, "pgd")["eps_255"]) == {2.0}
    assert of(checked, "pgd")["attack_precision_difference"].item() == pytest.approx(expected)
    # A quarter of the first eight images cannot be attacked in bf16, and count as wrong.
    assert expected <= -25 + 100 - of(in_float32, "pgd")["accuracy"].iloc[1]


@pytest.mark.slow
def test_zero_gradients_of_the_precision_are_warned_of():
    told = r"pgd\(steps=2\)_2: in bf16 the gradient is exactly zero for 25.0% more of the images than in"
    with pytest.warns(UserWarning, match=told):
        table()


@pytest.mark.slow
def test_a_whole_run_in_float32_beside_it_is_the_check(tmp_path):
    both = {each: table(each, out=tmp_path) for each in ("float32", "bf16")}
    differences = of(both["bf16"], "fgsm")["accuracy"].values - of(both["float32"], "fgsm")["accuracy"].values
    np.testing.assert_allclose(of(both["bf16"], "fgsm")["attack_precision_difference"], differences)
    again = table("float32", out=tmp_path)
    assert again.drop(columns="seconds").equals(both["float32"].drop(columns="seconds"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("given", "told"),
    [("tf32", "tf32 needs a CUDA device"), ("fp8", "must be one of float32, tf32, bf16, not 'fp8'")],
)
def test_a_precision_that_cannot_be_is_one_line(given, told):
    with pytest.raises(UserError, match=told):
        table(given, device="cpu")


def test_the_check_is_part_of_the_work_and_is_told():
    images, labels, classes = data()
    benchmark = Benchmark(
        Request(
            modules={"net": Blunt()},
            dataset=from_arrays(images, labels, classes),
            attacks="fgsm,pgd(steps=2)",
            eps=(1 / 255, 2 / 255),
            corruptions="none",
            attack_precision="bf16",
            batch_size=8,
        )
    )
    with Store(None) as store:
        work = [
            (cell.perturbation.precision, cell.perturbation.column, n) for cell, n in benchmark.work(store)
        ]
        watch, told = Counting(), Counter()
        expected = {cell.key: n for cell, n in benchmark.work(store)}
        benchmark.run(store, watch)
        assert benchmark.work(store) == []
    assert [one for one in work if one[0] == "float32"] == [
        ("float32", "clean", 16),
        ("float32", "pgd(steps=2)_2", 8),
    ]
    for cell, n in watch.finished:
        told[cell.key] += n
    assert told == expected

"""`round_to_8_bit`: the accuracy of attacked images once their pixels are whole."""

import pandas as pd
import pytest
import torch
from torch import nn

from robust_interp import evaluate
from robust_interp.attacks import ATTACKS
from robust_interp.benchmark.benchmark import Benchmark
from robust_interp.benchmark.request import Request
from robust_interp.plugins import attack as declared

N = 40
SHIFT = 12  # in 255ths

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def linear():
    torch.manual_seed(0)
    return nn.Sequential(nn.Flatten(), nn.Linear(16, 2))


@pytest.fixture(scope="module")
def dataset(linear):
    """Whole pixel values, each near the border of the two classes, with labels that are mostly right."""
    bytes_ = torch.randint(
        40, 200, (N, 1, 4, 4), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    with torch.no_grad():
        margins = linear(bytes_ / 255).diff(dim=1).flatten()
        linear[1].bias[1] -= margins.median()
        labels = linear(bytes_ / 255).argmax(1)
    labels[:4] = 1 - labels[:4]
    return bytes_, labels, 2


@torch.no_grad()
def right_at(linear, dataset, shift):
    """Which are right, in float64, when each pixel moves by so many 255ths against the class."""
    images, labels, _ = dataset
    weight = (linear[1].weight[1] - linear[1].weight[0]).double()
    bias = (linear[1].bias[1] - linear[1].bias[0]).double()
    towards = torch.where(labels == 1, -1.0, 1.0)[:, None].double() * weight.sign()
    margin = (images.flatten(1).double() + shift * towards) / 255 @ weight + bias
    return (margin > 0) == (labels == 1)


def percent(right):
    return 100 * right.double().mean().item()


def by_attack(table):
    return table.set_index(["perturbation", "eps_255"])


@pytest.mark.parametrize("protocol", ["final", "worst"])
def test_accuracies_with_whole_pixels_are_those_worked_out_by_hand(linear, dataset, protocol):
    table = evaluate(
        linear,
        dataset,
        attacks="fgsm",
        eps="0.3/255,0.6/255",
        corruptions="none",
        protocol=protocol,
        round_to_8_bit=True,
    )
    found = by_attack(table).loc["fgsm"]
    clean = right_at(linear, dataset, 0)
    for eps, whole in ((0.3, 0), (0.6, 1)):
        attacked, rounded = (right_at(linear, dataset, shift) for shift in (eps, whole))
        assert found["accuracy"][eps] == percent(attacked & clean)
        assert found["rounded_accuracy"][eps] == percent(rounded & clean)
    assert found["rounded_accuracy"][0.3] > found["accuracy"][0.3]
    assert found["rounded_accuracy"][0.6] < found["accuracy"][0.6]
    assert table["rounded_accuracy"].isna()[0]


@declared()
def towards(model, images, labels, *, eps):
    images = images.clone().requires_grad_()
    loss = nn.functional.cross_entropy(model(images), labels)
    (gradient,) = torch.autograd.grad(loss, images)
    return images.detach() - eps * gradient.sign()


@pytest.mark.parametrize("protocols", [["final"], ["worst"], ["final", "worst"]], ids="+".join)
def test_under_worst_an_image_that_rounding_mends_must_be_right_when_clean(
    linear, dataset, protocols, tmp_path
):
    """Each pixel moves by SHIFT - 0.4 towards the label, and the whole one next to it is at SHIFT.

    After `final`, `worst` is worked out from stored attacks, also on images that are wrong when clean.
    """
    clean, mended = (right_at(linear, dataset, -shift) for shift in (0, SHIFT))
    assert (mended & ~clean).any()
    with ATTACKS.registered("towards", towards):
        for protocol in protocols:
            table = evaluate(
                linear,
                dataset,
                attacks="towards",
                eps=f"{SHIFT - 0.4}/255",
                corruptions="none",
                protocol=protocol,
                round_to_8_bit=True,
                out=tmp_path,
            ).set_index("perturbation")
            expected = mended & clean if protocol == "worst" else mended
            assert table["rounded_accuracy"]["towards"] == percent(expected)


@pytest.mark.slow
def test_a_run_without_it_has_other_cells_and_no_such_column(linear, dataset, tmp_path):
    options = {"attacks": "fgsm,pgd(steps=2)", "eps": "1", "corruptions": "none", "out": tmp_path}
    plain = evaluate(linear, dataset, **options)
    rounded = evaluate(linear, dataset, round_to_8_bit=True, **options)
    assert "rounded_accuracy" not in plain
    assert rounded["accuracy"].tolist() == plain["accuracy"].tolist()
    assert list(rounded)[:-1] == list(plain)
    assert "rounded_accuracy" in pd.read_csv(tmp_path / "results.csv")
    keys = [
        [cell.key for cell in Benchmark(Request(models=("in_resnet20",), round_to_8_bit=on)).plan.cells]
        for on in (False, True)
    ]
    same = [one == other for one, other in zip(*keys, strict=True)]
    assert same.count(True) == 6 * (1 + 4 * 5)  # clean and noise, of five seeds and their ensemble
    assert not all(same)

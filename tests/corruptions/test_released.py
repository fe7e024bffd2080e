"""Released arrays that are not the official ones: never taken for one another."""

import numpy as np
import pytest
import torch
from torch import nn

import robust_interp
from robust_interp import data

# The networks here are untrained or built to mislead, which evaluate remarks on.
pytestmark = [pytest.mark.usefixtures("elsewhere"), pytest.mark.filterwarnings("ignore::UserWarning")]


class ReadsRed(nn.Module):
    """Predicts a tenth of the first red value."""

    def forward(self, images):
        red = images[:, 0, 0, 0] * 255 / 10
        return -((torch.arange(10.0) - red[:, None]) ** 2)


def released(folder, labels, wrong):
    """Arrays on which ReadsRed is wrong on the first `wrong` samples of each severity."""
    folder.mkdir(exist_ok=True)
    rows = np.zeros((5 * len(labels), 32, 32, 3), np.uint8)
    shown = np.where(np.arange(len(labels)) < wrong, (labels + 1) % 10, labels)
    rows[:, 0, 0, 0] = np.tile(10 * shown, 5)
    np.save(folder / "labels.npy", np.tile(labels, 5).astype(np.uint8))
    np.save(folder / "gaussian_noise.npy", rows)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("place", ["another folder", "the same folder"])
def test_other_arrays_without_an_official_md5_have_numbers_of_their_own(tmp_path, monkeypatch, place):
    labels = np.arange(20) * 7 % 10
    images = np.zeros((20, 3, 32, 32), np.uint8)
    images[:, 0, 0, 0] = 10 * labels
    monkeypatch.setattr(data, "load", lambda *_: data.from_arrays(images, labels, 10, name="cifar10"))
    model = nn.Sequential(ReadsRed())

    def accuracies(folder):
        table = robust_interp.evaluate(
            model,
            "cifar10",
            attacks="none",
            corruptions="gaussian_noise(severity=2)",
            corruptions_dir=folder,
            n=20,
            out=tmp_path / "results",
        )
        return table["accuracy"].tolist()

    assert accuracies(released(tmp_path / "one", labels, wrong=5)) == [100, 75]
    other = tmp_path / ("two" if place == "another folder" else "one")
    assert accuracies(released(other, labels, wrong=8)) == [100, 60]

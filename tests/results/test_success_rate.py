"""Attack success rate: what is broken of what is right when clean, counted over the very same samples."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from support.hand_made import attack, card, first, run
from torch import nn

import robust_interp
from robust_interp.attacks import AttackRunner
from robust_interp.core import statistics
from robust_interp.results.scores import results_frame, scores
from robust_interp.store import Store
from robust_interp.store.cells import CLEAN

FGSM = attack("fgsm", 2)
EIGHT_RIGHT = "1101111101"
THREE_RIGHT = "1010000001"  # the third of them is wrong when clean: of the eight, two are left


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path) as store:
        yield store


def results(store, *measured, protocol="final"):
    return results_frame(scores(run(store, measured, protocol), store))


class Threshold(nn.Module):
    def forward(self, images):
        signed = images.flatten(1) - 0.5
        return torch.cat([-signed, signed], dim=1)


# Eight of ten are right, at .05 .05 .12 .15 .20 .30 .45 .45 from the threshold; 26/255 is 0.102.
PIXELS = np.float32([0.55, 0.45, 0.62, 0.35, 0.70, 0.20, 0.95, 0.05, 0.30, 0.90]).reshape(-1, 1, 1, 1)
LABELS = np.array([1, 0, 1, 0, 1, 0, 1, 0, 1, 0])


@pytest.mark.parametrize(
    ("clean", "attacked", "flags", "rate"),
    [
        (EIGHT_RIGHT, THREE_RIGHT, "0" * 10, 75),  # 6 of 8; 1 - 30/80 would be 62.5
        (EIGHT_RIGHT, THREE_RIGHT, "1000000000", 87.5),  # what had no gradient counts as broken
        (EIGHT_RIGHT, EIGHT_RIGHT, "0" * 10, 0),
        (first(10), first(0), "0" * 10, 100),
        (EIGHT_RIGHT, "0010000010", "0" * 10, 100),
        (first(0), first(3), "0" * 10, None),  # nothing could be broken
    ],
)
@pytest.mark.parametrize("protocol", ["final", "worst"])
def test_the_attack_success_rate_is_what_is_broken_of_what_is_right_when_clean(
    store, clean, attacked, flags, rate, protocol
):
    table = results(store, (card(), CLEAN, clean), (card(), FGSM, attacked, flags), protocol=protocol)
    found = table.set_index("perturbation")["asr"]
    assert pd.isna(found["clean"])
    for name in ("fgsm", "worst(fgsm)") if protocol == "worst" else ("fgsm",):
        assert pd.isna(found[name]) if rate is None else found[name] == rate


def test_there_is_no_success_rate_where_clean_was_not_measured_or_nothing_was_attacked(store):
    shot = replace(FGSM, kind="corruption", name="shot_noise", params={"severity": 1}, column="shot_noise_1")
    assert results(store, (card(), FGSM, first(3)))["asr"].isna().all()
    table = results(store, (card("b"), CLEAN, first(8)), (card("b"), shot, first(3)))
    assert table["asr"].isna().all()


def test_the_success_rate_of_a_linear_model_is_worked_out_by_hand():
    table = robust_interp.evaluate(
        Threshold(), (PIXELS, LABELS), attacks="fgsm", corruptions="none", eps=(8 / 255, 26 / 255, 64 / 255)
    )
    assert table["asr"][1:].tolist() == [0, 25, 62.5]


def test_success_rate_on_arrays():
    clean, robust = np.array([True] * 3 + [False]), np.array([True, False, False, True])
    assert statistics.attack_success(clean, robust) == pytest.approx(200 / 3)
    assert statistics.attack_success(~np.ones(2, bool), np.ones(2, bool)) is None


def test_every_sample_is_attacked_and_comes_back_those_wrong_when_clean_too():
    images, labels = torch.from_numpy(PIXELS), torch.from_numpy(LABELS)
    found = AttackRunner(attack("fgsm", 8), Threshold())(images, labels, range(10))
    # each pixel moves by eps away from the side of its label
    signs = torch.tensor([-1.0 if label else 1.0 for label in LABELS]).view(-1, 1, 1, 1)
    torch.testing.assert_close(found.images, (images + 8 / 255 * signs).clamp(0, 1))
    assert found.deltas.shape == (10,)
    assert found.deltas == pytest.approx(8 / 255, abs=1e-6)

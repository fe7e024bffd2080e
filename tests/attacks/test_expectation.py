"""Randomised models as K draws of them: the mean for attacks, the majority for verdicts."""

import warnings
import zlib

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import robust_interp
from robust_interp.attacks.expectation import EOTClassifier
from robust_interp.core.errors import UserError
from robust_interp.results.combine import gather

QUICK = {"attacks": "fgsm", "corruptions": "none", "eps": (16 / 255,), "n": 12, "eot": 3}

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class Scaled(nn.Module):
    """Linear, and scaled by a random number, which it keeps."""

    name = "scaled"

    def __init__(self):
        super().__init__()
        self.weight = torch.arange(12.0).view(3, 4).sin()
        self.drawn = []

    def forward(self, images):
        factor = 1 + torch.randn(())
        self.drawn.append(factor.item())
        return factor * images.flatten(1) @ self.weight.T


def test_logits_and_gradients_are_means_over_draws():
    model = Scaled()
    randomised = EOTClassifier(model, 5, seed=0)
    image = torch.rand(1, 1, 2, 2, generator=torch.Generator().manual_seed(0)).requires_grad_()
    with randomised.attack_round(sample=7, number=0):
        logits = randomised(image)
    factor = np.mean(model.drawn)
    assert len(set(model.drawn)) == 5
    torch.testing.assert_close(logits, factor * image.flatten(1) @ model.weight.T)
    (gradient,) = torch.autograd.grad(logits[0, 1], image)
    torch.testing.assert_close(gradient.flatten(), factor * model.weight[1])


def test_draws_are_keyed_by_seed_sample_round_pass_and_purpose():
    def drawn(sample, number=0, seed=0, passes=2):
        model = Scaled()
        randomised = EOTClassifier(model, 2, seed)
        with randomised.attack_round(sample, number):
            for _ in range(passes):
                randomised(torch.ones(1, 1, 2, 2))
        randomised.votes(torch.ones(1, 1, 2, 2), np.array([sample]))
        return model.drawn

    assert drawn(3) == drawn(3)
    every = [*drawn(3), *drawn(4), *drawn(3, number=1)[:4], *drawn(3, seed=1)]
    assert len(set(every)) == len(every) == 22
    assert drawn(3, number=1)[4:] == drawn(3)[4:]  # nor on its round
    assert drawn(3, passes=5)[-2:] == drawn(3)[-2:]  # a verdict does not depend on the attack before it
    state = torch.get_rng_state()
    drawn(5)
    assert torch.equal(torch.get_rng_state(), state)


class Chooses(nn.Module):
    """Says one of the classes for certain, by chance; less certain of it the higher it is."""

    name = "chooses"

    def forward(self, images):
        chosen = torch.randint(3, (len(images),))
        self.said = [*getattr(self, "said", []), chosen.item()]
        return F.one_hot(chosen, 3) * (9.0 - 3 * chosen[:, None])


def test_the_majority_decides_and_the_surer_of_two_at_a_tie():
    model = Chooses()
    images = torch.zeros(40, 1, 2, 2)
    found = EOTClassifier(model, 4, seed=0).votes(images, np.arange(40)).argmax(1)
    said = np.array(model.said).reshape(40, 4)
    counts = np.stack([(said == label).sum(1) for label in range(3)], 1)
    assert found.tolist() == counts.argmax(1).tolist()  # the first of two is the surer one
    assert (np.sort(counts, 1)[:, 1] == np.sort(counts, 1)[:, 2]).any()
    lost = EOTClassifier(Scaled(), 2, seed=0).votes(torch.full((1, 1, 2, 2), torch.nan), np.arange(1))
    assert lost.isnan().all()


class Noisy(nn.Module):
    def __init__(self, noise=0.3):
        super().__init__()
        self.noise, self.head = noise, nn.Linear(64, 10)
        nn.init.normal_(self.head.weight, generator=torch.Generator().manual_seed(0))

    def forward(self, images):
        noisy = images + self.noise * torch.randn_like(images) + 0.01 * np.random.rand()
        return self.head(F.dropout(noisy.flatten(1), 0.1, True))


def evaluate(models, **options):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = robust_interp.evaluate(models, "digits", **QUICK | options)
    return table, [str(warning.message) for warning in caught]


def refused(models, *parts, **options):
    with pytest.raises(UserError) as caught:
        robust_interp.evaluate(models, "digits", **QUICK | options)
    for part in parts:
        assert part in str(caught.value)


@pytest.fixture(scope="module")
def noisy():
    torch.manual_seed(0)
    return Noisy()


@pytest.mark.slow
def test_a_random_model_gives_the_same_row_whatever_the_batch(noisy, tmp_path):
    options = {"attacks": "pgd(steps=2,restarts=2),square(queries=3),apgd_ce(steps=2)"}
    table, said = evaluate({"noisy": noisy}, out=tmp_path, **options)
    other, _ = evaluate({"noisy": noisy}, batch_size=5, **options)
    pd.testing.assert_frame_equal(table.drop(columns="seconds"), other.drop(columns="seconds"))
    assert table["eot"].tolist() == [3] * 4
    assert pd.read_csv(tmp_path / "leaderboard.csv")["eot"].tolist() == [3]
    assert any("noisy is random: attacked through the mean logits of 3 draws, judged by a" in x for x in said)
    assert table["accuracy"][1] <= table["accuracy"][0]


@pytest.mark.slow
def test_numbers_of_other_draws_are_other_cells(noisy, tmp_path):
    for options in ({}, {"eot": 4}, {"seed": 1}):
        evaluate({"noisy": noisy}, attacks="none", out=tmp_path, **options)
    board = gather([tmp_path]).board
    assert sorted(board["eot"]) == [3, 3, 4]


@pytest.mark.slow
def test_beside_a_random_model_others_are_measured_as_ever(noisy):
    quiet = Noisy(0).head
    models = {"noisy": noisy, "quiet": nn.Sequential(nn.Flatten(), quiet)}
    table, _ = evaluate(models)
    alone, _ = evaluate({"quiet": models["quiet"]}, eot=None)
    assert table["eot"].isna().tolist() == [False, False, True, True]
    assert table["accuracy"].tolist()[2:] == alone["accuracy"].tolist()
    assert "eot" not in alone


class OwnGenerator(nn.Module):
    def __init__(self):
        super().__init__()
        self.head, self.draw = nn.Linear(64, 10), np.random.default_rng(0)

    def forward(self, images):
        return self.head(images.flatten(1)) + float(self.draw.random())


class InTrainMode(nn.BatchNorm2d):
    def train(self, mode=True):
        return super().train(True)


@pytest.mark.slow
def test_what_cannot_be_drawn_again_or_is_not_random_is_refused(noisy):
    refused({"noisy": noisy}, "noisy is random: two forward", "bench --eot 10 measures random", eot=None)
    refused({"quiet": nn.Sequential(nn.Flatten(), nn.Linear(64, 10))}, "eot needs a random model")
    refused({"own": OwnGenerator()}, "own is random: two forward passes in eval mode differ")
    refused({"batch": nn.Sequential(InTrainMode(1), noisy)}, "its part 0 normalises by the batch")
    both = robust_interp.Ensemble([noisy, Noisy(0.2)])
    refused({"both": both}, "is random: an ensemble of random models cannot be measured")
    for wrong in (0, -1, 2.5, True, "3"):
        refused({"noisy": noisy}, "eot must be a whole number of at least 1", eot=wrong)


def test_the_draws_are_those_of_stored_results():
    model, ones = Scaled(), torch.ones(1, 1, 2, 2)
    randomised = EOTClassifier(model, 2, seed=5)
    with randomised.attack_round(sample=7, number=1):
        randomised(ones)
        randomised(ones)
    randomised.votes(ones, np.array([7]))
    attacked, judged = map(zlib.crc32, (b"pass of a random model", b"verdict of a random model"))
    keys = [(5, attacked, 7, 1, at, draw) for at in (0, 1) for draw in (0, 1)]
    keys += [(5, judged, 7, draw) for draw in (0, 1)]
    states = [map(int, np.random.SeedSequence(key).generate_state(2)) for key in keys]
    numbers = [torch.Generator().manual_seed(high << 32 | low) for high, low in states]
    assert model.drawn == pytest.approx([1 + torch.randn((), generator=one).item() for one in numbers])

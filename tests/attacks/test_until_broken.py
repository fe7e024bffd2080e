"""`pgd(stop=broken)`: the first iterate of PGD that is misclassified, in batches that stay full."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support import keyed_draws
from support.attacked import EPS, FirstPixel, attack, perturbation, predict, tiny, tiny_batch
from torch import nn

from robust_interp import attacks, evaluate
from robust_interp.attacks import AttackRunner, AttackType
from robust_interp.core.errors import UserError

# The networks here are untrained, which evaluate remarks on.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

N, STEPS = 23, 5


class Sizes(nn.Module):
    """Notes how many images it was given with a gradient asked for."""

    def __init__(self):
        super().__init__()
        self.classifier, self.seen = tiny(), []

    def forward(self, images):
        if images.requires_grad:
            self.seen.append(len(images))
        return self.classifier(images)


def with_stop(max_batch, spec=f"pgd(alpha=4/255,steps={STEPS},stop=broken)", model=None):
    images, labels = tiny_batch(N)
    return AttackRunner(perturbation(spec), model or tiny())(images, labels, range(N), max_batch)


def first_broken(images, labels):
    """The iterates of plain PGD, one run for each number of steps, up to the first that is misclassified."""
    found = attack(tiny(), f"pgd(alpha=1e-9,steps=1,eps={EPS})", images, labels).images  # the start
    unbroken = predict(tiny(), found) == labels
    for steps in range(1, STEPS + 1):
        after = attack(tiny(), f"pgd(alpha=4/255,steps={steps})", images, labels).images
        found = torch.where(unbroken.view(-1, 1, 1, 1), after, found)
        unbroken &= predict(tiny(), found) == labels
    return found, unbroken


@pytest.mark.parametrize("max_batch", [1, 4, N, None])
def test_it_is_the_first_iterate_of_pgd_that_is_misclassified(max_batch):
    images, labels = tiny_batch(N)
    expected, unbroken = first_broken(images, labels)
    found = with_stop(max_batch).images
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
    assert 0 < unbroken.sum() < N
    assert torch.equal(predict(tiny(), found) == labels, unbroken)


def test_batches_are_full_until_fewer_samples_are_left_than_one_takes():
    model = Sizes()
    with_stop(4, model=model)
    full = model.seen.index(next(size for size in model.seen if size < 4))
    assert full > N // 4
    assert sorted(model.seen[full:], reverse=True) == model.seen[full:]
    alone = Sizes()
    with_stop(1, model=alone)
    assert sum(model.seen) == len(alone.seen) < N * STEPS  # no sample takes a step more


@pytest.mark.parametrize("max_batch", [7, None])
def test_each_restart_starts_elsewhere(max_batch):
    """With a step next to nothing an image is broken where its start is above the middle of the ball."""
    grey, labels = torch.full((200, 1, 2, 2), 0.5), torch.zeros(200, dtype=torch.long)
    attacked = perturbation("pgd(alpha=eps/100000,steps=1,stop=broken,restarts=3)", seed=6)
    found = AttackRunner(attacked, FirstPixel())(grey, labels, range(200), max_batch).images
    starts = [keyed_draws.uniform(range(200), (1, 2, 2), seed=6, number=at)[:, 0, 0, 0] for at in range(3)]
    right = (np.stack(starts) < 0.5).all(0)
    assert 0.05 < right.mean() < 0.2  # an eighth
    assert torch.equal(predict(FirstPixel(), found) == 0, torch.from_numpy(right))


@pytest.mark.parametrize("max_batch", [4, N, None])
def test_an_aimed_step_goes_down_the_loss_of_its_target(max_batch):
    """A step of 2 eps from anywhere in the ball ends on its surface, in each pixel."""
    images, _ = tiny_batch(N)
    images = 0.2 + 0.6 * images  # so that nothing is clipped
    model = tiny().requires_grad_(False)
    labels = predict(model, images)
    attacked = perturbation("pgd(alpha=32/255,steps=1,stop=broken,target=next)", seed=4)
    found = AttackRunner(attacked, model)(images, labels, range(N), max_batch).images
    start = images - EPS + 2 * EPS * torch.from_numpy(keyed_draws.uniform(range(N), (3, 6, 6), seed=4))
    unbroken = predict(model, start) == labels
    exact, leaf = tiny().double(), start.double().requires_grad_()
    loss = F.cross_entropy(exact(leaf), (labels + 1) % 5, reduction="sum")
    (gradient,) = torch.autograd.grad(loss, leaf)
    expected = images.double() - EPS * gradient.sign()
    assert unbroken.sum() > N / 2
    torch.testing.assert_close(found.double()[unbroken], expected[unbroken], rtol=0, atol=1e-6)
    torch.testing.assert_close(found[~unbroken], start[~unbroken], rtol=0, atol=1e-6)


def test_samples_without_a_gradient_are_told():
    class Blind(nn.Module):
        def forward(self, images):
            dark = (images[:, 0, 0, 0] < 0.5).float().view(-1, 1, 1, 1)
            images = images.detach() * dark + images * (1 - dark)
            return images.flatten(1)[:, :5] * 1e-3 + torch.tensor([9.0, 0, 0, 0, 0])

    images, _ = tiny_batch(N)
    images[:, 0, 0, 0] = torch.where(torch.arange(N) % 3 == 0, 0.1, 0.9)
    runner = AttackRunner(perturbation("pgd(steps=2,stop=broken)"), Blind())
    for max_batch in (4, N):
        found = runner(images, torch.zeros(N, dtype=torch.long), range(N), max_batch)
        assert found.zero_gradient.tolist() == [at % 3 == 0 for at in range(N)]


@pytest.mark.parametrize("copies", ["repeat", "repeat_interleave", "cat"])
def test_samples_without_a_gradient_are_told_in_an_attack_on_copies_of_a_batch(copies):
    """Which rows are copies of which image, only the attack knows: it is run on one image at a time."""

    def on_copies(model, **params):
        def call(images, labels):
            images = images.clone().requires_grad_()
            several = {
                "repeat": lambda: images.repeat(3, 1, 1, 1),
                "repeat_interleave": lambda: images.repeat_interleave(3, 0),
                "cat": lambda: torch.cat([images, images / 2, images / 4]),
            }[copies]()
            model(several).sum().backward()
            return images.detach()

        return call

    class Dark(nn.Module):
        """Passes no gradient through dark images."""

        def forward(self, images):
            bright = (images[:, 0, 0, 0] > 0.1).float().view(-1, 1, 1, 1)
            return (images * bright).flatten(1)[:, :5] + 0 * images.sum()

    images, labels = tiny_batch(4)
    images[:, 0, 0, 0] = torch.tensor([0.05, 0.9, 0.9, 0.05])
    with attacks.ATTACKS.registered("copies", AttackType(on_copies, {})):
        found = AttackRunner(perturbation("copies"), Dark())(images, labels, range(4))
    assert found.zero_gradient.tolist() == [True, False, False, True]


@pytest.mark.slow
def test_its_row_and_column_name_it():
    images, labels = tiny_batch(8)
    asked = {"eps": "2", "corruptions": "none"}
    frame = evaluate(tiny().model, (images, labels, 5), attacks="pgd,pgd(stop=broken)", **asked)
    assert frame["perturbation"].tolist() == ["clean", "pgd", "pgd(stop=broken)"]
    assert perturbation("pgd(stop=broken)", eps=2 / 255).column == "pgd(stop=broken)_2"
    assert attacks.may_stop_early(perturbation("pgd(stop=broken)"))


@pytest.mark.parametrize(
    ("spec", "told"),
    [("pgd(stop=soon)", "stop must be broken"), ("ifgsm(stop=broken)", "has no parameter 'stop'")],
)
def test_what_it_does_not_take_is_one_line(spec, told):
    with pytest.raises(UserError, match=told):
        perturbation(spec)


@pytest.mark.parametrize(
    "spec", ["pgd(steps=3,restarts=3)", "apgd_ce(steps=4)", "apgd_t(steps=2)", "square(queries=4)"]
)
def test_rounds_in_full_batches_find_the_same(spec):
    images, labels = tiny_batch(N)
    model = Sizes()
    runner = AttackRunner(perturbation(spec), model)
    together, parts = runner(images, labels, range(N)), runner(images, labels, range(N), 4)
    torch.testing.assert_close(parts.images, together.images, rtol=0, atol=1e-6)
    assert (parts.zero_gradient == together.zero_gradient).all()

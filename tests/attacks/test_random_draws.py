"""The random start: keyed by seed and sample, uniform, reproducible."""

import math
import random
import zlib

import numpy as np
import pytest
import torch
from scipy import stats
from support import keyed_draws
from support.attacked import (
    AGREEMENT,
    EPS,
    FirstPixel,
    attack,
    perturbation,
    predict,
    same_share,
    tiny,
    tiny_batch,
)
from torch import nn

import robust_interp
from robust_interp.attacks import ATTACKS, AttackRunner
from robust_interp.attacks.random_draws import KeyedDraws, start_noise
from robust_interp.core.errors import UserError
from robust_interp.plugins import attack as declared

# The networks here are untrained or built to mislead, which evaluate remarks on.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


class FirstInput(nn.Module):
    """Keeps the first images of each attack that it is asked about."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(108, 5)
        self.seen = []

    def forward(self, images):
        self.seen.append(images.detach().clone())
        return self.head(images.flatten(1))


@pytest.mark.slow
@pytest.mark.parametrize("batch", [100, 128, 300, 1])
def test_random_starts_are_bit_equal_whatever_the_batch_size(batch):
    images, labels = tiny_batch(300)
    pgd = perturbation("pgd(steps=1)", seed=5)
    noise = torch.from_numpy(keyed_draws.uniform(range(300), images.shape[1:], seed=5))
    expected = (images + (-EPS + 2 * EPS * noise)).clamp(0, 1)
    model = FirstInput()
    bound = AttackRunner(pgd, model)
    for at in range(0, 300, batch):
        stop = min(at + batch, 300)
        bound(images[at:stop], labels[at:stop], range(at, stop))
    assert torch.equal(torch.cat(model.seen), expected)


@pytest.mark.parametrize(("number", "call"), [(0, 0), (0, 1), (0, 2), (1, 0), (2, 3)])
def test_draws_are_keyed_by_seed_round_and_draw(number, call):
    """A draw of (N, C, H, W) by each image too; of any other shape by the batch alone."""
    pgd = perturbation("pgd", seed=5)
    start = start_noise(pgd, [3, 8], (1, 2, 2), number, call)
    assert np.array_equal(start, keyed_draws.uniform([3, 8], (1, 2, 2), 5, number, call))
    with KeyedDraws(pgd, [3, 8], number):
        for _ in range(call):
            torch.rand(4)
        other = torch.rand(5)
    assert np.array_equal(other, keyed_draws.shared(5, 5, number, call))
    with KeyedDraws(pgd, [3, 8], number):
        for _ in range(call):
            torch.rand(4)
        numbers = torch.randn(2, 1, 2, 2)
    assert np.array_equal(numbers, keyed_draws.normal([3, 8], (1, 2, 2), 5, number, call))


def test_random_starts_follow_the_sample_not_its_place():
    pgd = perturbation("pgd", seed=1)
    everything = start_noise(pgd, range(500), (1, 4, 4))
    order = np.random.default_rng(0).permutation(500)
    assert np.array_equal(start_noise(pgd, order, (1, 4, 4)), everything[order])
    assert np.array_equal(start_noise(pgd, range(7), (1, 4, 4)), everything[:7])
    assert np.array_equal(start_noise(pgd, [499], (1, 4, 4))[0], everything[499])
    assert len(np.unique(everything.reshape(500, -1), axis=0)) == 500


@pytest.mark.slow
def test_predictions_under_pgd_do_not_depend_on_the_batches(digits_classifier, digits_test):
    images, labels = digits_test
    bound = AttackRunner(perturbation("pgd(alpha=eps/4, steps=4)"), digits_classifier)

    def predictions(batch, n):
        ranges = [range(at, min(at + batch, n)) for at in range(0, n, batch)]
        found = [bound(images[ids], labels[ids], ids).images for ids in ranges]
        return predict(digits_classifier, torch.cat(found))

    together = predictions(450, 450)
    assert same_share(predictions(128, 450), together) >= AGREEMENT
    assert torch.equal(predictions(1, 30), together[:30])
    backwards = torch.arange(449, -1, -1)
    found = bound(images[backwards], labels[backwards], backwards.tolist()).images
    assert same_share(predict(digits_classifier, found), together[backwards]) >= AGREEMENT


@pytest.mark.slow
def test_tables_do_not_depend_on_the_batch_size():
    images, labels = tiny_batch(130)
    options = {"attacks": "fgsm,pgd(steps=3)", "eps": (8 / 255,), "corruptions": "gaussian_noise(severity=5)"}
    tables = [
        robust_interp.evaluate(tiny(), (images, labels, 5), batch_size=batch, **options)
        for batch in (1, 100, 128, 130)
    ]
    for table in tables[1:]:
        assert table["accuracy"].tolist() == tables[0]["accuracy"].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 100, 128, None])
def test_a_benchmark_starts_each_sample_from_its_own_noise(batch):
    """With a step next to nothing PGD ends where it starts, and the first pixel shows where that was."""
    images, labels = np.full((260, 1, 4, 4), 0.5, np.float32), np.zeros(260, int)
    pgd = "pgd(alpha=eps/100000, steps=1)"
    table = robust_interp.evaluate(
        FirstPixel(),
        (images, labels, 2),
        attacks=pgd,
        eps=(8 / 255,),
        corruptions="none",
        batch_size=batch,
        seed=6,
    )
    first = keyed_draws.uniform(range(260), (1, 4, 4), seed=6)[:, 0, 0, 0]
    assert table["accuracy"][1] == pytest.approx(100 * (first < 0.5).mean())


@pytest.mark.parametrize("eps", [1 / 255, 8 / 255, 0.3])
def test_random_starts_are_uniform_in_the_ball(eps):
    model = FirstInput()
    grey = torch.full((1000, 3, 6, 6), 0.5)
    pgd = perturbation("pgd(steps=1)", eps=eps, seed=2)
    AttackRunner(pgd, model)(grey, torch.zeros(1000, dtype=torch.long), range(1000))
    delta = (model.seen[0] - grey).double().flatten().numpy()
    half_ulp = 2**-25  # of a pixel at 0.5
    assert delta.min() >= -eps - half_ulp
    assert delta.max() <= eps + half_ulp
    n = delta.size
    assert abs(delta.mean()) < 5 * eps / math.sqrt(3 * n)
    # U[-eps, eps): variance eps^2/3, fourth moment eps^4/5
    assert abs(delta.var() - eps**2 / 3) < 5 * eps**2 * math.sqrt((1 / 5 - 1 / 9) / n)
    assert stats.kstest(delta, stats.uniform(-eps, 2 * eps).cdf).pvalue > 1e-4


def test_starts_of_neighbouring_samples_and_seeds_are_uncorrelated():
    noise = [start_noise(perturbation("pgd", seed=seed), range(200), (400,)) for seed in (0, 1)]
    for first, second in ((noise[0][:-1], noise[0][1:]), (noise[0], noise[1])):
        correlation = np.corrcoef(first.ravel(), second.ravel())[0, 1]
        assert abs(correlation) < 5 / math.sqrt(first.size)


def test_noise_before_scaling_never_reaches_one():
    unit = start_noise(perturbation("pgd"), range(200), (400,))
    assert unit.dtype == np.float32
    assert unit.min() >= 0
    assert unit.max() < 1


def test_pgd_is_reproducible_for_a_seed_and_differs_for_another():
    classifier, (images, labels) = tiny(), tiny_batch(40)
    runs = []
    for global_seed, seed in ((1, 0), (2, 0), (1, 7)):
        torch.manual_seed(global_seed)
        np.random.seed(global_seed)
        runs.append(attack(classifier, "pgd(steps=3)", images, labels, seed=seed).images)
    assert torch.equal(runs[0], runs[1])
    changed = (runs[0] != runs[2]).flatten(1).any(1)
    assert changed.all()


@pytest.mark.parametrize("spec", ["fgsm", "ifgsm"])
def test_attacks_that_draw_nothing_have_no_seed(spec):
    assert perturbation(spec, seed=0) == perturbation(spec, seed=1)
    assert perturbation(spec, seed=4).seed is None


def test_the_seed_of_a_random_attack_is_part_of_what_it_is():
    assert perturbation("pgd", seed=0).describe() != perturbation("pgd", seed=1).describe()
    assert perturbation("pgd", seed=0).column == perturbation("pgd", seed=1).column


# --- plug-ins: every draw depends only on the seed and the image -----------------------------------------


def with_gradient(x):
    noise = torch.rand(x.shape, requires_grad=True)
    (gradient,) = torch.autograd.grad(noise.square().sum() / 2, noise)
    return gradient


WHOLE = {  # uniform draws for the whole batch
    "rand": lambda x: torch.rand(x.shape),
    "numbers": lambda x: torch.rand(*x.shape),
    "size": lambda x: torch.rand(size=x.shape),
    "rand_like": lambda x: torch.rand_like(input=x),
    "dtype": lambda x: torch.rand_like(x, dtype=torch.float64).float(),
    "uniform_": lambda x: torch.empty_like(x).uniform_(),
    "gradient": with_gradient,
}


def in_parts(x):
    noise = torch.zeros_like(x)
    noise[::2].uniform_(-1, 1)
    noise[1::2].uniform_(-1, 1)
    return noise


def shuffled(x):
    places = list(range(108))
    random.shuffle(places)
    return (torch.tensor(places) / 108).view(1, 3, 6, 6)


def if_any_is_high(x):
    noise = torch.rand_like(x)
    if (noise[:, 0, 0, 0] > 0.5).any():  # for some images, so whether this is drawn depends on the batch
        noise = torch.where(noise[:, :1, :1, :1] > 0.5, noise * torch.rand(len(x), 1, 1), noise)
    return noise


OTHERS = {
    "randint_like": lambda x: torch.randint_like(x, -9, 10) / 9,
    "randint": lambda x: torch.randint(-9, 10, x.shape) / 9,
    "bernoulli": lambda x: torch.bernoulli(torch.full_like(x, 0.5)),
    "bernoulli_": lambda x: torch.empty_like(x).bernoulli_(0.5),
    "normal": lambda x: torch.normal(torch.zeros_like(x), 1.0).tanh(),
    "randperm": lambda x: torch.randperm(x.numel()).view_as(x) / x.numel(),
    "multinomial": lambda x: torch.multinomial(torch.ones(len(x), 108), 108).view_as(x) / 108,
    "dropout": lambda x: torch.nn.functional.dropout(torch.ones_like(x), 0.5) / 2,
    "init": lambda x: torch.nn.init.uniform_(torch.empty_like(x)),
    "out": lambda x: torch.rand(x.shape, out=torch.empty_like(x)),
    "one number each": lambda x: torch.rand(len(x)).view(-1, 1, 1, 1),
    "one number": lambda x: torch.rand(()),
    "one image": lambda x: torch.rand_like(x[0]),
    "rows": lambda x: torch.randn(len(x), 108).tanh().view_as(x),
    "many": lambda x: torch.rand(5, *x.shape[1:]).mean(0, keepdim=True),
    "parts": in_parts,
    "sometimes": if_any_is_high,
    "NumPy": lambda x: torch.from_numpy(np.random.uniform(-1, 1, tuple(x.shape))).float(),
    "Python": shuffled,
}
DRAWS = WHOLE | OTHERS


def shifted(model, images, eps, kind):
    model(images)
    return (images + eps * DRAWS[list(DRAWS)[int(kind)]](images)).clamp(0, 1)


@declared(random=True)
def drawn(model, images, labels, *, eps, kind=0):
    return shifted(model, images, eps, kind)


@declared()
def undeclared(model, images, labels, *, eps, kind=0):
    return shifted(model, images, eps, kind)


@pytest.mark.parametrize("kind", ["randint", "NumPy", "Python"])
def test_an_attack_that_draws_without_saying_so_is_refused(kind):
    with ATTACKS.registered("undeclared", undeclared):
        attack = AttackRunner(perturbation(f"undeclared(kind={list(DRAWS).index(kind)})"), FirstInput())
        with pytest.raises(
            UserError, match=r"undeclared.* draws random numbers: declare it with random=True"
        ):
            attack(torch.rand(2, 3, 6, 6), torch.zeros(2, dtype=torch.long), range(2))


def drawn_by(kind, model=None, seed=0):
    given = perturbation(f"drawn(kind={list(DRAWS).index(kind)})", seed=seed)
    return AttackRunner(given, model or FirstInput())


@pytest.fixture
def _registered():
    with ATTACKS.registered("drawn", drawn):
        yield


def seed_globally(seed):
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


GREY, ZEROS = torch.full((7, 3, 6, 6), 0.5), torch.zeros(7, dtype=torch.long)


@pytest.mark.usefixtures("_registered")
@pytest.mark.parametrize("kind", DRAWS)
def test_each_draw_of_a_plug_in_is_keyed_by_seed_and_image(kind):
    bound = drawn_by(kind)
    seed_globally(1)
    found = bound(GREY, ZEROS, range(7)).images
    after = torch.rand(1), np.random.rand(), random.random()
    seed_globally(1)
    assert after == (torch.rand(1), np.random.rand(), random.random())
    for at in reversed(range(7)):  # from other states, alone and in another place
        assert torch.equal(drawn_by(kind)(GREY[:1], ZEROS[:1], [at]).images, found[[at]])
    for ids in ([6, 2, 0], [5, 3, 4, 1]):
        assert torch.equal(bound(GREY[: len(ids)], ZEROS[: len(ids)], ids).images, found[ids])
    assert len(found.unique(dim=0)) == 7
    assert (drawn_by(kind, seed=1)(GREY, ZEROS, range(7)).images != found).flatten(1).any(1).all()


@pytest.mark.usefixtures("_registered")
@pytest.mark.parametrize("kind", WHOLE)
def test_a_draw_for_the_whole_batch_is_the_start_noise(kind):
    model = FirstInput()
    found = drawn_by(kind, model, seed=3)(GREY, ZEROS, range(7)).images
    noise = torch.from_numpy(keyed_draws.uniform(range(7), (3, 6, 6), seed=3))
    torch.testing.assert_close(found, GREY + EPS * noise, rtol=0, atol=1e-7)
    assert [len(seen) for seen in model.seen] == [7]


@pytest.mark.usefixtures("_registered")
@pytest.mark.parametrize("kind", sorted(OTHERS.keys() - {"sometimes"}))
def test_any_other_draw_makes_a_plug_in_run_on_one_image_at_a_time(kind):
    model = FirstInput()
    bound = drawn_by(kind, model)
    bound(GREY, ZEROS, range(7))
    assert [len(seen) for seen in model.seen] == [7, *[1] * 7]
    model.seen.clear()
    bound(GREY[:3], ZEROS[:3], range(3))
    assert [len(seen) for seen in model.seen] == [1, 1, 1]  # the batch is not tried again


def test_two_draws_of_a_plug_in_for_one_image_are_two():
    @declared(random=True)
    def difference(model, images, labels, *, eps):
        return images + eps * (torch.rand_like(images) - torch.rand_like(images))

    with ATTACKS.registered("difference", difference):
        found = attack(FirstInput(), "difference", GREY, ZEROS, seed=3).images
    one, other = (keyed_draws.uniform(range(7), (3, 6, 6), seed=3, call=call) for call in (0, 1))
    torch.testing.assert_close(found, GREY + EPS * torch.from_numpy(one - other), rtol=0, atol=1e-7)
    assert (found != GREY).flatten(1).any(1).all()


def test_restarts_of_a_plug_in_on_one_image_at_a_time_are_no_copies():
    """It moves an image by a number in [-eps, eps), so that each start breaks it in half of the cases."""

    @declared(random=True)
    def moved(model, images, labels, *, eps):
        return (images + eps * (2 * torch.rand(len(images)).view(-1, 1, 1, 1) - 1)).clamp(0, 1)

    grey, labels = torch.full((200, 1, 2, 2), 0.5), torch.zeros(200, dtype=torch.long)
    with ATTACKS.registered("moved", moved):
        found = attack(FirstPixel(), "moved(restarts=3)", grey, labels).images
    right = (FirstPixel()(found).argmax(1) == 0).numpy()
    assert 0.05 < right.mean() < 0.2  # an eighth


def test_a_generator_of_the_plug_in_is_its_own():
    """Its numbers for an image are those for a batch of one, and not the keyed ones."""

    @declared(random=True)
    def own(model, images, labels, *, eps):
        numbers = torch.Generator().manual_seed(4)
        return images + eps * torch.randint(2, (len(images), 3, 6, 6), generator=numbers)

    with ATTACKS.registered("own", own):
        found = attack(FirstInput(), "own", GREY, ZEROS).images
    fixed = torch.randint(2, (1, 3, 6, 6), generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(found, GREY + EPS * fixed, rtol=0, atol=1e-7)


def test_draws_for_one_image_are_those_of_stored_results():
    @declared(random=True)
    def alone(model, images, labels, *, eps):
        return images + eps * torch.rand(len(images)).view(-1, 1, 1, 1)

    with ATTACKS.registered("alone", alone):
        found = attack(FirstInput(), "alone", GREY, ZEROS, seed=3).images
    for at in range(7):
        key = (3, zlib.crc32(b"attack one sample"), at, 0)
        high, low = map(int, np.random.SeedSequence(key).generate_state(2))
        number = torch.rand(1, generator=torch.Generator().manual_seed(high << 32 | low))
        torch.testing.assert_close(found[at], GREY[at] + EPS * number, rtol=0, atol=1e-7)

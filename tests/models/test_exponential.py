"""The exact exponential step: its limits, its slope at λ = 0, and how far the first-order form is from it."""

import math

import mpmath
import pytest
import timm
import torch
from torch import nn

from robust_interp.models import Damp, Exponential, ScaledDamp, ScaledExponential, damped
from robust_interp.models.merges import mean_decay

EXACT = {Exponential: lambda lam: 1, ScaledExponential: lambda lam: 1 + lam}  # merge -> its ρ


def factors(merge, lam, dtype=torch.float64):
    """What a merge multiplies x and f with."""
    module = damped(merge, (0, 0))(1, dtype=dtype)
    nn.init.constant_(module.coefficient.lambda_, lam)
    one, zero = torch.ones((), dtype=dtype), torch.zeros((), dtype=dtype)
    return module(one, zero).item(), module(zero, one).item()


@pytest.mark.parametrize("merge", EXACT)
@pytest.mark.parametrize("lam", [1e-300, 1e-16, 1e-9, 1e-5, 0.01, 0.22, 0.499999, 0.5, 0.7, 1, 2.5, 40])
def test_factors_to_the_last_digits(merge, lam):
    """Against 50 decimal digits, so that a cancellation anywhere near λ = 0 would show."""
    with mpmath.workdps(50):
        decay = mpmath.exp(-mpmath.mpf(lam))
        of_f = -mpmath.expm1(-mpmath.mpf(lam)) / lam * EXACT[merge](mpmath.mpf(lam))
        expected = float(decay), float(of_f)
    assert factors(merge, lam) == pytest.approx(expected, rel=4e-16)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_coarse_types(dtype):
    for lam in (0.0, 1e-6, 0.25, 0.75, 3.0):
        lam = torch.tensor(lam, dtype=dtype)
        expected = 1.0 if lam == 0 else -math.expm1(-lam.item()) / lam.item()
        found = mean_decay(lam)
        assert found.dtype == dtype
        assert found.item() == pytest.approx(expected, rel=2 * torch.finfo(dtype).eps)


def test_slope():
    """d/dλ (1 - e^-λ)/λ is (e^-λ (1 + λ) - 1)/λ², -1/2 at 0; next to 0 that quotient has no digit left."""
    values = [0.0, 1e-300, 1e-12, 1e-8, 1e-4, 0.3, 0.4999, 0.5, 0.6, 2.0, 30.0]
    lam = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    mean_decay(lam).sum().backward()
    with mpmath.workdps(700):
        slopes = [
            (mpmath.exp(-mpmath.mpf(v)) * (1 + mpmath.mpf(v)) - 1) / mpmath.mpf(v) ** 2 for v in values[1:]
        ]
    assert lam.grad.tolist() == pytest.approx([-0.5, *map(float, slopes)], rel=1e-15)


def test_second_derivatives_too():
    """Input-gradient training differentiates twice; at λ = 0 the series gives 1/3."""
    lam = torch.tensor([0.0, 0.2, 0.9], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(mean_decay, (lam[1:].detach().requires_grad_(),))
    (slope,) = torch.autograd.grad(mean_decay(lam).sum(), lam, create_graph=True)
    (curvature,) = torch.autograd.grad(slope.sum(), lam)
    assert curvature[0].item() == pytest.approx(1 / 3, rel=1e-15)


def test_gradient_through_the_step_at_zero():
    """d/dλ of e^-λ x + φ(λ) ρ(λ) f at 0 is -x + (ρ'(0) - 1/2) f: with a sigmoid-free λ that may be 0."""
    x, f = torch.tensor(3.0, dtype=torch.float64), torch.tensor(10.0, dtype=torch.float64)
    for merge, expected in ((Exponential, -3 - 5), (ScaledExponential, -3 + 5)):
        module = damped(merge, (0, 0))(1, dtype=torch.float64)
        module.coefficient.act = nn.Identity()  # relu has slope 0 at 0
        nn.init.zeros_(module.coefficient.lambda_)
        module(x, f).backward()
        assert module.coefficient.lambda_.grad.item() == expected


def order(error):
    """p of error(λ) ~ λ^p, from halving λ."""
    return [math.log2(error(lam) / error(lam / 2)) for lam in (1e-2, 1e-3)]


@pytest.mark.parametrize(("exact", "first"), [(Exponential, Damp), (ScaledExponential, ScaledDamp)])
def test_order_of_the_first_order_form(exact, first):
    skip = order(lambda lam: abs(factors(exact, lam)[0] - factors(first, lam)[0]))
    of_f = order(lambda lam: abs(factors(exact, lam)[1] - factors(first, lam)[1]))
    assert skip == pytest.approx([2, 2], abs=0.01)
    assert of_f == pytest.approx([1, 1], abs=0.02)
    lam = 1e-4  # and the leading terms: λ²/2 and λ/2
    (a, b), (c, d) = factors(exact, lam), factors(first, lam)
    assert (a - c) / lam**2 == pytest.approx(1 / 2, rel=1e-3)
    assert (d - b) / lam == pytest.approx(1 / 2, rel=1e-3)


def test_solves_the_equation():
    """The step is what SciPy's solver gets for dx/dt = -λ x + ρ f over Δt = 1."""
    from scipy.integrate import solve_ivp

    lam, x, f = 0.8, 2.0, -3.0
    for merge, rho in EXACT.items():
        path = solve_ivp(lambda t, y, rho=rho: -lam * y + rho(lam) * f, (0, 1), [x], rtol=1e-10, atol=1e-12)
        skip, of_f = factors(merge, lam)
        assert skip * x + of_f * f == pytest.approx(path.y[0, -1], rel=1e-8)


# --- whole networks -------------------------------------------------------------------------------------


def networks(name, reference, lam):
    """A network with every λ at one value, and the reference with the same other weights."""
    torch.manual_seed(0)
    model = timm.create_model(name, in_chans=1).double().eval()
    other = timm.create_model(reference, in_chans=1).double().eval()
    other.load_state_dict(
        {key: value for key, value in model.state_dict().items() if "coefficient" not in key}
    )
    for block in model.interpolation_coefficients():
        nn.init.constant_(model.get_submodule(block).merge.coefficient.lambda_, lam)
    return model, other, torch.randn(3, 1, 8, 8, dtype=torch.float64)


@pytest.mark.parametrize("name", ["exp_in_resnet14", "exp_lambda_in_resnet14"])
def test_lambda_zero_is_exactly_the_residual_network(name):
    model, resnet, images = networks(name, "preact_resnet14", 0.0)
    assert torch.equal(model(images), resnet(images))
    model, resnet, images = networks(name, "preact_resnet14", 1e-9)
    torch.testing.assert_close(model(images), resnet(images), rtol=0, atol=1e-7)


def test_large_lambda_is_the_plain_network_if_rho_grows():
    model, plain, images = networks("exp_lambda_in_resnet14", "plain_net14", 1e12)
    torch.testing.assert_close(model(images), plain(images), rtol=1e-9, atol=1e-9)
    assert not torch.allclose(
        networks("exp_lambda_in_resnet14", "plain_net14", 1.0)[0](images), plain(images)
    )


def test_large_lambda_leaves_nothing_if_rho_is_one():
    model, _, images = networks("exp_in_resnet14", "plain_net14", 1e12)
    block = model.stages[2][1]
    maps = torch.randn(2, 64, 2, 2, dtype=torch.float64)
    assert block(maps).abs().max() < 1e-9
    assert model(images).isfinite().all()


def test_starts_in_the_interval_of_its_first_order_form():
    model = timm.create_model("exp_lambda_in_resnet14", lambda_init=(0.3, 0.4), stored="keep")
    assert all(0.3 <= value <= 0.4 for value in model.interpolation_coefficients().values())

"""The control networks of benchmarks/controls.py are what docs/findings.md says they are."""

import math
import runpy
from pathlib import Path

import pytest
import timm
import torch
from torch.nn.functional import cross_entropy

import robust_interp  # noqa: F401, registers the networks
from robust_interp.models import PreActResNet

FILE = Path(__file__).parents[2] / "benchmarks" / "controls.py"


@pytest.fixture
def controls(monkeypatch):
    """The module's names, without a registration that other tests would see."""
    monkeypatch.setattr("robust_interp.models.registration.register_model", lambda entrypoint: entrypoint)
    return runpy.run_path(str(FILE))


def backward(model):
    generator = torch.Generator().manual_seed(1)
    dtype = next(model.parameters()).dtype
    images, labels = torch.randn(8, 3, 8, 8, generator=generator, dtype=dtype), torch.arange(8)
    model.zero_grad()
    cross_entropy(model.train()(images), labels).backward()


def test_a_burst_enlarges_the_gradients_of_the_first_layers_in_ten_steps(controls):
    burst, plain = (
        controls["preact_resnet20_burst1000"](num_classes=10).double(),
        PreActResNet(depth=20).double(),
    )
    plain.load_state_dict({k: v for k, v in burst.state_dict().items() if k != "steps"})
    for number in range(1, 13):
        backward(burst)
        backward(plain)
        for (name, ours), theirs in zip(burst.named_parameters(), plain.parameters(), strict=True):
            first = name.startswith(("stem.", "stages.0."))
            factor = 1000 if first and number <= 10 else 1
            torch.testing.assert_close(ours.grad, factor * theirs.grad)


def test_a_burst_counts_steps_of_training_only_and_keeps_the_count(controls):
    model = controls["preact_resnet20_burst100"](num_classes=10)
    images = torch.zeros(2, 3, 8, 8)
    model.train()(images)
    model.eval()(images)
    again = controls["preact_resnet20_burst100"](num_classes=10)
    again.load_state_dict(model.state_dict())
    assert again.steps == 1


def test_a_fixed_front_is_that_of_the_other_network_and_stays(controls):
    source = timm.create_model("in_resnet110.cifar10_quick_seed0", pretrained=True)
    model = controls["resnet20_in110_front"](num_classes=10)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1)
    before = [p.clone() for p in trained]
    backward(model)
    optimizer.step()
    assert all(not torch.equal(p, old) for p, old in zip(trained, before, strict=True))

    images = torch.randn(2, 3, 8, 8)
    source.eval()
    theirs = source.stages[0][:4](source.stem(images))
    assert torch.equal(model.train().stages[0](model.stem(images)), theirs)
    assert len(model.stages[1]) == len(model.stages[2]) == 3
    assert not any("lambda_" in name for name, p in model.named_parameters() if p.requires_grad)


@pytest.mark.parametrize(("depth", "count"), [(20, 6), (110, 51)])
def test_fixed_damping_does_not_train_its_lambda(controls, depth, count):
    model = controls[f"in_resnet{depth}_fixed"](num_classes=10)
    before = model.interpolation_coefficients()
    assert len(before) == count
    assert all(0.20 <= value <= 0.25 for value in before.values())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    weight = model.stem.conv.weight.clone()
    backward(model)
    optimizer.step()
    assert model.interpolation_coefficients() == before
    assert not torch.equal(model.stem.conv.weight, weight)


def test_the_calculated_growth_of_gradients_has_the_known_limits():
    expected = runpy.run_path(str(FILE.with_name("gradient_growth.py")))["expected"]
    v = 1 - 1 / math.pi
    # λ = 1, a plain chain: V is 2 v before the second block and v before the 16 others
    assert expected(1.0) == pytest.approx((2 ** (-1 / 34) / v, v))
    # λ = 0: V is j v before block j, and the product of 1 + a / j, a = 1 / v², for j = 2 to 18 is a ratio of
    # gamma functions
    a = 1 / v**2
    product = math.exp(math.lgamma(19 + a) - math.lgamma(19) - math.lgamma(2 + a))
    assert expected(0.0) == pytest.approx((product ** (1 / 34), 19 * v))
    # λ = 0.5: the limits are V = v / (1 - 1/4) and, from the start, nearly 1/4 + 3/4 a, whose root is 1.3652
    factor, variance = expected(0.5)
    assert variance == pytest.approx(v / 0.75, rel=1e-6)
    assert factor == pytest.approx(1.3652, rel=0.02)

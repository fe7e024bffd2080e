"""The networks: values worked out by hand, exact limits, timm's interface, and what is refused."""

import pickle
import sys
import tomllib
from functools import partial
from pathlib import Path

import pytest
import timm
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torchvision.models.feature_extraction import create_feature_extractor

import robust_interp
from robust_interp.core import architectures
from robust_interp.models import (
    Add,
    Branch,
    CifarResNeXt,
    Damp,
    Gate,
    Keep,
    Lambda,
    PreActResNet,
    ScaledDamp,
    damped,
    default_lambda_init,
    in_resnet,
    in_resnext,
)
from robust_interp.models.registration import Architecture, register, timm_cfgs

SMALL = [
    "preact_resnet14",
    "plain_net14",
    "in_resnet14",
    "in_resnet14_sig",
    "in_resnet14_gating",
    "in_resnet14_gating_sig",
    "lambda_in_resnet14",
    "exp_in_resnet14",
    "exp_lambda_in_resnet14",
    "resnext20_4x16d",
    "in_resnext20_4x16d",
    "lambda_in_resnext20_4x16d",
]
GATED = ["in_resnet14_gating", "in_resnet14_gating_sig"]
WITH_LAMBDA = [name for name in SMALL if "in_res" in name]


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


@pytest.fixture
def digits():
    return torch.randn(4, 1, 8, 8)


def small(name, **kwargs):
    return timm.create_model(name, **{"in_chans": 1, **kwargs}).eval()


def set_lambda(model, value):
    for module in model.modules():
        if isinstance(module, Lambda):
            nn.init.constant_(module.lambda_, value)
        elif isinstance(module, Keep):
            nn.init.constant_(module.keep, 1 - value)
        elif isinstance(module, Gate):
            nn.init.zeros_(module.weight)
            nn.init.constant_(module.bias, value)


def copy_weights(source, target):
    """All but the λ, which only the target has."""
    result = target.load_state_dict(source.state_dict(), strict=False)
    assert not result.unexpected_keys
    assert all(".merge.coefficient." in key for key in result.missing_keys)
    return target


def randomise_statistics(model):
    """As after training: a fresh BN is nearly the identity, which would hide mistakes."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
            nn.init.uniform_(module.running_mean, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model


# --- the merges, by hand ---------------------------------------------------------------------------

X = torch.tensor([[[[1.0, -2.0]], [[3.0, 0.5]]]], dtype=torch.float64)  # (1, 2, 1, 2)
BRANCH = torch.tensor([[[[4.0, 1.0]], [[-1.0, 2.0]]]], dtype=torch.float64)


def merged(merge, *values):
    module = merge(2, dtype=torch.float64)
    with torch.no_grad():
        for parameter, value in zip(module.parameters(), values, strict=True):
            parameter.copy_(torch.tensor(value, dtype=torch.float64))
    return module(X, BRANCH).flatten().tolist()


@pytest.mark.parametrize(
    ("merge", "values", "expected"),
    [
        (Add, [], [5.0, -1.0, 2.0, 2.5]),
        (Branch, [], [4.0, 1.0, -1.0, 2.0]),
        (damped(Damp, (0, 0)), [0.25], [4.75, -0.5, 1.25, 2.375]),
        (damped(Damp, (0, 0)), [-0.25], [5.0, -1.0, 2.0, 2.5]),  # relu: λ = 0
        (damped(Damp, (0, 0)), [1.5], [3.5, 2.0, -2.5, 1.75]),  # λ may exceed 1
        (damped(Damp, (0, 0), stored="keep"), [0.75], [4.75, -0.5, 1.25, 2.375]),
        (damped(Damp, (0, 0), stored="keep"), [1.25], [5.0, -1.0, 2.0, 2.5]),
        (damped(Damp, (0.5, 0.5), act="sigmoid"), [0.0], [4.5, 0.0, 0.5, 2.25]),  # λ = 1/2
        (damped(ScaledDamp, (0, 0)), [0.25], [5.75, -0.25, 1.0, 2.875]),
        (damped(ScaledDamp, (0, 0), stored="keep"), [0.75], [5.75, -0.25, 1.0, 2.875]),
        # W = [[0.5, 0], [0.25, -0.5]], b = [0.25, 1]: d = [0.75, -0.75], [-0.25, 0.25]
        (
            damped(Damp, (0, 0), gated=True),
            [[[[[0.5]], [[0.0]]], [[[0.25]], [[-0.5]]]], [0.25, 1.0]],
            [4.25, -1.0, 2.0, 2.375],
        ),
    ],
)
def test_merge_by_hand(merge, values, expected):
    assert merged(merge, *values) == expected


def test_gate_with_sigmoid_by_hand():
    gate = Gate(1, (0.5, 0.5), act="sigmoid", dtype=torch.float64)
    with torch.no_grad():
        gate.weight.fill_(2.0)
        gate.bias.fill_(-1.0)
    x = torch.tensor([[[[0.5, 1.0]]]], dtype=torch.float64)  # d = 0 and 1; sigmoid(1) = e / (1 + e)
    assert gate(x).flatten().tolist() == pytest.approx([0.5, 0.7310585786300049], abs=1e-15)


@pytest.mark.parametrize(("value", "slope"), [(0.25, -2.5), (0.0, 0.0), (-0.1, 0.0)])
def test_gradient_of_lambda(value, slope):
    """d/dλ of the sum of (1 - λ) x + f is -sum(x); below and at zero torch's relu has slope 0."""
    merge = damped(Damp, (0, 0))(2, dtype=torch.float64)
    nn.init.constant_(merge.coefficient.lambda_, value)
    merge(X, BRANCH).sum().backward()
    assert merge.coefficient.lambda_.grad.item() == slope


# --- the layout --------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("preact_resnet110", 1_730_618),
        ("in_resnet110", 1_730_669),
        ("lambda_in_resnet110", 1_730_669),
        ("plain_net110", 1_730_618),
        ("preact_resnet164", 1_703_674),
        ("in_resnet164", 1_703_725),
        ("in_resnet20", 272_384),
        ("in_resnet32", 466_822),
        ("in_resnet44", 661_260),
        ("in_resnet56", 855_698),
        ("resnext29_8x64d", 34_426_698),
        ("in_resnext29_8x64d", 34_426_698 + 6),
    ],
)
def test_parameter_count(name, count):
    assert sum(p.numel() for p in timm.create_model(name, device="meta").parameters()) == count


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("in_resnet14", 3),
        ("in_resnet20", 6),
        ("in_resnet110", 51),
        ("lambda_in_resnet110", 51),
        ("in_resnet164", 51),
        ("in_resnext29_8x64d", 6),
        ("preact_resnet20", 0),
        ("plain_net20", 0),
        ("resnext20_4x16d", 0),
    ],
)
def test_number_of_lambdas(name, count):
    model = timm.create_model(name, device="meta")
    assert len(model.interpolation_coefficients()) == count


@pytest.mark.parametrize(
    ("name", "blocks"),
    [
        ("in_resnet20", ["0.1", "0.2", "1.1", "1.2", "2.1", "2.2"]),  # not 0.0, although it is an identity
        ("in_resnext29_8x64d", ["0.1", "0.2", "1.1", "1.2", "2.1", "2.2"]),
    ],
)
def test_blocks_with_lambda(name, blocks):
    model = timm.create_model(name, device="meta")
    assert list(model.interpolation_coefficients()) == [f"stages.{block}" for block in blocks]
    assert isinstance(dict(model.named_blocks())["stages.0.0"].merge, Add)


@pytest.mark.slow
def test_order_of_depth():
    names = list(timm.create_model("in_resnet110", device="meta").interpolation_coefficients())
    assert names == sorted(names, key=lambda name: [int(part) for part in name.split(".")[1:]])
    assert names[9] == "stages.0.10"


def _bn(x, state, name):
    mean, var, scale, shift = (
        state[f"{name}.{key}"] for key in ("running_mean", "running_var", "weight", "bias")
    )
    return F.batch_norm(x, mean, var, scale, shift, eps=1e-5)


def _pre(x, state, name, i, stride=1):
    """BN, ReLU, convolution number i."""
    weight = state[f"{name}.conv{i}.weight"]
    x = F.relu(_bn(x, state, f"{name}.norm{i}"))
    return F.conv2d(x, weight, stride=stride, padding=weight.shape[-1] // 2)


def _reference_preact(state, x, strides):
    """The logits of an In-ResNet of any depth, written out; strides: those of each block's branch."""
    x = F.conv2d(x, state["stem.conv.weight"], padding=1)
    blocks = sorted({tuple(map(int, k.split(".")[1:3])) for k in state if k.startswith("stages.")})
    for stage, block in blocks:
        name = f"stages.{stage}.{block}"
        down = 2 if block == 0 and stage > 0 else 1
        f = x
        for i, strided in enumerate(strides, start=1):
            f = _pre(f, state, f"{name}.branch", i, down if strided else 1)
        if f"{name}.shortcut.conv1.weight" in state:
            x = _pre(x, state, f"{name}.shortcut", 1, down)
        lam = state.get(f"{name}.merge.coefficient.lambda_", torch.zeros(())).clamp(min=0)
        x = (1 - lam) * x + f
    x = F.relu(_bn(x, state, "norm.norm")).mean((2, 3))
    return x @ state["fc.weight"].T + state["fc.bias"]


@pytest.mark.parametrize(
    ("model", "strides"),
    [
        (partial(PreActResNet, 14, merge=damped(Damp, (0.2, 0.4))), (True, False)),
        (partial(PreActResNet, 20, merge=damped(Damp, (0.2, 0.4)), bottleneck=True), (False, True, False)),
    ],
)
def test_preactivation_forward_written_out(model, strides):
    model = randomise_statistics(model(dtype=torch.float64)).eval()
    x = torch.randn(2, 3, 16, 12, dtype=torch.float64)
    expected = _reference_preact(model.state_dict(), x, strides)
    torch.testing.assert_close(model(x), expected, rtol=1e-10, atol=1e-10)


def test_resnext_forward_written_out():
    model = CifarResNeXt(11, cardinality=2, base_width=8, merge=damped(Damp, (0.2, 0.4)), dtype=torch.float64)
    model = randomise_statistics(model).eval()
    state = model.state_dict()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    expected = F.relu(_bn(F.conv2d(x, state["stem.conv.weight"], padding=1), state, "stem.norm"))
    for stage, stride in enumerate((1, 2, 2)):
        name = f"stages.{stage}.0"
        f = F.conv2d(expected, state[f"{name}.branch.conv1.weight"])
        f = F.relu(_bn(f, state, f"{name}.branch.norm1"))
        f = F.conv2d(f, state[f"{name}.branch.conv2.weight"], stride=stride, padding=1, groups=2)
        f = F.relu(_bn(f, state, f"{name}.branch.norm2"))
        f = _bn(F.conv2d(f, state[f"{name}.branch.conv3.weight"]), state, f"{name}.branch.norm3")
        shortcut = F.conv2d(expected, state[f"{name}.shortcut.conv.weight"], stride=stride)
        expected = F.relu(_bn(shortcut, state, f"{name}.shortcut.norm") + f)
    expected = expected.mean((2, 3)) @ state["fc.weight"].T + state["fc.bias"]
    torch.testing.assert_close(model(x), expected, rtol=1e-10, atol=1e-10)


# --- limits: λ = 0 and λ = 1, exactly ------------------------------------------------------------------


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize(
    ("name", "baseline", "kwargs"),
    [
        ("in_resnet14", "preact_resnet14", {}),
        ("in_resnet14", "preact_resnet14", {"stored": "keep"}),
        ("in_resnet14_gating", "preact_resnet14", {}),
        ("lambda_in_resnet14", "preact_resnet14", {}),
        ("in_resnext20_4x16d", "resnext20_4x16d", {}),
        ("lambda_in_resnext20_4x16d", "resnext20_4x16d", {}),
    ],
)
def test_lambda_zero_is_the_baseline(name, baseline, kwargs, train, digits):
    reference = randomise_statistics(small(baseline))
    model = copy_weights(reference, small(name, **kwargs))
    set_lambda(model, 0.0)
    assert torch.equal(model.train(train)(digits), reference.train(train)(digits))


@pytest.mark.parametrize("kwargs", [{}, {"stored": "keep"}])
def test_lambda_one_is_the_plain_net(kwargs, digits):
    plain = randomise_statistics(small("plain_net14"))
    model = copy_weights(plain, small("in_resnet14", **kwargs))
    assert not torch.equal(model(digits), plain(digits))
    set_lambda(model, 1.0)
    assert torch.equal(model(digits), plain(digits))


def test_lambda_one_scaled_is_the_plain_net_with_branches_doubled(digits):
    plain = randomise_statistics(small("plain_net14"))
    model = copy_weights(plain, small("lambda_in_resnet14"))
    set_lambda(model, 1.0)
    with torch.no_grad():
        for name in model.interpolation_coefficients():
            plain.get_submodule(name).branch.conv2.weight.mul_(2)
    assert torch.equal(model(digits), plain(digits))


def test_plain_net_keeps_the_shortcuts_of_blocks_without_lambda():
    merges = [type(block.merge) for _, block in timm.create_model("plain_net14").named_blocks()]
    assert merges == [Add, Branch] * 3


# --- where λ starts, and how it is stored and read -------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "kwargs", "low", "high"),
    [
        ("in_resnet110", {}, 0.20, 0.25),
        ("in_resnet164", {}, 0.10, 0.20),
        ("lambda_in_resnet164", {}, 0.10, 0.20),
        ("in_resnet110_sig", {}, 0.20, 0.25),
        ("in_resnet110", {"lambda_init": (0.3, 0.4)}, 0.3, 0.4),
        ("in_resnet110", {"lambda_init": [0.3, 0.4], "stored": "keep"}, 0.3, 0.4),
        ("lambda_in_resnet110", {"lambda_init": (0, 0.1), "stored": "keep"}, 0, 0.1),
        ("in_resnet110_sig", {"lambda_init": (0.6, 0.9)}, 0.6, 0.9),
    ],
)
def test_lambda_init(name, kwargs, low, high):
    values = torch.stack([*timm.create_model(name, **kwargs).interpolation_coefficients().values()])
    assert values.min() >= low - 1e-6
    assert values.max() <= high + 1e-6
    # 51 uniform draws fill the interval: each of these fails for fewer than 1 in 10^6 seeds
    assert values.min() < low + 0.25 * (high - low)
    assert values.max() > high - 0.25 * (high - low)
    assert abs(values.mean() - (low + high) / 2) < 0.2 * (high - low)


@pytest.mark.parametrize("name", ["in_resnet14_gating", "in_resnet14_gating_sig"])
def test_lambda_init_gated(name, digits):
    model = small(name, lambda_init=(0.3, 0.4))
    for block, lam in model.interpolation_coefficients(digits).items():
        assert lam.shape[:2] == (4, {"0": 16, "1": 32, "2": 64}[block[7]])
        assert 0.3 - 1e-6 <= lam.min() < lam.max() <= 0.4 + 1e-6
        # W starts at zero: one value a channel, the same for all images and positions
        assert torch.equal(lam, lam[:1, :, :1, :1].expand_as(lam))
        assert not model.get_submodule(block).merge.coefficient.weight.any()


@pytest.mark.parametrize(
    ("name", "interval"),
    [
        ("in_resnet110", (0.20, 0.25)),
        ("in_resnet164", (0.10, 0.20)),
        ("lambda_in_resnext29_8x64d", (0.20, 0.25)),
        ("preact_resnet20", None),
        ("plain_net20", None),
        ("resnet18", None),
    ],
)
def test_default_lambda_init(name, interval):
    assert default_lambda_init(name) == interval


def test_lambda_init_may_be_a_point():
    values = timm.create_model("in_resnet14", lambda_init=(0.5, 0.5)).interpolation_coefficients().values()
    assert {value.item() for value in values} == {0.5}


@pytest.mark.parametrize(
    "kwargs",
    [
        {"lambda_init": (0.3, 0.2)},
        {"lambda_init": (-0.1, 0.2)},
        {"lambda_init": (0.1, float("inf"))},
        {"lambda_init": (float("nan"), 0.2)},
        {"lambda_init": 0.2},
        {"lambda_init": (0.1, 0.2, 0.3)},
        {"lambda_init": ("a", "b")},
        {"stored": "kept"},
    ],
)
def test_refused_lambda_arguments(kwargs):
    with pytest.raises(ValueError, match=next(iter(kwargs))):
        timm.create_model("in_resnet14", **kwargs)


@pytest.mark.parametrize("lambda_init", [(0.0, 0.5), (0.5, 1.0)])
@pytest.mark.parametrize("name", ["in_resnet14_sig", "in_resnet14_gating_sig"])
def test_sigmoid_needs_an_open_interval(name, lambda_init):
    with pytest.raises(ValueError, match="sigmoid"):
        timm.create_model(name, lambda_init=lambda_init)


@pytest.mark.parametrize("name", ["in_resnet14_sig", "in_resnet14_gating", "in_resnet14_gating_sig"])
def test_keep_is_for_ungated_relu(name):
    with pytest.raises(ValueError, match="keep"):
        timm.create_model(name, stored="keep")


def test_unknown_act():
    with pytest.raises(ValueError, match="relu, sigmoid"):
        Lambda(16, act="tanh")


def test_keep_stores_one_minus_lambda():
    model = small("in_resnet14", stored="keep")
    keys = [key for key in model.state_dict() if "coefficient" in key]
    assert keys == [f"stages.{i}.1.merge.coefficient.keep" for i in range(3)]
    stored = [model.state_dict()[key] for key in keys]
    read = model.interpolation_coefficients().values()
    assert all(0.75 <= k <= 0.80 for k in stored)
    torch.testing.assert_close([1 - k for k in stored], list(read))


@pytest.mark.parametrize("strict", [True, False])
def test_no_checkpoint_loads_as_another_kind(strict):
    state = small("in_resnet14", stored="keep").state_dict()
    for other in ("in_resnet14", "in_resnet14_gating"):
        with pytest.raises(RuntimeError, match="stores its λ in another form"):
            small(other).load_state_dict(state, strict=strict)


@pytest.mark.parametrize("kwargs", [{}, {"stored": "keep"}])
def test_weight_decay_acts_on_what_is_stored(kwargs, digits):
    model = small("in_resnet14", lambda_init=(0.5, 0.5), **kwargs)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=1.0)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    values = {round(v.item(), 6) for v in model.interpolation_coefficients().values()}
    assert values == {0.55 if kwargs else 0.45}


def test_coefficients_are_what_the_block_uses():
    model = small("in_resnet14")
    nn.init.constant_(model.stages[1][1].merge.coefficient.lambda_, -0.5)
    read = model.interpolation_coefficients()["stages.1.1"]
    assert (read.item(), read.dtype, read.shape, read.requires_grad) == (0.0, torch.float32, (), False)
    assert model.to(torch.bfloat16).interpolation_coefficients()["stages.1.1"].dtype == torch.float32


def test_coefficients_are_a_copy():
    model = small("in_resnet14")
    before = model.stages[0][1].merge.coefficient.lambda_.item()
    model.interpolation_coefficients()["stages.0.1"].zero_()
    assert model.stages[0][1].merge.coefficient.lambda_.item() == before


@pytest.mark.parametrize("name", GATED)
def test_gated_coefficients_need_images(name):
    with pytest.raises(ValueError, match="batch of images"):
        small(name).interpolation_coefficients()


def test_gated_coefficients_leave_the_model_alone(digits):
    model = small("in_resnet14_gating").train()
    model.stages[0][0].eval()
    modes = [module.training for module in model.modules()]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    nn.init.normal_(model.stages[0][1].merge.coefficient.weight)
    before |= {"stages.0.1.merge.coefficient.weight": model.stages[0][1].merge.coefficient.weight.clone()}
    read = model.interpolation_coefficients(digits)["stages.0.1"]
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
    # what the block sees in eval mode, convolved by hand
    model.eval()
    x = model.stages[0][0](model.stem(digits))
    gate = model.stages[0][1].merge.coefficient
    expected = torch.einsum("oi,nihw->nohw", gate.weight[:, :, 0, 0], x) + gate.bias[:, None, None]
    torch.testing.assert_close(read, expected.clamp(min=0).detach())


def test_one_seed_gives_all_variants_the_same_convolutions():
    def weights(name):
        torch.manual_seed(3)
        return small(name).state_dict()

    baseline = weights("preact_resnet14")
    for name in SMALL[1:9]:
        variant = weights(name)
        assert all(torch.equal(value, variant[key]) for key, value in baseline.items())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "fan_out"), [("preact_resnet20", 16 * 9), ("resnext20_4x16d", 64 * 9)])
def test_initialisation(name, fan_out):
    draws = timm.create_model(
        name, in_chans=120
    ).stem.conv.weight  # fan_out does not go by the channels that come in
    assert draws.std().item() == pytest.approx((2 / fan_out) ** 0.5, rel=0.05)
    norm = timm.create_model(name).get_submodule("stages.1.0.branch.norm1")
    assert norm.weight.eq(1).all()
    assert norm.bias.eq(0).all()


def test_a_new_variant_is_one_small_class(digits):
    class Halved(Damp):
        def forward(self, x, f):
            return (1 - self.coefficient(x)) * x + 0.5 * f

    model = PreActResNet(14, merge=damped(Halved, (0.1, 0.1)), in_chans=1)
    assert model(digits).shape == (4, 10)
    assert len(model.interpolation_coefficients()) == 3


# --- timm's interface -----------------------------------------------------------------------------------


def test_timm_lists_all_names():
    expected = [
        f"{family}_resnet{d}" for family in ("preact", "in", "lambda_in") for d in architectures.DEPTHS
    ]
    expected += [f"plain_net{d}" for d in (14, 20, 110)]
    expected += [f"{family}_in_resnet{d}" for family in ("exp", "exp_lambda") for d in (14, 20, 110)]
    expected += [f"in_resnet{d}_{v}" for d in (14, 20, 110) for v in ("sig", "gating", "gating_sig")]
    assert set(timm.list_models(module="in_resnet")) == set(expected)
    layouts = ("29_8x64d", "20_4x16d")
    expected = [f"{prefix}resnext{layout}" for prefix in ("", "in_", "lambda_in_") for layout in layouts]
    assert set(timm.list_models(module="in_resnext")) == set(expected)
    assert architectures.DEPTHS == (14, 20, 32, 44, 56, 110, 164)


def test_entry_points_are_ordinary_functions():
    assert in_resnet.in_resnet14.__name__ == "in_resnet14"
    assert pickle.loads(pickle.dumps(in_resnext.in_resnext20_4x16d)) is in_resnext.in_resnext20_4x16d
    assert isinstance(in_resnet.in_resnet14(num_classes=7), PreActResNet)


def test_default_cfg():
    cfg = timm.create_model("in_resnet14").pretrained_cfg
    assert cfg["input_size"] == (3, 32, 32)
    assert cfg["num_classes"] == 10
    assert cfg["mean"] == (0.4914, 0.4822, 0.4465)
    assert cfg["std"] == (0.2470, 0.2435, 0.2616)
    assert not cfg["fixed_input_size"]
    with pytest.raises(RuntimeError, match="No pretrained weights"):
        timm.create_model("in_resnet14", pretrained=True)


@pytest.fixture(scope="module")
def tagged(tmp_path_factory):
    """What the checkpoint of a new timm name, for 8x8 grey images, holds; registered as the zoo's are."""
    trained = randomise_statistics(small("in_resnet14", stored="keep"))
    file = tmp_path_factory.mktemp("zoo") / "model.safetensors"
    save_file(trained.state_dict(), file)
    cfg = {"file": str(file), "input_size": (1, 8, 8), "pool_size": (2, 2), "mean": (0.3,), "std": (0.4,)}
    cfg["model_args"] = {"stored": "keep"}
    architecture = Architecture(PreActResNet, {"depth": 14}, Damp, {"lambda_init": (0, 1)})
    sys.modules[__name__].default_cfgs = timm_cfgs(
        {"tagged_net14": architecture}, {"tagged_net14.digits": cfg, "another_net.digits": {}}
    )
    register("tagged_net14", __name__, architecture)
    return trained


def test_pretrained_tag(tagged, digits):
    model = timm.create_model("tagged_net14.digits", pretrained=True).eval()
    assert model.in_chans == 1
    assert torch.equal(model(digits), tagged(digits))
    assert timm.is_model_pretrained("tagged_net14.digits")
    # another classifier, as timm does it; it is loaded with strict=False then
    model = timm.create_model("tagged_net14.digits", pretrained=True, num_classes=4).eval()
    assert model(digits).shape == (4, 4)
    assert torch.equal(model.forward_features(digits), tagged.forward_features(digits))
    with pytest.raises(RuntimeError, match="stores its λ in another form"):
        timm.create_model("tagged_net14.digits", pretrained=True, num_classes=4, stored="lambda")


def test_untagged_name_stays_the_default(tagged):
    assert timm.create_model("tagged_net14").in_chans == 3
    assert not timm.is_model_pretrained("tagged_net14")


@pytest.mark.parametrize("name", SMALL)
def test_digits_shapes(name, digits):
    model = small(name)
    assert model(digits).shape == (4, 10)
    assert model.forward_features(digits).shape == (4, model.num_features, 2, 2)
    assert model.forward_head(model.forward_features(digits), pre_logits=True).shape == (
        4,
        model.num_features,
    )
    assert small(name, num_classes=0)(digits).shape == (4, model.num_features)


@pytest.mark.parametrize(("pool", "times"), [("max", 1), ("avgmax", 1), ("catavgmax", 2)])
def test_global_pool(pool, times, digits):
    model = small("in_resnet14", global_pool=pool)
    assert model.head_hidden_size == times * 64
    assert model(digits).shape == (4, 10)


def test_reset_classifier(digits):
    model = small("in_resnet14", global_pool="max", dtype=torch.float64)
    pooled = model.forward_head(model.forward_features(digits.double()), pre_logits=True)
    model.reset_classifier(5)
    assert model.get_classifier().weight.dtype == torch.float64
    assert torch.equal(model.forward_head(model.forward_features(digits.double()), pre_logits=True), pooled)
    model.reset_classifier(0, "")
    assert model(digits.double()).shape == (4, 64, 2, 2)


def test_drop_rate(digits):
    model = small("in_resnet14", drop_rate=0.5)
    assert torch.equal(model(digits), model(digits))
    model.head_drop.train()
    assert not torch.equal(model(digits), model(digits))


@pytest.mark.parametrize(
    ("name", "widths"), [("in_resnet14", [16, 16, 32, 64]), ("in_resnext20_4x16d", [64, 256, 512, 1024])]
)
def test_features_only(name, widths, digits):
    model = small(name, features_only=True)
    assert model.feature_info.channels() == widths
    assert model.feature_info.reduction() == [1, 1, 2, 4]
    assert [tuple(f.shape[1:]) for f in model(digits)] == [
        (width, side, side) for width, side in zip(widths, (8, 8, 4, 2), strict=True)
    ]
    assert len(small(name, features_only=True, out_indices=(1, -1))(digits)) == 2


def test_forward_intermediates(digits):
    model = randomise_statistics(small("in_resnet14"))
    features, levels = model.forward_intermediates(digits)
    assert torch.equal(features, model.forward_features(digits))
    assert torch.equal(levels[0], model.stem(digits))
    assert torch.equal(levels[2], model.stages[:2](model.stem(digits)))
    assert torch.equal(model.norm(levels[3]), features)
    normed = model.forward_intermediates(digits, indices=[1, -1], norm=True, intermediates_only=True)
    assert torch.equal(normed[0], levels[1])
    assert torch.equal(normed[1], features)
    last, (only,) = model.forward_intermediates(digits, indices=[1], stop_early=True)
    assert torch.equal(last, only)
    assert len(model.forward_intermediates(digits, indices=2, intermediates_only=True)) == 2


@pytest.mark.parametrize("indices", [0, 5, [4], [-5]])
def test_forward_intermediates_out_of_range(indices, digits):
    with pytest.raises(ValueError, match="feature levels"):
        small("in_resnet14").forward_intermediates(digits, indices=indices)


def test_forward_intermediates_output_fmt(digits):
    with pytest.raises(ValueError, match="NCHW"):
        small("in_resnet14").forward_intermediates(digits, output_fmt="NLC")


def test_prune_intermediate_layers(digits):
    model = small("in_resnet14")
    expected = model.forward_intermediates(digits, indices=[1], intermediates_only=True)[0]
    assert model.prune_intermediate_layers([1]) == [1]
    assert len(model.stages) == 1
    assert torch.equal(model(digits), expected)
    assert list(model.interpolation_coefficients()) == ["stages.0.1"]


@pytest.mark.parametrize("name", SMALL)
def test_gradient_checkpointing(name, digits):
    """Same gradients, also those that an attack takes with frozen parameters by torch.autograd.grad."""
    model = small(name).requires_grad_(False)
    digits.requires_grad_()
    plain = torch.autograd.grad(model(digits).sum(), digits)
    model.set_grad_checkpointing()
    torch.testing.assert_close(torch.autograd.grad(model(digits).sum(), digits), plain)


@pytest.mark.parametrize("name", SMALL)
def test_every_parameter_is_used(name, digits):
    model = small(name).train()
    model(digits).sum().backward()
    assert not [key for key, parameter in model.named_parameters() if parameter.grad is None]


@pytest.mark.parametrize("name", SMALL)
def test_unknown_argument(name):
    with pytest.raises(TypeError, match="not_an_argument"):
        timm.create_model(name, not_an_argument=1)


@pytest.mark.parametrize("name", ["preact_resnet14", "plain_net14", "resnext20_4x16d"])
@pytest.mark.parametrize("argument", [{"lambda_init": (0.1, 0.2)}, {"stored": "lambda"}])
def test_networks_without_lambda_refuse_its_arguments(name, argument):
    with pytest.raises(TypeError, match=next(iter(argument))):
        timm.create_model(name, **argument)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: PreActResNet(15), "6n \\+ 2"),
        (lambda: PreActResNet(2), "6n \\+ 2"),
        (lambda: PreActResNet(14, bottleneck=True), "9n \\+ 2"),
        (lambda: CifarResNeXt(14, 4, 16), "9n \\+ 2"),
        (lambda: CifarResNeXt(20, 0, 16), "cardinality"),
        (lambda: small("in_resnet14", in_chans=0), "in_chans"),
        (lambda: small("in_resnet14", num_classes=-1), "num_classes"),
        (lambda: small("in_resnet14", global_pool="mean"), "global_pool"),
        (lambda: small("in_resnet14", global_pool=""), "global_pool"),
        (lambda: small("in_resnet14", drop_rate=1.5), "probability"),
    ],
)
def test_refused_values(build, message):
    with pytest.raises(ValueError, match=message):
        build()


# --- what torch does to a model -------------------------------------------------------------------------


WHOLE = ["preact_resnet14", "in_resnet14", "lambda_in_resnext20_4x16d"]


def part(name, digits):
    """What is compiled, and its input: of the other networks one stage, which holds what they differ in."""
    model = randomise_statistics(small(name))
    return (model, digits) if name in WHOLE else (model.stages[1], model.stages[0](model.stem(digits)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*torch.jit:FutureWarning")
@pytest.mark.parametrize("name", SMALL)
def test_torchscript(name, digits):
    model, x = part(name, digits)
    torch.testing.assert_close(torch.jit.script(model)(x), model(x))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_fx(name, digits):
    model = randomise_statistics(small(name))
    extracted = create_feature_extractor(model, {"stages.2": "stage", "fc": "logits"})(digits)
    assert torch.equal(extracted["logits"], model(digits))
    assert torch.equal(model.norm(extracted["stage"]), model.forward_features(digits))


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_compile_without_graph_breaks(name, digits):
    torch.compiler.reset()  # it counts recompilations over all networks
    model, x = part(name, digits)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))


@pytest.mark.parametrize("name", SMALL)
def test_channels_last(name, digits):
    model = randomise_statistics(small(name))
    expected = model(digits)
    model = model.to(memory_format=torch.channels_last)
    actual = model(digits.to(memory_format=torch.channels_last))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SMALL)
def test_bfloat16(name, digits):
    """Both ways of half precision: nothing is promoted to float32, and the logits stay close."""
    model = randomise_statistics(small(name))
    expected = model(digits)
    kinds = []
    for _, block in model.named_blocks():
        block.merge.register_forward_hook(lambda _module, _inputs, output: kinds.append(output.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        autocast = model(digits)
    half = model.to(torch.bfloat16)(digits.bfloat16())
    assert set(kinds) == {torch.bfloat16}
    scale = expected.abs().max()
    for actual in (autocast, half):
        assert actual.dtype == torch.bfloat16
        assert (actual.float() - expected).abs().max() < 0.05 * scale


@pytest.mark.parametrize("name", WITH_LAMBDA)
def test_lambda_is_float32(name):
    coefficients = [m for m in small(name).modules() if isinstance(m, (Lambda, Gate))]
    assert len(coefficients) == 3
    assert {p.dtype for m in coefficients for p in m.parameters()} == {torch.float32}
    if name not in GATED:
        assert {p.ndim for m in coefficients for p in m.parameters()} == {0}


@pytest.mark.parametrize("name", ["in_resnet14", "in_resnet14_gating_sig"])
def test_whole_model_pickles(name, digits):
    model = small(name)
    assert torch.equal(pickle.loads(pickle.dumps(model))(digits), model(digits))


def test_device_and_dtype_arguments():
    model = timm.create_model("in_resnet14_gating", device="meta", dtype=torch.float64)
    tensors = [*model.parameters(), *model.buffers()]
    assert {tensor.device.type for tensor in tensors} == {"meta"}
    assert {tensor.dtype for tensor in tensors if tensor.is_floating_point()} == {torch.float64}


# --- the package ------------------------------------------------------------------------------------------


def test_version_is_that_of_the_project():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert robust_interp.__version__ == project["version"]


def test_unknown_attribute():
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = robust_interp.no_such_name
    assert "evaluate" in dir(robust_interp)

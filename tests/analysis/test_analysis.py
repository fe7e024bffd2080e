"""Coefficients, landscapes and stability against closed forms, dense matrices and numbers by hand."""

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
import torchattacks
from matplotlib.path import Path
from torch import nn

from robust_interp import data, zoo
from robust_interp.analysis import coefficients, inputs, landscape, stability
from robust_interp.classifiers.classifier import Classifier
from robust_interp.core.errors import UserError
from robust_interp.corruptions import corrupt
from robust_interp.models import Add, Branch, Damp, Exponential, ScaledDamp, ScaledExponential, damped
from robust_interp.models.network import Block


@pytest.fixture
def save(tmp_path):
    """Writes a checkpoint of a digits network into a zoo of its own, and returns that."""

    def write(architecture, seed=0, change=lambda model: None, curve=None, recipe="none", **model_args):
        torch.manual_seed(seed)
        model = zoo.create(architecture, num_classes=10, in_chans=1, **model_args)
        with torch.no_grad():
            change(model)
        cfg = {"num_classes": 10, "input_size": [1, 8, 8], "mean": [0.5], "std": [0.25]}
        record = {"lambda_init": None, "parameters": 1, "clean_accuracy": 10.0, "clean_n": 450}
        record |= {} if curve is None else {"curve": curve}
        folder = tmp_path / "zoo" / f"{architecture}.digits_{recipe}_seed{seed}"
        return zoo.save(model, folder, cfg, model_args, record, half=False)

    return write


def set_lambda(*values):
    def change(model):
        modules = [
            block.merge.coefficient
            for _, block in model.named_blocks()
            if hasattr(block.merge, "coefficient")
        ]
        for module, value in zip(modules, values, strict=True):
            module.lambda_.fill_(value)

    return change


# --- coefficients -----------------------------------------------------------------------------------------


def test_bands_are_open_below_and_closed_above():
    found = coefficients.describe(np.array([0, 0.01, 0.011, 1, 1.5, 2, 2.5, 0.005]))
    shares = {name: found[name] for name in coefficients.BANDS}
    assert shares == {"above_0.01": 5 / 8, "in_0.01_1": 2 / 8, "in_1_2": 2 / 8, "above_2": 1 / 8}
    assert found["mean"] == pytest.approx(7.026 / 8)


@pytest.mark.slow
def test_coefficients_of_checkpoints(save):
    found = [
        save("in_resnet14", 0, set_lambda(-0.5, 0.5, 1.5)),
        save("in_resnet14", 3, set_lambda(0.25, 0, 2.25)),
    ]
    table = coefficients.over_depth([*found, save("preact_resnet14")])
    assert set(table["model"]) == {"in_resnet14"}  # the other has none
    assert table["mean"].tolist() == [0, 0.5, 1.5, 0.25, 0, 2.25]
    assert table["q05"].tolist() == table["q95"].tolist() == table["mean"].tolist()
    assert table["depth"].tolist() == [2, 4, 6] * 2
    assert table["images"].eq(0).all()
    shares = coefficients.shares(table)
    first, second = shares.to_dict("records")
    assert (first["train_seed"], first["lambdas"], first["blocks"]) == (0, 3, 6)
    assert [first[name] for name in coefficients.BANDS] == pytest.approx([200 / 3, 100 / 3, 100 / 3, 0])
    assert [second[name] for name in coefficients.BANDS] == pytest.approx([200 / 3, 100 / 3, 0, 100 / 3])
    # of six blocks two are above for sure, and three more have no λ
    assert (first["of_blocks_low"], first["of_blocks_high"]) == pytest.approx((100 * 2 / 6, 100 * 5 / 6))


def test_the_papers_share_counts_three_parameters_that_no_block_uses():
    """Its 79.6 % are 43 of 54: 40 of our 51 and three that kept their start."""
    lines = [
        {"model": "in_resnet110", "train_seed": 0, "blocks": 54} | coefficients.describe(np.array(value))
        for value in [0.5] * 40 + [0.0] * 11
    ]
    (line,) = coefficients.shares(pd.DataFrame(lines)).to_dict("records")
    assert round(line["of_blocks_high"], 1) == 79.6
    assert round(line["above_0.01"], 1) == 78.4


def test_gated_coefficients_are_a_distribution(save):
    """Without weights the gate is relu(b): the quantiles of a block are those of its channels' b."""
    biases = {}

    def change(model):
        for name, block in model.named_blocks():
            if hasattr(block.merge, "coefficient"):
                biases[name] = torch.linspace(-0.5, 2.5, block.merge.coefficient.bias.numel())
                block.merge.coefficient.bias.copy_(biases[name])

    checkpoint = save("in_resnet14_gating", change=change)
    with pytest.raises(UserError, match="batch of images"):
        coefficients.over_depth([checkpoint])
    table = coefficients.over_depth([checkpoint], torch.rand(3, 1, 8, 8)).set_index("block")
    assert table["images"].eq(3).all()
    for block, bias in biases.items():
        values = bias.clamp(min=0).numpy().repeat(4)  # an even number of times, as positions and images do
        assert table.loc[block, "mean"] == pytest.approx(values.mean(), rel=1e-6)
        assert table.loc[block, "above_2"] == (values > 2).mean()
        assert table.loc[block, "q50"] == pytest.approx(np.median(values), abs=1e-6)
    assert coefficients.is_gated("in_resnet14_gating")
    assert not coefficients.is_gated("in_resnet14")
    assert not coefficients.is_gated("resnet18")


def test_gated_coefficients_see_normalised_images(save):
    def change(model):
        for _, block in model.named_blocks():
            block.branch.conv2.weight.zero_()  # so that the state is what the stem made of the image
        model.stem.conv.weight.zero_()
        model.stem.conv.weight[0, 0, 1, 1] = 1  # channel 0 is the normalised pixel
        gate = model.stages[0][1].merge.coefficient
        gate.bias.zero_()
        gate.weight.zero_()
        gate.weight[:, 0] = 1

    table = coefficients.over_depth(
        [save("in_resnet14_gating", change=change)], torch.full((2, 1, 8, 8), 0.75)
    )
    assert table["q05"].iloc[0] == table["q95"].iloc[0] == 1.0  # (0.75 - 0.5) / 0.25


def test_coefficients_over_training(save):
    curve = [
        {"epoch": 1, "lambda": {"stages.0.1": 0.2, "stages.1.1": 0.3, "stages.2.1": 0.0}},
        {"epoch": 2, "lambda": {"stages.0.1": 0.1, "stages.1.1": 0.35, "stages.2.1": 0.0}},
    ]
    table = coefficients.over_training([save("in_resnet14", 4, curve=curve), save("preact_resnet14")])
    assert table["coefficient"].tolist() == [0.2, 0.3, 0.0, 0.1, 0.35, 0.0]
    assert table["epoch"].tolist() == [1] * 3 + [2] * 3
    assert table["depth"].tolist() == [2, 4, 6] * 2
    assert coefficients.over_training([save("plain_net14")]).empty


def test_networks_without_lambda_have_nothing_to_show(save):
    with pytest.raises(UserError, match="preact_resnet14: no block has a λ"):
        coefficients.over_depth([save("preact_resnet14")])


def test_labels_name_the_recipe_only_where_it_tells(save):
    one, two = save("in_resnet14", 0), save("in_resnet14", 1, recipe="long")
    assert inputs.labels([one]) == ["in_resnet14"]
    assert inputs.labels([one, two]) == ["in_resnet14 @none", "in_resnet14 @long"]


def test_one_seed_each_unless_named_in_full(save):
    for seed in (0, 1):
        checkpoint = save("in_resnet14", seed)
    save("preact_resnet14", 3)
    folder = str(checkpoint.folder.parent)
    named = inputs.singles(["preact_resnet14", "in_resnet14"], folder, "digits")
    assert {label: c.seed for label, c in named.items()} == {"preact_resnet14": 3, "in_resnet14": 0}
    both = [f"in_resnet14.digits_none_seed{seed}" for seed in (1, 0)]
    named = inputs.singles(both, folder, "digits")
    assert {label: c.seed for label, c in named.items()} == {"in_resnet14 seed 1": 1, "in_resnet14 seed 0": 0}


def test_choosing_checkpoints(save):
    save("preact_resnet14"), save("in_resnet14", 1)
    folder = str(save("in_resnet14", 0).folder.parent)
    named = [c.name for c in inputs.checkpoints(["preact_resnet14", "in_resnet14"], folder, "digits")]
    none = [
        f"{name}.digits_none_seed{seed}"
        for name, seed in (("preact_resnet14", 0), ("in_resnet14", 0), ("in_resnet14", 1))
    ]
    assert named == none  # in the order asked for
    assert inputs.checkpoints([], folder, "digits") == []
    with pytest.raises(UserError, match="train seed 7"):
        inputs.checkpoints(["in_resnet14"], folder, "digits", seeds=[7])
    with pytest.raises(UserError, match="preact_resnet14 has no checkpoint with train seed 1"):
        inputs.checkpoints(["in_resnet14", "preact_resnet14"], folder, "digits", seeds=[1])
    with pytest.raises(UserError, match="did you mean"):
        inputs.checkpoints(["in_resnet15"], folder, "digits")


def test_chosen_images_are_those_of_the_benchmark():
    digits = data.load("digits")
    pixels, labels = inputs.images(digits, [7, 2], ("shot_noise", 5), seed=3)
    for i, sample in enumerate((7, 2)):
        expected = corrupt(digits.images[sample : sample + 1], "shot_noise", 5, [sample], 3)[0]
        assert np.array_equal((pixels[i].numpy() * 255).round().astype(np.uint8), expected)
    assert labels.tolist() == digits.labels[[7, 2]].tolist()
    clean, _ = inputs.images(digits, [7])
    assert np.array_equal(clean[0].numpy(), digits.images[7])
    with pytest.raises(UserError, match="0 to 449, not 450"):
        inputs.images(digits, [450])


# --- landscape --------------------------------------------------------------------------------------------


class Linear(nn.Module):
    """logits = W x + b in float64."""

    def __init__(self, weight, bias):
        super().__init__()
        self.weight, self.bias = torch.as_tensor(weight), torch.as_tensor(bias)

    def forward(self, x):
        return x.flatten(1) @ self.weight.T + self.bias


def linear(classes, seed=0):
    rng = np.random.default_rng(seed)
    weight, bias, image = rng.normal(size=(classes, 12)), rng.normal(size=classes), rng.random(12)
    return Linear(weight, bias), torch.from_numpy(image).view(3, 2, 2), weight, bias, image


RADII = np.linspace(-8, 8, 17)


def test_loss_along_the_direction_of_a_linear_model():
    """Closed form: log Σ exp z_k - z_y with z = W (x + a d) + b, d the sign of Wᵀ (softmax(z) - 1_y)."""
    model, image, weight, bias, x = linear(4)
    moves = landscape.directions({"net": model}, image, 2, sample=0, shared=False)
    table = landscape.line({"net": model}, image, 2, moves, RADII)
    z = weight @ x + bias
    softmax = np.exp(z) / np.exp(z).sum()
    direction = np.sign(weight.T @ (softmax - np.eye(4)[2]))
    assert np.array_equal(moves["net"][0].flatten().numpy(), direction)
    for radius, loss, predicted in table[["eps_255", "loss", "predicted"]].itertuples(index=False):
        z = weight @ (x + radius / 255 * direction) + bias
        assert loss == pytest.approx(np.log(np.exp(z).sum()) - z[2], rel=1e-12)
        assert predicted == z.argmax()


def test_class_grid_of_two_linear_classes_is_a_straight_line():
    """It changes where the margin m + a w·d + b w·e is 0, w being the difference of the two rows."""
    model, image, weight, bias, x = linear(2)
    bias[0] = bias[1] + (weight[1] - weight[0]) @ x - 0.05  # the boundary is near: class 1 wins by 0.05
    model = Linear(weight, bias)
    radii = np.linspace(-20, 20, 41)
    moves = landscape.directions({"net": model}, image, 1, sample=5, shared=False)
    arrays = landscape.plane({"net": model}, image, 1, moves, radii)
    along, across = (move.flatten().numpy() for move in moves["net"])
    w = weight[1] - weight[0]
    margin = 0.05 + radii[None, :] / 255 * (w @ along) + radii[:, None] / 255 * (w @ across)
    assert np.array_equal(arrays["predicted"][0], margin > 0)
    assert 0 < (margin > 0).mean() < 1
    # along the FGSM direction it lies at m / |w|_1
    row = arrays["predicted"][0][20]
    assert np.abs(radii[row == 0].min() - 255 * 0.05 / np.abs(w).sum()) <= 1
    np.testing.assert_allclose(arrays["loss"][0], np.log1p(np.exp(-margin)), rtol=1e-9)


def test_orthogonal_direction():
    rng = np.random.default_rng(0)
    direction = torch.from_numpy(rng.choice([-1.0, 0.0, 1.0], size=(3, 32, 32)))
    torch.manual_seed(1)
    one = landscape.orthogonal_direction(direction, seed=0, sample=3)
    torch.manual_seed(2)
    assert torch.equal(one, landscape.orthogonal_direction(direction, seed=0, sample=3))
    assert abs((one * direction).sum().item()) < 1e-9
    assert one.norm().item() == pytest.approx(direction.norm().item(), rel=1e-12)
    for seed, sample in ((1, 3), (0, 4)):
        other = landscape.orthogonal_direction(direction, seed, sample)
        assert abs((one * other).sum() / one.norm() ** 2) < 0.1
    with pytest.raises(UserError, match="more than one pixel"):
        landscape.orthogonal_direction(torch.ones(1, 1, 1), 0, 0)


@pytest.mark.parametrize(
    ("along", "across", "corners"),
    [
        ([1, 1, -1, -1], [1, -1, 1, -1], [(1, 0), (0, 1), (-1, 0), (0, -1)]),  # |a| + |b| <= 1
        ([1, -1, 0], [1, 1, 2], [(1, 0), (0.5, 0.5), (-0.5, 0.5), (-1, 0), (-0.5, -0.5), (0.5, -0.5)]),
        ([1, 0], [0, 1], [(1, 1), (-1, 1), (-1, -1), (1, -1)]),  # a box only if no pixel is changed twice
        ([1, 1], [0.5, -1.5], [(1, 0), (0.5, 1), (-1, 0), (-0.5, -1)]),  # |a + b/2| and |a - 3b/2| <= 1
    ],
)
def test_the_ball_in_a_plane_by_hand(along, across, corners):
    found = landscape.unit_ball(*(torch.tensor(move).view(1, 1, -1) for move in (along, across)))
    where = np.abs(found - corners[0]).sum(1).argmin()  # the corner that comes first is free
    np.testing.assert_allclose(np.roll(found, -where, 0), corners, atol=1e-12)


def test_a_plane_has_the_corners_of_each_models_ball():
    """At a corner, the largest change of a pixel is 1; elsewhere on the outline, too, within 1 %."""
    one, image, *_ = linear(4, seed=0)
    models = {"one": one, "two": linear(4, seed=1)[0]}
    moves = landscape.directions(models, image, 1, sample=0, shared=False)
    ball = landscape.plane(models, image, 1, moves, RADII)["ball"]
    for name, corners in zip(models, ball, strict=True):
        along, across = (move.flatten().numpy() for move in moves[name])
        changes = np.abs(corners @ np.stack([along, across]))
        np.testing.assert_allclose(changes.max(1), 1, rtol=1e-9)
        assert ((changes > 1 - 1e-9).sum(1) >= 2).all()  # two strips end there
        turns = np.linspace(0, 2 * np.pi, 999)
        rays = np.stack([np.cos(turns), np.sin(turns)], 1)
        edge = rays / np.abs(rays @ np.stack([along, across])).max(1, keepdims=True)
        inside = Path(corners)
        assert inside.contains_points(0.99 * edge).all()
        assert not inside.contains_points(1.01 * edge).any()


def test_grid_equals_single_calls(digits_classifier, digits_test):
    images, labels = digits_test
    image, label = images[3], int(labels[3])
    radii = np.linspace(-64, 64, 5)
    moves = landscape.directions({"net": digits_classifier}, image, label, sample=3, shared=False)
    arrays = landscape.plane({"net": digits_classifier}, image, label, moves, radii)
    along, across = moves["net"]
    for i, b in enumerate(radii / 255):
        for j, a in enumerate(radii / 255):
            logits = digits_classifier((image + a * along + b * across).float()[None])
            assert arrays["predicted"][0, i, j] == logits.argmax()
            loss = logits.logsumexp(1) - logits[0, label]
            assert arrays["loss"][0, i, j] == pytest.approx(loss.item(), rel=1e-3, abs=1e-5)
    line = landscape.line({"net": digits_classifier}, image, label, moves, radii)
    np.testing.assert_allclose(line["loss"], arrays["loss"][0][2], rtol=1e-4, atol=1e-6)


def test_lines_are_those_of_each_image_and_leave_out_what_has_no_gradient():
    model, image, *_ = linear(4)
    images, labels = torch.stack([image, 1 - image]), [2, 0]
    table = landscape.lines({"net": model}, images, labels, [5, 9], RADII, shared=False)
    assert table["sample"].tolist() == [5] * 17 + [9] * 17
    for sample, one, label in zip([5, 9], images, labels, strict=True):
        moves = landscape.directions({"net": model}, one, label, sample, shared=False)
        expected = landscape.line({"net": model}, one, label, moves, RADII)
        assert table[table["sample"] == sample]["loss"].tolist() == expected["loss"].tolist()

    class OfBright(nn.Module):
        """Nothing depends on an image that is dark."""

        def forward(self, x):
            return model(x * (x.mean() > 0.2))

    images = torch.stack([image, torch.zeros_like(image)])
    table = landscape.lines({"net": OfBright()}, images, labels, [5, 9], RADII, shared=False)
    assert set(table["sample"]) == {5}
    with pytest.raises(UserError, match="no landscape for any of the images"):
        landscape.lines({"net": OfBright()}, images[1:], labels[1:], [9], RADII, shared=False)


class Watching(nn.Module):
    """Notes the precision that it is called in."""

    def __init__(self, model):
        super().__init__()
        self.model, self.seen = model, set()

    def forward(self, x):
        self.seen.add((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))
        return self.model(x)


@pytest.mark.parametrize("what", ["directions", "line", "plane", "lines"])
def test_a_landscape_is_computed_in_float32_whatever_was_set_before(what, monkeypatch):
    model, image, *_ = linear(4)
    watched = {"net": Watching(model)}
    moves = landscape.directions({"net": model}, image, 2, sample=0, shared=False)
    calls = {
        "directions": lambda: landscape.directions(watched, image, 2, sample=0, shared=False),
        "line": lambda: landscape.line(watched, image, 2, moves, RADII),
        "plane": lambda: landscape.plane(watched, image, 2, moves, RADII),
        "lines": lambda: landscape.lines(watched, image[None], [2], [0], RADII, shared=False),
    }
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        calls[what]()
        after = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision(before)
    assert watched["net"].seen == {("highest", False)}
    assert after == ("high", True)


def test_batches_do_not_matter():
    model, image, *_ = linear(4)
    moves = torch.stack([torch.ones_like(image), torch.rand_like(image)])
    weights = torch.rand(10, 2, dtype=torch.float64)
    one, other = (landscape.at_points(model, image, 0, moves, weights, batch_size=n) for n in (10, 3))
    np.testing.assert_allclose(one[0], other[0], rtol=1e-12)
    assert np.array_equal(one[1], other[1])
    assert len(one[0]) == 10


def test_direction_is_that_of_torchattacks(digits_classifier, digits_test):
    image, label = digits_test[0][5].clamp(0.25, 0.75), digits_test[1][5]  # nothing to clip at 16/255
    direction = landscape.fgsm_direction(digits_classifier, image, int(label))
    attacked = torchattacks.FGSM(digits_classifier, eps=16 / 255)(image[None], label[None])[0]
    torch.testing.assert_close(image + 16 / 255 * direction, attacked, rtol=0, atol=1e-6)


def test_shared_directions_are_the_first_models():
    one, image, *_ = linear(4, seed=0)
    two = linear(4, seed=1)[0]
    own = landscape.directions({"one": one, "two": two}, image, 1, sample=0, shared=False)
    shared = landscape.directions({"one": one, "two": two}, image, 1, sample=0, shared=True)
    assert torch.equal(own["two"][0], landscape.fgsm_direction(two, image, 1))
    assert not torch.equal(own["one"][0], own["two"][0])
    assert torch.equal(shared["two"][0], own["one"][0])
    assert torch.equal(shared["two"][1], own["one"][1])


def test_no_gradient_no_direction():
    model = Linear(np.zeros((3, 12)), np.zeros(3))
    with pytest.raises(UserError, match="zero everywhere"):
        landscape.fgsm_direction(model, torch.rand(3, 2, 2, dtype=torch.float64), 0)


# --- stability --------------------------------------------------------------------------------------------


def diagonal(values):
    scale = torch.tensor(values, dtype=torch.float64)
    return lambda x: x * scale


def test_diagonal_scaling():
    function = diagonal([-5.0, 0.3, -0.1, 0.25, 0.0, -2.0])
    x = torch.rand(1, 6, dtype=torch.float64)
    found = stability.rightmost(function, x)
    assert found.real == pytest.approx(0.3, rel=1e-6)
    assert found.residual < 1e-4
    norms, converged = stability.spectral_norm(function, x)
    assert converged.all()
    assert norms == pytest.approx([5.0], rel=1e-3)


def circulant(seed=0, channels=2, size=6):
    """A convolution with circular padding, and its eigenvalues: those of a channels x channels matrix at each
    frequency, Σ_o K[:, :, o] e^(2πi ω·o/size)."""
    torch.manual_seed(seed)
    conv = nn.Conv2d(channels, channels, 3, padding=1, padding_mode="circular", bias=False).double()
    kernel = conv.weight.detach().numpy()
    offsets = np.arange(3) - 1
    frequencies = np.exp(2j * np.pi * np.outer(np.arange(size), offsets) / size)
    symbols = np.einsum("oihw,ah,bw->aboi", kernel, frequencies, frequencies).reshape(-1, channels, channels)
    return (
        conv.requires_grad_(False),
        np.linalg.eigvals(symbols).ravel(),
        np.linalg.norm(symbols, 2, (1, 2)).max(),
    )


def test_circulant_convolution():
    conv, eigenvalues, norm = circulant()
    x = torch.rand(3, 2, 6, 6, dtype=torch.float64)
    found = stability.rightmost(conv, x[:1])
    assert found.real == pytest.approx(eigenvalues.real.max(), rel=1e-4)
    norms, converged = stability.spectral_norm(conv, x)
    assert converged.all()
    assert norms == pytest.approx([norm] * 3, rel=5e-3)


LAM = 0.3
PHI = (1 - math.exp(-LAM)) / LAM


@pytest.mark.parametrize(
    ("merge", "rho", "step"),
    [(Damp, 1, 1), (ScaledDamp, 1 + LAM, 1), (Exponential, 1, PHI), (ScaledExponential, 1 + LAM, PHI)],
)
def test_damping_shifts_the_eigenvalues(merge, rho, step):
    """Each ν becomes ρ(λ) ν - λ, times (1 - e^-λ)/λ in the exact step."""
    conv, eigenvalues, _ = circulant(seed=1)
    block = Block(conv, nn.Identity(), damped(merge, (LAM, LAM))(2, dtype=torch.float64))
    nn.init.constant_(block.merge.coefficient.lambda_, LAM)
    block.requires_grad_(False)
    x = torch.rand(1, 2, 6, 6, dtype=torch.float64)
    expected = step * (rho * eigenvalues.real.max() - LAM)
    assert stability.rightmost(stability.drift(block), x).real == pytest.approx(expected, rel=1e-4)
    norms, _ = stability.spectral_norm(block, x)
    dense = torch.func.jacrev(block)(x).reshape(72, 72)
    assert norms == pytest.approx([np.linalg.norm(dense.numpy(), 2)], rel=5e-3)


@pytest.mark.parametrize(
    ("merge", "rho", "is_closed"),
    [
        (Add, None, True),  # λ = 0
        (Branch, None, True),  # λ = 1
        (damped(Damp, (LAM, LAM)), 1, True),
        (damped(Damp, (LAM, LAM), stored="keep"), 1, True),
        (damped(ScaledDamp, (LAM, LAM)), 1 + LAM, True),
        (damped(Damp, (LAM, LAM), gated=True), 1, False),
        (damped(Exponential, (LAM, LAM)), 1, False),
        (damped(ScaledExponential, (LAM, LAM)), 1 + LAM, False),
    ],
)
def test_the_closed_form_is_said_only_of_blocks_that_have_it(merge, rho, is_closed):
    """The dense Jacobian of merge(x, f(x)) - x against ρ(λ) J - λ."""
    conv, *_ = circulant(seed=1)
    block = Block(conv, nn.Identity(), merge(2, dtype=torch.float64)).requires_grad_(False)
    for name, parameter in block.merge.named_parameters():
        start = {"coefficient.keep": 1 - LAM, "coefficient.weight": 0.1}
        nn.init.constant_(parameter, start.get(name, LAM))
    x = torch.rand(1, 2, 6, 6, dtype=torch.float64)
    lam = LAM if rho else float(merge is Branch)
    branch, whole = (torch.func.jacrev(f)(x).reshape(72, 72) for f in (conv, stability.drift(block)))
    expected = (rho or 1) * branch - lam * torch.eye(72, dtype=torch.float64)
    assert torch.allclose(whole, expected, rtol=0, atol=1e-6) == is_closed
    assert stability.is_first_order(block) == is_closed


@pytest.mark.slow
@pytest.mark.parametrize("name", ["lambda_in_resnet14", "in_resnet14_gating_sig", "plain_net14"])
def test_blocks_of_networks_against_dense_jacobians(name):
    torch.manual_seed(0)
    model = zoo.create(name, in_chans=1).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_var, 0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
        if hasattr(module, "depends_on_input") and module.depends_on_input:
            nn.init.normal_(module.weight, std=0.2)
    images = torch.rand(2, 1, 4, 4)
    table = stability.jacobians(Classifier(model), images, ids=[4, 9])
    assert table["sample"].tolist() == [4, 9] * 3
    assert table["depth"].tolist() == [2, 2, 4, 4, 6, 6]
    x = model.double().requires_grad_(False).stem(images.double())
    for first, block in model.stages:
        x = first(x)
        for i in range(2):
            line, at = table.iloc[0], x[i : i + 1]
            table = table.iloc[1:]
            dense, whole = (
                torch.func.jacrev(f)(at).reshape(at.numel(), -1).numpy() for f in (block.branch, block)
            )
            assert line["undamped"] == pytest.approx(np.linalg.eigvals(dense).real.max(), rel=1e-3)
            rightmost = np.linalg.eigvals(whole).real.max() - 1
            assert line["damped"] == pytest.approx(rightmost, rel=1e-3, abs=1e-4)
            assert line["norm"] == pytest.approx(np.linalg.norm(whole, 2), rel=1e-2)
            lam = math.nan if name == "plain_net14" else block.merge.coefficient(at).mean().item()
            assert line["coefficient"] == pytest.approx(lam, nan_ok=True)
        x = block(x)


def test_what_does_not_converge_is_said():
    rng = np.random.default_rng(0)
    matrix = torch.from_numpy(np.linalg.qr(rng.normal(size=(300, 300)))[0])
    x = torch.rand(1, 300, dtype=torch.float64)
    found = stability.rightmost(lambda x: x @ matrix.T, x, tol=1e-14, restarts=1)
    assert math.isnan(found.real)
    values, converged = stability.spectral_norm(
        diagonal([3.0, 2.9, 1.0]), torch.rand(2, 3).double(), iterations=2
    )
    assert not converged.any()
    assert (values < 3).all()
    line = {"model": "m", "block": "b", "coefficient": 0.5, "undamped": 1.0, "damped": 0.5, "norm": 2.0}
    table = pd.DataFrame(
        [line | {"norm_converged": True}, line | {"damped": math.nan, "norm": 4.0, "norm_converged": False}]
    )
    (summary,) = stability.jacobian_summary(table).to_dict("records")
    assert (summary["n"], summary["not_converged"]) == (2, 2)
    assert (summary["damped"], summary["norm"]) == (0.5, 3.0)


def test_blocks_that_do_nothing_and_numbers_that_are_none():
    x = torch.rand(1, 50, dtype=torch.float64)
    found = stability.rightmost(lambda x: 0 * x, x)
    assert found.real == 0
    values, converged = stability.spectral_norm(lambda x: 0 * x, x)
    assert (values.tolist(), converged.tolist()) == ([0], [True])
    assert math.isnan(stability.rightmost(lambda x: x * math.nan, x).real)
    assert not stability.spectral_norm(lambda x: x * math.nan, x)[1].any()


def test_growth_where_only_the_damping_acts():
    """With f = 0 a block passes (1 - λ) x on: δ shrinks by just that, and so does x."""
    torch.manual_seed(0)
    model = zoo.create("in_resnet14", in_chans=1).eval()
    with torch.no_grad():
        for name, block in model.named_blocks():
            if name != "stages.1.0":
                block.branch.conv2.weight.zero_()
        set_lambda(0.25, 0.75, 1.5)(model)
    classifier = Classifier(model, [0.5], [0.25])
    table = stability.growth(classifier, torch.rand(3, 1, 8, 8), torch.tensor([0, 1, 2]), [0, 1, 2], 1 / 255)
    table = table.set_index(["perturbation", "depth"])
    assert table["blocks"].eq(6).all()
    for kind in ("noise", "fgsm"):
        for depth, factor in ((0, 1), (1, 1), (2, 0.75)):
            assert table.loc[(kind, depth), "growth"].tolist() == pytest.approx([factor] * 3, rel=1e-9)
            assert table.loc[(kind, depth), "relative"].tolist() == pytest.approx([1] * 3, rel=1e-9)
        ratio = table.loc[(kind, 4), "growth"].to_numpy() / table.loc[(kind, 3), "growth"].to_numpy()
        assert ratio == pytest.approx([0.25] * 3, rel=1e-9)
        ratio = table.loc[(kind, 6), "growth"].to_numpy() / table.loc[(kind, 5), "growth"].to_numpy()
        assert ratio == pytest.approx([0.5] * 3, rel=1e-9)  # |1 - 1.5|


def test_growth_written_out(digits_classifier, digits_test):
    """From hooks on the blocks, for both perturbations."""
    images, labels = digits_test[0][:3], digits_test[1][:3]
    table = stability.growth(digits_classifier, images, labels, [0, 1, 2], 2 / 255, seed=5)
    states = []
    model = stability.in_float64(digits_classifier)
    hooks = [
        block.register_forward_hook(lambda *a: states.append(a[2])) for _, block in model.model.named_blocks()
    ]
    hooks.append(model.model.stem.register_forward_hook(lambda *a: states.append(a[2])))
    pixels = images.double().requires_grad_()
    loss = sum(-model(pixels).log_softmax(1)[i, label] for i, label in enumerate(labels))
    fgsm = torch.autograd.grad(loss, pixels)[0].sign()
    for kind, signs in (("noise", stability.random_signs(images.double(), [0, 1, 2], 5)), ("fgsm", fgsm)):
        runs = []
        for batch in (images.double(), images.double() + 2 / 255 * signs):
            states.clear()
            model(batch)
            runs.append([state.flatten(1).detach() for state in states])
        length = torch.stack([(b - a).norm(dim=1) for a, b in zip(*runs, strict=True)])
        size = torch.stack([a.norm(dim=1) for a in runs[0]])
        found = table[table["perturbation"] == kind]
        expected = (length / length[0]).flatten().tolist()
        assert found["growth"].tolist() == pytest.approx(expected, rel=1e-9)
        expected = (length / size / (length / size)[0]).flatten().tolist()
        assert found["relative"].tolist() == pytest.approx(expected, rel=1e-9)
    for hook in hooks:
        hook.remove()


def test_random_signs_belong_to_the_sample():
    images = torch.rand(3, 1, 8, 8)
    signs = stability.random_signs(images, [4, 0, 9], seed=1)
    assert signs.abs().eq(1).all()
    assert torch.equal(signs[2:], stability.random_signs(images[:1], [9], seed=1))
    assert not torch.equal(signs[0], stability.random_signs(images[:1], [4], seed=2)[0])


def test_growth_summary_by_hand():
    """Two images, two seeds: the logarithms of an image are averaged first; t(0.975, 1) is 12.7062."""
    head = {"model": "m", "perturbation": "fgsm", "depth": 2, "blocks": 6}
    values = {(0, 0): 2.0, (0, 1): 8.0, (1, 0): 1.0, (1, 1): 1.0}  # (sample, seed): image means are 4 and 1
    lines = [
        head | {"sample": s, "train_seed": t, "growth": v, "relative": 3.0} for (s, t), v in values.items()
    ]
    lines.append(head | {"sample": 2, "train_seed": 0, "growth": math.nan, "relative": math.nan})
    (line,) = stability.growth_summary(pd.DataFrame(lines)).to_dict("records")
    assert line["n"] == 2
    assert line["growth"] == pytest.approx(2.0)
    half = 12.706205 * (math.log(4) / math.sqrt(2)) / math.sqrt(2)
    assert line["growth_high"] == pytest.approx(2 * math.exp(half), rel=1e-5)
    assert line["growth_low"] == pytest.approx(2 * math.exp(-half), rel=1e-5)
    assert (line["relative_low"], line["relative_high"]) == pytest.approx((3.0, 3.0))


def test_only_our_networks_have_known_blocks():
    with pytest.raises(UserError, match="only those have known blocks"):
        stability.in_float64(Classifier(nn.Linear(3, 2), name="mine"))


def test_the_model_is_left_alone(digits_classifier, digits_test):
    before = {key: value.clone() for key, value in digits_classifier.state_dict().items()}
    stability.growth(digits_classifier, digits_test[0][:2], digits_test[1][:2], [0, 1], 1 / 255)
    assert all(torch.equal(before[key], value) for key, value in digits_classifier.state_dict().items())
    assert next(digits_classifier.parameters()).dtype == torch.float32


def test_tables_are_json_and_csv_ready(digits_classifier, digits_test):
    table = stability.growth(digits_classifier, digits_test[0][:1], digits_test[1][:1], [0], 1 / 255)
    assert json.loads(table.to_json(orient="records"))[0]["perturbation"] == "noise"

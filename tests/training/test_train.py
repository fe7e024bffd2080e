"""The trainer: the paper's SGD step by hand, the schedule, the augmentation, and what a seed fixes."""

import json
import math
import random
import sys
import types
import warnings
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from scipy.stats import chisquare
from support.training import train_one
from timm.models import register_model
from torch import nn
from torchvision.transforms import functional as TF

from robust_interp import data, zoo
from robust_interp.cli.main import main
from robust_interp.core.errors import UserError
from robust_interp.training import files, recipe, resume, train
from robust_interp.training.job import Job, Training, work
from robust_interp.training.loader import Loader
from robust_interp.training.recipe import Recipe
from robust_interp.training.trainer import Trainer

SIZE = 449  # of the training split of `few_digits`
SHORT = Recipe("short", epochs=1)
DIGITS = data.DATASETS["digits"]


def cifar_like(**changes):
    """CIFAR's padding and flips on images of 8x8, for speed."""
    return replace(data.DATASETS["cifar10"], shape=(3, 8, 8), **changes)


def weights(checkpoint):
    return checkpoint.load().state_dict()


def same(left, right):
    return all(torch.equal(tensor, right[name]) for name, tensor in left.items())


@pytest.fixture
def exact(monkeypatch):
    """Store full precision whatever half precision would do to the predictions."""
    monkeypatch.setattr(files, "HALF_MAY_CHANGE", -1)


# What a seed fixes.


@pytest.mark.slow
@pytest.mark.usefixtures("few_digits")
def test_a_seed_fixes_the_weights_bit_for_bit_and_another_gives_others(tmp_path, exact):
    one, again, other = (
        train_one("in_resnet14", "digits", SHORT, seed, tmp_path / folder)
        for seed, folder in ((0, "one"), (0, "again"), (1, "other"))
    )
    with torch.device("meta"):  # a default device of the user
        elsewhere = train_one("in_resnet14", "digits", SHORT, 0, tmp_path / "elsewhere")
    assert elsewhere.sha256 == one.sha256
    assert one.record["precision"] == "float32"
    assert same(weights(one), weights(again))
    assert one.sha256 == again.sha256
    assert not torch.equal(weights(one)["fc.weight"], weights(other)["fc.weight"])
    curve = [{k: v for k, v in line.items() if k != "images_per_second"} for line in one.record["curve"]]
    assert curve == [
        {k: v for k, v in line.items() if k != "images_per_second"} for line in again.record["curve"]
    ]


@pytest.mark.slow
def test_the_test_split_is_used_only_after_the_last_epoch(tmp_path, monkeypatch, exact):
    used, plain, epochs = [], data.load, []

    def note(status):
        if status.line:
            epochs.append(status)

    def pixels(dataset, start, stop):
        used.append(len(epochs))
        return data.as_pixels(dataset.rows(start, stop))

    monkeypatch.setattr(data.ArrayDataset, "pixels", pixels)

    def load(name, split="test", data_dir=None):
        found = plain(name, split, data_dir)
        return found if split == "train" else replace(found, images=np.zeros_like(found.images))

    recipe = Recipe("two", epochs=2)
    usual = train_one("preact_resnet14", "digits", recipe, 0, tmp_path / "usual")
    monkeypatch.setattr(data, "load", load)
    poisoned = train_one("preact_resnet14", "digits", recipe, 0, tmp_path / "poisoned", report=note)
    assert set(used[len(used) // 2 :]) == {2}  # of the second training
    assert same(weights(usual), weights(poisoned))
    assert poisoned.record["clean_accuracy"] == 10  # one class for all, and 45 of each class are there
    assert poisoned.record["checkpoint"] == "last"


def without_labels(images, labels):
    return images, labels[:-1]


def of_another_shape(images, labels):
    return images[..., :7], labels


def of_more_classes(images, labels):
    return images, labels + 5


def missing(images, labels):
    raise UserError("there is no test.npz")


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (missing, "there is no test.npz"),
        (without_labels, "labels must be 450 class indices"),
        (of_another_shape, r"test images have shape \(1, 8, 7\)"),
        (of_more_classes, "labels run from 5 to 14, outside 0 to 9"),
    ],
)
def test_a_test_split_that_cannot_be_used_is_refused_before_the_first_step(
    tmp_path, monkeypatch, change, told
):
    def load(split, root):
        found = DIGITS.load(split, root)
        return change(*found) if split == "test" else found

    monkeypatch.setattr(Trainer, "steps", property(lambda trainer: pytest.fail("the training has begun")))
    with (
        data.DATASETS.registered("odd", replace(DIGITS, name="odd", load=load)),
        pytest.raises(UserError, match=told) as refusal,
    ):
        train_one("preact_resnet14", "odd", SHORT, 0, tmp_path)
    assert "\n" not in str(refusal.value)
    assert not [path for path in tmp_path.rglob("*") if path.suffix in (".safetensors", ".json")]


# The steps.


class Recorder(torch.optim.SGD):
    made = None

    def __init__(self, parameters, **options):
        super().__init__(parameters, **options)
        Recorder.made, self.rates = self, []

    def step(self):
        self.rates.append(self.param_groups[0]["lr"])
        super().step()


@pytest.mark.slow
@pytest.mark.usefixtures("few_digits")
@pytest.mark.parametrize(
    ("epochs", "batch_size", "expected"),
    [
        (1, 38, {0.1: 6, 0.01: 3, 0.001: 3}),  # 12 steps
        (3, 113, {0.1: 6, 0.01: 3, 0.001: 3}),  # 3 x 4 steps: the drops fall inside an epoch
        (4, SIZE, {0.1: 2, 0.01: 1, 0.001: 1}),
    ],
)
def test_the_learning_rate_drops_after_half_and_three_quarters_of_the_steps(
    tmp_path, monkeypatch, epochs, batch_size, expected
):
    monkeypatch.setattr(torch.optim, "SGD", Recorder)
    recipe = Recipe("steps", epochs=epochs, batch_size=batch_size)
    train_one("preact_resnet14", "digits", recipe, 0, tmp_path)
    wanted = [rate for rate, steps in expected.items() for _ in range(steps)]
    assert Recorder.made.rates == pytest.approx(wanted)


@pytest.mark.slow
@pytest.mark.usefixtures("few_digits")
def test_two_steps_are_sgd_with_momentum_and_decay_of_everything_that_is_stored(tmp_path, exact, monkeypatch):
    monkeypatch.setattr(train, "check_learning", lambda *_: None)  # two steps are too few to learn much
    rate, momentum, decay, seed = 0.05, 0.9, 0.1, 3
    recipe = Recipe("hand", 2, lr=rate, steps=(), momentum=momentum, weight_decay=decay, batch_size=SIZE)
    trained = weights(train_one("in_resnet14", "digits", recipe, seed, tmp_path))

    split = data.load("digits", "train")
    torch.manual_seed(seed)
    model = zoo.create("in_resnet14", num_classes=10, in_chans=1).to(memory_format=torch.channels_last)
    loader = Loader(split.images, split.labels, recipe.filled(DIGITS), False, seed, "cpu")
    start = {name: value.clone() for name, value in model.state_dict().items()}
    velocity = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    for _ in range(2):
        images, labels = loader.cut(loader.draw())
        names, values = zip(*model.named_parameters(), strict=True)
        loss = F.cross_entropy(model.train()(images), labels)
        for name, value, gradient in zip(names, values, torch.autograd.grad(loss, values), strict=True):
            velocity[name] = momentum * velocity[name] + gradient + decay * value.detach()
            value.data -= rate * velocity[name]
    lambdas = [name for name in names if start[name].numel() == 1]
    assert len(lambdas) >= 3
    for name, value in model.named_parameters():
        torch.testing.assert_close(trained[name], value.detach(), rtol=1e-3, atol=2e-5)
        # without the decay of this parameter the result would be another one
        undecayed = value.detach() + rate * decay * (2 + momentum) * start[name]
        if name in lambdas:
            assert not torch.allclose(trained[name], undecayed, rtol=1e-3, atol=2e-5)


@pytest.mark.slow
def test_images_that_a_plug_in_has_as_a_tensor_in_bfloat16_are_trained_on(tmp_path, exact):
    """bfloat16 keeps the sixteenths of the digits."""

    def tensors(split, root):
        images, labels = DIGITS.load(split, root)
        return torch.from_numpy(images[:449]).bfloat16(), labels[:449]

    def arrays(split, root):
        images, labels = tensors(split, root)
        return images.float().numpy(), labels

    trained = []
    for name, load in (("tensors", tensors), ("arrays", arrays)):
        with data.DATASETS.registered(name, replace(DIGITS, name=name, load=load)):
            trained.append(weights(train_one("preact_resnet14", name, SHORT, 0, tmp_path)))
    assert same(*trained)


def test_a_changed_flip_of_a_plug_in_data_set_is_another_training(monkeypatch, tmp_path):
    def identity(name):
        recipe, split = SHORT.filled(data.DATASETS[name]), data.load(name, "train")
        return Job(Training("in_resnet14", SHORT, 0), recipe, {}, split, tmp_path, "cpu", False).identity

    with data.DATASETS.registered("mine", replace(DIGITS, name="mine", flip=True)):
        built_in = identity("digits")
        code = {"mine": {"plugin": "sha256:1"}}
        monkeypatch.setattr(data.DATASETS, "code", lambda name: code.get(name, {}))
        assert identity("digits") == built_in  # saved states of these stay valid
        assert identity("mine")["flip"] is True
    assert "flip" not in built_in


# The batches.


def loader_of(images, labels=None, kind=DIGITS, seed=0, **fields):
    labels = np.zeros(len(images), dtype=np.int64) if labels is None else labels
    recipe = Recipe("any", epochs=1, **fields).filled(kind)
    return Loader(images, labels, recipe, kind.flip, seed, "cpu")


def epoch(loader):
    """The batches of one epoch."""
    return [loader.cut(loader.draw()) for _ in range(len(loader))]


def test_every_sample_comes_once_an_epoch_in_a_new_order_and_the_last_batch_is_kept():
    labels = np.arange(10)
    loader = loader_of(np.zeros((10, 1, 8, 8), dtype=np.float32), labels, batch_size=4)
    epochs = [[labels for _, labels in epoch(loader)] for _ in range(2)]
    assert len(loader) == 3
    assert [[len(batch) for batch in epoch] for epoch in epochs] == [[4, 4, 2], [4, 4, 2]]
    orders = [torch.cat(epoch).tolist() for epoch in epochs]
    assert [sorted(order) for order in orders] == [list(range(10))] * 2
    assert orders[0] != orders[1]


def candidates(image, kind, padding, mode):
    """Every padded and cropped version of one image by torchvision, normalised; then each mirrored."""
    height, width = image.shape[-2:]
    pixels = image.float() / 255 if image.dtype == torch.uint8 else image
    padded = TF.pad(pixels, [padding] * 4, padding_mode={"zeros": "constant"}.get(mode, mode))
    crops = [
        TF.crop(padded, top, left, height, width)
        for top in range(2 * padding + 1)
        for left in range(2 * padding + 1)
    ]
    mirrored = [TF.hflip(crop) for crop in crops]
    return torch.stack([TF.normalize(crop, kind.mean, kind.std) for crop in [*crops, *mirrored]])


def counts(image, kind, copies, padding, mode="zeros"):
    """How often each candidate is met when one image is augmented that many times."""
    images = image.expand(copies, *image.shape).numpy()
    ((batch, _),) = epoch(loader_of(images, kind=kind, batch_size=copies, padding=padding, padding_mode=mode))
    known = candidates(image, kind, padding, mode).flatten(1)
    nearest = torch.cdist(batch.flatten(1), known).argmin(1)
    torch.testing.assert_close(batch.flatten(1), known[nearest], rtol=0, atol=1e-6)
    return np.bincount(nearest.numpy(), minlength=len(known))


@pytest.mark.parametrize(
    ("dtype", "padding", "mode"),
    [
        (torch.uint8, 4, "zeros"),
        (torch.float32, 4, "zeros"),
        (torch.uint8, 2, "reflect"),
        (torch.float32, 3, "reflect"),
    ],
)
def test_crops_come_from_every_offset_equally_often_and_half_of_them_mirrored(dtype, padding, mode):
    pixels = torch.randperm(192, generator=torch.Generator().manual_seed(0)).view(3, 8, 8)
    image = pixels.to(torch.uint8) if dtype == torch.uint8 else pixels / 192
    crops = (2 * padding + 1) ** 2
    found = counts(image, cifar_like(), 2 * crops * 60, padding, mode)
    assert len(found) == 2 * crops
    assert chisquare(found).pvalue > 0.001
    assert found[:crops].sum() == pytest.approx(crops * 60, abs=4 * (crops * 30) ** 0.5)  # four sigma


@pytest.mark.parametrize("mode", ["zeros", "reflect"])
@pytest.mark.parametrize("shape", [(3, 4, 7), (3, 7, 4), (1, 8, 5)])
def test_images_that_are_not_square_are_cropped_and_mirrored_as_a_whole(shape, mode):
    pixels = torch.randperm(math.prod(shape), generator=torch.Generator().manual_seed(0))
    image = pixels.view(shape).to(torch.uint8)
    kind = cifar_like() if shape[0] == 3 else replace(DIGITS, flip=True)
    found = counts(image, replace(kind, shape=shape), 2 * 9 * 60, 1, mode)
    assert len(found) == 2 * 9
    assert chisquare(found).pvalue > 0.001


@pytest.mark.parametrize("shape", [(1, 4, 7), (1, 7, 4)])
def test_without_padding_and_flip_every_image_is_used_as_it_is(shape):
    image = (torch.arange(28) / 28).view(shape)
    images = image.expand(5, *shape).numpy()
    ((batch, _),) = epoch(loader_of(images, kind=replace(DIGITS, shape=shape), padding=0))
    wanted = TF.normalize(image, DIGITS.mean, DIGITS.std)
    torch.testing.assert_close(batch, wanted.expand(5, *shape), rtol=0, atol=1e-6)


def test_digits_are_cropped_by_one_pixel_and_never_flipped():
    image = torch.randperm(64, generator=torch.Generator().manual_seed(0)).view(1, 8, 8) / 64
    found = counts(image, DIGITS, 9 * 300, padding=1)
    assert found[9:].sum() == 0
    assert chisquare(found[:9]).pvalue > 0.001


def test_the_padding_is_black_before_the_normalisation():
    white = np.ones((400, 3, 8, 8), dtype=np.float32)
    kind = cifar_like()
    ((batch, _),) = epoch(loader_of(white, kind=kind, batch_size=400))
    for channel, (mean, std) in enumerate(zip(kind.mean, kind.std, strict=True)):
        values = batch[:, channel].unique().tolist()
        assert values == pytest.approx([(0 - mean) / std, (1 - mean) / std])


def test_the_images_of_a_batch_keep_their_labels():
    labels = np.arange(50)
    images = np.ones((50, 1, 8, 8), dtype=np.float32) * labels[:, None, None, None] / 50
    for batch, got in epoch(loader_of(images.astype(np.float32), labels, batch_size=7)):
        centre = batch[:, 0, 4, 4] * 0.3763 + 0.3054
        assert (centre * 50).round().int().tolist() == got.tolist()


def test_two_loaders_of_a_seed_give_the_same_batches():
    images = np.random.default_rng(0).random((20, 1, 8, 8), dtype=np.float32)
    first, again, other = (epoch(loader_of(images, batch_size=8, seed=seed)) for seed in (0, 0, 1))
    assert all(torch.equal(a, b) for (a, _), (b, _) in zip(first, again, strict=True))
    assert not torch.equal(first[0][0], other[0][0])


# What is written.


@pytest.mark.slow
def test_the_record_says_how_the_checkpoint_was_made(tmp_path):
    out = tmp_path / "zoo"
    command = "train in_resnet14 --epochs 1 --seeds 5, --lambda-init 0.5,0.6 --device cpu --quiet --out"
    assert main([*command.split(), str(out)]) == 0
    (folder,) = out.iterdir()
    assert folder.name == "in_resnet14.digits_digits_1epochs_lambda_init_0p5_0p6_seed5"
    record = json.loads((folder / "train.json").read_text())
    assert record["recipe"] == {
        "name": "digits_1epochs_lambda_init_0p5_0p6",
        "epochs": 1,
        "lr": 0.1,
        "steps": [0.5, 0.75],
        "momentum": 0.9,
        "weight_decay": 1e-4,
        "batch_size": 128,
        "padding": 1,
        "padding_mode": "zeros",
        "mean": [0.3054],
        "std": [0.3763],
        "stored": "lambda",
        "lambda_decay": True,
        "lambda_init": [0.5, 0.6],
        "warmup_epochs": 0,
        "precision": "float32",
        "deviations": {"epochs": [60, 1], "lambda_init": [None, [0.5, 0.6]]},
    }
    assert (record["seed"], record["dataset"]) == (5, "digits")
    assert record["data_fingerprint"] == data.load("digits", "train").fingerprint
    assert record["lambda_init"] == [0.5, 0.6]
    assert len(record["curve"]) == 1
    assert record["clean_n"] == 450
    assert set(record["versions"]) == {"robust_interp", "torch"}
    checkpoint = zoo.Checkpoint.at(folder)
    model, test = checkpoint.load(), data.load("digits", "test")
    with torch.no_grad():
        logits = model((torch.from_numpy(test.images) - 0.3054) / 0.3763)
    right = int((logits.argmax(1).numpy() == test.labels).sum())
    assert record["clean_accuracy"] == pytest.approx(100 * right / 450, abs=1e-3)
    assert record["lambda"] == pytest.approx(
        {name: value.item() for name, value in model.interpolation_coefficients().items()}, abs=1e-3
    )
    assert record["parameters"] == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.slow
def test_a_checkpoint_that_is_there_is_skipped_and_never_overwritten(tmp_path, capsys):
    command = ["train", "in_resnet14", "--epochs", "1", "--quiet", "--device", "cpu", "--out", str(tmp_path)]
    assert main(command) == 0
    (folder,) = tmp_path.iterdir()
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    capsys.readouterr()
    assert main(command) == 0
    assert "exists already, skipped" in capsys.readouterr().out
    assert before == {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(UserError, match="exists already"):
        train_one("in_resnet14", "digits", Recipe("digits_1epochs", epochs=1), 0, tmp_path)


def test_what_another_process_finished_before_the_lock_is_not_trained_again(tmp_path, monkeypatch):
    @contextmanager
    def lock(folder):
        folder.mkdir()  # by the process that had the lock
        yield

    monkeypatch.setattr(resume, "lock", lock)
    monkeypatch.setattr(Trainer, "steps", property(lambda trainer: pytest.fail("the training has begun")))
    with pytest.raises(UserError, match="exists already"):
        train_one("in_resnet14", "digits", SHORT, 0, tmp_path)


@pytest.mark.slow
@pytest.mark.usefixtures("few_digits")
def test_half_precision_is_kept_only_while_no_prediction_changes(tmp_path, monkeypatch):
    made = {}
    for name, allowed in (("usual", None), ("always", 1), ("never", -1)):
        with monkeypatch.context() as patch:
            if allowed is not None:
                patch.setattr(files, "HALF_MAY_CHANGE", allowed)
            made[name] = train_one("preact_resnet14", "digits", replace(SHORT, name=name), 0, tmp_path)
    assert (made["always"].record["precision"], made["never"].record["precision"]) == ("float16", "float32")
    for name, tensor in weights(made["never"]).items():
        rounded = tensor.half().float() if tensor.is_floating_point() else tensor
        assert torch.equal(weights(made["always"])[name], rounded), name
    test = data.load("digits", "test")
    half, full = (
        files.predictions(made[name].load(), test, DIGITS.mean, DIGITS.std, "cpu")
        for name in ("always", "never")
    )
    kept = made["usual"].record["precision"] == "float16"
    assert kept == (int((half != full).sum()) == 0)  # one of 150 would be more than 1 in 1,000


@pytest.mark.parametrize(
    ("arguments", "parts"),
    [
        (["in_resnet41"], ["unknown model 'in_resnet41'", "in_resnet14"]),
        (["in_resnet14", "--dataset", "digitz"], ["unknown data set 'digitz'", "digits"]),
        (["in_resnet14", "--recipe", "papr"], ["unknown recipe 'papr'", "paper"]),
        (["in_resnet14", "--epochs", "0"], ["epochs must be a whole number of at least 1, not 0"]),
        (["in_resnet14", "--device", "cuba"], ["cannot use device 'cuba'"]),
        (["preact_resnet14", "--lambda-init", "0.1,0.2"], ["preact_resnet14", "lambda_init"]),
        (["in_resnet14", "--lambda-init", "0.2,0.1"], ["lambda_init"]),
        (["in_resnet14", "--lambda-init", "abc"], ["'abc' is not an interval such as 0.2,0.25"]),
        (["in_resnet14", "--seeds", "-1"], ["'-1' is not a whole number"]),
        (["in_resnet14", "--seeds", ","], ["seed"]),
    ],
)
def test_mistakes_are_one_line_and_write_no_checkpoint(tmp_path, capsys, arguments, parts):
    out = tmp_path / "zoo"
    try:
        status = main(["train", *arguments, "--out", str(out), "--quiet"])
    except SystemExit as stop:
        status = stop.code
    message = capsys.readouterr().err
    assert status != 0
    assert message.count("\n") == 1
    assert all(part in message for part in parts)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_zoo_that_cannot_be_written_is_refused_before_the_training(tmp_path, capsys, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(data, "load", None)  # a training would read its data first
    assert main(["train", "in_resnet14", "--out", str(tmp_path / "file" / "zoo"), "--quiet"]) == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "cannot write" in message


# Models of plug-ins.


TIMMS = {"num_features": 4, "pretrained_cfg": {"first_conv": "stem", "classifier": "fc"}}


class OfPlugin(nn.Module):
    """A classifier of digits that shares a weight between two layers, with these attributes."""

    def __init__(self, attributes):
        super().__init__()
        self.stem, self.middle, self.fc = nn.Linear(64, 4), nn.Linear(4, 4), nn.Linear(4, 10)
        self.again = self.middle
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, images):
        hidden = self.stem(images.flatten(1)).relu()
        return self.fc(self.again(self.middle(hidden).relu()))


@pytest.fixture
def of_plugin(monkeypatch):
    """Register a model with these attributes with timm as `made_by_plugin`."""
    module = types.ModuleType("module_of_plugin")
    monkeypatch.setitem(sys.modules, module.__name__, module)

    def register(attributes, kind=OfPlugin):
        def made_by_plugin(pretrained=False, **_):
            return kind(attributes)

        made_by_plugin.__module__ = module.__name__
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Overwriting made_by_plugin in registry")
            register_model(made_by_plugin)
        stack.enter_context(zoo.MODELS.registered("made_by_plugin", made_by_plugin))

    with ExitStack() as stack:
        yield register


@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ({}, "num_features, pretrained_cfg['first_conv'], pretrained_cfg['classifier']"),
        ({"num_features": 4}, "pretrained_cfg['first_conv'], pretrained_cfg['classifier']"),
        (TIMMS | {"pretrained_cfg": None}, "pretrained_cfg['first_conv'], pretrained_cfg['classifier']"),
        (TIMMS | {"pretrained_cfg": {"first_conv": "stem"}}, "pretrained_cfg['classifier']"),
        ({"pretrained_cfg": TIMMS["pretrained_cfg"]}, "num_features"),
        (TIMMS | {"num_features": np.int64(4)}, "num_features"),  # JSON has no such number
    ],
)
def test_a_model_that_could_not_be_saved_is_refused_before_the_first_step_of_any(
    tmp_path, capsys, monkeypatch, of_plugin, attributes, named
):
    of_plugin(attributes)
    monkeypatch.setattr(Trainer, "train_step", None)
    with pytest.raises(UserError) as raised:
        train_one("made_by_plugin", "digits", SHORT, 0, tmp_path)
    assert str(raised.value) == (
        "cannot train made_by_plugin: its checkpoint needs attributes of timm's models, and these are "
        f"missing or not JSON values: {named}"
    )
    command = ["train", "preact_resnet14", "made_by_plugin", "--device", "cpu", "--quiet", "--out"]
    assert main([*command, str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"robust-interp: {raised.value}\n"
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


class WithState(OfPlugin):
    def get_extra_state(self):
        return self.extra

    def set_extra_state(self, state):
        pass


@pytest.mark.parametrize(
    ("extra", "arguments", "told"),
    [
        ({"calls": 0}, {}, "a checkpoint holds only tensors, and its state dict has others: _extra_state"),
        (
            torch.zeros(1),
            {"act": nn.ReLU},
            "a checkpoint holds its arguments as JSON values, which these are not: "
            "{'act': <class 'torch.nn.modules.activation.ReLU'>}",
        ),
        (
            torch.zeros(1),
            {"width": np.int64(4)},
            "a checkpoint holds its arguments as JSON values, .*: {'width'",
        ),
    ],
)
def test_a_state_or_arguments_that_could_not_be_saved_are_refused_before_the_first_step(
    tmp_path, monkeypatch, of_plugin, extra, arguments, told
):
    of_plugin(TIMMS | {"extra": extra}, WithState)
    monkeypatch.setattr(Trainer, "train_step", None)
    with pytest.raises(UserError, match=f"^cannot train made_by_plugin: {told}"):
        train_one("made_by_plugin", "digits", SHORT, 0, tmp_path, arguments)


def two_outputs(images):
    return images.flatten(1)[:, :10], images


class WithoutGradient(torch.autograd.Function):
    """Logits whose backward pass fails."""

    @staticmethod
    def forward(ctx, images):
        return images.flatten(1)[:, :10].clone()

    @staticmethod
    def backward(ctx, gradient):
        raise ValueError("no gradient here")


def no_images(images):
    raise AssertionError("Input height (8) does\nnot match")


@pytest.mark.parametrize(
    ("forward", "told"),
    [
        (two_outputs, "for 2 images it returns tuple, not logits"),
        (lambda images: images.flatten(1)[:, :5], "for 2 images it returns shape (2, 5), not logits (2, 10)"),
        (lambda images: images[0, 0, 0, 0], "for 2 images it returns shape (), not logits (2, 10)"),
        (no_images, "Input height (8) does"),
        (lambda images: images.flatten(1)[:, :10], "its logits have no gradient"),
        (lambda images: images.flatten(1)[:, :10].long(), "its logits have no gradient"),
        (lambda images: WithoutGradient.apply(images.clone().requires_grad_()), "no gradient here"),
    ],
)
def test_a_model_that_cannot_take_the_images_is_refused_before_the_first_step_of_any(
    tmp_path, capsys, monkeypatch, of_plugin, forward, told
):
    of_plugin(TIMMS | {"forward": forward})
    monkeypatch.setattr(Trainer, "train_step", None)
    command = ["train", "preact_resnet14", "made_by_plugin", "--device", "cpu", "--quiet", "--out"]
    assert main([*command, str(tmp_path)]) == 1
    assert capsys.readouterr().err == f"robust-interp: cannot train made_by_plugin on digits: {told}\n"
    assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def two_at_least(images):
    if len(images) < 2:
        raise ValueError("Expected more than 1 value per channel")
    return images.flatten(1)[:, :10].requires_grad_()


@pytest.mark.parametrize("batch_size", ["1", "673"])  # of 1,347 images
def test_a_network_that_cannot_take_a_batch_of_one_image_is_refused_if_there_is_one(
    tmp_path, capsys, monkeypatch, of_plugin, batch_size
):
    of_plugin(TIMMS | {"forward": two_at_least})
    monkeypatch.setattr(Trainer, "train_step", None)
    command = ["train", "made_by_plugin", "--device", "cpu", "--quiet", "--set", f"batch_size={batch_size}"]
    assert main([*command, "--out", str(tmp_path)]) == 1
    assert capsys.readouterr().err == (
        f"robust-interp: cannot train made_by_plugin on digits with batch_size {batch_size}, which leaves a "
        "batch of one image: Expected more than 1 value per channel\n"
    )


def test_predictions_need_no_more_memory_than_there_is():
    class Small(nn.Module):
        def forward(self, images):
            if len(images) > 200:
                raise MemoryError
            seen.append(len(images))
            return images.flatten(1)[:, :10]

    seen, test = [], data.load("digits", "test")
    found = files.predictions(Small(), test, (0.0,), (1.0,), "cpu")
    assert found.tolist() == test.pixels(0, len(test)).reshape(len(test), -1)[:, :10].argmax(1).tolist()
    assert seen == [125, 125, 125, 75]  # 500 are halved until they fit


class OfColour(nn.Module):
    """A classifier of CIFAR-10 that takes only contiguous images."""

    def __init__(self, attributes):
        super().__init__()
        self.fc = nn.Linear(3 * 32 * 32, 10)
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, images):
        return self.fc(images.view(len(images), -1))


def test_the_images_of_the_check_are_channels_last_as_in_training(tmp_path, of_plugin):
    """A view of an image (3, 32, 32) as one row needs contiguous memory; of a grey one it does not."""
    of_plugin({"num_features": 4, "pretrained_cfg": {"first_conv": "fc", "classifier": "fc"}}, OfColour)
    colour = data.ArrayDataset("cifar10", np.zeros((4, 3, 32, 32), np.uint8), np.arange(4), 10)
    told = "^cannot train made_by_plugin on cifar10: view size is not compatible"
    what = Training("made_by_plugin", SHORT, 0)
    with pytest.raises(UserError, match=told):
        work([what], colour, "cpu")
    job = Job(what, SHORT.filled(data.DATASETS["cifar10"]), {}, colour, tmp_path, "cpu", False)
    with pytest.raises(UserError, match=told):
        job.trainer()


@pytest.mark.slow
def test_a_model_of_timm_for_larger_images_is_refused_in_one_line(tmp_path, capsys):
    command = ["train", "vit_tiny_patch16_224", "--device", "cpu", "--quiet", "--out", str(tmp_path)]
    assert main(command) == 1
    message = capsys.readouterr().err
    assert message.startswith("robust-interp: cannot train vit_tiny_patch16_224 on digits: ")
    assert message.count("\n") == 1


class Counting(OfPlugin):
    """Its forward pass in train mode changes a buffer, and draws random numbers of each kind."""

    def __init__(self, attributes):
        super().__init__(attributes)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, images):
        self.steps += self.training
        random.random(), np.random.rand()
        return super().forward(F.dropout(images))


def test_the_check_of_a_model_changes_neither_its_buffers_nor_the_random_numbers(tmp_path, of_plugin):
    of_plugin(TIMMS, Counting)
    what = Training("made_by_plugin", SHORT, 3)
    training = data.load("digits", "train")
    random.seed(0)
    np.random.seed(0)
    job = Job(what, SHORT.filled(DIGITS), {}, training, tmp_path, "cpu", False)
    trainer = job.trainer()
    assert trainer.model.steps == 0
    drawn = random.random(), np.random.rand()
    random.seed(0)
    np.random.seed(0)
    assert drawn == (random.random(), np.random.rand())
    torch.manual_seed(3)
    expected = Counting(TIMMS)
    assert same(expected.state_dict(), trainer.model.state_dict())
    assert torch.equal(torch.get_rng_state(), trainer.rng)


@pytest.mark.slow
def test_tensors_in_the_state_and_arguments_in_json_are_saved(tmp_path, of_plugin):
    of_plugin(TIMMS | {"extra": torch.ones(1)}, WithState)
    arguments = {"act": "relu", "widths": (4, 4)}
    checkpoint = train_one("made_by_plugin", "digits", SHORT, 0, tmp_path, arguments)
    assert checkpoint.config["model_args"] == {"act": "relu", "widths": [4, 4]}
    assert load_file(checkpoint.folder / "model.safetensors")["_extra_state"].tolist() == [1]


@pytest.mark.slow
@pytest.mark.parametrize("allowed", [1, -1])
def test_a_model_of_a_plugin_with_shared_weights_is_trained_and_loaded(
    tmp_path, monkeypatch, of_plugin, allowed
):
    monkeypatch.setattr(files, "HALF_MAY_CHANGE", allowed)
    of_plugin(TIMMS)
    checkpoint = train_one("made_by_plugin", "digits", SHORT, 0, tmp_path)
    assert checkpoint.record["precision"] == ("float16" if allowed == 1 else "float32")
    found, test = checkpoint.load(), data.load("digits", "test")
    assert found.again.weight is found.middle.weight
    predicted = files.predictions(found, test, DIGITS.mean, DIGITS.std, "cpu")
    assert 100 * (predicted == test.labels).mean() == pytest.approx(checkpoint.record["clean_accuracy"])


@pytest.mark.slow
@pytest.mark.parametrize(
    "real_cifar", ["cifar10", pytest.param("cifar100", marks=pytest.mark.exhaustive)], indirect=True
)
def test_the_real_cifar_is_trained_on_and_its_test_split_measured_on_at_the_end(
    real_cifar, tmp_path, monkeypatch
):
    name, root = real_cifar
    official, read = data.load, []

    def first(dataset, split="test", data_dir=None):
        read.append(split)
        whole = official(dataset, split, data_dir)
        return data.from_arrays(whole.images[:256], whole.labels[:256], whole.classes, dataset)

    monkeypatch.setattr(train.data, "load", first)
    one_epoch = recipe.load("quick", "in_resnet14", name)
    checkpoint = train_one("in_resnet14", name, replace(one_epoch, epochs=1), 0, tmp_path, data_dir=root)
    classes = data.DATASETS[name].classes
    assert read == ["train", "test"]
    assert checkpoint.config["pretrained_cfg"]["num_classes"] == classes
    assert checkpoint.config["pretrained_cfg"]["mean"] == list(data.DATASETS[name].mean)
    assert checkpoint.load().fc.out_features == classes
    assert checkpoint.record["clean_n"] == 256
    assert checkpoint.record["curve"][0]["loss"] == pytest.approx(np.log(classes), rel=0.35)  # two steps only


def test_missing_cifar_is_one_line_without_a_download(tmp_path, capsys, monkeypatch):
    import urllib.request

    monkeypatch.setattr(urllib.request, "urlopen", None)
    command = [
        "train",
        "in_resnet14",
        "--dataset",
        "cifar10",
        "--data-dir",
        str(tmp_path / "data"),
        "--quiet",
    ]
    assert main([*command, "--out", str(tmp_path / "zoo")]) == 1
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert str(tmp_path / "data" / "cifar-10-batches-py") in message
    assert "robust-interp data cifar10 --download" in message
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]

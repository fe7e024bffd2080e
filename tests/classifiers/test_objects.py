"""What a model that comes as an object is called, and when its recipe and train seed are told."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform
from timm.models import PretrainedCfg
from torch import nn

import robust_interp
from robust_interp import data
from robust_interp.classifiers.objects import name_of
from robust_interp.classifiers.resolve import ResolveOptions, resolve
from robust_interp.core.errors import UserError
from robust_interp.zoo import is_model

CHECKPOINT = "in_resnet20.digits_digits_seed0"


def card(model, name="name", **options):
    (target,) = resolve({name: model}, ResolveOptions(**options), data.load("digits"))
    return target.card


def architecture_of(model):
    return card(model, CHECKPOINT.partition(".")[0])


@pytest.mark.parametrize("architecture", ["in_resnet14", "resnet18"])
def test_a_model_of_timm_is_called_by_its_architecture_without_a_tag(architecture):
    assert is_model(architecture)
    assert name_of(timm.create_model(architecture, num_classes=10, in_chans=1)) == architecture


def test_other_models_are_called_by_their_class():
    own = nn.Linear(2, 2)
    assert name_of(own) == "Linear"
    own.pretrained_cfg = {"architecture": "resnet18"}
    assert name_of(own) == "Linear"
    renamed = timm.create_model("in_resnet14", num_classes=10, in_chans=1)
    renamed.pretrained_cfg = {**renamed.pretrained_cfg, "architecture": "no such model"}
    assert name_of(renamed) == type(renamed).__name__


@pytest.mark.parametrize("cfg", [{"num_classes": 10}, "configs/vit.py", {"mean": 0.5, "std": 0.5}, 3])
def test_an_attribute_that_only_shares_the_name_of_timms_cfg_is_not_read(cfg):
    own = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    own.pretrained_cfg = cfg
    images = np.random.default_rng(0).random((20, 1, 8, 8))
    options = {"attacks": "none", "corruptions": "none", "mean": [0.5], "std": [0.5]}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is untrained
        table = robust_interp.evaluate(own, (images, np.arange(20) % 10), **options)
    with torch.no_grad():
        logits = own((torch.from_numpy(images).float() - 0.5) / 0.5)
    right = (logits.argmax(1).numpy() == np.arange(20) % 10).mean()
    assert table["accuracy"][0] == pytest.approx(100 * right)


class InputSeen(nn.Module):
    """Logits of a flat image; notes the smallest and the largest pixel that it gets."""

    def __init__(self, cfg):
        super().__init__()
        self.fc, self.pretrained_cfg, self.seen = nn.Linear(64, 10), cfg, []

    def forward(self, images):
        self.seen.append((float(images.min()), float(images.max())))
        return self.fc(images.flatten(1))


@pytest.mark.parametrize(
    "as_given",
    [tuple, np.array, torch.tensor, lambda values: values[0], lambda values: np.float32(values[0])],
    ids=["tuple", "array", "tensor", "number", "numpy"],
)
@pytest.mark.parametrize("as_cfg", [dict, lambda **values: PretrainedCfg(**values)], ids=["dict", "timm"])
def test_mean_and_std_of_the_cfg_are_applied_in_whatever_form_they_come(as_given, as_cfg):
    model = InputSeen(as_cfg(mean=as_given([0.5]), std=as_given([0.25])))
    images = np.zeros((10, 1, 8, 8))
    images[:, :, 0, 0] = 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is untrained
        robust_interp.evaluate(model, (images, np.arange(10)), attacks="none", corruptions="none")
    assert set(model.seen[-1:]) == {((0 - 0.5) / 0.25, (1 - 0.5) / 0.25)}


class ColoursSeen(InputSeen):
    """Notes the largest value of each channel that it gets, by its mean over the other pixels."""

    def forward(self, images):
        self.seen.append(tuple(images.amax((0, 2, 3)).tolist()))
        return self.fc(images[:, 0].flatten(1))


OWN = (1 - 0.5) / 0.25  # a white pixel with the mean and std of the cfg
ITS_DATA = tuple((1 - mean) / 0.5 for mean in (0.125, 0.25, 0.375))  # with those of the data set
ONE = {"mean": (0.5,), "std": (0.25,)}
ONE_CHANNEL, THREE_CHANNELS = {"input_size": (1, 8, 8)}, {"input_size": (3, 8, 8)}


def colours(split, root):
    images = np.zeros((20, 3, 8, 8), np.uint8)
    images[:, :, 0, 0] = 255
    return images, np.arange(20) % 10


@pytest.mark.parametrize(
    ("cfg", "expected"),
    [
        ({"mean": 0.5, "std": 0.25}, (OWN,) * 3),
        ({"mean": 0.5, "std": (0.25,) * 3}, (OWN,) * 3),
        ({"mean": np.array(0.5), "std": torch.tensor(0.25), **ONE_CHANNEL}, (OWN,) * 3),
        ({"mean": [0.5] * 3, "std": [0.25] * 3, **ONE_CHANNEL}, (OWN,) * 3),
        (ONE, ITS_DATA),
        ({"mean": np.array([0.5]), "std": torch.tensor([0.25])}, ITS_DATA),
        (ONE | ONE_CHANNEL, ITS_DATA),
        (ONE | THREE_CHANNELS, (OWN,) * 3),
        (PretrainedCfg(**ONE, **ONE_CHANNEL), ITS_DATA),
        (PretrainedCfg(**ONE, **THREE_CHANNELS), (OWN,) * 3),
    ],
)
def test_a_cfg_of_one_channel_is_not_applied_to_three(cfg, expected):
    """timm's transforms apply a single value to all channels that the cfg has."""
    kind = replace(
        data.DATASETS["digits"],
        name="colours",
        load=colours,
        shape=(3, 8, 8),
        mean=(0.125, 0.25, 0.375),
        std=(0.5,) * 3,
    )
    model = ColoursSeen(cfg)
    with data.DATASETS.registered("colours", kind), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is untrained
        robust_interp.evaluate(model, "colours", n=10, attacks="none", corruptions="none")
    assert model.seen[-1] == pytest.approx(expected)
    own = colours("test", None)
    if expected == ITS_DATA:
        with pytest.raises(
            UserError, match="is normalised for another number of channels: pass mean and std"
        ):
            robust_interp.evaluate(ColoursSeen(cfg), own, attacks="none", corruptions="none")


def test_timm_applies_a_single_mean_to_all_channels():
    transform = create_transform((3, 8, 8), **ONE)
    white = transform(Image.new("RGB", (8, 8), (255, 255, 255)))
    assert white.amax((1, 2)).tolist() == pytest.approx([OWN] * 3)


@pytest.mark.slow
def test_recipe_and_seed_are_those_of_the_checkpoint_whose_weights_it_has():
    model = timm.create_model(CHECKPOINT, pretrained=True)
    known = architecture_of(model)
    assert (known.recipe, known.lambda_init, known.train_seed) == ("digits", "0.20-0.25", 0)
    other = card(model, "another name")
    assert (other.recipe, other.lambda_init, other.train_seed) == ("digits", "0.20-0.25", None)
    assert other.identity == known.identity
    with torch.no_grad():
        model.get_classifier().bias[0] += 1e-3
    changed = architecture_of(model)
    assert (changed.recipe, changed.lambda_init, changed.train_seed) == ("", "", None)
    assert changed.identity != known.identity


@pytest.mark.slow
def test_a_checkpoint_as_an_object_is_the_checkpoint():
    architecture = CHECKPOINT.partition(".")[0]
    (named,) = resolve([architecture], ResolveOptions(seeds=(0,)), data.load("digits"))
    assert card(timm.create_model(CHECKPOINT, pretrained=True), architecture) == named.card


@pytest.mark.slow
def test_a_checkpoint_with_other_outputs_or_normalisation_is_another_model():
    model = timm.create_model(CHECKPOINT, pretrained=True)
    assert card(model, "in_resnet20", mean=[0.25], std=[0.5]).train_seed is None
    assert architecture_of(model).train_seed == 0


def hooked(register):
    def alter(model):
        getattr(model, register)(lambda *seen: None)

    return alter


def with_its_own_forward(model):
    model.forward = lambda images, forward=model.forward: forward(images)


def with_a_hook_inside(model):
    model.stem.register_forward_hook(lambda *seen: None)


def without_what_is_not_on_the_grid(model):
    """Blanks every image that is not one of digits: clean images give the same outputs."""

    def reject(_, inputs):
        pixels = inputs[0] * 0.3763 + 0.3054
        off = ((pixels * 16).round() / 16 - pixels).abs().amax((1, 2, 3), keepdim=True) > 1e-4
        return (torch.where(off, torch.zeros_like(pixels), inputs[0]),)

    model.register_forward_pre_hook(reject)


@pytest.mark.slow
@pytest.mark.parametrize(
    "alter",
    [
        *map(hooked, ["register_forward_hook", "register_forward_pre_hook", "register_full_backward_hook"]),
        with_its_own_forward,
        with_a_hook_inside,
        without_what_is_not_on_the_grid,
    ],
)
def test_a_checkpoint_that_something_was_hung_on_is_another_model(alter):
    model = timm.create_model(CHECKPOINT, pretrained=True)
    alter(model)
    assert architecture_of(model).train_seed is None


@pytest.mark.slow
def test_checkpoints_under_one_name_of_the_user_are_no_train_seeds_of_it(tmp_path):
    """Two architectures called net are two entries, and neither is the other trained again."""
    for name in ("in_resnet20.digits_digits_seed0", "preact_resnet20.digits_digits_seed0"):
        model = timm.create_model(name, pretrained=True)
        options = {"attacks": "none", "corruptions": "none", "n": 20, "out": tmp_path}
        robust_interp.evaluate({"net": model}, "digits", **options)
    board = robust_interp.leaderboard(tmp_path)
    assert board["model"].tolist() == ["net", "net"]
    assert board["seeds"].tolist() == [1, 1]


@pytest.mark.slow
def test_untrained_weights_have_no_recipe_although_timm_gives_them_the_same_tag():
    model = timm.create_model(CHECKPOINT, pretrained=False, num_classes=10, in_chans=1)
    assert model.pretrained_cfg["tag"] == CHECKPOINT.partition(".")[2]
    assert card(model).train_seed is None


@pytest.mark.parametrize("wrap", [torch.nn.DataParallel, torch.compile])
def test_a_wrapped_model_has_its_own_name(wrap):
    model = timm.create_model("in_resnet14", num_classes=10, in_chans=1)
    assert name_of(wrap(model)) == "in_resnet14"
    assert name_of(wrap(torch.nn.Linear(2, 2))) == "Linear"

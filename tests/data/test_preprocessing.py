"""Preprocessing is timm's own, or torchvision's resize and crop; and what a row says of it."""

import numpy as np
import pytest
import torch
from support.own_images import picture, write_folder
from timm.data import create_transform, resolve_data_config
from torchvision import transforms

from robust_interp import data
from robust_interp.core.errors import UserError
from robust_interp.data.preprocessing import AS_THEY_ARE, fixed, of_model

OBLONG = np.random.default_rng(0).integers(0, 256, (3, 50, 37), dtype=np.uint8)
CFG = {"input_size": (3, 28, 28), "mean": (0.5, 0.4, 0.3), "std": (0.2, 0.2, 0.2)}
CFGS = {
    "crop_pct": CFG | {"crop_pct": 0.875, "interpolation": "bicubic"},
    "timm's defaults": CFG,
    "the whole side": CFG | {"crop_pct": 1.0, "interpolation": "bilinear"},
    "squash": CFG | {"crop_pct": 0.95, "crop_mode": "squash"},
    "border": CFG | {"crop_pct": 0.9, "crop_mode": "border"},
    "oblong": CFG | {"input_size": (3, 32, 20), "crop_pct": 0.9},
}


@pytest.mark.parametrize("cfg", CFGS.values(), ids=CFGS)
def test_a_models_own_preprocessing_is_timms(cfg):
    config = resolve_data_config({}, pretrained_cfg=cfg)
    normalised = create_transform(**config, is_training=False)(picture(OBLONG))
    mean, std = (torch.tensor(cfg[name])[:, None, None] for name in ("mean", "std"))
    ours = np.asarray(of_model(cfg).transform()(picture(OBLONG)))
    assert ours.dtype == np.uint8
    assert torch.equal((torch.from_numpy(data.as_pixels(ours)) - mean) / std, normalised)


@pytest.mark.parametrize(
    ("cfg", "told"),
    [
        ("crop_pct", "resize=32,crop=28,bicubic"),
        ("timm's defaults", "resize=32,crop=28,bicubic"),
        ("the whole side", "resize=28,crop=28,bilinear"),
        ("squash", "resize=29,crop=28,bicubic,squash"),
        ("border", "resize=31,crop=28,bicubic,border(0.5 0.4 0.3)"),
        ("oblong", "resize=35x22,crop=32x20,bicubic"),
    ],
)
def test_what_a_row_says_of_it(cfg, told):
    assert str(of_model(CFGS[cfg])) == told
    assert str(AS_THEY_ARE) == ""
    assert of_model({}) == AS_THEY_ARE


@pytest.mark.parametrize(
    ("mode", "width", "expected"),
    [
        ("floor", 7, [1, 2, 3, 4]),  # 1.5 pixels to the left become 1
        ("center", 7, [2, 3, 4, 5]),  # timm: 2, the even number
        ("floor", 9, [2, 3, 4, 5]),  # 2.5 become 2
        ("squash-floor", 4, [0, 1, 2, 3]),
    ],
)
def test_a_crop_rounds_half_a_pixel_as_its_mode_says(mode, width, expected):
    columns = np.arange(width, dtype=np.uint8)[None, None].repeat(4, 1)
    how = of_model({"input_size": (1, 4, 4), "crop_pct": 1.0, "crop_mode": mode, "interpolation": "nearest"})
    assert np.asarray(how.transform()(picture(columns)))[0].tolist() == [expected] * 4
    assert str(how) == "resize=4,crop=4,nearest" + (f",{mode}" if mode != "center" else "")


def test_a_crop_larger_than_the_image_has_black_borders():
    cfg = {"input_size": (1, 4, 4), "crop_pct": 4 / 3, "crop_mode": "floor", "interpolation": "nearest"}
    found = np.asarray(of_model(cfg).transform()(picture(np.full((1, 3, 3), 9, np.uint8))))
    assert found[0].tolist() == [[9, 9, 9, 0]] * 3 + [[0] * 4]


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic", "nearest", "lanczos"])
def test_the_fixed_one_is_torchvisions(interpolation):
    how = transforms.InterpolationMode(interpolation)
    theirs = transforms.Compose(
        [transforms.Resize(32, how), transforms.CenterCrop(28), transforms.PILToTensor()]
    )
    ours = fixed(32, 28, interpolation)
    assert torch.equal(ours.transform()(picture(OBLONG)), theirs(picture(OBLONG)))
    assert str(ours) == f"resize=32,crop=28,{interpolation}"


def test_a_fixed_one_that_is_a_models_own_has_its_name_and_its_pixels():
    own, set_by_hand = of_model(CFGS["crop_pct"]), fixed(32, 28, "bicubic")
    assert str(own) == str(set_by_hand)
    assert torch.equal(own.transform()(picture(OBLONG)), set_by_hand.transform()(picture(OBLONG)))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((28, 32, None), "crop 32 is larger than resize 28"),
        ((None, 28, "bicubic"), "interpolation needs resize"),
        ((28, 28, "cubic"), "unknown interpolation 'cubic'; did you mean bicubic"),
        ((0, None, None), "resize must be a whole number of pixels from 1"),
        ((None, True, None), "crop must be a whole number"),
    ],
)
def test_what_cannot_be_is_refused(given, message):
    with pytest.raises(UserError, match=message):
        fixed(*given)


@pytest.fixture
def several_sizes(tmp_path):
    rng = np.random.default_rng(1)
    for at, size in enumerate([(50, 37), (40, 60), (30, 30)]):
        write_folder(tmp_path / "val", rng.integers(0, 256, (1, 3, *size), dtype=np.uint8), [at])
    return tmp_path / "val"


def opened(folder, *given):
    options = data.SourceOptions(preprocessing=fixed(*given) if given else None, workers=0)
    return data.open_source(f"folder:{folder}", options)


def test_images_of_several_sizes_come_to_one(several_sizes):
    found = opened(several_sizes, 32, 28, "bicubic")
    found.expect(3)
    assert (found.shape, found.rows(0, 3).shape) == ((3, 28, 28), (3, 3, 28, 28))
    assert found.metadata == {"preprocessing": "resize=32,crop=28,bicubic"}
    assert found.preprocessed_for(CFGS["squash"]) is found  # fixed for all


def test_each_model_has_a_view_of_its_own_and_models_alike_share_one(several_sizes):
    base = opened(several_sizes)
    one, same, other = (
        base.preprocessed_for(CFGS[name]) for name in ("crop_pct", "timm's defaults", "squash")
    )
    assert one is same
    assert len({base.fingerprint, one.fingerprint, other.fingerprint}) == 3
    assert one.fingerprint == opened(several_sizes, 32, 28, "bicubic").fingerprint
    assert one.preprocessed_for(CFGS["squash"]) is one
    assert base.preprocessed_for({}) is base
    assert np.array_equal(one.rows(0, 3), opened(several_sizes, 32, 28, "bicubic").rows(0, 3))


def test_images_of_a_models_size_stay_as_they_are(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (4, 3, 28, 28), dtype=np.uint8)
    base = opened(write_folder(tmp_path / "val", images, [0, 0, 1, 1]))
    assert base.preprocessed_for(CFGS["the whole side"]) is base
    assert base.preprocessed_for(CFGS["crop_pct"]) is not base  # enlarged, then cropped


def test_an_image_smaller_than_the_crop_is_refused(several_sizes):
    with pytest.raises(UserError, match="smaller than the crop: use --resize"):
        opened(several_sizes, None, 35, None).rows(0, 3)


def test_arrays_are_as_they_are_for_every_model():
    dataset = data.from_arrays(np.zeros((2, 3, 8, 8), np.uint8), [0, 1])
    assert dataset.preprocessed_for(CFGS["crop_pct"]) is dataset

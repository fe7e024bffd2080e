"""Constants by the size of the images: CIFAR-C's, Tiny-ImageNet-C's, ImageNet-C's."""

import hashlib
import itertools
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import scipy
from PIL import Image
from support.cifar_c import ALL19, SEVERITIES, all_of, some_images

from robust_interp import data
from robust_interp.corruptions import CORRUPTIONS, Corruptor, corrupt, digital, parse_corruptions
from robust_interp.corruptions.severities import LEVELS, constants_of, level

SMALL, TINY, LARGE = (3, 32, 32), (3, 64, 64), (3, 224, 224)


@pytest.mark.parametrize(
    ("size", "named"),
    [
        ((8, 8), "CIFAR-C"),
        ((28, 28), "CIFAR-C"),
        ((45, 300), "CIFAR-C"),
        ((46, 46), "Tiny-ImageNet-C"),
        ((119, 64), "Tiny-ImageNet-C"),
        ((120, 160), "ImageNet-C"),
        ((500, 375), "ImageNet-C"),
    ],
)
def test_the_shorter_side_chooses_and_the_source_says_so(size, named):
    assert constants_of((3, *size)) == named
    dataset = data.from_arrays(np.zeros((1, 3, *size), np.uint8), np.array([0]), 1)
    (found,) = parse_corruptions("fog(severity=1)", Corruptor(dataset, 5))
    assert found.source == ("generated@5" if named == "CIFAR-C" else f"generated@5({named})")


def test_generated_jpeg_names_both_its_constants_and_its_library(monkeypatch):
    monkeypatch.setattr("robust_interp.corruptions.images.jpeg_library", lambda: "libjpeg-turbo")
    dataset = data.from_arrays(np.zeros((1, *TINY), np.uint8), np.array([0]), 1)
    (found,) = parse_corruptions("jpeg_compression(severity=1)", Corruptor(dataset, 0))
    assert found.source == "generated@0(Tiny-ImageNet-C)(libjpeg-turbo)"


# What the authors' generators say, severities 1 to 5: (loc, sd, ...) as the functions name them; zoom blur
# is (largest factor, step).
SHAPES = {"CIFAR-C": SMALL, "Tiny-ImageNet-C": TINY, "ImageNet-C": LARGE}
LINES = (Path(__file__).parent / "constants.txt").read_text(encoding="utf-8").splitlines()
CONSTANTS = {tuple(line.split()[:2]): line.split()[2:] for line in LINES}


def value(word):
    """A number, a word, or a tuple of them in brackets."""
    if word.startswith("("):
        return tuple(map(value, word[1:-1].split(",")))
    return word if word.isalpha() else float(word)


def test_the_constants_are_all_there():
    assert set(CONSTANTS) == set(itertools.product(ALL19, SHAPES))


@pytest.mark.parametrize(("name", "benchmark"), CONSTANTS)
def test_the_constants_are_those_of_the_authors(name, benchmark):
    found = [level(name, severity, SHAPES[benchmark]) for severity in SEVERITIES]
    assert found == [value(word) for word in CONSTANTS[name, benchmark]]


@pytest.mark.parametrize(
    ("benchmark", "shape"), [("Tiny-ImageNet-C", (3, 50, 52)), ("ImageNet-C", (3, 120, 130))]
)
@pytest.mark.parametrize("name", ALL19)
def test_a_corruption_takes_the_constants_of_its_images(name, benchmark, shape, frost_pictures, monkeypatch):
    monkeypatch.setitem(LEVELS, name, {benchmark: LEVELS[name][benchmark]})  # there are no others
    found = corrupt(some_images(1, shape), name, 1, [0], seed=0)
    assert (found != some_images(1, shape)).any()


@pytest.mark.parametrize(
    ("shape", "qualities"),
    [(SMALL, (80, 65, 58, 50, 40)), (TINY, (65, 58, 50, 40, 25)), (LARGE, (25, 18, 15, 10, 7))],
)
def test_jpeg_is_pillows_round_trip(shape, qualities):
    image = some_images(1, shape)
    for severity, quality in zip(SEVERITIES, qualities, strict=True):
        file = BytesIO()
        Image.fromarray(image[0].transpose(1, 2, 0)).save(file, "JPEG", quality=quality)
        expected = np.asarray(Image.open(file)).transpose(2, 0, 1)
        assert np.array_equal(corrupt(image, "jpeg_compression", severity, [0], seed=0)[0], expected)


@pytest.mark.parametrize(
    ("side", "pixels"),
    [(32, (30, 28, 27, 24, 20)), (64, (57, 51, 44, 38, 32)), (224, (134, 112, 89, 67, 56))],
)
def test_pixelate_has_as_many_pixels_as_it_says(side, pixels):
    image = some_images(1, (1, side, side))
    for severity, small in zip(SEVERITIES, pixels, strict=True):
        shrunk = Image.fromarray(image[0, 0]).resize((small, small), Image.Resampling.BOX)
        expected = np.asarray(shrunk.resize((side, side), Image.Resampling.BOX))
        assert np.array_equal(corrupt(image, "pixelate", severity, [0], seed=0)[0, 0], expected)


def test_gaussian_blur_of_imagenet_is_six_pixels_wide_at_the_end():
    image = all_of(0, 1, (1, 121, 121))
    image[..., 60, 60] = 255
    found = corrupt(255 - image, "gaussian_blur", 1, [0], seed=0)[0, 0]
    assert found[60, 60] == int(255 * (1 - (1 / scipy.stats.norm.pdf(np.arange(-4, 5)).sum() * 0.39894) ** 2))
    step = all_of(0, 1, (1, 121, 121))
    step[..., 60:] = 255
    edge = corrupt(step, "gaussian_blur", 5, [0], seed=0)[0, 0, 60]
    assert np.abs(edge / 255 - scipy.stats.norm.cdf((np.arange(121) - 59.5) / 6)).max() < 0.01


def test_fog_and_frost_are_those_of_their_benchmark(frost_pictures):
    """Fog over white is down to 1 / (1 + a); frost over black is its weight times the picture's grey."""
    for shape, amount in ((TINY, 2), ((3, 256, 256), 3)):  # all of the map
        assert corrupt(all_of(255, 1, shape), "fog", 5, [0], seed=0).min() == int(255 / (1 + amount) + 1e-9)
    small = (3, 50, 52)
    found = corrupt(all_of(0, 1, small), "frost", 5, [0], seed=0)
    assert set(np.unique(found)) < {int(0.55 * grey) for grey in (250, 200, 150, 100, 50)}


def test_snow_of_imagenet_is_whiter_by_its_share():
    """Over black, between the flakes: half of 1 less what is kept."""
    found = corrupt(all_of(0, 1, LARGE), "snow", 1, [0], seed=0)
    assert found.min() == int(255 * 0.5 * 0.2)


def test_motion_and_elastic_reach_as_far_as_imagenets():
    """A point is smeared over up to 41 pixels; a ramp is displaced by at most 0.12 x 244 pixels."""
    point = all_of(0, 1, (1, 224, 224))
    point[..., 112, 112] = 255
    smeared = corrupt(point, "motion_blur", 5, [0], seed=0)[0, 0]
    reach = np.argwhere(smeared) - 112
    assert 25 < np.abs(reach).max() <= 40
    ramp = np.broadcast_to(np.arange(224, dtype=np.uint8), (1, 1, 224, 224))
    found = corrupt(ramp, "elastic_transform", 5, [0], seed=0).astype(int)
    assert 5 < np.abs(found - ramp)[..., 60:160].max() < 0.12 * 244 + 3 * 0.02 * 244


# --- one by one or many at once, and as before -------------------------------------------------------


@pytest.mark.parametrize("name", ALL19)
def test_images_at_once_are_those_one_by_one(name, frost_pictures):
    images = some_images(5)
    for severity in (1, 5):
        together = corrupt(images, name, severity, range(5), seed=4)
        alone = [corrupt(images[at : at + 1], name, severity, [at], seed=4)[0] for at in range(5)]
        assert np.array_equal(together, alone)
        image, rng = images[0] / 255, np.random.default_rng(1)
        assert CORRUPTIONS[name](image, severity, rng).shape == image.shape  # as a plug-in would call it


# SHA-256 of what the first version made of these images: stored cells are of such.
AS_BEFORE = {
    "gaussian_noise": "3e1528cf52bcebc3",
    "shot_noise": "2145ca842378f87c",
    "impulse_noise": "350d4ac0aaf136a8",
    "glass_blur": "f4c5977a88461612",
    "motion_blur": "e28eb694bd782a59",
    "snow": "19540e849f666d0d",
    "fog": "ea10776ce7b658ef",
    "elastic_transform": "50536ee41b3c097d",
    "speckle_noise": "cdf39faf2987ba1a",
    "spatter": "fda22b6e89b9c461",
}


@pytest.mark.parametrize("name", AS_BEFORE)
def test_what_is_drawn_for_small_images_is_as_it_ever_was(name):
    images = some_images(6)
    found = b"".join(corrupt(images, name, severity, range(6), 7).tobytes() for severity in SEVERITIES)
    assert hashlib.sha256(found).hexdigest()[:16] == AS_BEFORE[name]


def test_elastic_of_imagenet_counts_244_pixels_where_there_are_224(monkeypatch):
    seen = []
    monkeypatch.setattr(
        digital, "displaced", lambda image, alpha, sigma, rng: seen.append((alpha, sigma)) or image
    )
    for shape in (TINY, LARGE):
        corrupt(some_images(1, shape), "elastic_transform", 5, [0], seed=0)
    assert seen == [pytest.approx((0.16 * 64, 0.03 * 64)), pytest.approx((0.12 * 244, 0.01 * 244))]

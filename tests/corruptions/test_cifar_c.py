"""All of CIFAR-C: pinned images, closed forms, the released layout, the means and the corruption errors."""

import colorsys
import hashlib
import json
import math
import subprocess
import sys
from io import BytesIO, StringIO
from pathlib import Path

import cv2
import numpy as np
import pandas as pd
import pytest
from PIL import Image
from scipy import stats
from support.hand_made import card, corruption, ensemble, first, run

from robust_interp import corruptions, data
from robust_interp.benchmark.benchmark import Benchmark
from robust_interp.benchmark.request import Request
from robust_interp.core import statistics
from robust_interp.core.errors import UserError
from robust_interp.corruptions import CORRUPTIONS, Corruptor, blur, corrupt, digital, images, resolve, weather
from robust_interp.corruptions.imaging import canny, grey, hsv, motion, rgb
from robust_interp.results import combine, export, leaderboard
from robust_interp.results.folders import from_folder
from robust_interp.results.mce import with_mce
from robust_interp.results.scores import scores
from robust_interp.store import Store
from robust_interp.store.cells import CLEAN

COMMON15 = [
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
]
EXTRA4 = ["speckle_noise", "gaussian_blur", "spatter", "saturate"]
ALL19 = COMMON15 + EXTRA4
DETERMINISTIC = [
    "gaussian_blur",
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "saturate",
    "pixelate",
    "jpeg_compression",
]
SEVERITIES = (1, 2, 3, 4, 5)
COLOUR_ONLY = {"frost", "saturate", "spatter"}
FROST_COLOURS = [(250, 250, 250), (200, 200, 200), (150, 150, 150), (100, 100, 100), (50, 50, 50)]


def some_images(n=4, shape=(3, 32, 32), seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def all_of(value, n=1, shape=(3, 32, 32)):
    return np.full((n, *shape), value, np.uint8)


@pytest.fixture
def frost_pictures(tmp_path, monkeypatch):
    """Stands in for the package with the authors' pictures: five plain ones, of 200 x 300 pixels."""
    folder = tmp_path / "frost"
    folder.mkdir()
    md5s = {}
    for at, colour in enumerate(FROST_COLOURS):
        name = f"frost{at + 1}.png"
        Image.new("RGB", (300, 200), colour).save(folder / name)
        md5s[name] = hashlib.md5((folder / name).read_bytes()).hexdigest()
    monkeypatch.setattr(weather, "FROST_PICTURES", md5s)
    monkeypatch.setattr(weather, "_frost_folder", lambda: folder)
    weather._frost_pictures.cache_clear()
    yield folder
    weather._frost_pictures.cache_clear()


@pytest.fixture
def no_frost(monkeypatch):
    monkeypatch.setattr(weather, "_frost_folder", lambda: None)


def fake_cifar10(n=20):
    return data.from_arrays(some_images(n), np.arange(n) * 7 % 10, 10, name="cifar10")


# --- the released files ------------------------------------------------------------------------------

# benchmarks/corruption_md5.py --pins wrote this once the whole files' MD5 were the released ones: SHA-256
# of the first 100 images of each severity, (100, 3, 32, 32) uint8.
PINS = json.loads((Path(__file__).parent / "cifar10_c_first_100.json").read_text())


@pytest.mark.parametrize("name", [name for name in DETERMINISTIC if name != "jpeg_compression"])
def test_what_draws_nothing_reproduces_the_released_images(name, cifar_root):
    """But JPEG: no Pillow of today comes with the library that the authors compressed with."""
    images = data.load("cifar10", "test", cifar_root).images[:100]
    found = [corrupt(images, name, severity, range(100), seed=0) for severity in SEVERITIES]
    assert [hashlib.sha256(part.tobytes()).hexdigest() for part in found] == PINS[name]


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_what_draws_nothing_is_the_same_under_any_seed(name):
    images = some_images(2)
    assert np.array_equal(corrupt(images, name, 4, (0, 1), seed=0), corrupt(images, name, 4, (8, 9), seed=5))


def test_the_four_noises_are_what_they_were_when_their_cells_were_stored():
    images = np.random.default_rng(5).integers(0, 256, (20, 3, 32, 32), dtype=np.uint8)
    for name, sha256 in (
        ("gaussian_noise", "8a99eae9fa94f306646217a63d4a0a2e62b2180c762c7ab178fba2d019a93c9b"),
        ("shot_noise", "dba8bed6bcdb0d7b842c7750897d6dc15511909556a54623806a4fb6c6e10648"),
        ("impulse_noise", "e75a77bcc6f0b2584ac041ad9971528fa0b5424b054e6bd653b5155542220e40"),
        ("speckle_noise", "5b1c0904ed920511e4b8c73bd688f9008674c29a935be5bac81136f933b68997"),
    ):
        found = b"".join(corrupt(images, name, severity, range(20), 7).tobytes() for severity in SEVERITIES)
        assert hashlib.sha256(found).hexdigest() == sha256


def test_every_released_file_has_its_md5():
    assert set(corruptions.RELEASED_MD5) == set(ALL19)
    assert len(set(corruptions.RELEASED_MD5.values())) == 19
    assert corruptions.RELEASED_MD5["fog"] == "7b397314b5670f825465fbcd1f6e9ccd"
    assert corruptions.RELEASED_MD5["saturate"] == "1cfae0964219c5102abbb883e538cc56"


# --- keyed draws, shapes -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL19)
def test_an_image_is_the_same_whatever_n_batch_and_order(name, frost_pictures):
    images = some_images(7)
    whole = corrupt(images, name, 3, range(7), seed=4)
    assert np.array_equal(corrupt(images[:2], name, 3, range(2), seed=4), whole[:2])
    order = [5, 0, 3]
    assert np.array_equal(corrupt(images[order], name, 3, order, seed=4), whole[order])


@pytest.mark.parametrize("name", sorted(set(ALL19) - set(DETERMINISTIC)))
def test_random_corruptions_differ_between_samples_severities_and_seeds(name, frost_pictures):
    image = some_images(1)
    found = {
        corrupt(image, name, severity, [sample], seed).tobytes()
        for severity in SEVERITIES
        for sample in (0, 1)
        for seed in (0, 1)
    }
    # One of five plain pictures, or a direction through the same few pixels, may be drawn twice.
    assert len(found) > 10 if name in ("frost", "motion_blur") else len(found) == 20


@pytest.mark.parametrize("name", ALL19)
def test_the_global_generator_is_neither_read_nor_moved(name, frost_pictures):
    images = some_images(1)
    np.random.seed(0)
    before = np.random.get_state()[1].copy()
    found = corrupt(images, name, 2, [0], seed=0)
    assert np.array_equal(np.random.get_state()[1], before)
    np.random.seed(1)
    assert np.array_equal(corrupt(images, name, 2, [0], seed=0), found)


@pytest.mark.parametrize("shape", [(1, 8, 8), (1, 28, 28), (3, 64, 64), (3, 28, 20), (3, 2, 2)], ids=str)
@pytest.mark.parametrize("name", ALL19)
def test_other_sizes_work_or_are_refused_in_one_line(name, shape, frost_pictures):
    dataset = data.from_arrays(some_images(2, shape), np.array([0, 1]), 2)
    corruptor = Corruptor(dataset, seed=0)
    too_large = name == "frost" and max(shape) > 40  # a fifth of 200 x 300 pixels
    if (shape[0] == 1 and name in COLOUR_ONLY) or too_large:
        with pytest.raises(UserError, match=f"{name} cannot be generated: it") as caught:
            resolve(name, corruptor)
        assert "\n" not in str(caught.value)
        assert ("too small for 64 x 64" if too_large else "colour images, not 1 channel") in str(caught.value)
    else:
        for perturbation in resolve(name, corruptor):
            found = corruptor.pixels(perturbation, 0, 2)
            assert found.shape == (2, *shape)
            assert ((found >= 0) & (found <= 1)).all()


# --- blurs -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gaussian_blur", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur"])
@pytest.mark.parametrize("severity", SEVERITIES)
def test_a_blur_leaves_a_plain_image_alone(name, severity):
    """Up to truncation: a sum of weights of 1 - 1e-8 is one grey less."""
    found = corrupt(all_of(137), name, severity, [0], seed=0)
    assert set(np.unique(found)) <= {136, 137}


def test_gaussian_blur_spreads_a_point_by_the_kernel():
    image = all_of(0)
    image[0, 1, 16, 16] = 255
    found = corrupt(image, "gaussian_blur", 5, [0], seed=0)[0]  # sigma 1, cut off at 4
    tap = np.exp(-(np.arange(-4, 5) ** 2) / 2)
    tap /= tap.sum()
    expected = np.zeros((32, 32))
    expected[12:21, 12:21] = np.outer(tap, tap)
    assert np.array_equal(found[1], np.floor(expected * 255))
    assert not found[[0, 2]].any()


def test_defocus_by_the_widest_disk_is_the_mean_of_nine():
    """Radius 1.5 holds the 3 x 3 pixels around; borders are mirrored without repeating the last pixel."""
    image = some_images(1)
    found = corrupt(image, "defocus_blur", 5, [0], seed=0)[0].astype(int)
    padded = np.pad(image[0].astype(float), ((0, 0), (1, 1), (1, 1)), mode="reflect")
    mean = sum(padded[:, i : i + 32, j : j + 32] for i in range(3) for j in range(3)) / 9
    assert np.abs(found - np.floor(mean)).max() <= 1
    assert (found == np.floor(mean)).mean() > 0.85  # all but the whole numbers, a ninth of them


def test_the_disks_are_those_of_opencv():
    across = np.arange(-8, 9)
    for radius, alias in ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)):
        disk = (across**2 + across[:, None] ** 2 <= radius**2).astype(np.float32)
        disk = cv2.GaussianBlur(disk / disk.sum(), (3, 3), alias)
        assert blur._disk(radius, alias) == pytest.approx(disk[6:11, 6:11], rel=2e-7)
        assert np.abs(disk).sum() == np.abs(disk[6:11, 6:11]).sum()


def named_pixels():
    """Each pixel says where it is: its row in red, its column in green."""
    image = np.zeros((1, 3, 32, 32), np.uint8)
    image[0, 0], image[0, 1] = np.arange(32)[:, None], np.arange(32)
    return image


def test_glass_moves_pixels_by_at_most_one_up_and_left_each_way_as_often():
    """At severity 1 sigma is too small to blur: the pixels are moved and nothing else."""
    image, moves = named_pixels(), []
    for sample in range(40):
        found = corrupt(image, "glass_blur", 1, [sample], seed=0).astype(int)
        up, left = image[0, 0] - found[0, 0], image[0, 1] - found[0, 1]
        assert not up[:2].any()
        assert not left[:, :2].any()
        moves.append(2 * up[2:, 2:] + left[2:, 2:])
    counts = np.bincount(np.concatenate(moves).ravel(), minlength=4)
    assert len(counts) == 4  # no other displacement
    assert stats.chisquare(counts).pvalue > 1e-4


def test_glass_twice_moves_pixels_by_at_most_two(monkeypatch):
    monkeypatch.setattr(blur, "smooth", lambda image, sigma: image)
    image = named_pixels()
    found = corrupt(image, "glass_blur", 4, [0], seed=0).astype(int)
    moves = image.astype(int) - found
    assert set(np.unique(moves)) == {0, 1, 2}


def half_gaussian(radius, sigma):
    weights = np.array([math.exp(-(i**2) / (2 * sigma**2)) for i in range(2 * radius + 1)])
    return weights / weights.sum()


@pytest.mark.parametrize(("degrees", "axis"), [(0, 1), (90, 0)])
def test_motion_smears_a_point_one_way_by_half_a_gaussian(degrees, axis):
    image = np.zeros((1, 32, 32), np.uint8)
    image[0, 20, 20] = 255
    line = motion(image, 6, 2, degrees)[0].take(20, axis=1 - axis)
    expected = np.zeros(32)
    expected[20 - np.arange(13)] = 255 * half_gaussian(6, 2)
    assert np.array_equal(line, np.rint(expected))


def test_motion_at_an_angle_goes_through_the_nearest_pixels():
    """At 30 degrees: i cos and i sin, for i = 0 to 4, are 0, .87, 1.73, 2.6, 3.46 and 0, .5, 1, 1.5, 2."""
    image = np.zeros((1, 32, 32), np.uint8)
    image[0, 20, 20] = 255
    found = motion(image, 2, 10, 30)[0]
    rows, columns = [0, 0, 1, 1, 2], [0, 1, 2, 3, 3]  # half a pixel is rounded down: sin(30) is below .5
    expected = np.zeros((32, 32))
    expected[20 - np.array(rows), 20 - np.array(columns)] = 255 * half_gaussian(2, 10)
    assert np.array_equal(found, np.rint(expected))


def test_motion_repeats_the_last_pixel_at_the_border():
    image = np.zeros((1, 4, 4), np.uint8)
    image[0, :, 3] = 200
    weights = half_gaussian(1, 1)
    assert motion(image, 1, 1, 0)[0, 0].tolist() == [
        0,
        round(200 * weights[2]),
        round(200 * (1 - weights[0])),
        200,
    ]


def test_zoom_by_nothing_but_one_is_the_image(monkeypatch):
    monkeypatch.setattr(blur, "zoom_in", lambda image, factor: image if factor == 1 else 0 * image)
    image = all_of(240)
    for severity, factors in zip(SEVERITIES, (7, 12, 16, 21, 26), strict=True):
        found = corrupt(image, "zoom_blur", severity, [0], seed=0)
        assert set(np.unique(found)) <= {480 // (factors + 1), 480 // (factors + 1) - 1}


# --- weather -----------------------------------------------------------------------------------------


class Constant:
    """A generator that draws one value for ever."""

    def __init__(self, share):
        self.share = share

    def uniform(self, low, high, size=None):
        return np.full(size if size is not None else (), low + self.share * (high - low))


def test_the_diamond_square_map_of_two_by_two_by_hand():
    """Draws of w at each point: the centre is w, an edge (2 w) / 4 + w; scaled by the largest, 1.5 w."""
    found = weather.plasma(2, 3, Constant(1.0))
    assert found == pytest.approx(np.array([[0, 1], [1, 2 / 3]]))


def test_the_diamond_square_map_of_four_by_four_by_hand():
    """w = 100^2, then w / 9 for decay 3. Level 1: m = w, e = 1.5 w at (0, 2) and (2, 0).
    Level 2: centres (0 + e + e + m) / 4 + w / 9 = w + w / 9; e.g. (0, 1) is (0 + e + 2 centres) / 4 + w / 9.
    """
    w, decay = 1.0, 9
    edge, middle = 1.5 * w, w
    centre = (0 + 2 * edge + middle) / 4 + w / decay
    beside_corner = (0 + edge + 2 * centre) / 4 + w / decay
    beside_middle = (middle + edge + 2 * centre) / 4 + w / decay
    expected = np.array(
        [
            [0, beside_corner, edge, beside_corner],
            [beside_corner, centre, beside_middle, centre],
            [edge, beside_middle, middle, beside_middle],
            [beside_corner, centre, beside_middle, centre],
        ]
    )
    found = weather.plasma(4, 3, Constant(1.0))
    assert found == pytest.approx(expected / expected.max())


@pytest.mark.parametrize(("severity", "amount"), [(1, 0.2), (2, 0.5), (3, 0.75), (4, 1), (5, 1.5)])
def test_fog_over_white_runs_from_its_lowest_to_its_highest_point(severity, amount):
    """(1 + a m) / (1 + a) with m from 0 to 1; over black there is none to see."""
    for sample in range(3):
        found = corrupt(all_of(255), "fog", severity, [sample], seed=0)
        assert found.min() == math.floor(255 / (1 + amount) + 1e-9)
        assert found.max() >= 254
        assert np.array_equal(found[0, 0], found[0, 1])
        assert not corrupt(all_of(0), "fog", severity, [sample], seed=0).any()


def test_fog_is_rougher_the_slower_its_draws_decay():
    def roughness(decay):
        maps = [weather.plasma(32, decay, np.random.default_rng(seed)) for seed in range(20)]
        return np.mean([np.abs(np.diff(m)).mean() / m.std() for m in maps])

    assert roughness(3) < roughness(2.5) < roughness(2) < roughness(1.75)


@pytest.mark.parametrize(
    ("severity", "kept", "threshold", "mean", "sd"),
    [(1, 0.95, 0.6, 0.1, 0.2), (2, 0.9, 0.5, 0.1, 0.2), (5, 0.8, 0.65, 0.3, 0.3)],
)
def test_snow_over_black_is_a_paler_black_and_flakes_that_turn_onto_themselves(
    severity, kept, threshold, mean, sd
):
    found = corrupt(all_of(0, 100), "snow", severity, range(100), seed=0)
    assert np.array_equal(found, found[:, :, ::-1, ::-1])
    ground = math.floor(255 * 0.5 * (1 - kept) + 1e-9)
    assert found.min() == ground
    if severity == 2:  # no zoom: the flakes' brightness is that of a cut normal law, twice
        flake = stats.norm(mean, sd).expect(lambda v: v, lb=threshold)
        assert (found.astype(int) - ground).mean() / 255 == pytest.approx(2 * flake, rel=0.08)


def test_frost_adds_a_share_of_one_picture_of_five(frost_pictures):
    """Over black what is left is the weight times the picture's colour, truncated."""
    for severity, weight in zip(SEVERITIES, (0.2, 0.3, 0.4, 0.4, 0.45), strict=True):
        found = corrupt(all_of(0, 100), "frost", severity, range(100), seed=0)
        values = [np.unique(image).tolist() for image in found]
        expected = [[int(weight * colour[0] + 1e-9)] for colour in FROST_COLOURS]
        counts = [values.count(value) for value in expected]
        assert sum(counts) == 100
        assert stats.chisquare(counts).pvalue > 1e-4
    white = corrupt(all_of(100, 1), "frost", 3, [0], seed=0)
    assert set(np.unique(white)) <= {int(0.9 * 100 + 0.4 * colour[0] + 1e-9) for colour in FROST_COLOURS}


def test_frost_pictures_are_taken_at_every_fifth_pixel(frost_pictures, monkeypatch):
    picture = np.zeros((200, 300, 3), np.uint8)
    picture[2::5, 2::5] = 255
    Image.fromarray(picture).save(frost_pictures / "frost1.png")
    first_picture = weather._frost_pictures()[0]
    assert first_picture.shape == (3, 40, 60)
    assert (first_picture == 255).all()


def test_the_frost_package_is_looked_for_and_not_imported(tmp_path, monkeypatch):
    package = tmp_path / "imagecorruptions"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert weather._frost_folder() == package / "frost"
    dataset = fake_cifar10(2)
    with pytest.raises(UserError, match=r"frost1.png is not the authors' picture"):
        resolve("frost", Corruptor(dataset, 0))


def test_without_its_pictures_frost_is_an_error_by_name_and_left_out_of_a_group(no_frost):
    corruptor = Corruptor(fake_cifar10(2), 0)
    with pytest.raises(UserError, match=r"frost cannot be generated: .*imagecorruptions.*--corruptions-dir"):
        resolve("frost(severity=2)", corruptor)
    assert corruptor.notes == []
    for group, count in (("common", 14), ("all", 18)):
        assert {p.name for p in resolve(group, corruptor)} == set(corruptions.GROUPS[group]) - {"frost"}
        assert len(resolve(f"{group}(severity=1)", corruptor)) == count
    notes = [note for note in corruptor.notes if note.startswith("frost is left out")]
    assert len(notes) == 1


@pytest.mark.parametrize("severity", [4, 5])
def test_mud_is_brown_and_lies_where_the_image_is_not(severity):
    """m brown + (1 - m) image, with m 0 or from 0.8 to 1."""
    white = corrupt(all_of(255, 20), "spatter", severity, range(20), seed=0).astype(float)
    black = corrupt(all_of(0, 20), "spatter", severity, range(20), seed=0).astype(float)
    muddy = black.any(axis=1)
    assert 0.01 < muddy.mean() < 0.6
    assert (white.transpose(0, 2, 3, 1)[~muddy] == 255).all()
    for channel, brown in enumerate((63, 42, 20)):
        m = black[:, channel][muddy] / brown
        assert m.max() <= 1
        assert m.min() > 0.8 - 1 / brown - 1e-9
        assert (
            np.abs(white[:, channel][muddy] - (black[:, channel][muddy] + 255 * (1 - m))).max()
            < 255 / brown + 1
        )


@pytest.mark.parametrize("severity", [1, 2, 3])
def test_water_is_pale_turquoise_and_at_most_half(severity):
    found = corrupt(all_of(0, 20), "spatter", severity, range(20), seed=0).astype(int)
    brightest = found.max(axis=(0, 2, 3))
    assert brightest.tolist() == [int(0.5 * 175), 119, 119]
    assert (abs(found[:, 0] - found[:, 1] * 175 / 238) < 1.5).all()
    assert np.array_equal(found[:, 1], found[:, 2])
    grey_image = corrupt(all_of(60, 20), "spatter", severity, range(20), seed=0)
    assert (grey_image >= 60).all()


def test_edges_are_those_of_opencv():
    rng = np.random.default_rng(0)
    for k in range(60):
        image = cv2.GaussianBlur(rng.integers(0, 256, (32, 32)).astype(np.uint8), (3, 3), 0.6 + k % 3)
        assert np.array_equal(canny(image, 50, 150), cv2.Canny(image, 50, 150) > 0)


def test_the_histogram_is_flattened_as_opencv_does():
    rng = np.random.default_rng(0)
    for image in (rng.integers(0, 256, (32, 32)), rng.integers(3, 20, (32, 32)), np.full((4, 4), 7)):
        image = image.astype(np.uint8)
        assert np.array_equal(weather._equalised(image), cv2.equalizeHist(image))


# --- digital, colours --------------------------------------------------------------------------------


def test_hue_saturation_and_value_are_those_of_the_standard_library():
    image = some_images(1, (3, 16, 16))[0] / 255
    image[:, 0, :4] = [[0, 0.5, 1, 0.25], [0, 0.5, 1, 0.25], [0, 0.5, 0, 1]]  # black, greys, ties
    found = np.stack(hsv(image))
    back = rgb(*found)
    for i in range(16):
        for j in range(16):
            assert found[:, i, j] == pytest.approx(colorsys.rgb_to_hsv(*image[:, i, j]), abs=1e-12)
            assert back[:, i, j] == pytest.approx(colorsys.hsv_to_rgb(*found[:, i, j]), abs=1e-12)
    assert back == pytest.approx(image)


def test_luma():
    assert grey(np.ones((3, 1, 1)))[0, 0, 0] == pytest.approx(1)
    assert grey(np.array([1.0, 0.5, 0])[:, None, None])[0, 0, 0] == pytest.approx(0.299 + 0.587 / 2)


def test_brightness_adds_to_the_value_of_greys():
    found = corrupt(all_of(100), "brightness", 2, [0], seed=0)
    assert set(np.unique(found)) == {125}  # 100 + 25.5, truncated
    assert set(np.unique(corrupt(all_of(100, 1, (1, 8, 8)), "brightness", 2, [0], seed=0))) == {125}
    assert (corrupt(all_of(200), "brightness", 5, [0], seed=0) == 255).all()


def test_contrast_is_a_share_of_the_distance_from_the_channel_mean():
    image = np.zeros((1, 3, 32, 32), np.uint8)
    image[0, 0, :16], image[0, 1, :16], image[0, 2] = 200, 100, 7
    found = corrupt(image, "contrast", 5, [0], seed=0)[0]
    assert (np.unique(found[0]).tolist(), np.unique(found[1]).tolist()) == ([85, 115], [42, 57])  # 15 %
    assert set(np.unique(found[2])) <= {6, 7}


def test_saturation_is_scaled_and_moved():
    """(1, .5, .5) has hue 0, saturation .5, value 1: at .3 S = .15; at 2.5 S + .2 it is 1."""
    image = np.broadcast_to(np.array([1, 0.5, 0.5])[None, :, None, None], (1, 3, 4, 4))
    assert corrupt(image, "saturate", 1, [0], seed=0)[0, :, 0, 0].tolist() == [
        255,
        int(255 * 0.85),
        int(255 * 0.85),
    ]
    assert corrupt(image, "saturate", 5, [0], seed=0)[0, :, 0, 0].tolist() == [255, 0, 0]


def test_elastic_without_shifts_or_strength_is_the_identity():
    image = some_images(1)[0] / 255
    assert digital.affine(image, np.zeros((3, 2))) == pytest.approx(image)
    assert digital.displaced(image, 0, 0, np.random.default_rng(0)) == pytest.approx(image)


def test_elastic_moves_all_as_its_three_points_move():
    image = some_images(1)[0] / 255
    right, down = digital.affine(image, np.array([[2, 0]] * 3)), digital.affine(image, np.array([[0, 1]] * 3))
    assert right[:, :, 2:] == pytest.approx(image[:, :, :-2])
    assert right[:, :, 0] == pytest.approx(image[:, :, 2])  # mirrored, the border itself not repeated
    assert down[:, 1:] == pytest.approx(image[:, :-1])


def test_elastic_maps_as_opencv_does():
    rng = np.random.default_rng(0)
    image = cv2.GaussianBlur(rng.random((32, 32, 3)).astype(np.float32), (5, 5), 1.5)
    before = np.float32([[26, 26], [26, 6], [6, 6]])
    for _ in range(5):
        shifts = rng.uniform(-2.5, 2.5, (3, 2)).astype(np.float32)
        matrix = cv2.getAffineTransform(before, before + shifts)
        expected = cv2.warpAffine(image, matrix, (32, 32), borderMode=cv2.BORDER_REFLECT_101)
        found = digital.affine(image.transpose(2, 0, 1), shifts).transpose(1, 2, 0)
        assert np.abs(found - expected).max() < 0.01  # older OpenCV rounds positions to 1/32 pixel


def test_elastic_displaces_by_at_most_its_strength():
    ramp = np.broadcast_to(np.arange(32.0), (1, 32, 32))
    moved = digital.displaced(ramp, 3.2, 0.96, np.random.default_rng(0)) - ramp
    assert 0.3 < np.abs(moved).max() < 3.2
    assert np.abs(moved[0, 8:24, 8:24]).mean() > 0.1


@pytest.mark.parametrize("severity", SEVERITIES)
def test_elastic_leaves_a_plain_image_alone(severity):
    assert set(np.unique(corrupt(all_of(137), "elastic_transform", severity, [0], seed=0))) <= {136, 137}


def test_pixelate_has_as_many_pixels_as_it_says():
    """Rows of the small picture, each stretched: 20 of them at severity 5."""
    image = np.zeros((1, 3, 32, 32), np.uint8)
    image[0] = np.arange(0, 256, 8)[:, None]
    found = corrupt(image, "pixelate", 5, [0], seed=0)[0, 0]
    small = Image.fromarray(image[0, 0]).resize((20, 20), Image.Resampling.BOX)
    assert np.array_equal(found, np.asarray(small.resize((32, 32), Image.Resampling.BOX)))


def test_jpeg_is_pillows_round_trip():
    image = np.repeat(np.repeat(some_images(1, (3, 8, 8)), 4, axis=2), 4, axis=3)
    for severity, quality in zip(SEVERITIES, (80, 65, 58, 50, 40), strict=True):
        file = BytesIO()
        Image.fromarray(image[0].transpose(1, 2, 0)).save(file, "JPEG", quality=quality)
        expected = np.asarray(Image.open(file)).transpose(2, 0, 1)
        assert np.array_equal(corrupt(image, "jpeg_compression", severity, [0], seed=0)[0], expected)


@pytest.mark.parametrize(
    ("library", "source"), [("libjpeg-turbo", "generated@3(libjpeg-turbo)"), (None, "generated@3")]
)
def test_jpeg_says_where_its_library_is_not_the_authors(library, source, monkeypatch):
    monkeypatch.setattr(images, "jpeg_library", lambda: library)
    corruptor = Corruptor(fake_cifar10(2), 3)
    assert {p.source for p in resolve("jpeg_compression", corruptor)} == {source}
    assert {p.source for p in resolve("pixelate", corruptor)} == {"generated@3"}
    assert any("libjpeg-turbo" in note for note in corruptor.notes) == bool(library)


# --- groups and released arrays ----------------------------------------------------------------------


def test_groups(frost_pictures):
    corruptor = Corruptor(fake_cifar10(2), 0)
    for group, names in (
        ("common", COMMON15),
        ("extra", EXTRA4),
        ("all", ALL19),
        ("noise", ["impulse_noise", "speckle_noise", "gaussian_noise", "shot_noise"]),
    ):
        found = resolve(group, corruptor)
        assert {(p.name, p.params["severity"]) for p in found} == {(n, s) for n in names for s in SEVERITIES}
        assert len(found) == 5 * len(names)
    assert set(CORRUPTIONS) == set(ALL19)


@pytest.fixture
def released(tmp_path):
    """A tiny CIFAR-10-C: 20 images, whose first red value is their row."""
    dataset, folder = fake_cifar10(), tmp_path / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "labels.npy", np.tile(dataset.labels, 5).astype(np.uint8))
    rows = np.zeros((100, 32, 32, 3), np.uint8)
    rows[:, 0, 0, 0] = np.arange(100)
    for name in ALL19:
        np.save(folder / f"{name}.npy", rows)
    return folder


def test_all_released_arrays_are_read_frost_and_jpeg_too(released, no_frost):
    corruptor = Corruptor(fake_cifar10(), 0, released.parent)
    found = resolve("all", corruptor)
    assert len(found) == 95
    for perturbation in found:
        red = corruptor.pixels(perturbation, 5, 20)[:, 0, 0, 0] * 255
        first_row = 20 * (perturbation.params["severity"] - 1)
        assert np.rint(red).astype(int).tolist() == list(range(first_row + 5, first_row + 20))
    assert corruptor.notes == []
    assert all("libjpeg" not in p.source for p in found)


def test_released_arrays_are_mapped_not_read(released):
    assert isinstance(images._open_released(released, "fog", fake_cifar10()), np.memmap)


def test_a_missing_file_is_answered_with_the_list_of_files(released):
    (released / "snow.npy").unlink()
    with pytest.raises(UserError, match=r"snow.npy: no such file") as caught:
        resolve("common", Corruptor(fake_cifar10(), 0, released))
    message = str(caught.value)
    assert "\n" not in message
    assert "labels.npy" in message
    assert all(f"{name}.npy" in message for name in ALL19)


def test_a_benchmark_over_all_says_what_it_left_out(no_frost, digits_classifier):
    request = Request(modules={"net": digits_classifier}, corruptions="all(severity=1)", attacks="none", n=10)
    with Store(None) as store:
        report = Benchmark(request).run(store)
    measured = set(report.results["perturbation"]) - {"clean"}
    assert measured == set(ALL19) - COLOUR_ONLY
    for name in COLOUR_ONLY:
        assert sum(line.startswith(f"{name} is left out") for line in report.warnings) == 1


# --- means -------------------------------------------------------------------------------------------


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path / "store") as store:
        yield store


def measured(names, model="net", lost=0, clean=9, source="generated@0", seed=0):
    """Cells whose number of right ones of ten at the corruption at `at` is 10 - at % 5 - `lost`, clean 9."""
    cells = [(card(model, seed), CLEAN, first(clean))]
    for name in names:
        right = 10 - ALL19.index(name) % 5 - lost
        cells += [(card(model, seed), corruption(name, s, source), first(right)) for s in SEVERITIES]
    return cells


def board_of(store, *cells):
    return leaderboard.entries_frame(scores(run(store, cells), store))


def test_the_means_over_15_and_19_are_two_columns(store):
    """15 corruptions: each of 100, 90, 80, 70, 60 % three times, mean 80. Four more of 100 to 70 %: 85."""
    frame = board_of(store, *measured(ALL19))
    (line,) = frame.to_dict("records")
    assert line["common15"] == pytest.approx(80)
    assert line["all19"] == pytest.approx((15 * 80 + 4 * 85) / 19)
    # impulse 80, speckle 100, gaussian 100, shot 90
    assert line["noise"] == pytest.approx(92.5)
    shown = [column for column in frame if not column.endswith("_std")]
    first = shown.index("clean")
    assert shown[first : first + 4] == ["clean", "noise", "common15", "all19"]
    assert shown[first + 4 : first + 23] == ALL19


@pytest.mark.parametrize("missing", ["frost", "jpeg_compression"])
def test_there_is_no_mean_over_fourteen(store, missing):
    frame = board_of(store, *measured([name for name in ALL19 if name != missing]))
    assert "common15" not in frame
    assert "all19" not in frame
    assert "noise" in frame


def test_a_run_over_the_15_has_no_mean_over_19(store):
    frame = board_of(store, *measured(COMMON15))
    assert frame["common15"].tolist() == [80]
    assert "all19" not in frame
    assert "noise" not in frame  # of the paper's four, speckle is not among them


def test_in_short_the_means_stand_for_their_corruptions(store):
    _, numbers = export.in_short(board_of(store, *measured(ALL19)))
    assert list(numbers) == ["clean", "noise", "common15", "all19"]


def test_means_keep_their_place_when_tables_are_joined(store, tmp_path):
    frame = board_of(store, *measured(ALL19))
    for name in ("a.csv", "b.csv"):
        (tmp_path / name).write_text(export.to_csv(frame))
    joined, _ = combine.gather([tmp_path / "a.csv", tmp_path / "b.csv"])
    measured_columns = [column for column in joined if f"{column}_std" in joined]
    assert measured_columns[:4] == ["clean", "noise", "common15", "all19"]
    assert set(measured_columns[4:]) == set(ALL19)
    assert joined["all19"].tolist() == pytest.approx([81.05, 81.05])


def test_another_jpeg_library_is_no_other_origin_but_two_of_them_are(store, tmp_path):
    turbo, other = "generated@0(libjpeg-turbo)", "generated@0(libjpeg 6.2)"
    run(store, measured(["fog"]))
    run(store, [*measured(["jpeg_compression"], source=turbo), *measured(["snow"])[1:]])
    frame, _ = from_folder(tmp_path / "store")
    assert len(frame) == 1
    assert frame["corruption_source"].tolist() == [f"generated@0+{turbo}"]
    run(store, measured(["jpeg_compression"], source=other))
    frame, _ = from_folder(tmp_path / "store")
    assert len(frame) == 2


# --- corruption errors -------------------------------------------------------------------------------


def test_mce_by_hand():
    """Errors 20 and 30 against 40 and 20: (0.5 + 1.5) / 2; relative to clean 10 and 15: 10/25 and 20/5."""
    assert statistics.mce([20, 30], [40, 20]) == pytest.approx(100)
    assert statistics.mce(np.array([20, 30]) - 10, np.array([40, 20]) - 15) == pytest.approx(220)
    assert math.isnan(statistics.mce([20, 30], [40, 0]))
    assert math.isnan(statistics.mce([20, 30], [40, (100 - 3 * 33.3) - 0.1]))  # 0 but for rounding


def two_models(store):
    """Errors of base: 10, 20, 30, 40, 50 % three times each, clean 0; of net: 0 to 40 %, clean 10 %."""
    return board_of(
        store, *measured(COMMON15, "net"), *measured(COMMON15, "base", lost=1, clean=10)
    ).set_index("model", drop=False)


def test_corruption_errors_against_a_baseline(store):
    frame = with_mce(two_models(store), "base")
    assert frame["mce_abs"].to_dict() == pytest.approx({"net": 20, "base": 30})
    # (0/10 + 10/20 + 20/30 + 30/40 + 40/50) / 5, and less clean: (-10/10 + 0/20 + 10/30 + 20/40 + 30/50) / 5
    assert frame["mce_rel(base)"].to_dict() == pytest.approx({"net": 54.333333333, "base": 100})
    assert frame["relative_mce(base)"].to_dict() == pytest.approx({"net": 8.666666667, "base": 100})
    assert list(frame.columns[-5:]) == [
        "mce_abs",
        "mce_rel(base)",
        "relative_mce(base)",
        "corruption_source",
        "source",
    ]


def test_without_a_baseline_there_is_the_mean_error_alone(store):
    frame = with_mce(two_models(store))
    assert frame["mce_abs"].to_dict() == pytest.approx({"net": 20, "base": 30})
    assert not [column for column in frame if "rel" in column]


def test_a_baseline_that_makes_no_errors_gives_no_quotient(store):
    frame = with_mce(two_models(store), "net")
    assert frame["mce_rel(net)"].isna().all()  # net has none under a fifth of the corruptions


def test_lines_that_were_measured_otherwise_are_not_held_against_the_baseline(store):
    frame = two_models(store)
    frame.loc["net", "corruption_source"] = "released"
    found = with_mce(frame, "base")
    assert found["mce_rel(base)"].isna().to_dict() == {"net": True, "base": False}
    assert found["mce_abs"].notna().all()


def test_a_line_without_all_fifteen_has_no_corruption_error(store):
    frame = two_models(store)
    frame.loc["net", "fog"] = float("nan")
    found = with_mce(frame, "base")
    assert found.loc["net", ["mce_abs", "mce_rel(base)", "relative_mce(base)"]].isna().all()
    with pytest.raises(UserError, match="unknown baseline 'net'"):
        with_mce(frame, "net")


def test_baselines_that_are_not_there_or_not_alone_are_refused(store):
    frame = two_models(store)
    with pytest.raises(UserError, match="unknown baseline 'bas'; did you mean base"):
        with_mce(frame, "bas")
    again = pd.concat([frame, frame.assign(recipe="long")], ignore_index=True)
    with pytest.raises(UserError, match=r"'base' names several lines: choose one of base@long, base@quick"):
        with_mce(again, "base")
    assert with_mce(again, "base@long")["mce_rel(base@long)"].notna().all()
    with pytest.raises(UserError, match=r"mCE takes all 15 common corruptions: .*--corruptions common"):
        with_mce(frame.drop(columns="snow"), "base")


def test_an_ensemble_can_be_the_baseline(store):
    cards = [card("net", seed) for seed in (0, 1)]
    cells = [
        (classifier, perturbation, pattern)
        for classifier in (*cards, ensemble(*cards))
        for _, perturbation, pattern in measured(COMMON15, lost=1)
    ]
    frame = with_mce(board_of(store, *cells), "netx2")
    assert frame["mce_rel(netx2)"].tolist() == pytest.approx([100, 100])


def test_the_command_shows_corruption_errors(store, tmp_path, command):
    two_models(store)
    status, out, _ = command(
        "leaderboard", tmp_path / "store", "--mce", "base", "--sort", "mce_abs", "--format", "csv"
    )
    assert status == 0
    frame = pd.read_csv(StringIO(out))
    assert frame["model"].tolist() == ["net", "base"]
    assert frame["mce_rel(base)"].tolist() == [54.33, 100]
    (tmp_path / "board.csv").write_text(out)
    status, out, _ = command("leaderboard", tmp_path / "board.csv", "--format", "csv")
    assert status == 0
    assert "mce" not in out  # worked out anew when asked for
    status, out, _ = command("leaderboard", tmp_path / "store", "--mce", "none")
    assert status == 0
    assert "mce_abs" in out
    status, out, err = command("leaderboard", tmp_path / "store", "--mce", "bse")
    assert (status, out) == (1, "")
    assert "did you mean base" in err
    assert err.count("\n") == 1


def test_tables_load_no_image_library():
    code = (
        "import sys\n"
        "from robust_interp.results import combine, leaderboard, mce\n"
        "print([m for m in ('torch', 'scipy.ndimage', 'PIL', 'cv2') if m in sys.modules])"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"

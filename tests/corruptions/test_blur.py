"""The blurs, against closed forms and OpenCV."""

import math

import cv2
import numpy as np
import pytest
import scipy
from scipy import stats
from support.cifar_c import SEVERITIES, all_of, some_images

from robust_interp.corruptions import blur, corrupt
from robust_interp.corruptions.imaging import motion, zoom_in


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


@pytest.mark.parametrize(
    ("radius", "alias"),
    [(0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1), (2.5, 0.01), (3, 0.1), (8, 0.5), (10, 0.5)],
)
def test_the_disks_are_those_of_opencv(radius, alias):
    reach, smoothing = (8, (3, 3)) if radius <= 8 else (radius, (5, 5))
    across = np.arange(-reach, reach + 1)
    disk = (across**2 + across[:, None] ** 2 <= radius**2).astype(np.float32)
    disk = cv2.GaussianBlur(disk / disk.sum(), smoothing, alias)
    found = blur.disk(radius, alias)
    inner = slice(reach - len(found) // 2, reach + len(found) // 2 + 1)
    assert found == pytest.approx(disk[inner, inner], rel=2e-7)
    assert np.abs(disk).sum() == np.abs(disk[inner, inner]).sum()


def test_a_wide_disk_is_the_sum_over_it():
    """Of radius 4, which goes by Fourier's way, at 120 pixels."""
    image = some_images(1, (3, 130, 120))
    found = corrupt(image, "defocus_blur", 2, [0], seed=0)[0]
    expected = scipy.ndimage.correlate(image[0] / 255, blur.disk(4, 0.5)[None], mode="mirror") * 255
    assert (found != np.floor(expected)).mean() < 1e-3
    assert np.abs(found - expected).max() < 1 + 1e-9


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


@pytest.mark.parametrize("reach", [1, 2, 4])
def test_glass_goes_from_the_last_pixel_to_the_first(reach):
    """As the loop of the original does, one pixel at a time."""
    H, W = 14, 12
    moves = np.random.default_rng(reach).integers(-reach, reach, (2, H - 2 * reach, W - 2 * reach))
    expected = np.arange(H * W).reshape(H, W)
    for row in range(H - reach, reach, -1):
        for column in range(W - reach, reach, -1):
            down, right = moves[:, row - reach - 1, column - reach - 1]
            expected[row, column] = expected[row + down, column + right]
    assert np.array_equal(blur.taken_from(moves, reach, (H, W)), expected)


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


@pytest.mark.parametrize("size", [(2, 3), (8, 8), (15, 31), (32, 32), (64, 40)], ids=str)
def test_zooming_in_is_scipys_to_the_last_bit(size):
    H, W = size
    image = np.random.default_rng(0).random((2, H, W)).astype(np.float32)
    for factor in (*np.arange(1, 1.31, 0.03), 1.75, 2.25, 4.5):
        tall, wide = int(np.ceil(H / factor)), int(np.ceil(W / factor))
        top, left = (H - tall) // 2, (W - wide) // 2
        for found, plane in zip(zoom_in(image, factor), image, strict=True):
            whole = scipy.ndimage.zoom(plane[top : top + tall, left : left + wide], factor, order=1)
            down, right = (whole.shape[0] - H) // 2, (whole.shape[1] - W) // 2
            assert np.array_equal(found, whole[down : down + H, right : right + W])

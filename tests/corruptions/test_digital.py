"""Contrast, elastic, pixelate, JPEG, saturate and colours, against closed forms and other libraries."""

import colorsys

import cv2
import numpy as np
import pytest
from support.cifar_c import (
    SEVERITIES,
    all_of,
    fake_cifar10,
    some_images,
)

from robust_interp.corruptions import Corruptor, corrupt, digital, images, parse_corruptions
from robust_interp.corruptions.imaging import grey, hsv, rgb


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


def test_elastic_smooths_widely_as_it_does_closely(monkeypatch):
    """A field that is mirrored at its borders, by cosines and by SciPy's sum."""
    image = some_images(1, (3, 60, 50))[0] / 255
    by_cosines = digital.displaced(image, 30, 25, np.random.default_rng(0))
    monkeypatch.setattr(digital, "DIRECTLY", 10_000)
    assert by_cosines == pytest.approx(digital.displaced(image, 30, 25, np.random.default_rng(0)), abs=1e-9)


@pytest.mark.parametrize("severity", SEVERITIES)
def test_elastic_leaves_a_plain_image_alone(severity):
    assert set(np.unique(corrupt(all_of(137), "elastic_transform", severity, [0], seed=0))) <= {136, 137}


@pytest.mark.parametrize(
    ("library", "source"), [("libjpeg-turbo", "generated@3(libjpeg-turbo)"), (None, "generated@3")]
)
def test_jpeg_says_where_its_library_is_not_the_authors(library, source, monkeypatch):
    monkeypatch.setattr(images, "jpeg_library", lambda: library)
    corruptor = Corruptor(fake_cifar10(2), 3)
    assert {p.source for p in parse_corruptions("jpeg_compression", corruptor)} == {source}
    assert {p.source for p in parse_corruptions("pixelate", corruptor)} == {"generated@3"}
    assert any("libjpeg-turbo" in note for note in corruptor.notes) == bool(library)

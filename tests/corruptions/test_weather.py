"""Snow, frost, fog, spatter and brightness, against closed forms and OpenCV."""

import math

import cv2
import numpy as np
import pytest
from PIL import Image
from scipy import stats
from support.cifar_c import FROST_COLOURS, SEVERITIES, all_of, fake_cifar10

from robust_interp import corruptions
from robust_interp.core.errors import UserError
from robust_interp.corruptions import Corruptor, corrupt, parse_corruptions, weather
from robust_interp.corruptions.imaging import canny


class Constant:
    """A generator that draws one value for ever."""

    def __init__(self, share):
        self.share = share

    def uniform(self, low, high, size=None):
        return np.full(size if size is not None else (), low + self.share * (high - low))


def test_the_diamond_square_map_of_two_by_two_by_hand():
    """Draws of w at each point: the centre is w, an edge (2 w) / 4 + w; scaled by the largest, 1.5 w."""
    found = weather.plasma(2, 3, [Constant(1.0)])[0]
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
    found = weather.plasma(4, 3, [Constant(1.0)])[0]
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
        maps = weather.plasma(32, decay, [np.random.default_rng(seed) for seed in range(20)])
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
    first_picture = weather.frost_pictures(0.2)[0]
    assert first_picture.shape == (3, 40, 60)
    assert (first_picture == 255).all()


def test_frost_pictures_shrink_as_with_opencv(frost_pictures):
    picture = np.random.default_rng(0).integers(0, 256, (200, 300, 3), dtype=np.uint8)
    Image.fromarray(picture).save(frost_pictures / "frost1.png")
    found = weather.frost_pictures(0.3)[0].transpose(1, 2, 0).astype(int)
    assert np.abs(found - cv2.resize(picture, None, fx=0.3, fy=0.3)).max() <= 1  # it rounds between the axes
    assert np.array_equal(weather.frost_pictures(1.0)[0], picture.transpose(2, 0, 1))


def test_the_frost_package_is_looked_for_and_not_imported(tmp_path, monkeypatch):
    package = tmp_path / "imagecorruptions"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    assert weather.frost_folder() == package / "frost"
    dataset = fake_cifar10(2)
    with pytest.raises(UserError, match=r"frost1.png is not the original frost image"):
        parse_corruptions("frost", Corruptor(dataset, 0))


def test_without_its_pictures_frost_is_an_error_by_name_and_left_out_of_a_group(no_frost):
    corruptor = Corruptor(fake_cifar10(2), 0)
    with pytest.raises(UserError, match=r"frost cannot be generated: .*imagecorruptions.*--corruptions-dir"):
        parse_corruptions("frost(severity=2)", corruptor)
    assert corruptor.notes == []
    for group, count in (("common", 14), ("all", 18)):
        assert {p.name for p in parse_corruptions(group, corruptor)} == set(corruptions.GROUPS[group]) - {
            "frost"
        }
        assert len(parse_corruptions(f"{group}(severity=1)", corruptor)) == count
    notes = [
        note
        for note in corruptor.notes
        if note.startswith("frost and all means that include it are left out")
    ]
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
        assert np.array_equal(weather.equalised(image), cv2.equalizeHist(image))


def test_frost_is_a_part_of_a_picture_at_a_fifth_of_its_size(frost_pictures):
    """Red says the row and green the column: pixel i of a small picture is 5 i + 2, of which a fifth is i."""
    rows, columns = np.meshgrid(np.arange(200), np.arange(250), indexing="ij")
    picture = np.stack([rows, columns, 0 * rows], axis=2).astype(np.uint8)
    for name in weather.FROST_PICTURES:
        Image.fromarray(picture).save(frost_pictures / name)
    found = corrupt(all_of(0, 100), "frost", 1, range(100), seed=0).astype(int)  # weight 0.2
    assert (np.diff(found[:, 0], axis=1) == 1).all()
    assert (np.diff(found[:, 1], axis=2) == 1).all()
    tops, lefts = found[:, 0, 0, 0], found[:, 1, 0, 0]  # 32 x 32 of 40 x 50 pixels: 0 to 7 and 0 to 17
    assert set(tops) == set(range(8))
    assert lefts.min() < 3
    assert 14 < lefts.max() < 18

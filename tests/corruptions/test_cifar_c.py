"""All of CIFAR-C: pinned images, draws keyed by sample, groups, the released layout."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from support.cifar_c import (
    ALL19,
    COLOUR_ONLY,
    COMMON15,
    DETERMINISTIC,
    EXTRA4,
    SEVERITIES,
    fake_cifar10,
    some_images,
)

from robust_interp import corruptions, data
from robust_interp.benchmark.benchmark import Benchmark
from robust_interp.benchmark.request import Request
from robust_interp.core.errors import UserError
from robust_interp.corruptions import CORRUPTIONS, Corruptor, corrupt, parse_corruptions
from robust_interp.corruptions.released import open_released
from robust_interp.store import Store

# --- the released files ------------------------------------------------------------------------------

# benchmarks/corruption_md5.py --pins wrote this once the whole files' MD5 were the released ones: SHA-256
# of the first 100 images of each severity, (100, 3, 32, 32) uint8.
PINS = json.loads((Path(__file__).parent / "cifar10_c_first_100.json").read_text())


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape",
    [(1, 8, 8), (1, 28, 28), (3, 64, 64), (3, 28, 20), (3, 2, 2), (3, 50, 90), (1, 130, 121)],
    ids=str,
)
@pytest.mark.parametrize("name", ALL19)
def test_other_sizes_work_or_are_refused_in_one_line(name, shape, frost_pictures):
    dataset = data.from_arrays(some_images(2, shape), np.array([0, 1]), 2)
    corruptor = Corruptor(dataset, seed=0)
    # a fifth of 200 x 300 pixels, from 46 pixels on 60 x 90; a picture must be larger than the image
    too_large = name == "frost" and shape in ((3, 64, 64), (3, 50, 90))
    if (shape[0] == 1 and name in COLOUR_ONLY) or too_large:
        with pytest.raises(UserError, match=f"{name} cannot be generated: it") as caught:
            parse_corruptions(name, corruptor)
        assert "\n" not in str(caught.value)
        told = "too small for {1} x {2}" if too_large else "colour images (3 channels); these have 1"
        assert told.format(*shape) in str(caught.value)
    else:
        for perturbation in parse_corruptions(name, corruptor):
            found = corruptor.pixels(perturbation, 0, 2)
            assert found.shape == (2, *shape)
            assert ((found >= 0) & (found <= 1)).all()


# --- groups and released arrays ----------------------------------------------------------------------


def test_groups(frost_pictures):
    corruptor = Corruptor(fake_cifar10(2), 0)
    for group, names in (
        ("common", COMMON15),
        ("extra", EXTRA4),
        ("all", ALL19),
        ("noise", ["impulse_noise", "speckle_noise", "gaussian_noise", "shot_noise"]),
    ):
        found = parse_corruptions(group, corruptor)
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
    found = parse_corruptions("all", corruptor)
    assert len(found) == 95
    for perturbation in found:
        red = corruptor.pixels(perturbation, 5, 20)[:, 0, 0, 0] * 255
        first_row = 20 * (perturbation.params["severity"] - 1)
        assert np.rint(red).astype(int).tolist() == list(range(first_row + 5, first_row + 20))
    assert corruptor.notes == []
    assert all("libjpeg" not in p.source for p in found)


def test_released_arrays_are_mapped_not_read(released):
    assert isinstance(open_released(released, "fog", fake_cifar10()), np.memmap)


def test_a_missing_file_is_answered_with_the_list_of_files(released):
    (released / "snow.npy").unlink()
    with pytest.raises(UserError, match=r"snow.npy: no such file") as caught:
        parse_corruptions("common", Corruptor(fake_cifar10(), 0, released))
    message = str(caught.value)
    assert "\n" not in message
    assert "labels.npy" in message
    assert all(f"{name}.npy" in message for name in ALL19)


@pytest.mark.slow
def test_a_benchmark_over_all_says_what_it_left_out(no_frost, digits_classifier):
    request = Request(modules={"net": digits_classifier}, corruptions="all(severity=1)", attacks="none", n=10)
    with Store(None) as store:
        report = Benchmark(request).run(store)
    measured = set(report.results["perturbation"]) - {"clean"}
    assert measured == set(ALL19) - COLOUR_ONLY
    for name in COLOUR_ONLY:
        assert (
            sum(
                line.startswith(f"{name} and all means that include it are left out")
                for line in report.warnings
            )
            == 1
        )

"""Noise against closed forms, draws keyed by sample, and released arrays read row for row."""

import hashlib
import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import robust_interp
from robust_interp import corruptions, data
from robust_interp.benchmark.benchmark import Benchmark
from robust_interp.benchmark.request import Request
from robust_interp.classifiers.classifier import Classifier
from robust_interp.core.errors import UserError
from robust_interp.corruptions import Corruptor, corrupt, parse_corruptions
from robust_interp.store import Store

# The CIFAR-C generator's constants, severities 1 to 5.
SD = {"gaussian_noise": (0.04, 0.06, 0.08, 0.09, 0.10), "speckle_noise": (0.06, 0.1, 0.12, 0.16, 0.2)}
PHOTONS = (500, 250, 100, 75, 50)
SHARE = (0.01, 0.02, 0.03, 0.05, 0.07)

NOISES = ("gaussian_noise", "shot_noise", "impulse_noise", "speckle_noise")
SEVERITIES = (1, 2, 3, 4, 5)
LEVELS = (13, 128, 247)  # greys at which clipping bites below, hardly and above
N = 64

# The networks here are untrained or built to mislead, which evaluate remarks on.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


# --- distributions -----------------------------------------------------------------------------------


def truncated_normal_grey(mean, sd):
    """P(floor(255 clip(X, 0, 1)) = k), k = 0..255, for X ~ N(mean, sd)."""
    edges = stats.norm.cdf(np.arange(1, 256) / 255, loc=mean, scale=sd)  # 1/255 ... 255/255
    return np.diff(np.concatenate([[0.0], edges, [1.0]]))


def probabilities(name, severity, level):
    """P(result = k), k = 0..255, of a pixel that was `level`."""
    x = level / 255
    if name in SD:
        sd = SD[name][severity - 1]
        return truncated_normal_grey(x, sd if name == "gaussian_noise" else x * sd)
    expected = np.zeros(256)
    if name == "shot_noise":
        photons = PHOTONS[severity - 1]
        counts = np.arange(stats.poisson.ppf(1 - 1e-15, x * photons).astype(int) + 2)
        greys = np.minimum(counts / photons, 1) * 255
        np.add.at(expected, np.floor(greys).astype(int), stats.poisson.pmf(counts, x * photons))
    else:
        share = SHARE[severity - 1]
        expected[[0, 255]] += share / 2
        expected[level] += 1 - share
    return expected


@pytest.mark.slow
@pytest.mark.parametrize("severity", SEVERITIES)
@pytest.mark.parametrize("name", NOISES)
def test_noise_has_the_mean_the_variance_and_the_distribution_of_its_closed_form(name, severity):
    for level in LEVELS:
        images = np.full((N, 3, 32, 32), level, np.uint8)
        found = corrupt(images, name, severity, range(N), seed=0).astype(np.float64)
        expected, k = probabilities(name, severity, level), np.arange(256)
        assert expected.sum() == pytest.approx(1, abs=1e-12)
        mean = (k * expected).sum()
        variance = ((k - mean) ** 2 * expected).sum()
        fourth = ((k - mean) ** 4 * expected).sum()
        n = found.size
        assert abs(found.mean() - mean) < 5 * math.sqrt(variance / n)
        assert abs(((found - mean) ** 2).mean() - variance) < 5 * math.sqrt((fourth - variance**2) / n)
        observed = np.bincount(found.astype(int).ravel(), minlength=256)
        common = expected * n >= 10
        assert not observed[expected == 0].any()
        chi2 = ((observed - expected * n) ** 2)[common] / (expected * n)[common]
        rest = 1 - expected[common].sum()
        assert abs(observed[~common].sum() - n * rest) <= 5 * math.sqrt(n * rest) + 5
        assert stats.chi2.sf(chi2.sum(), common.sum() - 1) > 1e-6


@pytest.mark.parametrize("name", ["gaussian_noise", "speckle_noise"])
def test_the_closed_form_of_clipped_noise_is_that_of_scipys_integral(name):
    """Before truncation: E[clip(X, 0, 1)] by quadrature lies half a grey above the truncated one's mean."""
    x, sd = 247 / 255, SD[name][4] * (1 if name == "gaussian_noise" else 247 / 255)
    clipped = stats.norm(x, sd).expect(lambda v: v, lb=0, ub=1) + stats.norm.sf(1, x, sd)
    pmf = probabilities(name, 5, 247)
    below_white = pmf[:255].sum()
    truncated = (np.arange(256) * pmf).sum()
    assert truncated == pytest.approx(255 * clipped - below_white / 2, abs=0.01)


@pytest.mark.parametrize("name", ["speckle_noise", "shot_noise"])
def test_noise_that_grows_with_the_signal_leaves_black_alone(name):
    black = np.zeros((2, 3, 8, 8), np.uint8)
    assert not corrupt(black, name, 5, range(2), seed=0).any()


def test_impulse_noise_hits_values_not_pixels():
    found = corrupt(np.full((200, 3, 32, 32), 100, np.uint8), "impulse_noise", 5, range(200), seed=0)
    hit, share, pixels = found != 100, 0.07, 200 * 32 * 32
    for count, expected in ((hit.all(1), share**3), (hit.any(1), 1 - (1 - share) ** 3)):
        assert abs(count.mean() - expected) < 5 * math.sqrt(expected * (1 - expected) / pixels)


@pytest.mark.parametrize("name", NOISES)
def test_noise_is_independent_between_neighbours_channels_and_images(name):
    found = corrupt(np.full((40, 3, 32, 32), 128, np.uint8), name, 3, range(40), seed=0).astype(float)
    pairs = (
        (found[:-1], found[1:]),
        (found[:, :-1], found[:, 1:]),
        (found[:, :, :-1], found[:, :, 1:]),
        (found[..., :-1], found[..., 1:]),
    )
    for first, second in pairs:
        assert abs(np.corrcoef(first.ravel(), second.ravel())[0, 1]) < 5 / math.sqrt(first.size)


# --- truncation and types ----------------------------------------------------------------------------


def test_results_are_truncated_not_rounded():
    """Impulse noise leaves most values alone, so that what is left shows how they were converted."""
    for value, expected in ((0.5, 127), (0.999, 254), (254.9999 / 255, 254), (1.0, 255), (0.999 / 255, 0)):
        images = np.full((1, 1, 40, 40), value, np.float64)
        found = corrupt(images, "impulse_noise", 1, [0], seed=0).ravel()
        values, counts = np.unique(found, return_counts=True)
        assert values[counts.argmax()] == expected


def test_untouched_uint8_values_come_back_as_they_were():
    images = np.arange(256, dtype=np.uint8).repeat(12).reshape(1, 3, 32, 32)
    found = corrupt(images, "impulse_noise", 1, [0], seed=0)
    touched = found != images
    assert set(np.unique(found[touched])) <= {0, 255}
    assert touched.mean() < 0.03


@pytest.mark.parametrize("name", NOISES)
def test_results_are_uint8_and_the_input_is_not_changed(name):
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 8, 8), dtype=np.uint8)
    kept = images.copy()
    found = corrupt(images, name, 5, range(5), seed=0)
    assert found.dtype == np.uint8
    assert found.shape == images.shape
    assert np.array_equal(images, kept)
    assert (found != images).any()


@pytest.mark.slow
@pytest.mark.parametrize("name", NOISES)
def test_float64_pixels_are_corrupted_exactly_as_uint8_ones(name):
    """So many values that float32 arithmetic would truncate some of them differently."""
    images = np.random.default_rng(0).integers(0, 256, (500, 3, 32, 32), dtype=np.uint8)
    floats = corrupt(images / 255.0, name, 4, range(500), seed=0)
    assert np.array_equal(floats, corrupt(images, name, 4, range(500), seed=0))


# --- keyed draws -------------------------------------------------------------------------------------


def test_corruptions_and_severities_share_no_noise():
    """The same normal deviates scaled would correlate by 1."""
    images = np.full((30, 3, 32, 32), 128, np.uint8)
    found = [
        corrupt(images, name, severity, range(30), seed=0).astype(float).ravel()
        for name, severity in (
            ("gaussian_noise", 3),
            ("speckle_noise", 3),
            ("gaussian_noise", 4),
            ("shot_noise", 3),
            ("impulse_noise", 5),
        )
    ]
    correlation = np.corrcoef(found) - np.eye(5)
    assert np.abs(correlation).max() < 5 / math.sqrt(found[0].size)


def test_noise_leaves_the_global_generators_alone():
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    corrupt(np.zeros((2, 1, 8, 8)), "gaussian_noise", 1, range(2), seed=0)
    assert np.array_equal(np.random.get_state()[1], before[0])
    assert torch.equal(torch.get_rng_state(), before[1])


def test_a_chunk_of_a_generated_corruption_is_its_part_of_the_whole():
    digits = data.load("digits")
    corruptor = Corruptor(digits, seed=3)
    (noise,) = parse_corruptions("shot_noise(severity=2)", corruptor)
    whole = corrupt(digits.images, "shot_noise", 2, range(450), seed=3)
    for start, stop in ((0, 250), (250, 450), (17, 18)):
        found = corruptor.pixels(noise, start, stop)
        assert found.dtype == np.float32
        assert np.array_equal(found, whole[start:stop] / np.float32(255))
    assert noise.source == "generated@3"


# --- released arrays ---------------------------------------------------------------------------------

SIZE = 20
LABELS = np.arange(SIZE, dtype=np.int64) * 7 % 10


def fake_cifar10():
    images = np.random.default_rng(0).integers(0, 256, (SIZE, 3, 32, 32), dtype=np.uint8)
    return data.from_arrays(images, LABELS, 10, name="cifar10")


def fake_rows():
    """(100, 32, 32, 3): row r holds r in red, its severity in green and its sample in blue."""
    rows = np.zeros((5 * SIZE, 32, 32, 3), np.uint8)
    rows[..., 0] = np.arange(5 * SIZE)[:, None, None]
    rows[..., 1] = np.repeat(SEVERITIES, SIZE)[:, None, None]
    rows[..., 2] = np.tile(np.arange(SIZE), 5)[:, None, None]
    rows[:, 0, 1, 0] = 201  # first row, second column
    return rows


@pytest.fixture
def released(tmp_path):
    folder = tmp_path / "CIFAR-10-C"
    folder.mkdir()
    np.save(folder / "labels.npy", np.tile(LABELS, 5).astype(np.uint8))
    for name in NOISES:
        np.save(folder / f"{name}.npy", fake_rows())
    return folder


@pytest.mark.parametrize("inner", [True, False])
def test_released_arrays_are_read_at_the_rows_of_their_severity(released, inner):
    corruptor = Corruptor(fake_cifar10(), 0, released if inner else released.parent)
    for perturbation in parse_corruptions("gaussian_noise", corruptor):
        severity = perturbation.params["severity"]
        found = corruptor.pixels(perturbation, 3, 11)
        assert found.shape == (8, 3, 32, 32)
        assert found.dtype == np.float32
        values = np.rint(found * 255).astype(int)
        assert values[:, 0, 5, 5].tolist() == [(severity - 1) * 20 + sample for sample in range(3, 11)]
        assert (values[:, 1] == severity).all()
        assert values[:, 2, 0, 0].tolist() == list(range(3, 11))
        assert (values[:, 0, 0, 1] == 201).all()
        assert (values[:, 0, 1, 0] != 201).all()


def test_released_arrays_say_what_vouches_for_them(released, monkeypatch):
    corruptor = Corruptor(fake_cifar10(), 0, released)
    # the file's hash is part of a cell's key: once it is replaced, nothing measured on it is believed
    assert (
        corruptor.source("shot_noise") == f"released(unverified, MD5 {md5_of(released / 'shot_noise.npy')})"
    )
    sources = {
        f"released(unverified, MD5 {md5_of(released / f'{name}.npy')})"
        for name in corruptions.GROUPS["noise"]
    }
    assert {p.source for p in parse_corruptions("noise", corruptor)} == sources


def full_size(folder):
    """Arrays of the official size, all zero, in sparse files."""
    folder.mkdir()
    shape = (50_000, 32, 32, 3)
    np.lib.format.open_memmap(folder / "shot_noise.npy", "w+", np.uint8, shape).flush()
    labels = np.zeros(10_000, np.int64)
    np.save(folder / "labels.npy", np.tile(labels, 5).astype(np.uint8))
    images = np.broadcast_to(np.zeros((), np.uint8), (10_000, 3, 32, 32))
    return data.ArrayDataset("cifar10", images, labels, 10)


@pytest.mark.slow
def test_files_of_the_official_size_must_have_the_official_md5(tmp_path, monkeypatch):
    corruptor = Corruptor(full_size(tmp_path / "CIFAR-10-C"), 0, tmp_path)
    with pytest.raises(UserError, match="is not the released file: its MD5 is not 3a7239bb1188") as caught:
        parse_corruptions("shot_noise(severity=1)", corruptor)
    assert "\n" not in str(caught.value)
    with (tmp_path / "CIFAR-10-C" / "shot_noise.npy").open("rb") as file:
        found = hashlib.file_digest(file, "md5").hexdigest()
    monkeypatch.setitem(corruptions.RELEASED_MD5, "shot_noise", found)
    assert [p.source for p in parse_corruptions("shot_noise(severity=1)", corruptor)] == ["released"]


def test_the_md5_of_the_released_noises_are_those_published():
    assert (
        corruptions.RELEASED_MD5.items()
        >= {
            "gaussian_noise": "ecaf8b9a2399ffeda7680934c33405fd",
            "shot_noise": "3a7239bb118894f013d9bf1984be7f11",
            "impulse_noise": "2090e01c83519ec51427e65116af6b1a",
            "speckle_noise": "ef00b87611792b00df09c0b0237a1e30",
        }.items()
    )


class ReadsRed(nn.Module):
    """Predicts a tenth of the first red value."""

    def forward(self, images):
        red = images[:, 0, 0, 0] * 255 / 10
        return -((torch.arange(10.0) - red[:, None]) ** 2)


def test_a_benchmark_on_released_arrays_measures_each_severity_on_its_own_rows(released):
    dataset = fake_cifar10()
    rows = fake_rows()
    for severity in SEVERITIES:  # wrong on the first 4 * severity - 2 samples
        wrong = np.arange(SIZE) < 4 * severity - 2
        shown = np.where(wrong, (LABELS + 1) % 10, LABELS)
        rows[(severity - 1) * SIZE : severity * SIZE, 0, 0, 0] = 10 * shown
    np.save(released / "gaussian_noise.npy", rows)
    request = Request(
        modules={"reads_red": Classifier(ReadsRed())},
        dataset=dataset,
        attacks="none",
        corruptions="gaussian_noise",
        corruptions_dir=str(released.parent),
        n=SIZE,
        batch_size=7,
    )
    with Store(None) as store:
        results = Benchmark(request).run(store).results
    noise = results[results["perturbation"] == "gaussian_noise"].sort_values("severity")
    assert noise["severity"].tolist() == list(SEVERITIES)
    assert noise["accuracy"].tolist() == pytest.approx([100 * (22 - 4 * s) / 20 for s in SEVERITIES])
    (source,) = set(noise["corruption_source"])
    assert source == f"released(unverified, MD5 {md5_of(released / 'gaussian_noise.npy')})"


def md5_of(path):
    return hashlib.md5(path.read_bytes()).hexdigest()


def refused(released, match, names="gaussian_noise"):
    with pytest.raises(UserError, match=match) as caught:
        parse_corruptions(names, Corruptor(fake_cifar10(), 0, released))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_labels_that_are_not_the_datasets_are_refused(released):
    for wrong in (
        np.roll(np.tile(LABELS, 5), 1),
        LABELS,
        np.tile(LABELS, 4),
        np.tile(LABELS, 5)[:, None],
        np.repeat(LABELS, 5),
    ):
        np.save(released / "labels.npy", wrong.astype(np.uint8))
        message = refused(released, "must contain the cifar10 test labels five times")
        assert "labels.npy" in message


def test_missing_files_are_named(released, tmp_path):
    (released / "gaussian_noise.npy").unlink()
    assert "gaussian_noise.npy" in refused(released, "cannot read")
    (released / "labels.npy").unlink()
    assert "labels.npy" in refused(released, "cannot read")
    assert "labels.npy" in refused(tmp_path / "nowhere", "cannot read")


@pytest.mark.parametrize(
    "rows",
    [
        np.zeros((4 * SIZE, 32, 32, 3), np.uint8),
        np.zeros((5 * SIZE, 32, 32, 3), np.float32),
        np.zeros((5 * SIZE, 32, 32), np.uint8),
        np.zeros((5 * SIZE, 3, 32, 32), np.uint8),
        np.zeros((5 * SIZE, 16, 16, 3), np.uint8),
        np.zeros((5, SIZE, 32, 32, 3), np.uint8),
    ],
    ids=["4 severities", "floats", "grey", "channels first", "16 pixels", "severities apart"],
)
def test_arrays_of_another_shape_or_type_are_refused(released, rows):
    np.save(released / "gaussian_noise.npy", rows)
    refused(released, r"gaussian_noise.npy must be uint8 of shape \(100, 32, 32, 3\), not")


class Boobytrap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("name", ["gaussian_noise", "labels"])
def test_pickled_arrays_are_refused_and_not_opened(released, tmp_path, name):
    trap = tmp_path / "sprung"
    np.save(released / f"{name}.npy", np.array([Boobytrap(str(trap))], dtype=object), allow_pickle=True)
    assert f"{name}.npy" in refused(released, "cannot read")
    (released / f"{name}.npy").write_bytes(__import__("pickle").dumps(Boobytrap(str(trap))))
    assert f"{name}.npy" in refused(released, "cannot read")
    assert not trap.exists()


@pytest.mark.parametrize(
    "content", [b"", b"<!DOCTYPE html>\n<html>not found</html>", b"\x93NUMPY", b"PK\x03\x04"]
)
@pytest.mark.parametrize("name", ["gaussian_noise", "labels"])
def test_files_that_are_no_arrays_are_refused(released, name, content):
    (released / f"{name}.npy").write_bytes(content)
    assert f"{name}.npy" in refused(released, "cannot read")


def test_a_truncated_download_is_refused(released):
    whole = (released / "gaussian_noise.npy").read_bytes()
    (released / "gaussian_noise.npy").write_bytes(whole[: len(whole) // 2])
    refused(released, "cannot read")


def test_a_zip_of_arrays_under_an_npy_name_is_refused(released):
    with (released / "labels.npy").open("wb") as file:
        np.savez(file, labels=np.tile(LABELS, 5))
    refused(released, "cannot read")


def test_datasets_without_released_arrays_are_refused(released):
    images = np.zeros((3, 3, 32, 32), np.uint8)
    for dataset in (data.load("digits"), data.from_arrays(images, np.array([0, 1, 2]))):
        with pytest.raises(UserError, match=f"no released corruption arrays for {dataset.name}"):
            Corruptor(dataset, 0, released)


# --- specs -------------------------------------------------------------------------------------------


def resolved(text):
    return parse_corruptions(text, Corruptor(data.load("digits"), seed=0))


def columns(text):
    return [perturbation.column for perturbation in resolved(text)]


def test_a_name_alone_means_all_five_severities():
    assert columns("shot_noise") == [f"shot_noise_{severity}" for severity in SEVERITIES]
    first = resolved("shot_noise")[0]
    assert (first.kind, first.name, first.params) == ("corruption", "shot_noise", {"severity": 1})
    assert first.seed is None


def test_noise_is_the_four_noises():
    found = resolved("noise")
    assert len(found) == 20
    assert {(p.name, p.params["severity"]) for p in found} == {(n, s) for n in NOISES for s in SEVERITIES}
    assert {p.column for p in resolved("noise(severity=2)")} == {f"{name}_2" for name in NOISES}


def test_lists_are_merged_in_order():
    assert columns("speckle_noise(severity=5), shot_noise(severity=1)") == ["speckle_noise_5", "shot_noise_1"]
    assert columns("shot_noise(severity=2), shot_noise, shot_noise(severity=2)")[0] == "shot_noise_2"
    assert len(columns("noise, shot_noise, gaussian_noise(severity=3)")) == 20


def test_none_is_no_corruption_and_nothing_is_an_error():
    assert resolved("none") == []
    with pytest.raises(UserError, match="no corruption given; use none"):
        resolved(" ,")


@pytest.mark.parametrize("severity", ["0", "6", "-1", "1.5", "True", "'3'", "nan", "eps", "high"])
def test_a_severity_that_is_not_one_to_five_is_refused(severity):
    with pytest.raises(UserError, match="severity must be 1, 2, 3, 4 or 5, not"):
        resolved(f"gaussian_noise(severity={severity})")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gausian_noise", "unknown corruption 'gausian_noise'; did you mean gaussian_noise"),
        ("nose", "unknown corruption 'nose'; did you mean .*noise"),
        ("xyz", "unknown corruption 'xyz'; known: "),
        ("shot_noise(strength=2)", r"shot_noise has no parameter 'strength'; it takes severity=1 to 5"),
        ("shot_noise(3)", r"cannot read 'shot_noise\(3\)'"),
        ("shot noise", "cannot read 'shot noise'"),
    ],
)
def test_a_wrong_spec_is_refused_in_one_line(text, message):
    with pytest.raises(UserError, match=message) as caught:
        resolved(text)
    assert "\n" not in str(caught.value)


def test_the_seed_of_generated_noise_is_part_of_what_it_is():
    digits = data.load("digits")
    described = [parse_corruptions("shot_noise", Corruptor(digits, seed))[0].describe() for seed in (0, 1)]
    assert described[0] != described[1]


def test_the_table_says_where_the_corruptions_came_from():
    images = np.random.default_rng(0).integers(0, 256, (12, 3, 32, 32), dtype=np.uint8)
    table = robust_interp.evaluate(
        ReadsRed(), (images, LABELS[:12], 10), attacks="none", corruptions="noise(severity=1)", seed=9
    )
    assert table["corruption_source"].tolist()[1:] == ["generated@9"] * 4

"""Images that were made elsewhere: what is refused, and that they are judged as they are."""

import csv
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from support import one_pixel

from robust_interp import data
from robust_interp.benchmark import external
from robust_interp.benchmark.benchmark import Benchmark
from robust_interp.benchmark.request import Request
from robust_interp.core.errors import UserError
from robust_interp.results.columns import EXTERNAL_COLUMNS

RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(0.2, 0.8, (6, 1, 2, 3)).astype(np.float32)
SAMPLES = data.from_arrays(IMAGES, [0, 1, 2, 0, 1, 2])


def saved(path, **arrays):
    np.savez(path, **arrays)
    return path


@pytest.fixture
def read(tmp_path):
    def of(images, norm="Linf", eps=8 / 255, **more):
        return external.read(saved(tmp_path / "adv.npz", images=images, **more), SAMPLES, norm, eps)

    return of


def changed(by, which=(0, 0, 0, 0)):
    images = IMAGES.copy()
    images[which] += by
    return images


@pytest.mark.parametrize("content", [b"not an archive", b"\x80\x04.", b""])
def test_what_is_no_archive_is_refused_without_advice_to_unpickle_it(tmp_path, content):
    path = tmp_path / "adv.npz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"cannot read .* as an \.npz file") as refusal:
        external.read(path, SAMPLES, "Linf", 8 / 255)
    assert "pickle" not in str(refusal.value).replace(str(path), "")


def test_a_change_up_to_the_radius_is_taken(read):
    found = read(changed(8 / 255)[:4])
    assert found.ids.tolist() == [0, 1, 2, 3]
    assert found.deltas == pytest.approx([8 / 255, 0, 0, 0], abs=1e-7)
    assert found.column == "external_8"


def test_an_l2_change_is_measured_over_the_image(read):
    images = IMAGES + np.float32(0.1)  # of 6 pixels: 0.1 sqrt(6) = 0.2449
    found = read(images, "L2", 0.245)
    assert found.deltas == pytest.approx([0.1 * 6**0.5] * 6, rel=1e-5)
    assert found.column == "external_l2_0.245"
    with pytest.raises(
        UserError, match=r"6 of 6 images are farther than 0.244 \(L2\).* the farthest 0.244949"
    ):
        read(images, "L2", 0.244)


def test_what_leaves_the_ball_is_counted_and_sized(read):
    images = changed(10 / 255)
    images[3, 0, 1, 1] -= 9 / 255
    with pytest.raises(
        UserError, match=r"2 of 6 images are farther than 8/255 .*the farthest 10/255 \(image 0"
    ):
        read(images)


def test_indices_say_of_which_sample_an_image_was_made(read):
    order = np.array([5, 2, 0])
    assert read(IMAGES[order], indices=order).ids.tolist() == [5, 2, 0]
    with pytest.raises(UserError, match="indices if they are not the first"):
        read(IMAGES[order])


def test_whole_pixel_values_are_scaled(read):
    whole = np.round(255 * IMAGES).astype(np.uint8)
    found = read(whole, eps=1 / 255)
    assert found.images == pytest.approx(whole / 255)
    assert found.deltas.max() <= 0.5 / 255 + 1e-7


@pytest.mark.parametrize("value", [-0.01, 1.5, np.nan, np.inf])
def test_a_value_outside_the_range_is_counted(read, value):
    images = IMAGES.copy()
    images[[1, 4], 0, 0, 0] = value
    with pytest.raises(UserError, match=r"2 of 6 images have values outside \[0, 1\]"):
        read(images, eps=1.0)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"adv": IMAGES}, "no array 'images', only adv"),
        ({"images": IMAGES[:, 0]}, r"must be \(N, 1, 2, 3\), not \(6, 2, 3\)"),
        ({"images": IMAGES[:0]}, r"not \(0, 1, 2, 3\)"),
        ({"images": IMAGES.astype(int)}, "uint8 or floating point"),
        ({"images": np.array([None])}, "cannot read"),
        ({"images": IMAGES, "indices": np.arange(5)}, "indices must be 6 whole numbers"),
        ({"images": IMAGES, "indices": np.arange(6.0)}, "indices must be 6 whole numbers"),
        ({"images": IMAGES, "indices": np.arange(6) + 1}, "outside 0 to 5"),
        ({"images": IMAGES, "indices": np.arange(6) // 2}, "3 of 6 indices"),
        ({"images": IMAGES, "labels": SAMPLES.labels + 1}, "6 of 6 labels are not those of the data set"),
        ({"images": IMAGES, "labels": SAMPLES.labels[:5]}, "labels must be 6 classes"),
        ({"images": np.concatenate([IMAGES, IMAGES])}, "12 images without indices"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path, arrays, message):
    with pytest.raises(UserError, match=message):
        external.read(saved(tmp_path / "adv.npz", **arrays), SAMPLES, "Linf", 8 / 255)


def test_labels_that_are_the_datasets_may_be_there(read):
    assert len(read(images=IMAGES, labels=SAMPLES.labels).ids) == len(IMAGES)


def test_a_single_array_is_told_how_to_be_written(tmp_path):
    np.save(tmp_path / "adv.npy", IMAGES)
    with pytest.raises(UserError, match=r"a single array: write it with numpy\.savez"):
        external.read(tmp_path / "adv.npy", SAMPLES, "Linf", 8 / 255)


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 cut", b"text", b"\x80\x04N."])
def test_what_is_no_archive_is_refused(tmp_path, content):
    path = tmp_path / "adv.npz"
    path.write_bytes(content)
    with pytest.raises(UserError, match="cannot read"):
        external.read(path, SAMPLES, "Linf", 8 / 255)


# On the command line.


@pytest.mark.slow
def test_a_model_is_judged_on_the_images_of_the_file(command, tmp_path, digits_classifier):
    test = data.load("digits", "test")
    ids = np.array([7, 3, 30, 12, 11, 25, 40, 2])
    noise = np.random.default_rng(1).choice([-60 / 255, 60 / 255], (8, 1, 8, 8)).astype(np.float32)
    images = (test.images[ids] + noise).clip(0, 1)
    path = saved(tmp_path / "adv.npz", images=images, indices=ids)
    asked = ("verify", path, "--models", digits_classifier.name, "--dataset", "digits", "--quiet")
    asked = (*asked, "--out", tmp_path / "r", "--batch-size", "3", "--eps")
    status, out, err = command(*asked, "60")
    assert status == 0, err
    assert "digits, external_60: made elsewhere, never ranked" in out
    [row] = rows(tmp_path)
    with torch.no_grad():
        predicted = digits_classifier(torch.from_numpy(images)).argmax(1).numpy()
    assert float(row["accuracy"]) == 100 * (predicted == test.labels[ids]).mean()
    assert (row["n"], row["source"], row["max_delta_255"]) == ("8", "external", "60")
    assert not (tmp_path / "r" / "cells.sqlite").exists()
    # again: replaced; another radius: added
    command(*asked, "60")
    assert len(rows(tmp_path)) == 1
    command(*asked, "61")
    assert [row["column"] for row in rows(tmp_path)] == ["external_60", "external_61"]
    status, _, err = command(*asked, "59")
    assert (status, err.count("\n")) == (1, 1)
    assert "8 of 8 images are farther than 59/255" in err
    assert len(rows(tmp_path)) == 2


def test_the_clean_accuracy_and_the_success_rate_are_worked_out_by_hand(tmp_path):
    """Samples 9, 7, 8, 0, 1: the third is wrong when clean; of the other four two are broken."""
    labels = one_pixel.LABELS.copy()
    labels[8] = 1  # 0.45 is called 0
    dataset = data.from_arrays(one_pixel.IMAGES, labels)
    request = Request(modules={"net": one_pixel.Net()}, dataset=dataset, attacks="none", corruptions="none")
    benchmark = Benchmark(request)
    adversarial = np.array([0.45, 0.45, 0.55, 0.05, 0.95], np.float32).reshape(-1, 1, 1, 1)
    path = saved(tmp_path / "adv.npz", images=adversarial, indices=np.array([9, 7, 8, 0, 1]))
    read = external.read(path, dataset, "Linf", 0.25)
    row = external.judge(read, benchmark.targets[0], benchmark.runner)
    assert (row["clean"], row["accuracy"], row["asr"]) == (80, 60, 50)


@pytest.mark.slow
def test_indices_of_ones_own_images_count_in_their_own_order(command, tmp_path, digits_classifier):
    test = data.load("digits", "test")
    by_class = np.argsort(test.labels, kind="stable")
    own, adversarial = test.images[by_class], tmp_path / "adv.npz"
    saved(tmp_path / "own.npz", images=own, labels=test.labels[by_class])
    saved(adversarial, images=own[[40, 3]], indices=np.array([40, 3]))
    asked = ("--models", digits_classifier.name, "--dataset", f"npz:{tmp_path / 'own.npz'}", "--quiet")
    status, _, err = command("verify", adversarial, *asked, "--eps", "1", "--out", tmp_path / "r")
    assert status == 0, err
    assert rows(tmp_path)[0]["max_delta_255"] == "0"


def rows(folder):
    with (folder / "r" / "external.csv").open() as file:
        return list(csv.DictReader(file))


def test_several_processes_that_write_at_once_lose_no_row(tmp_path):
    """Threads stand in for them: a lock of a file holds between its opened descriptors."""
    row = dict.fromkeys(EXTERNAL_COLUMNS, "x") | {"train_seed": None, "members": 1, "n": 6}
    start = threading.Barrier(6)

    def write(writer):
        start.wait()
        for number in range(4):
            external.write(tmp_path, [row | {"model": f"net{writer}.{number}"}])

    with ThreadPoolExecutor(6) as pool:
        list(pool.map(write, range(6)))
    with (tmp_path / external.FILE_NAME).open() as file:
        found = sorted(line["model"] for line in csv.DictReader(file))
    assert found == [f"net{writer}.{number}" for writer in range(6) for number in range(4)]
    assert [path.name for path in tmp_path.iterdir()] == [external.FILE_NAME]


@pytest.mark.parametrize("eps", ["8,16", "0", "x", "0.03", "300"])
def test_a_radius_that_is_none_is_one_line(command, eps):
    status, _, err = command("verify", "adv.npz", "--models", "in_resnet20", "--eps", eps)
    assert (status, err.count("\n")) == (1, 1)

"""Datasets: the digits split, scaling, constants, the official CIFAR-10, and what is refused offline."""

import hashlib
import os
import pickle
import re
import socket
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torchvision.transforms.functional import to_tensor

import robust_interp
from robust_interp import data
from robust_interp.benchmark.settings import sample_count
from robust_interp.core.errors import UserError
from robust_interp.testing import check_dataset

# SHA-256 of the comma-separated sklearn indices: of RandomState(0)'s permutation, the first 45 of each class
# are the test set, in that order, and the rest the training set.
TEST_SHA256 = "0f692f619f9cf10859e8d9348c01b2b40a3b91f38d2c2d4ff072bf0accd3b64b"
TRAIN_SHA256 = "37d2aedea281ced2802aa09370f9d94c92ab5e98f678f27b9e5112639422fcfb"

# The networks here are untrained or built to mislead, which evaluate remarks on.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture
def no_network(monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("no network here")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refuse)


def split_by_hand():
    targets, taken = load_digits().target.tolist(), [0] * 10
    test, train = [], []
    for index in np.random.RandomState(0).permutation(len(targets)).tolist():
        chosen = test if taken[targets[index]] < 45 else train
        taken[targets[index]] += 1
        chosen.append(index)
    return {"test": test, "train": train}


# --- digits ------------------------------------------------------------------------------------------


def test_the_digits_split_is_45_of_each_class_without_overlap():
    test, train = data.load("digits", "test"), data.load("digits", "train")
    assert (len(test), len(train)) == (450, 1347)
    assert np.bincount(test.labels).tolist() == [45] * 10
    seen = {image.tobytes() for image in train.images}
    repeated = [image.tobytes() in seen for image in test.images]
    originals = [image.tobytes() for image in load_digits().images]
    assert len(set(originals)) == 1797  # no image is there twice, so that the bytes tell
    assert not any(repeated)


@pytest.mark.parametrize(("split", "sha256"), [("test", TEST_SHA256), ("train", TRAIN_SHA256)])
def test_the_digits_split_never_changes(split, sha256):
    order = split_by_hand()[split]
    assert hashlib.sha256(",".join(map(str, order)).encode()).hexdigest() == sha256
    bunch, found = load_digits(), data.load("digits", split)
    assert np.array_equal(found.images[:, 0], bunch.images[order].astype(np.float32) / 16)
    assert np.array_equal(found.labels, bunch.target[order])


def test_digits_are_float32_sixteenths_in_zero_to_one():
    digits = data.load("digits")
    assert digits.images.shape == (450, 1, 8, 8)
    assert digits.images.dtype == np.float32
    assert (digits.images.min(), digits.images.max()) == (0, 1)
    assert set(np.unique(digits.images * 16)) == set(range(17))
    assert digits.labels.dtype == np.int64
    assert (digits.name, digits.classes) == ("digits", 10)


def test_pixels_are_a_slice_of_the_images():
    digits = data.load("digits")
    assert digits.pixels(10, 20).dtype == np.float32
    assert np.array_equal(digits.pixels(10, 20), digits.images[10:20])


def test_digits_need_no_network_and_no_folder(no_network, tmp_path):
    assert len(data.load("digits", data_dir=tmp_path / "nowhere")) == 450


def test_mean_and_std_of_digits_are_those_of_the_training_pixels():
    kind = data.DATASETS["digits"]
    pixels = load_digits().images[split_by_hand()["train"]].astype(np.float64) / 16
    assert kind.mean == pytest.approx((pixels.mean(),), abs=5.1e-5)
    assert kind.std == pytest.approx((pixels.std(),), abs=5.1e-5)


def test_digits_are_attacked_at_larger_radii_with_steps_of_a_quarter():
    kind = data.DATASETS["digits"]
    assert kind.eps_255 == (8, 16, 32)
    assert kind.attack_defaults["alpha"].factor == 0.25
    assert data.DATASETS["cifar10"].eps_255 == (1, 2, 4)
    assert data.DATASETS["cifar10"].attack_defaults == {}
    assert [data.DATASETS[name].default_n for name in ("cifar10", "cifar100", "digits")] == [1000, 1000, 200]


# --- scaling -----------------------------------------------------------------------------------------


def test_pixels_are_exactly_those_of_torchvisions_to_tensor():
    every = np.arange(256, dtype=np.uint8).repeat(3).reshape(16, 16, 3)  # HWC
    expected = to_tensor(every)
    assert torch.equal(torch.from_numpy(data.as_pixels(every.transpose(2, 0, 1)[None]))[0], expected)
    assert np.array_equal(data.as_pixels(every)[..., 0].ravel(), np.float32(np.arange(256) / 255))


def test_float_pixels_are_left_as_they_are():
    images = np.random.default_rng(0).random((2, 1, 3, 3), dtype=np.float32)
    assert np.array_equal(data.as_pixels(images), images)
    assert data.as_pixels(images.astype(np.float64)).dtype == np.float32


def test_a_fingerprint_depends_on_every_value_shape_and_type():
    images, labels = np.zeros((4, 1, 3, 3), np.uint8), np.array([0, 1, 1, 0])
    other_pixel, other_label = images.copy(), labels.copy()
    other_pixel[3, 0, 2, 2], other_label[3] = 1, 1
    variants = [
        (images, labels),
        (other_pixel, labels),
        (images, other_label),
        (images[:3], labels[:3]),
        (images.reshape(4, 1, 1, 9), labels),
        (images.astype(np.float32), labels),
    ]
    prints = [data.from_arrays(*variant, classes=2).fingerprint for variant in variants]
    assert len(set(prints)) == len(variants)
    assert data.from_arrays(images.copy(), labels.tolist(), classes=2).fingerprint == prints[0]


# --- CIFAR-10, the official files --------------------------------------------------------------------


FOLDERS = {"cifar10": "cifar-10-batches-py", "cifar100": "cifar-100-python"}

# The first ten labels of the test and of the training split, and the test file with its labels' key.
# CIFAR-10: cat, ship, ship, airplane, frog, frog, automobile, frog, cat, automobile; frog, truck, truck,
# deer, automobile, automobile, bird, horse, ship, cat. CIFAR-100: mountain, forest, seal, mushroom, sea,
# tulip, camel, butterfly, cloud, apple; cattle, dinosaur, apple, boy, aquarium fish, telephone, train, cup,
# cloud, elephant.
OFFICIAL = {
    "cifar10": ([3, 8, 8, 0, 6, 6, 1, 6, 3, 1], [6, 9, 9, 4, 1, 1, 2, 7, 8, 3], "test_batch", "labels"),
    "cifar100": (
        [49, 33, 72, 51, 71, 92, 15, 14, 23, 0],
        [19, 29, 0, 11, 1, 86, 90, 28, 23, 31],
        "test",
        "fine_labels",
    ),
}


@pytest.mark.slow
def test_cifar_is_in_the_official_order(real_cifar):
    name, root = real_cifar
    first_test, first_train, file, key = OFFICIAL[name]
    classes = data.DATASETS[name].classes
    test, train = data.load(name, data_dir=root), data.load(name, "train", root)
    assert test.images.shape == (10_000, 3, 32, 32)
    assert train.images.shape == (50_000, 3, 32, 32)
    assert test.images.dtype == train.images.dtype == np.uint8
    assert test.labels[:10].tolist() == first_test
    assert train.labels[:10].tolist() == first_train
    assert np.bincount(test.labels).tolist() == [10_000 // classes] * classes
    assert np.bincount(train.labels).tolist() == [50_000 // classes] * classes
    with open(os.path.join(root, FOLDERS[name], file), "rb") as opened:
        official = pickle.load(opened, encoding="latin1")
    assert np.array_equal(test.images.reshape(10_000, 3072), official["data"])
    assert test.labels.tolist() == official[key]


@pytest.mark.slow
def test_mean_and_std_of_cifar_are_those_of_the_training_pixels(real_cifar):
    name, root = real_cifar
    kind, images = data.DATASETS[name], data.load(name, "train", root).images
    for channel in range(3):
        counts = np.bincount(images[:, channel].ravel(), minlength=256)
        values, share = np.arange(256) / 255, counts / counts.sum()
        mean = (values * share).sum()
        std = np.sqrt(((values - mean) ** 2 * share).sum())
        assert kind.mean[channel] == pytest.approx(mean, abs=5.1e-5)
        assert kind.std[channel] == pytest.approx(std, abs=5.1e-5)


@pytest.mark.slow
def test_cifar_is_benchmarked_at_its_own_radii(real_cifar):
    name, root = real_cifar
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3072, data.DATASETS[name].classes))
    table = robust_interp.evaluate(
        model, name, attacks="fgsm", corruptions="noise(severity=2)", n=40, data_dir=root
    )
    assert table["eps_255"].dropna().tolist() == [1, 2, 4]
    test = data.load(name, data_dir=root)
    pixels = torch.from_numpy(test.images[:40].astype(np.float32) / 255)
    right = model(pixels).argmax(1).numpy() == test.labels[:40]
    assert table["accuracy"][0] == pytest.approx(100 * right.mean())


# --- what is missing or damaged ----------------------------------------------------------------------

FILES = {
    "cifar10": ["batches.meta", "test_batch", *(f"data_batch_{k}" for k in range(1, 6))],
    "cifar100": ["meta", "test", "train"],
}


def refused(name, root, match):
    with pytest.raises(UserError, match=match) as caught:
        data.load(name, data_dir=root)
    message = str(caught.value)
    assert "\n" not in message
    assert str(root / FOLDERS[name]) in message
    assert "--data-dir" in message
    assert "$ROBUST_INTERP_DATA" in message
    assert f"robust-interp data {name} --download" in message


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_missing_files_are_answered_with_what_to_put_where(name, tmp_path, no_network):
    refused(name, tmp_path, "does not exist; put the official Python version there")
    refused(name, tmp_path / "nowhere", "does not exist")
    assert not list(tmp_path.iterdir())


class Boobytrap:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return (open, (self.path, "w"))


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
@pytest.mark.parametrize("trapped", [False, True])
def test_damaged_files_are_refused_and_not_unpickled(name, trapped, tmp_path, no_network):
    folder, trap = tmp_path / FOLDERS[name], tmp_path / "sprung"
    folder.mkdir()
    for file in FILES[name]:
        (folder / file).write_bytes(pickle.dumps(Boobytrap(str(trap))) if trapped else b"garbage")
    refused(name, tmp_path, r"is damaged \(wrong MD5\)")
    assert not trap.exists()


@pytest.mark.slow
def test_one_damaged_file_among_the_official_ones_is_enough(real_cifar, tmp_path):
    name, root = real_cifar
    folder, (first, *_) = tmp_path / FOLDERS[name], FILES[name]
    folder.mkdir()
    for file in FILES[name]:
        (folder / file).symlink_to(os.path.join(root, FOLDERS[name], file))
    assert len(data.load(name, data_dir=tmp_path)) == 10_000
    (folder / first).unlink()
    (folder / first).write_bytes(b"\x80\x04.")
    refused(name, tmp_path, r"is damaged \(wrong MD5\)")


def test_a_download_without_a_network_is_one_clear_line(no_network, tmp_path):
    with pytest.raises(UserError, match="cannot download cifar10 into") as caught:
        data.download("cifar10", tmp_path)
    assert "\n" not in str(caught.value)
    refused("cifar10", tmp_path, "does not exist")


def test_nothing_is_downloaded_for_digits(no_network, tmp_path):
    data.download("digits", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.slow
@pytest.mark.parametrize("text", ["CIFAR10", "CIFAR-10", "cifar_10", "Cifar 10", "cifar10"])
def test_a_dataset_is_found_whatever_its_case_and_hyphens(text, cifar_root):
    assert data.named(text) == "cifar10"
    assert data.load(text, "test", cifar_root).name == "cifar10"


@pytest.mark.parametrize("text", ["cifar", "cifar1", "CIFAR", "imagenet", ""])
def test_a_text_that_means_no_dataset_stays_as_it_is(text):
    assert data.named(text) == text


def test_an_unknown_dataset_or_split_names_the_near_ones():
    with pytest.raises(UserError, match=r"unknown data set 'cifar'; did you mean .*cifar10"):
        data.load("cifar")
    with pytest.raises(UserError, match="unknown data set 'zzz'; known: cifar10, cifar100, digits"):
        data.load("zzz")
    with pytest.raises(UserError, match="unknown split 'tset'; did you mean test"):
        data.load("digits", "tset")


@pytest.fixture
def homeless(monkeypatch):
    """A process of a user without a home folder, as in a container that runs under any number."""

    def unknown(uid):
        raise KeyError(uid)

    for name in ("HOME", "USERPROFILE", "ROBUST_INTERP_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)


def test_data_without_files_need_no_home_folder(homeless):
    assert len(data.load("digits")) == 450
    made = replace(
        data.DATASETS["digits"],
        name="made",
        load=lambda split, root: data.DATASETS["digits"].load(split, root),
    )
    with data.DATASETS.registered("made", made):
        assert len(data.load("made", "train")) == 1347


def test_without_a_home_folder_missing_files_are_named_with_what_would_help(homeless, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    told = (
        r"^cifar10 needs a data folder: ~/\.cache/robust-interp cannot be used: there is no such home "
        r"folder; choose another folder with --data-dir or \$ROBUST_INTERP_DATA$"
    )
    with pytest.raises(UserError, match=told):
        data.load("cifar10")
    for ask in (data.data_root, lambda: data.download("cifar10")):
        with pytest.raises(UserError, match=told.replace("cifar10 needs a data folder: ", "")):
            ask()
    assert not list(tmp_path.iterdir())  # no folder called ~
    for chosen in ("~/mine", "~nobody_x/mine"):
        with pytest.raises(UserError, match=f"{chosen} cannot be used: there is no such home folder"):
            data.load("digits", data_dir=chosen)


def test_workers_are_told_of_the_data_folder_if_there_can_be_one(homeless, monkeypatch):
    """Their home folder and environment may be others."""
    assert data.root_for_workers() is None  # digits need none
    assert data.root_for_workers("mine") == "mine"
    with pytest.raises(UserError, match="~/mine cannot be used: there is no such home folder"):
        data.root_for_workers("~/mine")
    monkeypatch.setenv("HOME", "/home/me")
    assert data.root_for_workers() == "/home/me/.cache/robust-interp"
    assert data.root_for_workers("~/mine") == "/home/me/mine"
    monkeypatch.setenv("ROBUST_INTERP_DATA", "/data")
    assert data.root_for_workers() == "/data"


def creates_its_folder(split, root):
    os.makedirs(root, exist_ok=True)


def writes_a_file(split, root):
    (root / "made.npy").write_bytes(b"")


def looks_for_a_file(split, root):
    if not (root / "made.npy").exists():
        raise RuntimeError(f"{root / 'made.npy'} is missing")


@pytest.mark.parametrize("load", [creates_its_folder, writes_a_file, looks_for_a_file])
def test_a_plugin_that_needs_its_folder_gets_none_without_a_home_folder(
    homeless, monkeypatch, tmp_path, load
):
    monkeypatch.chdir(tmp_path)
    made = replace(data.DATASETS["digits"], name="made", load=load)
    told = "made needs a data folder: ~/.cache/robust-interp cannot be used: there is no such home folder; "
    with data.DATASETS.registered("made", made):
        with pytest.raises(UserError, match=re.escape(told)):
            data.load("made")
        with pytest.raises(AssertionError, match=re.escape(told)):
            check_dataset("made")
    assert not list(tmp_path.iterdir())  # no folder called ~


def test_an_error_that_is_not_about_the_folder_stays_as_it_is(homeless):
    def broken(split, root):
        raise ZeroDivisionError("of its own")

    made = replace(data.DATASETS["digits"], name="made", load=broken)
    with data.DATASETS.registered("made", made), pytest.raises(ZeroDivisionError, match=r"^of its own$"):
        data.load("made")


@pytest.mark.parametrize("split", ["train", "test"])
@pytest.mark.parametrize(
    ("found", "told"),
    [
        ((1, 8, 7), r"\(1, 8, 7\), not \(1, 8, 8\) as declared"),
        ((1, 7, 8), r"\(1, 7, 8\), not \(1, 8, 8\) as declared"),
        ((3, 8, 8), r"\(3, 8, 8\), not \(1, 8, 8\) as declared"),
    ],
)
def test_a_split_of_another_shape_than_is_declared_is_refused(split, found, told):
    def load(asked, root):
        return np.zeros((20, *(found if asked == split else (1, 8, 8))), np.uint8), np.arange(20) % 10

    with data.DATASETS.registered("odd", replace(data.DATASETS["digits"], name="odd", load=load)):
        with pytest.raises(UserError, match=f"^data set odd: its {split} images have shape {told}$"):
            data.load("odd", split)
        assert data.load("odd", "test" if split == "train" else "train").shape == (1, 8, 8)


def test_a_shape_may_be_declared_as_a_list():
    with data.DATASETS.registered("listed", replace(data.DATASETS["digits"], name="listed", shape=[1, 8, 8])):
        assert data.load("listed").shape == (1, 8, 8)


def test_lists_and_numbers_of_numpy_are_kept_as_tuples_of_plain_numbers():
    """So that they are equal to what is declared otherwise, and JSON."""
    defaults = {"alpha": 0.5}
    kind = replace(
        data.DATASETS["digits"],
        shape=[1, 8, 8],
        mean=[np.float32(0.5)],
        std=tuple(np.ones(1)),
        eps_255=[np.int64(8)],
        attack_defaults=defaults,
    )
    defaults["alpha"] = 0
    assert (kind.shape, kind.mean, kind.std, kind.eps_255) == ((1, 8, 8), (0.5,), (1.0,), (8,))
    assert [type(value) for value in (*kind.mean, *kind.std, *kind.eps_255)] == [float, float, int]
    assert kind.attack_defaults == {"alpha": 0.5}


def test_arrays_tensors_and_scalars_of_numpy_describe_a_data_set_as_well():
    kind = replace(
        data.DATASETS["digits"],
        classes=np.int64(10),
        shape=np.array([1, 8, 8]),
        mean=np.array([0.5]),
        std=torch.tensor([0.25]),
        eps_255=np.array([8, 16]),
        attack_defaults={"steps": np.int64(7), "alpha": np.float64(0.25)},
        default_n=np.int64(5),
        crop_padding=np.int64(0),
        flip=np.bool_(False),
    )
    assert (kind.shape, kind.mean, kind.std, kind.eps_255) == ((1, 8, 8), (0.5,), (0.25,), (8, 16))
    assert kind.attack_defaults == {"steps": 7, "alpha": 0.25}
    plain = (kind.classes, kind.default_n, kind.crop_padding, kind.flip, *kind.attack_defaults.values())
    assert [type(value) for value in plain] == [int, int, int, bool, int, float]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"shape": (3, 8, 8)}, "mean must be a number from 0 to 1 for each channel, not (0.3054,)"),
        (
            {"mean": (0.5, 0.5, 0.5)},
            "mean must be a number from 0 to 1 for each channel, not (0.5, 0.5, 0.5)",
        ),
        ({"std": (0,)}, "std must be a number above 0 for each channel, not (0,)"),
        ({"eps_255": ()}, "eps_255 must be radii above 0 and at most 255, not ()"),
        ({"attack_defaults": {"alpha": 0}}, "the default value of alpha must be a number above 0"),
    ],
)
def test_a_description_that_is_not_possible_is_refused_however_it_is_made(changes, told):
    """An entry point may give one that no decorator made."""
    with pytest.raises(UserError, match=f"^data set 'digits': {re.escape(told)}"):
        replace(data.DATASETS["digits"], **changes)


def test_a_data_set_is_measured_whole_if_it_has_no_default_number_of_images():
    with data.DATASETS.registered("whole", replace(data.DATASETS["digits"], name="whole", default_n=None)):
        assert sample_count(None, data.load("whole")) == 450


def test_the_data_folder_is_the_argument_else_the_environment_else_the_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ROBUST_INTERP_DATA", str(tmp_path / "environment"))
    assert data.data_root(tmp_path / "argument") == tmp_path / "argument"
    assert data.data_root() == tmp_path / "environment"
    monkeypatch.delenv("ROBUST_INTERP_DATA")
    assert data.data_root() == tmp_path / ".cache" / "robust-interp"
    assert data.data_root("~/mine") == tmp_path / "mine"
    with pytest.raises(UserError, match="~nobody_x/mine cannot be used: there is no such home folder"):
        data.data_root("~nobody_x/mine")


# --- a user's own arrays -----------------------------------------------------------------------------

IMAGES, THREE = np.zeros((3, 3, 4, 4), np.uint8), np.array([0, 1, 2])


@pytest.mark.parametrize(
    ("images", "labels", "classes", "message"),
    [
        (IMAGES[0], THREE, None, r"images must be \(N, C, H, W\) with 1 or 3 channels, not \(3, 4, 4\)"),
        (np.zeros((3, 4, 4, 3), np.uint8), THREE, None, r"not \(3, 4, 4, 3\): transpose them with"),
        ([Image.new("RGB", (4, 5))] * 3, THREE, None, r"not \(3, 5, 4, 3\): transpose them with"),
        ([Image.new("L", (4, 5))] * 3, THREE, None, r"not \(3, 5, 4\): add the channel with"),
        (
            [Image.new("RGB", (4, 5)), Image.new("RGB", (4, 4))],
            THREE,
            None,
            "images cannot be made one array",
        ),
        ([[0, 1], [0]], THREE, None, "images cannot be made one array"),
        (IMAGES, [[0], [1, 2], 3], None, "labels cannot be made one array"),
        (IMAGES, THREE, "10", "classes must be a whole number, not '10'"),
        (IMAGES, THREE, True, "classes must be a whole number, not True"),
        (IMAGES, THREE, 10.0, "classes must be a whole number, not 10.0"),
        (IMAGES, THREE[:2], None, "labels must be 3 class indices"),
        (IMAGES, np.eye(3), None, r"labels must be 3 class indices, not float64 \(3, 3\)"),
        (IMAGES, THREE.astype(float), None, "labels must be 3 class indices, not float64"),
        (IMAGES, THREE - 1, None, "labels must be from 0 on, but run from -1 to 1"),
        (IMAGES, THREE, 2, "labels run from 0 to 2, outside 0 to 1"),
        (IMAGES[:0], THREE[:0], 2, "the data set has no images"),
        (IMAGES.astype(np.int64), THREE, None, "images must be uint8 or floating point in"),
    ],
)
def test_wrong_arrays_are_refused_in_one_line(images, labels, classes, message):
    with pytest.raises(UserError, match=message) as caught:
        data.from_arrays(images, labels, classes)
    assert "\n" not in str(caught.value)


def test_a_tensor_that_must_be_converted_is_never_converted_whole(monkeypatch):
    images, labels = torch.rand(200, 1, 4, 4).bfloat16().requires_grad_(), np.arange(200) % 10
    sizes, convert = [], torch.Tensor.float
    monkeypatch.setattr(torch.Tensor, "float", lambda part: sizes.append(len(part)) or convert(part))
    found, whole = (data.from_arrays(each, labels) for each in (images, convert(images).detach().numpy()))
    assert found.fingerprint == whole.fingerprint
    shuffled = np.random.default_rng(0).permutation(200)
    assert np.array_equal(found.at(shuffled[:9]), whole.at(shuffled[:9]))
    mixed = found.reordered(shuffled, "shuffled")
    assert np.array_equal(mixed.pixels(3, 8), whole.at(shuffled[3:8]))
    assert max(sizes) <= 64
    with pytest.raises(UserError, match="images cannot be made one array of numbers"):
        data.from_arrays(torch.empty(3, 1, 4, 4, device="meta"), [0, 1, 2])


def test_bfloat16_images_are_their_values():
    images = torch.rand(3, 3, 4, 4).bfloat16()
    assert np.array_equal(data.from_arrays(images, THREE).rows(0, 3), images.float().numpy())


def test_arrays_and_tensors_are_taken_with_the_number_of_classes_of_their_labels():
    for images, labels in ((IMAGES, THREE), (torch.from_numpy(IMAGES), torch.from_numpy(THREE))):
        dataset = data.from_arrays(images, labels)
        assert (len(dataset), dataset.classes, dataset.name) == (3, 3, "custom")
        assert np.array_equal(dataset.images, IMAGES)
    assert data.from_arrays(IMAGES, THREE, classes=7).classes == 7


def test_a_benchmark_on_missing_data_writes_nothing(no_network, tmp_path):
    with pytest.raises(UserError, match=r"cifar10: .* does not exist"):
        robust_interp.evaluate("all", "cifar10", data_dir=tmp_path / "nowhere", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def labelled(labels, classes=10):
    return data.from_arrays(np.zeros((len(labels), 1, 1, 1), np.uint8), np.asarray(labels), classes)


@pytest.mark.parametrize(("n", "covered"), [(1, 1), (40, 1), (200, 5), (400, 9)])
def test_the_first_images_of_data_sorted_by_class_are_of_few_classes(n, covered):
    line = labelled(np.repeat(range(10), 45)).order_warning(n)
    # One image is of one class in any order.
    assert line is None if n == 1 else line.startswith(f"the first {n} of 450 images hold {covered} of 10 ")


def test_images_in_random_order_are_not_remarked_on_however_few():
    for seed in range(20):
        labels = np.random.default_rng(seed).permutation(np.repeat(range(100), 10))
        found = [labelled(labels, 100).order_warning(n) for n in (2, 5, 20, 100, 300, 999, 1000)]
        assert found == [None] * 7


def test_classes_that_hardly_any_image_has_are_not_missed():
    assert labelled([0, 1] * 49 + [2, 3], 5).order_warning(60) is None
    assert labelled([0] * 50 + [1] * 50, 2).order_warning(100) is None  # all of them


def test_more_classes_than_stored_predictions_can_tell_apart_are_refused():
    images = np.zeros((2, 1, 8, 8), np.uint8)
    for classes in (32_769, 65_536, 2**31):
        assert data.from_arrays(images, [5, classes - 1]).classes == classes
    with pytest.raises(UserError, match="at most 2147483648 classes, not 2147483649"):
        data.from_arrays(images, [5, 2**31])

"""The order of a dataset: first, random and stratified."""

import numpy as np
import pytest

from robust_interp import data
from robust_interp.core.errors import UserError


def labelled(labels):
    images = np.arange(len(labels), dtype=np.uint8).reshape(-1, 1, 1, 1)
    return data.from_arrays(images, np.asarray(labels))


def places(dataset):
    """Which of the original images are the samples: their only pixel says so."""
    return dataset.rows(0, len(dataset)).ravel().tolist()


def test_first_is_the_dataset_itself():
    dataset = labelled([0, 0, 1, 1])
    assert data.in_subset(dataset, "first") is dataset


def test_random_is_an_order_of_all_images_with_their_labels():
    dataset = labelled([0] * 10 + [1] * 20)
    found = data.in_subset(dataset, "random", 3)
    assert places(found) == np.random.RandomState(3).permutation(30).tolist()
    assert found.labels.tolist() == dataset.labels[places(found)].tolist()
    assert found.metadata == {"subset": "random@3"}
    assert places(data.in_subset(dataset, "random", 4)) != places(found)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_every_beginning_of_a_stratified_order_has_each_class_by_its_share(seed):
    sizes = [40, 10, 30, 20]
    found = data.in_subset(labelled(np.repeat(range(4), sizes)), "stratified", seed)
    assert sorted(places(found)) == list(range(100))
    for n in range(1, 101):
        counts = np.bincount(found.labels[:n], minlength=4)
        assert np.abs(counts - n * np.array(sizes) / 100).max() < 2


def test_a_round_of_a_stratified_order_has_every_class_of_a_balanced_set_once():
    found = data.in_subset(labelled(np.repeat(range(5), 6)), "stratified")
    assert [sorted(found.labels[at : at + 5]) for at in range(0, 30, 5)] == [[0, 1, 2, 3, 4]] * 6
    firsts = {
        tuple(data.in_subset(labelled(np.repeat(range(5), 6)), "stratified", s).labels[:5]) for s in range(9)
    }
    assert len(firsts) > 1  # the order of the classes is drawn


def test_the_order_is_part_of_the_fingerprint():
    dataset = labelled([0, 0, 0, 1, 1, 1])
    prints = [
        data.in_subset(dataset, *which).fingerprint for which in (("first",), ("random",), ("random", 1))
    ]
    assert len(set(prints)) == 3
    shuffled = data.in_subset(dataset, "random")
    same = data.from_arrays(dataset.images[places(shuffled)], dataset.labels[places(shuffled)])
    assert same.fingerprint == prints[1]  # equal images in equal order


@pytest.mark.parametrize(
    ("labels", "lie_so"),
    [
        *(([0, 0, 1, 1], True), ([1, 1, 0, 0], True), ([0, 1, 0, 1], False), ([0, 1, 2], False)),
        ([0, 0], False),
        (4 * (50 * [0] + 50 * [1]), True),  # eight folders in two classes
        (100 * [0, 0, 1, 1], False),
    ],
)
def test_images_that_lie_class_by_class(labels, lie_so):
    assert labelled(labels).is_by_class == lie_so


def test_a_line_says_how_many_classes_are_covered():
    dataset = data.from_arrays(np.zeros((6, 1, 2, 2), np.uint8), [0, 0, 1, 1, 2, 2], classes=9)
    assert dataset.coverage(3) == "the first 3 of 6 images cover 2 of 3 classes (of 9)"


@pytest.mark.parametrize(
    ("subset", "seed", "message"),
    [("last", 0, "unknown subset 'last'"), ("random", 2**32, "subset_seed must be")],
)
def test_what_is_no_subset_is_refused(subset, seed, message):
    with pytest.raises(UserError, match=message):
        data.in_subset(labelled([0, 1]), subset, seed)

"""What a store keeps of images that a fingerprint does not cover, and of more classes than 16 bits hold."""

import sqlite3
from contextlib import closing

import numpy as np
import pytest

from robust_interp.store import FILE_NAME, ChangedError, Outcome, Store
from robust_interp.store.check import check, repair

HASHES = np.array([5, 2**64 - 1, 7, 8], np.uint64)


def change(folder, statement):
    with closing(sqlite3.connect(folder / FILE_NAME)) as db, db:
        db.execute(statement)


def test_hashes_are_kept_and_compared(tmp_path):
    with Store(tmp_path) as store:
        assert store.content("images", 2) == ""
        store.put_pixels("images", 0, HASHES[:2])
        store.put_pixels("images", 2, np.array([0, 8], np.uint64))  # image 2 was not read
        assert store.pixels("images", 5).tolist() == [5, 2**64 - 1, 0, 8, 0]
        assert store.content("images", 2) != ""
        assert store.content("images", 4) == ""
        store.put_pixels("images", 1, HASHES[1:])
        assert store.pixels("images", 4).tolist() == HASHES.tolist()
        with pytest.raises(ChangedError) as found:
            store.put_pixels("images", 1, np.array([2**64 - 1, 9], np.uint64))
        assert found.value.at == 2
        assert store.pixels("others", 2).tolist() == [0, 0]
    with Store(tmp_path, read_only=True) as store:
        assert store.pixels("images", 4).tolist() == HASHES.tolist()


@pytest.mark.parametrize(
    ("start", "more", "expected"),
    [
        (0, [5, 6, 7], [5, 6, 7, 8, 9]),  # fewer images
        (0, [5, 0, 7, 8, 9], [5, 6, 7, 8, 9]),  # an image was not read again
        (0, [0, 0, 7], [5, 6, 7, 8, 9]),
        (0, [0, 6, 0, 0, 0, 10], [5, 6, 0, 8, 9, 10]),  # more images
        (1, [0, 7], [5, 6, 7, 8, 9]),  # another first image
        (0, [0, 0], [5, 6, 0, 8, 9]),
    ],
)
def test_known_hashes_are_never_lost(tmp_path, start, more, expected):
    with Store(tmp_path) as store:
        store.put_pixels("images", 0, np.array([5, 6, 0, 8, 9], np.uint64))
        store.put_pixels("images", start, np.array(more, np.uint64))
        assert store.pixels("images", len(expected)).tolist() == expected
    assert not check(tmp_path)


def raced(store, other, hashes):
    """Let another process store hashes after this one has compared its own, before it writes them."""
    read = store.pixels

    def reading(*asked):
        store.pixels = read
        found = read(*asked)
        other.put_pixels("images", 0, np.array(hashes, np.uint64))
        return found

    store.pixels = reading


def test_hashes_that_another_process_stores_meanwhile_are_compared_and_kept(tmp_path):
    with Store(tmp_path) as store, Store(tmp_path) as other:
        raced(store, other, [5, 6, 0])
        store.put_pixels("images", 0, np.array([5, 0, 7], np.uint64))
        assert store.pixels("images", 3).tolist() == [5, 6, 7]
        raced(store, other, [5, 6, 7, 8])
        with pytest.raises(ChangedError) as found:
            store.put_pixels("images", 0, np.array([5, 6, 7, 9, 10], np.uint64))
        assert found.value.at == 3
        assert other.pixels("images", 5).tolist() == [5, 6, 7, 8, 0]
    assert not check(tmp_path)


def test_damaged_hashes_are_left_out_and_a_repair_keeps_the_others(tmp_path):
    with Store(tmp_path) as store:
        store.put_pixels("images", 0, HASHES[:2])
        store.put_pixels("images", 2, HASHES[2:])
    change(tmp_path, "UPDATE pixels SET hashes = zeroblob(16) WHERE start = 0")
    with pytest.warns(UserWarning, match="hashes of images are damaged"), Store(tmp_path) as store:
        assert store.pixels("images", 4).tolist() == [0, 0, 7, 8]
    assert check(tmp_path)
    repair(tmp_path)
    assert not check(tmp_path)
    with Store(tmp_path) as store:
        assert store.pixels("images", 4).tolist() == [0, 0, 7, 8]


def test_a_store_of_format_1_gets_its_table_when_it_is_written_to(tmp_path):
    with Store(tmp_path) as store:
        store.put_labels("images", np.arange(3))
    change(tmp_path, "DROP TABLE pixels")
    change(tmp_path, "PRAGMA user_version = 1")
    with Store(tmp_path, read_only=True) as store:
        assert store.pixels("images", 2).tolist() == [0, 0]
    assert not check(tmp_path)
    with Store(tmp_path) as store:
        store.put_pixels("images", 0, HASHES)
        assert store.labels("images", 3).tolist() == [0, 1, 2]
    assert not check(tmp_path)


@pytest.mark.parametrize("largest", [32_767, 32_768, 2**31 - 1])
def test_classes_above_sixteen_bits_are_stored_and_read(tmp_path, largest):
    labels, flags = np.array([0, largest, 5]), np.zeros(3, np.uint8)
    narrow = Outcome(np.array([1, -1, 2]), flags, None, 1.0, "cpu")
    wide = Outcome(np.array([-1, largest, 0]), flags, None, 1.0, "cpu")
    with Store(tmp_path) as store:
        store.put_labels("images", labels)
        store.append("cell", 0, narrow)
        store.append("cell", 3, wide)
    assert not check(tmp_path)
    with Store(tmp_path, read_only=True) as store:
        assert store.labels("images", 3).tolist() == labels.tolist()
        assert store.read("cell", 6).predictions.tolist() == [1, -1, 2, -1, largest, 0]
        assert store.read("cell", 2).predictions.tolist() == [1, -1]
    with closing(sqlite3.connect(tmp_path / FILE_NAME)) as db:
        sizes = [size for (size,) in db.execute("SELECT LENGTH(predictions) FROM chunks ORDER BY start")]
    assert sizes == [6, 6 if largest == 32_767 else 12]

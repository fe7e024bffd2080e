"""Generated images on disk: found again, never believed if damaged, and bounded."""

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from support.cifar_c import fake_cifar10, some_images

from robust_interp.core.errors import UserError
from robust_interp.corruptions import ahead, cache, corrupt
from robust_interp.corruptions.ahead import Maker
from robust_interp.corruptions.cache import Cache, cache_folder

KEY = {"dataset": "0123456789abcdef01", "corruption": "fog", "severity": 3, "start": 0, "seed": 4}
SHAPE = (3, 32, 32)


def only_file(folder):
    (path,) = [path for path in folder.rglob("*") if path.is_file()]
    return path


def test_images_are_found_again_under_their_key_alone(tmp_path):
    kept, images = Cache(tmp_path), some_images(5)
    kept.put(KEY, images)
    again = Cache(tmp_path)
    assert np.array_equal(again.get(KEY, SHAPE), images)
    assert again.has(KEY)
    for change in ({"seed": 5}, {"severity": 2}, {"start": 250}, {"dataset": "1"}, {"made_by": "other"}):
        assert again.get({**KEY, **change}, SHAPE) is None
        assert not again.has({**KEY, **change})
    kept.put(KEY, images[:2])
    assert np.array_equal(again.get(KEY, SHAPE), images[:2])


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: content[:-1],
        lambda content: content + b"\0",
        lambda content: content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
        lambda content: content.replace(b'"digest"', b'"digesT"'),
        lambda content: b"",
        lambda content: b"\x93NUMPY" + content,
        lambda content: content.partition(b"\n")[0] + b"\n",
    ],
)
def test_a_damaged_or_foreign_file_is_made_anew(tmp_path, damage):
    dataset = fake_cifar10(6)
    expected = corrupt(dataset.images, "fog", 2, range(6), 1)
    assert np.array_equal(Maker(dataset, 1, Cache(tmp_path)).images("fog", 2, 0, 6), expected)
    path = only_file(tmp_path)
    sound = path.read_bytes()
    path.write_bytes(damage(sound))
    assert np.array_equal(Maker(dataset, 1, Cache(tmp_path)).images("fog", 2, 0, 6), expected)
    assert path.read_bytes() == sound


def test_a_file_of_another_key_under_this_name_is_not_believed(tmp_path):
    kept = Cache(tmp_path)
    kept.put(KEY, some_images(2))
    there = only_file(tmp_path)
    other = {**KEY, "seed": 9}
    kept.put(other, some_images(2, seed=1))
    (path,) = [path for path in tmp_path.rglob("*.images") if path != there]
    path.write_bytes(there.read_bytes())
    assert kept.get(other, SHAPE) is None


def test_what_is_kept_serves_every_seed_of_its_own_and_a_larger_n(tmp_path, monkeypatch):
    dataset, made = fake_cifar10(20), []

    def counting(images, name, severity, ids, seed):
        made.append((name, severity, list(ids), seed))
        return corrupt(images, name, severity, ids, seed)

    monkeypatch.setattr(ahead, "corrupt", counting)
    monkeypatch.setattr(ahead, "MOST_IMAGES", 8)
    for start, stop, count in ((0, 8, 1), (0, 20, 2), (5, 17, 0), (0, 20, 0)):
        made.clear()
        found = Maker(dataset, 3, Cache(tmp_path)).images("contrast", 4, start, stop)
        assert np.array_equal(found, corrupt(dataset.images, "contrast", 4, range(20), 3)[start:stop])
        assert len(made) == count
    Maker(dataset, 4, Cache(tmp_path)).images("contrast", 4, 0, 8)
    assert made == [("contrast", 4, list(range(8)), 4)]


def test_images_of_a_plug_in_are_not_kept_since_they_may_depend_on_any_file(tmp_path, fresh):
    from robust_interp import plugins

    stain, path = tmp_path / "stain.npy", tmp_path / "plugin.py"
    path.write_text(
        "from pathlib import Path\n\nimport numpy as np\nfrom robust_interp.plugins import corruption\n\n\n"
        "@corruption\ndef plain(image, severity, rng):\n"
        "    return np.full_like(image, np.load(Path(__file__).with_name('stain.npy')))\n"
    )
    plugins.load(path)
    for value, grey in ((0.2, 51), (0.4, 102)):
        np.save(stain, value)
        found = Maker(fake_cifar10(2), 0, Cache(tmp_path / "kept")).images("plain", 1, 0, 2)
        assert set(np.unique(found)) == {grey}
    assert not (tmp_path / "kept").exists()


def test_a_full_folder_takes_no_more_and_says_so_once(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "LIMIT", 7000)
    kept = Cache(tmp_path)
    kept.put(KEY, some_images(2))
    assert not kept.trouble
    kept.put({**KEY, "start": 250}, some_images(2))
    assert "is full" in kept.trouble
    assert "\n" not in kept.trouble
    assert kept.get({**KEY, "start": 250}, SHAPE) is None
    assert kept.get(KEY, SHAPE) is not None


def test_what_was_long_unused_makes_room(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "LIMIT", 7000)
    Cache(tmp_path).put(KEY, some_images(2))
    long_ago = time.time() - 31 * 24 * 3600
    os.utime(only_file(tmp_path), (long_ago, long_ago))
    kept = Cache(tmp_path)
    kept.put({**KEY, "start": 250}, some_images(2))
    assert not kept.trouble
    assert kept.get(KEY, SHAPE) is None
    assert kept.get({**KEY, "start": 250}, SHAPE) is not None


def test_a_disk_that_is_nearly_full_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(cache, "LEFT_FREE", 2**62)
    kept = Cache(tmp_path)
    kept.put(KEY, some_images(1))
    assert "nearly full" in kept.trouble
    assert not list(tmp_path.rglob("*.images"))


def test_a_folder_that_cannot_be_written_is_told_and_does_not_stop_the_run(tmp_path):
    (tmp_path / "file").write_text("")
    maker = Maker(fake_cifar10(2), 0, Cache(tmp_path / "file"))
    assert maker.images("fog", 1, 0, 2).shape == (2, *SHAPE)
    assert "not kept on disk" in maker.cache.trouble


def test_many_writers_at_once_leave_whole_files(tmp_path):
    images = some_images(50)

    def write():
        for _ in range(10):
            Cache(tmp_path).put(KEY, images)

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        found = Cache(tmp_path).get(KEY, SHAPE)
        assert found is None or np.array_equal(found, images)
    assert np.array_equal(Cache(tmp_path).get(KEY, SHAPE), images)
    assert len(list(tmp_path.rglob("*"))) == 2  # the dataset's folder and the file


def test_where_it_is(monkeypatch):
    assert cache_folder("off") is None
    assert cache_folder() is None  # $ROBUST_INTERP_CACHE is off in the tests
    assert cache_folder("here") == Path("here")
    monkeypatch.setenv("ROBUST_INTERP_CACHE", "/there")
    assert cache_folder() == Path("/there")
    monkeypatch.delenv("ROBUST_INTERP_CACHE")
    monkeypatch.setenv("HOME", "/home/me")
    assert cache_folder() == Path("/home/me/.cache/robust-interp/corruptions")


def test_a_missing_home_folder_is_refused_where_it_was_asked_for(monkeypatch):
    told = "^~nobody_x/y cannot be used: there is no such home folder$"
    with pytest.raises(UserError, match=told):
        cache_folder("~nobody_x/y")
    monkeypatch.setenv("ROBUST_INTERP_CACHE", "~nobody_x/y")
    with pytest.raises(UserError, match=told):
        cache_folder()
    monkeypatch.delenv("ROBUST_INTERP_CACHE")

    def without_home(path):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", without_home)
    assert cache_folder() is None


def test_clearing_removes_images_and_nothing_else(tmp_path):
    kept = Cache(tmp_path)
    kept.put(KEY, some_images(3))
    mine = tmp_path / KEY["dataset"][:16] / "notes.txt"
    mine.write_text("mine")
    kept.put({**KEY, "dataset": "f" * 64}, some_images(3))
    size = cache.size_of(tmp_path)
    assert size > 2 * 3 * 3072
    assert cache.clear(tmp_path) == size
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [mine]
    assert not (tmp_path / ("f" * 16)).exists()
    assert cache.size_of(tmp_path) == 0
    assert cache.clear(tmp_path / "nowhere") == 0


def test_a_file_that_cannot_be_removed_is_named(tmp_path, monkeypatch):
    Cache(tmp_path).put(KEY, some_images(1))

    def refuse(self, missing_ok=False):
        raise OSError(13, "Permission denied")

    monkeypatch.setattr(Path, "unlink", refuse)
    with pytest.raises(UserError, match=r"cannot remove .*fog_3_000000.*: Permission denied"):
        cache.clear(tmp_path)

"""Released folders of pictures, as of ImageNet-C: read as they are, in ImageFolder's order."""

import numpy as np
import pytest
from PIL import Image

import robust_interp
from robust_interp import data
from robust_interp.core.errors import UserError
from robust_interp.corruptions import Corruptor, parse_corruptions
from robust_interp.corruptions.cache import Cache
from robust_interp.corruptions.released import Pictures

SIDE, CLASSES, EACH = 64, ("n02", "n10", "n1"), 3
LABELS = np.repeat(np.arange(3), EACH)  # of the classes by name: n02, n1, n10


def clean():
    images = np.random.default_rng(0).integers(0, 256, (9, 3, SIDE, SIDE), dtype=np.uint8)
    return data.from_arrays(images, LABELS, 3, name="mine")


def grey_of(name, severity, wnid, at):
    return 40 * severity + 10 * sorted(CLASSES).index(wnid) + 2 * at + (name == "fog")


@pytest.fixture
def released(tmp_path):
    """Plain pictures, whose grey says which they are: JPEG keeps it."""
    for name, group in (("fog", "weather/fog"), ("contrast", "contrast")):
        for severity in range(1, 6):
            for wnid in CLASSES:
                folder = tmp_path / group / str(severity) / wnid
                folder.mkdir(parents=True)
                for at in range(EACH):
                    grey = grey_of(name, severity, wnid, at)
                    Image.new("RGB", (SIDE, SIDE), (grey,) * 3).save(folder / f"val_{at}.JPEG", quality=85)
                (folder / ".hidden").write_text("")
    return tmp_path


def pixels(corruptor, name, severity, start, stop):
    (perturbation,) = parse_corruptions(f"{name}(severity={severity})", corruptor)
    return corruptor.pixels(perturbation, start, stop)


def test_pictures_are_read_class_by_class_and_file_by_file(released):
    corruptor = Corruptor(clean(), 0, released)
    for name in ("fog", "contrast"):
        for severity in (1, 5):
            found = pixels(corruptor, name, severity, 1, 9)
            assert found.shape == (8, 3, SIDE, SIDE)
            expected = [grey_of(name, severity, wnid, at) for wnid in sorted(CLASSES) for at in range(EACH)]
            assert np.rint(found[:, 0, 5, 7] * 255).tolist() == expected[1:]
            assert (found == found[:, :1, :1, :1]).all()  # no border: neither resized nor padded


def test_the_source_is_a_digest_that_changes_with_the_files(released):
    first = Corruptor(clean(), 0, released).source("fog")
    assert first.startswith("released(Tiny-ImageNet-C, files ")
    assert Corruptor(clean(), 7, released).source("fog") == first
    other = released / "weather" / "fog" / "3" / "n1" / "val_0.JPEG"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)).save(other)
    assert Corruptor(clean(), 0, released).source("fog") != first


def test_a_measurement_says_that_the_images_are_released(released, tmp_path):
    import torch

    class ByGrey(torch.nn.Module):
        """Tells the class of the released pictures of contrast at severity 1."""

        def forward(self, images):
            grey = (images.mean((1, 2, 3)) * 255 - 40) / 10
            return -((torch.arange(3.0) - grey.floor()[:, None]) ** 2)

    dataset = clean()
    table = robust_interp.evaluate(
        ByGrey(),
        (dataset.images, dataset.labels, 3),
        attacks="none",
        corruptions="contrast(severity=1)",
        corruptions_dir=released,
    )
    row = table[table["perturbation"] == "contrast"].iloc[0]
    assert row["accuracy"] == 100
    assert row["corruption_source"].startswith("released(Tiny-ImageNet-C, files ")


def refused(dataset, folder, text):
    with pytest.raises(UserError, match=text) as caught:
        pixels(Corruptor(dataset, 0, folder), "fog", 2, 0, 9)
    assert "\n" not in str(caught.value)


def test_pictures_of_other_images_are_refused(released):
    (released / "weather" / "fog" / "2" / "n1" / "val_1.JPEG").unlink()
    refused(clean(), released, "must hold the 9 images of mine.* in the same order.*it holds 8 of 3 classes")


def files_of(folder, wnids=CLASSES, name="val_{}.png"):
    for wnid in wnids:
        (folder / wnid).mkdir(parents=True)
        for at in range(EACH):
            Image.new("RGB", (SIDE, SIDE)).save(folder / wnid / name.format(at))
    return data.open_source(f"folder:{folder}")


def test_files_are_found_by_their_names_in_any_subset(released, tmp_path):
    own = files_of(tmp_path / "own", ("n10", "n1"))  # n02 is missing, and fewer are measured
    shuffled = data.in_subset(own, "random", 3)
    for dataset in (own, shuffled, data.in_subset(own, "stratified", 1)):
        corruptor = Corruptor(dataset, 0, released)
        found = pixels(corruptor, "fog", 2, 0, 6)[:, 0, 5, 7] * 255
        named = [dataset.name_of(at) for at in range(6)]  # n1/val_0.png
        assert np.rint(found).tolist() == [grey_of("fog", 2, name[:-10], int(name[-5])) for name in named]
        assert corruptor.source("fog") == Corruptor(own, 0, released).source("fog")
    assert [shuffled.name_of(at) for at in range(6)] != [own.name_of(at) for at in range(6)]


def test_other_names_are_taken_in_the_own_order_whatever_the_subset(released, tmp_path):
    own = data.in_subset(files_of(tmp_path / "own", name="other_{}.png"), "random", 3)
    found = pixels(Corruptor(own, 0, released), "fog", 2, 0, 9)[:, 0, 5, 7] * 255
    named = [own.name_of(at) for at in range(9)]
    assert np.rint(found).tolist() == [grey_of("fog", 2, name[:-12], int(name[-5])) for name in named]
    arrays = data.in_subset(clean(), "random", 5)
    found = pixels(Corruptor(arrays, 0, released), "fog", 2, 0, 9)[:, 0, 5, 7] * 255
    wnids = [(sorted(CLASSES)[place // EACH], place % EACH) for place in arrays.places]
    assert np.rint(found).tolist() == [grey_of("fog", 2, *each) for each in wnids]


def test_a_file_without_its_picture_is_named(released, tmp_path):
    (released / "weather" / "fog" / "2" / "n1" / "val_1.JPEG").unlink()
    refused(files_of(tmp_path / "own"), released, "fog/2 has no picture of n1/val_1.png")


def test_a_severity_that_is_not_there_is_named(released):
    (released / "weather" / "fog" / "2").rename(released / "weather" / "fog" / "two")
    refused(clean(), released, "has no folder fog/2")


def test_a_folder_without_corruptions_is_refused(tmp_path):
    refused(clean(), tmp_path, "no released corruption arrays for mine, and no folders")


def test_a_picture_of_another_size_is_not_resized(released):
    Image.new("RGB", (SIDE, SIDE + 8)).save(released / "weather" / "fog" / "2" / "n1" / "val_1.JPEG")
    refused(clean(), released, r"val_1.JPEG is 72 x 64, and released images are taken as they are")


def test_a_damaged_picture_is_named(released):
    (released / "weather" / "fog" / "2" / "n1" / "val_1.JPEG").write_bytes(b"\xff\xd8\xff")
    refused(clean(), released, "cannot read .*val_1.JPEG: ")


def test_grey_images_are_read_grey(released):
    images = np.zeros((9, 1, SIDE, SIDE), np.uint8)
    pictures = Pictures(data.from_arrays(images, LABELS, 3, name="mine"), released)
    assert pictures.images("contrast", 1, 0, 2)[:, 0, 0, 0].tolist() == [40, 42]


def test_corrupted_files_are_made_anew_once_a_file_has_changed(tmp_path):
    """With the same name and size: the fingerprint of a folder is that of names and sizes."""

    def found(grey):
        for wnid in CLASSES:
            (tmp_path / "clean" / wnid).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (SIDE, SIDE), (grey,) * 3).save(tmp_path / "clean" / wnid / "a.bmp")
        dataset = data.open_source(f"folder:{tmp_path / 'clean'}")
        corruptor = Corruptor(dataset, 0, cache=Cache(tmp_path / "kept"))
        return dataset.fingerprint, pixels(corruptor, "brightness", 1, 0, 3).max()

    assert found(51) == (found(51)[0], pytest.approx(0.3, abs=0.005))
    assert len(list((tmp_path / "kept").rglob("*.images"))) == 1
    assert found(102) == (found(51)[0], pytest.approx(0.5, abs=0.005))


def test_of_two_pictures_that_differ_in_the_suffix_alone_each_has_its_own(released, tmp_path):
    for place in released.glob("*/fog/*/n1"):
        Image.new("RGB", (SIDE, SIDE), (7, 7, 7)).save(place / "val_1.png")
    own = files_of(tmp_path / "own")  # val_1.png, and no val_1.JPEG
    found = pixels(Corruptor(own, 0, released), "fog", 2, 0, 9)[:, 0, 5, 7] * 255
    at = [own.name_of(at) for at in range(9)].index("n1/val_1.png")
    assert np.rint(found[at]) == 7
    for place in released.glob("*/fog/*/n1"):
        (place / "val_1.png").rename(place / "val_1.jpg")
    refused(own, released, "could both be the picture of n1/val_1.png")


def test_one_picture_is_not_that_of_two_images(released, tmp_path):
    files_of(own := tmp_path / "own")
    Image.new("RGB", (SIDE, SIDE)).save(own / "n1" / "val_1.jpg")
    refused(data.open_source(f"folder:{own}"), released, "could be the picture of both n1/val_1")

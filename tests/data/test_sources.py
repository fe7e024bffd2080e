"""Folders, ImageNet's folder and files of arrays as datasets: what is read, and what is refused."""

import io
import os

import numpy as np
import pytest
import torchvision
from PIL import Image
from support.own_images import by_class, encoded, pictures, write_folder

from robust_interp import data
from robust_interp.core.errors import UserError
from robust_interp.data import files


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "val", *pictures())


def opened(source, **options):
    return data.open_source(source, data.SourceOptions(workers=0, **options))


def test_a_folder_is_read_as_torchvisions_image_folder(folder):
    theirs = torchvision.datasets.ImageFolder(folder)
    ours = opened(f"folder:{folder}")
    assert (ours.name, ours.classes, ours.shape) == ("folder:val", len(theirs.classes), (3, 8, 8))
    assert ours.labels.tolist() == theirs.targets
    expected = [np.asarray(image).transpose(2, 0, 1) for image, _ in theirs]
    assert np.array_equal(ours.rows(0, 12), expected)
    assert np.array_equal(ours.rows(0, 12), by_class(*pictures())[0])
    assert ours.rows(0, 0).shape == (0, 3, 8, 8)


def test_samples_are_had_by_id_in_any_order(folder):
    ours, images = opened(f"folder:{folder}"), by_class(*pictures())[0]
    assert np.array_equal(ours.at(np.array([7, 0, 3])), images[[7, 0, 3]])
    assert np.array_equal(ours.pixels(2, 5), images[2:5].astype(np.float32) / np.float32(255))


ASKED_IDS = {
    "descending": [2, 1, 0],
    "ends in order": [0, 2, 1, 3],
    "twice, and as many as a range": [0, 1, 1, 3],
    "one twice": [5, 5],
    "a range": [3, 4, 5],
    "from the last to the first": [11, 0],
    "all, shuffled": [11, 3, 5, 0, 9, 7, 1, 2, 4, 6, 8, 10],
}


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_whatever_ids_are_asked_for_the_images_are_theirs(folder, monkeypatch, workers, keeps):
    images = by_class(*pictures())[0]
    if not keeps:
        monkeypatch.setattr(files, "KEPT_BYTES", 0)
    for ids in ASKED_IDS.values():  # each for itself, and one after another
        alone = data.open_source(f"folder:{folder}", data.SourceOptions(workers=workers))
        assert np.array_equal(alone.at(np.array(ids)), images[ids]), ids
        assert np.array_equal(alone.rows(0, 12), images), ids  # what is kept is right, too
    one = data.open_source(f"folder:{folder}", data.SourceOptions(workers=workers))
    for ids in ASKED_IDS.values():
        assert np.array_equal(one.at(np.array(ids)), images[ids]), ids


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_after_an_image_that_cannot_be_decoded_the_same_ids_are_the_same_images(folder, workers):
    images = by_class(*pictures())[0]
    broken = folder / "b" / "00004.png"  # image 5
    whole = broken.read_bytes()
    broken.write_bytes(b"no image")
    found = data.open_source(f"folder:{folder}", data.SourceOptions(workers=workers))
    with pytest.raises(UserError, match=r"cannot decode b/00004\.png"):
        found.rows(3, 9)
    broken.write_bytes(whole)
    assert np.array_equal(found.rows(3, 9), images[3:9])


def test_folders_called_by_numbers_are_sorted_as_text_and_a_line_says_so(tmp_path):
    images, _ = pictures(11)
    names = [str(at) for at in range(11)]
    found = opened(f"folder:{write_folder(tmp_path, images, np.arange(11), names)}")
    assert np.array_equal(found.rows(0, 3), images[[0, 1, 10]])
    (line,) = found.notes
    assert "sorted as text" in line
    assert "(0, 1, 10, 2, ...)" in line
    few = opened(f"folder:{write_folder(tmp_path / 'few', images[:3], np.arange(3), names)}")
    assert few.notes == ()


def test_a_class_map_says_which_folder_is_which_class(folder, tmp_path):
    table = tmp_path / "map.csv"
    table.write_text("folder,label\nc,0\na,4\nb,4\nabsent,9\n")
    found = opened(f"folder:{folder}", class_map=str(table))
    assert found.labels.tolist() == [4] * 8 + [0] * 4
    assert found.classes == 10


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("folder,label\na,0\nb,1\n", "no line for the folder c"),
        ("folder,label\na,x\n", "a is of class 'x', which is no whole number"),
        ("folder,label\na,0\na,1\n", "a is named twice"),
        (f"folder,label\na,0\nb,{2**31}\nc,1\n", "b is of class 2147483648: .* at most 2147483648 classes"),
        (f"folder,label\na,0\nb,1\nc,1\nabsent,{10**30}\n", "absent is of class 1000000000000"),
        (f"folder,label\na,{'9' * 5000}\nb,1\nc,1\n", "a is of class 99999999999"),
        ("name,class\na,0\n", "must have the columns folder and label"),
        ("", "must have the columns"),
        (None, "cannot read"),
    ],
)
def test_a_wrong_class_map_is_refused_in_one_line(folder, tmp_path, text, message):
    table = tmp_path / "map.csv"
    if text is not None:
        table.write_text(text)
    with pytest.raises(UserError, match=message) as refusal:
        opened(f"folder:{folder}", class_map=str(table))
    assert "\n" not in str(refusal.value)


def test_the_largest_label_of_a_class_map_is_read_at_once(folder, tmp_path):
    table = tmp_path / "map.csv"
    table.write_text(f"folder,label\na,0\nb,{2**31 - 1}\nc,{'0' * 5000}1\n")
    found = opened(f"folder:{folder}", class_map=str(table))
    assert found.labels.tolist() == [0] * 4 + [2**31 - 1] * 4 + [1] * 4
    assert (found.classes, found.class_names) == (2**31, ())  # so many names would fill the memory


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda root: None, "there is no folder"),
        (lambda root: root.mkdir(), "has no folders: it must have one for each class"),
        (lambda root: (root / "a").mkdir(parents=True), "has no images"),
    ],
)
def test_what_is_no_folder_of_classes_is_refused(tmp_path, make, message):
    make(tmp_path / "x")
    with pytest.raises(UserError, match=message):
        opened(f"folder:{tmp_path / 'x'}")


def test_imagenets_folder_has_its_thousand_classes_even_if_some_are_missing(tmp_path):
    images, labels = pictures(6)
    write_folder(tmp_path / "val", images, labels, ["n01440764", "n01443537", "n15075141"])
    for path in (tmp_path, tmp_path / "val"):
        found = opened(f"imagenet:{path}")
        assert (found.name, found.classes) == ("imagenet", 1000)
        assert found.labels.tolist() == [0, 0, 1, 1, 999, 999]  # tench, goldfish, toilet tissue
    write_folder(tmp_path / "val", images, labels, ["cat", "dog", "emu"])
    with pytest.raises(UserError, match="cat is none of its 1,000 wnids"):
        opened(f"imagenet:{tmp_path}")


# --- the fingerprint of files ------------------------------------------------------------------------


def test_the_fingerprint_is_that_of_paths_sizes_and_labels_wherever_the_folder_lies(folder, tmp_path):
    first = opened(f"folder:{folder}").fingerprint
    elsewhere = write_folder(tmp_path / "other", *pictures())
    assert opened(f"folder:{elsewhere}").fingerprint == first
    (elsewhere / "a" / "00000.png").rename(elsewhere / "a" / "00001.png")
    assert opened(f"folder:{elsewhere}").fingerprint != first
    (elsewhere / "a" / "00001.png").rename(elsewhere / "a" / "00000.png")
    with (elsewhere / "a" / "00000.png").open("ab") as file:
        file.write(b"\0")
    assert opened(f"folder:{elsewhere}").fingerprint != first


def test_the_content_is_told_by_a_hash_of_every_image_that_was_read(folder, tmp_path):
    found = opened(f"folder:{folder}")
    assert found.content(np.arange(3)).tolist() == [0, 0, 0]
    found.rows(0, 2)
    hashes = found.content(np.arange(3))
    assert (hashes != 0).tolist() == [True, True, False]
    assert hashes[0] != hashes[1]
    images, labels = pictures()
    images[0, 0, 0, 0] ^= 1  # image 0 is of class a, the first
    changed = opened(f"folder:{write_folder(tmp_path / 'changed', images, labels)}")
    changed.rows(0, 2)
    assert (changed.content(np.arange(2)) == hashes[:2]).tolist() == [False, True]
    assert data.from_arrays(images, labels).content(np.arange(2)) is None  # its fingerprint has it all


def test_the_files_can_be_read_again_to_see_whether_they_changed(folder):
    found = opened(f"folder:{folder}")
    found.rows(0, 3)
    before = found.content(np.arange(3))
    assert found.read_content(np.array([0, 2])).tolist() == before[[0, 2]].tolist()
    images, labels = pictures()
    images[0, 0, 0, 0] ^= 1  # image 0 is of class a, the first
    write_folder(folder, images, labels)
    assert (found.read_content(np.arange(3)) == before).tolist() == [False, True, True]
    (folder / "a" / "00000.png").unlink()
    with pytest.raises(UserError, match=r"cannot decode a/00000.png: .*No such file"):
        found.read_content(np.arange(1))
    assert data.from_arrays(images, labels).read_content(np.arange(2)) is None


# --- files that cannot be read -----------------------------------------------------------------------


def cut(content):
    return content[: len(content) // 2]


BROKEN = {"empty": b"", "text": b"no image at all", "cut off": None}


@pytest.mark.parametrize("kind", BROKEN)
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_an_unreadable_image_is_named_before_the_run_or_left_out_and_counted(tmp_path, kind, suffix):
    images, labels = pictures(6, (32, 32))
    folder = write_folder(tmp_path / "val", images, labels, suffix=suffix)
    broken = folder / "b" / f"00001.{suffix}"
    broken.write_bytes(cut(broken.read_bytes()) if BROKEN[kind] is None else BROKEN[kind])
    found = opened(f"folder:{folder}")
    found.expect(2)  # it is not among the first two
    with pytest.raises(UserError, match=rf"cannot read b/00001.{suffix}: .*--skip-unreadable"):
        found.expect(6)
    rest = opened(f"folder:{folder}", skip_unreadable=True)
    rest.expect(5)
    assert (len(rest), rest.metadata) == (5, {"skipped": 1})
    assert rest.labels.tolist() == [0, 0, 1, 2, 2]
    assert rest.notes[0].startswith("1 of 6 images cannot be read and is left out: cannot read b/")
    assert not rest.notes[0].endswith("...")
    assert rest.fingerprint != found.fingerprint


AFTER_THE_END = {
    "nothing": b"",
    "a few zeros": bytes(100),
    "a film": bytes(range(256)) * 20,
    "zeros": bytes(9000),
}
CUTS = {"its last bytes": -12, "a tenth": 0.9, "half": 0.5}


@pytest.mark.parametrize("suffix", ["png", "jpg"])
@pytest.mark.parametrize("more", AFTER_THE_END.values(), ids=AFTER_THE_END)
def test_a_whole_image_is_read_whatever_follows_its_end(tmp_path, suffix, more):
    folder = write_folder(tmp_path / "val", *pictures(6, (32, 32)), suffix=suffix)
    first = folder / "a" / f"00000.{suffix}"
    expected = np.asarray(Image.open(first)).transpose(2, 0, 1)
    first.write_bytes(first.read_bytes() + more)
    for skip in (False, True):
        found = opened(f"folder:{folder}", skip_unreadable=skip)
        found.expect(6)
        assert found.problems() == []
        assert (len(found), found.metadata) == (6, {})
        assert np.array_equal(found.rows(0, 1)[0], expected)


@pytest.mark.parametrize("suffix", ["png", "jpg"])
@pytest.mark.parametrize("more", AFTER_THE_END.values(), ids=AFTER_THE_END)
@pytest.mark.parametrize("cut", CUTS.values(), ids=CUTS)
def test_what_is_refused_as_cut_off_is_left_out_as_well(tmp_path, suffix, more, cut):
    folder = write_folder(tmp_path / "val", *pictures(6, (32, 32)), suffix=suffix)
    first = folder / "a" / f"00000.{suffix}"
    content = first.read_bytes()
    first.write_bytes(content[: cut if cut < 0 else int(cut * len(content))] + more)
    with pytest.raises(UserError, match=rf"cannot read a/00000\.{suffix}: "):
        opened(f"folder:{folder}").expect(6)
    rest = opened(f"folder:{folder}", skip_unreadable=True)
    rest.expect(5)
    assert (len(rest), rest.metadata) == (5, {"skipped": 1})


def with_thumbnail(jpeg):
    """The file with a whole smaller one in its header, as cameras write it."""
    small = io.BytesIO()
    Image.new("RGB", (8, 8)).save(small, "JPEG")
    segment = b"Exif\0\0" + small.getvalue()
    return jpeg[:2] + b"\xff\xe1" + (len(segment) + 2).to_bytes(2, "big") + segment + jpeg[2:]


def with_stray_bytes(jpeg):
    """The file with bytes between two segments of its header, which decoders skip."""
    first = 4 + int.from_bytes(jpeg[4:6], "big")  # end of the first segment
    return jpeg[:first] + bytes(3) + with_thumbnail(jpeg[:2] + jpeg[first:])[2:]


@pytest.mark.parametrize("written", [with_thumbnail, with_stray_bytes])
def test_a_header_does_not_hide_where_the_image_ends(tmp_path, written):
    """The end of a thumbnail is not that of the image, also behind bytes between two segments."""
    folder = write_folder(tmp_path / "val", *pictures(6, (32, 32)), suffix="jpg")
    first = folder / "a" / "00000.jpg"
    whole = written(first.read_bytes())
    first.write_bytes(whole + bytes(9000))
    assert opened(f"folder:{folder}").problems() == []
    first.write_bytes(whole[:-200] + bytes(9000))
    with pytest.raises(UserError, match=r"cannot read a/00000\.jpg: it is cut off"):
        opened(f"folder:{folder}").expect(6)


FURTHER = {  # pictures of an MPO: their sizes, and how much of their bytes is there
    "of the same size": ((32, 32), None),
    "smaller": ((8, 8), None),
    "cut off": ((32, 32), 200),
    "missing": ((32, 32), 0),
}


def several_pictures(folder, further):
    """The file of the first image, its bytes as those of the first picture of an MPO, and the rest of it."""
    size, there = further
    images = [Image.fromarray(np.full((*size, 3), value, np.uint8)) for value in (50, 200)]
    first, held = folder / "a" / "00000.jpg", io.BytesIO()
    with Image.open(first) as image:
        image.save(held, "MPO", save_all=True, append_images=images)
    assert Image.open(io.BytesIO(held.getvalue())).format == "MPO"
    end = held.getvalue().index(b"\xff\xd9") + 2
    return first, held.getvalue()[:end], held.getvalue()[end:][:there]


@pytest.fixture
def jpegs(tmp_path):
    return write_folder(tmp_path / "val", *pictures(6, (32, 32)), suffix="jpg")


@pytest.mark.parametrize("further", FURTHER.values(), ids=FURTHER)
@pytest.mark.parametrize("more", AFTER_THE_END.values(), ids=AFTER_THE_END)
def test_a_file_of_several_pictures_is_read_if_the_first_is_whole(jpegs, further, more):
    first, picture, rest = several_pictures(jpegs, further)
    first.write_bytes(picture + rest + more)
    expected = np.asarray(Image.open(io.BytesIO(picture + rest))).transpose(2, 0, 1)
    for skip in (False, True):
        found = opened(f"folder:{jpegs}", skip_unreadable=skip)
        found.expect(6)
        assert (found.problems(), found.metadata) == ([], {})
        assert np.array_equal(found.rows(0, 1)[0], expected)


@pytest.mark.parametrize("is_filled", [False, True], ids=["", "filled to its size"])
@pytest.mark.parametrize("further", FURTHER.values(), ids=FURTHER)
@pytest.mark.parametrize("more", AFTER_THE_END.values(), ids=AFTER_THE_END)
@pytest.mark.parametrize("cut", [*CUTS.values(), 0.4, 0.2], ids=[*CUTS, "0.4", "0.2"])
def test_a_file_of_several_pictures_is_refused_if_the_first_is_cut_off(jpegs, further, more, cut, is_filled):
    """If it is filled with zeros, Pillow decodes it, and the other pictures are whole."""
    first, picture, rest = several_pictures(jpegs, further)
    part = picture[: cut if cut < 0 else int(cut * len(picture))]
    first.write_bytes((part.ljust(len(picture), b"\0") + rest if is_filled else part) + more)
    with pytest.raises(UserError, match=r"cannot read a/00000\.jpg: "):
        opened(f"folder:{jpegs}").expect(6)
    rest = opened(f"folder:{jpegs}", skip_unreadable=True)
    rest.expect(5)
    assert (len(rest), rest.metadata) == (5, {"skipped": 1})


def test_an_image_that_breaks_only_when_it_is_decoded_is_named(folder):
    content = bytearray((folder / "a" / "00000.png").read_bytes())
    at = content.index(b"IDAT") + 8
    content[at : at + 8] = bytes(8)
    (folder / "a" / "00000.png").write_bytes(bytes(content))
    found = opened(f"folder:{folder}")
    found.expect(12)
    with pytest.raises(UserError, match=r"cannot decode a/00000.png"):
        found.rows(0, 12)


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_file_is_named_and_nothing_waits_for_it(folder, kind):
    odd = folder / "b" / "00000x.png"
    odd.symlink_to(folder / "nowhere") if kind == "link" else os.mkfifo(odd)
    found = opened(f"folder:{folder}")
    with pytest.raises(UserError, match=r"cannot read b/00000x\.png: (No such file|it is no file)"):
        found.expect(13)
    assert len(opened(f"folder:{folder}", skip_unreadable=True)) == 12


@pytest.mark.parametrize("target", [".", "..", "../..", "../../beside"])
def test_a_link_in_a_circle_is_named_and_not_followed(folder, target):
    beside = folder.parent / "beside"
    beside.mkdir()
    (beside / "back").symlink_to(folder / "b")
    (folder / "b" / "more").symlink_to(target)
    with pytest.raises(UserError, match=r"b/more(/back)? is a link to a folder that it lies in"):
        opened(f"folder:{folder}")


def test_a_link_to_another_folder_is_followed(folder, tmp_path):
    other = tmp_path.parent / f"{tmp_path.name}_other"
    write_folder(other, *pictures(3))
    (folder / "b" / "more").symlink_to(other / "a")
    assert len(opened(f"folder:{folder}")) > 12


def test_images_of_several_sizes_are_refused_with_a_hint(tmp_path):
    images, labels = pictures(3)
    write_folder(tmp_path, images, labels)
    write_folder(tmp_path, *pictures(5, (9, 8)), "defgh")
    found = opened(f"folder:{tmp_path}")
    with pytest.raises(UserError, match=r"several sizes.*--resize 256 --crop 224"):
        found.expect(8)
    with pytest.raises(UserError, match="several sizes") as refusal:
        found.rows(0, 8)
    assert "skip" not in str(refusal.value)  # all of them can be read


def test_images_of_more_than_eight_bits_are_refused(tmp_path):
    (tmp_path / "a").mkdir()
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(tmp_path / "a" / "0.png")
    with pytest.raises(UserError, match="more than 8 bits"):
        _ = opened(f"folder:{tmp_path}").shape


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF"])
def test_images_of_folders_are_turned_only_where_torchvision_does_so(tmp_path, kind):
    """Pillow itself turns TIFF."""
    exif = Image.Exif()
    exif[0x0112] = 6
    image = pictures(1, (4, 6))[0][0]
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / f"0.{kind.lower()}").write_bytes(encoded(image, kind, exif=exif))
    found = opened(f"folder:{tmp_path}")
    theirs = np.asarray(torchvision.datasets.ImageFolder(tmp_path)[0][0]).transpose(2, 0, 1)
    assert theirs.shape == ((3, 6, 4) if kind == "TIFF" else (3, 4, 6))
    assert found.sizes == "x".join(map(str, theirs.shape))
    assert np.array_equal(found.rows(0, 1)[0], theirs)
    if kind == "PNG":
        assert np.array_equal(theirs, image)


def test_grey_images_have_one_channel_and_others_three(tmp_path):
    grey = np.random.default_rng(0).integers(0, 256, (4, 1, 6, 6), dtype=np.uint8)
    write_folder(tmp_path / "grey", grey, [0, 0, 1, 1])
    found = opened(f"folder:{tmp_path / 'grey'}")
    assert (found.channels, found.shape) == (1, (1, 6, 6))
    assert np.array_equal(found.rows(0, 4), grey)
    colour = tmp_path / "grey" / "b" / "9.png"
    colour.write_bytes(encoded(np.zeros((3, 6, 6), np.uint8)))
    mixed = opened(f"folder:{tmp_path / 'grey'}")
    assert np.array_equal(mixed.rows(0, 4), grey.repeat(3, 1))


# --- arrays in a file --------------------------------------------------------------------------------


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_a_file_of_arrays_is_as_the_arrays_are(tmp_path, save):
    images, labels = pictures()
    save(tmp_path / "own.npz", images=images, labels=labels)
    found, given = opened(f"npz:{tmp_path / 'own.npz'}"), data.from_arrays(images, labels)
    assert (found.name, found.shape, found.classes) == ("npz:own", (3, 8, 8), 3)
    assert np.array_equal(found.rows(0, 12), images)
    assert found.fingerprint == given.fingerprint
    assert isinstance(found.images.base, np.memmap) == (
        save is np.savez
    )  # not in memory where it need not be


def test_a_file_of_arrays_may_say_how_many_classes_there_are(tmp_path):
    images, labels = pictures()
    np.savez(
        tmp_path / "own.npz", images=images.transpose(0, 1, 3, 2), labels=labels.astype(np.uint8), classes=7
    )
    found = opened(f"npz:{tmp_path / 'own.npz'}")
    assert found.classes == 7
    assert np.array_equal(found.rows(0, 12), images.transpose(0, 1, 3, 2))


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": pictures()[0]}, "no array 'labels'"),
        ({"x": pictures()[0], "labels": pictures()[1]}, "no array 'images', only x, labels"),
        ({"images": pictures()[0], "labels": np.eye(3)[pictures()[1]]}, "one-hot: pass labels.argmax"),
        ({"images": np.array([{}], object), "labels": [0]}, "images holds Python objects.* never unpickled"),
        ({"images": pictures()[0], "labels": np.array([0, None])}, "labels holds Python objects"),
        ({"images": pictures()[0][:0], "labels": []}, "no images"),
        ({"images": pictures()[0] / 1.0, "labels": pictures()[1]}, "run from 0 to 255.* divide them by 255"),
        ({"images": pictures()[0] * np.nan, "labels": pictures()[1]}, "values that are NaN"),
        ({"images": pictures()[0], "labels": pictures()[1], "classes": [3, 3]}, "classes must be how many"),
        (
            {"images": pictures()[0], "labels": pictures()[1], "classes": 3.5},
            "classes must be a whole number",
        ),
    ],
)
def test_a_wrong_file_of_arrays_is_refused_in_one_line(tmp_path, arrays, message):
    np.savez(tmp_path / "own.npz", **arrays)
    with pytest.raises(UserError, match=message) as refusal:
        opened(f"npz:{tmp_path / 'own.npz'}")
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("part", range(2, 20, 3))
def test_a_file_of_arrays_that_is_damaged_is_refused(tmp_path, save, part):
    images, labels = pictures()
    save(tmp_path / "own.npz", images=images, labels=labels)
    content = bytearray((tmp_path / "own.npz").read_bytes())
    content[part * len(content) // 40] ^= 0x10  # within the images, which come first
    (tmp_path / "own.npz").write_bytes(content)
    with pytest.raises(UserError, match=r"cannot read .*own\.npz"):
        opened(f"npz:{tmp_path / 'own.npz'}")


def test_a_single_array_is_answered_with_how_to_write_several(tmp_path):
    np.save(tmp_path / "own.npy", pictures()[0])
    with pytest.raises(UserError, match=r"a single array: write it with numpy\.savez"):
        opened(f"npz:{tmp_path / 'own.npy'}")


@pytest.mark.parametrize("content", [b"", b"PK", b"no archive"])
def test_what_is_no_archive_is_refused(tmp_path, content):
    (tmp_path / "own.npz").write_bytes(content)
    with pytest.raises(UserError, match="cannot read"):
        opened(f"npz:{tmp_path / 'own.npz'}")


# --- names -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("text", "is_one"), [("digits", False), ("folder:x", True), ("CIFAR-10", False)])
def test_what_a_source_looks_like(text, is_one):
    assert data.is_source(text) == is_one


def test_an_unknown_kind_of_source_is_answered_with_the_near_one():
    with pytest.raises(UserError, match="unknown source 'foldr'; did you mean folder"):
        data.is_source("foldr:x")


@pytest.mark.parametrize("kind", [np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64])
def test_labels_of_any_integer_type(kind):
    found = data.from_arrays(np.zeros((3, 1, 2, 2), np.uint8), np.array([0, 2, 1], kind))
    assert (found.labels.dtype, found.labels.tolist(), found.classes) == (np.int64, [0, 2, 1], 3)


@pytest.mark.parametrize(("text", "message"), [("npz:", "npz:FILE"), ("folder:", "folder:PATH")])
def test_a_source_that_names_nothing_is_answered_with_its_form(text, message):
    with pytest.raises(UserError, match=f"{text} names nothing: {message}"):
        data.is_source(text)


@pytest.mark.parametrize("kind", ["folder", "imagenet", "npz"])
def test_a_home_folder_is_expanded_or_refused_if_there_is_none(monkeypatch, tmp_path, kind):
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(UserError, match=f"{tmp_path / 'x'}"):
        opened(f"{kind}:~/x")
    with pytest.raises(UserError, match=r"^~nobody_x/x cannot be used: there is no such home folder$"):
        opened(f"{kind}:~nobody_x/x")


def test_a_file_or_folder_without_its_kind_is_answered_with_the_kind(folder, tmp_path):
    (tmp_path / "own.npz").write_bytes(b"")
    for path, kind in ((tmp_path / "own.npz", "npz"), (folder, "folder")):
        with pytest.raises(UserError, match=f"is meant, {kind}:{path}"):
            data.is_source(str(path))
    assert not data.is_source("own.npz")


def test_the_folders_are_the_names_of_the_classes_in_any_subset(folder, tmp_path):
    (folder / "c").rename(folder / "c\x1b[31m")
    found = opened(f"folder:{folder}")
    assert found.class_names == ("a", "b", "c?[31m")
    assert data.in_subset(found, "random", 1).class_names == found.class_names
    table = tmp_path / "map.csv"
    table.write_text("folder,label\na,2\nb,0\nc\x1b[31m,2\n")
    assert opened(f"folder:{folder}", class_map=str(table)).class_names == ("b", "", "a, c?[31m")

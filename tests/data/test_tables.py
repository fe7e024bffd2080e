"""Data sets in Hugging Face's formats, read from disk without a network."""

import sys
import zlib

import numpy as np
import pytest
from PIL import Image
from support.own_images import by_class, encoded, pictures, write_folder
from support.prerequisites import needed

from robust_interp import data
from robust_interp.core.errors import UserError
from robust_interp.data import files
from robust_interp.data.folder import Files
from robust_interp.data.tables import Rows

datasets = needed("datasets")
IMAGES, LABELS = pictures(6)
NAMED = {"image": datasets.Image(), "label": datasets.ClassLabel(names=["a", "b", "c", "d"])}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def table(features=None, **columns):
    held = {"image": [{"bytes": encoded(image), "path": None} for image in IMAGES], "label": LABELS.tolist()}
    return datasets.Dataset.from_dict(held | columns, datasets.Features(features or NAMED))


def opened(source, **options):
    return data.open_source(source, data.SourceOptions(workers=0, **options))


def as_the_images(found, classes=4):
    assert np.array_equal(found.rows(0, 6), IMAGES)
    assert (found.labels.tolist(), found.classes, found.shape) == (LABELS.tolist(), classes, (3, 8, 8))
    assert np.array_equal(found.at(np.array([5, 1])), IMAGES[[5, 1]])
    return True


def test_a_parquet_file_of_datasets(tmp_path):
    table().to_parquet(tmp_path / "own.parquet")
    found = opened(f"parquet:{tmp_path / 'own.parquet'}")
    assert as_the_images(found)
    assert found.name == "parquet:own"
    found.expect(6)
    moved = (tmp_path / "own.parquet").rename(tmp_path / "other.parquet")
    assert opened(f"parquet:{moved}").fingerprint == found.fingerprint


def test_a_parquet_file_without_features(tmp_path):
    import pyarrow
    import pyarrow.parquet

    plain = pyarrow.table({"image": [encoded(image) for image in IMAGES], "label": LABELS.astype(np.uint8)})
    pyarrow.parquet.write_table(plain, tmp_path / "plain.parquet")
    assert as_the_images(opened(f"parquet:{tmp_path / 'plain.parquet'}"), classes=3)


def test_a_saved_folder_and_its_splits(tmp_path):
    table().save_to_disk(tmp_path / "alone")
    found = opened(f"hf:{tmp_path / 'alone'}")
    assert as_the_images(found)
    assert found.name == "hf:alone"
    splits = datasets.DatasetDict({"train": table().select([0]), "validation": table()})
    splits.save_to_disk(tmp_path / "both")
    assert as_the_images(opened(f"hf:{tmp_path / 'both'}"))
    assert len(opened(f"hf:{tmp_path / 'both'}[train]")) == 1
    with pytest.raises(
        UserError, match=r"has no split dev, only train, validation: choose one with hf:.*SPLIT"
    ):
        opened(f"hf:{tmp_path / 'both'}[dev]")


def test_a_folder_of_images_that_datasets_loads(tmp_path):
    write_folder(tmp_path / "images" / "test", IMAGES, LABELS)
    found = opened(f"hf:{tmp_path / 'images'}")
    assert np.array_equal(found.rows(0, 6), by_class(IMAGES, LABELS)[0])


def test_rows_in_another_order_are_read_in_it(tmp_path):
    table().select([3, 1, 2]).save_to_disk(tmp_path / "some")
    assert np.array_equal(opened(f"hf:{tmp_path / 'some'}").rows(0, 3), IMAGES[[3, 1, 2]])


def test_a_row_without_an_image_is_named_or_left_out(tmp_path):
    content = [{"bytes": encoded(image), "path": f"{at}.png"} for at, image in enumerate(IMAGES)]
    table(image=[*content[:2], {"bytes": b"none", "path": "2.png"}, *content[3:]]).save_to_disk(
        tmp_path / "own"
    )
    with pytest.raises(UserError, match=r"cannot read row 2 \(2.png\): it is no image"):
        opened(f"hf:{tmp_path / 'own'}").expect(6)
    rest = opened(f"hf:{tmp_path / 'own'}", skip_unreadable=True)
    assert (len(rest), rest.metadata) == (5, {"skipped": 1})


def test_of_images_in_files_beside_the_table_a_missing_one_is_named_or_left_out(tmp_path):
    import pyarrow
    import pyarrow.parquet

    paths = [tmp_path / f"{at}.png" for at in range(6)]
    for path, image in zip(paths, IMAGES, strict=True):
        path.write_bytes(encoded(image))
    kind = pyarrow.struct({"bytes": pyarrow.binary(), "path": pyarrow.string()})
    column = pyarrow.array([{"bytes": None, "path": str(path)} for path in paths], kind)
    source = tmp_path / "own.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"image": column, "label": LABELS}), source)
    found = opened(f"parquet:{source}")
    found.expect(6)
    assert as_the_images(found, classes=3)
    paths[2].unlink()
    with pytest.raises(UserError, match=r"cannot read row 2 \(2.png\): No such file or directory: mend"):
        opened(f"parquet:{source}").expect(6)
    rest = opened(f"parquet:{source}", skip_unreadable=True)
    rest.expect(5)
    assert (rest.labels.tolist(), rest.metadata) == ([0, 1, 0, 1, 2], {"skipped": 1})
    assert np.array_equal(rest.rows(0, 5), np.delete(IMAGES, 2, 0))


# EXIF: where row 0 and column 0 of the stored pixels (H, W) lie in what is seen
SEEN = {
    1: lambda x: x,
    2: lambda x: x[:, :, ::-1],
    3: lambda x: x[:, ::-1, ::-1],
    4: lambda x: x[:, ::-1],
    5: lambda x: x.transpose(0, 2, 1),
    6: lambda x: x.transpose(0, 2, 1)[:, :, ::-1],
    7: lambda x: x.transpose(0, 2, 1)[:, ::-1, ::-1],
    8: lambda x: x.transpose(0, 2, 1)[:, ::-1],
}


def turned(image, orientation, kind="PNG"):
    exif = Image.Exif()
    exif[0x0112] = orientation
    return encoded(
        image, kind, exif=exif, **{"JPEG": {"quality": 95}, "WEBP": {"lossless": True}}.get(kind, {})
    )


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "TIFF", "WEBP"])
def test_images_are_upright_as_datasets_decodes_them(tmp_path, kind):
    """Stored are 4 x 6 pixels, or 6 x 4 where the orientation swaps them: all are seen as 4 x 6."""
    wide, high = (pictures(1, size)[0][0] for size in ((4, 6), (6, 4)))
    stored = {at: high if at >= 5 else wide for at in SEEN}
    content = [{"bytes": turned(image, at, kind), "path": None} for at, image in stored.items()]
    held = table(image=content, label=[0] * 8)
    held.save_to_disk(tmp_path / "own")
    found = opened(f"hf:{tmp_path / 'own'}")
    assert (found.sizes, found.shape) == ("3x4x6", (3, 4, 6))
    found.expect(8)
    if kind != "JPEG":
        assert np.array_equal(found.rows(0, 8), [SEEN[at](image) for at, image in stored.items()])
    assert np.array_equal(found.rows(0, 8), data.from_batches(held, workers=0).rows(0, 8))
    assert len(opened(f"hf:{tmp_path / 'own'}", skip_unreadable=True)) == 8


@pytest.mark.parametrize("orientation", SEEN)
@pytest.mark.parametrize("size", [(4, 6), (5, 5)])
@pytest.mark.parametrize("newer", [True, False])
def test_the_size_of_a_tiff_is_the_turned_one_with_each_pillow(
    tmp_path, monkeypatch, newer, size, orientation
):
    """Older versions of Pillow swap height and width when they decode, newer ones when they open a file."""

    def opened_by_pillow(file):
        image = Image.open(file)
        vars(image)["_size"] = size if newer and orientation >= 5 else size[::-1]
        return image

    content = turned(pictures(1, size)[0][0], orientation, "TIFF")
    (tmp_path / "0.tiff").write_bytes(content)
    rows = Rows(table(image=[{"bytes": content, "path": None}], label=[0]), "image")
    monkeypatch.setattr(files, "opened", opened_by_pillow)
    for source in (rows, Files(tmp_path, ("0.tiff",))):
        assert files.header_of(source, 0).size == (size[::-1] if orientation >= 5 else size)


def exif_chunks():
    """Chunks of a PNG that say orientation 6: their names and contents."""
    exif = Image.Exif()
    exif[0x0112] = 6
    content = exif.tobytes()
    profile = f"\nexif\n{len(content):8}\n{content.hex()}\n".encode()  # as ImageMagick writes it
    xmp = b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>'
    return {
        "eXIf": content.removeprefix(b"Exif\0\0"),
        "zTXt": b"Raw profile type exif\0\0" + zlib.compress(profile),
        "iTXt": b"XML:com.adobe.xmp\0\0\0\0\0" + xmp,
    }


@pytest.mark.parametrize("before", [b"IDAT", b"IEND"])
@pytest.mark.parametrize(("name", "content"), exif_chunks().items(), ids=exif_chunks())
def test_the_orientation_of_a_png_is_found_wherever_it_is_written(tmp_path, name, content, before):
    image = pictures(1, (6, 4))[0][0]
    png, body = encoded(image), name.encode() + content
    at = png.index(before) - 4
    chunk = len(content).to_bytes(4) + body + zlib.crc32(body).to_bytes(4)
    held = table(image=[{"bytes": png[:at] + chunk + png[at:], "path": None}] * 6)
    held.save_to_disk(tmp_path / "own")
    found = opened(f"hf:{tmp_path / 'own'}")
    assert (found.sizes, found.shape) == ("3x4x6", (3, 4, 6))
    assert np.array_equal(found.rows(0, 1)[0], SEEN[6](image))
    assert np.array_equal(np.asarray(held[0]["image"]).transpose(2, 0, 1), SEEN[6](image))


def test_a_png_without_exif_is_not_decoded_before_it_is_measured(tmp_path):
    """Its pixels are damaged, which is found only when they are decoded."""
    content = bytearray(encoded(IMAGES[0]))
    at = content.index(b"IDAT") + 8
    content[at : at + 8] = bytes(8)
    rows = [
        {"bytes": bytes(content), "path": None},
        *({"bytes": encoded(one), "path": None} for one in IMAGES[1:]),
    ]
    table(image=rows).save_to_disk(tmp_path / "own")
    found = opened(f"hf:{tmp_path / 'own'}")
    found.expect(6)
    with pytest.raises(UserError, match="cannot decode row 0"):
        found.rows(0, 6)


@pytest.mark.parametrize(
    ("mode", "channels"),
    [("1", 1), ("L", 1), ("LA", 1), *((mode, 3) for mode in ("P", "RGB", "RGBA", "CMYK", "HSV", "YCbCr"))],
)
@pytest.mark.parametrize("stored", [1, 3])
def test_images_are_read_in_the_mode_of_their_column_as_datasets_does(tmp_path, mode, channels, stored):
    content = [{"bytes": encoded(image[:stored]), "path": None} for image in IMAGES]
    held = table(NAMED | {"image": datasets.Image(mode=mode)}, image=content)
    held.save_to_disk(tmp_path / "own")
    found = opened(f"hf:{tmp_path / 'own'}")
    assert found.shape == (channels, 8, 8)
    views = {each: found.preprocessed_for({"input_size": (each, 8, 8), "crop_pct": 1.0}) for each in (1, 3)}
    assert views[channels] is found
    for each, view in views.items():
        theirs = [np.asarray(held[at]["image"].convert("L" if each == 1 else "RGB")) for at in range(6)]
        assert np.array_equal(view.rows(0, 6), np.stack(theirs).reshape(6, 8, 8, each).transpose(0, 3, 1, 2))
    plain = table(image=content)
    plain.save_to_disk(tmp_path / "plain")
    assert opened(f"hf:{tmp_path / 'plain'}").shape == (stored, 8, 8)


def test_the_mode_of_a_column_is_in_the_fingerprint(tmp_path):
    content = [{"bytes": encoded(image), "path": None} for image in IMAGES]
    found = set()
    for mode in (None, "L", "1", "RGB"):
        folder = tmp_path / str(mode)
        table(NAMED | {"image": datasets.Image(mode=mode)}, image=content).save_to_disk(folder)
        found.add(opened(f"hf:{folder}").fingerprint)
    assert len(found) == 4


@pytest.mark.parametrize("mode", ["I", "F"])
def test_a_mode_of_more_than_eight_bits_is_refused(tmp_path, mode):
    content = [{"bytes": encoded(image), "path": None} for image in IMAGES]
    table(NAMED | {"image": datasets.Image(mode=mode)}, image=content).save_to_disk(tmp_path / "own")
    with pytest.raises(UserError, match=rf"cannot decode row 0: .* more than 8 bits \(mode {mode}\)"):
        opened(f"hf:{tmp_path / 'own'}").rows(0, 6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"label": [-1] * 6}, "column label: labels must be from 0 on, but run from -1 to -1"),
        (
            {"features": NAMED | {"label": datasets.Value("string")}, "label": list("abcabc")},
            "own, column label: labels must be class indices, not string",
        ),
        (
            {
                "features": {"x": datasets.Value("int64"), "label": NAMED["label"]},
                "x": [1] * 6,
                "image": None,
            },
            "which column holds the images .none does.: it has x, label",
        ),
    ],
)
def test_columns_that_are_not_clear_are_refused(tmp_path, change, message):
    features = change.pop("features", None)
    if change.get("image", 0) is None:
        made = datasets.Dataset.from_dict({"x": change["x"], "label": LABELS}, datasets.Features(features))
    else:
        made = table(features, **change)
    made.save_to_disk(tmp_path / "own")
    with pytest.raises(UserError, match=message):
        opened(f"hf:{tmp_path / 'own'}")


WHOLE, CLASSES = datasets.Value("int64"), NAMED["label"]


@pytest.mark.parametrize(
    ("kinds", "chosen"),
    [
        ({"style": CLASSES, "label": WHOLE}, "label"),
        ({"style": CLASSES, "label": CLASSES}, "label"),
        ({"style": CLASSES, "labels": WHOLE, "id": WHOLE}, "labels"),
        ({"style": CLASSES, "id": WHOLE}, "style"),
        ({"target": WHOLE}, "target"),
        ({"label": WHOLE, "labels": WHOLE}, None),
        ({"fine": CLASSES, "coarse": CLASSES}, None),
        ({"target": WHOLE, "id": WHOLE}, None),
    ],
    ids=lambda value: None if isinstance(value, str) else "-".join(value or ["not clear"]),
)
def test_the_labels_are_the_column_of_that_name_before_one_with_named_classes(tmp_path, kinds, chosen):
    """The column at position k holds k, k + 1, 0, ... so its first label tells which one was taken."""
    held = {name: ((np.arange(6) + k) % 4).tolist() for k, name in enumerate(kinds)}
    content = [{"bytes": encoded(image), "path": None} for image in IMAGES]
    features = datasets.Features({"image": NAMED["image"]} | kinds)
    datasets.Dataset.from_dict({"image": content} | held, features).save_to_disk(tmp_path / "own")
    if chosen:
        assert opened(f"hf:{tmp_path / 'own'}").labels.tolist() == held[chosen]
        return
    with pytest.raises(UserError, match="it is not clear which column holds the labels") as refusal:
        opened(f"hf:{tmp_path / 'own'}")
    assert str(refusal.value).endswith(f"it has image, {', '.join(kinds)}")


@pytest.mark.parametrize("other", [{}, {"id": WHOLE}, {"split": CLASSES}, {"split": CLASSES, "id": WHOLE}])
@pytest.mark.parametrize(
    ("kind", "value", "told"),
    [
        (datasets.Value("string"), "2", "string"),
        (datasets.Value("bool"), True, "bool"),
        (datasets.Value("float32"), 1.0, "float32"),
        (datasets.List(datasets.Value("int64")), [0, 1], "List"),
    ],
)
def test_a_column_called_label_that_holds_no_integers_is_refused_whatever_else_is_there(
    tmp_path, kind, value, told, other
):
    columns = {"label": [value] * 6} | {name: [0] * 6 for name in other}
    table(NAMED | {"label": kind} | other, **columns).save_to_disk(tmp_path / "own")
    with pytest.raises(UserError) as refusal:
        opened(f"hf:{tmp_path / 'own'}")
    assert str(refusal.value) == f"hf:own, column label: labels must be class indices, not {told}"


@pytest.mark.parametrize(
    ("names", "chosen"),
    [
        (["mask", "image"], "image"),
        (["img", "mask"], "img"),
        (["thumbnail", "pixel_values", "mask"], "pixel_values"),
        (["left", "right"], None),
        (["image", "img"], None),
    ],
)
def test_of_several_columns_of_images_the_one_of_that_name_is_taken(tmp_path, names, chosen):
    content = [{"bytes": encoded(image), "path": None} for image in IMAGES]
    columns = {name: content if name == chosen else content[:1] * 6 for name in names}
    features = datasets.Features(dict.fromkeys(names, NAMED["image"]) | {"label": CLASSES})
    datasets.Dataset.from_dict(columns | {"label": LABELS.tolist()}, features).save_to_disk(tmp_path / "own")
    if chosen:
        assert as_the_images(opened(f"hf:{tmp_path / 'own'}"))
        return
    said = rf"which column holds the images .{', '.join(names)}.: it has {', '.join(names)}, label"
    with pytest.raises(UserError, match=said):
        opened(f"hf:{tmp_path / 'own'}")


def test_what_is_not_there_is_refused_in_one_line(tmp_path):
    (tmp_path / "bad.parquet").write_bytes(b"none")
    for source, message in (
        (f"parquet:{tmp_path / 'no'}", "there is no file"),
        ("parquet:~nobody_x/a.parquet", "~nobody_x/a.parquet cannot be used: there is no such home folder"),
        ("hf:~nobody_x/a", "~nobody_x/a cannot be used: there is no such home folder"),
        (f"parquet:{tmp_path / 'bad.parquet'}", "cannot read parquet:"),
        ("hf:nobody/nothing", "cannot read hf:nobody/nothing.*--download fetches it"),
    ):
        with pytest.raises(UserError, match=message) as refusal:
            opened(source)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("source", ["parquet:x.parquet", "hf:x"])
def test_without_the_extra_one_line_names_it(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.parquet").touch()
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"needs an extra package: pip install .*\[hf\]"):
        opened(source)

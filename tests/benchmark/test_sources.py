"""A benchmark of a user's own image files: the same numbers as of arrays, resumed, and in groups by size."""

import numpy as np
import pandas as pd
import pytest
import torch
from support.own_images import by_class, picture, pictures, write_folder
from support.prerequisites import needed
from torch import nn

from robust_interp import data, evaluate
from robust_interp.core.errors import UserError
from robust_interp.data import decoding
from robust_interp.store import Store

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

ASKED = {"attacks": "fgsm,pgd(steps=2)", "eps": "4", "corruptions": "fog(severity=2)", "decode_workers": 0}
SAME = ["perturbation", "accuracy", "ci_low", "max_delta_255", "zero_grad", "n"]


@pytest.fixture
def model():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return linear((3, 8, 8))


def linear(shape, classes=3):
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), classes)).eval()


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "val", *pictures(24))


@pytest.mark.slow
def test_a_folder_and_a_file_of_arrays_give_the_numbers_of_arrays(model, folder, tmp_path):
    images, labels = by_class(*pictures(24))
    arrays = evaluate(model, (images, labels), **ASKED | {"decode_workers": None})
    np.savez(tmp_path / "own.npz", images=images, labels=labels)
    for source in (f"folder:{folder}", f"npz:{tmp_path / 'own.npz'}"):
        found = evaluate(model, source, subset="first", **ASKED)
        pd.testing.assert_frame_equal(found[SAME], arrays[SAME])
        assert "subset" not in found


@pytest.mark.slow
def test_the_predictions_are_those_of_cifar10_bit_for_bit(cifar_root, tmp_path):
    datasets = needed("datasets")
    n, test = 8, data.load("cifar10", data_dir=cifar_root)
    images, labels = test.images[:n], test.labels[:n]
    classes = tmp_path / "map.csv"
    classes.write_text("folder,label\n" + "".join(f"{at},{at}\n" for at in range(10)))
    write_folder(tmp_path / "val", images, labels, "0123456789")
    np.savez(tmp_path / "own.npz", images=images, labels=labels, classes=10)
    columns = {"image": list(map(picture, images)), "label": labels}
    kinds = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(10)})
    datasets.Dataset.from_dict(columns, kinds).save_to_disk(tmp_path / "saved")
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = linear((3, 32, 32), 10)
    asked = {"subset": "first", **ASKED, "corruptions": "none"}
    evaluate(model, "cifar10", n=n, out=tmp_path / "cifar", data_dir=cifar_root, **asked)
    expected = predictions(tmp_path / "cifar")
    for source in (f"npz:{tmp_path / 'own.npz'}", f"hf:{tmp_path / 'saved'}"):
        evaluate(model, source, out=tmp_path / source[:2], **asked)
        assert predictions(tmp_path / source[:2]) == expected
    # A folder is sorted by class, and draws go by the place of an image: so the arrays are sorted, too.
    order = np.argsort(labels, kind="stable")
    evaluate(model, (images[order], labels[order], 10), out=tmp_path / "sorted", **asked)
    evaluate(model, f"folder:{tmp_path / 'val'}", class_map=classes, out=tmp_path / "files", **asked)
    assert predictions(tmp_path / "files") == predictions(tmp_path / "sorted")


def predictions(folder):
    with Store(folder, read_only=True) as store:
        (plan,) = store.plans()
        found = [(cell.perturbation.column, store.read(cell.key, plan.n)) for cell in plan.cells]
    return [(column, one.predictions.tolist(), one.flags.tolist()) for column, one in found]


@pytest.mark.slow
def test_a_folder_that_lies_class_by_class_is_measured_stratified_unless_told_otherwise(model, folder):
    found = evaluate(model, f"folder:{folder}", n=6, **ASKED)
    assert set(found["subset"]) == {"stratified@0"}
    first = evaluate(model, f"folder:{folder}", n=6, subset="first", **ASKED)
    other = evaluate(model, f"folder:{folder}", n=6, subset_seed=1, **ASKED)
    hashes = {table["subset_hash"][0] for table in (found, first, other)}
    assert len(hashes) == 3


def test_arrays_are_stratified_where_only_some_are_measured(model):
    images, labels = by_class(*pictures(24))
    some, whole = (
        evaluate(model, (images, labels), n=n, attacks="none", corruptions="none") for n in (6, None)
    )
    assert set(some["subset"]) == {"stratified@0"}
    assert "subset" not in whole


@pytest.mark.slow
def test_a_run_goes_on_and_a_larger_n_adds_to_it(model, folder, tmp_path, monkeypatch):
    asked = {"dataset": f"folder:{folder}", "batch_size": 4, **ASKED}
    whole = evaluate(model, out=tmp_path / "whole", n=20, **asked)
    evaluate(model, out=tmp_path / "parts", n=9, **asked)
    added = []
    append = Store.append
    monkeypatch.setattr(
        Store,
        "append",
        lambda store, cell, start, one: (added.append(start), append(store, cell, start, one)),
    )
    parts = evaluate(model, out=tmp_path / "parts", n=20, **asked)
    assert min(added) == 9
    again = [column for column in whole if column != "seconds"]
    pd.testing.assert_frame_equal(parts[again], whole[again])
    del added[:]
    evaluate(model, out=tmp_path / "parts", n=20, **asked)
    assert added == []


@pytest.fixture
def bitmaps(tmp_path):
    """Files whose size does not depend on what they show."""
    return write_folder(tmp_path / "bmp", *pictures(24), suffix="bmp")


def change(folder, label, at):
    """Change one value of an image, and nothing of the manifest."""
    images, _ = pictures(24)
    images[at, 0, 0, 0] ^= 1
    name = f"{'abc'[label]}/{at:05}.bmp"
    before = (folder / name).stat().st_size
    picture(images[at]).save(folder / name)
    assert (folder / name).stat().st_size == before


@pytest.mark.slow
def test_an_image_that_changed_between_two_models_is_named(model, bitmaps, tmp_path):
    asked = {"dataset": f"folder:{bitmaps}", "out": tmp_path / "out", **ASKED, "attacks": "none"}
    evaluate(model, **asked)
    change(bitmaps, 1, 4)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        other = linear((3, 8, 8))
    with pytest.raises(UserError, match=r"b/00004.bmp is not the image that was measured before"):
        evaluate(other, **asked)


# A checkpoint, unlike a model object, has the same cells on all images.


@pytest.fixture
def checkpoint(tiny_zoo, tmp_path):
    """Arguments of `evaluate`: an untrained network of ten classes for grey 8 x 8 images, and a folder."""
    asked = {"attacks": "none", "corruptions": "none", "decode_workers": 0, "subset": "first"}
    return asked | {"models": "preact_resnet14", "zoo": tiny_zoo, "out": tmp_path / "out"}


def grey(root, n=40, seed=0):
    """A folder of n grey images, class by class; the sizes of its files do not depend on what they show."""
    return write_folder(root, grey_images(n, seed), np.arange(n) * 10 // n, suffix="bmp")


def grey_images(n, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, 1, 8, 8), dtype=np.uint8)


@pytest.mark.slow
@pytest.mark.parametrize("size", [{"resize": 8, "crop": 8}, {}])  # one preprocessing; the model's own
@pytest.mark.parametrize("n", [20, 40])  # everything is measured already; only further images are missing
def test_other_images_under_the_same_names_are_refused(checkpoint, tmp_path, n, size):
    own, other = grey(tmp_path / "own"), grey(tmp_path / "other", seed=1)
    before = evaluate(dataset=f"folder:{own}", n=20, **checkpoint, **size)
    with pytest.raises(UserError, match=r"^a/00000.bmp is not the image that was measured before.*--out$"):
        evaluate(dataset=f"folder:{other}", n=n, **checkpoint, **size)
    copied = grey(tmp_path / "copied" / "own")
    after = evaluate(dataset=f"folder:{copied}", n=20, **checkpoint, **size)
    pd.testing.assert_frame_equal(after, before)


@pytest.mark.slow
def test_an_image_that_changed_is_named_though_everything_is_measured(checkpoint, tmp_path):
    folder = grey(tmp_path / "own", n=30)
    evaluate(dataset=f"folder:{folder}", **checkpoint)
    picture(np.zeros((1, 8, 8), np.uint8)).save(folder / "c" / "00007.bmp")
    with pytest.raises(UserError, match=r"^c/00007.bmp is not the image that was measured before"):
        evaluate(dataset=f"folder:{folder}", **checkpoint)


@pytest.mark.slow
def test_few_of_many_images_are_read_again(checkpoint, tmp_path, monkeypatch):
    folder = grey(tmp_path / "own", n=100)
    asked = checkpoint | {"dataset": f"folder:{folder}", "n": 90, "resize": 8, "crop": 8}
    evaluate(**asked)
    images = grey_images(100)
    read, hash_of = [], decoding.hash_of
    monkeypatch.setattr(decoding, "hash_of", lambda image: (read.append(image), hash_of(image))[1])
    evaluate(**asked | {"decode_workers": 2})  # so few are decoded in this process
    at = [int((images == one).all((1, 2, 3)).argmax()) for one in read]
    assert at == sorted(set(at))
    assert (len(at), at[0], at[-1]) == (32, 0, 89)  # the first and the last measured one are among them
    assert set(np.diff(at)) == {2, 3}  # 89 steps in 31 gaps


@pytest.mark.slow
def test_images_without_files_are_not_read_again(checkpoint, tmp_path, monkeypatch):
    images, labels = grey_images(40), np.arange(40) * 10 // 40
    before = evaluate(dataset=(images, labels), **checkpoint)
    monkeypatch.setattr(data.ArrayDataset, "at", lambda dataset, ids: pytest.fail("an image is read"))
    pd.testing.assert_frame_equal(evaluate(dataset=(images, labels), **checkpoint), before)


@pytest.mark.slow
def test_rows_of_images_with_other_content_have_another_hash(model, bitmaps):
    asked = {"dataset": f"folder:{bitmaps}", **ASKED, "attacks": "none", "corruptions": "none"}
    before = evaluate(model, **asked)["subset_hash"][0]
    assert evaluate(model, **asked)["subset_hash"][0] == before
    change(bitmaps, 0, 0)
    assert evaluate(model, **asked)["subset_hash"][0] != before


def test_skipped_images_are_counted_in_the_rows(model, folder):
    (folder / "a" / "00000.png").write_bytes(b"broken")
    with pytest.raises(
        UserError, match=r"cannot (read|decode) a/00000.png: it is no image.*--skip-unreadable"
    ):
        evaluate(model, f"folder:{folder}", **ASKED)
    found = evaluate(model, f"folder:{folder}", skip_unreadable=True, n="all", **ASKED)
    assert set(found["skipped"]) == {1}
    assert set(found["n"]) == {23}


@pytest.mark.slow
@pytest.mark.parametrize("protocol", ["final", "worst"])
def test_workers_change_nothing(model, tmp_path, protocol):
    folder = write_folder(tmp_path / "val", *pictures(90))
    tables = [
        evaluate(
            model,
            f"folder:{folder}",
            n=80,
            protocol=protocol,
            batch_size=32,
            **ASKED | {"decode_workers": workers},
        ).drop(columns="seconds")
        for workers in (0, 2)
    ]
    pd.testing.assert_frame_equal(*tables)


@pytest.mark.parametrize("option", ["resize", "crop", "class_map", "skip_unreadable"])
def test_options_of_image_files_are_refused_for_arrays(model, option):
    value = {"class_map": "x.csv", "skip_unreadable": True}.get(option, 8)
    with pytest.raises(UserError, match="cannot be used with arrays"):
        evaluate(model, pictures(), **{option: value})


@pytest.mark.slow
def test_more_classes_than_sixteen_bits_hold(tmp_path):
    classes, n = 40_000, 6
    images, _ = pictures(n)
    labels = np.array([0, 32_767, 32_768, 39_999, 1, 2], np.uint16)

    class Reads(nn.Module):
        """Predicts the class that was stored for the image."""

        def forward(self, pixels):
            at = (pixels[:, None] - torch.from_numpy(images / np.float32(255))).abs().sum((2, 3, 4)).argmin(1)
            return nn.functional.one_hot(torch.from_numpy(labels.astype(np.int64))[at], classes).float()

    for _ in range(2):  # measured, then read
        found = evaluate(
            Reads(), (images, labels, classes), attacks="none", corruptions="none", out=tmp_path / "out"
        )
        assert found["accuracy"].tolist() == [100]


@pytest.mark.slow
@pytest.mark.parametrize("classes", [(), (3,)])
def test_a_loader_gives_the_numbers_of_arrays(model, classes):
    images, labels = pictures(24)
    pairs = torch.utils.data.TensorDataset(torch.from_numpy(data.as_pixels(images)), torch.from_numpy(labels))
    loader = torch.utils.data.DataLoader(pairs, batch_size=5)
    expected = evaluate(model, (images, labels), **ASKED).drop(columns="seconds")
    for source in (loader, pairs):
        found = evaluate(model, (source, *classes) if classes else source, **ASKED)
        pd.testing.assert_frame_equal(found.drop(columns="seconds"), expected)


class Stream(torch.utils.data.IterableDataset):
    """Batches without a length; `read` counts them. It ends after 50, for a test that fails."""

    def __init__(self):
        images, labels = pictures(4)
        self.batch, self.read = (data.as_pixels(images), labels), 0

    def __iter__(self):
        for _ in range(50):
            self.read += 1
            yield self.batch


@pytest.mark.parametrize("asked", [{}, {"n": 8, "subset": "random"}, {"n": 8, "subset": "stratified"}])
@pytest.mark.parametrize("make", [lambda stream: stream, iter, torch.utils.data.DataLoader])
def test_a_source_that_may_never_end_is_not_read_to_its_end_unasked(model, make, asked):
    stream = Stream()
    with pytest.raises(UserError, match="has no length and may never end: set n"):
        evaluate(model, make(stream), **asked)
    assert stream.read == 0


def test_a_source_without_a_length_is_read_as_far_as_asked(model):
    stream = Stream()
    few = {"attacks": "none", "corruptions": "none"}
    assert evaluate(model, stream, n=8, **few)["n"].tolist() == [8]
    assert stream.read == 2
    assert evaluate(model, Stream(), n="all", **few)["n"].tolist() == [200]


def test_a_seed_of_the_subset_is_refused_for_the_first_images(model, folder):
    with pytest.raises(UserError, match="subset_seed 3 has no effect on the first n images: set subset to"):
        evaluate(model, f"folder:{folder}", subset="first", subset_seed=3, n=4, **ASKED)
    with pytest.raises(UserError, match="subset_seed 3 has no effect"):
        evaluate(model, "digits", subset_seed=3, n=4, attacks="none", corruptions="none")


def test_what_is_no_dataset_is_refused(model):
    with pytest.raises(UserError, match=r"dataset must be a name.*not int"):
        evaluate(model, 3)


# --- models that take the images in several ways


def made_for(side, seed=0):
    """A linear model whose ``pretrained_cfg`` names an input size."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = linear((3, side, side))
    model.pretrained_cfg = {
        "input_size": (3, side, side),
        "crop_pct": 1.0,
        "interpolation": "bilinear",
        "mean": (0.5, 0.5, 0.5),
        "std": (0.5, 0.5, 0.5),
    }
    return model


@pytest.mark.slow
def test_models_of_other_sizes_are_two_groups_with_a_note(folder, tmp_path, monkeypatch):
    monkeypatch.setattr("robust_interp.results.entries.is_at_chance", lambda clean: False)  # untrained
    models = {"large": made_for(12), "small": made_for(6), "also_small": made_for(6, 1)}
    with pytest.warns(
        UserWarning, match=r"take the images in 2 ways \(resize=12,crop=12,bilinear; resize=6,"
    ):
        found = evaluate(models, f"folder:{folder}", out=tmp_path / "out", **ASKED | {"attacks": "pgd"})
    by_model = found.groupby("model")[["preprocessing", "subset_hash"]].first()
    assert by_model["preprocessing"].tolist() == [
        "resize=6,crop=6,bilinear",
        "resize=12,crop=12,bilinear",
        "resize=6,crop=6,bilinear",
    ]
    assert by_model["subset_hash"].nunique() == 2
    board = pd.read_csv(tmp_path / "out" / "leaderboard.csv")
    ranks = board.groupby("preprocessing")["rank"].apply(sorted)
    assert ranks["resize=12,crop=12,bilinear"] == [1]
    assert ranks["resize=6,crop=6,bilinear"] in ([1, 2], [1, 1])
    assert board["preprocessing"].tolist() == sorted(board["preprocessing"])  # a group stands together


@pytest.mark.slow
def test_one_preprocessing_for_all_is_one_group(folder):
    models = {"one": made_for(6), "other": linear((3, 6, 6))}  # without a cfg, too
    found = evaluate(models, f"folder:{folder}", resize=7, crop=6, interpolation="bicubic", **ASKED)
    assert set(found["preprocessing"]) == {"resize=7,crop=6,bicubic"}
    assert found["subset_hash"].nunique() == 1


def test_a_model_gets_the_pixels_that_timm_would_give_it(folder):
    from PIL import Image
    from timm.data import create_transform, resolve_data_config

    seen, model = [], made_for(6)
    model.register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0].detach().clone()))
    evaluate(
        model, f"folder:{folder}", n=1, subset="first", attacks="none", corruptions="none", decode_workers=0
    )
    transform = create_transform(**resolve_data_config({}, pretrained_cfg=model.pretrained_cfg))
    expected = transform(Image.open(folder / "a" / "00000.png"))
    assert any(torch.allclose(batch[0], expected, atol=1e-6) for batch in seen)


def test_an_ensemble_of_other_sizes_is_refused(folder):
    with pytest.raises(UserError, match="its members take the images in several sizes or crops"):
        evaluate(
            {"large": made_for(12), "small": made_for(6)}, f"folder:{folder}", ensemble="large+small", **ASKED
        )

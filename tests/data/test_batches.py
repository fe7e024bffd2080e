"""Images that come in batches: DataLoaders, torch Datasets and plain iterables, read once."""

import io
import multiprocessing
import os
import sys
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image
from support.own_images import pictures, write_folder
from torch.utils.data import BatchSampler, DataLoader, TensorDataset
from torchvision.datasets import ImageFolder
from torchvision.transforms import ToTensor

from robust_interp import data
from robust_interp.core.errors import UserError
from robust_interp.data import handover

IMAGES, LABELS = pictures(10)
PIXELS = torch.from_numpy(data.as_pixels(IMAGES))
PAIRS = TensorDataset(PIXELS, torch.from_numpy(LABELS))
ARRAYS = data.from_arrays(IMAGES, LABELS)


def in_batches(images=PIXELS, labels=LABELS, size=4):
    for at in range(0, len(images), size):
        yield images[at : at + size], labels[at : at + size]


class Items:
    """A map-style dataset that is no torch class: Pillow images and whole numbers."""

    def __len__(self):
        return 10

    def __getitem__(self, at):
        if at >= 10:
            raise IndexError
        from support.own_images import picture

        return picture(IMAGES[at]), int(LABELS[at])


SOURCES = {
    "a DataLoader": lambda: DataLoader(PAIRS, batch_size=3),
    "a DataLoader with workers": lambda: DataLoader(PAIRS, batch_size=3, num_workers=1),
    "a torch Dataset": lambda: PAIRS,
    "Pillow's images": Items,
    "a generator": in_batches,
    "a list of batches": lambda: list(in_batches()),
    "two batches": lambda: tuple(in_batches(size=5)),
    "bytes": lambda: in_batches(IMAGES),
    "dicts": lambda: [{"pixel_values": x, "labels": y} for x, y in in_batches()],
    "more than two parts": lambda: [(x, y, "path") for x, y in in_batches()],
    "labels of a small type": lambda: in_batches(labels=LABELS.astype(np.int8)),
}


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_what_comes_in_batches_is_as_the_arrays_are(source):
    assert data.is_source_of_batches(source())
    found = data.from_batches(source(), workers=0)
    assert np.array_equal(found.rows(0, 10), IMAGES)  # bytes again, bit for bit
    assert found.fingerprint == ARRAYS.fingerprint
    assert (found.classes, found.notes) == (3, ())


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("change", [torch.Tensor.bfloat16, torch.Tensor.half, torch.Tensor.requires_grad_])
def test_items_of_any_type_are_as_arrays_of_it(change, workers):
    images = change(PIXELS.clone())
    items = [(image, int(label)) for image, label in zip(images, LABELS, strict=True)]
    found = data.from_batches(Listed(items), workers=workers)
    assert np.array_equal(found.pixels(0, 10), images.detach().float().numpy())


def test_an_item_that_is_no_array_of_numbers_is_refused_in_one_line():
    sparse = Listed([(image.to_sparse(), 0) for image in PIXELS])
    with pytest.raises(UserError, match=r"^an image cannot be made one array of numbers: [^\n]*$"):
        data.from_batches(sparse)


@pytest.mark.slow
def test_a_worker_sends_images_and_labels_alone():
    """What else is in an item need not be sendable, such as a function or an open file."""
    items = [(image, int(label), lambda: 0, sys.stdin) for image, label in zip(PIXELS, LABELS, strict=True)]
    found = data.from_batches(Listed(items), workers=1)
    assert np.array_equal(found.pixels(0, 10), PIXELS.numpy())


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_images_without_pixels_are_refused(kind):
    images = np.zeros((5, 3, 0, 4), kind)
    for given in (lambda: data.from_arrays(images, [0] * 5), lambda: data.from_batches([(images, [0] * 5)])):
        with pytest.raises(UserError, match=r"images must have pixels, not the shape \(5, 3, 0, 4\)"):
            given()


class Listed(torch.utils.data.Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, at):
        return self.items[at]


class Readers(torch.utils.data.Dataset):
    """A white image where it is read by this process, and a black one by any other."""

    def __init__(self, n=200):
        self.n, self.process = n, os.getpid()

    def __len__(self):
        return self.n

    def __getitem__(self, at):
        return np.full((1, 2, 2), 255 * (os.getpid() == self.process), np.uint8), at % 3


@pytest.mark.parametrize(
    ("workers", "here"), [(None, True), (0, True), pytest.param(1, False, marks=pytest.mark.slow)]
)
def test_a_dataset_is_read_in_this_process_unless_workers_are_asked_for(workers, here):
    """Forked workers share the position in a file that the dataset keeps open, and read wrong images."""
    found = data.from_batches(Readers(), workers=workers)
    assert len(found) == 200
    assert (found.rows(0, 200) == (255 if here else 0)).all()


class Broken(Readers):
    def __init__(self, error):
        super().__init__(70)
        self.error = error

    def __getitem__(self, at):
        if at == 3:
            raise self.error
        return super().__getitem__(at)


BROKEN = {
    "zip": (zipfile.BadZipFile("no zip file\nat all"), "BadZipFile: no zip file$"),
    "key": (KeyError("cat"), "KeyError: 'cat'$"),
    "file": (
        FileNotFoundError(2, "No such file", "x.png"),
        r"FileNotFoundError: \[Errno 2\] No such file: 'x.png'$",
    ),
    "silent": (ValueError(), "ValueError$"),
    "of this package": (UserError("x.png is damaged"), "x.png is damaged$"),
}


@pytest.mark.parametrize(("error", "told"), BROKEN.values(), ids=BROKEN)
def test_an_error_of_reading_is_one_line(error, told):
    def reading():
        yield from in_batches()
        raise error

    source = Broken(error)
    placed = told.removesuffix("$") + r" \(test_batches\.py, line \d+\)$"
    for each in (source, DataLoader(source, batch_size=4), reading()):
        with pytest.raises(UserError, match=placed) as refusal:
            data.from_batches(each)
        assert "\n" not in str(refusal.value)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["zip", "key", "file", "of this package"])
def test_an_error_of_reading_in_a_worker_is_the_same_line_with_a_hint(name):
    error, told = BROKEN[name]
    source = Broken(error)
    with pytest.raises(
        UserError, match=told.removesuffix("$") + "; decode_workers=0 reads it in this"
    ) as refusal:
        data.from_batches(source, workers=1)
    assert "\n" not in str(refusal.value)
    with pytest.raises(UserError, match=told):
        data.from_batches(DataLoader(source, batch_size=4, num_workers=1))


class Full:
    """PyTorch drops a tensor where shared memory is full. Here the worker ends, so that no test hangs."""

    def __getitem__(self, at):
        for name in ("_share_fd_cpu_", "_share_filename_cpu_"):
            setattr(torch.UntypedStorage, name, lambda *_: os._exit(1))
        return super().__getitem__(at)


class Tuples(Full, TensorDataset):
    pass


class Named(Full, TensorDataset):
    def __getitem__(self, at):
        image, label = super().__getitem__(at)
        return {"image": image, "label": label, "path": ["a", "b"]}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Tuples, Named])
def test_workers_send_nothing_through_shared_memory_which_may_be_full(kind):
    found = data.from_batches(kind(*PAIRS.tensors), workers=1)
    assert found.fingerprint == ARRAYS.fingerprint


class Dying(Readers):
    def __getitem__(self, at):
        os._exit(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "told"),
    [
        ("fork", "; decode_workers=0 reads it in this process"),
        ("spawn", '; call evaluate below if __name__ == "__main__", or with decode_workers=0'),
        ("forkserver", '; call evaluate below if __name__ == "__main__", or with decode_workers=0'),
    ],
)
def test_a_worker_that_dies_is_one_line(monkeypatch, method, told):
    """Where it is not forked, it may have run a script again that lacks a guard."""
    monkeypatch.setattr(handover.multiprocessing, "get_start_method", lambda: method)
    with pytest.raises(UserError, match=r"DataLoader worker .* exited unexpectedly; ") as refusal:
        data.from_batches(Dying(), workers=1)
    assert str(refusal.value).endswith(told)
    assert "\n" not in str(refusal.value)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Got pickle error")
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_dataset_that_cannot_be_sent_to_a_worker_is_one_line(method):
    source = Readers()
    source.transform = lambda image: image
    before = multiprocessing.get_start_method(allow_none=True)
    multiprocessing.set_start_method(method, force=True)
    try:
        with pytest.raises(
            UserError, match=r"lambda.*; decode_workers=0 reads it in this process"
        ) as refusal:
            data.from_batches(source, workers=1)
    finally:
        multiprocessing.set_start_method(before, force=True)
    assert "\n" not in str(refusal.value)


def test_images_that_are_no_whole_255ths_stay_floats_even_if_the_first_ones_were():
    noisy = PIXELS.clone()
    noisy[9, 0, 0, 0] = 0.1234
    found = data.from_batches(in_batches(noisy))
    assert found.images.dtype == np.float32
    assert np.array_equal(found.rows(0, 10), noisy.numpy())


def test_only_so_many_are_read_as_are_asked_for():
    def endless():
        while True:
            yield from in_batches()

    found = data.from_batches(endless(), classes=10, n=14)
    assert len(found) == 14
    assert np.array_equal(found.rows(0, 14), np.concatenate([IMAGES, IMAGES[:4]]))
    assert found.notes == ("the first 14 images that the data set yields hold 3 of 10 classes",)


def test_a_generator_of_batches_can_be_read_on():
    source = in_batches()
    assert len(data.from_batches(source, classes=3, n=4)) == 4
    assert np.array_equal(next(source)[0], PIXELS[4:8])


def test_a_torch_dataset_says_how_many_classes_it_has(tmp_path):
    write_folder(tmp_path, IMAGES, LABELS)
    files = ImageFolder(tmp_path, ToTensor())
    for source in (files, DataLoader(files, batch_size=4), torch.utils.data.Subset(files, [0, 1])):
        assert data.from_batches(source, workers=0).classes == 3


def test_a_dataset_in_which_another_one_is_relabelled_has_its_own_number_of_classes(tmp_path):
    class Relabelled(torch.utils.data.Dataset):
        classes = ("even", "odd", "none", "both")

        def __init__(self, dataset):
            self.dataset = dataset

        def __len__(self):
            return len(self.dataset)

        def __getitem__(self, at):
            image, label = self.dataset[at]
            return image, label % 2

    write_folder(tmp_path, IMAGES, LABELS)
    files = Relabelled(ImageFolder(tmp_path, ToTensor()))
    for source in (files, DataLoader(files, batch_size=4), torch.utils.data.Subset(files, [0, 1])):
        assert data.from_batches(source, workers=0).classes == 4


def test_a_loader_that_shuffles_is_told_of():
    (line,) = data.from_batches(DataLoader(PAIRS, batch_size=5, shuffle=True)).notes
    assert "the DataLoader shuffles" in line


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            [(PIXELS * 4 - 2, LABELS)],
            "batch 0 of the data set: images run from .* put the normalisation inside",
        ),
        ([(PIXELS, np.eye(3)[LABELS])], "one-hot: pass labels.argmax"),
        (
            [(PIXELS, LABELS), (PIXELS[:, :, 1:], LABELS)],
            r"several shapes, \(3, 8, 8\) and \(3, 7, 8\): resize and crop them$",
        ),
        (
            [(PIXELS, LABELS), (PIXELS[:, :1], LABELS)],
            r"several shapes, \(3, 8, 8\) and \(1, 8, 8\): convert all to RGB, or all to grey$",
        ),
        ([{"pixel_values": PIXELS, "target": LABELS}], "it has pixel_values, target, not images and labels"),
        (iter([PIXELS]), r"it must be \(images, labels\), not Tensor"),
        (iter([]), "yields no images"),
        (TensorDataset(PIXELS), r"it must be \(images, labels\)"),
    ],
)
def test_what_yields_something_else_is_refused_in_one_line(source, message):
    with pytest.raises(UserError, match=message) as refusal:
        data.from_batches(source, workers=0)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("mode", ["I;16", "I;16L", "I;16B", "I", "F"])
def test_pillow_images_of_more_than_eight_bits_are_refused(mode):
    class Deep(Items):
        def __getitem__(self, at):
            return Image.new(mode, (8, 8)), super().__getitem__(at)[1]

    with pytest.raises(UserError, match=rf"more than 8 bits \(mode {mode}\); scale it") as refusal:
        data.from_batches(Deep(), workers=0)
    assert "\n" not in str(refusal.value)


class CutOff(Items):
    """Pillow reads no more than the header of a file before its pixels are needed, as late as it is sent."""

    def __getitem__(self, at):
        from support.own_images import picture

        file = io.BytesIO()
        picture(IMAGES[at]).resize((64, 64)).save(file, "PNG")
        cut = file.getvalue()[: -100 if at == 3 else None]
        return Image.open(io.BytesIO(cut)), int(LABELS[at])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 1])
def test_a_pillow_image_that_is_cut_off_is_one_line_that_blames_it(workers):
    with pytest.raises(UserError, match=r"^[^\n/]*image file is truncated[^\n/]*$"):
        data.from_batches(CutOff(), workers=workers)


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK"])
def test_pillow_images_of_eight_bits_are_read_in_any_mode(mode):
    class White(Items):
        def __getitem__(self, at):
            return Image.new("L", (8, 8), 255).convert("RGB").convert(mode), super().__getitem__(at)[1]

    found = data.from_batches(White(), workers=0)
    assert found.shape == (1 if mode in ("1", "L", "LA") else 3, 8, 8)
    assert (found.rows(0, 10) == 255).all()


@pytest.mark.parametrize(
    ("mode", "size", "told"),
    [
        ("L", (8, 8), r"\(1, 8, 8\) and \(3, 8, 8\): convert all to RGB, or all to grey$"),
        ("RGB", (8, 9), r"\(3, 8, 8\) and \(3, 9, 8\): resize and crop them$"),
    ],
)
def test_pillow_images_of_several_shapes_are_refused_with_what_would_mend_it(mode, size, told):
    class Mixed(Items):
        def __getitem__(self, at):
            image, label = super().__getitem__(at)
            return (Image.new(mode, size) if at == 3 else image), label

    with pytest.raises(UserError, match=f"images of several shapes, {told}"):
        data.from_batches(Mixed(), workers=0)


@pytest.mark.parametrize(
    ("shape", "told"),
    [
        ((8, 8), r"\(3, 8, 8\) and \(8, 8\): convert all to RGB, or all to grey$"),
        ((8, 9), r"\(3, 8, 8\) and \(8, 9\): resize and crop them$"),
    ],
)
def test_an_image_without_channels_among_others_is_refused_with_what_would_mend_it(shape, told):
    class Mixed(Items):
        def __getitem__(self, at):
            return (np.zeros(shape if at == 3 else (3, 8, 8), np.uint8)), 0

    with pytest.raises(UserError, match=f"images of several shapes, {told}"):
        data.from_batches(Mixed(), workers=0)


@pytest.mark.parametrize(
    "value", [(IMAGES, LABELS), [IMAGES, LABELS], (PIXELS, LABELS, 3), "digits", PIXELS, 3, {}]
)
def test_arrays_are_no_batches(value):
    assert not data.is_source_of_batches(value)


class Stops(Readers):
    """An item runs into the end of an iterator of its own."""

    def __init__(self, at, n=70):
        super().__init__(n)
        self.at = at

    def __getitem__(self, at):
        if at == self.at:
            next(iter([]))
        return super().__getitem__(at)


@pytest.mark.parametrize("at", [3, 69])
def test_an_item_that_raises_stop_iteration_does_not_shorten_the_data_set(at):
    with pytest.raises(UserError, match="cannot read the data set: it has 70 items and ended after about"):
        data.from_batches(Stops(at))
    if at > 64:  # it reads 64 items at once
        assert len(data.from_batches(Stops(at), n=3)) == 3


LOADERS = {
    "in batches": {"batch_size": 10},
    "in batches and a rest": {"batch_size": 16},
    "without the rest": {"batch_size": 16, "drop_last": True},
    "shuffled": {"batch_size": 10, "shuffle": True},
    "by a sampler of batches": {"batch_sampler": BatchSampler(range(70), 10, drop_last=False)},
    "in workers": {"batch_size": 10, "num_workers": 1},
    "in workers that stay": {"batch_size": 10, "num_workers": 2, "persistent_workers": True},
}


class Announces:
    """A sampler of 20 items whose length is another number, or an error."""

    def __init__(self, length):
        self.length = length

    def __iter__(self):
        return iter(range(20))

    def __len__(self):
        if isinstance(self.length, Exception):
            raise self.length
        return self.length


LENGTHS = [
    *(
        NotImplementedError(),
        TypeError("no len"),
        RuntimeError("not known yet"),
        KeyError("n"),
        ValueError("n"),
    ),
    *(0, 10, 20),
]


@pytest.mark.parametrize("length", LENGTHS, ids=repr)
def test_a_loader_that_yields_more_than_its_sampler_announces_is_read(length):
    loader = DataLoader(Stops(None), 5, sampler=Announces(length))
    assert len(data.from_batches(loader)) == 20
    assert data.has_length(loader) == isinstance(length, int)


def test_a_sampler_that_announces_more_than_it_has_is_named():
    with pytest.raises(UserError, match=r"it has 5 batches and ended after 4: .* or a sampler is shorter"):
        data.from_batches(DataLoader(Stops(None), 5, sampler=Announces(23)))


@pytest.mark.parametrize("at", [None, 20, 55])
@pytest.mark.parametrize("options", LOADERS.values(), ids=LOADERS)
def test_an_item_that_raises_stop_iteration_does_not_shorten_a_loader(options, at):
    loader = DataLoader(Stops(at), **options)
    if at is None:
        assert len(data.from_batches(loader)) == (64 if "drop_last" in options else 70)
        return
    with pytest.raises(UserError, match=f"it has {len(loader)} batches and ended after [0-6]: an item"):
        data.from_batches(loader)
    with pytest.raises(UserError, match=f"it has {len(loader)} batches and ended after [0-6]: an item"):
        data.from_batches(loader, n=68 if "drop_last" not in options else 64)
    if at == 55 and "shuffle" not in options:
        assert len(data.from_batches(loader, n=40)) == 40


def test_a_loader_of_a_stream_may_yield_other_numbers_of_batches_than_it_says():
    class Stream(torch.utils.data.IterableDataset):
        def __len__(self):
            return 100

        def __iter__(self):
            return iter([(PIXELS[at], int(LABELS[at])) for at in range(10)])

    assert len(data.from_batches(DataLoader(Stream(), batch_size=4))) == 10


def test_a_loader_whose_sampler_has_no_length_is_read_to_its_end():
    class Sampler(torch.utils.data.Sampler):
        def __iter__(self):
            return iter(range(10))

    assert len(data.from_batches(DataLoader(PAIRS, batch_size=4, sampler=Sampler()))) == 10

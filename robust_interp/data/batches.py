"""Make a data set of a DataLoader, a torch Dataset, or any iterable of batches.

The images are read once and written to an unnamed temporary file, which is memory-mapped. So each image can
be used many times without keeping all of them in memory.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import closing, suppress
from dataclasses import replace
from typing import IO, Any

import numpy as np

from robust_interp.core.errors import UserError
from robust_interp.core.model_errors import place_of
from robust_interp.core.registry import cause
from robust_interp.core.texts import first_line_of
from robust_interp.core.torch_internals import dead_worker, error_in_worker
from robust_interp.data.dataset import ArrayDataset, as_array, as_pixels, checked_labels, from_arrays
from robust_interp.data.decoding import refuse_deep
from robust_interp.data.handover import GUARD, FromWorkers

IMAGES, LABELS = ("pixel_values", "images", "image"), ("labels", "label")  # keys of batches that are dicts

AT_ONCE = 64  # images of a torch Dataset that are read per batch


def is_source_of_batches(value: object) -> bool:
    """Whether a value is a torch Dataset, a DataLoader, or an iterable of batches such as a list of them."""
    if isinstance(value, str | bytes | Mapping | np.ndarray) or hasattr(value, "detach"):
        return False
    if isinstance(value, tuple | list):
        return bool(value) and isinstance(value[0], tuple | list | Mapping) and _is_batch(value[0])
    return isinstance(value, Iterable) or (hasattr(value, "__getitem__") and hasattr(value, "__len__"))


def has_length(source: Any) -> bool:
    """Whether a source of batches says how long it is. One that does not may never end."""
    try:
        return len(source) >= 0
    except Exception:  # also of a DataLoader; its sampler may raise anything
        return False


def _is_batch(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(name in value for name in IMAGES)
    return len(value) >= 2 and np.ndim(value[0]) == 4 and np.ndim(value[1]) in (1, 2)


def from_batches(
    source: Any, classes: int | None = None, n: int | None = None, workers: int | None = None
) -> ArrayDataset:
    """Read all images of a source, in its order, and make a data set of them.

    Args:
        source: A torch Dataset of (image, label); or a DataLoader or other iterable of batches. A batch is
            (images, labels), or a dict with ``pixel_values``, ``images`` or ``image`` and ``labels`` or
            ``label``. Images are arrays or tensors as for `from_arrays`, or Pillow images.
        classes: Number of classes; None takes the length of the torch Dataset's ``classes``, or else the
            largest label + 1.
        n: Number of images to read; None reads all.
        workers: Number of processes that read a torch Dataset; 0 and None read it in this process. A
            Dataset that keeps a file open may read wrong images in several processes, as they may share its
            position in the file.

    Raises:
        UserError: if the source raises any exception, or yields anything else, images of several shapes, or
            nothing; or if the temporary folder is full.
    """
    classes = _known_classes(source) if classes is None else classes
    labels, count = list[np.ndarray](), 0
    with closing(_Spool()) as spool:
        for images, of_images in _batches(source, workers):
            left = len(images) if n is None else n - count
            spool.add(images[:left])
            labels.append(of_images[:left])
            count += len(images[:left])
            if count == n:
                break
        if not count:
            raise UserError("the data set yields no images")
        mapped = spool.images()
    found = ArrayDataset("custom", mapped, *checked_labels(np.concatenate(labels), count, classes))
    return replace(found, notes=tuple(_notes(source, found, n)))


def _notes(source: Any, found: ArrayDataset, n: int | None) -> Iterator[str]:
    if type(getattr(source, "sampler", None)).__name__ == "RandomSampler":
        yield (
            "the DataLoader shuffles: every call measures its images in another order and finds nothing that "
            "was stored; set shuffle=False"
        )
    covered, first = len(np.unique(found.labels)), f"the first {len(found)} images that the data set yields"
    if n is not None and covered < found.classes:
        yield f"{first} hold {covered} of {found.classes} classes"
    elif n is not None and found.is_by_class:
        yield (
            f"{first} are sorted by class: those that were not read may be of other classes; set n to 'all', "
            "or shuffle the images once and for all"
        )


def _known_classes(source: Any) -> int | None:
    """Return the length of `classes` of a torch Dataset, or else of the Dataset in it; None without any."""
    while True:
        named = getattr(source, "classes", None)
        if isinstance(named, Sequence) and not isinstance(named, str):
            return len(named)
        if not hasattr(source, "dataset"):
            return None
        source = source.dataset


def _batches(source: Any, workers: int | None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the checked images (n, C, H, W) and labels (n,) of each batch."""
    read = _of_dataset(source, workers or 0) if _is_map_style(source) else _of_iterable(source)
    for at, batch in enumerate(read):
        try:
            found = from_arrays(*_parts(batch))
        except UserError as error:
            raise UserError(f"batch {at} of the data set: {error}") from error
        yield found.rows(0, len(found)), found.labels


def _is_map_style(source: Any) -> bool:
    """Whether a source is a torch Dataset with an item per image, not a DataLoader or a list of batches."""
    if isinstance(source, tuple | list) or not (hasattr(source, "__getitem__") and isinstance(source, Sized)):
        return False
    return not hasattr(source, "batch_sampler")


def _read(source: Iterable) -> Iterator[Any]:
    """Yield what a source yields; its exceptions, in this process or a worker, become one line.

    Raises:
        UserError: with the type and message of the exception.
    """
    try:
        for found in source:  # noqa: UP028, `yield from` would close a generator that may be read on
            yield found
    except Exception as error:  # datasets may raise anything
        told = error_in_worker(error) or f"{cause(error)}{place_of(error)}"
        raise UserError(f"cannot read the data set: {told}{_hint(source, error)}") from error


def _hint(source: Iterable, error: Exception) -> str:
    """Return what to do about an error of workers; nothing for other sources."""
    if not isinstance(source, FromWorkers):
        return ""
    if dead_worker(error) and source.lacks_a_guard:
        return f"; {GUARD}, or with decode_workers=0"
    return "; decode_workers=0 reads it in this process"


def _of_iterable(source: Any) -> Iterator[Any]:
    """Yield the batches of a source; a DataLoader must yield at least as many as its length says.

    torch takes a StopIteration of an item for the end of the batches, in this process and in workers.
    """
    count = 0
    for batch in _read(source):
        count += 1
        yield batch
    if _is_loader_of_items(source) and has_length(source) and count < len(source):
        raise _ended(
            f"{len(source)} batches", f"{count}: an item raised StopIteration, or a sampler is shorter"
        )


def _is_loader_of_items(source: Any) -> bool:
    """Whether a source is a DataLoader of a map-style data set; the length of others is an estimate."""
    if not hasattr(source, "batch_sampler"):
        return False
    from torch.utils.data import IterableDataset

    return not isinstance(getattr(source, "dataset", None), IterableDataset)


def _ended(announced: str, read: int | str) -> UserError:
    return UserError(f"cannot read the data set: it has {announced} and ended after {read}")


def _of_dataset(source: Any, workers: int) -> Iterator[tuple[list, list]]:
    from torch.utils.data import DataLoader

    read = 0
    loader: Iterable
    if workers:
        loader = FromWorkers(source, workers, sendable, batch_size=AT_ONCE)
    else:
        loader = DataLoader(source, batch_size=AT_ONCE, collate_fn=list)
    for items in _read(loader):
        read += len(items)
        images, labels = zip(*map(_parts, items), strict=True)
        arrays = [_array(image) for image in images]
        shapes = {array.shape for array in arrays}
        if len(shapes) > 1:
            raise _several(*sorted(shapes)[:2])
        yield arrays, list(labels)
    if read != len(source):  # torch takes a StopIteration of an item for the end
        raise _ended(f"{len(source)} items", f"about {read}")


def sendable(items: list) -> list:
    """Return what a worker sends of items: images and labels alone, and no parts of larger tensors."""
    with suppress(UserError):  # what is something else is refused where it is received
        items = [_parts(item) for item in items]
    return without_storages(items)


def without_storages(items: Any) -> Any:
    """Return items whose tensors are no parts of larger ones, which would be written whole for each."""
    if isinstance(items, Mapping):
        return {name: without_storages(item) for name, item in items.items()}
    if isinstance(items, tuple | list):
        return [without_storages(item) for item in items]
    return items.detach().clone() if hasattr(items, "detach") and hasattr(items, "clone") else items


def _several(first: tuple[int, ...], second: tuple[int, ...]) -> UserError:
    """Return the error for images of two shapes, (C, H, W) or (H, W)."""
    mend = "convert all to RGB, or all to grey" if first[-2:] == second[-2:] else "resize and crop them"
    return UserError(f"the data set has images of several shapes, {first} and {second}: {mend}")


def _parts(batch: Any) -> tuple[Any, Any]:
    """Return the images and labels of a batch, or the image and label of an item."""
    if isinstance(batch, Mapping):
        images = next((batch[name] for name in IMAGES if name in batch), None)
        labels = next((batch[name] for name in LABELS if name in batch), None)
        if images is not None and labels is not None:
            return images, labels
        raise UserError(f"it has {', '.join(map(str, batch)) or 'nothing'}, not images and labels")
    if not isinstance(batch, tuple | list) or len(batch) < 2:
        raise UserError(f"it must be (images, labels), not {type(batch).__name__}")
    return batch[0], batch[1]


def _array(image: Any) -> np.ndarray:
    """Convert an image to an array: a Pillow image to uint8 (C, H, W), anything else as `as_array` does.

    Raises:
        UserError: if that is impossible, or the pixels of a Pillow image have more than 8 bits.
    """
    if hasattr(image, "getbands"):
        return _pixels_of(image)
    return as_array("an image", image)


def _pixels_of(image: Any) -> np.ndarray:
    hint = "; scale it to 8 bits per channel, or pass floats in [0, 1]"
    try:
        refuse_deep(image)
        hint = ""
        grey = image.mode in ("1", "L", "LA")
        array = np.asarray(image.convert("L" if grey else "RGB"))
    except Exception as error:  # Pillow's plug-ins raise anything
        reason = first_line_of(error)
        raise UserError(f"the data set has an image that cannot be used: {reason}{hint}") from error
    return array[None] if grey else array.transpose(2, 0, 1)


class _Spool:
    """An unnamed temporary file of images: uint8 if all pixels are exact multiples of 1/255, else float32."""

    def __init__(self) -> None:
        self._file = _nameless()
        self._shape: tuple[int, ...] | None = None
        self._is_whole, self._count = True, 0

    def add(self, images: np.ndarray) -> None:
        """Append images.

        Raises:
            UserError: if they have another shape, or the temporary folder is full.
        """
        self._shape = self._shape or images.shape[1:]
        if images.shape[1:] != self._shape:
            raise _several(self._shape, images.shape[1:])
        whole = _in_255ths(images) if self._is_whole else None
        try:
            if self._is_whole and whole is None:
                self._widen()
            self._write(as_pixels(images) if whole is None else whole)
        except OSError as error:
            raise UserError(
                f"no room for the images of the data set in {tempfile.gettempdir()}: {error.strerror}; set "
                "TMPDIR to another folder, or n to fewer"
            ) from error
        self._count += len(images)

    def images(self) -> np.ndarray:
        """Memory-map all images. The mapping stays valid after `close`."""
        assert self._shape
        kind = np.uint8 if self._is_whole else np.float32
        return np.memmap(self._file, kind, "r", 0, (self._count, *self._shape))

    def close(self) -> None:
        self._file.close()

    def _write(self, images: np.ndarray) -> None:
        self._file.write(np.ascontiguousarray(images).data)
        self._file.flush()  # now, where a full disk can be told

    def _widen(self) -> None:
        """Rewrite the file as float32."""
        before, file = self.images() if self._count else None, self._file
        self._file, self._is_whole = _nameless(), False
        file.close()
        for at in range(0, self._count, AT_ONCE):
            assert before is not None
            self._write(as_pixels(before[at : at + AT_ONCE]))


def _nameless() -> IO[bytes]:
    return tempfile.TemporaryFile()


def _in_255ths(images: np.ndarray) -> np.ndarray | None:
    """Convert pixels to uint8 if that is exact, bit for bit; else return None."""
    if images.dtype == np.uint8:
        return images
    found = np.rint(images * 255).astype(np.uint8)
    return found if np.array_equal(as_pixels(found), images) else None

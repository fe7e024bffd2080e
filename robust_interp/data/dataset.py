"""Datasets: images in [0, 1], labels and sample ids, in one fixed order.

`digits` ships with scikit-learn and needs no download. CIFAR-10 and CIFAR-100 are read in torchvision's
folder layout by torchvision's own classes, which check the files' MD5 before they unpickle them; nothing
is downloaded unless `robust-interp data --download` is asked to.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from robust_interp.core.errors import UserError
from robust_interp.core.registry import Registry, alike, unknown
from robust_interp.core.specs import OfEps
from robust_interp.core.texts import first_line_of

SPLITS = ("train", "test")

OWN_N = 1000  # images of a source of the user's that are measured unless told otherwise

MOST_CLASSES = 2**31  # predicted labels are stored as integers of 16 bits, or 32 where need be
FAR = 4  # standard deviations that are no chance
RANGE_TOLERANCE = 1e-6  # what a float32 round trip through a normalisation may cost

Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class DatasetType:
    """What is known of a dataset before its files are read.

    Attributes:
        load: (split, root folder) -> images (N, C, H, W), uint8 or float32 in [0, 1], and labels (N,).
        mean: Per-channel mean of the training pixels in [0, 1]; `std` is their standard deviation.
        eps_255: Default Linf radii in units of 1/255.
        attack_defaults: Parameters that differ from the paper's on this dataset.
        default_n: Samples a benchmark measures unless told otherwise.
        crop_padding: Pixels of zero padding before the random crop in training.
        flip: Whether a mirrored image keeps its class.
        torchvision_class: Class that reads and downloads the files; None for an embedded dataset.
        corruption_archive: Folder name of the released corruption arrays, if there are any.
        class_names: Of each class its name; none where they have none.
    """

    name: str
    load: Callable[[str, Path], Arrays]
    classes: int
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    eps_255: tuple[float, ...]
    attack_defaults: dict[str, float | int | OfEps]
    default_n: int
    crop_padding: int
    flip: bool
    torchvision_class: str | None = None
    corruption_archive: str | None = None
    class_names: tuple[str, ...] = ()


class Dataset(ABC):
    """Images in one fixed order, with their labels; sample i has id i.

    Attributes:
        name: What tables call it.
        labels: (N,) int64.
        classes: How many there are; a label is below it.
        default_n: How many samples a benchmark measures unless told otherwise; None is all of them.
        told: What a row says of the images where it is not the usual: ``preprocessing``, ``subset``,
            ``skipped``.
        notes: What a reader of the numbers must be told, one line each.
    """

    name: str
    labels: np.ndarray
    classes: int
    told: Mapping[str, str | int]
    notes: tuple[str, ...] = ()
    default_n: int | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Of each image: (C, H, W)."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """A hash that stands for the images and labels in the keys of cells."""

    @property
    @abstractmethod
    def places(self) -> np.ndarray:
        """Of each sample its place in the data set's own order, (N,)."""

    @abstractmethod
    def at(self, ids: np.ndarray) -> np.ndarray:
        """The samples of these ids (n,), as uint8 or as float32 in [0, 1]: (n, C, H, W)."""

    @abstractmethod
    def in_order(self, order: np.ndarray, subset: str) -> Dataset:
        """The same samples in another order.

        Args:
            order: Which comes where, (N,).
            subset: What rows call that order.
        """

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Samples [start, stop) as uint8, or as float32 in [0, 1]."""
        return self.at(np.arange(start, min(stop, len(self))))

    def pixels(self, start: int, stop: int) -> np.ndarray:
        """Samples [start, stop) as float32 NCHW in [0, 1]."""
        return as_pixels(self.rows(start, stop))

    @property
    def channels(self) -> int:
        return self.shape[0]

    def fitted(self, cfg: Mapping) -> Dataset:
        """The images as a model takes them, of which timm's ``pretrained_cfg`` is `cfg` ({}: it has none).

        Arrays are taken as they are by every model.
        """
        return self

    def expect(self, n: int) -> None:  # noqa: B027, arrays need not be told
        """Be told that the first `n` samples are going to be measured.

        Raises:
            UserError: if one of them is known to be unreadable, or cannot be had in the shape of the others.
        """

    def troubles(self) -> list[str]:
        """Why samples cannot be measured, one line each, as far as that is seen without decoding them."""
        return []

    @property
    def sizes(self) -> str:
        """The shape of the images, as a listing says it: ``3x32x32``."""
        return "x".join(map(str, self.shape))

    def content(self, ids: np.ndarray) -> np.ndarray | None:
        """Hashes (n,) uint64 of samples that were read, 0 for others; None where the fingerprint has it all.

        A fingerprint may stand for files without their content. These hashes then tell whether it changed.
        """
        return None

    def name_of(self, at: int) -> str:
        """What messages call a sample."""
        return f"image {at}"

    @property
    def is_by_class(self) -> bool:
        """Whether the images lie class by class, so that the first ones are of a few classes alone."""
        changes, classes = np.count_nonzero(np.diff(self.labels)), len(np.unique(self.labels))
        return 1 < classes < len(self) and changes == classes - 1

    def coverage(self, n: int) -> str:
        """One line: how many of the classes the first n cover."""
        covered, there = (len(np.unique(labels)) for labels in (self.labels[:n], self.labels))
        of_all = f" (of {self.classes})" if there < self.classes else ""
        return f"the first {n} of {len(self)} images cover {covered} of {there} classes{of_all}"

    def order_warning(self, n: int) -> str | None:
        """One line where the first n hold fewer classes than n images in random order would; else None.

        Data that lie class by class are so: accuracy on the first of them is that of a few classes.
        """
        sizes = np.unique(self.labels, return_counts=True)[1]
        missed = (1 - sizes / len(self)).clip(0) ** n  # at least the chance that a class is not among n
        covered, usual = len(np.unique(self.labels[:n])), len(sizes) - missed.sum()
        if n >= len(self) or covered >= usual - FAR * np.sqrt((missed * (1 - missed)).sum()) - 1e-6:
            return None
        return (
            f"the first {n} of {len(self)} images hold {covered} of {len(sizes)} classes: they are sorted by "
            "class, and accuracy is not that of the whole set: set subset to 'stratified', or n to 'all'"
        )


@dataclass(frozen=True, eq=False)
class ArrayDataset(Dataset):
    """Images that lie in one array, in memory or mapped from a file.

    Attributes:
        images: (N, C, H, W), uint8 or floating point in [0, 1] but for rounding: the array that was given,
            or what reads arrays out of a tensor. What is measured are its `rows`.
        order: Which of the images is which sample, (N,); None where they are in the order of the array.
    """

    name: str
    images: np.ndarray
    labels: np.ndarray
    classes: int
    order: np.ndarray | None = None
    told: Mapping[str, str | int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    default_n: int | None = None

    @property
    def shape(self) -> tuple[int, int, int]:
        C, H, W = self.images.shape[1:]
        return C, H, W

    @property
    def places(self) -> np.ndarray:
        return np.arange(len(self)) if self.order is None else self.order

    def at(self, ids: np.ndarray) -> np.ndarray:
        return _in_range(self.images[ids if self.order is None else self.order[ids]])

    def rows(self, start: int, stop: int) -> np.ndarray:
        return _in_range(self.images[start:stop]) if self.order is None else super().rows(start, stop)

    def in_order(self, order: np.ndarray, subset: str) -> ArrayDataset:
        whole = order if self.order is None else self.order[order]
        return replace(self, labels=self.labels[order], order=whole, told={**self.told, "subset": subset})

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 over the images and labels, in their order."""
        sha = hashlib.sha256()
        sha.update(f"{self.rows(0, 0).dtype}{self.images.shape}".encode())
        for start in range(0, len(self), _AT_ONCE):
            sha.update(np.ascontiguousarray(self.rows(start, start + _AT_ONCE)).data)
        sha.update(f"{self.labels.dtype}{self.labels.shape}".encode())
        sha.update(np.ascontiguousarray(self.labels).data)
        return sha.hexdigest()


_AT_ONCE = 64  # images that are copied where the whole array would take too much memory


def as_pixels(images: np.ndarray) -> np.ndarray:
    """A float32 copy of `images` in [0, 1]: uint8 scaled just as torchvision's ToTensor does; floats stay."""
    if images.dtype == np.uint8:
        return images.astype(np.float32) / np.float32(255)
    return _in_range(images)


def _in_range(images: np.ndarray) -> np.ndarray:
    """uint8 as it is; a float32 copy of anything else, without what rounding has put outside [0, 1]."""
    return images if images.dtype == np.uint8 else images.clip(0, 1).astype(np.float32, copy=False)


def from_arrays(
    images: ArrayLike, labels: ArrayLike, classes: int | None = None, name: str = "custom"
) -> ArrayDataset:
    """A dataset from a user's own arrays or tensors, checked.

    Args:
        images: (N, C, H, W), uint8, or floating point in [0, 1] (rounding of up to 1e-6 is clamped).
        labels: (N,) class indices of any integer type.
        classes: Number of classes; by default the largest label + 1.
        name: What tables call it.

    Raises:
        UserError: on any other shape, type or range, normalised images and one-hot labels among them.
    """
    rows = _in_parts(images)
    if rows.ndim != 4 or rows.shape[1] not in (1, 3):
        raise UserError(
            f"images must be (N, C, H, W) with 1 or 3 channels, not {rows.shape}{_hint(rows.shape)}"
        )
    if not len(rows):
        raise UserError("the dataset has no images")
    if rows.dtype != np.uint8:
        _check_range(rows)
    return ArrayDataset(name, rows, *checked_labels(labels, len(rows), classes))


def checked_labels(labels: ArrayLike, n: int, classes: int | None = None) -> tuple[np.ndarray, int]:
    """Labels (n,) as int64, and the number of classes.

    Args:
        labels: As they were given: class indices of any integer type.
        n: How many there must be.
        classes: None is the largest label + 1.

    Raises:
        UserError: if they are anything else, one-hot vectors among it.
    """
    labels = _as_array("labels", labels)
    if labels.shape != (n,) or not np.issubdtype(labels.dtype, np.integer):
        hint = ": they look one-hot: pass labels.argmax(1)" if _is_one_hot(labels) else ""
        raise UserError(f"labels must be {n} class indices, not {labels.dtype} {labels.shape}{hint}")
    low, high = int(labels.min()), int(labels.max())
    classes = high + 1 if classes is None else _whole("classes", classes)
    if low < 0 or high >= classes:
        raise UserError(f"labels run from {low} to {high}, outside 0 to {classes - 1}")
    if classes > MOST_CLASSES:
        raise UserError(f"there can be at most {MOST_CLASSES} classes, not {classes}")
    return labels.astype(np.int64), classes


def _is_one_hot(labels: np.ndarray) -> bool:
    """Whether labels are (n, classes) with a single 1 in each row."""
    if labels.ndim != 2 or not labels.size or labels.dtype.kind not in "biuf":
        return False
    return bool(((labels != 0).sum(1) == 1).all() and (labels.max(1) == 1).all())


def _numbers(tensor: Any) -> np.ndarray:
    """A tensor as an array; NumPy has no bfloat16."""
    tensor = tensor.cpu()
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()


class _Rows:
    """A tensor (N, ...) that is read as arrays part by part: on a GPU or in bfloat16 they are copies."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor.detach()
        self.shape, self.ndim, self.dtype = tuple(tensor.shape), tensor.ndim, self[:0].dtype
        self.min, self.max = self._tensor.min, self._tensor.max

    def __len__(self) -> int:
        return len(self._tensor)

    def __getitem__(self, which: slice | np.ndarray) -> np.ndarray:
        return _numbers(self._tensor[which])


def _in_parts(images: Any) -> Any:
    """Images as an array, or as what stands for one where a tensor would have to be copied for it.

    Raises:
        UserError: as `_as_array`.
    """
    if not (place := str(getattr(images, "device", ""))) or not hasattr(images, "detach"):
        return _as_array("images", images)
    with _made_of("images"):
        shared = place == "cpu" and str(images.dtype) != "torch.bfloat16"
        return _numbers(images.detach()) if shared or not images.ndim else _Rows(images)


def _as_array(what: str, values: Any) -> np.ndarray:
    """A NumPy array of an array, a list or a tensor, wherever that lives.

    Raises:
        UserError: if there is none, such as of images of several sizes.
    """
    with _made_of(what):
        return _numbers(values.detach()) if hasattr(values, "detach") else np.asarray(values)


@contextmanager
def _made_of(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # whatever the objects in a list raise
        reason = first_line_of(error)
        raise UserError(f"{what} cannot be made one array of numbers: {reason}") from error


def _hint(shape: tuple[int, ...]) -> str:
    """What to do with images (N, H, W, C), as of PIL, or (N, H, W); '' for others."""
    if len(shape) == 4 and shape[3] in (1, 3):
        return ": transpose them with numpy.transpose(images, (0, 3, 1, 2))"
    return ": add the channel with images[:, None]" if len(shape) == 3 else ""


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise UserError(f"{name} must be a whole number, not {value!r}")
    return int(value)


def _check_range(images: np.ndarray) -> None:
    if not np.issubdtype(images.dtype, np.floating):
        raise UserError(f"images must be uint8 or floating point in [0, 1], not {images.dtype}")
    low, high = float(images.min()), float(images.max())
    if np.isnan(low):
        raise UserError("images have values that are NaN: inputs must be in [0, 1]; replace those")
    if low >= -RANGE_TOLERANCE and high <= 1 + RANGE_TOLERANCE:
        return
    hint = "put the normalisation inside the model (or pass its mean and std)"
    if low >= 0 and 2 < high <= 255:
        hint = "divide them by 255, or save them as uint8"
    raise UserError(f"images run from {low:.4g} to {high:.4g}: inputs must be in [0, 1]; {hint}")


def data_root(data_dir: str | os.PathLike | None = None) -> Path:
    """The data folder: `data_dir`, else $ROBUST_INTERP_DATA, else ~/.cache/robust-interp.

    Raises:
        UserError: if it is in the home folder of a user who has none.
    """
    chosen = data_dir or os.environ.get("ROBUST_INTERP_DATA") or "~/.cache/robust-interp"
    try:
        return Path(chosen).expanduser()
    except RuntimeError as error:
        raise UserError(f"cannot use {chosen} as the data folder: {error}") from error


def named(text: str) -> str:
    """The name of the dataset that is meant, whatever its case and hyphens: cifar10 of ``CIFAR-10``.

    A text that means none, or several, stays as it is: looking it up then says so.
    """
    found = alike(text, DATASETS)
    return found[0] if len(found) == 1 else text


def load(name: str, split: str = "test", data_dir: str | os.PathLike | None = None) -> ArrayDataset:
    """Read one split of a registered dataset.

    Args:
        name: Such as ``digits``; see `named`.
        split: ``train`` or ``test``.
        data_dir: See `data_root`.

    Raises:
        UserError: if the name or the split is unknown, or the files are missing or not the official ones.
    """
    kind = DATASETS[name := named(name)]
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    images, labels = kind.load(split, data_root(data_dir))
    try:
        return from_arrays(images, labels, kind.classes, name)
    except UserError as error:  # a plug-in's may hold anything
        raise UserError(f"dataset {name}: {error}") from error


DATASETS: Registry[DatasetType] = Registry(
    "dataset", group="robust_interp.datasets", holds=DatasetType, names="[a-z0-9]+"
)

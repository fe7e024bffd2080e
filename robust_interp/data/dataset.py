"""Data sets: images in [0, 1] and labels in a fixed order; an image's id is its position.

This module has the base class, data sets of arrays in memory, and the registry of data sets by name.
"""

from __future__ import annotations

import hashlib
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from robust_interp.core.errors import UserError
from robust_interp.core.json_values import is_count, is_number
from robust_interp.core.numeric import whole_number
from robust_interp.core.parameters import RESERVED, check_default, plain
from robust_interp.core.paths import expanded
from robust_interp.core.registry import Registry, equal_ignoring_case, unknown
from robust_interp.core.specs import OfEps
from robust_interp.core.texts import first_line_of, quoted

SPLITS = ("train", "test")

DEFAULT_ROOT = "~/.cache/robust-interp"  # the data folder if none is chosen

# Takes the place of the data folder without a home folder. Nothing can be created in it.
NO_ROOT = Path(os.devnull, "no home folder")

OWN_N = 1000  # default number of measured images for a user's own data set

MOST_CLASSES = 2**31  # predicted labels are stored as integers of 16 or 32 bits
FAR = 4  # standard deviations below the expected number of classes at which `order_warning` warns
RANGE_TOLERANCE = 1e-6  # error of a float32 round trip through a normalisation

Arrays = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class DatasetType:
    """Description of a registered data set, available before its files are read.

    Attributes:
        name: Name of the data set.
        load: Function (split, root folder) -> images (N, C, H, W), uint8 or float32 in [0, 1], and labels
            (N,).
        classes: Number of classes.
        shape: Shape (C, H, W) of the images.
        mean: Per-channel mean of the training pixels in [0, 1].
        std: Per-channel standard deviation of the training pixels.
        eps_255: Default Linf radii in units of 1/255.
        attack_defaults: Attack parameters whose default differs from the paper's on this data set.
        default_n: Default number of images that a benchmark measures; None measures all.
        crop_padding: Pixels of zero padding before the random crop in training.
        flip: Whether a mirrored image keeps its class, so that training may flip images.
        torchvision_class: Name of the torchvision class that reads and downloads the files; None if the data
            set is embedded.
        corruption_archive: Folder name of the released corruption arrays; None if there are none.
        class_names: Names of the classes; empty if they have none.

    Raises:
        UserError: if a value is not possible.
    """

    name: str
    load: Callable[[str, Path], Arrays]
    classes: int
    shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    eps_255: tuple[float, ...]
    attack_defaults: Mapping[str, float | int | OfEps]
    default_n: int | None
    crop_padding: int
    flip: bool
    torchvision_class: str | None = None
    corruption_archive: str | None = None
    class_names: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        named = f"data set {self.name!r}"
        for name in ("shape", "mean", "std", "eps_255"):
            object.__setattr__(self, name, _as_tuple(getattr(self, name)))
        for name in ("classes", "default_n", "crop_padding", "flip"):
            object.__setattr__(self, name, plain(getattr(self, name)))
        for name, (is_possible, what) in _POSSIBLE.items():
            if not is_possible(self):
                raise UserError(f"{named}: {name} must be {what}, not {quoted(getattr(self, name))}")
        defaults = {key: plain(value) for key, value in self.attack_defaults.items()}
        for key, value in defaults.items():
            if not isinstance(key, str) or key in ("eps", "norm", *RESERVED):
                raise UserError(
                    f"{named}: attack_defaults cannot set {quoted(key)}: no attack has a default for it"
                )
            check_default(named, key, value)
        object.__setattr__(self, "attack_defaults", defaults)


def _as_tuple(values: Any) -> Any:
    """Return a list, tuple, array or tensor as a tuple of Python's numbers; anything else unchanged."""
    values = values.tolist() if hasattr(values, "tolist") else values
    return tuple(map(plain, values)) if isinstance(values, tuple | list) else values


def _are_numbers(values: object) -> bool:
    return isinstance(values, tuple) and all(map(is_number, values))


def _is_shape(shape: object) -> bool:
    return isinstance(shape, tuple) and len(shape) == 3 and all(is_count(n) and n > 0 for n in shape)


def _are_radii(values: tuple[float, ...]) -> bool:
    return _are_numbers(values) and bool(values) and all(0 < value <= 255 for value in values)


def _per_channel(kind: DatasetType, values: tuple[float, ...]) -> bool:
    return _are_numbers(values) and len(values) == kind.shape[0]


# field -> (test of its value, description of possible values)
_POSSIBLE: dict[str, tuple[Callable[[DatasetType], bool], str]] = {
    "classes": (lambda kind: is_count(kind.classes) and kind.classes > 1, "a whole number of at least 2"),
    "shape": (lambda kind: _is_shape(kind.shape), "(C, H, W)"),
    "mean": (
        lambda kind: _per_channel(kind, kind.mean) and all(0 <= value <= 1 for value in kind.mean),
        "a number from 0 to 1 for each channel",
    ),
    "std": (
        lambda kind: _per_channel(kind, kind.std) and min(kind.std) > 0,
        "a number above 0 for each channel",
    ),
    "eps_255": (
        lambda kind: _are_radii(kind.eps_255),
        "radii above 0 and at most 255",
    ),
    "attack_defaults": (
        lambda kind: isinstance(kind.attack_defaults, Mapping),
        "a dict of values by parameter",
    ),
    "default_n": (
        lambda kind: kind.default_n is None or (is_count(kind.default_n) and kind.default_n > 0),
        "a whole number of at least 1, or None for all",
    ),
    "crop_padding": (lambda kind: is_count(kind.crop_padding), "a whole number of at least 0"),
    "flip": (lambda kind: isinstance(kind.flip, bool), "True or False"),
}


class Dataset(ABC):
    """Images with labels in a fixed order; image i has id i.

    Attributes:
        name: Name in tables.
        labels: Class indices (N,), int64.
        classes: Number of classes; every label is smaller.
        default_n: Default number of images that a benchmark measures; None measures all.
        metadata: Values of the columns ``preprocessing``, ``subset`` and ``skipped``, as far as they are not
            the default.
        notes: Notes for a reader of the results, one line each.
    """

    name: str
    labels: np.ndarray
    classes: int
    metadata: Mapping[str, str | int]
    notes: tuple[str, ...] = ()
    class_names: tuple[str, ...] = ()  # of own images, where the source has them
    default_n: int | None = None

    def __len__(self) -> int:
        return len(self.labels)

    @property
    @abstractmethod
    def shape(self) -> tuple[int, int, int]:
        """Shape (C, H, W) of each image."""

    @property
    @abstractmethod
    def fingerprint(self) -> str:
        """Hash of the images and labels, part of the keys of cells."""

    @property
    @abstractmethod
    def places(self) -> np.ndarray:
        """Position of each image in the data set's own order, (N,)."""

    def check_same(self, fingerprint: str) -> None:
        """Check, in a worker, that the data are those of the main process.

        Raises:
            UserError: if the fingerprint is another one.
        """
        if self.fingerprint != fingerprint:
            raise UserError(f"a worker finds other data under the name {self.name}: give the same --data-dir")

    @abstractmethod
    def at(self, ids: np.ndarray) -> np.ndarray:
        """Return the images (n, C, H, W) with these ids (n,), as uint8 or as float32 in [0, 1]."""

    @abstractmethod
    def reordered(self, order: np.ndarray, subset: str) -> Dataset:
        """Return the same images in another order.

        Args:
            order: Ids (N,) of the images in the new order.
            subset: Name of the order, for the column ``subset``.
        """

    def rows(self, start: int, stop: int) -> np.ndarray:
        """Return the images [start, stop) as uint8 or as float32 in [0, 1]."""
        return self.at(np.arange(start, min(stop, len(self))))

    def pixels(self, start: int, stop: int) -> np.ndarray:
        """Return the images [start, stop) as float32 (n, C, H, W) in [0, 1]."""
        return as_pixels(self.rows(start, stop))

    @property
    def channels(self) -> int:
        return self.shape[0]

    def preprocessed_for(self, cfg: Mapping) -> Dataset:
        """Return the data set with the preprocessing of a model.

        Data sets of arrays are returned without a change, as all models take the same arrays.

        Args:
            cfg: The model's timm ``pretrained_cfg``; {} if it has none.
        """
        return self

    def expect(self, n: int) -> None:  # noqa: B027, arrays need no preparation
        """Prepare for measuring the first `n` images.

        Raises:
            UserError: if one of them is known to be unreadable, or has another shape than the others.
        """

    def problems(self) -> list[str]:
        """Return why images cannot be measured, one line each, as far as found without decoding them."""
        return []

    @property
    def sizes(self) -> str:
        """The shape of the images for a listing, such as ``3x32x32``."""
        return "x".join(map(str, self.shape))

    def content(self, ids: np.ndarray) -> np.ndarray | None:
        """Return hashes (n,) uint64 of the images with these ids, 0 for those not read yet.

        They show whether the content of files has changed, if the fingerprint does not cover it. None if the
        fingerprint covers the content.
        """
        return None

    def read_content(self, ids: np.ndarray) -> np.ndarray | None:
        """Read the images with these ids again and return their hashes, see `content`.

        Raises:
            UserError: if an image cannot be read.
        """
        return None

    def name_of(self, at: int) -> str:
        """Return the name of an image in messages."""
        return f"image {at}"

    @property
    def is_by_class(self) -> bool:
        """Whether the images are in order of class, or in long runs of one class, as folders are.

        The first ones then cover few classes or folders. In random order, the label changes more than ten
        times as often as in such runs.
        """
        sizes = np.unique(self.labels, return_counts=True)[1]
        changes, classes = np.count_nonzero(np.diff(self.labels)), len(sizes)
        at_random = (len(self) - 1) * (1 - ((sizes / len(self)) ** 2).sum())
        return 1 < classes < len(self) and (changes == classes - 1 or 10 * changes < at_random)

    def coverage(self, n: int) -> str:
        """Return a line that says how many classes the first n images cover."""
        covered, there = (len(np.unique(labels)) for labels in (self.labels[:n], self.labels))
        of_all = f" (of {self.classes})" if there < self.classes else ""
        return f"the first {n} of {len(self)} images cover {covered} of {there} classes{of_all}"

    def order_warning(self, n: int) -> str | None:
        """Return a warning if the first n images cover fewer classes than n images in random order would.

        That is so for data sorted by class. None if there is nothing to warn of.
        """
        sizes = np.unique(self.labels, return_counts=True)[1]
        missed = (1 - sizes / len(self)).clip(0) ** n  # upper bound: probability that a class is missing
        covered, usual = len(np.unique(self.labels[:n])), len(sizes) - missed.sum()
        if n >= len(self) or covered >= usual - FAR * np.sqrt((missed * (1 - missed)).sum()) - 1e-6:
            return None
        return (
            f"the first {n} of {len(self)} images hold {covered} of {len(sizes)} classes: they are sorted by "
            "class, and accuracy is not that of the whole set: set subset to 'stratified', or n to 'all'"
        )


@dataclass(frozen=True, eq=False)
class ArrayDataset(Dataset):
    """A data set of one array, in memory or mapped from a file.

    Attributes:
        name: See `Dataset`.
        images: The given array (N, C, H, W), or a wrapper that reads a tensor in parts; uint8, or floating
            point in [0, 1] up to rounding. The methods clip it to [0, 1].
        labels: See `Dataset`.
        classes: See `Dataset`.
        order: Positions (N,) in the array of the images in order; None keeps the order of the array.
        metadata: See `Dataset`.
        notes: See `Dataset`.
        default_n: See `Dataset`.
    """

    name: str
    images: np.ndarray
    labels: np.ndarray
    classes: int
    order: np.ndarray | None = None
    metadata: Mapping[str, str | int] = field(default_factory=dict)
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

    def reordered(self, order: np.ndarray, subset: str) -> ArrayDataset:
        whole = order if self.order is None else self.order[order]
        return replace(
            self, labels=self.labels[order], order=whole, metadata={**self.metadata, "subset": subset}
        )

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the images and labels, in order."""
        sha = hashlib.sha256()
        sha.update(f"{self.rows(0, 0).dtype}{self.images.shape}".encode())
        for start in range(0, len(self), _AT_ONCE):
            sha.update(np.ascontiguousarray(self.rows(start, start + _AT_ONCE)).data)
        sha.update(f"{self.labels.dtype}{self.labels.shape}".encode())
        sha.update(np.ascontiguousarray(self.labels).data)
        return sha.hexdigest()


_AT_ONCE = 64  # images per copy, to save memory


def as_pixels(images: np.ndarray) -> np.ndarray:
    """Convert images to float32 in [0, 1]: uint8 is scaled as by torchvision's ToTensor, floats clipped."""
    if images.dtype == np.uint8:
        return images.astype(np.float32) / np.float32(255)
    return _in_range(images)


def _in_range(images: np.ndarray) -> np.ndarray:
    """Return uint8 images without a change, and others as a float32 copy clipped to [0, 1]."""
    return images if images.dtype == np.uint8 else images.clip(0, 1).astype(np.float32, copy=False)


def from_arrays(
    images: ArrayLike, labels: ArrayLike, classes: int | None = None, name: str = "custom"
) -> ArrayDataset:
    """Check a user's arrays or tensors, and make a data set of them.

    Args:
        images: Images (N, C, H, W), uint8, or floating point in [0, 1] (rounding of up to 1e-6 is clipped).
        labels: Class indices (N,) of any integer type.
        classes: Number of classes; None takes the largest label + 1.
        name: Name of the data set in tables.

    Raises:
        UserError: for any other shape, type or range, such as normalised images or one-hot labels.
    """
    rows = _in_parts(images)
    if rows.ndim != 4 or rows.shape[1] not in (1, 3):
        raise UserError(
            f"images must be (N, C, H, W) with 1 or 3 channels, not {rows.shape}{_hint(rows.shape)}"
        )
    if not len(rows):
        raise UserError("the data set has no images")
    if 0 in rows.shape:
        raise UserError(f"images must have pixels, not the shape {rows.shape}")
    if rows.dtype != np.uint8:
        _check_range(rows)
    return ArrayDataset(name, rows, *checked_labels(labels, len(rows), classes))


def checked_labels(labels: ArrayLike, n: int, classes: int | None) -> tuple[np.ndarray, int]:
    """Check labels, and return them as int64 (n,) with the number of classes.

    Args:
        labels: Class indices (n,) of any integer type.
        n: Number of images.
        classes: Number of classes; None takes the largest label + 1.

    Raises:
        UserError: if the labels are anything else, such as one-hot vectors.
    """
    labels = as_array("labels", labels)
    if labels.shape != (n,) or not np.issubdtype(labels.dtype, np.integer):
        hint = ": they look one-hot: pass labels.argmax(1)" if _is_one_hot(labels) else ""
        raise UserError(f"labels must be {n} class indices, not {labels.dtype} {labels.shape}{hint}")
    low, high = int(labels.min()), int(labels.max())
    classes = high + 1 if classes is None else _whole("classes", classes)
    if low < 0:
        raise UserError(f"labels must be from 0 on, but run from {low} to {high}; -1 is no class")
    if high >= classes:
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
    """Convert a tensor to an array; bfloat16, which NumPy lacks, to float32."""
    tensor = tensor.cpu()
    return (tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor).numpy()


class _Rows:
    """A tensor (N, ...) on a GPU or in bfloat16, which is copied to NumPy arrays in parts."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor.detach()
        self.shape, self.ndim, self.dtype = tuple(tensor.shape), tensor.ndim, self[:0].dtype
        self.min, self.max = self._tensor.min, self._tensor.max

    def __len__(self) -> int:
        return len(self._tensor)

    def __getitem__(self, which: slice | np.ndarray) -> np.ndarray:
        return _numbers(self._tensor[which])


def _in_parts(images: Any) -> Any:
    """Return images as an array, or as `_Rows` if they are a tensor that would have to be copied.

    Raises:
        UserError: see `as_array`.
    """
    if not (place := str(getattr(images, "device", ""))) or not hasattr(images, "detach"):
        return as_array("images", images)
    with _made_of("images"):
        shared = place == "cpu" and str(images.dtype) != "torch.bfloat16"
        return _numbers(images.detach()) if shared or not images.ndim else _Rows(images)


def as_array(what: str, values: Any) -> np.ndarray:
    """Convert an array, a list or a tensor on any device to a NumPy array.

    Raises:
        UserError: if that is impossible, such as for images of several sizes.
    """
    with _made_of(what):
        return _numbers(values.detach()) if hasattr(values, "detach") else np.asarray(values)


@contextmanager
def _made_of(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # objects in a list may raise anything
        reason = first_line_of(error)
        raise UserError(f"{what} cannot be made one array of numbers: {reason}") from error


def _hint(shape: tuple[int, ...]) -> str:
    """Return a hint for images of shape (N, H, W, C) or (N, H, W); '' for others."""
    if len(shape) == 4 and shape[3] in (1, 3):
        return ": transpose them with numpy.transpose(images, (0, 3, 1, 2))"
    return ": add the channel with images[:, None]" if len(shape) == 3 else ""


def _whole(name: str, value: object) -> int:
    if (number := whole_number(value)) is None:
        raise UserError(f"{name} must be a whole number, not {value!r}")
    return number


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


def chosen_root(data_dir: str | os.PathLike | None) -> str | None:
    """Return the data folder that was chosen: `data_dir`, else $ROBUST_INTERP_DATA; None without either.

    Raises:
        UserError: if it starts with ``~``, and there is no such home folder.
    """
    chosen = data_dir or os.environ.get("ROBUST_INTERP_DATA")
    return str(expanded(chosen)) if chosen else None


def data_root(data_dir: str | os.PathLike | None = None) -> Path:
    """Return the data folder: `data_dir`, else $ROBUST_INTERP_DATA, else ~/.cache/robust-interp.

    Raises:
        UserError: if it is in a home folder that does not exist.
    """
    if chosen := chosen_root(data_dir):
        return Path(chosen)
    try:
        return expanded(DEFAULT_ROOT)
    except UserError as error:
        hint = "choose another folder with --data-dir or $ROBUST_INTERP_DATA"
        raise UserError(f"{error}; {hint}") from error


def root_for_workers(data_dir: str | os.PathLike | None = None) -> str | None:
    """Return the data folder, which workers are told of: theirs may differ by their home or environment.

    None if no folder was chosen and there is no home folder: data sets without files need none.

    Raises:
        UserError: if the chosen folder is in a home folder that does not exist.
    """
    chosen = chosen_root(data_dir)
    try:
        return str(data_root(chosen))
    except UserError:
        return None


def named(text: str) -> str:
    """Return the registered name for a name in any case, with or without hyphens: cifar10 for ``CIFAR-10``.

    A text that matches none or several is returned without a change; looking it up then raises an error.
    """
    found = equal_ignoring_case(text, DATASETS)
    return found[0] if len(found) == 1 else text


def load(name: str, split: str = "test", data_dir: str | os.PathLike | None = None) -> ArrayDataset:
    """Read one split of a registered data set.

    Args:
        name: Name of the data set, such as ``digits``; see `named`.
        split: ``train`` or ``test``.
        data_dir: The data folder, see `data_root`.

    Raises:
        UserError: if the name or the split is unknown, the files are missing or not the official ones, or
            the images and labels are not as the data set declares.
    """
    kind = DATASETS[name := named(name)]
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    images, labels = read_split(kind, split, data_dir)
    try:
        found = from_arrays(images, labels, kind.classes, name)
        if found.shape != tuple(kind.shape):
            declared = f"not {tuple(kind.shape)} as declared"
            raise UserError(f"its {split} images have shape {found.shape}, {declared}")
    except UserError as error:  # a plug-in may return anything
        raise UserError(f"data set {name}: {error}") from error
    return found


def read_split(kind: DatasetType, split: str, data_dir: str | os.PathLike | None) -> Arrays:
    """Return what the function of a data set returns for a split. It may need no data folder.

    Args:
        kind: The data set.
        split: ``train`` or ``test``.
        data_dir: The data folder, see `data_root`.

    Raises:
        UserError: if `data_dir` cannot be used, or the data set needs a data folder, and there is none.
    """
    chosen = chosen_root(data_dir)
    try:
        root = data_root(chosen)
    except UserError as missing:
        return _read_without_root(kind, split, missing)
    return kind.load(split, root)


def _read_without_root(kind: DatasetType, split: str, missing: UserError) -> Arrays:
    try:
        return kind.load(split, NO_ROOT)
    except Exception as error:  # a plug-in may raise anything
        if str(NO_ROOT) not in str(error):
            raise
        raise UserError(f"{kind.name} needs a data folder: {missing}") from error


DATASETS: Registry[DatasetType] = Registry(
    "data set", group="robust_interp.datasets", holds=DatasetType, names="[a-z0-9]+"
)

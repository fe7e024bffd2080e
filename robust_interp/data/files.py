"""Data sets of encoded images, such as JPEG or PNG files, which are decoded on demand.

Large data sets are never in memory as a whole; worker processes decode ahead. Because images are only read
while they are measured, the fingerprint is the hash of a manifest: path, size in bytes and label of each
image, and the preprocessing. A hash of each decoded image is kept as well, so that stored results can be
checked against it (`Dataset.content`).
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple, Protocol

import numpy as np

from robust_interp.core.errors import UserError
from robust_interp.core.texts import failure_of
from robust_interp.data.dataset import OWN_N, Dataset
from robust_interp.data.decoding import END_MARKERS, Decoder, Stream, check, opened
from robust_interp.data.preprocessing import AS_THEY_ARE, Preprocessing, of_model

if TYPE_CHECKING:
    from PIL import Image

KEPT_BYTES = 256 * 2**20  # size of the cache of decoded images, if all measured ones fit: 1,700 of 224 x 224

_READING = threading.RLock()  # corrupted images are computed in other threads, which read clean ones

PROBED = 32  # images whose headers decide on the number of channels and on preprocessing

GREY = ("1", "L", "LA")  # Pillow's modes

LAST_BYTES = 2048  # of a file, in which its end marker usually is


class Encoded(Protocol):
    """A sequence of encoded images."""

    @property
    def names(self) -> Sequence[str]:
        """Name of each image: a relative path with ``/``, or a row of a table."""

    @property
    def sizes(self) -> Sequence[int]:
        """Size of each image in bytes."""

    @property
    def turns_upright(self) -> bool:
        """Whether images are turned as their EXIF orientation says, as the library of this format does."""

    @property
    def mode(self) -> str | None:
        """Pillow's mode to which all images are converted first, as the library does; None if in none."""

    def open(self, at: int) -> BinaryIO:
        """Open an image for reading.

        Raises:
            OSError: if it cannot be opened.
        """


class Header(NamedTuple):
    """The header of an encoded image.

    Attributes:
        size: Height and width in pixels.
        mode: Pillow's mode, such as ``RGB``.
        trouble: Why the image cannot be read; empty if no error was found.
    """

    size: tuple[int, int]
    mode: str
    trouble: str = ""


class FileDataset(Dataset):
    """A data set of encoded images.

    Args:
        name: Name in tables.
        encoded: The encoded images.
        labels: Class indices (N,), in the order of `encoded`.
        classes: Number of classes.
        order: Positions (n,) in `encoded` of the images of the data set, in order.
        preprocessing: Preprocessing for all models; None lets `preprocessed_for` choose that of each model.
        workers: Number of worker processes; 0 decodes in this process; None chooses it, see `worker_count`.
        metadata: See `Dataset`.
        notes: See `Dataset`.
        class_names: See `Dataset`.
    """

    default_n = OWN_N

    def __init__(
        self,
        name: str,
        encoded: Encoded,
        labels: np.ndarray,
        classes: int,
        order: np.ndarray,
        preprocessing: Preprocessing | None,
        workers: int | None,
        metadata: Mapping[str, str | int],
        notes: tuple[str, ...],
        class_names: tuple[str, ...],
    ) -> None:
        self.name, self.classes, self.notes, self.class_names = name, classes, notes, class_names
        self.labels = labels[order]
        self._encoded, self._all_labels, self._order = encoded, labels, order
        self._preprocessing, self._workers = preprocessing, workers
        self._subset = dict(metadata)
        self._headers: dict[int, Header] = {}
        self._views: dict[tuple[str, int], FileDataset] = {}
        self._channels: int | None = None
        self._hashes = np.zeros(len(order), np.uint64)
        self._expected = 0  # number of images that will be measured; 0: not known
        self._kept: np.ndarray | None = None
        self._is_kept = np.zeros(0, bool)

    @property
    def metadata(self) -> Mapping[str, str | int]:  # type: ignore[override]
        how = str(self._preprocessing or AS_THEY_ARE)
        return ({"preprocessing": how} if how else {}) | self._subset

    def reordered(self, order: np.ndarray, subset: str) -> FileDataset:
        return self._variant(self._order[order], self._preprocessing, self._subset | {"subset": subset})

    def _variant(
        self, order: np.ndarray, preprocessing: Preprocessing | None, metadata: Mapping[str, str | int]
    ) -> FileDataset:
        """Return a data set of the same encoded images, in another order or with another preprocessing."""
        return FileDataset(
            self.name,
            self._encoded,
            self._all_labels,
            self.classes,
            order,
            preprocessing,
            self._workers,
            metadata,
            self.notes,
            self.class_names,
        )

    def preprocessed_for(self, cfg: Mapping) -> Dataset:
        """Return the data set with the model's preprocessing, unless another was chosen before."""
        if self._preprocessing is not None or not cfg.get("input_size"):
            return self
        chosen = of_model(cfg)
        key = str(chosen), 1 if cfg["input_size"][0] == 1 else 3
        if self._stay(chosen, key[1]):  # so that models with and without a cfg share one data set
            return self
        if key not in self._views:
            self._views[key] = view = self._variant(self._order, chosen, self._subset)
            view._headers, view._channels = self._headers, key[1]
        return self._views[key]

    def _stay(self, chosen: Preprocessing, channels: int) -> bool:
        """Whether this preprocessing changes no image."""
        if channels != self.channels or not all(chosen.keeps(header.size) for header in self._probed):
            return False
        return all(chosen.keeps(header.size) for header in self._scan(range(len(self))) if not header.trouble)

    @property
    def shape(self) -> tuple[int, int, int]:
        C, H, W = self._decoder.shape
        return C, H, W

    @property
    def places(self) -> np.ndarray:
        return self._order

    @property
    def channels(self) -> int:
        """Number of channels: 1 if the source's mode, or else all probed images, are grey, and 3 if not."""
        if self._channels is None:
            mode = self._encoded.mode
            modes = {mode} if mode else {header.mode for header in self._probed}
            self._channels = 1 if modes <= set(GREY) else 3
        return self._channels

    @cached_property
    def _probed(self) -> list[Header]:
        ids = np.unique(np.linspace(0, len(self) - 1, PROBED).astype(int))
        found = [header for header in self._scan(ids.tolist()) if not header.trouble]
        if not found:
            raise UserError(f"{self.name}: {self._scan([0])[0].trouble}")
        return found

    def _scan(self, ids: Iterable[int]) -> list[Header]:
        """Return the headers of images; each is read only once."""
        places = [int(self._order[at]) for at in ids]
        todo = [place for place in dict.fromkeys(places) if place not in self._headers]
        with ThreadPoolExecutor(8) as pool:
            self._headers |= zip(todo, pool.map(partial(header_of, self._encoded), todo), strict=True)
        return [self._headers[place] for place in places]

    def problems(self) -> list[str]:
        return self._problems(len(self))

    def _problems(self, n: int) -> list[str]:
        return [header.trouble for header in self._scan(range(n)) if header.trouble]

    @property
    def sizes(self) -> str:
        found = {header.size for header in self._scan(range(len(self))) if not header.trouble}
        if len(found) < 2 or (self._preprocessing and self._preprocessing.crop):
            return super().sizes
        sides = [" to ".join(map(str, sorted({min(s), max(s)}))) for s in zip(*found, strict=True)]
        return f"{len(found)} sizes, {sides[0]} high and {sides[1]} wide"

    def expect(self, n: int) -> None:
        if problems := self._problems(n):
            more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
            raise UserError(
                f"{problems[0]}{more}: mend or remove it, or leave such out with --skip-unreadable"
            )
        if not self._preprocessing and len({header.size for header in self._scan(range(n))}) > 1:
            self._decoder.refuse_sizes()
        if n > self._expected:
            self._expected, self._kept = n, None
            self._stream.until(n)

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the manifest: paths, sizes and labels of the images in order, and the preprocessing.

        The latter includes whether images are turned upright, and the mode of the source, if it has one.
        """
        sha = hashlib.sha256()
        how = [str(self._preprocessing or AS_THEY_ARE), *(["upright"] if self._encoded.turns_upright else [])]
        how += [f"mode {self._encoded.mode}"] if self._encoded.mode else []
        sha.update(json.dumps(["files", self.classes, self.channels, *how]).encode())
        names, sizes = self._encoded.names, self._encoded.sizes
        for place, label in zip(self._order.tolist(), self.labels.tolist(), strict=True):
            sha.update(f"\n{names[place]}\0{sizes[place]}\0{label}".encode(errors="surrogateescape"))
        return sha.hexdigest()

    @cached_property
    def _decoder(self) -> Decoder:
        return Decoder(self._encoded, self._order, self._preprocessing or AS_THEY_ARE, self.channels)

    @cached_property
    def _stream(self) -> Stream:
        return Stream(self._decoder, len(self), self._workers)

    def at(self, ids: np.ndarray) -> np.ndarray:
        with _READING:
            return self._read(np.asarray(ids))

    def _read(self, ids: np.ndarray) -> np.ndarray:
        if not len(ids):
            return np.zeros((0, *self.shape), np.uint8)
        count = self._expected or len(self)
        if ids.max() >= count or count * int(np.prod(self.shape)) > KEPT_BYTES:
            return self._decoded(ids)
        if self._kept is None:
            self._kept, self._is_kept = np.empty((count, *self.shape), np.uint8), np.zeros(count, bool)
        missing = ids[~self._is_kept[ids]]
        if len(missing):
            self._kept[missing], self._is_kept[missing] = self._decoded(missing), True
        return self._kept[ids]

    def _decoded(self, ids: np.ndarray) -> np.ndarray:
        images, self._hashes[ids] = self._stream.read(ids)
        return images

    def content(self, ids: np.ndarray) -> np.ndarray:
        return self._hashes[ids]

    def read_content(self, ids: np.ndarray) -> np.ndarray:
        with _READING:
            return self._stream.read_here(ids)[1]

    def name_of(self, at: int) -> str:
        return self._encoded.names[self._order[at]]


def size_of(path: str | Path) -> int:
    """Return the size of a file in bytes; 0 for a missing one, which raises an error when it is opened."""
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def header_of(encoded: Encoded, place: int) -> Header:
    """Read the header of an image.

    To find truncated JPEG and PNG files, those without an end marker in their last bytes are decoded, too. In
    a file of several pictures, these are the last bytes of the first one.
    """
    try:
        with encoded.open(place) as file:
            image = opened(file)
            size, mode, kind = (image.height, image.width), image.mode, image.format
            turns = encoded.turns_upright or kind == "TIFF"  # Pillow itself turns TIFF files
            if turns and _is_on_its_side(image, file):
                size = (image.width, image.height)
            last = _last_bytes(image, file, encoded.sizes[place]) if kind in END_MARKERS else b""
            if END_MARKERS.get(kind or "", b"") not in last:
                file.seek(0)
                check(file, encoded)
        return Header(size, mode)
    except Exception as error:  # Pillow's plug-ins raise anything
        return Header((0, 0), "", f"cannot read {encoded.names[place]}: {failure_of(error)}")


def _last_bytes(image: Any, file: BinaryIO, size: int) -> bytes:
    """Return the last bytes of the first picture in a file of this size; b"" if they are missing."""
    end = image.mpinfo[_MP_ENTRIES][0]["Size"] if image.format == "MPO" else size
    if end > size:
        return b""
    file.seek(max(0, end - LAST_BYTES))
    return file.read(min(end, LAST_BYTES))


def _is_on_its_side(image: Image.Image, file: BinaryIO) -> bool:
    """Whether the EXIF orientation of an image swaps its height and width."""
    if image.format == "TIFF" and image.size != _stored_size(image):  # since Pillow 11 it is the turned one
        return False
    if image.format == "PNG" and not _may_have_exif(file):
        return False
    return image.getexif().get(_ORIENTATION, 1) in _ON_ITS_SIDE


def _stored_size(image: Any) -> tuple[int, int]:
    """Return the width and height of a TIFF as stored."""
    return image.tag_v2[_WIDTH], image.tag_v2[_HEIGHT]


def _may_have_exif(file: BinaryIO) -> bool:
    """Whether a PNG may have EXIF. Pillow decodes it to find out, because EXIF may follow the pixels."""
    before = file.tell()
    file.seek(8)  # after the signature
    chunks = set()
    while len(head := file.read(8)) == 8:  # the size of a chunk without its checksum, and its name
        chunks.add(head[4:])
        file.seek(int.from_bytes(head[:4]) + 4, os.SEEK_CUR)
    file.seek(before)
    return bool(chunks & _EXIF_CHUNKS)


_MP_ENTRIES = 0xB002  # tag of the index of an MPO

_WIDTH, _HEIGHT = 0x0100, 0x0101  # tags of TIFF

_ORIENTATION, _ON_ITS_SIDE = 0x0112, (5, 6, 7, 8)  # EXIF's tag, and its values that swap height and width

_EXIF_CHUNKS = {b"eXIf", b"tEXt", b"zTXt", b"iTXt"}  # a text may be EXIF or XMP

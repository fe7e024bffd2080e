"""Decode images ahead of time in the worker processes of torch's DataLoader."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from robust_interp.core.errors import UserError
from robust_interp.core.texts import first_line_of
from robust_interp.core.threads import available_cpus
from robust_interp.core.torch_internals import dead_worker
from robust_interp.data.handover import GUARD, FromWorkers
from robust_interp.data.preprocessing import Preprocessing

if TYPE_CHECKING:
    from PIL import Image

    from robust_interp.data.files import Encoded

CHUNK_BYTES = 4 * 2**20  # bytes of pixels that a worker returns at once

WORTH_WORKERS = 64  # images; fewer are decoded before workers have started

MOST_WORKERS = 8  # limit of the default number of workers

END_OF_JPEG = b"\xff\xd9"

# Pillow calls a JPEG file of several pictures MPO, as many phones write them. It decodes the first.
END_MARKERS = {"JPEG": END_OF_JPEG, "MPO": END_OF_JPEG, "PNG": b"IEND"}

_START_OR_END_OF_JPEG = re.compile(rb"\xff[\xd8\xd9]")


def opened(file: BinaryIO) -> Image.Image:
    """Open an image with Pillow; only its header is read.

    Raises:
        ValueError: if Pillow cannot identify it, or its pixels have more than 8 bits.
        Exception: any exception of Pillow's plug-ins, if the file is damaged.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        image = Image.open(file)
    except UnidentifiedImageError as error:
        raise ValueError("it is no image that Pillow can read") from error
    refuse_deep(image)
    return image


def refuse_deep(image: Image.Image) -> None:
    """Refuse an image that 8 bits per channel cannot hold; Pillow would clip its pixels without a word.

    Raises:
        ValueError: if its pixels have more than 8 bits.
    """
    if image.mode in ("I", "F") or image.mode.startswith("I;"):
        raise ValueError(f"its pixels have more than 8 bits (mode {image.mode})")


def as_its_source_asks(image: Image.Image, encoded: Encoded) -> Image.Image:
    """Turn an image as its EXIF orientation says, and convert it to a mode, if its source asks for that.

    Raises:
        ValueError: if Pillow cannot convert it, or its pixels then have more than 8 bits.
    """
    from PIL import ImageOps

    image = ImageOps.exif_transpose(image) if encoded.turns_upright else image
    if encoded.mode and encoded.mode != image.mode:
        image = image.convert(encoded.mode)
        refuse_deep(image)
    return image


def check(file: BinaryIO, encoded: Encoded) -> None:
    """Decode an image to find out whether it is whole.

    Some programs write more bytes after its end, such as the film of a motion photo or further pictures. The
    end marker is looked for in all that follows the header, because Pillow decodes a JPEG file that is cut
    off if enough zeros follow.

    Raises:
        ValueError: if Pillow cannot identify it, its pixels have more than 8 bits, or it is cut off.
        Exception: any exception of Pillow's plug-ins, if the file is damaged.
    """
    image = opened(file)
    as_its_source_asks(image, encoded).load()
    file.seek(0)
    if not _has_end(file.read(), image.format or ""):
        raise ValueError("it is cut off")


def _has_end(content: bytes, kind: str) -> bool:
    """Whether the first picture of a file has its end marker; True for kinds without one.

    A thumbnail in the header of a JPEG has a marker of its own, and so has every further picture.
    """
    if END_MARKERS.get(kind) != END_OF_JPEG:
        return END_MARKERS.get(kind, b"") in content
    found = _START_OR_END_OF_JPEG.search(content, _start_of_scan(content))
    return found is not None and found[0] == END_OF_JPEG


def _start_of_scan(jpeg: bytes) -> int:
    """Return where the compressed pixels of a JPEG file start, after the segments of its header."""
    at = jpeg.find(b"\xff", 2)
    while at >= 0 and jpeg[at + 1 : at + 2] not in (b"", b"\xda"):
        is_fill = jpeg[at + 1 : at + 2] == b"\xff"
        at += 1 if is_fill else 2 + int.from_bytes(jpeg[at + 2 : at + 4], "big")
        at = jpeg.find(b"\xff", at)  # stray bytes before a marker are no obstacle to decoders
    return at if at >= 0 else len(jpeg)


class Decoder:
    """Decodes batches of images: a map-style data set for torch's DataLoader, indexed by lists of ids.

    Args:
        encoded: The encoded images.
        order: Positions (N,) in `encoded` of the images of the data set, in order.
        preprocessing: Brings the images to one shape.
        channels: 1 for grey images, 3 for RGB.
    """

    def __init__(
        self, encoded: Encoded, order: np.ndarray, preprocessing: Preprocessing, channels: int
    ) -> None:
        self._encoded, self._order = encoded, order
        self._preprocessing, self._channels = preprocessing, channels
        self._transform: Any = None
        self._shape: tuple[int, ...] | None = None

    def __getstate__(self) -> dict:
        return vars(self) | {"_transform": None}  # each process creates its own

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape (C, H, W) of the images, taken from the first.

        Raises:
            UserError: if the first image cannot be decoded.
        """
        if self._shape is None:
            self._shape = self._decoded(0).shape
        return self._shape

    def __getitem__(self, ids: Sequence[int]) -> tuple[np.ndarray, np.ndarray, str]:
        """Return the images (n, C, H, W) as uint8, their hashes (n,) as uint64, and an error message.

        The message is '' unless an image cannot be decoded; then both arrays are empty.
        """
        images = np.empty((len(ids), *self.shape), np.uint8)
        hashes = np.zeros(len(ids), np.uint64)
        try:
            for at, one in enumerate(ids):
                decoded = self._decoded(one)
                if decoded.shape != self.shape:
                    self.refuse_sizes()
                images[at], hashes[at] = decoded, hash_of(decoded)
        except UserError as error:
            return images[:0], hashes[:0], str(error)
        return images, hashes, ""

    def refuse_sizes(self) -> None:
        """Raise an error.

        Raises:
            UserError: always; it says that the images have several sizes.
        """
        raise UserError(
            "the images are of several sizes, and nothing says how to bring them to one: use both --resize "
            "and --crop, such as --resize 256 --crop 224"
        )

    def _decoded(self, at: int) -> np.ndarray:
        place = int(self._order[at])
        self._transform = self._transform or self._preprocessing.transform()
        try:
            with self._encoded.open(place) as file:
                image = as_its_source_asks(opened(file), self._encoded)
                image = image.convert("L" if self._channels == 1 else "RGB")
            crop = self._preprocessing.crop
            if crop and not self._preprocessing.resize and (image.height < crop[0] or image.width < crop[1]):
                raise UserError(
                    f"{self._encoded.names[place]} is {image.height}x{image.width}, smaller than the crop: "
                    "use --resize"
                )
            return np.asarray(self._transform(image))
        except UserError:
            raise
        except Exception as error:  # Pillow's plug-ins raise anything
            reason = first_line_of(error)
            raise UserError(
                f"cannot decode {self._encoded.names[place]}: {reason}; mend or remove it, or leave such out "
                "with --skip-unreadable"
            ) from error


def hash_of(image: np.ndarray) -> int:
    """Return a hash from 1 to 2**64 - 1 of a uint8 image (C, H, W)."""
    found = hashlib.blake2b(np.ascontiguousarray(image).data, digest_size=8).digest()
    return int.from_bytes(found, "little") or 1


class _Turns:
    """A sampler of lists of ids: those in `asked`; if that is None, all ids below `stop`, endlessly."""

    def __init__(self) -> None:
        self.size = 1
        self.asked: np.ndarray | None = None
        self.start, self.stop = 0, 0

    def __iter__(self) -> Iterator[list[int]]:
        if self.asked is not None:
            for at in range(0, len(self.asked), self.size):
                yield self.asked[at : at + self.size].tolist()
            return
        at = self.start
        while True:
            yield list(range(at, min(at + self.size, self.stop)))
            at = at + self.size if at + self.size < self.stop else 0


class Stream:
    """Reads decoded images. If images are read in sequence, the next ones are decoded ahead.

    Args:
        decoder: Decodes the images.
        n: Number of images that are read in sequence, repeatedly from the first.
        workers: Number of worker processes; 0 decodes in this process; None chooses it, see `worker_count`.
    """

    def __init__(self, decoder: Decoder, n: int, workers: int | None = None) -> None:
        self._decoder, self._n, self._asked_workers = decoder, n, workers
        self._loader: FromWorkers | None = None
        self._turns = _Turns()
        self._ready: Iterator | None = None
        self._at = -1  # id of the next image in sequence
        self._rest: tuple[np.ndarray, np.ndarray] | None = None

    def until(self, n: int) -> None:
        """Set the number of images that are read in sequence, repeatedly from the first."""
        self._n, self._at = n, -1

    def read(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the images (n, C, H, W) with these ids, and their hashes (n,).

        Raises:
            UserError: if an image cannot be decoded; the message names it.
        """
        if not self._workers:
            return self.read_here(ids)
        try:
            start, stop = int(ids[0]), int(ids[0]) + len(ids)
            if stop <= self._n and np.array_equal(ids, np.arange(start, stop)):
                return self._in_sequence(start, len(ids))
            self._turns.asked, self._at = ids, -1
            return self._taken(self._restarted(), len(ids))[0]
        except BaseException:  # such as a worker that has died: the next read starts new ones
            self._loader = self._ready = None
            raise

    def read_here(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Do the same as `read` without worker processes, which take a moment to start."""
        return _checked(self._decoder[ids.tolist()])

    @property
    def _workers(self) -> int:
        return worker_count(self._asked_workers, self._n)

    def _in_sequence(self, start: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        if self._at != start or self._ready is None:
            self._turns.asked, self._turns.start, self._turns.stop = None, start, self._n
            self._ready, self._rest = self._restarted(), None
        self._at = -1  # after an error, the next images that are ready are others
        found, self._rest = self._taken(self._ready, count, self._rest)
        self._at = (start + count) % self._n
        return found

    def _restarted(self) -> Iterator:
        if self._loader is None:
            self._turns.size = max(1, CHUNK_BYTES // int(np.prod(self._decoder.shape)))
            self._turns.size = min(self._turns.size, 64)
            self._loader = _from_workers(self._decoder, self._workers, self._turns, persistent_workers=True)
        return _made(self._loader)

    def _taken(
        self, ready: Iterator, count: int, rest: tuple[np.ndarray, np.ndarray] | None = None
    ) -> tuple[tuple[np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray] | None]:
        """Return the next `count` images with their hashes, and the unused rest of the last chunk."""
        images = np.empty((count, *self._decoder.shape), np.uint8)
        hashes, at = np.empty(count, np.uint64), 0
        while True:
            if rest is not None:
                some = min(count - at, len(rest[1]))
                images[at : at + some], hashes[at : at + some] = rest[0][:some], rest[1][:some]
                at, rest = at + some, (rest[0][some:], rest[1][some:]) if some < len(rest[1]) else None
            if at == count:
                return (images, hashes), rest
            rest = _checked(next(ready))


def _checked(found: tuple[np.ndarray, np.ndarray, str]) -> tuple[np.ndarray, np.ndarray]:
    images, hashes, trouble = found
    if trouble:
        raise UserError(trouble)
    return images, hashes


def _from_workers(source: Any, workers: int, turns: Iterable, **options: Any) -> FromWorkers:
    """Return what `source` returns for each of `turns`, made by workers."""
    try:
        return FromWorkers(source, workers, sampler=turns, batch_size=None, **options)
    except OSError as error:
        raise _cannot_use(error) from error


def _made(loader: FromWorkers) -> Iterator:
    """Yield what the workers make; they start with the first.

    Raises:
        UserError: if they cannot be started, or one of them has ended.
    """
    try:
        yield from loader
    except OSError as error:
        raise _cannot_use(error) from error
    except RuntimeError as error:
        if not (told := dead_worker(error)):
            raise
        if loader.lacks_a_guard:
            told += f", and {GUARD}, or with decode_workers=0"
        raise UserError(told) from error


def _cannot_use(error: OSError) -> UserError:
    return UserError(f"cannot use processes that decode images: {error}; try --decode-workers 0")


class _Check:
    """Checks whether images can be decoded: a map-style data set for torch's DataLoader."""

    def __init__(self, encoded: Encoded) -> None:
        self._encoded = encoded

    def __getitem__(self, places: Sequence[int]) -> list[tuple[int, str]]:
        """Return the position of each image that cannot be decoded, with the reason."""
        found = []
        for place in places:
            try:
                with self._encoded.open(place) as file:
                    check(file, self._encoded)
            except Exception as error:  # Pillow's plug-ins raise anything
                reason = first_line_of(error)
                found.append((place, f"cannot read {self._encoded.names[place]}: {reason}"))
        return found


def unreadable(encoded: Encoded, workers: int | None = None) -> dict[int, str]:
    """Decode every image, and return the reason for each that cannot be decoded.

    Args:
        encoded: The encoded images.
        workers: Number of worker processes, as in `Stream`.

    Returns:
        The reasons by position in `encoded`.
    """
    count = len(encoded.names)
    places = [list(range(at, min(at + 64, count))) for at in range(0, count, 64)]
    check = _Check(encoded)
    if not (processes := worker_count(workers, count)):
        return dict(pair for some in places for pair in check[some])
    return dict(pair for some in _made(_from_workers(check, processes, places)) for pair in some)


def worker_count(asked: int | None, images: int) -> int:
    """Return the number of worker processes for so many images.

    Args:
        asked: The number that the user chose; None means none for few images, and otherwise one per CPU, but
            at most MOST_WORKERS.
        images: Number of images.
    """
    if asked is not None:
        return asked
    if images < WORTH_WORKERS:
        return 0
    return min(available_cpus(), MOST_WORKERS)

"""Read the arrays ``images`` and ``labels`` of a NumPy file. Nothing is unpickled."""

from __future__ import annotations

import zipfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import IO

import numpy as np

from robust_interp.core.errors import UserError
from robust_interp.core.paths import expanded
from robust_interp.core.texts import failure_of
from robust_interp.data.dataset import OWN_N, ArrayDataset, from_arrays

_AT_ONCE = 2**20  # bytes


def from_npz(text: str) -> ArrayDataset:
    """Open ``npz:FILE`` with the arrays ``images``, ``labels`` and optionally ``classes``; see `from_arrays`.

    Images written by `numpy.savez` are memory-mapped; those of `numpy.savez_compressed` are read into memory.

    Args:
        text: The path.

    Raises:
        UserError: if the file cannot be read, or its arrays are not valid images and labels.
    """
    path = expanded(text)
    found = read_arrays(path, ("images", "labels"), ("classes",), mapped=("images",))
    try:
        classes = found["classes"].item() if "classes" in found and found["classes"].ndim == 0 else None
        if "classes" in found and classes is None:
            raise UserError("classes must be how many there are, a single number")
        dataset = from_arrays(found["images"], found["labels"], classes, f"npz:{path.stem}")
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    return replace(dataset, default_n=OWN_N)


def read_arrays(
    path: Path, needed: Iterable[str], others: Iterable[str], mapped: Iterable[str] = ()
) -> dict[str, np.ndarray]:
    """Read arrays of an .npz file by name, and compare its checksums. Nothing is unpickled.

    Args:
        path: The file.
        needed: Names of the arrays that must exist.
        others: Names of optional arrays.
        mapped: Names of arrays to memory-map instead of reading, if they are not compressed.

    Raises:
        UserError: if the file cannot be read, is damaged, or lacks an array.
    """
    found = {}
    try:
        with zipfile.ZipFile(path) as archive:
            held = [name.removesuffix(".npy") for name in archive.namelist()]
            if missing := [name for name in needed if name not in held]:
                names = ", ".join(held) or "nothing"
                raise UserError(f"{path} has no array {missing[0]!r}, only {names}")
            for name in (each for each in (*needed, *others) if each in held):
                where = _mapped(path, archive, f"{name}.npy") if name in mapped else None
                found[name] = _read(archive, f"{name}.npy") if where is None else where
    except UserError:
        raise
    except Exception as error:  # a damaged archive raises anything
        raise UserError(f"cannot read {path} as an .npz file of arrays: {_reason(path, error)}") from error
    return found


def _reason(path: Path, error: Exception) -> str:
    if isinstance(error, zipfile.BadZipFile):
        with path.open("rb") as file:
            if file.read(6) == np.lib.format.MAGIC_PREFIX:
                return "it is a single array: write it with numpy.savez(FILE, images=ARRAY)"
    return failure_of(error)


def _read(archive: zipfile.ZipFile, name: str) -> np.ndarray:
    with archive.open(name) as member:
        try:
            found = np.lib.format.read_array(member, allow_pickle=False)
        except ValueError as error:
            if "pickle" not in str(error):
                raise
            raise _of_objects(name) from error  # NumPy advises to load it unsafely
        _check_rest(member)
        return found


def _of_objects(name: str) -> ValueError:
    array = name.removesuffix(".npy")
    return ValueError(f"{array} holds Python objects, which are never unpickled: save an array of numbers")


def _check_rest(member: IO[bytes]) -> None:
    """Read a member of an archive to its end, where its checksum is compared."""
    while member.read(_AT_ONCE):
        pass


def _mapped(path: Path, archive: zipfile.ZipFile, name: str) -> np.ndarray | None:
    """Memory-map an array of the archive; return None if it is compressed or in an unknown format."""
    told = archive.getinfo(name)
    if told.compress_type != zipfile.ZIP_STORED:
        return None
    with path.open("rb") as file:
        file.seek(told.header_offset)
        head = file.read(30)  # header of the member; its last four bytes are two lengths to skip
        file.seek(int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little"), 1)
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
        if version not in read:
            return None
        shape, fortran, kind = read[version](file)
        if kind.hasobject:
            raise _of_objects(name)
        if 0 in shape:  # nothing can be mapped
            return None
        with archive.open(name) as member:
            _check_rest(member)
        return np.memmap(path, kind, "r", file.tell(), shape, "F" if fortran else "C")

"""Read the arrays ``images`` and ``labels`` of a NumPy file. Nothing is unpickled."""

from __future__ import annotations

import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from robust_interp.core.errors import UserError
from robust_interp.core.texts import first_line_of
from robust_interp.data.dataset import OWN_N, ArrayDataset, from_arrays

_UNREADABLE = (OSError, ValueError, EOFError, AttributeError, TypeError, KeyError, zipfile.BadZipFile)


def from_npz(text: str) -> ArrayDataset:
    """Open ``npz:FILE`` with the arrays ``images``, ``labels`` and optionally ``classes``; see `from_arrays`.

    Images written by `numpy.savez` are memory-mapped; those of `numpy.savez_compressed` are read into memory.

    Args:
        text: The path.

    Raises:
        UserError: if the file cannot be read, or its arrays are not valid images and labels.
    """
    path = Path(text).expanduser()
    try:
        with np.load(path, allow_pickle=False) as held:
            if missing := {"images", "labels"} - set(held.files):
                names = ", ".join(held.files) or "nothing"
                raise UserError(f"{path} has no array {min(missing)!r}, only {names}")
            mapped = _mapped(path, "images.npy")
            images = held["images"] if mapped is None else mapped
            labels = held["labels"]
            classes = int(held["classes"]) if "classes" in held.files else None
    except _UNREADABLE as error:
        reason = first_line_of(error)
        if "pickle" in reason:  # NumPy's message suggests allow_pickle=True, which is unsafe
            reason = "it is no zip archive of plain arrays"
        raise UserError(f"cannot read {path} as an .npz file of arrays: {reason}") from error
    try:
        found = from_arrays(images, labels, classes, f"npz:{path.stem}")
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    return replace(found, default_n=OWN_N)


def _mapped(path: Path, name: str) -> np.ndarray | None:
    """Memory-map an array of the archive; None if it is compressed or has an unknown .npy version."""
    with zipfile.ZipFile(path) as archive:
        told = archive.getinfo(name)
        if told.compress_type != zipfile.ZIP_STORED:
            return None
        with path.open("rb") as file:
            file.seek(told.header_offset)
            head = file.read(30)  # the local file header ends with the lengths of name and extra field
            file.seek(int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little"), 1)
            version = np.lib.format.read_magic(file)
            read = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
            if version not in read:
                return None
            shape, fortran, kind = read[version](file)
            if kind.hasobject:
                raise ValueError("it holds pickled objects")
            return np.memmap(path, kind, "r", file.tell(), shape, "F" if fortran else "C")

"""Read folders of images in torchvision's layout, one folder per class, and ImageNet's validation folder."""

from __future__ import annotations

import csv
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import BinaryIO

import numpy as np

from robust_interp.core.errors import UserError
from robust_interp.core.paths import expanded
from robust_interp.core.texts import LONGEST
from robust_interp.data.dataset import MOST_CLASSES
from robust_interp.data.files import FileDataset, size_of
from robust_interp.data.options import SourceOptions

SUFFIXES = (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp")  # torchvision's

IMAGENET_CLASSES = 1000

MOST_NAMED = 2**16  # classes; the names of more, most of them empty, would make stored plans large


@dataclass(frozen=True)
class Files:
    """Images that are files in a folder or its subfolders.

    Attributes:
        root: The folder.
        names: Paths of the images relative to `root`, with ``/``.
    """

    root: Path
    names: tuple[str, ...]

    @property
    def turns_upright(self) -> bool:
        return False  # nor does torchvision's ImageFolder

    @property
    def mode(self) -> None:
        return None

    @cached_property
    def sizes(self) -> list[int]:
        """Size of each file in bytes, see `size_of`."""
        return [size_of(self.root / name) for name in self.names]

    def open(self, at: int) -> BinaryIO:
        path = self.root / self.names[at]
        if not stat.S_ISREG(os.stat(path).st_mode):  # opening a pipe would wait for ever
            raise OSError("it is no file")
        return open(path, "rb")


def from_folder(text: str, options: SourceOptions) -> FileDataset:
    """Open ``folder:PATH``. Its subfolders are the classes, sorted as text or given by a class map.

    Args:
        text: The path.
        options: Options of the source; its `class_map` assigns classes to the subfolders.

    Raises:
        UserError: if there is no such folder, or a subfolder has no image or no class.
    """
    root = _there(text)
    names = _by_class(root)
    labels = {name: at for at, name in enumerate(names)}
    notes = _order_note(list(names))
    classes = len(names)
    if options.class_map:
        mapped, classes = read_class_map(expanded(options.class_map))
        if unknown := [name for name in names if name not in mapped]:
            raise UserError(f"{options.class_map} has no line for the folder {unknown[0]}")
        labels, notes = mapped, ()
    called = _class_names(names, labels, classes)
    return _dataset(f"folder:{root.resolve().name}", root, names, labels, classes, options, notes, called)


def _class_names(names: Iterable[str], labels: Mapping[str, int], classes: int) -> tuple[str, ...]:
    """Return the name of each class: its folder, or its folders; unprintable characters become ``?``.

    More than MOST_NAMED classes have no names.
    """
    if classes > MOST_NAMED:
        return ()
    folders: list[list[str]] = [[] for _ in range(classes)]
    for name in names:
        folders[labels[name]].append("".join(char if char.isprintable() else "?" for char in name))
    return tuple(map(", ".join, folders))


def from_imagenet(text: str, options: SourceOptions) -> FileDataset:
    """Open ``imagenet:PATH``: ImageNet's validation folder or its parent, with one folder per wnid.

    The classes are the 1,000 wnids in sorted order. Folders may be missing, as in subsets of ImageNet.

    Raises:
        UserError: if there is no such folder, or a subfolder is not named by a wnid.
    """
    from timm.data import ImageNetInfo

    if options.class_map:
        raise UserError("--class-map cannot be used with imagenet:, whose classes are known; use folder:")
    root = _there(text)
    root = root / "val" if (root / "val").is_dir() else root
    names = _by_class(root)
    labels = {wnid: at for at, wnid in enumerate(ImageNetInfo("imagenet-1k").label_names())}
    if foreign := [name for name in names if name not in labels]:
        raise UserError(
            f"{root} is not ImageNet's validation folder in torchvision's layout: {foreign[0]} is none of "
            "its 1,000 wnids, such as n01440764; for other classes use folder:"
        )
    return _dataset("imagenet", root, names, labels, IMAGENET_CLASSES, options)


def _there(text: str) -> Path:
    root = expanded(text)
    if not root.is_dir():
        raise UserError(f"there is no folder {root}")
    return root


def _by_class(root: Path) -> dict[str, list[str]]:
    """Return the paths, relative to `root`, of the images in each subfolder, in torchvision's order."""
    folders = sorted(entry.name for entry in os.scandir(root) if entry.is_dir())
    if not folders:
        raise UserError(f"{root} has no folders: it must have one for each class, with images in it")
    found = {folder: list(_below(root, folder)) for folder in folders}
    if empty := [name for name, files in found.items() if not files]:
        raise UserError(
            f"{root / empty[0]} has no images ({', '.join(SUFFIXES)}); remove it if it is no class"
        )
    return found


def _below(root: Path, folder: str) -> Iterator[str]:
    for where, files in sorted(_walk(root, folder)):
        for file in sorted(files):
            if file.lower().endswith(SUFFIXES):
                yield (where.relative_to(root) / file).as_posix()


def _walk(root: Path, folder: str) -> Iterator[tuple[Path, list[str]]]:
    """Yield a folder and all its subfolders, each with the names of its files.

    Raises:
        UserError: if a link points to a folder that contains it. Its images would be found many times.
    """
    for where, folders, files in os.walk(root / folder, followlinks=True):
        for link in filter(Path.is_symlink, (Path(where, name) for name in folders)):
            above = [link.parent, *(each for each in link.parent.parents if each.is_relative_to(root))]
            if any(each.resolve().is_relative_to(link.resolve()) for each in above):
                raise UserError(f"{link} is a link to a folder that it lies in: remove it")
        yield Path(where), files


def _order_note(names: list[str]) -> tuple[str, ...]:
    """Return a note if the folders are named by numbers, and their order as text is not the numeric one."""
    if not all(name.isascii() and name.isdigit() for name in names) or names == sorted(names, key=int):
        return ()
    first = ", ".join(names[:4])
    return (
        f"the classes are the folders sorted as text, as torchvision sorts them ({first}, ...), not as "
        "numbers; --class-map FILE.csv says otherwise",
    )


def read_class_map(path: Path) -> tuple[dict[str, int], int]:
    """Read the class of each folder, and the number of classes: the largest label + 1.

    Args:
        path: A CSV file with the columns ``folder`` and ``label``. Several folders may have the same label;
            folders that do not exist are ignored.

    Raises:
        UserError: if the file cannot be read, a folder has two lines, or a label is not a whole number from
            0, below MOST_CLASSES.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            lines = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"cannot read {path}: {error}") from error
    if not lines or not {"folder", "label"} <= lines[0].keys():
        raise UserError(f"{path} must have the columns folder and label, and a line for each folder")
    found: dict[str, int] = {}
    for line in lines:
        folder, label = line["folder"], (line["label"] or "").strip()
        if not (label.isascii() and label.isdigit()) or folder in found:
            what = (
                "named twice" if folder in found else f"of class {label!r}, which is no whole number from 0"
            )
            raise UserError(f"{path}: {folder} is {what}")
        found[folder] = _class_index(path, folder, label)
    return found, max(found.values()) + 1


def _class_index(path: Path, folder: str, digits: str) -> int:
    digits = digits.lstrip("0") or "0"
    if len(digits) > len(str(MOST_CLASSES)) or int(digits) >= MOST_CLASSES:  # int() refuses very many digits
        shown = digits if len(digits) <= LONGEST else f"{digits[:LONGEST]}..."
        raise UserError(f"{path}: {folder} is of class {shown}: there can be at most {MOST_CLASSES} classes")
    return int(digits)


def _dataset(
    name: str,
    root: Path,
    names: Mapping[str, list[str]],
    labels: Mapping[str, int],
    classes: int,
    options: SourceOptions,
    notes: tuple[str, ...] = (),
    class_names: tuple[str, ...] = (),
) -> FileDataset:
    files = Files(root, tuple(file for of_class in names.values() for file in of_class))
    of_files = np.array([labels[folder] for folder, of_class in names.items() for _ in of_class], np.int64)
    return options.dataset(name, files, of_files, classes, notes, class_names)

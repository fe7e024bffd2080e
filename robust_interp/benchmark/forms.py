"""How the values of a run are written: as text on a command line, as TOML in a file. No torch here."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from robust_interp.core.errors import UserError
from robust_interp.core.specs import parts_of
from robust_interp.core.texts import quoted
from robust_interp.core.units import read_eps

MOST_SEEDS = 10_000  # that a number can stand for: a larger one is meant as a seed


@dataclass(frozen=True)
class Form:
    """How the values of one kind are written.

    Attributes:
        read: The text of a command line as a value; raises ArgumentTypeError for a text that is none.
        metavar: What stands for the text in ``--help``; None is the option's name.
        types: The TOML types of one value in a file.
        words: Those in words, for messages.
        is_list: Whether a file may list several, which a command line joins by commas.
        read_list: Such a list as a value, where that is not what the joined text means.
        choices: The only texts there are.
        bare: What the option means without a text; None if it needs one.
        write: A value as one of TOML; by default a tuple as a list.
    """

    read: Callable[[str], Any] = str
    metavar: str | None = None
    types: tuple[type, ...] = (str,)
    words: str = "text"
    is_list: bool = False
    read_list: Callable[[list], Any] | None = None
    choices: tuple[str, ...] | None = None
    bare: str | None = None
    write: Callable[[Any], Any] = lambda value: list(value) if isinstance(value, tuple) else value

    def from_file(self, value: object) -> Any:
        """The value that a TOML value stands for.

        Raises:
            ArgumentTypeError: if it is of another type, or no such value.
        """
        items = value if self.is_list and isinstance(value, list) else [value]
        if not all(type(item) in self.types for item in items):
            raise ArgumentTypeError(f"must be {self.words}, not {value!r}")
        if self.choices and value not in self.choices:
            raise ArgumentTypeError(f"must be {' or '.join(self.choices)}, not {value!r}")
        if self.read_list and isinstance(value, list):
            return self.read_list(value)
        return self.read(",".join(map(str, items)))


def name_list(text: str) -> tuple[str, ...]:
    """Names, each perhaps with arguments in brackets: commas in those separate no names.

    Nor do those in the path of a file or folder that is there.
    """
    parts, names, start = parts_of(text), [], 0
    while start < len(parts):
        stops = range(len(parts), start, -1)
        joined = [",".join(parts[start:stop]).strip() for stop in stops]
        found = next((at for at, name in enumerate(joined) if _is_there(name)), -1)
        names.append(joined[found])
        start = stops[found]
    return tuple(filter(None, names))


def _is_there(name: str) -> bool:
    return "," in name and os.path.exists(os.path.expanduser(name))


def path_text(text: str) -> str:
    """A folder or a file; an empty text would be the folder one is in."""
    if not text:
        raise ArgumentTypeError("it is empty: name a folder or a file, or . for this folder")
    return text


def named_path(text: str) -> Path:
    return Path(path_text(text))


def per_channel(text: str) -> tuple[float, ...]:
    """A mean or std: one number a channel."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ArgumentTypeError(
            f"{quoted(text)} is not a list with one number per channel, such as 0.5,0.5,0.5"
        ) from None


def eps_list(text: str) -> tuple[float, ...]:
    """Radii in units of 1/255 as [0, 1] pixels."""
    try:
        return read_eps(text)
    except UserError as error:
        raise ArgumentTypeError(str(error)) from None


def dataset_name(text: str) -> str:
    """A dataset's name, whatever its case and hyphens."""
    from robust_interp.data import named  # not for --help

    return named(text)


def sample_count(text: str) -> int | str:
    return text if text == "all" else positive(text)


def positive(text: str) -> int:
    value = natural(text)
    if value == 0:
        raise ArgumentTypeError("must be at least 1")
    return value


def number(text: str) -> float:
    """One from 0."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < inf:
        raise ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def natural(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    if len(text) > 19 or int(text) >= 2**63:
        raise ArgumentTypeError(f"{quoted(text)} is larger than any number that can be used here")
    return int(text)


def seed_list(text: str) -> tuple[int, ...]:
    """``3`` means 0, 1, 2; ``0,4`` means those, and ``4,`` that one."""
    if "," not in text:
        count = positive(text)
        if count > MOST_SEEDS:
            raise ArgumentTypeError(
                f"{count} would be that many seeds; for seed {count} alone write '{count},'"
            )
        return tuple(range(count))
    seeds = {natural(part.strip()) for part in text.split(",") if part.strip()}
    if not seeds:
        raise ArgumentTypeError(f"{text!r} contains no seed")
    return tuple(sorted(seeds))


def _each_seed(seeds: list[int]) -> tuple[int, ...]:
    """``[4]`` is that seed, where ``4`` is how many."""
    return seed_list("".join(f"{seed}," for seed in seeds))


def _in_255(radii: tuple[float, ...]) -> list[float]:
    """Radii in [0, 1] pixels in units of 1/255: the shortest numbers that are read as just these."""
    return [_shortest(value * 255, value) for value in radii]


def _shortest(in_255: float, pixels: float) -> float:
    found = (float(f"{in_255:.{digits}g}") for digits in (6, 10, 15, 16, 17))
    return next((value for value in found if value / 255 == pixels), in_255)


TEXT = Form()
DATASET = Form(dataset_name)
FOLDER = Form(path_text, "FOLDER", write=str)
FOLDER_OR_OFF = Form(path_text, "FOLDER|off", write=str)
FILE = Form(path_text, "FILE", write=str)
NAMES = Form(name_list, "NAMES", words="a list of names", is_list=True)
WAYS = Form(name_list, "WAYS", words="a list of names", is_list=True)
FILES = Form(lambda text: [text], "FILE.py", words="a list of files", is_list=True, read_list=list)
SPECS = Form(metavar="SPECS", words="a list of specs", is_list=True)
SPECS_OR_NONE = Form(metavar="SPECS", words="a list of specs", is_list=True, bare="apgd_ce,apgd_t")
NUMBERS = Form(per_channel, "LIST", (int, float), "a list of numbers", is_list=True)
RADII = Form(eps_list, "LIST", (int, float), "a list of numbers", is_list=True, write=_in_255)
SEEDS = Form(seed_list, "SEEDS", (int,), "a whole number or a list of them", True, _each_seed)
NUMBER = Form(number, "X", (int, float), "a number")
COUNT = Form(positive, "N", (int,), "a whole number")
COUNT_OR_ALL = Form(sample_count, "N", (int, str), "a whole number or 'all'")
WHOLE = Form(int, "N", (int,), "a whole number")  # the run says which one it cannot use
SEED = Form(natural, "N", (int,), "a whole number")
SWITCH = Form("True".__eq__, types=(bool,), words="true or false")  # options of their own: --no-ensembles


def one_of(*choices: str) -> Form:
    return Form(choices=choices)

"""How setting values are written: as text on the command line, as TOML in a file. Imports no torch."""

from __future__ import annotations

import os
from argparse import ArgumentTypeError
from collections.abc import Callable
from dataclasses import dataclass
from math import inf, nan
from pathlib import Path
from typing import Any

from robust_interp.core.errors import UserError
from robust_interp.core.paths import expanded
from robust_interp.core.specs import parts_of
from robust_interp.core.texts import quoted
from robust_interp.core.units import LEAST_255, read_eps

MOST_SEEDS = 10_000  # largest number of seeds; a larger number was probably meant as a seed


@dataclass(frozen=True)
class Form:
    """How values of one kind are written.

    Attributes:
        read: Converts command-line text to a value; raises ArgumentTypeError for invalid text.
        metavar: Placeholder of the value in ``--help``; None uses the name of the option.
        types: Allowed TOML types of one value.
        words: Description of these types for messages.
        is_list: Whether a file may give a list, which the command line writes joined by commas.
        read_list: Converts a list from a file; None joins the items by commas and calls `read`.
        choices: Allowed texts; None allows all.
        bare: Value of the option without an argument; None requires one.
        write: Converts a value to TOML; by default a tuple to a list.
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
        """Convert a TOML value.

        Raises:
            ArgumentTypeError: if its type or value is not allowed.
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
    """Split a list of names at commas, except in brackets and in the path of an existing file or folder."""
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
    """Read the path of a folder or file; refuse an empty text, which would mean the current folder."""
    if not text:
        raise ArgumentTypeError("it is empty: name a folder or a file, or . for this folder")
    return text


def named_path(text: str) -> Path:
    """Read the path of a folder or file. A ``~`` at its beginning is the home folder."""
    try:
        return expanded(path_text(text))
    except UserError as error:
        raise ArgumentTypeError(str(error)) from None


def per_channel(text: str) -> tuple[float, ...]:
    """Read a mean or standard deviation: one number per channel."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ArgumentTypeError(
            f"{quoted(text)} is not a list with one number per channel, such as 0.5,0.5,0.5"
        ) from None


def eps_list(text: str) -> tuple[float, ...]:
    """Read radii in units of 1/255; return them in [0, 1] pixels."""
    try:
        return read_eps(text)
    except UserError as error:
        raise ArgumentTypeError(str(error)) from None


def dataset_name(text: str) -> str:
    """Read the name of a data set; case and hyphens do not matter."""
    from robust_interp.data import named  # a slow import, which --help must not need

    return named(text)


def count_or_all(text: str) -> int | str:
    return text if text == "all" else positive(text)


def positive(text: str) -> int:
    value = natural(text)
    if value == 0:
        raise ArgumentTypeError("must be at least 1")
    return value


def _reader(words: str, allows: Callable[[float], bool]) -> Callable[[str], float]:
    """Return a function that reads a number; `words` describe the allowed ones."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = nan
        if not allows(value):
            raise ArgumentTypeError(f"{text!r} is not {words}")
        return value

    return read


number = _reader("a number of at least 0", lambda value: 0 <= value < inf)
positive_number = _reader("a number above 0", lambda value: 0 < value < inf)
percentage = _reader("a percentage from 0 to 100", lambda value: 0 <= value <= 100)


def natural(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    if len(text) > 19 or int(text) >= 2**63:
        raise ArgumentTypeError(f"{quoted(text)} is larger than any number that can be used here")
    return int(text)


def seed_list(text: str) -> tuple[int, ...]:
    """Read train seeds: ``3`` means 0, 1, 2; ``0,4`` means 0 and 4; ``4,`` means only 4."""
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
    """Convert a list from a file: ``[4]`` means seed 4, while ``4`` without brackets is a number of seeds."""
    return seed_list("".join(f"{seed}," for seed in seeds))


def _in_255(radii: tuple[float, ...]) -> list[float] | list[str]:
    """Convert radii from [0, 1] pixels to units of 1/255, as the shortest numbers that read back exactly.

    If all are so small that plain numbers are refused, they are fractions.
    """
    found = [_shortest(value * 255, value) for value in radii]
    return [f"{value!r}/255" for value in found] if max(found) < LEAST_255 else found


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
SPEC = Form(metavar="SPEC")
MODEL = Form(metavar="MODEL")
SPECS_OR_NONE = Form(metavar="SPECS", words="a list of specs", is_list=True, bare="apgd_ce,apgd_t")
NUMBERS = Form(per_channel, "LIST", (int, float), "a list of numbers", is_list=True)
RADII = Form(eps_list, "LIST", (int, float, str), "a list of numbers", is_list=True, write=_in_255)
SEEDS = Form(seed_list, "SEEDS", (int,), "a whole number or a list of them", True, _each_seed)
RADIUS = Form(float, "E", (int, float), "a number")
FACTOR = Form(positive, "K", (int,), "a whole number")
NUMBER = Form(number, "X", (int, float), "a number")
PERCENTAGE = Form(percentage, "X", (int, float), "a number")
COUNT = Form(positive, "N", (int,), "a whole number")
COUNT_OR_ALL = Form(count_or_all, "N", (int, str), "a whole number or 'all'")
WHOLE = Form(int, "N", (int,), "a whole number")  # its range is checked by the run
SEED = Form(natural, "N", (int,), "a whole number")
SWITCH = Form("True".__eq__, types=(bool,), words="true or false")  # two options: --ensembles, --no-ensembles


def one_of(*choices: str) -> Form:
    return Form(choices=choices)

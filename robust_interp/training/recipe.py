"""Read training recipes from TOML files, for one architecture and data set, and override their fields.

A file contains fields of `Recipe`. ``extends`` names a built-in recipe to start from. Each ``[[where]]``
table has the fields that differ for the architectures and data sets that its globs match; later tables take
precedence. This module does not import torch.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from robust_interp.core.errors import UserError
from robust_interp.core.json_values import or_null
from robust_interp.core.registry import unknown
from robust_interp.data import DATASETS, DatasetType

FOLDER = Path(__file__).parent / "recipes"
LARGEST = 1e30  # upper limit of any number in a recipe, so that float32 computations do not overflow
_NOT_FILLED = "call Recipe.filled with the data set before the recipe is used"


@dataclass(frozen=True)
class Recipe:
    """All settings of a training.

    Attributes:
        name: Name of the recipe, including overridden fields.
        epochs: Number of epochs.
        lr: Learning rate before the first of `steps`.
        steps: Fractions of the training after which the learning rate is divided by 10.
        momentum: Momentum of SGD.
        weight_decay: Weight decay of torch.optim.SGD, on every parameter (for λ see lambda_decay).
        batch_size: Number of images in a batch.
        padding: Pixels added on each side before the random crop; None takes the data set's.
        padding_mode: "zeros" or "reflect".
        mean: Per-channel mean of the normalisation, in [0, 1] pixels; None takes the data set's.
        std: Per-channel standard deviation of the normalisation; None takes the data set's.
        stored: Parameter that represents λ: "lambda", or "keep" for 1 - λ.
        lambda_decay: Whether weight decay is applied to that parameter.
        lambda_init: Interval of the initial act(λ); None takes the architecture's.
        warmup_epochs: Number of epochs of linear warm-up of the learning rate.
        precision: "float32"; "tf32" for convolutions and matrix products on CUDA; or "bf16" for autocast of
            the forward pass, with the loss, the parameters and BatchNorm's statistics in float32.
        deviations: Overridden fields: (value in the original recipe, value used) by field.

    Raises:
        UserError: if a value is out of its range.
    """

    name: str
    epochs: int
    lr: float = 0.1
    steps: tuple[float, ...] = (0.5, 0.75)
    momentum: float = 0.9
    weight_decay: float = 1e-4
    batch_size: int = 128
    padding: int | None = None
    padding_mode: str = "zeros"
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    stored: str = "lambda"
    lambda_decay: bool = True
    lambda_init: tuple[float, float] | None = None
    warmup_epochs: int = 0
    precision: str = "float32"
    deviations: dict[str, tuple] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, (is_valid, what) in _ALLOWED.items():
            value = getattr(self, name)
            if not is_valid(value):
                raise UserError(f"{name} must be {what}, not {_shown(value)}")

    def model_args(self) -> dict[str, Any]:
        """Return the arguments of the architecture that the recipe changes from their defaults."""
        given = {"lambda_init": self.lambda_init, "stored": self.stored}
        usual = {"lambda_init": None, "stored": "lambda"}
        return {name: value for name, value in given.items() if value != usual[name]}

    @property
    def normalisation(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """Mean and std per channel, in [0, 1] pixels.

        Raises:
            ValueError: if one is None because `filled` was not called.
        """
        if self.mean is None or self.std is None:
            raise ValueError(_NOT_FILLED)
        return self.mean, self.std

    @property
    def crop_padding(self) -> int:
        """Pixels added on each side before the random crop.

        Raises:
            ValueError: if it is None because `filled` was not called.
        """
        if self.padding is None:
            raise ValueError(_NOT_FILLED)
        return self.padding

    def filled(self, kind: DatasetType) -> Recipe:
        """Return the recipe with padding, mean and std of the data set in place of None.

        Args:
            kind: Type of the data set that is trained on.

        Raises:
            UserError: if mean or std has another number of channels than the data set.
        """
        usual = {"padding": kind.crop_padding, "mean": kind.mean, "std": kind.std}
        missing: dict[str, Any] = {name: v for name, v in usual.items() if getattr(self, name) is None}
        chosen = replace(self, **missing)
        for name in ("mean", "std"):
            if len(getattr(chosen, name)) != kind.shape[0]:
                raise UserError(f"{name} must have {kind.shape[0]} values for {kind.name}")
        return chosen


def _number(low: float, high: float = LARGEST, open_low: bool = False) -> Callable[[Any], bool]:
    """Return a test for numbers in [low, high), or in (low, high) if `open_low`."""

    def is_valid(value: object) -> bool:
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return low <= value < high and not (open_low and value == low)

    return is_valid


def _pixel(value: Any) -> bool:
    return _number(0)(value) and value <= 1


def _whole(low: int) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value < LARGEST


def _tuple_of(is_valid: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, tuple) and all(map(is_valid, value))


def _rising(value: Any) -> bool:
    return _tuple_of(_number(0, 1, open_low=True))(value) and list(value) == sorted(set(value))


def _interval(value: Any) -> bool:
    return _tuple_of(_number(0))(value) and len(value) == 2 and value[0] <= value[1]


# field -> (test of its values, description of valid values)
_ALLOWED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "name": (lambda value: bool(re.fullmatch(r"[a-z0-9_]+", value)), "only a-z, 0-9 and _"),
    "epochs": (_whole(1), "a whole number of at least 1"),
    "lr": (_number(0, open_low=True), "a number above 0"),
    "steps": (_rising, "increasing fractions of the epochs between 0 and 1, such as 0.5,0.75"),
    "momentum": (_number(0, 1), "a number in [0, 1)"),
    "weight_decay": (_number(0), "a number of at least 0"),
    "batch_size": (_whole(1), "a whole number of at least 1"),
    "padding": (or_null(_whole(0)), "a whole number of at least 0"),
    "padding_mode": (lambda value: value in ("zeros", "reflect"), "zeros or reflect"),
    "mean": (or_null(_tuple_of(_pixel)), "a number from 0 to 1 for each channel, since pixels are in [0, 1]"),
    "std": (or_null(_tuple_of(_number(0, open_low=True))), "a number above 0 for each channel"),
    "stored": (lambda value: value in ("lambda", "keep"), "lambda or keep"),
    "lambda_decay": (lambda value: isinstance(value, bool), "true or false"),
    "lambda_init": (or_null(_interval), "an interval such as 0.2,0.25, not below 0"),
    "warmup_epochs": (_whole(0), "a whole number of at least 0"),
    "precision": (lambda value: value in ("float32", "tf32", "bf16"), "float32, tf32 or bf16"),
}
FIELDS = tuple(f.name for f in fields(Recipe) if f.name not in ("name", "deviations"))
_TUPLES = ("steps", "mean", "std", "lambda_init")


def names() -> list[str]:
    """Return the names of the built-in recipes."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def load(name: str, architecture: str, dataset: str) -> Recipe:
    """Load a built-in recipe or a TOML file for one architecture and data set, and fill it.

    Args:
        name: Name of a built-in recipe, or a path that ends in .toml.
        architecture: timm name that is matched against the globs of ``[[where]]`` tables.
        dataset: Name of a registered data set, matched in the same way.

    Raises:
        UserError: if there is no such recipe or data set, or the file is not a valid recipe.
    """
    kind = DATASETS[dataset]
    own = name.endswith(".toml")
    if own and Path(name).stem in names():
        raise UserError(f"{name}: {Path(name).stem} is the name of a built-in recipe; rename yours")
    try:
        values = _values(Path(name) if own else _shipped(name), architecture, dataset)
        if "epochs" not in values:
            raise UserError("a recipe must set epochs")
        return Recipe(Path(name).stem, **values).filled(kind)
    except UserError as error:
        raise UserError(f"{name}: {error}") if own else error from None


def _shipped(name: str) -> Path:
    if name not in names():
        raise unknown("recipe", name, names())
    return FOLDER / f"{name}.toml"


def _values(path: Path, architecture: str, dataset: str) -> dict[str, Any]:
    """Return the fields that a file sets for an architecture and a data set."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"cannot read it: {error}") from error
    base, rules = table.pop("extends", ""), table.pop("where", [])
    values = _values(_shipped(str(base)), architecture, dataset) if base else {}
    values |= _checked_fields(table)
    if not isinstance(rules, list) or not all(isinstance(rule, dict) for rule in rules):
        raise UserError("where must be written as tables [[where]]")
    for rule in rules:
        globs = [str(rule.pop(key, "*")) for key in ("architecture", "dataset")]
        found = _checked_fields(rule)
        if all(map(fnmatchcase, (architecture, dataset), globs)):
            values |= found
    return values


def _checked_fields(table: dict[str, Any]) -> dict[str, Any]:
    for name in table:
        if name not in FIELDS:
            raise unknown("recipe field", name, FIELDS)
    return {name: _as_tuple(name, value) for name, value in table.items()}


def _as_tuple(name: str, value: Any) -> Any:
    if name not in _TUPLES or value is None:
        return value
    return tuple(value) if isinstance(value, list | tuple) else (value,)


def settings(texts: Iterable[str]) -> dict[str, Any]:
    """Parse overrides such as ``lr=0.05,steps=0.5,0.75``; values are numbers, words, true, false or none.

    Raises:
        UserError: if a field is unknown or given twice, or a text has another form.
    """
    found: dict[str, Any] = {}
    # Split only at commas before a field name; others are part of a value.
    for part in (part for text in texts for part in re.split(r",(?=\s*[a-z_]+\s*=)", text)):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals:
            raise UserError(f"cannot read {part!r}: expected field=value, for example lr=0.05")
        if name in found:
            raise UserError(f"{name} is given twice")
        found |= _checked_fields({name: _value(value)})
    return found


_WORDS = {"true": True, "on": True, "false": False, "off": False, "none": None, "": ()}


def _value(text: str) -> Any:
    if text in _WORDS:
        return _WORDS[text]
    try:
        numbers = [int(part) if re.fullmatch(r"\s*\d+\s*", part) else float(part) for part in text.split(",")]
    except ValueError:
        return text
    return numbers if len(numbers) > 1 else numbers[0]


def overridden(recipe: Recipe, changes: dict[str, Any]) -> Recipe:
    """Return a recipe with changed fields, which are added to its name and its `deviations`.

    Raises:
        UserError: if a value is out of its range.
    """
    new = replace(recipe, **changes)  # checks the values
    pairs = {name: (getattr(recipe, name), getattr(new, name)) for name in FIELDS}
    deviations = {name: (named, used) for name, (named, used) in pairs.items() if named != used}
    name = "_".join([recipe.name, *(_in_name(name, used) for name, (_, used) in deviations.items())])
    return replace(new, name=name, deviations=deviations)


def _in_name(name: str, value: Any) -> str:
    if name == "epochs":
        return f"{value}epochs"
    if name == "precision":
        return value
    parts = value if isinstance(value, tuple) else (value,)
    text = "_".join(_shown(part) for part in parts) or "none"
    return f"{name}_{text.replace('.', 'p').replace('-', 'm').replace('+', '')}"


def _shown(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(_shown, value))
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        return str(value).removesuffix(".0")  # lr=1 and lr=1.0 are the same
    return "none" if value is None else str(value)


def changed(recipe: Recipe, recorded: dict) -> dict[str, tuple]:
    """Return the fields in which a recipe differs from a recorded one, as field -> (recorded, current) value.

    Args:
        recipe: The recipe. Fields that are None are not compared, as the data set or the architecture sets
            them.
        recorded: The recipe in a train.json. Fields that it lacks are not compared; version 0.1 recorded
            fewer.
    """
    pairs = {}
    for name in FIELDS:
        used, then = getattr(recipe, name), recorded.get(name)
        then = tuple(then) if isinstance(then, list) else then
        if name in recorded and used not in (None, then):
            pairs[name] = (then, used)
    return pairs


def describe(deviations: dict[str, tuple]) -> str:
    """Format `deviations` of a recipe for a message: ``lr 0.05 instead of 0.1, ...``."""
    return ", ".join(
        f"{name} {_shown(used)} instead of {_shown(named)}" for name, (named, used) in deviations.items()
    )

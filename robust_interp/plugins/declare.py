"""Decorators for authors of plug-ins.

A plug-in is a decorated function: an attack, a corruption or a data set. Models are registered with timm's
``register_model``. Installed packages list their plug-ins in the entry-point groups
``robust_interp.attacks``, ``.corruptions``, ``.datasets`` and ``.models``. A file is loaded by ``--plugin
FILE.py`` or by `load`, which registers everything that it declares. The decorators alone register nothing.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from robust_interp.attacks import ATTACKS, AttackType
from robust_interp.attacks.table import NORM_AT_END, NORMS, is_torchattacks_class
from robust_interp.core.errors import UserError
from robust_interp.core.json_values import is_count
from robust_interp.core.memory import is_out_of_memory
from robust_interp.core.parameters import RESERVED, check_default, plain
from robust_interp.core.registry import Registry, cause, first_line
from robust_interp.core.specs import OfEps
from robust_interp.core.texts import quoted
from robust_interp.corruptions.names import MEANS
from robust_interp.corruptions.table import CORRUPTIONS, Corrupt
from robust_interp.data import DATASETS, DatasetType
from robust_interp.results.column_names import parse
from robust_interp.results.columns import ENTRY_COLUMNS, SOURCE_COLUMNS, STRONG, TAIL_COLUMNS, WORST
from robust_interp.store.cells import attack_column

T = TypeVar("T")

Declared = list[tuple[Registry, str, Any]]
_declared: ContextVar[Declared | None] = ContextVar("declared", default=None)


def attack(
    *, random: bool = False, norm: str = "Linf", gradient: bool = True, alone: bool = False, classes: int = 2
) -> Callable[[Callable], AttackType]:
    """Declare ``function(model, images, labels, *, eps, ...) -> adversarial images`` as an attack.

    `model` maps (N, C, H, W) pixels in [0, 1] to logits, in eval mode with frozen parameters; `eps` is a
    radius in [0, 1] pixels. The function's other keyword arguments are the parameters of the attack. Their
    default values are numbers of at least 0, True or False, words, or fractions of eps such as
    ``OfEps(1 / 4)``. ``steps`` is a whole number, ``alpha`` a distance, and ``norm`` is Linf or L2, in which
    eps then is. The names in `RESERVED` have another meaning. `robust-interp ls attacks` shows the first
    line of the docstring. The runner checks that the result is in [0, 1], within eps and finite, and it
    checks the gradients that the attack gets. An attack that uses gradients and passes copies of the batch
    to the model, as with ``repeat`` or ``torch.cat``, is run on one image at a time.

    Args:
        random: Whether it draws random numbers. It must draw them from the global generators of torch, NumPy
            or Python; inside the attack, they depend only on the attack seed and each image's id. If it draws
            with anything but torch's uniform and normal functions in a shape (N, ., ., .), it is run on
            one image at a time.
        norm: Norm of its radius: Linf, L2, L1 or L0.
        gradient: Whether it uses gradients; an image without a gradient then never counts as robust.
        alone: Whether it must run on one image at a time.
        classes: Smallest number of classes for which its loss is defined.

    Returns:
        The decorator. It replaces the function by an AttackType, which the runner calls with the model and
        the parameters.

    Raises:
        UserError: by the decorator: if it does not decorate a function, if one of `attack`'s arguments is
            not possible, if the function does not take eps as a keyword argument, if the name or the default
            value of another keyword argument is not possible, or if the name of the attack would make column
            names ambiguous or is that of a class of torchattacks.
    """
    random, gradient, alone, classes = map(plain, (random, gradient, alone, classes))

    def declare(function: Callable) -> AttackType:
        _check_function("attack", function)
        named = f"attack {function.__name__!r}"
        if norm not in NORMS:
            raise UserError(f"{named}: norm must be {', '.join(NORMS)}, not {norm!r}")
        for name, flag in {"random": random, "gradient": gradient, "alone": alone}.items():
            _check(isinstance(flag, bool), named, name, "True or False", flag)
        _check(is_count(classes) and classes > 1, named, "classes", "a whole number of at least 2", classes)

        def bound(model: Callable, **params: Any) -> Callable:
            return _named("attack", functools.partial(function, model, **params), function)

        bound.__name__ = function.__name__
        kind = AttackType(
            bound,
            _defaults(function),
            random=random,
            norm=norm,
            gradient=gradient,
            alone=alone,
            classes=classes,
            about=first_line(function),
        )
        _check_attack_name(function.__name__, kind)
        return _declare(ATTACKS, function.__name__, kind)

    return declare


def corruption(function: Corrupt) -> Corrupt:
    """Declare ``function(image, severity, rng) -> image`` as a corruption.

    `image` is a float64 copy (C, H, W) in [0, 1]; `severity` is 1 to 5; `rng` is the NumPy generator for all
    random draws, seeded by the seed, the corruption, the severity and the image's id. The result has the same
    shape. It is uint8, or floats that are then clipped to [0, 1] and truncated to uint8.

    Args:
        function: The corruption; its name is the name of the column.

    Returns:
        The same function with checks: it raises UserError for another shape, for values that are not finite
        or no numbers, and for any exception of the function, in one line.

    Raises:
        UserError: for anything but a function, or for a name that would make column names ambiguous.
    """
    _check_function("corruption", function)

    def checked(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
        corrupted = np.asarray(function(image, severity, rng))  # it may return anything
        if corrupted.shape != image.shape:
            raise UserError(
                f"corruption {function.__name__!r} returns shape {corrupted.shape} for {image.shape}"
            )
        if not np.isfinite(corrupted).all():
            raise UserError(f"corruption {function.__name__!r} returns values that are not finite")
        return corrupted

    entry: Corrupt = functools.wraps(function)(_named("corruption", checked, function))
    return _declare(CORRUPTIONS, function.__name__, entry)


def dataset(
    *,
    classes: int,
    shape: tuple[int, int, int],
    mean: tuple[float, ...],
    std: tuple[float, ...],
    eps_255: tuple[float, ...],
    attack_defaults: Mapping[str, float | int | OfEps] | None = None,
    default_n: int | None = 200,
    crop_padding: int = 0,
    flip: bool = False,
) -> Callable[[Callable], DatasetType]:
    """Declare ``function(split, root) -> images, labels`` as a data set.

    `split` is ``train`` or ``test`` and `root` the data folder. Images are (N, C, H, W), uint8 or floating
    point in [0, 1], in the same order at each call. Labels are class indices (N,) from 0.

    Args:
        classes: Number of classes.
        shape: (C, H, W) of an image.
        mean: Mean of the training pixels in [0, 1], per channel.
        std: Standard deviation of the training pixels in [0, 1], per channel.
        eps_255: Default Linf radii in units of 1/255.
        attack_defaults: Parameters of attacks that differ from the paper's for this data set.
        default_n: Default number of test images to measure; None measures all.
        crop_padding: Pixels of zero padding before the random crop in training.
        flip: Whether a mirrored image keeps its class.

    Returns:
        The decorator. It replaces the function by a DatasetType. What the function loads is checked when
        the data set is used.

    Raises:
        UserError: by the decorator: if it does not decorate a function, or if an argument is not possible.
    """

    def declare(function: Callable) -> DatasetType:
        _check_function("dataset", function)
        defaults = {} if attack_defaults is None else attack_defaults
        if isinstance(defaults, Mapping) and (attacks := [key for key in defaults if key in ATTACKS]):
            raise UserError(
                f"data set {function.__name__!r}: the keys of attack_defaults must be parameters, and "
                f"{attacks[0]!r} is an attack"
            )
        kind = DatasetType(
            name=function.__name__,
            load=_named("dataset", function, function),
            classes=classes,
            shape=shape,
            mean=mean,
            std=std,
            eps_255=eps_255,
            attack_defaults=defaults,
            default_n=default_n,
            crop_padding=crop_padding,
            flip=flip,
        )
        return _declare(DATASETS, function.__name__, kind)

    return declare


@contextmanager
def declarations() -> Iterator[Declared]:
    """Collect what the decorators declare inside the context: registry, name and entry of each."""
    declared: Declared = []
    token = _declared.set(declared)
    try:
        yield declared
    finally:
        _declared.reset(token)


def _declare(registry: Registry[T], name: str, entry: T) -> T:
    _check_columns(registry, name)
    declared = _declared.get()
    if declared is not None:
        declared.append((registry, name, entry))
    return entry


def _check_function(kind: str, function: object) -> None:
    if not inspect.isfunction(function):
        name = getattr(function, "__name__", type(function).__name__)
        raise UserError(f"{kind} {name!r} must be a function, defined with def")


def _check(is_valid: bool, named: str, parameter: str, expected: str, value: object) -> None:
    if not is_valid:
        raise UserError(f"{named}: {parameter} must be {expected}, not {quoted(value)}")


def _check_columns(registry: Registry, name: str) -> None:
    """Reject a name whose columns in tables, such as ``name_2``, could be confused with other columns."""
    beside = {other for of, other, _ in _declared.get() or () if of is not registry}  # in the same file
    own = ("clean", *MEANS, WORST, STRONG, *ENTRY_COLUMNS, *TAIL_COLUMNS, *SOURCE_COLUMNS)
    numbered = re.search(r"_(\d+|std)$", name)
    if registry.get_loaded(name) is not None:
        return  # taken, as `Registry.add` will say
    if registry is CORRUPTIONS and (name in (*own, *ATTACKS, *beside) or numbered):
        raise UserError(f"corruption {name!r}: its column names would be ambiguous: rename it")
    derived = name.startswith((f"{WORST}_", f"{STRONG}_"))
    if registry is ATTACKS and (name in (*own, *CORRUPTIONS, *beside) or derived):
        raise UserError(f"attack {name!r}: its column names would be ambiguous: rename it")


def _check_attack_name(name: str, kind: AttackType) -> None:
    """Reject a name that a class has, or whose columns could be taken for those of another attack or norm."""
    if is_torchattacks_class(name):
        raise UserError(f"attack {name!r}: torchattacks has a class of this name: rename it")
    if found := NORM_AT_END.search(name):
        raise UserError(
            f"attack {name!r}: its name must not end in {found[0]}, as columns in that norm do: rename it"
        )
    for norm in kind.norms:  # model2_8 of an Linf attack would be read as L2
        if (read := parse(attack_column(name, norm, 1), ()).norm) != norm:
            raise UserError(
                f"attack {name!r}: its columns would look like those of an attack in {read}, but its norm is "
                f"{norm}: rename it"
            )


def _defaults(function: Callable) -> dict:
    """Return the parameters of an attack besides eps, and their defaults, from its signature."""
    keywords = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    names = {parameter.name for parameter in keywords}
    if "eps" not in names:
        raise UserError(
            f"attack {function.__name__!r} must take eps as a keyword: (model, images, labels, *, eps)"
        )
    if taken := names.intersection(RESERVED):
        raise UserError(
            f"attack {function.__name__!r}: the keyword {min(taken)} has another meaning in robust-interp: "
            "rename it"
        )
    if bare := [p.name for p in keywords if p.name != "eps" and p.default is p.empty]:
        raise UserError(f"attack {function.__name__!r}: {bare[0]} needs a default value")
    defaults = {parameter.name: plain(parameter.default) for parameter in keywords if parameter.name != "eps"}
    for key, value in defaults.items():
        check_default(f"attack {function.__name__!r}", key, value)
    return defaults


def _named(kind: str, call: Callable, function: Callable) -> Callable:
    """Wrap `call` so that exceptions from the plug-in become a UserError of one line.

    A lack of memory in an attack is passed on, since its caller tries a smaller batch.
    """
    file = function.__code__.co_filename

    def named(*arguments: Any) -> Any:
        try:
            return call(*arguments)
        except UserError:
            raise
        except Exception as error:
            if kind == "attack" and is_out_of_memory(error):
                raise
            where = f" in {Path(file).name}"
            raise UserError(f"{kind} {function.__name__!r}{where}: {cause(error, file)}") from error

    return named

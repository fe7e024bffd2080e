"""Decorators for authors of plug-ins, and the loading of plug-in files.

A plug-in is a decorated function: an attack, a corruption or a data set. Models are registered with timm's
``register_model``. Installed packages list their plug-ins in the entry-point groups
``robust_interp.attacks``, ``.corruptions``, ``.datasets`` and ``.models``. A file is loaded by ``--plugin
FILE.py`` or by `load`, which registers everything that it declares. The decorators alone register nothing.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

import numpy as np

from robust_interp.attacks import ATTACKS, AttackType
from robust_interp.core.errors import UserError
from robust_interp.core.paths import resolved
from robust_interp.core.registry import Origin, Registry, cause, first_line, imported
from robust_interp.core.sources import LocalModules, code_hash, own_modules
from robust_interp.core.specs import OfEps
from robust_interp.corruptions.names import MEANS
from robust_interp.corruptions.table import CORRUPTIONS, Corrupt
from robust_interp.data import DATASETS, DatasetType
from robust_interp.results.columns import ENTRY_COLUMNS, SOURCE_COLUMNS, STRONG, TAIL_COLUMNS, WORST
from robust_interp.zoo import MODELS

__all__ = ["REGISTRIES", "OfEps", "attack", "corruption", "dataset", "load", "load_same", "loaded"]

REGISTRIES: dict[str, Registry] = {
    "models": MODELS,
    "attacks": ATTACKS,
    "corruptions": CORRUPTIONS,
    "datasets": DATASETS,
}

T = TypeVar("T")

_Declared = list[tuple[Registry, str, Any]]
_declared: ContextVar[_Declared | None] = ContextVar("declared", default=None)
_loaded: dict[Path, str] = {}
_running: dict[Path, bytes] = {}  # own modules of plug-ins that this process has imported, as they were then
_left: dict[Path, str] = {}  # files that were refused after they had registered a model with timm: its name


def attack(
    *, random: bool = False, norm: str = "Linf", gradient: bool = True, alone: bool = False, classes: int = 2
) -> Callable[[Callable], AttackType]:
    """Declare ``function(model, images, labels, *, eps, ...) -> adversarial images`` as an attack.

    `model` maps (N, C, H, W) pixels in [0, 1] to logits, in eval mode with frozen parameters; `eps` is a
    radius in [0, 1] pixels. The function's other keyword arguments are the parameters of the attack. Their
    default values are numbers, or fractions of eps such as ``OfEps(1 / 4)``. `robust-interp ls attacks`
    shows the first line of the docstring. The runner checks that the result is in [0, 1], within eps
    and finite, and it checks the gradients that the attack gets. An attack that uses gradients and passes
    copies of the batch to the model, as with ``repeat`` or ``torch.cat``, is run on one image at a time.

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
        UserError: by the decorator: if the function does not take eps as a keyword argument, if another
            keyword argument has no default value, or if the name would make column names ambiguous.
    """

    def declare(function: Callable) -> AttackType:
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
        The same function with checks: it raises UserError for another shape or for values that are not
        finite, and for any exception of the function, in one line.

    Raises:
        UserError: for a name that would make column names ambiguous.
    """
    call = _named("corruption", function, function)

    @functools.wraps(function)
    def checked(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
        corrupted = np.asarray(call(image, severity, rng))
        if corrupted.shape != image.shape:
            raise UserError(
                f"corruption {function.__name__!r} returns shape {corrupted.shape} for {image.shape}"
            )
        if not np.isfinite(corrupted).all():
            raise UserError(f"corruption {function.__name__!r} returns values that are not finite")
        return corrupted

    entry: Corrupt = checked
    return _declare(CORRUPTIONS, function.__name__, entry)


def dataset(
    *,
    classes: int,
    shape: tuple[int, int, int],
    mean: tuple[float, ...],
    std: tuple[float, ...],
    eps_255: tuple[float, ...],
    attack_defaults: Mapping[str, float | int | OfEps] | None = None,
    default_n: int = 200,
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
        default_n: Default number of test images to measure.
        crop_padding: Pixels of zero padding before the random crop in training.
        flip: Whether a mirrored image keeps its class.

    Returns:
        The decorator. It replaces the function by a DatasetType. What the function loads is checked when
        the data set is used.
    """

    def declare(function: Callable) -> DatasetType:
        kind = DatasetType(
            name=function.__name__,
            load=_named("dataset", function, function),
            classes=classes,
            shape=shape,
            mean=mean,
            std=std,
            eps_255=eps_255,
            attack_defaults=dict(attack_defaults or {}),
            default_n=default_n,
            crop_padding=crop_padding,
            flip=flip,
        )
        return _declare(DATASETS, function.__name__, kind)

    return declare


def load(path: str | Path) -> None:
    """Register everything that a plug-in file declares, and its timm models. Repeated calls have no effect.

    Raises:
        UserError: if the file cannot be read or run (with the faulty line), if it declares nothing or a name
            that exists already, if it or a module beside it that it imports has changed since it was
            loaded, or if it was refused before and had already registered a model.
    """
    path = resolved(Path(path))
    try:
        source = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read plug-in {path}: {error.strerror}") from error
    beside = LocalModules.of_file(path)
    sha256 = code_hash(path, source, beside)
    if path in _loaded:
        if _loaded[path] != sha256:
            raise UserError(f"plug-in {path} has changed since it was loaded: start a new process")
        return
    modules = own_modules(path, source, beside)
    _refuse_what_would_not_run(path, modules)
    origin = Origin(str(path), f"sha256:{sha256}")
    declared: _Declared = []
    token = _declared.set(declared)
    module = _module(path, f"robust_interp_plugin_{sha256[:16]}")
    try:
        imported(lambda: exec(compile(source, str(path), "exec"), vars(module)))
        declared += [(MODELS, name, function) for name, function in _timm_models(module)]
        _register(declared, origin)
    except Exception as error:
        _left.update((path, name) for name, _ in _timm_models(module))
        raise UserError(f"plug-in {path}: {cause(error, str(path))}") from error
    finally:
        _declared.reset(token)
        _remember(modules)
    if not declared:
        raise UserError(f"plug-in {path} does not declare an attack, corruption, data set or model")
    _loaded[path] = sha256


def loaded() -> dict[Path, str]:
    """Return the plug-in files that this process has loaded and that still exist, with their hashes."""
    return {path: sha256 for path, sha256 in _loaded.items() if path.is_file()}


def load_same(files: Mapping[Path, str]) -> None:
    """Load the plug-in files of another process.

    Args:
        files: Their paths and hashes, as `loaded` returned them there.

    Raises:
        UserError: as `load`, or if a file is not the one that the other process has loaded.
    """
    for path, sha256 in files.items():
        load(path)
        if _loaded[resolved(path)] != sha256:
            raise UserError(f"a worker finds another plug-in {path} than the run began with: start it again")


def _register(declared: _Declared, origin: Origin) -> None:
    """Register all entries; none of them if one cannot be, so that the file can be corrected and loaded."""
    for at, (registry, name, entry) in enumerate(declared):
        try:
            registry.add(name, entry, origin)
        except UserError:
            for other, added, _ in declared[:at]:
                other.remove(added)
            raise


def _refuse_what_would_not_run(path: Path, modules: Mapping[Path, bytes]) -> None:
    """Refuse a file of which other code would run than its hash says, or whose models timm would refuse."""
    if changed := [file for file, content in modules.items() if _running.get(file, content) != content]:
        raise UserError(
            f"plug-in {path} imports {changed[0]}, which has changed since this process has imported it: "
            "start a new process"
        )
    if name := _left.get(path):
        raise UserError(
            f"plug-in {path} was refused before, after it had registered model {name!r}, which timm does not "
            "take twice: start a new process"
        )


def _remember(modules: Mapping[Path, bytes]) -> None:
    """Remember the content of a plug-in's own modules that have been imported."""
    files = [getattr(module, "__dict__", {}).get("__file__") for module in list(sys.modules.values())]
    running = {Path(file).resolve() for file in files if file}
    for path in running & set(modules):
        _running.setdefault(path, modules[path])


def _module(path: Path, name: str) -> ModuleType:
    """Make the module of the file. It is in `sys.modules`, since timm looks it up there."""
    module = ModuleType(name)
    module.__file__ = str(path)
    sys.modules[name] = module
    return module


def _timm_models(module: ModuleType) -> list[tuple[str, Callable]]:
    if "timm" not in sys.modules:
        return []
    import timm

    own = [(n, f) for n, f in vars(module).items() if getattr(f, "__module__", None) == module.__name__]
    return [
        (name, function) for name, function in own if inspect.isfunction(function) and timm.is_model(name)
    ]


def _declare(registry: Registry[T], name: str, entry: T) -> T:
    _check_columns(registry, name)
    declared = _declared.get()
    if declared is not None:
        declared.append((registry, name, entry))
    return entry


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


def _defaults(function: Callable) -> dict:
    """Return the parameters of an attack besides eps, and their defaults, from its signature."""
    keywords = [p for p in inspect.signature(function).parameters.values() if p.kind is p.KEYWORD_ONLY]
    names = {parameter.name for parameter in keywords}
    if "eps" not in names:
        raise UserError(
            f"attack {function.__name__!r} must take eps as a keyword: (model, images, labels, *, eps)"
        )
    if bare := [p.name for p in keywords if p.name != "eps" and p.default is p.empty]:
        raise UserError(f"attack {function.__name__!r}: {bare[0]} needs a default value")
    return {parameter.name: parameter.default for parameter in keywords if parameter.name != "eps"}


def _named(kind: str, call: Callable, function: Callable) -> Callable:
    """Wrap `call` so that exceptions from the plug-in become a UserError of one line."""
    file = function.__code__.co_filename

    def named(*arguments: Any) -> Any:
        try:
            return call(*arguments)
        except UserError:
            raise
        except Exception as error:
            where = f" in {Path(file).name}"
            raise UserError(f"{kind} {function.__name__!r}{where}: {cause(error, file)}") from error

    return named

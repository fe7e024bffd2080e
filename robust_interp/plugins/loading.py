"""Load plug-in files: register all that they declare, once per process."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

from robust_interp.attacks import ATTACKS
from robust_interp.core.errors import UserError
from robust_interp.core.paths import resolved
from robust_interp.core.registry import Origin, Registry, cause, imported
from robust_interp.core.sources import LocalModules, code_hash, own_modules
from robust_interp.corruptions.table import CORRUPTIONS
from robust_interp.data import DATASETS
from robust_interp.plugins.declare import Declared, declarations
from robust_interp.zoo import MODELS

REGISTRIES: dict[str, Registry] = {
    "models": MODELS,
    "attacks": ATTACKS,
    "corruptions": CORRUPTIONS,
    "datasets": DATASETS,
}


@dataclass(frozen=True)
class _File:
    """A plug-in file as it is now.

    Attributes:
        path: Its path.
        source: Its content.
        modules: Content of its own modules that it imports.
        sha256: `code_hash` of both.
    """

    path: Path
    source: bytes
    modules: Mapping[Path, bytes]
    sha256: str

    @classmethod
    def read(cls, path: Path) -> _File:
        try:
            source = path.read_bytes()
        except OSError as error:
            raise UserError(f"cannot read plug-in {path}: {error.strerror}") from error
        beside = LocalModules.of_file(path)
        modules = own_modules(path, source, beside)
        return cls(path, source, modules, code_hash(source, modules, beside))


@dataclass(frozen=True)
class _Process:
    """What this process has run, so that no result is stored under the hash of code that did not run.

    Attributes:
        loaded: Hash of each file that has been loaded.
        running: Own modules of plug-ins that have been imported, as they were then.
        left: For each file that was refused after it had registered a model with timm, the model's name.
    """

    loaded: dict[Path, str] = field(default_factory=dict)
    running: dict[Path, bytes] = field(default_factory=dict)
    left: dict[Path, str] = field(default_factory=dict)

    def has_loaded(self, file: _File) -> bool:
        """Return whether the file has been loaded; raise if it has changed since then."""
        before = self.loaded.get(file.path, file.sha256)
        if before != file.sha256:
            raise UserError(f"plug-in {file.path} has changed since it was loaded: start a new process")
        return file.path in self.loaded

    def check_can_load(self, file: _File) -> None:
        """Refuse a file if other code would run than its hash says, or if timm would refuse its models."""
        for path, now in file.modules.items():
            if self.running.get(path, now) != now:
                raise UserError(
                    f"plug-in {file.path} imports {path}, which has changed since this process has imported "
                    "it: start a new process"
                )
        if name := self.left.get(file.path):
            raise UserError(
                f"plug-in {file.path} was refused before, after it had registered model {name!r}, which timm "
                "does not take twice: start a new process"
            )

    def remember_imports(self, file: _File) -> None:
        """Remember the content of those of the file's own modules that have been imported."""
        files = [getattr(module, "__dict__", {}).get("__file__") for module in list(sys.modules.values())]
        imported_files = {Path(path).resolve() for path in files if path}
        for path in imported_files & set(file.modules):
            self.running.setdefault(path, file.modules[path])


_PROCESS = _Process()


def load(path: str | Path) -> None:
    """Register everything that a plug-in file declares, and its timm models. Repeated calls have no effect.

    Raises:
        UserError: if the file cannot be read or run (with the faulty line), if it declares nothing or a name
            that exists already, if it or a module beside it that it imports has changed since it was
            loaded, or if it was refused before and had already registered a model.
    """
    file = _File.read(resolved(Path(path)))
    if _PROCESS.has_loaded(file):
        return
    _PROCESS.check_can_load(file)
    module = _module(file)
    try:
        with declarations() as declared:
            imported(lambda: exec(compile(file.source, str(file.path), "exec"), vars(module)))
        declared += [(MODELS, name, function) for name, function in _timm_models(module)]
        _register(declared, Origin(str(file.path), f"sha256:{file.sha256}"))
    except Exception as error:
        _PROCESS.left.update((file.path, name) for name, _ in _timm_models(module))
        raise UserError(f"plug-in {file.path}: {cause(error, str(file.path))}{_hint(file, error)}") from error
    finally:
        _PROCESS.remember_imports(file)
    if not declared:
        raise UserError(f"plug-in {file.path} does not declare an attack, corruption, data set or model")
    _PROCESS.loaded[file.path] = file.sha256


def loaded() -> dict[Path, str]:
    """Return the plug-in files that this process has loaded and that still exist, with their hashes."""
    return {path: sha256 for path, sha256 in _PROCESS.loaded.items() if path.is_file()}


def load_same(files: Mapping[Path, str]) -> None:
    """Load the plug-in files of another process.

    Args:
        files: Their paths and hashes, as `loaded` returned them there.

    Raises:
        UserError: as `load`, or if a file is not the one that the other process has loaded.
    """
    for path, sha256 in files.items():
        load(path)
        if _PROCESS.loaded[resolved(path)] != sha256:
            raise UserError(f"a worker finds another plug-in {path} than the run began with: start it again")


def _register(declared: Declared, origin: Origin) -> None:
    """Register all entries; none of them if one cannot be, so that the file can be corrected and loaded."""
    for at, (registry, name, entry) in enumerate(declared):
        try:
            registry.add(name, entry, origin)
        except UserError:
            for other, added, _ in declared[:at]:
                other.remove(added)
            raise


def _hint(file: _File, error: Exception) -> str:
    """Return how to import a module that lies beside the plug-in, if that is what failed."""
    if not isinstance(error, ModuleNotFoundError) or not error.name or "." in error.name:
        return ""  # of a name with a dot, the first part was found
    folder = file.path.parent
    beside = folder / error.name
    is_beside = beside.is_dir() or beside.with_name(f"{beside.name}.py").is_file()
    return f"; it lies beside the plug-in: add {folder} to PYTHONPATH" if is_beside else ""


def _module(file: _File) -> ModuleType:
    """Make the module of the file. It is in `sys.modules`, since timm looks it up there."""
    module = ModuleType(f"robust_interp_plugin_{file.sha256[:16]}")
    module.__file__ = str(file.path)
    sys.modules[module.__name__] = module
    return module


def _timm_models(module: ModuleType) -> list[tuple[str, Callable]]:
    if "timm" not in sys.modules:
        return []
    import timm

    own = [(n, f) for n, f in vars(module).items() if getattr(f, "__module__", None) == module.__name__]
    return [
        (name, function) for name, function in own if inspect.isfunction(function) and timm.is_model(name)
    ]

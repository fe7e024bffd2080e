"""Run a function as soon as another package is imported."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def when_imported(package: str, run: Callable[[], None]) -> None:
    """Call `run` once: now if `package` is imported already, otherwise right after its import.

    The importing statement raises what `run` raises.

    Args:
        package: Name of a top-level package.
        run: The function; it may import the package.
    """
    if package in sys.modules:
        run()
    else:
        sys.meta_path.insert(0, _Finder(package, run))


class _Finder(MetaPathFinder):
    """Finds the package as the other finders do, and calls `run` after its code has run."""

    def __init__(self, package: str, run: Callable[[], None]) -> None:
        self.package = package
        self.run = run

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != self.package:
            return None
        later = sys.meta_path[sys.meta_path.index(self) + 1 :]
        found = (finder.find_spec(name, path, target) for finder in later)
        spec = next((spec for spec in found if spec), None)
        if spec and spec.loader:
            self._extend(spec.loader)
        return spec

    def _extend(self, loader: Any) -> None:
        """Let the loader call `run`. An instance attribute leaves the rest of its interface as it is."""
        execute = loader.exec_module

        def execute_and_run(module: ModuleType) -> None:
            execute(module)
            if module.__name__ == self.package and self in sys.meta_path:  # not again when it is reloaded
                sys.meta_path.remove(self)
                self.run()

        loader.exec_module = execute_and_run

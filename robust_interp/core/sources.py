"""Hash the code of a plug-in: its file, and all its own modules that it imports, directly or indirectly."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path

INSTALLED = {"site-packages", "dist-packages"}  # folders shared by unrelated packages


@dataclass(frozen=True)
class LocalModules:
    """Location of a plug-in's own modules.

    Attributes:
        folder: Folder of the plug-in; all modules below it belong to the plug-in.
        root: Folder that absolute imports start from.
    """

    folder: Path
    root: Path

    @classmethod
    def of_file(cls, file: Path, module: str = "") -> LocalModules:
        """Return the location for a plug-in: the folder of a file, or the package of an installed module.

        Args:
            file: File of the plug-in.
            module: Name of the installed module, such as ``package.module``; empty for a plug-in file.
        """
        file = file.resolve()
        depth = module.count(".") + (file.name == "__init__.py")
        package = file.parents[depth - 1] if depth else file.parent
        return cls(package, package.parent if depth else package)


def code_hash(source: bytes, modules: Mapping[Path, bytes], beside: LocalModules) -> str:
    """Return the SHA-256 of a plug-in's source and of all its own modules that it imports.

    Args:
        source: Content of the plug-in's file.
        modules: Result of `own_modules`.
        beside: Location of its own modules.

    Returns:
        Hexadecimal digits. For a plug-in without own modules it is the hash of `source`.
    """
    sha = hashlib.sha256(source)
    for path, content in sorted(modules.items()):
        name = path.relative_to(beside.folder).as_posix().encode()
        sha.update(b"\0%b\0%d\0%b" % (name, len(content), content))
    return sha.hexdigest()


def own_modules(file: Path, source: bytes, beside: LocalModules) -> Mapping[Path, bytes]:
    """Return the plug-in's own modules that it imports, directly or indirectly, with their content.

    Nothing is imported, and the result does not depend on what the process has imported.

    Args:
        file: File of the plug-in.
        source: Content of this file.
        beside: Location of its own modules.
    """
    file = file.resolve()
    found = {file: source}
    todo = [file]
    while todo:
        importing = todo.pop()
        for path in _imports_of(importing, found[importing], beside):
            if path not in found and _is_beside(path, beside):
                found[path] = path.read_bytes()
                todo.append(path)
    del found[file]
    return found


def _imports_of(file: Path, source: bytes, beside: LocalModules) -> Iterator[Path]:
    """Yield the files that the imports of one module may refer to, including imports inside functions."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # importing the module reports it with a better message
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(alias.name, beside.root)
        elif isinstance(node, ast.ImportFrom):
            base = [node.module] if node.module else []
            root = file.parents[node.level - 1] if 0 < node.level <= len(file.parents) else beside.root
            if node.level:
                yield root / "__init__.py"  # what is imported may be a name in it
            for alias in node.names:
                yield from _files(".".join([*base, alias.name]), root, absolute=not node.level)


def _files(name: str, root: Path, absolute: bool = True) -> Iterator[Path]:
    """Yield the possible files of a module and its parent packages: below `root`, and where Python looks."""
    first, *others = name.split(".")
    yield from _below(root, [first, *others])
    spec = _spec(first) if absolute else None
    if spec and spec.origin:
        yield Path(spec.origin).resolve()
    for folder in (spec and spec.submodule_search_locations) or ():
        yield from _below(Path(folder).resolve(), others)


def _below(root: Path, parts: Sequence[str]) -> Iterator[Path]:
    for count in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:count])
        yield from (place.with_name(f"{place.name}.py"), place / "__init__.py")


def _spec(name: str) -> ModuleSpec | None:
    """Find a top-level module or package as Python does; None if it is missing or a standard one."""
    if name in sys.stdlib_module_names:
        return None
    try:
        found = (finder.find_spec(name, None) for finder in sys.meta_path)
        return next((spec for spec in found if spec), None)
    except Exception:  # finders of other packages may raise anything; the import does it again
        return None


def _is_beside(path: Path, beside: LocalModules) -> bool:
    own = Path(__file__).resolve().parents[1]  # this package, which is identified by its version
    if not path.is_relative_to(beside.folder) or path.is_relative_to(own) or path.suffix != ".py":
        return False
    below = path.relative_to(beside.folder).parts
    return beside.folder.name not in INSTALLED and not INSTALLED & set(below) and path.is_file()

"""What the code of a plug-in is: its file, and every module beside it that it imports, directly or not."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

INSTALLED = {"site-packages", "dist-packages"}  # folders where everything lies beside everything


@dataclass(frozen=True)
class Beside:
    """Where a plug-in's own modules lie.

    Attributes:
        folder: Whatever is imported from below it belongs to the plug-in.
        root: Where the names of imports that are not relative start.
    """

    folder: Path
    root: Path

    @classmethod
    def of_file(cls, file: Path, module: str = "") -> Beside:
        """That of a file: its folder; of a module in a package, such as ``package.module``: the package.

        Args:
            file: Of the plug-in.
            module: Its name among the installed modules; none is that of a file which is no module.
        """
        file = file.resolve()
        depth = module.count(".") + (file.name == "__init__.py")
        package = file.parents[depth - 1] if depth else file.parent
        return cls(package, package.parent if depth else package)


def code_hash(file: Path, source: bytes, beside: Beside) -> str:
    """SHA-256 of a plug-in's source, and of the sources of all modules beside it that it imports.

    Args:
        file: Of the plug-in.
        source: What it holds.
        beside: Where its own modules lie.

    Returns:
        In hexadecimal digits; of a plug-in that imports nothing from beside itself, that of its source alone.
    """
    sha = hashlib.sha256(source)
    for path, content in sorted(_imported(file.resolve(), source, beside).items()):
        name = path.relative_to(beside.folder).as_posix().encode()
        sha.update(b"\0%b\0%d\0%b" % (name, len(content), content))
    return sha.hexdigest()


def _imported(file: Path, source: bytes, beside: Beside) -> dict[Path, bytes]:
    """The modules beside a plug-in that it imports, directly or through one another, and what they hold."""
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


def _imports_of(file: Path, source: bytes, beside: Beside) -> Iterator[Path]:
    """The files that the imports of one module may mean, those inside its functions among them."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # which an import of it says better
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield from _files(alias.name, beside.root)
        elif isinstance(node, ast.ImportFrom):
            base = [node.module] if node.module else []
            root = file.parents[node.level - 1] if 0 < node.level <= len(file.parents) else beside.root
            for alias in node.names:
                yield from _files(".".join([*base, alias.name]), root, loaded=not node.level)


def _files(name: str, root: Path, loaded: bool = True) -> Iterator[Path]:
    """The files of a module and of the packages that it is in, from `root` on, and where Python has them."""
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        place = root.joinpath(*parts[:count])
        yield from (place.with_name(f"{place.name}.py"), place / "__init__.py")
        module = sys.modules.get(".".join(parts[:count])) if loaded else None
        if file := getattr(module, "__file__", None):
            yield Path(file).resolve()


def _is_beside(path: Path, beside: Beside) -> bool:
    own = Path(__file__).resolve().parents[1]  # this package is known by its version
    if not path.is_relative_to(beside.folder) or path.is_relative_to(own) or path.suffix != ".py":
        return False
    below = path.relative_to(beside.folder).parts
    return beside.folder.name not in INSTALLED and not INSTALLED & set(below) and path.is_file()

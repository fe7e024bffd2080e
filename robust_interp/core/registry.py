"""Registries of named entries: built in, from installed plug-ins, or from plug-in files.

Imports no torch, so that listing names and reading a command line stay fast.
"""

from __future__ import annotations

import difflib
import fnmatch
import inspect
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from robust_interp.core.errors import UserError
from robust_interp.core.sources import LocalModules, code_hash, own_modules

T = TypeVar("T")

SHOWN = 30  # largest number of names in a message; timm has more than a thousand


@dataclass(frozen=True)
class Origin:
    """The source of an entry.

    Attributes:
        name: Name in listings and messages: a distribution with its version, or a file.
        code: Identifier of its code in the key of a cell; None for built-in entries, whose results must
            not change between versions.
    """

    name: str
    code: str | None = None


BUILT_IN = Origin("robust-interp")


class Registry(Generic[T]):
    """Named entries of one kind: built in, from installed plug-ins, or from plug-in files.

    The names of installed plug-ins are read from their entry points. Their code is only imported when one of
    these names is looked up. The error for an unknown name suggests similar ones.

    Args:
        kind: Name of the kind in messages, e.g. ``attack``.
        group: Entry-point group of installed plug-ins; None allows none.
        holds: Type of the entries, a class or ``Callable``.
        names: Regular expression for names, which must be usable on a command line and in folder names.
    """

    def __init__(
        self, kind: str, group: str | None = None, holds: Any = object, names: str = r"[a-zA-Z_]\w*"
    ) -> None:
        self.kind = kind
        self.group = group
        self.holds = holds
        self.names = names
        self._added: dict[str, tuple[T, Origin]] = {}
        self._installed: dict[str, tuple[T, Origin]] = {}  # entries of installed plug-ins that were imported
        self._broken: dict[str, str] = {}

    @cached_property
    def _points(self) -> dict[str, list[EntryPoint]]:
        points: dict[str, list[EntryPoint]] = {}
        for point in entry_points(group=self.group) if self.group else ():
            points.setdefault(point.name, []).append(point)
        return points

    def add(self, name: str, entry: T, origin: Origin = BUILT_IN) -> T:
        """Register an entry under a name, which must be free. Return the entry.

        Args:
            name: Name of the entry.
            entry: The entry.
            origin: Source of the entry; by default this package.

        Raises:
            UserError: if the name is invalid, or taken; the message then names both sources.
        """
        if not re.fullmatch(self.names, name):
            raise UserError(f"{self.kind} {name!r}: its name must match {self.names}")
        # For built-in entries the entry points are not read, since that would slow down every import.
        if name in self._added or (origin is not BUILT_IN and name in self):
            raise UserError(self._claimed(name, [*self.origins(name), origin]))
        self._added[name] = entry, origin
        return entry

    def remove(self, name: str) -> None:
        """Remove a name that was added.

        Raises:
            KeyError: if it was not added.
        """
        del self._added[name]

    @contextmanager
    def registered(self, name: str, entry: T) -> Iterator[None]:
        """Register an entry for the duration of the context."""
        self.add(name, entry)
        try:
            yield
        finally:
            self.remove(name)

    def __getitem__(self, name: str) -> T:
        """Return the entry of a name; an installed plug-in is imported.

        Raises:
            UserError: if the name is unknown or declared twice, or its plug-in is broken.
        """
        return self._found(name)[0]

    def __contains__(self, name: str) -> bool:
        return name in self._added or name in self._points

    def __iter__(self) -> Iterator[str]:
        return iter(dict.fromkeys([*self._added, *self._points]))

    def origins(self, name: str) -> list[Origin]:
        """Return all sources that declare a name, without importing them; more than one is a conflict."""
        added = [self._added[name][1]] if name in self._added else []
        return [*added, *map(_distribution, self._points.get(name, []))]

    def get_loaded(self, name: str) -> T | None:
        """Return the entry if it is available without an import; otherwise None."""
        found = self._added.get(name) or self._installed.get(name)
        return found[0] if found else None

    def problems(self, look_up: Callable[[str], object] | None = None) -> dict[str, str]:
        """Return the names that cannot be used, with the reasons.

        Args:
            look_up: Called with each name that is declared once; raises UserError if it cannot be used. None
                reports only names that are declared twice, and imports nothing.
        """
        found = {}
        for name in self:
            if len(claims := self.origins(name)) > 1:
                found[name] = self._claimed(name, claims)
            elif look_up:
                try:
                    look_up(name)
                except UserError as error:
                    found[name] = str(error)
        return found

    def code(self, name: str) -> dict[str, str]:
        """Return the code of a plug-in for the key of a cell, ``{"plugin": ...}``; {} for any other name.

        Raises:
            UserError: if the plug-in cannot be used.
        """
        code = self._found(name)[1].code if name in self else None
        return {"plugin": code} if code else {}

    def _claimed(self, name: str, claims: list[Origin]) -> str:
        return f"{self.kind} {name!r} is declared by {' and by '.join(origin.name for origin in claims)}"

    def _found(self, name: str) -> tuple[T, Origin]:
        if len(claims := self.origins(name)) > 1:
            raise UserError(self._claimed(name, claims))
        if name in self._added:
            return self._added[name]
        if name not in self._points:
            raise unknown(self.kind, name, self)
        if name not in self._installed:
            self._installed[name] = self._import(name)
        return self._installed[name]

    def _import(self, name: str) -> tuple[T, Origin]:
        [point] = self._points[name]
        origin = _distribution(point)
        if name not in self._broken:
            try:
                entry = self._checked(name, imported(point.load))
                return entry, replace(origin, code=f"{origin.name} {_source_hash(point)}")
            except Exception as error:
                self._broken[name] = cause(error)
        raise UserError(f"{self.kind} {name!r} of {origin.name} cannot be used: {self._broken[name]}")

    def _checked(self, name: str, entry: object) -> T:
        if not re.fullmatch(self.names, name):
            raise UserError(f"its name must match {self.names}")
        if not isinstance(entry, self.holds):
            raise UserError(
                f"its type is {type(entry).__name__}, not {self.holds.__name__}: is its decorator missing?"
            )
        return entry


def first_line(entry: object) -> str:
    """Return the first line of an entry's docstring without the full stop; empty without a docstring."""
    return (inspect.getdoc(entry) or "").partition("\n")[0].removesuffix(".")


def imported(load: Callable[[], Any]) -> Any:
    """Call `load`, which imports foreign code, and return its result. Replacing a timm model is an error.

    Raises:
        UserError: if the code tries to end the process.
        Exception: any other exception of the code.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="Overwriting .* in registry")
        try:
            return load()
        except SystemExit as error:
            stopped = UserError(f"it ends the process with status {error.code}")
            raise stopped.with_traceback(error.__traceback__) from error


def cause(error: BaseException, file: str | None = None) -> str:
    """Return an error as one line of text, with the line number if it was raised in `file`."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    if isinstance(error, SyntaxError) and error.filename == file:
        lines, error = [error.lineno], SyntaxError(error.msg)
    message = next((line for line in str(error).splitlines() if line.strip()), "")
    if isinstance(error, UserError):
        reason = message
    else:
        reason = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return f"line {lines[-1]}: {reason}" if lines else reason


def _distribution(point: EntryPoint) -> Origin:
    return Origin(f"{point.dist.name} {point.dist.version}" if point.dist else point.value)


def _source_hash(point: EntryPoint) -> str:
    """Return the hash of a module and its own imports, since an editable install keeps its version."""
    if not (name := getattr(sys.modules.get(point.module), "__file__", None)):
        return ""
    file = Path(name)
    source, beside = file.read_bytes(), LocalModules.of_file(file, point.module)
    return code_hash(source, own_modules(file, source, beside), beside)


def unknown(kind: str, name: str, known: Iterable[str]) -> UserError:
    """Make the error for an unknown name. It suggests similar names, or lists the known ones.

    Args:
        kind: Kind of the name, such as ``attack``.
        name: The unknown name.
        known: The known names.
    """
    known = sorted(known)
    near = similar(name, known)
    shown = [*known[:SHOWN], *(["..."] if len(known) > SHOWN else [])]
    hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(shown) or 'none'}"
    return UserError(f"unknown {kind} {name!r}; {hint}")


# of names of models; a copy of those in `classifiers.prefixes`, which imports torch
MODEL_PREFIXES = ("timm", "hf", "robustbench")


def unknown_module(text: str, module: str, prefixes: Iterable[str] = MODEL_PREFIXES) -> UserError:
    """Make the error for a model ``prefix:name`` or ``module:name`` whose first part is neither.

    Args:
        text: The name of the model.
        module: The unknown part.
        prefixes: The known prefixes.
    """
    hint = module_hint(text) or f"; known prefixes: {', '.join(prefixes)}"
    return UserError(
        f"{text}: unknown prefix or module {module}{hint}; a module is looked for in the working "
        "directory and among the installed ones"
    )


def module_hint(text: str) -> str:
    """Return how to name the function that ``folder/file.py:function`` means; empty for other names."""
    match = re.fullmatch(r"(.*)\.py:+(.+)", text)
    if not match:
        return ""
    path = Path(match[1])
    if path.is_absolute() and path.is_relative_to(Path.cwd()):
        path = path.relative_to(Path.cwd())
    known = not path.is_absolute() and ".." not in path.parts
    module = path.parts if known else path.parts[-1:]
    if module[0] in MODEL_PREFIXES or not all(re.fullmatch(r"[\w-]+", part) for part in module):
        return "; a function in a file is named MODULE:FUNCTION, and no module can have this file's name"
    named = f"{'.'.join(module)}:{match[2]}"
    return f"; a function in a Python file is named {named}{'' if known else ', in the folder of the file'}"


def similar(name: str, known: Iterable[str]) -> list[str]:
    """Return the names that differ only in case and punctuation; if there are none, up to 4 similar names."""
    known = sorted(known)
    return equal_ignoring_case(name, known) or difflib.get_close_matches(name, known, n=4, cutoff=0.5)


def nearest(name: str, options: Iterable[str]) -> str | None:
    """Return the most similar option: batch_size for ``batchsize``, n for ``n_examples``; None if none is."""
    meant = {option.replace("_", ""): option for option in options}
    words = re.split("[-_]", name.lower())
    close = difflib.get_close_matches("".join(words), meant, n=1, cutoff=0.6)
    if close and difflib.SequenceMatcher(None, "".join(words), close[0]).ratio() >= 0.8:
        return meant[close[0]]
    return meant.get(words[0]) or (meant[close[0]] if close else None)


def equal_ignoring_case(name: str, known: Iterable[str]) -> list[str]:
    """Return known names that differ from `name` only in case and punctuation: cifar10 for ``CIFAR-10``."""
    return [each for each in known if _bare(each) == _bare(name)]


def _bare(name: str) -> str:
    return re.sub(r"[\W_]", "", name).casefold()


def is_glob(pattern: str) -> bool:
    """Return whether a name is a pattern: whether it contains ``*``, ``?`` or ``[``."""
    return bool(re.search(r"[*?\[]", pattern))


def all_matching(kind: str, patterns: Iterable[str], names: Iterable[str]) -> list[str]:
    """Return the names that match any of the patterns, each once.

    Args:
        kind: Kind of the names in messages.
        patterns: Shell-style patterns or names.
        names: The known names.

    Raises:
        UserError: for a pattern that matches no name.
    """
    names, found = list(names), list[str]()
    for pattern in patterns:
        hits = [pattern] if pattern in names else matching(pattern, names)  # a name may look like a pattern
        if not hits:
            raise unknown(kind, pattern, names)
        found += hits
    return list(dict.fromkeys(found))


def matching(pattern: str, names: Iterable[str]) -> list[str]:
    """Return the names that match a shell-style pattern, case-sensitively, in their given order."""
    return [name for name in names if fnmatch.fnmatchcase(name, pattern)]

"""The tests mirror the package's rooms and reach no private name of it; nothing stands flat in its root."""

import ast
import subprocess
from pathlib import Path

import pytest
from support.prerequisites import needed

import robust_interp

PACKAGE = Path(robust_interp.__file__).parent
TESTS = Path(__file__).parent
FILES = sorted(TESTS.rglob("*.py"))
NO_ROOMS = {"docs", "support", "example_plugin"}  # of the pages, what tests share, a package to install
BY_NAME = {"setattr", "getattr", "delattr", "hasattr", "attrgetter", "methodcaller"}

TOP = {  # what lies at the top of the repository
    *(
        ".ci",
        ".gitattributes",
        ".gitignore",
        "CHANGELOG.md",
        "CITATION.cff",
        "CONTRIBUTING.md",
        "LICENSE",
        "README.md",
    ),
    *("benchmarks", "docs", "examples", "leaderboards", "mkdocs.yml", "model_zoo", "pyproject.toml"),
    *("robust_interp", "tests"),
}

LEFT: set[tuple[str, str]] = set()  # (file, private name) that a test still reaches


def is_private(name):
    return name.startswith("_") and not name.startswith("__")


def defined(tree):
    """The private names that a module defines: of functions, classes, variables and attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr


def own(tree):
    """The attributes of `self` within the classes of a test module, which are its own."""
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {
        node
        for kind in classes
        for node in ast.walk(kind)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def reached(tree):
    """The names that a module takes from others: as an attribute, by an import, or as a text."""
    for node in set(ast.walk(tree)) - own(tree):
        if isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names)
            yield from (node.module or "").split(".")
        elif isinstance(node, ast.Import):
            yield from (part for alias in node.names for part in alias.name.split("."))
        elif isinstance(node, ast.Call) and called(node) in BY_NAME:
            texts = (argument.value for argument in node.args if isinstance(argument, ast.Constant))
            yield from (part for text in texts if isinstance(text, str) for part in text.split("."))


def called(call):
    """What a call names last: ``setattr`` of ``monkeypatch.setattr(...)``."""
    return call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")


def tree(path):
    return ast.parse(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def private():
    modules = (tree(path) for path in sorted(PACKAGE.rglob("*.py")))
    return {name for module in modules for name in defined(module) if is_private(name)}


@pytest.mark.slow
def test_no_test_reaches_a_private_name_of_the_package(private):
    found = {
        (path.relative_to(TESTS).as_posix(), name)
        for path in FILES
        for name in reached(tree(path))
        if name in private
    }
    assert found == LEFT


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("module._name", {"_name"}),
        ("module._Job.fit", {"_Job"}),
        ("from robust_interp.module import _name", {"_name"}),
        ("import robust_interp._module", {"_module"}),
        ("monkeypatch.setattr(module, '_name', 1)", {"_name"}),
        ("monkeypatch.setattr('robust_interp.module._name', 1)", {"_name"}),
        ("getattr(module, '_name')", {"_name"}),
        ("class Net:\n def forward(self): return self._mine + self.net._name", {"_name"}),
        ("name.endswith('_std'), module.__name__", set()),
    ],
)
def test_private_names_are_found(source, names):
    assert set(filter(is_private, reached(ast.parse(source)))) == names


def test_no_test_goes_without_a_package_in_silence(monkeypatch):
    """What is missing in CI is a failure, by `support.prerequisites`; pytest's own way skips there too."""
    others = [path for path in FILES if path != Path(__file__)]
    assert [path.name for path in others if "importorskip" in path.read_text(encoding="utf-8")] == []
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no_such_package"):
        needed("no_such_package")
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match=r"No module named 'no_such_package'.*pip install"):
        needed("no_such_package")
    assert needed("ast") is ast


def test_tests_stand_in_the_rooms_of_the_package():
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    folders = {path.relative_to(TESTS).parts[0] for path in FILES if path.parent != TESTS}
    assert folders - NO_ROOMS <= rooms
    assert {path.name for path in FILES if path.parent == TESTS} == {"conftest.py", "test_layout.py"}


def test_every_room_has_tests():
    rooms = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert {path.parent.name for path in FILES if path.name.startswith("test_")} >= rooms


def test_nothing_but_what_python_needs_stands_in_the_packages_root():
    files = {path.name for path in PACKAGE.iterdir() if path.is_file()}
    assert files == {"__init__.py", "__main__.py", "py.typed"}


def test_nothing_else_lies_at_the_top_of_the_repository():
    """As what a script has left in the working directory, and `git add` has taken."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=TESTS.parent, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("this is no clone")
    assert {line.split("/")[0] for line in listed.stdout.splitlines()} == TOP

"""What runs as soon as another package is imported."""

import importlib
import importlib.resources
import importlib.util
import sys

import pytest

from robust_interp.core.import_hook import when_imported


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Name of a package that is not imported yet."""
    (tmp_path / "later").mkdir()
    (tmp_path / "later" / "__init__.py").write_text("VALUE = 1\n")
    (tmp_path / "later" / "part.py").write_text("")
    (tmp_path / "later" / "data.txt").write_text("text")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    yield "later"
    for name in ("later", "later.part"):
        sys.modules.pop(name, None)


def seen_by(package, seen):
    """A function that notes whether the package's code has run."""
    return lambda: seen.append(sys.modules[package].VALUE)


def test_it_runs_once_after_the_code_of_the_package(package):
    seen = []
    when_imported(package, seen_by(package, seen))
    assert seen == []
    module = importlib.import_module(package)
    assert seen == [1]
    importlib.import_module(f"{package}.part")
    importlib.reload(module)
    assert seen == [1]


def test_it_runs_at_once_if_the_package_is_imported(package):
    importlib.import_module(package)
    seen = []
    when_imported(package, seen_by(package, seen))
    assert seen == [1]


def test_several_run_in_any_number(package):
    first, second = [], []
    when_imported(package, seen_by(package, first))
    when_imported(package, seen_by(package, second))
    importlib.import_module(package)
    assert (first, second) == ([1], [1])


def test_looking_for_the_package_runs_nothing_and_does_not_spoil_it(package):
    seen = []
    when_imported(package, seen_by(package, seen))
    spec = importlib.util.find_spec(package)
    assert spec is not None
    assert spec.loader.get_source(package) == "VALUE = 1\n"
    assert seen == []
    importlib.import_module(package)
    assert seen == [1]


def test_files_of_the_package_are_read_as_ever(package):
    when_imported(package, lambda: None)
    module = importlib.import_module(package)
    assert importlib.resources.files(module).joinpath("data.txt").read_text() == "text"


def test_a_package_that_is_missing_or_broken_raises_its_own_error_and_may_come_later(package, tmp_path):
    seen = []
    when_imported(package, seen_by(package, seen))
    when_imported("no_such_package", lambda: seen.append("never"))
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        importlib.import_module("no_such_package")
    good = (tmp_path / "later" / "__init__.py").read_text()
    (tmp_path / "later" / "__init__.py").write_text("raise OSError('broken on purpose')\n")
    with pytest.raises(OSError, match="on purpose"):
        importlib.import_module(package)
    assert seen == []
    (tmp_path / "later" / "__init__.py").write_text(good)
    importlib.invalidate_caches()
    importlib.import_module(package)
    assert seen == [1]


def test_an_error_of_what_runs_is_raised_by_the_import(package):
    def fail():
        raise ValueError("on purpose")

    when_imported(package, fail)
    with pytest.raises(ValueError, match="on purpose"):
        importlib.import_module(package)

"""What a test needs beside the package: without it the test is skipped, and in CI it fails."""

import importlib
import os

import pytest


def missing(message):
    """End a test, or the collection of its module, that lacks something."""
    if os.environ.get("CI"):
        pytest.fail(message)
    pytest.skip(message, allow_module_level=True)


def needed(name):
    """The module of this name, of a package that the extra `test` installs."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing(f"{error}: pip install -e '.[test]'")

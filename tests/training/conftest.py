"""What the tests of the training share."""

from contextlib import contextmanager
from dataclasses import replace

import pytest

from robust_interp import data


@contextmanager
def third():
    """Of every split of a data set the first third: 449 of the 1347 digits to train on, 150 to test."""
    plain = data.load

    def load(*arguments, **options):
        split = plain(*arguments, **options)
        n = len(split) // 3
        return replace(split, images=split.images[:n], labels=split.labels[:n])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load", load)
        yield


@pytest.fixture(scope="module")
def a_third():
    """Networks are trained and tested on a third of the digits, in the whole module."""
    with third():
        yield


@pytest.fixture
def few_digits():
    """The same in one test."""
    with third():
        yield

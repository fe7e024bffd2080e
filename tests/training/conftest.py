"""What the tests of the training share."""

from dataclasses import replace

import pytest

from robust_interp import data


@pytest.fixture(scope="module")
def a_third():
    """Networks are trained on the first 449 of the 1347 digits, and tested on the first 150 of the 450."""
    plain = data.load

    def load(*arguments, **options):
        digits = plain(*arguments, **options)
        n = len(digits) // 3
        return replace(digits, images=digits.images[:n], labels=digits.labels[:n])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(data, "load", load)
        yield

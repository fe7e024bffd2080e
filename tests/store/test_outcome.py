"""Which images of an outcome count as correct."""

import numpy as np

from robust_interp.store import Outcome
from robust_interp.store.outcome import INHERITED, NOT_FINITE, ROUNDED_RIGHT, ROUNDED_WRONG, ZERO_GRADIENT


def outcome(predictions, flags):
    return Outcome(np.array(predictions), np.array(flags, np.uint8), None, 0.0, "cpu")


def test_the_flags_are_the_bits_of_stored_results():
    found = ZERO_GRADIENT, NOT_FINITE, INHERITED, ROUNDED_RIGHT, ROUNDED_WRONG
    assert found == (1, 2, 16, 32, 64)


def test_an_image_that_was_not_attacked_is_not_correct_rounded_or_not():
    """Bits: 1 a gradient of zero, 2 not finite, 32 and 64 right and wrong when rounded."""
    found = outcome([0, 1, 1, 0, 1, 1], [33, 32, 34, 64, 0, 35])
    assert found.correct_rounded.tolist() == [False, True, False, False, False, False]
    assert found.correct(np.array([0, 1, 1, 1, 1, 1])).tolist() == [False, True, False, False, True, False]

"""Radii as users write them."""

import math

import numpy as np
import pytest

from robust_interp.core.errors import UserError
from robust_interp.core.units import eps_in_pixels, read_eps


@pytest.mark.parametrize(
    ("text", "in_255"),
    [
        ("8", [8]),
        ("1,2,4", [1, 2, 4]),
        (" 1 , 2,", [1, 2]),
        ("0.5", [0.5]),
        ("0.05,1", [0.05, 1]),
        ("0.3/255", [0.3]),
        ("8/255", [8]),
        ("0.5/255", [0.5]),
        ("1/255, 16", [1, 16]),
        ("8 / 255,4/255.0", [8, 4]),
        ("1e1", [10]),
        ("255", [255]),
    ],
)
def test_radii_are_in_units_of_1_255_however_they_are_written(text, in_255):
    assert read_eps(text) == tuple(value / 255 for value in in_255)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0.03137", "0.03137 looks like [0, 1] pixels; eps is in units of 1/255: did you mean 8?"),
        ("0.03", "did you mean 7.65?"),
        ("0.01,0.05", "did you mean 2.55,12.8?"),
        ("0.3", "did you mean 76.5? If not, write 0.3/255"),
        ("0.1,0.3", "did you mean 25.5,76.5?"),
        ("8/255,0.0157", "did you mean 4?"),
        ("8/256", "8/256: a radius is a number in units of 1/255 or a fraction such as 8/255"),
        ("1/4", "1/4: a radius is a number in units of 1/255 or a fraction such as 8/255"),
        ("8/0", "8/0: a radius is"),
        ("0/255", "0/255: a radius of 0 is a control: name it in a spec, such as pgd(eps=0)"),
        ("256/255", "256/255: a radius is in units of 1/255, above 0 and at most 255"),
        ("-1", "-1: a radius is in units of 1/255, above 0"),
        ("nan", "nan: a radius is in units of 1/255"),
        ("inf", "inf: a radius is in units of 1/255"),
        ("", "give at least one radius"),
        (",", "give at least one radius"),
        ("abc", "'abc' is not a list of numbers such as 1,2,4 or 8/255"),
        ("1;2", "'1;2' is not a list of numbers"),
        ("1_0", "'1_0' is not a list of numbers"),
        ("\N{ARABIC-INDIC DIGIT TWO}", "is not a list of numbers"),
        ("-8/255", "'-8/255' is not a list of numbers"),
    ],
)
def test_what_is_no_radius_is_refused_with_what_was_meant(text, message):
    with pytest.raises(UserError) as refusal:
        read_eps(text)
    assert message in str(refusal.value)


def test_python_gives_numbers_in_pixels_or_the_same_texts():
    assert eps_in_pixels(8 / 255) == (8 / 255,)
    assert eps_in_pixels((np.float32(0.5), 1, "8/255", "1,2")) == (0.5, 1, 8 / 255, 1 / 255, 2 / 255)
    assert eps_in_pixels(np.array([0.25])) == (0.25,)
    assert eps_in_pixels(np.array(0.25)) == (0.25,)  # as torch.tensor(0.25)


@pytest.mark.parametrize(
    ("eps", "message"),
    [
        (8, "not 8: did you mean 8/255?"),
        ([1 / 255, 2.5], "not 2.5: did you mean 2.5/255?"),
        (0, "eps must be above 0 and at most 1 in [0, 1] pixels (such as 8/255), not 0"),
        (math.nan, "not nan"),
        (300, "not 300"),
        (True, "not True"),
        (None, "not None"),
        ((), "give at least one radius"),
        ("0.03137", "did you mean 8?"),
    ],
)
def test_a_number_above_1_is_taken_for_one_in_units_of_1_255(eps, message):
    with pytest.raises(UserError) as refusal:
        eps_in_pixels(eps)
    assert message in str(refusal.value)

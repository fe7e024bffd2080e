"""Which values a parameter of an attack can have by default."""

import numpy as np
import pytest

from robust_interp.core.errors import UserError
from robust_interp.core.parameters import check_default
from robust_interp.core.specs import OfEps


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("alpha", 2 / 255),
        ("alpha", OfEps(0.25)),
        ("norm", "L2"),
        ("steps", 1),
        ("decay", 0),
        ("decay", np.float64(0.5)),
        ("loss", "ce"),
        ("fast", False),
        ("share", OfEps(0.0)),
    ],
)
def test_a_possible_default_is_taken(key, value):
    check_default("attack 'a'", key, value)


@pytest.mark.parametrize(
    ("key", "value", "what"),
    [
        *(
            ("alpha", value, "a number above 0 or a fraction of eps")
            for value in (0, -1, OfEps(0.0), True, "x")
        ),
        *(("norm", value, "Linf or L2") for value in ("L7", "L1", 2)),
        *(
            ("steps", value, "a whole number of at least 1")
            for value in (0, 2.0, True, "x", OfEps(1.0), 2**63)
        ),
        *(("c", value, "a number of at least 0, True, False, a word") for value in (-1, None, (), 1j)),
        *(
            ("c", value, "a number of at least 0")
            for value in (float("nan"), float("inf"), 2**63, OfEps(-1.0))
        ),
    ],
)
def test_a_default_with_which_no_attack_can_be_run_is_refused(key, value, what):
    with pytest.raises(UserError, match=f"^attack 'a': the default value of {key} must be {what}"):
        check_default("attack 'a'", key, value)

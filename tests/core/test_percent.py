import re
from pathlib import Path

import pytest

import robust_interp
from robust_interp.core.percent import percent


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (58.15, "58.2"),  # the float below it, as read from a file
        (58.150000000000006, "58.2"),  # 0.5815 in percent, as computed
        (58.1475, "58.1"),  # not 58.2, which 58.15 would be
        (-4.946131, "-4.9"),
        (4.949747, "4.9"),
        (31.25, "31.2"),  # halves go to the even digit
        (100.0, "100.0"),
        (-0.8, "-0.8"),
    ],
)
def test_a_percentage_is_rounded_once(value, expected):
    assert percent(value) == expected


def test_a_difference_has_a_sign():
    assert [percent(value, signed=True) for value in (3.0, -27.04, 0.0)] == ["+3.0", "-27.0", "+0.0"]


def test_no_other_format_of_percentages():
    """One with .1f may differ from `percent` by 0.1."""
    package = Path(robust_interp.__file__).parent
    told = [
        f"{path.name}: {line.strip()}"
        for path in package.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if re.search(r":\.1f\} (%|points)|\"\+?\.1f\"", line)
    ]
    assert told == []

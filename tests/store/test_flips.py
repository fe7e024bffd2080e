"""Single-bit flips of a store: no wrong number comes out, and nothing is missing without a word."""

import runpy
from pathlib import Path

import pytest

FLIPS = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "store_flips.py"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flips", "of_log", "steps"),
    [(100, False, ["leaderboard"]), (10, False, ["bench", "repair"]), (10, True, ["leaderboard"])],
)
def test_no_flipped_bit_makes_a_wrong_number(tmp_path, flips, of_log, steps):
    asked = FLIPS["plans"](models=["one"])
    counts, faults = FLIPS["measure"](tmp_path, asked, flips, 7, of_log, steps)
    assert faults == []
    assert sum(counts.values()) == flips * len(steps)
    assert sum(counts[step, "same"] for step in steps) < flips * len(steps)  # not all were harmless

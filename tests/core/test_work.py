"""Work tells how far it is, whatever shows it."""

import pytest

from robust_interp.core.work import part_of_progress, with_progress


def test_items_are_equal_parts_of_the_work_each_told_before_it_is_done():
    reported = []
    for item in with_progress(
        [1, 2, 4, 8], lambda *how_far: reported.append(how_far), lambda item: f"item {item}"
    ):
        reported.append(item)
    assert reported == [
        (0.0, "item 1"), 1, (0.25, "item 2"), 2, (0.5, "item 4"), 4, (0.75, "item 8"), 8, (1.0, "item 8")
    ]  # fmt: skip
    assert list(with_progress([], lambda *how_far: pytest.fail("nothing is no work"))) == []


def test_a_part_tells_the_share_of_the_whole():
    reported = []
    progress = part_of_progress(lambda *how_far: reported.append(how_far), 0.5, 0.75, "model 3")
    progress(0.0, "")
    progress(0.5, "layer 2")
    assert reported == [(0.5, "model 3"), (0.625, "model 3 layer 2")]

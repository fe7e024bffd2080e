from robust_interp.core.blocks import places


def test_places_by_hand():
    found = places(["stages.0.1", "stages.1.0", "stages.2.17"])  # depth 110: 18 blocks a stage
    assert found == {
        "stages.0.1": {"stage": 0, "depth": 2, "blocks": 54},
        "stages.1.0": {"stage": 1, "depth": 19, "blocks": 54},
        "stages.2.17": {"stage": 2, "depth": 54, "blocks": 54},
    }


def test_no_blocks_have_no_places():
    assert places([]) == {}

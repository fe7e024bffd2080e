"""The texts of a leaderboard for readers."""

import pandas as pd

from robust_interp.results import brief


def test_every_percentage_is_rounded_as_its_two_decimals():
    """The float of 0.35 lies below it, that of 58.15 as well; both end in 5 in a file."""
    board = pd.DataFrame({"agreement": [58.15], "improvement": [0.35], "params_m": [0.35]})
    texts = brief.texts_of(board)
    assert texts == {"agreement": ["58.2"], "improvement": ["+0.4"], "params_m": ["0.350"]}


def test_a_loss_has_a_sign_as_well():
    assert brief.text_of("improvement", -1.25) == "-1.2"

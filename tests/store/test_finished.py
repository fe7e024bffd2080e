"""What is stored of a cell: of it, or of the same one that measures every sample."""

from dataclasses import replace

import pytest
from support.hand_made import LABELS, attack, card, measured

from robust_interp.store import Store
from robust_interp.store.finished import require_outcome


@pytest.fixture
def store(tmp_path):
    with Store(tmp_path) as store:
        yield store


def test_a_cell_is_as_finished_as_the_whole_one(store):
    (whole,) = measured(store, [(card(), attack("pgd", 2), "1101")]).cells
    skipping = replace(whole, skips=("clean",))
    for cell in (whole, skipping):
        right = require_outcome(cell, store, 4).predictions == LABELS[:4]
        assert right.tolist() == [True, True, False, True]


def test_a_cell_without_all_samples_is_refused(store):
    (cell,) = measured(store, [(card(), attack("pgd", 2), "1101")]).cells
    with pytest.raises(LookupError, match="net seed 0 pgd_2 has fewer than 5 finished images"):
        require_outcome(cell, store, 5)

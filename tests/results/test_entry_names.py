"""What lines of the leaderboard are called where a name must tell them apart."""

from support.hand_made import card, corruption, run

from robust_interp.results.entries import entries_of
from robust_interp.results.entry_names import entry_names
from robust_interp.results.folders import runs_in
from robust_interp.store import Store
from robust_interp.store.cells import CLEAN


def test_entries_are_told_apart_by_what_differs(tmp_path):
    with Store(tmp_path) as store:
        cards = [card("a", recipe="long"), card("a", recipe="quick"), card("b")]
        run(store, [(one, CLEAN, "1") for one in cards])
        run(store, [(cards[2], CLEAN, "11")])
    runs, _ = runs_in([tmp_path])
    names = entry_names(entries_of(runs))
    assert sorted(names) == ["a @long n=1", "a @quick n=1", "b n=1", "b n=2"]


def test_settings_of_the_measurement_that_differ_between_models_are_in_the_names(tmp_path):
    """Numbers of a and b are not those of one measurement, although each model has one entry only."""
    with Store(tmp_path) as store:
        run(store, [(card("a"), CLEAN, "11"), (card("a"), corruption("fog", 1), "10")])
        run(store, [(card("b"), CLEAN, "11"), (card("b"), corruption("fog", 1, "released"), "10")], "worst")
        run(store, [(card("c"), CLEAN, "11")])
    runs, _ = runs_in([tmp_path])
    names = entry_names(entries_of(runs))
    assert names == ["a final (generated@0)", "b worst (released)", "c final"]

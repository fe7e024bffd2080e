"""Parameters of attacks in results.csv, and in the report beside it."""

from dataclasses import replace

import pandas as pd
import pytest
from support.hand_made import attack, card, first, run

from robust_interp.report import provenance
from robust_interp.results.scores import results_frame, scores
from robust_interp.store import Store

L2 = replace(attack("pgd_l2", 0, seed=0, steps=10, alpha=0.1), norm="L2", column="pgd_l2_0.5")
ATTACKS = {
    "fgsm": (attack("fgsm", 2), {"norm": "Linf", "eps_255": 2, "steps": 1, "restarts": 1}, {}),
    "pgd": (
        attack("pgd", 2, alpha=1 / 255, steps=20, restarts=3, target="next"),
        {"norm": "Linf", "eps_255": 2, "alpha_255": 1, "steps": 20, "restarts": 3},
        {"target": "next"},
    ),
    "square": (
        attack("square", 2, norm="Linf", queries=100),
        {"norm": "Linf", "eps_255": 2, "restarts": 1},
        {"queries": 100},
    ),
    "autoattack": (attack("autoattack", 2, norm="Linf"), {"norm": "Linf", "eps_255": 2, "restarts": 1}, {}),
    "pgd_l2": (
        replace(L2, params=L2.params | {"eps": 0.5}),
        {"norm": "L2", "steps": 10, "restarts": 1},
        {"eps": 0.5, "alpha": 0.1},
    ),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_parameters_are_in_the_same_columns_in_results_csv_and_in_the_report(tmp_path, name):
    made, columns, others = ATTACKS[name]
    with Store(tmp_path) as store:
        scored = scores(run(store, [(card("a"), made, first(9))]), store)
    (stored,) = results_frame(scored).to_dict("records")
    (told,) = provenance.attacks(scored).to_dict("records")
    for column in ("norm", "eps_255", "alpha_255", "steps", "restarts"):
        for row in (stored, told):
            expected = columns.get(column)
            assert pd.isna(row[column]) if expected is None else row[column] == pytest.approx(expected)
    listed = [f"{key}={value}" for key, value in others.items()]
    assert stored["perturbation"] == (f"{name}({','.join(listed)})" if listed else name)
    assert told["other parameters"] == (", ".join(listed) or None)

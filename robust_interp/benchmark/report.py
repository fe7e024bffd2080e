"""The result of a run: its tables and warnings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import pandas as pd

from robust_interp import attacks, data
from robust_interp.benchmark.cost import cost
from robust_interp.benchmark.runner import Runner
from robust_interp.classifiers.target import Target
from robust_interp.results import leaderboard
from robust_interp.results.scores import results_frame, scores
from robust_interp.results.warnings import findings
from robust_interp.store import INHERITED, Store
from robust_interp.store.cells import Plan
from robust_interp.store.finished import require_outcome


@dataclass(frozen=True)
class Report:
    """The result of a run.

    Attributes:
        results: The table results.csv.
        leaderboard: The table leaderboard.csv.
        warnings: Lines that the user should act on.
        notes: Informational lines.
    """

    results: pd.DataFrame
    leaderboard: pd.DataFrame
    warnings: list[str]
    notes: list[str] = field(default_factory=list)


def compose(plan: Plan, targets: Sequence[Target], runner: Runner, store: Store) -> Report:
    """Score the stored cells of a plan.

    Args:
        plan: The plan; cells that follow others must be finished.
        targets: The targets of the cells; their remarks become warnings.
        runner: The runner that measured them; its notes become warnings.
        store: The store with the results.

    Raises:
        LookupError: if a cell that follows others is not finished.
    """
    scored = scores(plan, store)
    return Report(
        results_frame(scored),
        leaderboard.entries_frame(scored),
        [
            *(note for target in targets for note in target.remarks),
            *dict.fromkeys(line for view in runner.views for line in view.corruptor.notes),
            *runner.dataset.notes,
            *_order_warnings(plan, runner.dataset),
            *_view_warnings(plan),
            *runner.notes,
            *_attack_warnings(plan),
            *findings(scored),
        ],
        [*_coverage(plan, runner.dataset), *_saved(plan, store)],
    )


def _view_warnings(plan: Plan) -> list[str]:
    """Return a warning if the models use different preprocessing."""
    ways = list(dict.fromkeys(str(cell.metadata.get("preprocessing", "as they are")) for cell in plan.cells))
    if len(ways) < 2:
        return []
    return [
        f"the models take the images in {len(ways)} ways ({'; '.join(ways)}): each is ranked among those of "
        "the same; --resize and --crop set one for all"
    ]


def _coverage(plan: Plan, dataset: data.Dataset) -> list[str]:
    """Return a note on the number of classes covered by a random or stratified subset."""
    subset = dataset.metadata.get("subset")
    return [f"subset {subset}: {dataset.coverage(plan.n)}"] if subset else []


def _order_warnings(plan: Plan, dataset: data.Dataset) -> list[str]:
    found = (dataset.order_warning(n) for n in dict.fromkeys(part.n for part in plan.parts))
    return [line for line in found if line]


def _attack_warnings(plan: Plan) -> list[str]:
    attacked = {cell.perturbation.column: cell.perturbation for cell in plan.cells}
    found = (
        warning(perturbation)
        for perturbation in attacked.values()
        for warning in (attacks.step_warning, attacks.pace_warning)
    )
    return [line for line in found if line]


def _saved(plan: Plan, store: Store) -> list[str]:
    """Return a note on the share of attack work that was skipped because images were already broken."""
    work = saved = 0
    for cell in (cell for cell in plan.cells if cell.skips):
        outcome = require_outcome(cell, store, plan.n)
        work += cost(cell) * len(outcome)
        saved += cost(cell) * int((outcome.flags & INHERITED).astype(bool).sum())
    if not work:
        return []
    return [
        f"protocol worst: {saved / work:.0%} of the attack steps were skipped (these images were already "
        "broken)"
    ]

"""What a cell costs, and the order that saves most of it."""

from __future__ import annotations

from dataclasses import replace

from robust_interp import attacks
from robust_interp.classifiers.ensemble import GRAPHS_KEPT
from robust_interp.store.cells import Cell


def cost(cell: Cell) -> int:
    """Forward passes of one member's worth of work that a sample of this cell takes."""
    members, view = cell.classifier.members, cell.classifier.attacked_as
    attacked = 1 if view.startswith("member:") else members
    again = attacks.gradients(cell.perturbation) * max(0, attacked - GRAPHS_KEPT)
    return (attacks.passes(cell.perturbation) - 1) * attacked + again + members  # these to predict


def cheap_first(cells: list[Cell]) -> list[Cell]:
    """Protocol ``worst``: the cheap attacks first, each following those before it in the same ball.

    Only what still stands is attacked: what counts is whether a sample survives all of them.
    """
    (clean,) = (cell for cell in cells if cell.perturbation.kind == "clean")
    before: dict[tuple | None, tuple[str, ...]] = {}
    ordered = []
    for cell in sorted(cells, key=_place_by_cost):
        if cell.perturbation.kind == "attack":
            ball = cell.perturbation.ball
            skips = (clean.key, *before.get(ball, ()))
            if ball:
                before[ball] = (*before.get(ball, ()), cell.key)
            cell = replace(cell, skips=skips)
        ordered.append(cell)
    return ordered


def _place_by_cost(cell: Cell) -> tuple[bool, int]:
    """By passes and not by `cost`, so that single models and ensembles have one order."""
    return cell.perturbation.kind == "attack", attacks.passes(cell.perturbation)

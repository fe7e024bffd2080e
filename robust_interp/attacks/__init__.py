"""Attacks: named by specs, set up for a classifier, with checks of every result.

`table` holds the attacks, `parse` reads attack specs, and `properties` gives the requirements and the cost
of an attack before it runs. These three do not import torch. `adapters` sets an attack up, `random_draws`
keys its random numbers by image, and `runner` runs it and checks the result. These three are imported when
an attack is built.
"""

from __future__ import annotations

from typing import Any

from robust_interp.attacks.parse import check_eps, parse_attacks
from robust_interp.attacks.properties import (
    check_fits,
    environment,
    gradients,
    is_alone,
    is_by_order,
    is_judged,
    may_stop_early,
    pace_warning,
    passes,
    passes_alone,
    step_warning,
)
from robust_interp.attacks.table import ATTACKS, AttackType, check_name, torchattacks_classes

__all__ = [
    "ATTACKS",
    "AttackRunner",
    "AttackType",
    "check_eps",
    "check_fits",
    "check_name",
    "environment",
    "gradients",
    "is_alone",
    "is_by_order",
    "is_judged",
    "may_stop_early",
    "pace_warning",
    "parse_attacks",
    "passes",
    "passes_alone",
    "step_warning",
    "torchattacks_classes",
]


def __getattr__(name: str) -> Any:
    if name != "AttackRunner":  # it needs torch
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from robust_interp.attacks.runner import AttackRunner

    return AttackRunner

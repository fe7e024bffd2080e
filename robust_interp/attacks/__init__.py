"""Attacks: named in spec strings, set up for a victim, and checked in everything they return.

`specs` holds the table of attacks and reads what users write, without torch. `engines` sets an attack up,
`draws` keys its random numbers by sample, and `bound` runs and guards it; these three are imported when an
attack is built.
"""

from __future__ import annotations

import importlib

from robust_interp.attacks.specs import (
    ATTACKS,
    AttackType,
    check_eps,
    check_fits,
    environment,
    gradients,
    is_alone,
    may_stop_early,
    pace_warning,
    passes,
    resolve,
    step_warning,
)

__all__ = [
    "ATTACKS",
    "AttackType",
    "Attacked",
    "BoundAttack",
    "check_eps",
    "check_fits",
    "environment",
    "gradients",
    "is_alone",
    "may_stop_early",
    "pace_warning",
    "passes",
    "resolve",
    "start_noise",
    "step_warning",
]
_WITH_TORCH = {"Attacked": "bound", "BoundAttack": "bound", "start_noise": "draws"}


def __getattr__(name: str):
    if name not in _WITH_TORCH:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WITH_TORCH[name]}"), name)

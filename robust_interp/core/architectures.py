"""The names of our networks. Imports no torch, so that a misspelt name is refused quickly."""

from __future__ import annotations

import re

DEPTHS = (14, 20, 32, 44, 56, 110, 164)
_FEW = (14, 20, 110)

# family -> depths
RESNETS = {
    "preact_resnet{}": DEPTHS,
    "plain_net{}": _FEW,
    "in_resnet{}": DEPTHS,
    "in_resnet{}_sig": _FEW,
    "in_resnet{}_gating": _FEW,
    "in_resnet{}_gating_sig": _FEW,
    "lambda_in_resnet{}": DEPTHS,
    "exp_in_resnet{}": _FEW,
    "exp_lambda_in_resnet{}": _FEW,
}

# layout -> arguments of the network
RESNEXT_LAYOUTS = {
    "20_4x16d": {"depth": 20, "cardinality": 4, "base_width": 16},
    "29_8x64d": {"depth": 29, "cardinality": 8, "base_width": 64},
}
RESNEXTS = ("resnext{}", "in_resnext{}", "lambda_in_resnext{}")

OURS = (
    *(family.format(depth) for family, depths in RESNETS.items() for depth in depths),
    *(family.format(layout) for layout in RESNEXT_LAYOUTS for family in RESNEXTS),
)
_WITHOUT_LAMBDA = ("preact_resnet", "plain_net", "resnext")  # beginnings of names


def has_lambda(model: str) -> bool:
    """Return whether the name of a model says that it has a λ.

    Args:
        model: A name in tables: that of an architecture, which a tag or arguments may follow; for an ensemble
            those of its members, joined by ``+``.
    """
    architectures = {re.split("[.(@]", member)[0] for member in model.split("+")}
    return any(name in OURS and not name.startswith(_WITHOUT_LAMBDA) for name in architectures)

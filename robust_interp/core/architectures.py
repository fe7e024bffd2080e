"""The names of our networks. Imports no torch, so that a misspelt name is refused quickly."""

from __future__ import annotations

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

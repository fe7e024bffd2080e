"""The settings of an audit, each declared once. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, field

from robust_interp.audit.thresholds import Thresholds
from robust_interp.benchmark import forms
from robust_interp.benchmark.request import declared


@dataclass(frozen=True)
class Options:
    """Settings of an audit, besides the images and radii of the request.

    Attributes:
        attack: Spec of the audited attack, without eps; it must have alpha and steps.
        strongest: Spec of a stronger attack, such as ``apgd_ce`` or ``autoattack``; ``none`` omits the check.
        black_box: Spec of a black-box attack; ``none`` omits the check.
        source: Name of the model that attacks are transferred from; None uses another model of the run.
        thresholds: Limits of the checks.
    """

    attack: str = field(default="pgd", metadata=declared(forms.SPEC, "attack to check"))
    strongest: str = field(
        default="apgd_ce",
        metadata=declared(
            forms.SPEC, "stronger attack that must not break many more images: apgd_ce, autoattack, none"
        ),
    )
    black_box: str = field(
        default="square",
        metadata=declared(forms.SPEC, "attack that uses only logits and must not be stronger: square, none"),
    )
    source: str | None = field(
        default=None,
        metadata=declared(forms.MODEL, "model to transfer attacks from", usual="another model of the run"),
    )
    thresholds: Thresholds = field(default_factory=Thresholds)

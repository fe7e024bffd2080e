"""What one measurement is: plain descriptions that need neither torch nor the data.

A cell's key is a hash of everything that its result depends on, and of nothing else, so that a result
is computed once and found again whatever the command that asks for it.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property

from robust_interp.core.json_values import (
    Form,
    check,
    is_count,
    is_number,
    is_object,
    is_text,
    list_of,
    loads,
    object_of,
    or_null,
)

FLOAT32 = "float32"


@dataclass(frozen=True)
class Perturbation:
    """What is done to the images before they are classified.

    Attributes:
        kind: ``clean``, ``attack`` or ``corruption``.
        name: Registered name, e.g. ``pgd`` or ``shot_noise``.
        column: Name of its accuracy in tables, e.g. ``pgd_2``.
        params: Every parameter of the attack (eps and alpha in [0, 1] pixels) or the corruption's severity.
        source: Corruptions only: ``released``, or ``generated@<seed>``.
        seed: Random attacks only: the attack seed.
        norm: Attacks only: what eps and the change of an image are measured in. It follows from name and
            params, which the key holds.
        precision: Attacks only: what their gradients are computed in: ``float32``, ``tf32`` or ``bf16``. The
            key says it where it is not float32.
        rounded: Attacks only: whether the attacked images are also classified with whole pixel values. The
            key says it where they are.
    """

    kind: str
    name: str
    column: str
    params: dict[str, float | int | str | bool] = field(default_factory=dict)
    source: str | None = None
    seed: int | None = None
    norm: str = "Linf"
    precision: str = FLOAT32
    rounded: bool = False

    def number(self, name: str) -> float | None:
        """A parameter that is a number, or None where there is none of this name."""
        value = self.params.get(name)
        return value if isinstance(value, int | float) and not isinstance(value, bool) else None

    def integer(self, name: str) -> int:
        """A parameter that is a whole number, such as a severity; 1 where there is none of this name."""
        value = self.number(name)
        return 1 if value is None else int(value)

    @property
    def eps_255(self) -> float | None:
        """Linf radius in units of 1/255, or None where there is none."""
        eps = self.number("eps")
        return None if eps is None or self.norm != "Linf" else in_255(eps)

    @property
    def ball(self) -> tuple[str, float] | None:
        """Norm and radius of what an attack may do, Linf in units of 1/255; None where there is no radius."""
        eps = self.number("eps")
        if self.kind != "attack" or eps is None:
            return None
        return self.norm, eps if self.eps_255 is None else self.eps_255

    def describe(self) -> dict:
        """The part of a cell's key that this perturbation is (its column name is not)."""
        return {"kind": self.kind, "name": self.name, "params": dict(sorted(self.params.items()))} | {
            key: value
            for key, value, usual in (
                ("source", self.source, None),
                ("seed", self.seed, None),
                ("precision", self.precision, FLOAT32),
                ("rounded", self.rounded, False),
            )
            if value != usual
        }


CLEAN = Perturbation("clean", "clean", "clean")


@dataclass(frozen=True)
class ModelCard:
    """What a table says of a classifier, and the identity that its cells are keyed by.

    Attributes:
        identity: Architecture with its arguments, weights hash and normalisation; for an ensemble those of
            its members and how they are averaged.
        attacked_as: What attacks on an ensemble are made on, such as ``member:0``; empty if on all of it.
        recorded_clean: Clean accuracy in percent that the checkpoint claims, if it claims one.
        eot: Of a randomised classifier, over how many draws it is attacked and judged; 0 for any other.
    """

    model: str
    identity: dict
    recipe: str = ""
    lambda_init: str = ""
    train_seed: int | None = None
    seeds: tuple[int, ...] = ()
    members: int = 1
    params_m: float | None = None
    weights_sha256: str = ""
    recorded_clean: float | None = None
    attacked_as: str = ""
    eot: int = 0

    @property
    def label(self) -> str:
        """A short name for progress lines and warnings."""
        if self.members > 1:
            return f"{self.model} x{self.members}"
        return self.model if self.train_seed is None else f"{self.model} seed {self.train_seed}"


@dataclass(frozen=True)
class Cell:
    """One classifier, one dataset, one perturbation, and the versions that computed it.

    Attributes:
        told: What a row says of the images besides the dataset, where it is not the usual: ``preprocessing``,
            ``subset``, ``skipped``. The fingerprint covers all that the predictions depend on.
        skips: Protocol ``worst`` only: the keys of the whole cells, clean first, whose broken samples are not
            attacked again but inherited as broken.
    """

    classifier: ModelCard
    dataset: str
    fingerprint: str
    perturbation: Perturbation
    environment: dict[str, str]
    skips: tuple[str, ...] = ()
    told: dict[str, str | int] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """SHA-256 over everything the predictions depend on."""
        parts = {
            "victim": self.classifier.identity,
            "dataset": self.fingerprint,
            "perturbation": self.perturbation.describe(),
            "environment": self.environment,
        }
        # A set: what is broken by any of them does not depend on their order.
        parts |= {"skips": sorted(self.skips)} if self.skips else {}
        return digest(parts | ({"attacked_as": self.attacked_as} if self.attacked_as else {}))

    @cached_property
    def whole(self) -> Cell:
        """The same measurement of every sample."""
        return replace(self, skips=()) if self.skips else self

    @property
    def in_float32(self) -> Cell:
        """The same attack with gradients in float32, on the samples that this one does not skip."""
        return replace(self, perturbation=replace(self.perturbation, precision=FLOAT32))

    def has_own_number(self, protocol: str) -> bool:
        """Whether an accuracy can be told of it alone; `protocol` ``worst`` asks for clean besides."""
        return len(self.skips) <= (1 if protocol == "worst" else 0)

    @property
    def attacked_as(self) -> str:
        """What the attack was made on, where that is not the classifier itself."""
        return self.classifier.attacked_as if self.perturbation.kind == "attack" else ""

    def to_json(self) -> dict:
        """As JSON values, which `from_json` reads."""
        fields = asdict(self)
        if not self.told:
            del fields["told"]
        return {"victim": fields.pop("classifier")} | fields  # its name in files

    @classmethod
    def from_json(cls, fields: dict) -> Cell:
        """What `to_json` made, of this version or an older one; unknown fields are left out.

        Raises:
            UserError, LookupError, TypeError: if it is anything else.
        """
        check("a cell", fields, _CELL, {"skips": list_of(is_text)})
        check("a model", fields["victim"], *_CARD)
        check("a perturbation", fields["perturbation"], *_PERTURBATION)
        check("parameters", fields["perturbation"].get("params", {}), {}, dict.fromkeys(_WHOLE, is_count))
        card = ModelCard(**_known(ModelCard, fields["victim"]) | {"seeds": tuple(fields["victim"]["seeds"])})
        perturbation = Perturbation(**_known(Perturbation, fields["perturbation"]))
        parts = {"classifier": card, "perturbation": perturbation, "skips": tuple(fields.get("skips", ()))}
        return cls(**_known(cls, fields) | parts)


@dataclass(frozen=True)
class Plan:
    """What one run asks for: cells of one dataset, all measured on its first `n` samples.

    Attributes:
        strong: What it asks for besides, of samples of its own: the worst of stronger attacks.
    """

    dataset: str
    n: int
    protocol: str
    cells: tuple[Cell, ...]
    strong: Plan | None = None

    @property
    def parts(self) -> list[Plan]:
        """This plan and, if there is one, that of the stronger attacks."""
        return [self, self.strong] if self.strong else [self]

    def cells_of(self, classifier: ModelCard) -> list[Cell]:
        """Its own cells of a classifier, whose card is the same object."""
        return self._by_card.get(id(classifier), [])

    @cached_property
    def _by_card(self) -> dict[int, list[Cell]]:
        found: dict[int, list[Cell]] = {}
        for cell in self.cells:
            found.setdefault(id(cell.classifier), []).append(cell)
        return found

    @cached_property
    def key(self) -> str:
        """SHA-256 over all that it asks for."""
        described = [self.dataset, self.n, self.protocol, [cell.key for cell in self.cells]]
        return digest([*described, self.strong.key] if self.strong else described)

    def to_json(self) -> str:
        """As a JSON text, which `from_json` reads."""
        return json.dumps(self._fields())

    def _fields(self) -> dict:
        fields = {"dataset": self.dataset, "n": self.n, "protocol": self.protocol}
        strong = {"strong": self.strong._fields()} if self.strong else {}
        return fields | {"cells": [cell.to_json() for cell in self.cells]} | strong

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """What `to_json` made, of this version or an older one; unknown fields are left out.

        Whether it then still is the plan that it was, its key tells.

        Raises:
            ValueError, LookupError, TypeError, AttributeError: if it is anything else.
        """
        return cls._from_fields(loads(text))

    @classmethod
    def _from_fields(cls, fields: dict) -> Plan:
        check("a plan", fields, _PLAN)
        cells = tuple(Cell.from_json(cell) for cell in fields["cells"])
        strong = cls._from_fields(fields["strong"]) if "strong" in fields else None
        return cls(**_known(cls, fields) | {"cells": cells, "strong": strong})


# The forms of what is stored: what must be there, and what has a form where it is there.
_CARD: tuple[dict[str, Form], dict[str, Form]] = (
    {"model": is_text, "identity": is_object, "seeds": list_of(is_count)},
    {
        **dict.fromkeys(("recipe", "lambda_init", "weights_sha256", "attacked_as"), is_text),
        "train_seed": or_null(is_count),
        "members": is_count,
        **dict.fromkeys(("params_m", "recorded_clean"), or_null(is_number)),
    },
)
_PERTURBATION: tuple[dict[str, Form], dict[str, Form]] = (
    dict.fromkeys(("kind", "name", "column"), is_text),
    {
        "params": object_of(lambda value: isinstance(value, str | bool) or is_number(value)),
        "source": or_null(is_text),
        "seed": or_null(is_count),
        **dict.fromkeys(("norm", "precision"), is_text),
    },
)
_WHOLE = ("steps", "restarts", "severity")  # parameters with a column of whole numbers
_CELL: dict[str, Form] = {
    **dict.fromkeys(("victim", "perturbation"), is_object),
    **dict.fromkeys(("dataset", "fingerprint"), is_text),
    "environment": object_of(is_text),
}
_PLAN: dict[str, Form] = {
    "dataset": is_text,
    "protocol": lambda value: value in ("final", "worst"),
    "n": lambda value: is_count(value) and value > 0,
    "cells": list_of(is_object),
}


def _known(kind: type, values: dict) -> dict:
    """Those of the values that are fields of a dataclass."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in values.items() if name in names}


def digest(value: object) -> str:
    """SHA-256 of a JSON value, the same whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def attack_column(name: str, norm: str, radius: float | None, changed: str = "") -> str:
    """The column of an attack: ``pgd_2``, ``apgd_ce_l2_0.5``, ``pgd_l2(steps=40)_0.5``.

    Args:
        name: Of the attack, or of what is the worst of several.
        norm: Written behind the name unless that ends with it, or it is Linf.
        radius: Linf in units of 1/255, any other in [0, 1] pixels; None where there is none.
        changed: Parameters that are not the usual ones, in brackets.
    """
    suffix = norm.lower()
    label = name if norm == "Linf" or name.lower().endswith(suffix) else f"{name}_{suffix}"
    return f"{label}{changed}" + ("" if radius is None else f"_{radius:.10g}")


def in_255(pixels: float) -> float:
    """A distance in [0, 1] pixels in units of 1/255, free of the division's rounding (2/255 gives 2.0)."""
    return float(f"{pixels * 255:.10g}")

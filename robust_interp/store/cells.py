"""The description of a measurement: plain data classes that need neither torch nor the images.

The key of a cell is a hash of everything that its result depends on, and of nothing else. So a result is
computed once, and every command that needs it finds it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cached_property

from robust_interp.core.choices import PROTOCOLS
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
from robust_interp.core.numeric import is_real
from robust_interp.core.unique_names import told_apart

FLOAT32 = "float32"


@dataclass(frozen=True)
class Perturbation:
    """A change of the images before they are classified.

    Attributes:
        kind: ``clean``, ``attack`` or ``corruption``.
        name: Registered name, e.g. ``pgd`` or ``shot_noise``.
        column: Name of its accuracy in tables, e.g. ``pgd_2``.
        params: All parameters of the attack (eps and alpha in [0, 1] pixels) or the corruption's severity.
        source: Where the images come from: for a corruption ``released``, or ``generated@<seed>``; for an
            attack that is transferred ``transfer@`` and a hash of the attacked model.
        seed: Random attacks only: the attack seed.
        norm: Attacks only: norm of eps and of the change of an image. It is not part of the key, since name
            and params determine it.
        precision: Attacks only: precision of the gradients, ``float32``, ``tf32`` or ``bf16``. It is part of
            the key unless it is float32.
        rounded: Attacks only: whether the attacked images are also classified rounded to multiples of 1/255.
            It is part of the key if True.
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
        """Return a numeric parameter; None if there is no number of this name."""
        value = self.params.get(name)
        return value if is_real(value) else None

    def integer(self, name: str) -> int:
        """Return an integer parameter, such as a severity; 1 if there is no number of this name."""
        value = self.number(name)
        return 1 if value is None else int(value)

    @property
    def eps_255(self) -> float | None:
        """Linf radius in units of 1/255; None for other norms or without a radius."""
        eps = self.number("eps")
        return None if eps is None or self.norm != "Linf" else in_255(eps)

    @property
    def ball(self) -> tuple[str, float] | None:
        """Norm and radius of an attack, for Linf in units of 1/255; None without a radius."""
        eps = self.number("eps")
        if self.kind != "attack" or eps is None:
            return None
        return self.norm, eps if self.eps_255 is None else self.eps_255

    def describe(self) -> dict:
        """Return what a cell's key holds of this perturbation; the column name is not part of it."""
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

    def describe_images(self) -> dict:
        """Return what decides the perturbed images and the accuracy; `rounded` only adds another accuracy."""
        return replace(self, rounded=False).describe()


CLEAN = Perturbation("clean", "clean", "clean")


@dataclass(frozen=True)
class ModelCard:
    """The description of a classifier in tables, and its identity in the keys of cells.

    Attributes:
        model: Name of the architecture; for an ensemble the names of its members, joined by ``+``.
        identity: Architecture with its arguments, weights hash and normalisation; for an ensemble those of
            its members and the kind of average.
        recipe: Name of the training recipe.
        lambda_init: Interval in which act(λ) started, such as ``0.20-0.25``.
        train_seed: Seed of the training; None if unknown, or for an ensemble.
        seeds: The train seed, or those of the members of an ensemble.
        members: Number of members; 1 for a single model.
        params_m: Parameters in millions, for an ensemble the sum over its members; None if unknown.
        weights_sha256: Hash of the weights.
        recorded_clean: Clean accuracy in percent according to the checkpoint; None if it records none.
        attacked_as: Part of an ensemble that attacks are computed on, such as ``member:0``; empty for all.
        eot: Number of draws of a randomised classifier, in attacks and predictions; 0 for any other.
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


def labels(cards: Sequence[ModelCard]) -> list[str]:
    """Return the label of each card, followed by ``@RECIPE`` if other recipes of these cards share it."""
    tags = [f"@{card.recipe}" if card.recipe else "" for card in cards]
    return told_apart([card.label for card in cards], tags)


@dataclass(frozen=True)
class Cell:
    """One measurement: one classifier, one data set, one perturbation, and the versions that computed it.

    Attributes:
        classifier: The model card.
        dataset: Name of the data set.
        fingerprint: Hash of the data set: of everything that the predictions depend on.
        perturbation: The perturbation.
        environment: Names and versions of the software that the result depends on.
        skips: Protocol ``worst`` only: keys of other cells, clean first. The images that they broke are not
            attacked again, but inherited as broken.
        metadata: More columns on the images, if they differ from the usual: ``preprocessing``, ``subset``,
            ``skipped``.
    """

    classifier: ModelCard
    dataset: str
    fingerprint: str
    perturbation: Perturbation
    environment: dict[str, str]
    skips: tuple[str, ...] = ()
    metadata: dict[str, str | int] = field(default_factory=dict)

    @cached_property
    def key(self) -> str:
        """SHA-256 of everything that the predictions depend on."""
        parts = {
            "victim": self.classifier.identity,
            "dataset": self.fingerprint,
            "perturbation": self.perturbation.describe(),
            "environment": self.environment,
        }
        # Sorted: which images are broken by any of them does not depend on the order.
        parts |= {"skips": sorted(self.skips)} if self.skips else {}
        return digest(parts | ({"attacked_as": self.attacked_as} if self.attacked_as else {}))

    @cached_property
    def without_skips(self) -> Cell:
        """The same cell without `skips`: every image is measured."""
        return replace(self, skips=()) if self.skips else self

    @property
    def in_float32(self) -> Cell:
        """The same cell with gradients in float32; it skips the same images."""
        return replace(self, perturbation=replace(self.perturbation, precision=FLOAT32))

    def has_own_number(self, protocol: str) -> bool:
        """Return whether the cell gives an accuracy alone; with protocol ``worst``, together with clean."""
        return len(self.skips) <= (1 if protocol == "worst" else 0)

    @property
    def attacked_as(self) -> str:
        """Part of an ensemble that the attack is computed on; empty for the classifier itself."""
        return self.classifier.attacked_as if self.perturbation.kind == "attack" else ""

    def to_json(self) -> dict:
        """Return the cell as JSON values, which `from_json` reads."""
        fields = asdict(self)
        metadata = fields.pop("metadata")
        # files keep the older names
        return {"victim": fields.pop("classifier")} | fields | ({"told": metadata} if metadata else {})

    @classmethod
    def from_json(cls, fields: dict) -> Cell:
        """Read the result of `to_json`, also of an older version; unknown fields are ignored.

        Raises:
            UserError, LookupError, TypeError: if it is anything else.
        """
        check("a cell", fields, _CELL, {"skips": list_of(is_text)})
        check("a model", fields["victim"], *_CARD)
        check("a perturbation", fields["perturbation"], *_PERTURBATION)
        check("parameters", fields["perturbation"].get("params", {}), {}, dict.fromkeys(_WHOLE, is_count))
        card = ModelCard(**_known(ModelCard, fields["victim"]) | {"seeds": tuple(fields["victim"]["seeds"])})
        perturbation = Perturbation(**_known(Perturbation, fields["perturbation"]))
        skips, metadata = tuple(fields.get("skips", ())), fields.get("told", {})
        parts = {"classifier": card, "perturbation": perturbation, "skips": skips, "metadata": metadata}
        return cls(**_known(cls, fields) | parts)


@dataclass(frozen=True)
class Plan:
    """The cells of one run, all of one data set and measured on its first `n` images.

    Attributes:
        dataset: Name of the data set.
        n: Number of images.
        protocol: ``final`` or ``worst``.
        cells: The cells.
        strong: Plan of the stronger attacks, with its own number of images; None without such attacks.
        class_names: Name of each class of own images, if known; no part of the key.
    """

    dataset: str
    n: int
    protocol: str
    cells: tuple[Cell, ...]
    strong: Plan | None = None
    class_names: tuple[str, ...] = ()

    @property
    def parts(self) -> list[Plan]:
        """This plan and, if it has one, that of the stronger attacks."""
        return [self, self.strong] if self.strong else [self]

    def cells_of(self, classifier: ModelCard) -> list[Cell]:
        """Return its own cells of a classifier; the card must be the same object."""
        return self._by_card.get(id(classifier), [])

    @cached_property
    def _by_card(self) -> dict[int, list[Cell]]:
        found: dict[int, list[Cell]] = {}
        for cell in self.cells:
            found.setdefault(id(cell.classifier), []).append(cell)
        return found

    @cached_property
    def key(self) -> str:
        """SHA-256 of the plan."""
        described = [self.dataset, self.n, self.protocol, [cell.key for cell in self.cells]]
        return digest([*described, self.strong.key] if self.strong else described)

    def to_json(self) -> str:
        """Return the plan as JSON text, which `from_json` reads."""
        return json.dumps(self._fields())

    def _fields(self) -> dict:
        fields = {"dataset": self.dataset, "n": self.n, "protocol": self.protocol}
        strong = {"strong": self.strong._fields()} if self.strong else {}
        named = {"class_names": list(self.class_names)} if self.class_names else {}
        return fields | {"cells": [cell.to_json() for cell in self.cells]} | strong | named

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """Read the result of `to_json`, also of an older version; unknown fields are ignored.

        The caller compares `key` to see whether the plan is still the same.

        Raises:
            ValueError, LookupError, TypeError, AttributeError: if it is anything else.
        """
        return cls._from_fields(loads(text))

    @classmethod
    def _from_fields(cls, fields: dict) -> Plan:
        check("a plan", fields, _PLAN, {"class_names": list_of(is_text)})
        cells = tuple(Cell.from_json(cell) for cell in fields["cells"])
        strong = cls._from_fields(fields["strong"]) if "strong" in fields else None
        named = tuple(fields.get("class_names", ()))
        return cls(**_known(cls, fields) | {"cells": cells, "strong": strong, "class_names": named})


# Checks of stored values: (required fields, optional fields).
_CARD: tuple[dict[str, Form], dict[str, Form]] = (
    {"model": is_text, "identity": is_object, "seeds": list_of(is_count)},
    {
        **dict.fromkeys(("recipe", "lambda_init", "weights_sha256", "attacked_as"), is_text),
        "train_seed": or_null(is_count),
        **dict.fromkeys(("members", "eot"), is_count),
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
    "protocol": lambda value: value in PROTOCOLS,
    "n": lambda value: is_count(value) and value > 0,
    "cells": list_of(is_object),
}


def _known(kind: type, values: dict) -> dict:
    """Return the values that are fields of a dataclass."""
    names = {field.name for field in fields(kind)}
    return {name: value for name, value in values.items() if name in names}


def digest(value: object) -> str:
    """Return the SHA-256 of a JSON value; the order of its keys does not matter."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def attack_column(name: str, norm: str, radius: float | None, changed: str = "") -> str:
    """Return the column name of an attack: ``pgd_2``, ``apgd_ce_l2_0.5``, ``pgd_l2(steps=40)_0.5``.

    Args:
        name: Name of the attack, or of the worst of several attacks.
        norm: Norm, appended to the name unless the name ends with it or it is Linf.
        radius: Radius, for Linf in units of 1/255, for any other norm in [0, 1] pixels; None without one.
        changed: Parameters that differ from their defaults, in brackets.
    """
    suffix = norm.lower()
    label = name if norm == "Linf" or name.lower().endswith(suffix) else f"{name}_{suffix}"
    return f"{label}{changed}" + ("" if radius is None else f"_{radius:.10g}")


def in_255(pixels: float) -> float:
    """Convert a distance from [0, 1] pixels to units of 1/255, without rounding noise (2/255 gives 2.0)."""
    return float(f"{pixels * 255:.10g}")

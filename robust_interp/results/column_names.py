"""The names of the leaderboard's columns: which declaration one belongs to, and what it is of."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, replace

from robust_interp.corruptions.names import COMMON, EXTRA, MEANS, SEVERITIES
from robust_interp.results import columns
from robust_interp.results.columns import Column, Kind

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")  # as a radius is written in a column's name
_FIXED = {column.name: column for column in columns.LEADERBOARD if "<" not in column.name}
_DERIVED = {columns.WORST: Kind.WORST, columns.STRONG: Kind.STRONG}
_OF_KIND: dict[Kind | None, Column] = {
    column.kind: column for column in columns.MEASURED if column.kind is not Kind.MEAN
}


def declaration(name: str, corruptions: Collection[str] = (*COMMON, *EXTRA)) -> Column:
    """The declaration of a leaderboard's column.

    Args:
        corruptions: The names of those that there are, as for `parse`.
    """
    if name in _FIXED:
        return _FIXED[name]
    if is_mce(name):
        return next(column for column in columns.MCE if _begins_like(column, name))
    if name.endswith("_std"):
        return columns.STD
    return parse(name, corruptions).declared


def is_mce(name: str) -> bool:
    """Whether it is a mean corruption error, as `leaderboard --mce` adds; it has no deviation beside it."""
    return any(_begins_like(column, name) for column in columns.MCE)


def was_mce(name: str) -> bool:
    """Whether it is one under a name that it had before."""
    return name.partition("(")[0] in columns.MCE_BEFORE


def _begins_like(column: Column, name: str) -> bool:
    """Whether both are the same up to a baseline in brackets."""
    return column.name.partition("(")[0] == name.partition("(")[0]


@dataclass(frozen=True)
class MeasuredColumn:
    """What a measured column is of, as its name says.

    Attributes:
        declared: The column, or family of columns, that it belongs to.
        series: What a curve is drawn through: ``pgd_l2`` of ``pgd_l2_0.5``, ``fog`` of ``fog_3``; the whole
            name where there is neither radius nor severity.
        radius: Of an attack: Linf in units of 1/255, others in [0, 1] pixels; None where there is none.
        severity: Of a corruption, 1 to 5; None for a mean over the five.
        norm: Of an attack: ``Linf``, ``L2``, ``L1`` or ``L0``; None for all else.
    """

    name: str
    declared: Column
    series: str
    radius: float | None = None
    severity: int | None = None
    norm: str | None = None

    @property
    def kind(self) -> Kind:
        assert self.declared.kind is not None, f"{self.name} is not measured"
        return self.declared.kind

    @property
    def is_attack(self) -> bool:
        """Whether the images were attacked, by one attack or by the worst of several."""
        return self.kind in (Kind.ATTACK, Kind.WORST, Kind.STRONG)

    @property
    def attack(self) -> str:
        """The name alone: ``pgd`` of ``pgd_l2(steps=40)_0.5``."""
        name = self.series.partition("(")[0]
        return name.removesuffix(f"_{(self.norm or '').lower()}")

    @property
    def strength(self) -> float:
        """Radius or severity; 0 where there is neither."""
        return self.severity or self.radius or 0.0

    @property
    def parts(self) -> list[MeasuredColumn]:
        """The columns that it is the mean of: corruptions, or severities of one; none of one measurement."""
        if self.kind is Kind.MEAN:
            return [parse(name) for name in MEANS[self.name]]
        if self.kind is Kind.CORRUPTION:
            return [parse(f"{self.name}_{severity}", {self.name}) for severity in SEVERITIES]
        return []

    @property
    def measurements(self) -> list[str]:
        """The columns of single measurements that it is the mean of, down to severities; else itself."""
        return [name for part in self.parts for name in part.measurements] or [self.name]


def parse(name: str, corruptions: Collection[str] = (*COMMON, *EXTRA)) -> MeasuredColumn:
    """What a measured column is of. This is the one place that takes their names apart.

    Args:
        name: Without ``_std``.
        corruptions: The names of those that there are; all else is taken for an attack.
    """
    if name in _FIXED and _FIXED[name].kind is not None:
        return MeasuredColumn(name, _FIXED[name], name)
    if name in corruptions:
        return MeasuredColumn(name, _OF_KIND[Kind.CORRUPTION], name)
    series, _, number = name.rpartition("_")
    if not series or not _NUMBER.fullmatch(number):
        return MeasuredColumn(name, columns.ATTACK_ALONE, name, norm=_norm(name))
    if series in corruptions and number in map(str, SEVERITIES):
        return MeasuredColumn(name, _OF_KIND[Kind.SEVERITY], series, severity=int(number))
    norm = _norm(series)
    family = columns.ATTACK if norm == "Linf" else columns.ATTACK_L2
    found = MeasuredColumn(name, family, series, float(number), norm=norm)
    if found.attack in _DERIVED:
        return replace(found, declared=_OF_KIND[_DERIVED[found.attack]])
    return found


def _norm(series: str) -> str:
    """An attack's name ends with its norm, unless that is Linf."""
    found = re.search(r"l[012]$", series.partition("(")[0].lower())
    return found[0].upper() if found else "Linf"


def std_of(column: str) -> str:
    """The column beside a measured one that holds its standard deviation over train seeds."""
    return f"{column}_std"


def measured_in(table: Iterable[Hashable]) -> list[str]:
    """Those of a table's columns that are measured: the ones with a standard deviation beside them."""
    names = [str(name) for name in table]
    return [name for name in names if std_of(name) in names]

"""Parse the names of leaderboard columns and find their declarations."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, replace

from robust_interp.corruptions.names import COMMON, EXTRA, MEANS, SEVERITIES
from robust_interp.results import columns
from robust_interp.results.columns import Column, Kind

_NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e[+-]?\d+)?")  # a radius in a column name
_FIXED = {column.name: column for column in columns.LEADERBOARD if "<" not in column.name}
_DERIVED = {columns.WORST: Kind.WORST, columns.STRONG: Kind.STRONG}
_OF_KIND: dict[Kind | None, Column] = {
    column.kind: column for column in columns.MEASURED if column.kind is not Kind.MEAN
}


def declaration(name: str, corruptions: Collection[str] = (*COMMON, *EXTRA)) -> Column:
    """Return the declaration of a leaderboard column.

    Args:
        name: Name of the column.
        corruptions: Names of the known corruptions, as for `parse`.
    """
    if name in _FIXED:
        return _FIXED[name]
    if is_mce(name):
        return next(column for column in columns.MCE if _begins_like(column, name))
    if name.endswith("_std"):
        return columns.STD
    return parse(name, corruptions).declared


def is_mce(name: str) -> bool:
    """Return whether `leaderboard --mce` adds the column. Such columns have no standard deviation."""
    return any(_begins_like(column, name) for column in columns.MCE)


def was_mce(name: str) -> bool:
    """Return whether a column is a mean corruption error under the name of an older version."""
    return name.partition("(")[0] in columns.MCE_BEFORE


def _begins_like(column: Column, name: str) -> bool:
    """Return whether the names are equal, without the baseline in brackets."""
    return column.name.partition("(")[0] == name.partition("(")[0]


@dataclass(frozen=True)
class MeasuredColumn:
    """The parsed name of a measured column.

    Attributes:
        name: Name of the column.
        declared: Declaration of the column, or of its family of columns.
        series: Name without radius or severity, shared by the columns of one curve: ``pgd_l2`` for
            ``pgd_l2_0.5``, ``fog`` for ``fog_3``.
        radius: Radius of an attack: Linf in units of 1/255, others in [0, 1] pixels; None without a radius.
        severity: Severity of a corruption, 1 to 5; None for a mean over all five, and without a corruption.
        norm: Norm of an attack: ``Linf``, ``L2``, ``L1`` or ``L0``; None for all other columns.
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
        """Whether the column is for one attack or the worst of several."""
        return self.kind in (Kind.ATTACK, Kind.WORST, Kind.STRONG)

    @property
    def attack(self) -> str:
        """Name of the attack alone: ``pgd`` for ``pgd_l2(steps=40)_0.5``."""
        name = self.series.partition("(")[0]
        return name.removesuffix(f"_{(self.norm or '').lower()}")

    @property
    def strength(self) -> float:
        """Radius or severity; 0 without either."""
        return self.severity or self.radius or 0.0

    @property
    def parts(self) -> list[MeasuredColumn]:
        """Columns that this one averages: corruptions, or severities. Empty for a single measurement."""
        if self.kind is Kind.MEAN:
            return [parse(name) for name in MEANS[self.name]]
        if self.kind is Kind.CORRUPTION:
            return [parse(f"{self.name}_{severity}", {self.name}) for severity in SEVERITIES]
        return []

    @property
    def measurements(self) -> list[str]:
        """Names of the single measurements that the column averages; its own name if it is one itself."""
        return [name for part in self.parts for name in part.measurements] or [self.name]


def parse(name: str, corruptions: Collection[str] = (*COMMON, *EXTRA)) -> MeasuredColumn:
    """Parse the name of a measured column. No other code parses these names.

    Args:
        name: Name of the column, without ``_std``.
        corruptions: Names of the known corruptions. Names that match none are parsed as attacks.
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
    """Return the norm at the end of an attack's name; Linf if there is none."""
    found = re.search(r"l[012]$", series.partition("(")[0].lower())
    return found[0].upper() if found else "Linf"


def std_of(column: str) -> str:
    """Return the name of the column with the standard deviation of a measured column over train seeds."""
    return f"{column}_std"


def measured_in(table: Iterable[Hashable]) -> list[str]:
    """Return the measured columns of a table, which are those with a column for their standard deviation."""
    names = [str(name) for name in table]
    return [name for name in names if std_of(name) in names]

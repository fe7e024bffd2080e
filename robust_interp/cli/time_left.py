"""Estimate how long the remaining work takes, from the speed of the finished work."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping

MEMORY = 20.0  # seconds; shortest time over which a speed is averaged
MEMORY_SHARE = 0.25  # the averaging time grows to this share of the elapsed time
KNOWN_AFTER = 2.0  # seconds of work before a speed is reliable: the first pass of a model is slower
KNOWN_SHARE = 0.5  # share of the work left whose operations must be measured before there is an estimate
ROUNDING = 1e-6  # less work left than this share counts as none

Kind = tuple[str, str]  # work of one speed: the classifier or network, and the operation


class Pace:
    """Exponential moving average of the seconds per unit of work."""

    def __init__(self) -> None:
        self._units = self._seconds = self._age = 0.0

    def add(self, units: float, seconds: float) -> None:
        """Record finished work and the seconds it took."""
        self._age += seconds
        kept = math.exp(-seconds / max(MEMORY, MEMORY_SHARE * self._age))
        self._units = kept * self._units + units
        self._seconds = kept * self._seconds + seconds

    @property
    def measured(self) -> float:
        """Seconds of all finished work."""
        return self._age

    @property
    def seconds_a_unit(self) -> float | None:
        """Average seconds per unit; None before any work is done."""
        return self._seconds / self._units if self._units > 0 else None


class TimeLeft:
    """Estimator of the remaining time, based on the speed of the finished work.

    Work is counted in units that take a similar time in every kind of work. The speed is measured for each
    kind separately. A kind not measured yet uses the mean speed of the kinds with the same operation, or of
    all kinds if there are none; one that has just begun uses a mean of both, since its work may be counted
    before the seconds it took. The first work of each operation includes start-up, such as reading the
    data: its speed is discarded as soon as there is more, and no estimate rests on it.
    """

    def __init__(self) -> None:
        self.left: dict[Kind, float] = defaultdict(float)
        self._done = self._counted = 0.0  # units; seconds
        self._paces: dict[Kind, Pace] = defaultdict(Pace)
        self._first: dict[str, Kind] = {}  # the kind that was first, by operation
        self._settled: set[str] = set()  # operations with more work than the first

    def expect(self, work: Mapping[Kind, float]) -> None:
        """Add work that is still to do, in units by kind."""
        for kind, units in work.items():
            self.left[kind] += units

    def forget(self) -> None:
        """Discard all remaining work."""
        self.left.clear()

    def finish(self, kind: Kind, units: float, seconds: float) -> None:
        """Record finished units of a kind and the seconds they took."""
        self.skip(kind, units)
        _, operation = kind
        if operation not in self._first:
            self._first[operation] = kind
        elif operation not in self._settled and units > 0:
            self._settled.add(operation)
            del self._paces[self._first[operation]]
        self._paces[kind].add(units, seconds)
        self._counted += seconds

    def skip(self, kind: Kind, units: float) -> None:
        """Count units as done without using them to measure the speed."""
        self.left[kind] -= units
        self._done += units

    def drop(self, kind: Kind, units: float) -> None:
        """Remove units that will not be done."""
        self.left[kind] -= units

    @property
    def has_begun(self) -> bool:
        """Whether any work is done."""
        return self._done > 0

    @property
    def share(self) -> float:
        """Finished share of all work, in [0, 1]."""
        left = math.fsum(units for units in self.left.values() if units > 0)
        return self._done / (self._done + left) if left > ROUNDING * self._done else 1.0

    @property
    def seconds(self) -> float | None:
        """Estimated seconds left; None while little is done, or most of what is left is unlike it."""
        known = {kind: pace for kind, pace in self._paces.items() if pace.seconds_a_unit is not None}
        if not known or self._counted < KNOWN_AFTER:
            return None
        left = {kind: units for kind, units in self.left.items() if units > 0}
        alike = math.fsum(units for (_, what), units in left.items() if what in self._settled)
        if alike < KNOWN_SHARE * math.fsum(left.values()):
            return None
        return math.fsum(units * _pace(kind, known) for kind, units in left.items())


def _pace(kind: Kind, known: Mapping[Kind, Pace]) -> float:
    """Return the seconds per unit of a kind, from its own work and, until KNOWN_AFTER, from similar kinds."""
    own = known.get(kind)
    others = {other: pace.seconds_a_unit or 0.0 for other, pace in known.items() if other != kind}
    alike = [pace for (_, operation), pace in others.items() if operation == kind[1]]
    if own is None:
        alike = alike or list(others.values())
        return math.fsum(alike) / len(alike)
    measured = own.seconds_a_unit or 0.0
    if not alike:
        return measured
    trust = min(1.0, own.measured / KNOWN_AFTER)
    return trust * measured + (1 - trust) * math.fsum(alike) / len(alike)

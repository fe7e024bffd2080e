"""Damage in a store, collected while it is read and reported in one line per kind."""

from __future__ import annotations

from enum import Enum
from pathlib import Path


class Fault(Enum):
    """A kind of damage: its name in the singular and in the plural, and its consequence."""

    CHUNK = (
        "batch of predictions is damaged or missing",
        "batches of predictions are damaged or missing",
        "left out with what follows in its cell, and measured again by the next run that needs it",
    )
    MISSING = (
        "measurement of a finished run is missing",
        "measurements of finished runs are missing",
        "left out; the same bench measures it again",
    )
    RUN = (
        "finished run is damaged",
        "finished runs are damaged",
        "left out; its bench repeated costs only what is missing",
    )
    FOREIGN = (
        "finished run is written in a way that this version cannot read",
        "finished runs are written in a way that this version cannot read",
        "left out",
    )
    LABELS = (
        "data set's labels are damaged",
        "data sets' labels are damaged",
        "written again by the next bench on it",
    )
    PIXELS = (
        "data set's hashes of images are damaged",
        "data sets' hashes of images are damaged",
        "left out; written again where the images are measured again",
    )
    AUDIT = ("audit is damaged", "audits are damaged", "left out; audit the model again")
    LOST = (
        "table has lost rows",
        "tables have lost rows",
        "what they told is left out; repeat the commands whose results are not shown",
    )
    COUNT = (
        "table's number of rows is damaged",
        "tables' numbers of rows are damaged",
        "rows may be missing without a word",
    )
    LOG = (
        "write-ahead log cannot be read to its end",
        "write-ahead logs cannot be read to their end",
        "what was stored last may be left out; the same command measures it again",
    )
    FILE = (
        "fault of the file's structure",
        "faults of the file's structure",
        "robust-interp store repair builds it anew of what can be read",
    )


class Damage:
    """Damage that was found, by kind."""

    def __init__(self) -> None:
        self._found: dict[Fault, dict[str, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._found)

    def note(self, fault: Fault, which: str) -> None:
        """Add one case, named in a few words; the same case is added only once."""
        self._found.setdefault(fault, {})[which] = None

    def take(self, other: Damage) -> None:
        """Move all cases of `other` to this object."""
        for fault, found in other._found.items():
            self._found.setdefault(fault, {}).update(found)
        other._found = {}

    def beyond(self, *faults: Fault) -> bool:
        """Return whether there is damage of any other kind than these."""
        return not self._found.keys() <= set(faults)

    def lines(self, path: Path | str) -> list[str]:
        """Return one line per kind, which names the first case; `path` is the path of the database."""
        return [_line(path, fault, list(self._found[fault])) for fault in Fault if fault in self._found]


def _line(path: Path | str, fault: Fault, found: list[str]) -> str:
    one, several, then = fault.value
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{path}: {len(found)} {several if more else one} ({found[0]}{more}): {then}"

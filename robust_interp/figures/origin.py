"""Content, data and checkpoints of a figure, stored in its SVG file: a report describes and checks it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from robust_interp.core.json_values import loads

_IN_SVG = re.compile(r"<dc:description>\s*(\{.*?\})\s*</dc:description>", re.DOTALL)


@dataclass(frozen=True)
class FigureOrigin:
    """Data and checkpoints that a figure was drawn from.

    Attributes:
        dataset: Name of the data set.
        checkpoints: SHA-256 of each weights file, by the name of the checkpoint.
        n: Number of test images; 0 if the figure uses none.
        shows: What the figure shows, for a caption; empty in files that were written before it was stored.
    """

    dataset: str
    checkpoints: Mapping[str, str]
    n: int = 0
    shows: str = ""

    def as_text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def read(path: Path) -> FigureOrigin | None:
    """Read the origin from an SVG file; None if it has none, as in files of other programs."""
    try:
        found = _IN_SVG.search(path.read_text(encoding="utf-8", errors="replace"))
        told = loads(html.unescape(found[1])) if found else {}
        checkpoints = {str(name): str(weights) for name, weights in told["checkpoints"].items()}
        return FigureOrigin(str(told["dataset"]), checkpoints, int(told["n"]), str(told.get("shows", "")))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None

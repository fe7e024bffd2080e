"""What a figure was drawn from, kept inside its SVG file: a report then knows whether it belongs there."""

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
class Origin:
    """What was looked at.

    Attributes:
        dataset: Its name.
        checkpoints: Name -> SHA-256 of the weights file.
        n: How many test images; 0 where none was needed.
    """

    dataset: str
    checkpoints: Mapping[str, str]
    n: int = 0

    def as_text(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)


def read(path: Path) -> Origin | None:
    """What an SVG file says of itself; None if it does not, as files do not that others drew."""
    try:
        found = _IN_SVG.search(path.read_text(encoding="utf-8", errors="replace"))
        told = loads(html.unescape(found[1])) if found else {}
        checkpoints = {str(name): str(weights) for name, weights in told["checkpoints"].items()}
        return Origin(str(told["dataset"]), checkpoints, int(told["n"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None

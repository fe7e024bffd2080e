"""Embed SVG files in the page, with the colours of the page (light or dark) and with unique ids."""

from __future__ import annotations

import base64
import re
from pathlib import Path

# Neutral colours are replaced by colours of the page. The others are visible on both backgrounds.
_ADAPTED = {
    "#ffffff": "var(--ground)",
    "#000000": "var(--ink)",
    "white": "var(--ground)",
    "black": "var(--ink)",
    "#666666": "var(--muted)",
    "#0072b2": "var(--blue)",  # too dark for a dark background
}
_COLOUR = re.compile(r"(?<=fill: )(#\w{6}|white|black)\b|(?<=stroke: )(#\w{6}|white|black)\b")
_ID = re.compile(r'(\bid="|href="#|url\(#)')


def inline(svg: str, name: str, label: str) -> str:
    """Return a figure's SVG as an element of the page.

    Args:
        svg: SVG file as written by matplotlib.
        name: Name of the figure, unique on the page. It is the prefix of all its ids.
        label: Text for screen readers, already escaped.
    """
    element = svg[svg.index("<svg") : svg.rindex("</svg>") + len("</svg>")]
    element = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", element, flags=re.DOTALL)
    element = _COLOUR.sub(lambda found: _ADAPTED.get(found[0].lower(), found[0]), element)
    element = _ID.sub(rf"\g<1>{name}-", element)
    ((width, height), *_) = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', element)
    start = f'<svg role="img" aria-label="{label}" viewBox="0 0 {width} {height}" class="figure" '
    start += f'style="--width: {float(width) / 72:.2f}in" '
    start += 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    return start + element.partition(">")[2]


def as_address(path: Path) -> str:
    """Return an SVG file as a data: address, in which its scripts cannot run."""
    return f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"


def width_of(path: Path) -> float:
    """Return the width of an SVG file in inches (72 units each), or 6.9 if the file has none."""
    found = re.search(r'viewBox="0 0 ([\d.]+) ', path.read_text(encoding="utf-8", errors="replace"))
    return float(found[1]) / 72 if found else 6.9

"""SVG files inside the page: in the page's own colours, light and dark, and without ids that clash."""

from __future__ import annotations

import base64
import re
from pathlib import Path

# The neutral colours of a figure follow the page; those that carry meaning stand out on both grounds.
_ADAPTED = {
    "#ffffff": "var(--ground)",
    "#000000": "var(--ink)",
    "white": "var(--ground)",
    "black": "var(--ink)",
    "#666666": "var(--muted)",
    "#0072b2": "var(--blue)",  # too dark on a dark ground
}
_COLOUR = re.compile(r"(?<=fill: )(#\w{6}|white|black)\b|(?<=stroke: )(#\w{6}|white|black)\b")
_ID = re.compile(r'(\bid="|href="#|url\(#)')


def inline(svg: str, name: str, label: str) -> str:
    """A figure's SVG as an element of a page.

    Args:
        svg: as matplotlib writes it.
        name: of the figure, unique on the page: before each of its ids.
        label: what it shows, for those who do not see it; escaped already.
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
    """An SVG file as a data: address, in which nothing of it can run."""
    return f"data:image/svg+xml;base64,{base64.b64encode(path.read_bytes()).decode()}"


def width_of(path: Path) -> float:
    """Of an SVG file in inches, 72 units each; as of a page where the file does not say."""
    found = re.search(r'viewBox="0 0 ([\d.]+) ', path.read_text(encoding="utf-8", errors="replace"))
    return float(found[1]) / 72 if found else 6.9

"""Definitions of the leaderboard's columns on the report's page, and the anchors that headers link to."""

from __future__ import annotations

import re
from collections.abc import Collection

from robust_interp.results.column_names import declaration, parse
from robust_interp.results.columns import KNOWN_ATTACKS, Kind


def definition(column: str, corruptions: Collection[str]) -> str:
    """Return the definition of a leaderboard column; `corruptions` are the names of measured corruptions."""
    declared = declaration(column, corruptions)
    if declared.kind is None:
        return _plain(declared.meaning)
    named = parse(column, corruptions)
    if not named.is_attack:
        return _plain(declared.meaning)
    if named.kind is Kind.ATTACK:
        meaning = KNOWN_ATTACKS.get(
            named.attack, "Accuracy under this attack, with the parameters listed below."
        )
    else:
        meaning = _plain(declared.meaning)
    if named.radius is None:
        return meaning
    if named.norm == "Linf":
        return f"{meaning} The number is ε in units of 1/255."
    return f"{meaning} Here ε is an {named.norm} radius, in pixels of [0, 1]."


def _plain(meaning: str) -> str:
    return meaning.replace("`", "")


def anchor(column: str) -> str:
    """Return the id of a column's definition on the page. All radii of one attack share a definition."""
    is_measured = declaration(column).kind is not None
    return "def-" + re.sub(r"[^A-Za-z0-9_-]", "-", parse(column).series if is_measured else column)

"""Tell things of the same name apart."""

from __future__ import annotations

from collections.abc import Sequence


def told_apart(names: Sequence[str], tags: Sequence[str]) -> list[str]:
    """Return the names, each followed by its tag where the tags of equal names differ.

    Args:
        names: The names, with repetitions.
        tags: A tag for each name, which may be empty.
    """
    found: dict[str, set[str]] = {}
    for name, tag in zip(names, tags, strict=True):
        found.setdefault(name, set()).add(tag)
    return [name + tag if len(found[name]) > 1 else name for name, tag in zip(names, tags, strict=True)]

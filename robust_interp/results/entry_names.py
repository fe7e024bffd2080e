"""Unique names of leaderboard entries, for figures and the tables by class."""

from __future__ import annotations

from collections.abc import Sequence

from robust_interp.results.entries import Entry
from robust_interp.store.cells import FLOAT32, digest


def entry_names(entries: Sequence[Entry]) -> list[str]:
    """Return a name for each entry: the model, followed by the settings that distinguish entries.

    Settings of the measurement that differ between any two entries are in all names, others only where
    entries of a model differ in them. The name of an ensemble ends with ` ×members`.
    """
    described = [_tags(entry) for entry in entries]
    everywhere = _differing(entries)
    rivals: dict[tuple, list[int]] = {}
    for at, entry in enumerate(entries):
        rivals.setdefault((entry.card.model, entry.card.members), []).append(at)
    told = [entry.card.model for entry in entries]
    for alike in rivals.values():
        for setting in described[alike[0]]:
            tags = [described[at][setting] for at in alike]
            if setting in everywhere or len(set(tags)) > 1:
                for at, tag in zip(alike, tags, strict=True):
                    told[at] += f" {tag}" if tag else ""
        for last in (_attacks, _hash):
            for at in _clashing(alike, told):
                told[at] = f"{told[at]} {last(entries[at])}".strip()
    return [
        name + (f" ×{entry.card.members}" if entry.card.members > 1 else "")
        for name, entry in zip(told, entries, strict=True)
    ]


def _differing(entries: Sequence[Entry]) -> set[str]:
    """Return the settings of the measurement in `_tags` that differ between entries."""
    settings: dict[str, set] = {
        "protocol": {entry.protocol for entry in entries},
        "n": {entry.n for entry in entries},
        "sources": {frozenset(entry.origins) for entry in entries if entry.origins},
        "precision": {entry.attack_precision or FLOAT32 for entry in entries},
    }
    return {name for name, values in settings.items() if len(values) > 1}


def _clashing(alike: list[int], told: list[str]) -> list[int]:
    names = [told[at] for at in alike]
    return [at for at in alike if names.count(told[at]) > 1]


def _tags(entry: Entry) -> dict[str, str]:
    card = entry.card
    return {
        "recipe": f"@{card.recipe}" if card.recipe else "",
        "lambda_init": f"λ {card.lambda_init}" if card.lambda_init else "",
        "protocol": entry.protocol,
        "n": f"n={entry.n}",
        "train_seeds": _listed("seed", entry.known_seeds),
        "sources": f"({', '.join(sorted(entry.sources))})" if entry.sources else "",
        "attack_seeds": _listed("attack seed", sorted(entry.seeds)),
        "precision": ""
        if entry.attack_precision in ("", FLOAT32)
        else f"attacks in {entry.attack_precision}",
    }


def _attacks(entry: Entry) -> str:
    return ", ".join(dict.fromkeys(entry.worst.values()))


def _hash(entry: Entry) -> str:
    """Return a hash of the images and weights, which may be the only difference left."""
    return f"#{digest([entry.subset_hash, *sorted(entry.by_seed)])[:6]}"


def _listed(what: str, seeds: Sequence[int]) -> str:
    return f"({what}{'s' if len(seeds) > 1 else ''} {', '.join(map(str, seeds))})" if seeds else ""

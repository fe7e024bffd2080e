"""Scores of one or more runs -> entries, each a line of the leaderboard.

An entry is an architecture with its recipe and λ interval, averaged over its train seeds, or an ensemble of
them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from robust_interp.results.columns import OF_IMAGES_COLUMNS, Kind
from robust_interp.results.scores import Score
from robust_interp.store.cells import FLOAT32, ModelCard, digest
from robust_interp.store.verdicts import joint

LIBRARY = "(lib"  # in generated@0(libjpeg-turbo): the same origin as generated@0, but for JPEG's library


@dataclass
class Entry:
    """What one line of the leaderboard is made of: scores of one or more runs that may stand together."""

    card: ModelCard
    n: int
    protocol: str
    subset_hash: str
    told: dict = field(default_factory=dict)  # of the images, where it is not the usual
    by_seed: dict[str, dict[str, Score]] = field(default_factory=dict)  # classifier -> column -> the newest
    sources: set[str] = field(default_factory=set)  # of its corrupted images
    seeds: set[int] = field(default_factory=set)  # of its random attacks
    agreement: float = math.nan  # of an ensemble's members on clean images
    improvements: dict[str, float] = field(default_factory=dict)  # of an ensemble, by column
    audits: dict[str, str] = field(default_factory=dict)  # classifier -> what its audit came to
    strong: set[tuple[str, int]] = field(default_factory=set)  # what is the strong attack, and its n
    worst: dict[str, str] = field(default_factory=dict)  # by column, of which attacks it is the worst
    precisions: set[str] = field(default_factory=set)  # of the attacks; those without gradients are float32

    def agrees(self, other: Entry) -> bool:
        """Whether columns of both may stand in one line: of the same source, seed and attacks."""
        both = self.worst.keys() & other.worst.keys()
        return all(self.worst[column] == other.worst[column] for column in both) and all(
            not mine or not theirs or mine == theirs
            for mine, theirs in (
                (self.origins, other.origins),
                (self.libraries, other.libraries),
                (self.seeds, other.seeds),
                (self.strong, other.strong),
                (self.attack_precision, other.attack_precision),
            )
        )

    @property
    def origins(self) -> set[str]:
        return {source.partition(LIBRARY)[0] for source in self.sources}

    @property
    def libraries(self) -> set[str]:
        """That generated JPEG depends on."""
        return {source for source in self.sources if LIBRARY in source}

    @property
    def train_seeds(self) -> int:
        """How many the numbers are averaged over, or the ensemble is made of."""
        return len(self.card.seeds) if self.card.members > 1 and self.card.seeds else len(self.by_seed)

    @property
    def strong_n(self) -> int | None:
        """How many samples the strong attacks were made on; None without any."""
        return next((n for _, n in self.strong), None)

    @property
    def attack_precision(self) -> str:
        """What the attacks' gradients are computed in; empty without an attack."""
        return next((each for each in self.precisions if each != FLOAT32), "".join(self.precisions))

    @property
    def audit(self) -> str:
        """What the audits of its train seeds come to together."""
        return joint(self.audits.values())

    def add(self, score: Score) -> None:
        card, row, kind = score.classifier, score.row, score.measured.kind
        classifier = digest([card.train_seed, card.identity])
        self.by_seed.setdefault(classifier, {})[score.column] = score
        self.audits[classifier] = score.audit
        self.seeds |= {made.seed for made in score.perturbations if made.seed is not None}
        if row.get("corruption_source"):
            self.sources.add(row["corruption_source"])
        if row.get("improvement") is not None:
            self.improvements[score.column] = row["improvement"]
        if kind is Kind.CLEAN and row.get("agreement") is not None:
            self.agreement = row["agreement"]
        if score.is_attack:
            self.precisions.add(score.attack_precision)
        if kind is Kind.STRONG:
            self.strong.add((row["perturbation"], row["n"]))
        if kind is Kind.WORST:
            self.worst[score.column] = row["perturbation"]

    def take(self, other: Entry) -> None:
        """Add what a newer run measured of the same entry."""
        self.sources |= other.sources
        self.seeds |= other.seeds
        self.improvements |= other.improvements
        self.agreement = self.agreement if math.isnan(other.agreement) else other.agreement
        self.audits |= other.audits
        self.strong |= other.strong
        self.precisions |= other.precisions
        self.worst |= other.worst
        for classifier, scored in other.by_seed.items():
            self.by_seed[classifier] |= scored


def entry_key(card: ModelCard) -> tuple:
    """What the classifiers of one entry share: only train seeds are averaged."""
    alone = (digest(card.identity),) if card.train_seed is None else ()
    return card.model, card.recipe, card.lambda_init, card.members, *alone


def entries_of(runs: Iterable[list[Score]]) -> list[Entry]:
    """The entries of runs, oldest first: those of one entry that agree are taken together."""
    merged: dict[tuple, list[Entry]] = {}
    for entry in (entry for run in runs for entry in _of_run(run)):
        key = (entry.card.model, entry.subset_hash, entry.protocol, frozenset(entry.by_seed))
        alike = merged.setdefault(key, [])
        into = next((other for other in alike if other.agrees(entry)), None)
        if into:
            into.take(entry)
        else:
            alike.append(entry)
    return [entry for alike in merged.values() for entry in alike]


def _of_run(run: list[Score]) -> list[Entry]:
    entries: dict[tuple, Entry] = {}
    for score in run:
        card, row = score.classifier, score.row
        told = {name: row[name] for name in OF_IMAGES_COLUMNS if name in row}
        first = Entry(card, row["n"], row["protocol"], row["subset_hash"], told)
        entries.setdefault(entry_key(card), first).add(score)
    return list(entries.values())

"""Entries of the leaderboard, grouped from the scores of one or more runs.

An entry is an architecture with its recipe and λ interval, averaged over its train seeds, or an ensemble.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

from robust_interp.results.chance import is_at_chance
from robust_interp.results.columns import OF_IMAGES_COLUMNS, Kind
from robust_interp.results.scores import Score
from robust_interp.store.cells import FLOAT32, ModelCard, digest
from robust_interp.store.verdicts import join_conclusions

LIBRARY = "(lib"  # as in generated@0(libjpeg-turbo), which is generated@0 with the name of the JPEG library


@dataclass
class Entry:
    """One row of the leaderboard: the scores of one or more runs that may be combined.

    Attributes:
        card: Description of one of its classifiers.
        n: Number of images behind each score, except those of the strong attacks.
        protocol: ``final`` or ``worst``.
        subset_hash: Hash of the images.
        metadata: Values of the columns `OF_IMAGES_COLUMNS` that are present, which describe the images.
        by_seed: Newest score by classifier (one per train seed) and column.
        sources: Sources of the corrupted images.
        seeds: Attack seeds.
        agreement: Agreement in percent of an ensemble's members on clean images; NaN if unknown.
        improvements: Improvement of an ensemble in percentage points, by column.
        audits: Conclusion of the audit, by classifier.
        strong: Names of the strong attacks and their numbers of images.
        worst: Names of the attacks behind each column `worst_<eps>`.
        precisions: Precisions of the attacks; attacks without gradients count as float32.
        incomplete: Finished cells of those that an unfinished run planned, as in `Score`; empty if all are.
    """

    card: ModelCard
    n: int
    protocol: str
    subset_hash: str
    metadata: dict = field(default_factory=dict)
    by_seed: dict[str, dict[str, Score]] = field(default_factory=dict)
    sources: set[str] = field(default_factory=set)
    seeds: set[int] = field(default_factory=set)
    agreement: float = math.nan
    improvements: dict[str, float] = field(default_factory=dict)
    audits: dict[str, str] = field(default_factory=dict)
    strong: set[tuple[str, int]] = field(default_factory=set)
    worst: dict[str, str] = field(default_factory=dict)
    precisions: set[str] = field(default_factory=set)
    incomplete: str = ""

    def agrees(self, other: Entry) -> bool:
        """Return whether both may share a row: no conflict of corruption source, attack seed or attacks."""
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
        return set(map(origin, self.sources))

    @property
    def libraries(self) -> set[str]:
        """Sources that name the JPEG library, on which generated JPEG images depend."""
        return {source for source in self.sources if LIBRARY in source}

    @property
    def train_seeds(self) -> int:
        """Number of train seeds that are averaged, or that form the ensemble."""
        return len(self.card.seeds) if self.card.members > 1 and self.card.seeds else len(self.by_seed)

    @property
    def weights(self) -> str:
        """Its train seeds, such as ``seed 0``; without seeds, the beginning of the hash of its weights."""
        if seeds := self.known_seeds:
            return f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
        return self.card.weights_sha256[:8]

    @property
    def known_seeds(self) -> list[int]:
        """Its train seeds, or those of its members, in ascending order; empty if they are unknown."""
        cards = [next(iter(scored.values())).classifier for scored in self.by_seed.values()]
        return sorted({seed for card in cards for seed in card.seeds})

    @property
    def strong_names(self) -> dict[str, str]:
        """Names of the worst of the strong attacks by column."""
        scores = [score for scored in self.by_seed.values() for score in scored.values()]
        return {s.column: s.row["perturbation"] for s in scores if s.measured.kind is Kind.STRONG}

    @property
    def strong_n(self) -> int | None:
        """Number of images of the strong attacks; None without strong attacks."""
        return next((n for _, n in self.strong), None)

    @property
    def attack_precision(self) -> str:
        """Precision of the attacks' gradients; empty without an attack."""
        return next((each for each in self.precisions if each != FLOAT32), "".join(self.precisions))

    @property
    def at_chance(self) -> bool:
        """Whether no train seed is better than guessing on clean images; False if they are not measured."""
        clean = [scored.get("clean") for scored in self.by_seed.values()]
        return all(score is not None and is_at_chance(score) for score in clean)

    @property
    def audit(self) -> str:
        """Joint conclusion of the audits of all train seeds."""
        return join_conclusions(self.audits.values())

    def add(self, score: Score) -> None:
        card, row, kind = score.classifier, score.row, score.measured.kind
        classifier = digest([card.train_seed, card.identity])
        self.by_seed.setdefault(classifier, {})[score.column] = score
        self.audits[classifier] = score.audit
        self.incomplete = score.incomplete
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
        """Add the scores of a newer run of the same entry."""
        self.sources |= other.sources
        self.seeds |= other.seeds
        self.improvements |= other.improvements
        self.agreement = self.agreement if math.isnan(other.agreement) else other.agreement
        self.audits |= {classifier: verdict for classifier, verdict in other.audits.items() if verdict}
        self.strong |= other.strong
        self.precisions |= other.precisions
        self.worst |= other.worst
        self.incomplete = other.incomplete or self.incomplete
        for classifier, scored in other.by_seed.items():
            self.by_seed[classifier] |= scored


def origin(source: str) -> str:
    """Return the source of corrupted images without the name of a JPEG library."""
    return source.partition(LIBRARY)[0]


def are_alike(a: str, b: str) -> bool:
    """Return whether the corruptions that two rows have in common are of one source, given all their sources.

    Each released file without an official hash is a source of its own, and a row may have more corruptions.
    """
    one, other = ({origin(source) for source in text.split("+")} for text in (a, b))
    are_files = all(source.startswith("released(") for source in one | other)
    return one == other or (are_files and (one <= other or other <= one))


def entry_key(card: ModelCard) -> tuple:
    """Return the key of the entry of a classifier. Classifiers that differ only in train seed share it."""
    alone = (digest(card.identity),) if card.train_seed is None else ()
    return card.model, card.recipe, card.lambda_init, card.members, *alone


def entries_of(runs: Iterable[list[Score]]) -> list[Entry]:
    """Return the entries of runs, given oldest first. Runs of the same entry are merged if they agree."""
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
        metadata = {name: row[name] for name in OF_IMAGES_COLUMNS if name in row}
        first = Entry(card, row["n"], row["protocol"], row["subset_hash"], metadata)
        entries.setdefault(entry_key(card), first).add(score)
    return list(entries.values())

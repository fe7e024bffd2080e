"""Stored cells -> scored rows -> results.csv and the leaderboard. No torch here: tables rebuild at once.

A *score* is one line of results.csv. An *entry* is one line of the leaderboard: an architecture with its
recipe and λ interval averaged over its train seeds, or an ensemble of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from robust_interp.core import statistics
from robust_interp.corruptions import MEANS, SEVERITIES
from robust_interp.results.export import TAIL_COLUMNS
from robust_interp.results.scores import STRONG, WORST, Score, is_strong, split_column
from robust_interp.store.cells import ModelCard, digest
from robust_interp.store.verdicts import joint

ENTRY_COLUMNS = [
    "rank",
    "model",
    "recipe",
    "lambda_init",
    "seeds",
    "members",
    "params_m",
    "n_examples",
    "protocol",
    "agreement",
    "improvement",
]

SOURCE_COLUMNS = ["corruption_source", "source"]

LIBRARY = "(lib"  # in generated@0(libjpeg-turbo): the same origin as generated@0, but for JPEG's library

RANKED_BY = {"final": "pgd", "worst": "worst"}  # at the middle one of the measured radii


@dataclass
class Entry:
    """What one line of the leaderboard is made of: scores of one or more runs that may stand together."""

    card: ModelCard
    n: int
    protocol: str
    subset_hash: str
    by_seed: dict[str, dict[str, Score]] = field(default_factory=dict)  # classifier -> column -> the newest
    sources: set[str] = field(default_factory=set)  # of its corrupted images
    seeds: set[int] = field(default_factory=set)  # of its random attacks
    agreement: float = math.nan  # of an ensemble's members on clean images
    improvements: dict[str, float] = field(default_factory=dict)  # of an ensemble, by column
    audits: dict[str, str] = field(default_factory=dict)  # classifier -> what its audit came to
    strong: set[tuple[str, int]] = field(default_factory=set)  # what is the strong attack, and its n
    worst: dict[str, str] = field(default_factory=dict)  # by column, of which attacks it is the worst

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
            )
        )

    @property
    def origins(self) -> set[str]:
        return {source.partition(LIBRARY)[0] for source in self.sources}

    @property
    def libraries(self) -> set[str]:
        """That generated JPEG depends on."""
        return {source for source in self.sources if LIBRARY in source}

    def take(self, other: Entry) -> None:
        self.sources |= other.sources
        self.seeds |= other.seeds
        self.improvements |= other.improvements
        self.agreement = self.agreement if math.isnan(other.agreement) else other.agreement
        self.audits |= other.audits
        self.strong |= other.strong
        self.worst |= other.worst
        for classifier, scored in other.by_seed.items():
            self.by_seed[classifier] |= scored


def entries_frame(*runs: list[Score]) -> pd.DataFrame:
    """The leaderboard of one or more runs: one line an entry.

    Accuracies are percentages, each followed by its ``_std`` over train seeds. An ensemble's `agreement` is
    that on clean images, its `improvement` that of the column that ranks. Runs of the same entry over
    the same train seeds and samples share a line, unless their noise or their attacks were drawn otherwise.
    """
    measured = measured_columns([score for run in runs for score in run])
    entries = entries_of(runs)
    ranking = {protocol: _ranking_column(measured, series) for protocol, series in RANKED_BY.items()}
    lines = [_line(entry, measured, ranking[entry.protocol]) for entry in entries]
    extra = [column for column in TAIL_COLUMNS if any(line.get(column) for line in lines)]
    frame = pd.DataFrame(lines).reindex(columns=board_columns(measured, extra))
    frame = frame.astype({"strong_n": "Int64"} if "strong_n" in frame else {})
    return _ranked(frame, entries, ranking)


def board_columns(measured: Iterable[str], extra: Iterable[str] = ()) -> list[str]:
    """A leaderboard's columns in their order; `extra` are those of TAIL_COLUMNS that it has."""
    both = [f"{column}{end}" for column in measured for end in ("", "_std")]
    return [*ENTRY_COLUMNS, *both, *extra, *SOURCE_COLUMNS]


def _entries(run: list[Score]) -> list[Entry]:
    entries: dict[tuple, Entry] = {}
    for score in run:
        card, row = score.classifier, score.row
        entry = entries.setdefault(
            entry_key(card), Entry(card, row["n"], row["protocol"], row["subset_hash"])
        )
        classifier = digest([card.train_seed, card.identity])
        entry.by_seed.setdefault(classifier, {})[score.column] = score
        if row.get("corruption_source"):
            entry.sources.add(row["corruption_source"])
        entry.seeds |= {p.seed for p in score.perturbations if p.seed is not None}
        if row.get("improvement") is not None:
            entry.improvements[score.column] = row["improvement"]
        if score.column == "clean" and row.get("agreement") is not None:
            entry.agreement = row["agreement"]
        entry.audits[classifier] = score.audit
        if is_strong(score.column):
            entry.strong.add((row["perturbation"], row["n"]))
        elif row["perturbation"].startswith(f"{WORST}("):
            entry.worst[score.column] = row["perturbation"]
    return list(entries.values())


def entry_key(card: ModelCard) -> tuple:
    """What the classifiers of one entry share: only train seeds are averaged."""
    alone = (digest(card.identity),) if card.train_seed is None else ()
    return card.model, card.recipe, card.lambda_init, card.members, *alone


def entries_of(runs: Iterable[list[Score]]) -> list[Entry]:
    """The entries of runs, oldest first: those of one entry that agree are taken together."""
    merged: dict[tuple, list[Entry]] = {}
    for entry in (entry for run in runs for entry in _entries(run)):
        key = (entry.card.model, entry.subset_hash, entry.protocol, frozenset(entry.by_seed))
        alike = merged.setdefault(key, [])
        into = next((other for other in alike if other.agrees(entry)), None)
        if into:
            into.take(entry)
        else:
            alike.append(entry)
    return [entry for alike in merged.values() for entry in alike]


def _accuracies(scored: dict[str, Score]) -> dict[str, float]:
    """By column; and per corruption the mean of its five severities, per group of them the mean over all."""
    accuracies = {column: score.accuracy for column, score in scored.items()}
    for name in {column.rpartition("_")[0] for column in accuracies}:
        severities = [accuracies.get(f"{name}_{severity}") for severity in SEVERITIES]
        if None not in severities:
            accuracies[name] = math.fsum(severities) / len(severities)
    for mean, names in MEANS.items():
        if all(name in accuracies for name in names):
            accuracies[mean] = math.fsum(accuracies[name] for name in names) / len(names)
    return accuracies


def measured_columns(scored: list[Score]) -> list[str]:
    """In order: clean, the means, each corruption, then each attack by radius, then worst."""
    seen = {score.column: score.row for score in scored}
    corruption_rows = [(column, row) for column, row in seen.items() if row.get("severity") is not None]
    counts: dict[str, dict[str, set[int]]] = {}  # corruption -> classifier -> severities
    for score in scored:
        if score.row.get("severity") is not None:
            classifiers = counts.setdefault(score.row["perturbation"], {})
            classifiers.setdefault(digest(score.classifier.identity), set()).add(score.row["severity"])
    complete = set(SEVERITIES)
    whole = [name for name, classifiers in counts.items() if complete in classifiers.values()]
    means = [mean for mean, names in MEANS.items() if set(names) <= set(whole)]
    in_part = {
        name for name, classifiers in counts.items() if any(v != complete for v in classifiers.values())
    }
    partial = [column for column, row in corruption_rows if row["perturbation"] in in_part]
    attacks = [column for column, row in seen.items() if row.get("norm") is not None]
    series = list(dict.fromkeys(split_column(column)[0] for column in attacks))
    series.sort(key=place_of_series)
    attacks.sort(key=lambda column: (series.index(split_column(column)[0]), split_column(column)[1]))
    return [*(["clean"] if "clean" in seen else []), *means, *whole, *partial, *attacks]


def place_of_series(name: str) -> int:
    """Attacks stand as they were asked for, then the worst of each norm, then the strong ones."""
    return next(
        (at for at, last in ((1, WORST), (2, STRONG)) if name == last or name.startswith(f"{last}_")), 0
    )


def _line(entry: Entry, measured: list[str], ranking: str | None) -> dict:
    card, per_seed = entry.card, [_accuracies(scored) for scored in entry.by_seed.values()]
    line = {
        "model": card.model,
        "recipe": card.recipe,
        "lambda_init": card.lambda_init,
        "seeds": len(card.seeds) if card.members > 1 and card.seeds else len(per_seed),
        "members": card.members,
        "params_m": card.params_m,
        "n_examples": entry.n,
        "protocol": entry.protocol,
        "agreement": entry.agreement,
        "improvement": entry.improvements.get(ranking, math.nan),
        "corruption_source": "+".join(sorted(entry.sources)),
        "source": "measured",
        "strong_n": next((n for _, n in entry.strong), None),
        "audit": joint(entry.audits.values()),
    }
    for column in measured:
        values = [accuracies[column] for accuracies in per_seed if column in accuracies]
        if len(values) == len(per_seed):  # never a mean over fewer seeds than the line says
            line[column], line[f"{column}_std"] = statistics.mean_std(values)
    return line


def _ranking_column(measured: list[str], series: str) -> str | None:
    radii = [column for column in measured if split_column(column)[0] == series]
    return radii[len(radii) // 2] if radii else None


def _ranked(frame: pd.DataFrame, entries: Sequence[Entry], ranking: dict[str, str | None]) -> pd.DataFrame:
    """Ranks only among entries of the same protocol, samples and attacks that were attacked themselves."""
    frame["rank"] = pd.array([pd.NA] * len(frame), dtype="Int64")
    themselves = np.array([not entry.card.attacked_as for entry in entries], dtype=bool)
    subsets = [entry.subset_hash for entry in entries]
    for protocol, by in ranking.items():
        ours = themselves & (frame["protocol"] == protocol)
        if by and ours.any():
            attacks = [entry.worst.get(by, "") for entry in entries]
            ranks = frame[by].where(ours).groupby([frame["protocol"], subsets, attacks])
            ranks = ranks.rank(ascending=False, method="min")
            frame.loc[ours, "rank"] = ranks[ours].astype("Int64")
    return frame.sort_values(
        ["protocol", "n_examples", "rank", "model", "recipe", "lambda_init", "members"], na_position="last"
    ).reset_index(drop=True)

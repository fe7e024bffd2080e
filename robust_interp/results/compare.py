"""Test which differences between two entries are significant, with paired tests on the stored images."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import permutations
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from robust_interp.core import statistics
from robust_interp.core.errors import UserError
from robust_interp.core.registry import unknown
from robust_interp.results.column_names import MeasuredColumn
from robust_interp.results.columns import COMPARISON_COLUMNS, Kind
from robust_interp.results.entries import entry_key, origin
from robust_interp.results.folders import runs_in
from robust_interp.results.leaderboard import measured_columns
from robust_interp.results.newest import by_age, lineage
from robust_interp.results.scores import Score
from robust_interp.store.cells import FLOAT32, ModelCard, digest

SIGNIFICANT = "significant"
FOR_THESE_WEIGHTS = "significant for these weights only"  # no interval over train seeds
NOT_SIGNIFICANT = "not significant"


class EvaluationSet(NamedTuple):
    """The protocol and the images of measurements. Two entries need both in common to be compared."""

    protocol: str
    n: int
    subset_hash: str


@dataclass
class ScoredEntry:
    """An entry of the leaderboard with its scores.

    Attributes:
        card: Description of one of its classifiers.
        measured: Scores by images, train seed (None for a classifier without one) and column.
        retrained: Train seeds that were measured with older weights, too, by images.
    """

    card: ModelCard
    measured: dict[EvaluationSet, dict[int | None, dict[str, Score]]] = field(default_factory=dict)
    retrained: dict[EvaluationSet, set[int]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Name of the entry: ``in_resnet20`` for one model, ``in_resnet20x3`` for an ensemble of three."""
        return self.card.model + (f"x{self.card.members}" if self.card.members > 1 else "")

    @property
    def tags(self) -> list[str]:
        """Tags that may follow the name after an @, to distinguish entries with the same name."""
        card = self.card
        seeds = ",".join(map(str, card.seeds)) if card.members > 1 else ""
        identity = digest(card.identity)[:8] if card.train_seed is None else ""
        known = [card.recipe, card.lambda_init, seeds and f"seeds={seeds}", identity and f"id={identity}"]
        return [tag for tag in known if tag]

    def answers_to(self, text: str) -> bool:
        """Return whether `text` is the name of this entry, alone or followed by some of its tags."""
        rest = text.removeprefix(self.name)
        if rest == text or not rest:
            return rest != text
        return rest[0] == "@" and set(rest[1:].split("@")) <= set(self.tags)


@dataclass(frozen=True)
class Comparison:
    """The differences between two entries.

    Attributes:
        a: Name of the first entry, as given.
        b: Name of the second entry, as given.
        dataset: Name of the data set.
        samples: Protocol and images of the comparison.
        frame: One row per column, with the columns of `columns.COMPARISON`. Accuracies (percent) are means
            over the common train seeds; `only_a` and `only_b` are McNemar's b and c, summed over them;
            `p_seeds`, `ci_low` and `ci_high` are those of Welch's test over train seeds, NaN if an entry has
            fewer than two, or if neither has any spread.
        left_out: One message for each column that cannot be compared, and for each entry whose older weights
            are left out.
    """

    a: str
    b: str
    dataset: str
    samples: EvaluationSet
    frame: pd.DataFrame
    left_out: list[str]


def from_folders(
    folders: Sequence[Path],
    a: str,
    b: str,
    dataset: str | None = None,
    protocol: str | None = None,
    n: int | None = None,
) -> Comparison:
    """Compare two entries of results folders, column by column, on the images that both were measured on.

    Args:
        folders: Results folders.
        a: First entry: ``NAME`` for single models, ``NAMExK`` for the ensemble of K. If several entries have
            this name, add ``@`` and the recipe, the λ interval or ``seeds=0,1``.
        b: Second entry, named in the same way.
        dataset: Name of the data set to choose, if the folders have several.
        protocol: Protocol to choose, if the entries share several.
        n: Number of images to choose, if the entries share several.

    Raises:
        UserError: If an entry is unknown or ambiguous, or if the two have no images, train seed or column in
            common.
    """
    runs, dataset = runs_in(folders, dataset)
    entries, stale = _entries(runs)
    first, second = _named(a, entries, stale), _named(b, entries, stale)
    if first is second:
        raise UserError(f"{a} and {b} are the same entry")
    samples = _common_samples(first, second, protocol, n)
    lines, left_out = _lines(first.measured[samples], second.measured[samples])
    if not lines:
        raise UserError("; ".join([f"{first.name} and {second.name} have no common column", *left_out]))
    named = {a: first, b: second}
    left_out += _other_seeds(named, samples) + _other_images(first, second, samples)
    left_out += _strong_elsewhere(first, second, samples)
    left_out += [_of_last_weights(*one, samples) for one in named.items() if samples in one[1].retrained]
    frame = _judged(pd.DataFrame(lines))
    frame = frame.assign(a=a, b=b, dataset=dataset, **samples._asdict())
    return Comparison(a, b, dataset, samples, frame[COMPARISON_COLUMNS], left_out)


def _entries(runs: Iterable[Sequence[Score]]) -> tuple[list[ScoredEntry], list[ScoredEntry]]:
    """Return the entries of the newest weights, and the ensembles that have older ones only."""
    newest, older = by_age(runs)
    entries: dict[tuple, ScoredEntry] = {}
    of_lineage: dict[tuple, ScoredEntry] = {}
    stale = []
    for score in (score for run in newest for score in run):
        card, samples = score.classifier, _samples(score)
        entry = of_lineage[lineage(card)] = entries.setdefault(entry_key(card), ScoredEntry(card))
        by_seed = entry.measured[samples] = entry.measured.pop(samples, {})  # the last run's are at the end
        known = by_seed.setdefault(card.train_seed, {})
        if not _is_coarser(score, known.get(score.column)):
            known[score.column] = score
    for score in older:
        if replaced_by := of_lineage.get(lineage(score.classifier)):
            replaced_by.retrained.setdefault(_samples(score), set()).update(score.classifier.seeds)
        else:
            stale.append(ScoredEntry(score.classifier))
    return list(entries.values()), stale


def _samples(score: Score) -> EvaluationSet:
    row = score.row
    return EvaluationSet(row["protocol"], row["n"], row["subset_hash"])


def _is_coarser(score: Score, known: Score | None) -> bool:
    """Return whether a score is for an attack in another precision and the known one for float32."""
    return known is not None and known.attack_precision == FLOAT32 != score.attack_precision


def _named(text: str, entries: list[ScoredEntry], stale: list[ScoredEntry]) -> ScoredEntry:
    found = [entry for entry in entries if entry.answers_to(text)]
    if not found and any(entry.answers_to(text) for entry in stale):
        raise UserError(f"{text} was measured before a member was trained again: measure the ensemble again")
    if not found:
        tagged = "@" in text
        raise unknown(
            "entry", text, {"@".join([entry.name, *(entry.tags if tagged else ())]) for entry in entries}
        )
    if len(found) > 1:
        shared = set.intersection(*(set(entry.tags) for entry in found))
        names = ["@".join([entry.name, *(t for t in entry.tags if t not in shared)]) for entry in found]
        raise UserError(f"{text!r} matches {len(found)} entries: choose one of {', '.join(sorted(names))}")
    return found[0]


def _common_samples(a: ScoredEntry, b: ScoredEntry, protocol: str | None, n: int | None) -> EvaluationSet:
    """Return the images that both entries were measured on, restricted to the given protocol and n."""
    allowed = [
        samples
        for samples in a.measured
        if samples in b.measured and protocol in (None, samples.protocol) and n in (None, samples.n)
    ]
    chosen = {(samples.protocol, samples.n): samples for samples in allowed}  # those of the last run
    # the columns strong_<eps> are measured on other images
    if len(chosen) > 1 and protocol is None and n is None:
        chosen = {
            key: samples for key, samples in chosen.items() if not _only_strong(a.measured[samples])
        } or chosen
    if not chosen:
        have = "; ".join(f"{entry.name} has {_listed(entry.measured)}" for entry in (a, b))
        raise UserError(f"a comparison needs the same protocol and images: {have}")
    if len(chosen) > 1:
        raise UserError(f"choose one with --protocol and --n: both entries have {_listed(chosen.values())}")
    return list(chosen.values())[-1]


def _other_seeds(named: Mapping[str, ScoredEntry], samples: EvaluationSet) -> list[str]:
    """Name the train seeds that only one of two entries, by their names as given, was measured with."""
    seeds = {name: list(entry.measured[samples]) for name, entry in named.items()}
    if any(None in known for known in seeds.values()):
        return []  # such as an ensemble, which is compared with all seeds
    return [
        f"train seed {seed} of {name} is left out: {other} was not measured with it"
        for name, other in permutations(seeds)
        for seed in seeds[name]
        if seed not in seeds[other]
    ]


def _other_images(a: ScoredEntry, b: ScoredEntry, chosen: EvaluationSet) -> list[str]:
    """Return a message if both entries were also measured on as many other images by the same protocol."""
    others = [s for s in a.measured if s in b.measured and s != chosen and s[:2] == chosen[:2]]
    last = f"compared are the images of the last run (subset {chosen.subset_hash})"
    return [f"both entries also have {_listed(others)}; {last}"] if others else []


def _strong_elsewhere(a: ScoredEntry, b: ScoredEntry, chosen: EvaluationSet) -> list[str]:
    """Return a message for other images on which both entries have strong attacks alone."""
    others = {(s.protocol, s.n) for s in a.measured if s in b.measured and _has_only_strong(a, b, s)}
    return [
        f"strong_... is left out, which is on other images: compare it with --protocol {protocol} --n {n}"
        for protocol, n in sorted(others - {chosen[:2]})
    ]


def _has_only_strong(a: ScoredEntry, b: ScoredEntry, samples: EvaluationSet) -> bool:
    return all(_only_strong(entry.measured[samples]) for entry in (a, b))


def _of_last_weights(name: str, entry: ScoredEntry, samples: EvaluationSet) -> str:
    seeds = sorted(entry.retrained[samples])
    which = f"train seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
    return f"{name}: {which} measured with several weights; only those measured last are compared"


def _only_strong(by_seed: dict[int | None, dict[str, Score]]) -> bool:
    return all(score.measured.kind is Kind.STRONG for scores in by_seed.values() for score in scores.values())


def _listed(choices: Iterable[EvaluationSet]) -> str:
    return " and ".join(f"{s.protocol}, n = {s.n} (subset {s.subset_hash})" for s in choices)


def _lines(a: dict, b: dict) -> tuple[list[dict], list[str]]:
    """Return one row per comparable column, and one message per common column that is left out."""
    columns = set.intersection(*(set().union(*entry.values()) for entry in (a, b)))
    common = ([s for name, s in scores.items() if name in columns] for scores in a.values())
    lines, left_out = [], []
    for column in measured_columns(common):
        parts_a, parts_b = _paired(_parts(column, a), _parts(column, b))
        if not parts_a:
            left_out.append(f"{column.name} is left out: the entries have no common train seed for it")
        elif not _alike([*parts_a, *parts_b]):
            left_out.append(f"{column.name} is left out: it was measured with different settings")
        elif len(origins := _origins(parts_a[0])) > 1:
            left_out.append(f"{column.name} is left out: its images are {' and '.join(sorted(origins))}")
        else:
            lines.append({"column": column.name} | _tested(parts_a, parts_b))
    return lines, left_out


def _parts(
    column: MeasuredColumn, by_seed: dict[int | None, dict[str, Score]]
) -> dict[int | None, list[Score]]:
    """Return the scores that a column averages, for each train seed that has all of them."""
    names = column.measurements
    return {
        seed: [scores[name] for name in names]
        for seed, scores in by_seed.items()
        if all(name in scores for name in names)
    }


def _paired(a: dict, b: dict) -> tuple[list[list[Score]], list[list[Score]]]:
    """Pair equal train seeds. Pair an entry without one, such as an ensemble, with each seed of the other."""
    if None in a:
        return [a[None]] * len(b), list(b.values())
    if None in b:
        return list(a.values()), [b[None]] * len(a)
    common = [seed for seed in a if seed in b]
    return [a[seed] for seed in common], [b[seed] for seed in common]


def _alike(measurements: list[list[Score]]) -> bool:
    """Return whether all perturbations are equal in every parameter, and were computed on the same models."""
    described = {
        digest([[_made_on(score), *(p.describe_images() for p in score.perturbations)] for score in parts])
        for parts in measurements
    }
    return len(described) == 1


def _origins(parts: list[Score]) -> set[str]:
    """Return where the corrupted images of a column are from; a mean over several is no measurement."""
    sources = [score.row.get("corruption_source") for score in parts]
    return {origin(source) for source in sources if source}


def _made_on(score: Score) -> str:
    return score.classifier.attacked_as if score.is_attack else ""


def _tested(a: list[list[Score]], b: list[list[Score]]) -> dict:
    """Compute accuracies, discordant counts and p-values of one column.

    Args:
        a: Scores of the first entry, one list per train seed.
        b: Scores of the second entry, paired with those of the first.
    """
    pairs = [
        (one.right, other.right)
        for parts_a, parts_b in zip(a, b, strict=True)
        for one, other in zip(parts_a, parts_b, strict=True)
    ]
    test = statistics.mcnemar_stratified(pairs)
    values_a, values_b = _over_seeds(a), _over_seeds(b)
    mean_a, mean_b = (statistics.mean_std(values)[0] for values in (values_a, values_b))
    over_seeds = statistics.welch(values_a, values_b)
    return {
        "accuracy_a": mean_a,
        "accuracy_b": mean_b,
        "difference": mean_a - mean_b,
        "only_a": test.b,
        "only_b": test.c,
        "p": test.p,
        "p_mid": test.mid_p,
        "p_seeds": over_seeds.p,
        "ci_low": over_seeds.low,
        "ci_high": over_seeds.high,
        "seeds_a": len(values_a),
        "seeds_b": len(values_b),
    }


def _over_seeds(strata: list[list[Score]]) -> list[float]:
    """Return the accuracy (percent) of each train seed. An ensemble paired with several seeds counts once."""
    distinct = {id(parts): parts for parts in strata}.values()
    return [math.fsum(score.accuracy for score in parts) / len(parts) for parts in distinct]


def _judged(frame: pd.DataFrame) -> pd.DataFrame:
    # A difference must hold for other images and for other train seeds: the larger p-value counts.
    frame["p_holm"] = statistics.holm(frame[["p", "p_seeds"]].max(axis=1))
    frame["verdict"] = [_verdict(*row) for row in frame[["p_holm", "p_seeds"]].to_numpy()]
    return frame


def _verdict(p_holm: float, p_seeds: float) -> str:
    if p_holm >= statistics.LEVEL:
        return NOT_SIGNIFICANT
    return FOR_THESE_WEIGHTS if math.isnan(p_seeds) else SIGNIFICANT

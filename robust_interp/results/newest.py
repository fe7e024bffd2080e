"""Which weights of a train seed count, if several were measured."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from robust_interp.results.entries import entry_key
from robust_interp.results.scores import Score
from robust_interp.store.cells import ModelCard, digest, labels


class ByAge(NamedTuple):
    """The scores of runs, by whether they belong to the newest weights of their train seed.

    Attributes:
        newest: For each run, its scores of the newest weights.
        older: All other scores.
    """

    newest: list[list[Score]]
    older: list[Score]

    def trained_again(self, models: Collection[str] | None = None) -> list[str]:
        """Return the labels of classifiers that were measured with older weights, too.

        Args:
            models: Names of the models to consider; None means all.
        """
        scores = [*(score for run in self.newest for score in run), *self.older]
        names = labels([score.classifier for score in scores])[len(scores) - len(self.older) :]
        told = zip(names, self.older, strict=True)
        return list(dict.fromkeys(name for name, s in told if models is None or s.classifier.model in models))


def by_age(runs: Iterable[Sequence[Score]]) -> ByAge:
    """Separate the scores of older weights, so that a train seed that was trained again counts once.

    The newest weights of a train seed are those measured last by the same protocol and on the same images.
    All their scores count, also those of runs before other weights were measured. So it is for an ensemble
    over train seeds of one network; one with a member that was trained again is older, too.

    Args:
        runs: Scores of each run, oldest run first.
    """
    known = [[(_line(score), digest(score.classifier.identity), score) for score in run] for run in runs]
    last = {line: weights for run in known for line, weights, _ in run}
    replaced = {(line.images, weights) for run in known for line, weights, _ in run if weights != last[line]}
    newest: list[list[Score]] = []
    older: list[Score] = []
    for run in known:
        newest.append([])
        for line, weights, score in run:
            members = map(digest, score.classifier.identity.get("ensemble", ()))
            is_older = weights != last[line] or any((line.images, member) in replaced for member in members)
            (older if is_older else newest[-1]).append(score)
    return ByAge(newest, older)


def lineage(card: ModelCard) -> tuple:
    """Return what a classifier shares with those of other weights that it replaces, or that replace it."""
    is_over_seeds = card.members > 1 and len(card.seeds) == card.members
    key = (card.model, card.recipe, card.lambda_init, card.members) if is_over_seeds else entry_key(card)
    return *key, card.train_seed, card.seeds


class _Line(NamedTuple):
    """A classifier whatever its weights, and the protocol and images that it was measured by."""

    classifier: tuple
    images: tuple


def _line(score: Score) -> _Line:
    row = score.row
    return _Line(lineage(score.classifier), (row["protocol"], row["subset_hash"], row["n"]))

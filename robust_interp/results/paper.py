"""Compare measured rows with the tables and the claims of the paper.

Both sides are leaderboards, so torch is not imported. The paper's is ``leaderboards/paper_<dataset>.csv``.
Source of tables and claims: Yang, Liu, Bao, Shi, *Interpolation between Residual and Non-Residual Networks*,
ICML 2020, arXiv 2006.05749.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

import pandas as pd

from robust_interp import zoo
from robust_interp.core import statistics
from robust_interp.core.errors import UserError
from robust_interp.results import combine
from robust_interp.results.column_names import measured_in, std_of
from robust_interp.results.columns import OF_IMAGES_COLUMNS
from robust_interp.results.entries import are_alike
from robust_interp.results.intervals import interval
from robust_interp.results.precision import in_float32
from robust_interp.store.cells import attack_column

DATASETS = ("cifar10", "cifar100")
NOISES = ("noise", "impulse_noise", "speckle_noise", "gaussian_noise", "shot_noise")
ATTACKS = tuple(
    attack_column(attack, "Linf", eps) for attack in ("fgsm", "ifgsm", "pgd") for eps in (1, 2, 4)
)
AT_2 = ("clean", "noise", "fgsm_2", "ifgsm_2", "pgd_2")
TUNED = "tuned"  # the paper says "tuned" and does not state the interval

CELL_COLUMNS = [
    "table",
    "model",
    "lambda_init",
    "members",
    "column",
    "paper",
    "paper_std",
    "measured_as",
    "recipe",
    "seeds",
    "n_examples",
    "measured",
    "measured_std",
    "difference",
    "within_2_std",
]
CLAIM_COLUMNS = [
    "claim",
    "source",
    "scope",
    "comparisons",
    "smallest",
    "ci_low",
    "ci_high",
    "needed",
    "verdict",
]


@dataclass(frozen=True)
class PaperComparison:
    """The tables of `robust-interp leaderboard paper`.

    Attributes:
        cells: One row for each number of each table of the paper, with the measured number.
        claims: One row for each claim and each set of networks on which it can be tested. For each claim, the
            paper's own numbers are first.
    """

    cells: pd.DataFrame
    claims: pd.DataFrame


def compare(board: pd.DataFrame, dataset: str) -> PaperComparison:
    """Compare the measured rows of a leaderboard with the paper.

    A network that was measured with several recipes has a row for each. If a 110-layer network was not
    measured, its numbers are compared with the same family at another depth. The column `measured_as` names
    that network, and `within_2_std` stays empty.

    Args:
        board: The leaderboard.
        dataset: Name of its data set.

    Raises:
        UserError: If the paper has no numbers for the data set.
    """
    published = reference(dataset)
    ours = board[(board["source"] == "measured") & (board["protocol"] == "final") & in_float32(board)]
    cells = pd.DataFrame(list(_cells(published, ours)), columns=CELL_COLUMNS)
    whole = dict.fromkeys(["members", "seeds", "n_examples"], "Int64")
    lines = [*_tried(published, dataset, "paper"), *_tried(ours, dataset, "measured")]
    claims = pd.DataFrame(lines, columns=CLAIM_COLUMNS)
    order = {claim.text: at for at, claim in enumerate(CLAIMS)}
    claims = claims.sort_values("claim", key=lambda text: text.map(order), kind="stable", ignore_index=True)
    return PaperComparison(cells.astype(whole), claims.astype({"comparisons": "Int64"}))


def reference(dataset: str) -> pd.DataFrame:
    """Return the paper's numbers as a leaderboard.

    Raises:
        UserError: If the paper has none for the data set.
    """
    if dataset not in DATASETS:
        raise UserError(f"the paper has no numbers for {dataset}, only for {', '.join(DATASETS)}")
    return combine.read(zoo.bundled("leaderboards") / f"paper_{dataset}.csv")


def family(model: str) -> str:
    """Return the name of a model without its depth: ``in_resnet_sig`` for ``in_resnet110_sig``."""
    return re.sub(r"(?<=resnet)\d+", "", model)


def depth(model: str) -> str:
    """Return the depth in the name of a model: ``110`` for ``in_resnet110_sig``; empty for a ResNeXt."""
    found = re.search(r"(?<=resnet)\d+", model)
    return found[0] if found else ""


def usual_interval(model: str) -> str:
    """Return the initial interval of act(λ) in the paper, as written in a leaderboard; empty without λ."""
    if not model.startswith(("in_", "lambda_in_")):
        return ""
    return "0.10-0.20" if depth(model) == "164" else "0.20-0.25"


def _is_usual(line: pd.Series) -> bool:
    return line["lambda_init"] == usual_interval(line["model"])


def _is_variant(line: pd.Series) -> bool:
    return line["lambda_init"] == TUNED or (depth(line["model"]) == "110" and _is_usual(line))


# For each table of the paper: its columns, and a function that selects its rows from the paper's leaderboard.
TABLES: dict[str, tuple[tuple[str, ...], Callable[[pd.Series], bool]]] = {
    "accuracy": (("clean",), lambda line: line["members"] == 1 and _is_usual(line)),
    "noise": (NOISES, lambda line: line["members"] == 1 and _is_usual(line)),
    "adversarial": (ATTACKS, lambda line: line["members"] == 1 and _is_usual(line)),
    "variants": (
        AT_2,
        lambda line: (
            line["members"] == 1 and _is_variant(line) and not line["model"].startswith("lambda_in_")
        ),
    ),
    "initialisation": (
        AT_2,
        lambda line: line["members"] == 1 and depth(line["model"]) == "110" and line["lambda_init"] != TUNED,
    ),
    "ensembles": (AT_2, lambda line: depth(line["model"]) != "" and _is_usual(line)),
}


def _cells(published: pd.DataFrame, ours: pd.DataFrame) -> Iterator[dict]:
    for table, (columns, shows) in TABLES.items():
        for _, line in published[published.apply(shows, axis=1)].iterrows():
            answers = _answers(line, ours)
            for recipe, rows in answers.items() or [("", [])]:
                for column in columns:
                    if pd.notna(line[column]):
                        yield {"table": table} | _cell(line, recipe, rows, column)


def _answers(line: pd.Series, ours: pd.DataFrame) -> dict[str, list[pd.Series]]:
    """Return the measured rows for a row of the paper by recipe, the best first.

    Rows of the same network are preferred over those of its family, and of these those of the depth with the
    most train seeds. Of the rows of a recipe, those on the first images of the data set are the best, then
    those with the most train seeds, then with the most images.
    """
    same = ours["model"] == line["model"]
    if depth(line["model"]) == "110":
        same |= ours["model"].map(family) == family(line["model"])
    same &= (ours["members"] > 1) == (line["members"] > 1)
    if line["lambda_init"] != TUNED:
        same &= ours["lambda_init"] == line["lambda_init"]
    usual = ours[_of_images(ours)].isna().all(axis=1)
    found = ours.assign(exact=ours["model"] == line["model"], usual=usual)[same]
    order = ["exact", "usual", "seeds", "n_examples"]
    found = found.sort_values(order, ascending=False, kind="stable", na_position="last")
    of_one_depth = found[found["model"] == found["model"].iloc[0]] if len(found) else found
    by_recipe: dict[str, list[pd.Series]] = {}
    for _, row in of_one_depth.iterrows():
        by_recipe.setdefault(str(row["recipe"]), []).append(row)
    return by_recipe


def _cell(line: pd.Series, recipe: str, rows: list[pd.Series], column: str) -> dict:
    """Compare a number of the paper with the first of the rows that has it."""
    cell = {name: line[name] for name in ("model", "lambda_init", "members")}
    cell |= {"column": column, "paper": line[column], "paper_std": line[std_of(column)]}
    if rows:
        cell |= {"measured_as": rows[0]["model"], "recipe": recipe}
    found = next((row for row in rows if pd.notna(row.get(column))), None)
    if found is None:
        return cell
    return cell | {
        **{name: found[name] for name in ("seeds", "n_examples")},
        "measured": found[column],
        "measured_std": found[std_of(column)],
        "difference": found[column] - line[column],
        "within_2_std": _agreement(line, found, column),
    }


def _agreement(line: pd.Series, found: pd.Series, column: str) -> str:
    """Return "yes" if the measured mean is within two standard deviations of the paper's.

    "no" if its 95 % interval ends before that, too. Otherwise empty: the measurement has too few seeds or
    images to decide, or its interval is unknown. Also empty for another network, and without the paper's
    standard deviation.
    """
    around = 2 * line[std_of(column)]
    if found["model"] != line["model"] or pd.isna(around):
        return ""
    if abs(found[column] - line[column]) <= around:
        return "yes"
    if pd.isna(found["seeds"]) or pd.isna(found["n_examples"]):
        return ""
    ends = interval(found, column)
    if ends is None and (found["seeds"] == 1 or found["members"] > 1):  # a mean over severities
        n = int(found["n_examples"])
        ends = statistics.wilson(found[column] / 100 * n, n)  # conservative for a mean of an image's results
    if ends is None:
        return ""
    return "" if ends[0] <= line[column] + around and ends[1] >= line[column] - around else "no"


Moments = tuple[float, float, int]  # mean, standard deviation (ddof 1), number of train seeds


class Hedge(IntEnum):
    """How sure the side of a difference is, from the least on."""

    NOT_SIGNIFICANT = 0
    FOR_THESE_WEIGHTS = 1
    NONE = 2


_HEDGES = {
    Hedge.NOT_SIGNIFICANT: ", not significant",
    Hedge.FOR_THESE_WEIGHTS: " for these weights",
    Hedge.NONE: "",
}


@dataclass(frozen=True)
class Difference:
    """The accuracy of one row minus that of another, in percentage points.

    Attributes:
        a: Mean, standard deviation and number of train seeds of the first row. The standard deviation is NaN
            for one seed and for an ensemble.
        b: The same of the second row.
        n: Numbers of images of both rows; None if one is unknown.
    """

    a: Moments
    b: Moments
    n: tuple[int, int] | None

    @property
    def value(self) -> float:
        return self.a[0] - self.b[0]

    def over_seeds(self, needed: float) -> statistics.Welch:
        """Return the 95 % interval over train seeds, and the p-value of a difference of `needed`."""
        return statistics.welch_of(self.a, self.b, needed)

    def hedge(self, needed: float, comparisons: int = 1) -> Hedge:
        """Return how sure it is that the difference lies on its side of `needed`.

        Args:
            needed: The bound in percentage points.
            comparisons: Number of differences of which this one may have been chosen.
        """
        over_images = statistics.unpaired_p(self.a[0], self.b[0], self.n, needed) if self.n else math.nan
        over_seeds = self.over_seeds(needed).p
        if any(p * comparisons >= statistics.LEVEL for p in (over_images, over_seeds)):  # false for NaN
            return Hedge.NOT_SIGNIFICANT
        return Hedge.FOR_THESE_WEIGHTS if math.isnan(over_seeds) else Hedge.NONE


def _moments(line: pd.Series, column: str) -> Moments:
    seeds = line.get(f"{column}_seeds", line["seeds"])
    seeds = 1 if line["members"] > 1 or pd.isna(seeds) else int(seeds)
    return line[column], line[std_of(column)] if seeds > 1 else math.nan, seeds


Scoped = Iterator[tuple[str, list[Difference]]]  # name of a set of networks, its differences


@dataclass(frozen=True)
class Claim:
    """A claim of the paper: all of the differences are above a bound.

    Attributes:
        text: The claim in words.
        differences: Computes the differences from a leaderboard, for each set of networks.
        needed: The bound in percentage points, by data set. The paper makes the claim only for these.
    """

    text: str
    differences: Callable[[pd.DataFrame], Scoped]
    needed: dict[str, float]


def _lead(families: Iterable[str], over: str, columns: Iterable[str]) -> Callable[[pd.DataFrame], Scoped]:
    """Compare single models of some families with another family at the same depth."""

    def differences(board: pd.DataFrame) -> Scoped:
        usual = board[(board["members"] == 1) & board.apply(_is_usual, axis=1)]
        for number in dict.fromkeys(map(depth, usual["model"])):
            lines = {
                family(line["model"]): line for _, line in usual.iterrows() if depth(line["model"]) == number
            }
            pairs = [(lines[name], lines[over]) for name in families if name in lines and over in lines]
            yield f"depth {number}" if number else over, list(_measured(pairs, columns))

    return differences


def _measured(pairs: Iterable[tuple[pd.Series, pd.Series]], columns: Iterable[str]) -> Iterator[Difference]:
    for a, b in pairs:
        for column in columns:
            if pd.notna(a.get(column)) and pd.notna(b.get(column)) and _is_same_noise(a, b, column):
                sizes = a["n_examples"], b["n_examples"]
                n = None if any(map(pd.isna, sizes)) else (int(sizes[0]), int(sizes[1]))
                yield Difference(_moments(a, column), _moments(b, column), n)


def _is_same_noise(a: pd.Series, b: pd.Series, column: str) -> bool:
    """Return whether both were measured on the same corrupted images. Always true for other columns."""
    one, other = (str(line.get(f"{column}_source", line["corruption_source"])) for line in (a, b))
    return column not in NOISES or are_alike(one, other)


def _variants(board: pd.DataFrame) -> Scoped:
    """Compare In-ResNet with each of its variants at the same depth."""
    single = board[board["members"] == 1]
    for _, best in single[single.apply(_is_usual, axis=1)].iterrows():
        if family(best["model"]) == "in_resnet":
            others = [line for _, line in single.iterrows() if line["model"].startswith(f"{best['model']}_")]
            yield best["model"], list(_measured([(best, line) for line in others], ["noise", "pgd_2"]))


def _ensembles(board: pd.DataFrame) -> Scoped:
    """Compare each ensemble with the mean of its single models."""
    for _, together in board[board["members"] > 1].iterrows():
        alone = board[
            (board["model"] == together["model"])
            & (board["lambda_init"] == together["lambda_init"])
            & (board["members"] == 1)
        ]
        runs = [run for of_one in alone["runs"] for run in of_one]
        members = together["members"]  # its members, no others
        pairs = [(together, run) for run in runs if pd.isna(run["seeds"]) or run["seeds"] == members]
        yield f"{together['model']} x{together['members']}", list(_measured(pairs, AT_2))


def _along_intervals(sign: int, columns: Iterable[str]) -> Callable[[pd.DataFrame], Scoped]:
    """Compare each network with itself in the next smaller initial interval; with sign -1, the opposite."""

    def differences(board: pd.DataFrame) -> Scoped:
        by_interval = board[(board["members"] == 1) & board["lambda_init"].str.fullmatch(r"[\d.]+-[\d.]+")]
        for model, lines in by_interval.groupby("model", sort=False):
            ordered = [line for _, line in lines.sort_values("lambda_init").iterrows()]
            upwards = [(large, small) for small, large in pairwise(ordered)]
            pairs = upwards if sign > 0 else [(small, large) for large, small in upwards]
            yield str(model), list(_measured(pairs, columns))

    return differences


_DAMPED = ("in_resnet", "lambda_in_resnet")
_BOTH = dict.fromkeys(DATASETS, 0.0)
CLAIMS = (
    Claim(
        "In-ResNet and λ-In-ResNet beat ResNet under noise, on CIFAR-10 by more than 15 points",
        _lead(_DAMPED, "preact_resnet", ["noise"]),
        {"cifar10": 15.0, "cifar100": 0.0},
    ),
    Claim(
        "In-ResNet and λ-In-ResNet beat ResNet under FGSM, IFGSM and PGD at 1, 2 and 4/255",
        _lead(_DAMPED, "preact_resnet", ATTACKS),
        _BOTH,
    ),
    Claim(
        "In-ResNet and λ-In-ResNet lose less than 4 points of clean accuracy",
        _lead(_DAMPED, "preact_resnet", ["clean"]),
        dict.fromkeys(DATASETS, -4.0),
    ),
    Claim(
        "In-ResNeXt beats ResNeXt under noise",
        _lead(["in_resnext29_8x64d"], "resnext29_8x64d", ["noise"]),
        _BOTH,
    ),
    Claim("an ensemble is more accurate than the mean of its members", _ensembles, _BOTH),
    Claim("clean accuracy falls with a larger initial λ", _along_intervals(-1, ["clean"]), _BOTH),
    Claim(
        "accuracy under noise and PGD rises with a larger initial λ",
        _along_intervals(1, ["noise", "pgd_2"]),
        _BOTH,
    ),
    Claim("In-ResNet is more robust than its variants, under noise and PGD", _variants, {"cifar10": 0.0}),
)


def _tried(board: pd.DataFrame, dataset: str, source: str) -> Iterator[dict]:
    """Yield a row for each claim and scope. A claim without any difference is "not measured"."""
    board = _one_a_network(board)
    by = [board["recipe"].map(_without_interval), "n_examples", *_of_images(board)]
    for claim in CLAIMS:
        if dataset not in claim.needed:
            continue
        lines = [
            _verdict(claim, dataset, differences) | {"scope": _scope(scope, source, alike.iloc[0])}
            for _, alike in board.groupby(by, sort=False, dropna=False)
            for scope, differences in claim.differences(alike)
            if differences
        ]
        for line in lines or [{"claim": claim.text, "verdict": "not measured"}]:
            yield line | {"source": source}


def _one_a_network(board: pd.DataFrame) -> pd.DataFrame:
    """Merge the rows of each network from several runs. Each number is the one over the most train seeds.

    The columns ``<column>_seeds`` and ``<column>_source`` contain its number of train seeds and its source of
    the corrupted images, and the column ``runs`` the rows that were merged.
    """
    lines, columns = [], measured_in(board)
    alike = ["model", "recipe", "lambda_init", "members", "n_examples", *_of_images(board)]
    for _, group in board.groupby(alike, sort=False, dropna=False):
        ordered = group.sort_values("seeds", ascending=False, kind="stable", na_position="last")
        runs = ordered.to_dict("records")
        line = runs[0] | {"runs": [pd.Series(run) for run in runs]}
        for column in columns:
            best = next((run for run in runs if pd.notna(run[column])), runs[0])
            line |= {name: best[name] for name in (column, std_of(column))}
            line |= {f"{column}_seeds": best["seeds"], f"{column}_source": best["corruption_source"]}
        lines.append(line)
    return pd.DataFrame(lines) if lines else board


def _of_images(board: pd.DataFrame) -> list[str]:
    return [name for name in OF_IMAGES_COLUMNS if name in board]


def _without_interval(recipe: str) -> str:
    """Return the name of a recipe without the interval of λ, which is in the column `lambda_init`."""
    return re.sub(r"_lambda_init_[0-9p]+_[0-9p]+", "", recipe)


def _scope(scope: str, source: str, line: pd.Series) -> str:
    if source == "paper":
        return scope
    images = [f"{name} {line[name]}" for name in _of_images(line.to_frame().T) if pd.notna(line[name])]
    n = "unknown" if pd.isna(line["n_examples"]) else line["n_examples"]
    return ", ".join([scope, _without_interval(line["recipe"]), f"n = {n}", *images])


def _verdict(claim: Claim, dataset: str, differences: list[Difference]) -> dict:
    """Return the row of a claim, with its smallest difference. The claim holds if all differences hold.

    The verdict is "not significant" if other images or other train seeds might give the opposite one. Where a
    row has one train seed, it is for these weights only.
    """
    needed, comparisons = claim.needed[dataset], len(differences)
    failing = [difference for difference in differences if difference.value <= needed]
    smallest = min(differences, key=lambda difference: difference.value)
    if failing:  # one that surely fails is enough, and it had as many chances as there are differences
        hedge = max(difference.hedge(needed, comparisons) for difference in failing)
    else:
        hedge = min(difference.hedge(needed) for difference in differences)
    over_seeds = smallest.over_seeds(needed)
    return {
        "claim": claim.text,
        "comparisons": comparisons,
        "smallest": smallest.value,
        "ci_low": over_seeds.low,
        "ci_high": over_seeds.high,
        "needed": needed,
        "verdict": ("does not hold" if failing else "holds") + _HEDGES[hedge],
    }

"""Stored cells -> scored rows -> results.csv and the leaderboard. No torch here: tables rebuild at once.

A *score* is one line of results.csv. An *entry* is one line of the leaderboard: an architecture with its
recipe and λ interval averaged over its train seeds, or an ensemble of them.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pandas as pd

from robust_interp import metrics
from robust_interp.cells import Cell, Perturbation, Plan, VictimCard, digest, in_255
from robust_interp.corruptions import MEANS, SEVERITIES
from robust_interp.errors import UserError
from robust_interp.formats import TAIL_COLUMNS, to_csv
from robust_interp.store import FILE_NAME, NOT_FINITE, ZERO_GRADIENT, Outcome, Store
from robust_interp.verdict import joint

RESULT_COLUMNS = [
    "model",
    "weights_sha256",
    "recipe",
    "lambda_init",
    "train_seed",
    "members",
    "dataset",
    "subset_hash",
    "n",
    "perturbation",
    "norm",
    "eps_255",
    "alpha_255",
    "steps",
    "restarts",
    "severity",
    "attack_seed",
    "protocol",
    "accuracy",
    "ci_low",
    "ci_high",
    "max_delta_255",
    "zero_grad",
    "asr",
    "agreement",
    "improvement",
    "corruption_source",
    "precision",
    "torch",
    "torchattacks",
    "device",
    "seconds",
]
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
WORST, STRONG = "worst", "strong"
RANKED_BY = {"final": "pgd", "worst": "worst"}  # at the middle one of the measured radii


@dataclass(frozen=True)
class Score:
    """One line of results.csv.

    Attributes:
        column: Where the accuracy (percent) stands in the leaderboard.
        right: Which samples count as right, (n,) bool: the accuracy is their share.
        perturbations: What the samples went through: one perturbation, or under ``worst`` several.
        audit: What the victim's audit on this dataset came to; empty if there was none.
        code: What the code of the plug-ins is known by that made the perturbations; empty without any.
    """

    victim: VictimCard
    column: str
    accuracy: float
    row: dict
    not_finite: int = 0
    right: np.ndarray | None = field(default=None, repr=False, compare=False)
    perturbations: tuple[Perturbation, ...] = ()
    audit: str = ""
    code: str = ""

    @property
    def is_attack(self) -> bool:
        return any(perturbation.kind == "attack" for perturbation in self.perturbations)


def scores(plan: Plan, store: Store) -> list[Score]:
    """Score the cells of a plan that are finished.

    Under protocol ``final`` a cell's accuracy is that of the final iterate over all samples. Under ``worst``
    a sample must also be right when clean, and a line ``worst`` per norm and eps asks for all attacks there.
    An attack that left out what others had broken has no line of its own. A line ``strong`` per norm and eps
    is a ``worst`` of stronger attacks over samples of its own, whatever the protocol.
    """
    scored: list[Score] = []
    for cells in _by_victim(plan.cells):
        verdict = store.verdict(digest(cells[0].victim.identity), cells[0].fingerprint)
        outcomes = [finished(cell, store, plan.n) for cell in cells]
        outcomes = [(cell, outcome) for cell, outcome in outcomes if outcome]
        right = [outcome.correct(store.labels(cell.fingerprint)) for cell, outcome in outcomes]
        if plan.protocol == "worst":
            if all(cell.perturbation.kind != "clean" for cell, _ in outcomes):
                continue  # of no sample can it be said yet that it survives everything
            right, derived = _worst(outcomes, right)
        else:
            derived = []
        found = [
            _score(plan, *done, correct)
            for done, correct in zip(outcomes, right, strict=True)
            if done[0].has_own_number(plan.protocol)
        ]
        found += [_worst_score(plan, attacked, correct) for attacked, correct in derived]
        _add_success_rates(found)
        scored += [replace(score, audit=verdict) for score in found]
    _add_improvements(scored)
    return scored + (_strong(plan.strong, store) if plan.strong else [])


def _strong(plan: Plan, store: Store) -> list[Score]:
    return [
        replace(
            score,
            column=score.column.replace(WORST, STRONG, 1),
            row=score.row | {"perturbation": _name_of_all(STRONG, score.perturbations)},
        )
        for score in scores(plan, store)
        if score.column.startswith(f"{WORST}_")
    ]


def _name_of_all(name: str, perturbations: Sequence[Perturbation]) -> str:
    """What is the worst of several attacks, with their parameters."""
    names = dict.fromkeys(split_column(perturbation.column)[0] for perturbation in perturbations)
    norm, radius = perturbations[0].ball
    return f"{name}({'+'.join(names)}{'' if norm == 'Linf' else f',eps={radius:.10g}'})"


def _add_success_rates(of_victim: list[Score]) -> None:
    """`asr` of each attack on one victim: broken of what is right when clean, in percent."""
    clean = next((score.right for score in of_victim if score.column == "clean"), None)
    for score in of_victim:
        if score.is_attack and clean is not None:
            score.row["asr"] = metrics.attack_success(clean, score.right)


def _add_improvements(scored: list[Score]) -> None:
    """`improvement` of each ensemble: its accuracy less the mean of its members' under the same perturbation.

    An attack that was made elsewhere than on the ensemble is not what its members went through.
    """
    single = {(digest(s.victim.identity), s.column): s.accuracy for s in scored if s.victim.members == 1}
    for score in scored:
        members = score.victim.identity.get("ensemble", ())
        alone = [single.get((digest(member), score.column)) for member in members]
        if alone and None not in alone and not (score.is_attack and score.victim.attacked_as):
            score.row["improvement"] = score.accuracy - math.fsum(alone) / len(alone)


def finished(cell: Cell, store: Store, n: int) -> tuple[Cell, Outcome | None]:
    """What is stored of a cell, and as which: the whole cell where that is there, else with what it skips."""
    outcome = store.read(cell.whole.key, n)
    return (cell.whole, outcome) if outcome else (cell, store.read(cell.key, n))


def _by_victim(cells: Iterable[Cell]) -> list[list[Cell]]:
    grouped: dict[str, list[Cell]] = {}
    for cell in cells:
        card = cell.victim
        grouped.setdefault(digest([card.model, card.train_seed, card.identity]), []).append(cell)
    return list(grouped.values())


def _worst(outcomes: list[tuple[Cell, Outcome]], right: list[np.ndarray]):
    """Per attack: right when clean and under it; and per norm and eps: right under all of them too."""
    kinds = [cell.perturbation.kind for cell, _ in outcomes]
    clean = right[kinds.index("clean")]
    right = [
        metrics.robust(clean, [correct]) if kind == "attack" else correct
        for kind, correct in zip(kinds, right, strict=True)
    ]
    by_ball: dict[tuple, tuple[list[tuple[Cell, Outcome]], np.ndarray]] = {}
    for done, correct in zip(outcomes, right, strict=True):
        if ball := done[0].perturbation.ball:
            attacked, sofar = by_ball.get(ball, ([], clean))
            by_ball[ball] = ([*attacked, done], metrics.robust(sofar, [correct]))
    return right, list(by_ball.values())


def _score(plan: Plan, cell: Cell, outcome: Outcome, right: np.ndarray) -> Score:
    perturbation, params = cell.perturbation, cell.perturbation.params
    attacked = perturbation.kind == "attack"
    alpha = params.get("alpha") if perturbation.norm == "Linf" else None
    row = _row(plan, cell, right) | {
        "perturbation": _named(perturbation),
        "norm": perturbation.norm if attacked else None,
        "eps_255": perturbation.eps_255,
        "alpha_255": None if alpha is None else in_255(alpha),
        "steps": _steps(perturbation) if attacked else None,
        "restarts": params.get("restarts", 1) if attacked else None,
        "severity": params.get("severity"),
        "attack_seed": perturbation.seed,
        "max_delta_255": _in_255ths(outcome.max_delta, perturbation.norm),
        "zero_grad": round(float((outcome.flags & ZERO_GRADIENT).astype(bool).mean()), 4)
        if attacked
        else None,
        "agreement": outcome.agreement if cell.victim.members > 1 else None,
        "corruption_source": perturbation.source,
        "device": outcome.device,
        "seconds": round(outcome.seconds, 3),
    }
    not_finite = int((outcome.flags & NOT_FINITE).astype(bool).sum())
    return Score(
        cell.victim,
        perturbation.column,
        row["accuracy"],
        row,
        not_finite,
        right,
        (perturbation,),
        code=cell.environment.get("plugin", ""),
    )


def _named(perturbation: Perturbation) -> str:
    """The name, with the parameters that have no column of their own."""
    columns = ["norm", "steps", "restarts", "severity"]
    if perturbation.norm == "Linf":  # others are not told in units of 1/255
        columns += ["eps", "alpha"]
    extra = {key: value for key, value in perturbation.params.items() if key not in columns}
    listed = ",".join(f"{key}={value}" for key, value in extra.items())
    return f"{perturbation.name}({listed})" if extra else perturbation.name


def _in_255ths(delta: float | None, norm: str) -> float | None:
    """The size of a change in its norm; a number of pixels (L0) is no distance."""
    return None if delta is None or norm == "L0" else round(255 * delta, 4)


def _steps(perturbation: Perturbation) -> int | None:
    """An attack without steps takes one; one that counts queries, or whose steps are its own affair, none."""
    counted = "queries" in perturbation.params or perturbation.name == "autoattack"
    return None if counted else perturbation.params.get("steps", 1)


def _worst_score(plan: Plan, outcomes: list[tuple[Cell, Outcome]], right: np.ndarray) -> Score:
    cell, perturbations = outcomes[0][0], tuple(cell.perturbation for cell, _ in outcomes)
    norm, radius = cell.perturbation.ball
    linf = norm == "Linf"
    row = _row(plan, cell, right) | {
        "perturbation": _name_of_all(WORST, perturbations),
        "norm": norm,
        "eps_255": radius if linf else None,
    }
    if without_line := [
        outcome.flags for cell, outcome in outcomes if not cell.has_own_number(plan.protocol)
    ]:
        seen = np.bitwise_or.reduce(without_line)  # what is to be told of attacks that have no line
        row["zero_grad"] = round(float((seen & ZERO_GRADIENT).astype(bool).mean()), 4)
        not_finite = int((seen & NOT_FINITE).astype(bool).sum())
    else:
        not_finite = 0
    column = f"{WORST}_{radius:.10g}" if linf else f"{WORST}_{norm.lower()}_{radius:.10g}"
    code = "+".join(cell.environment["plugin"] for cell, _ in outcomes if "plugin" in cell.environment)
    return Score(cell.victim, column, row["accuracy"], row, not_finite, right, perturbations, code=code)


def _row(plan: Plan, cell: Cell, right: np.ndarray) -> dict:
    low, high = metrics.wilson(int(right.sum()), len(right))
    card = cell.victim
    return {
        "model": card.model,
        "weights_sha256": card.weights_sha256,
        "recipe": card.recipe,
        "lambda_init": card.lambda_init,
        "train_seed": card.train_seed,
        "members": card.members,
        "dataset": cell.dataset,
        "subset_hash": digest([cell.fingerprint, plan.n])[:12],
        "n": plan.n,
        "protocol": plan.protocol,
        "accuracy": 100 * float(right.mean()),
        "ci_low": low,
        "ci_high": high,
        "precision": cell.environment["precision"],
        "torch": cell.environment["torch"],
        "torchattacks": cell.environment.get("torchattacks"),
    }


def results_frame(scored: Iterable[Score]) -> pd.DataFrame:
    """results.csv as a table: one line a cell. Accuracies, intervals, `asr` and `agreement` are percentages.

    `asr`, of attacks: 100 x broken / right when clean, counted on the same samples.
    `agreement`, of ensembles: on how many of the perturbed images all members predict the same class.
    `improvement`, of ensembles: accuracy less the mean accuracy of the members, in percentage points.
    """
    frame = pd.DataFrame([score.row for score in scored]).reindex(columns=RESULT_COLUMNS)
    whole = ["train_seed", "members", "n", "steps", "restarts", "severity", "attack_seed"]
    return frame.astype(dict.fromkeys(whole, "Int64"))


@dataclass
class Entry:
    """What one line of the leaderboard is made of: scores of one or more runs that may stand together."""

    card: VictimCard
    n: int
    protocol: str
    subset_hash: str
    by_seed: dict[str, dict[str, Score]] = field(default_factory=dict)  # victim -> column -> the newest
    sources: set[str] = field(default_factory=set)  # of its corrupted images
    seeds: set[int] = field(default_factory=set)  # of its random attacks
    agreement: float = math.nan  # of an ensemble's members on clean images
    improvements: dict[str, float] = field(default_factory=dict)  # of an ensemble, by column
    audits: dict[str, str] = field(default_factory=dict)  # victim -> what its audit came to
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
        for victim, scored in other.by_seed.items():
            self.by_seed[victim] |= scored


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
        card, row = score.victim, score.row
        entry = entries.setdefault(
            entry_key(card), Entry(card, row["n"], row["protocol"], row["subset_hash"])
        )
        victim = digest([card.train_seed, card.identity])
        entry.by_seed.setdefault(victim, {})[score.column] = score
        if row.get("corruption_source"):
            entry.sources.add(row["corruption_source"])
        entry.seeds |= {p.seed for p in score.perturbations if p.seed is not None}
        if row.get("improvement") is not None:
            entry.improvements[score.column] = row["improvement"]
        if score.column == "clean" and row.get("agreement") is not None:
            entry.agreement = row["agreement"]
        entry.audits[victim] = score.audit
        if is_strong(score.column):
            entry.strong.add((row["perturbation"], row["n"]))
        elif row["perturbation"].startswith(f"{WORST}("):
            entry.worst[score.column] = row["perturbation"]
    return list(entries.values())


def entry_key(card: VictimCard) -> tuple:
    """What the victims of one entry share: only train seeds are averaged."""
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
    counts: dict[str, dict[str, set[int]]] = {}  # corruption -> victim -> severities
    for score in scored:
        if score.row.get("severity") is not None:
            victims = counts.setdefault(score.row["perturbation"], {})
            victims.setdefault(digest(score.victim.identity), set()).add(score.row["severity"])
    complete = set(SEVERITIES)
    whole = [name for name, victims in counts.items() if complete in victims.values()]
    means = [mean for mean, names in MEANS.items() if set(names) <= set(whole)]
    in_part = {name for name, victims in counts.items() if any(v != complete for v in victims.values())}
    partial = [column for column, row in corruption_rows if row["perturbation"] in in_part]
    attacks = [column for column, row in seen.items() if row.get("norm") is not None]
    series = list(dict.fromkeys(split_column(column)[0] for column in attacks))
    series.sort(key=place_of_series)
    attacks.sort(key=lambda column: (series.index(split_column(column)[0]), split_column(column)[1]))
    return [*(["clean"] if "clean" in seen else []), *means, *whole, *partial, *attacks]


def is_strong(column: str) -> bool:
    return column.startswith(f"{STRONG}_")


def place_of_series(name: str) -> int:
    """Attacks stand as they were asked for, then the worst of each norm, then the strong ones."""
    return next(
        (at for at, last in ((1, WORST), (2, STRONG)) if name == last or name.startswith(f"{last}_")), 0
    )


def split_column(column: str) -> tuple[str, float]:
    """``pgd_2`` is pgd and 2.0; a name without a number is all name."""
    name, _, number = column.rpartition("_")
    try:
        return name, float(number)
    except ValueError:
        return column, 0.0


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
            line[column], line[f"{column}_std"] = metrics.mean_std(values)
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


def results_csv(frame: pd.DataFrame) -> str:
    """Tidy results: enough decimals that n x accuracy is a whole number again."""
    return frame.to_csv(index=False, float_format="%.10g", lineterminator="\n")


def write(folder: Path, results: pd.DataFrame, board: pd.DataFrame) -> None:
    """Write results.csv and leaderboard.csv."""
    write_text(folder / "results.csv", results_csv(results))
    write_text(folder / "leaderboard.csv", to_csv(board))


def write_text(path: Path, text: str) -> None:
    """Replace a file in one step, so that a reader or a kill never meets half of it."""
    part = path.with_name(f".{path.name}.part{os.getpid()}")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise UserError(f"cannot write {path}: {error}") from error


def from_folder(folder: Path, dataset: str | None = None) -> tuple[pd.DataFrame, str]:
    """The leaderboard of every finished run in a results folder, rebuilt from its store, and its dataset.

    Raises:
        UserError: as `runs_in` does.
    """
    runs, dataset = runs_in([folder], dataset)
    return entries_frame(*runs), dataset


def runs_in(folders: Sequence[Path], dataset: str | None = None) -> tuple[list[list[Score]], str]:
    """The scores of every finished run on one dataset in results folders, oldest first, and the dataset.

    What an older version of a plug-in measured is left out where a newer one has measured the same.

    Raises:
        UserError: as `dataset_in` does.
    """
    dataset = dataset_in(folders, dataset)
    runs = []
    for folder in folders:
        with Store(folder, read_only=True) as store:
            runs += [scores(plan, store) for plan in store.plans() if plan.dataset == dataset]
    return _of_newest_code(runs), dataset


def dataset_in(folders: Sequence[Path], dataset: str | None = None) -> str:
    """The dataset of the finished runs in results folders: the one named, else the only one.

    Raises:
        UserError: if there is no finished run in a folder, or none on the dataset named, or the runs are of
            several and none is named.
    """
    found = sorted({plan.dataset for folder in folders for plan in _plans(folder)})
    where = ", ".join(map(str, folders))
    if dataset is None and len(found) > 1:
        raise UserError(f"{where} has runs on {', '.join(found)}: choose one with --dataset")
    if dataset not in (None, *found):
        raise UserError(f"{where} has no finished run on {dataset}, only on {', '.join(found)}")
    return dataset or found[0]


def _of_newest_code(runs: list[list[Score]]) -> list[list[Score]]:
    newest = {_what(score): score.code for run in runs for score in run if score.code}
    return [[s for s in run if not s.code or newest[_what(s)] == s.code] for run in runs]


def _what(score: Score) -> tuple:
    return score.column, *sorted(perturbation.name for perturbation in score.perturbations)


def _plans(folder: Path) -> list[Plan]:
    if not (folder / FILE_NAME).is_file():
        raise UserError(f"there are no results in {folder}: run robust-interp bench --out {folder}")
    with Store(folder, read_only=True) as store:
        plans = store.plans()
    if not plans:
        raise UserError(f"no run in {folder} has finished: the command that began it goes on there")
    return plans

"""Write leaderboard rows as RobustBench's model_info, one JSON file per entry. Does not import torch.

Accuracies are percentages as text, ``"94.78"``, and an Linf radius is a fraction, ``"8/255"``. A row without
AutoAttack at the requested radius has no ``autoattack_acc``, its footnote says so, and its radius is one at
which it was attacked. So has a row in which AutoAttack was only a part of ``worst``, since it is not the
accuracy under AutoAttack alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from robust_interp.core.errors import UserError
from robust_interp.core.files import make_folder, write_text
from robust_interp.corruptions import CORRUPTIONS
from robust_interp.results.column_names import declaration, parse
from robust_interp.results.columns import WORST, Kind
from robust_interp.results.precision import in_float32
from robust_interp.results.scores import Score
from robust_interp.store.cells import attack_column

L2_EPS = 0.5  # the only L2 radius in RobustBench
CORRUPTIONS_COLUMN = "common15"  # mean over 15 corruptions, as in RobustBench


@dataclass(frozen=True)
class Paper:
    """The publication of the models, for the fields of a RobustBench entry that are not measured.

    Attributes:
        name: Title of the paper; if empty, the name of the model is used.
        authors: Names of the authors.
        link: URL of the paper.
        venue: Where the paper was published.
        additional_data: Whether the models were trained with additional data.
    """

    name: str = ""
    authors: str = ""
    link: str = ""
    venue: str = ""
    additional_data: bool = False


def write(
    board: pd.DataFrame,
    dataset: str,
    folder: Path,
    eps_255: float,
    paper: Paper,
    scored: Collection[Score] = (),
) -> dict[Path, dict]:
    """Write ``<folder>/<dataset>/<threat model>/<entry>.json`` for the measured rows of a leaderboard.

    Rows with attacks in another precision than float32 are left out. An entry has a file for Linf, and files
    for L2 and corruptions if these were measured.

    Args:
        board: The leaderboard.
        dataset: Name of its data set.
        folder: Output folder.
        eps_255: Linf radius in units of 1/255. A row that was not attacked at this radius is written with
            another, see `linf_radius`, and without ``autoattack_acc``.
        paper: The publication of the models.
        scored: The scores behind the board. They say in which rows AutoAttack is a part of `worst`: there it
            only attacked what other attacks had not broken, so it has no accuracy of its own.

    Returns:
        The JSON content that was written, by file.

    Raises:
        UserError: If there is nothing to write, or two rows would be written to the same file.
    """
    made: dict[Path, tuple[dict, pd.Series]] = {}  # content and row of each file
    for _, line in board[(board["source"] == "measured") & in_float32(board)].iterrows():
        for threat_model, entry in _entries(line, dataset, eps_255, paper, scored):
            path = folder / dataset / threat_model / f"{_name(line)}.json"
            if path in made:
                both = " and ".join(
                    f"n = {row['n_examples']}, {row['protocol']}" for row in (made[path][1], line)
                )
                raise UserError(
                    f"two rows would be written to {path} ({both}): run robust-interp bench --out into a "
                    "folder of its own, and name that"
                )
            made[path] = entry, line
    if not made:
        raise UserError("nothing to write: no measured row has a clean accuracy")
    for path, (entry, _) in made.items():
        text = json.dumps(entry, indent=2, ensure_ascii=False) + "\n"
        write_text(make_folder(path.parent) / path.name, text)
    return {path: entry for path, (entry, _) in made.items()}


def linf_radius(line: pd.Series, wanted_255: float, scored: Iterable[Score] = ()) -> float | None:
    """Return the Linf radius to write for a row, in units of 1/255.

    Args:
        line: Row of the leaderboard.
        wanted_255: Preferred radius in units of 1/255.
        scored: The scores behind the board. They name the corruptions of plug-ins.

    Returns:
        The preferred radius if the row was attacked at it, otherwise the middle of the radii at which it was
        attacked; None without an Linf attack.
    """
    made = [one for score in scored for one in score.perturbations]
    corruptions = (*CORRUPTIONS, *{one.name for one in made if one.kind == "corruption"})
    attacks = [name for name in line.index if declaration(name, corruptions).kind is Kind.ATTACK]
    columns = [parse(name) for name in attacks if not pd.isna(line[name])]
    radii = sorted({column.radius for column in columns if column.norm == "Linf" and column.radius})
    if wanted_255 in radii:
        return wanted_255
    return radii[len(radii) // 2] if radii else None


def last_remark(entry: dict) -> str:
    """Return the last remark of a footnote: without ``autoattack_acc``, the reason why there is none."""
    return entry["footnote"].rpartition("; ")[2]


def _entries(
    line: pd.Series, dataset: str, eps_255: float, paper: Paper, scored: Collection[Score]
) -> Iterator[tuple[str, dict]]:
    """Yield the threat model and the JSON content of each file of a row."""
    if pd.isna(line.get("clean")):
        return
    radius = linf_radius(line, eps_255, scored)
    eps = None if radius is None else f"{radius:.10g}/255"
    attacked = _percent(line, attack_column("autoattack", "Linf", eps_255))
    missing = [] if attacked else [_without_autoattack(line, eps_255, scored)]
    accuracy = {"autoattack_acc": attacked} if attacked else {}
    yield "Linf", _entry(line, dataset, eps, paper, accuracy, missing)
    if attacked := _percent(line, attack_column("autoattack", "L2", L2_EPS)):
        yield "L2", _entry(line, dataset, f"{L2_EPS:g}", paper, {"autoattack_acc": attacked}, [])
    if mean := _percent(line, CORRUPTIONS_COLUMN):
        source = line["corruption_source"]
        made = [] if source == "released" else [f"not on the released images ({source})"]
        yield "corruptions", _entry(line, dataset, None, paper, {"corruptions_acc": mean}, made)


def _without_autoattack(line: pd.Series, eps_255: float, scored: Iterable[Score]) -> str:
    """Return why a row has no accuracy under AutoAttack."""
    column = attack_column(WORST, "Linf", eps_255)
    for score in scored:
        names = [made.name for made in score.perturbations]
        if score.column == column and "autoattack" in names and _is_of(score, line):
            accuracy = _percent(line, column)  # None if only some of the train seeds have it
            told = f", whose accuracy {accuracy} is a lower bound of its own" if accuracy else ""
            attacks = score.row["perturbation"]
            return f"AutoAttack at {eps_255:.10g}/255 was only run as a part of {attacks}{told}"
    return f"not measured with AutoAttack at {eps_255:.10g}/255"


def _is_of(score: Score, line: pd.Series) -> bool:
    """Return whether a score belongs to a row of the leaderboard, as far as their files differ."""
    same = ("model", "recipe", "members", "protocol")
    return score.row["n"] == line["n_examples"] and all(score.row[name] == line[name] for name in same)


def _entry(
    line: pd.Series, dataset: str, eps: str | None, paper: Paper, accuracy: dict, remarks: list[str]
) -> dict:
    averaged = f"ensemble of {line['members']}" if line["members"] > 1 else f"mean over {line['seeds']} seeds"
    is_averaged = line["seeds"] > 1 or line["members"] > 1
    remarks = [f"n = {line['n_examples']}", *([averaged] if is_averaged else []), *remarks]
    return {
        "link": paper.link,
        "name": paper.name or line["model"],
        "authors": paper.authors,
        "additional_data": paper.additional_data,
        "number_forward_passes": 1 if pd.isna(line.get("eot")) else int(line["eot"]),
        "dataset": dataset,
        "venue": paper.venue,
        "architecture": line["model"],
        "eps": eps,
        "clean_acc": _percent(line, "clean"),
        "reported": None,
        **accuracy,
        "footnote": "; ".join(remarks),
    }


def _percent(line: pd.Series, column: str) -> str | None:
    """Return an accuracy as text with two decimals; None if it was not measured."""
    value = line.get(column)
    return None if value is None or pd.isna(value) else f"{value:.2f}"


def _name(line: pd.Series) -> str:
    """Return the name of the entry, which RobustBench also uses as a file name."""
    parts = [line["model"], line["recipe"], f"x{line['members']}" if line["members"] > 1 else ""]
    name = "_".join(part for part in parts if part)
    return re.sub(r"[^\w.-]+", "-", name).strip("-")

"""Our leaderboard lines in the form of RobustBench's model_info: one JSON file an entry. No torch here.

Accuracies are percentages as text, ``"94.78"``, and an Linf radius is a fraction, ``"8/255"``. Only what
survived AutoAttack is an ``autoattack_acc``: a line that was attacked otherwise has none, its footnote says
so, and its radius is one that it was attacked at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from robust_interp.core.errors import UserError
from robust_interp.core.files import make_folder, write_text
from robust_interp.corruptions import CORRUPTIONS
from robust_interp.results.column_names import declaration, parse
from robust_interp.results.columns import Kind
from robust_interp.results.precision import in_float32
from robust_interp.store.cells import attack_column

L2_EPS = 0.5  # the one L2 radius of RobustBench
CORRUPTIONS_COLUMN = "common15"  # the mean over the 15 corruptions of CIFAR-C, which RobustBench takes


@dataclass(frozen=True)
class Paper:
    """Where the models were described; what RobustBench's entry says beside the numbers."""

    name: str = ""
    authors: str = ""
    link: str = ""
    venue: str = ""
    additional_data: bool = False


def write(board: pd.DataFrame, dataset: str, folder: Path, eps_255: float, paper: Paper) -> dict[Path, dict]:
    """Write ``<folder>/<dataset>/<threat model>/<entry>.json`` for the measured lines of a leaderboard.

    Lines that were attacked in another precision than float32 are left out. An entry has a file for Linf, and
    for L2 and corruptions if it was measured there.

    Args:
        eps_255: The Linf radius, in units of 1/255. A line that was not attacked there has another, see
            `linf_radius`, and no ``autoattack_acc``.

    Returns:
        What was written, by file.

    Raises:
        UserError: if nothing is there to write, or two lines would be the same entry.
    """
    files: dict[Path, dict] = {}
    for _, line in board[(board["source"] == "measured") & in_float32(board)].iterrows():
        for threat_model, entry in _entries(line, dataset, eps_255, paper):
            path = folder / dataset / threat_model / f"{_name(line)}.json"
            if path in files:
                raise UserError(f"two rows would be written to {path}: use a single results folder or run")
            files[path] = entry
    if not files:
        raise UserError("nothing to write: no measured row has a clean accuracy")
    for path, entry in files.items():
        text = json.dumps(entry, indent=2, ensure_ascii=False) + "\n"
        write_text(make_folder(path.parent) / path.name, text)
    return files


def linf_radius(line: pd.Series, wanted_255: float) -> float | None:
    """The Linf radius that a line is written with, in units of 1/255: one that it was attacked at.

    It is the one wanted if any attack was made there, else the middle one of those that were; None without
    an Linf attack.
    """
    corruptions = tuple(CORRUPTIONS)
    attacks = [name for name in line.index if declaration(name, corruptions).kind is Kind.ATTACK]
    columns = [parse(name) for name in attacks if not pd.isna(line[name])]
    radii = sorted({column.radius for column in columns if column.norm == "Linf" and column.radius})
    if wanted_255 in radii:
        return wanted_255
    return radii[len(radii) // 2] if radii else None


def _entries(line: pd.Series, dataset: str, eps_255: float, paper: Paper) -> Iterator[tuple[str, dict]]:
    """(threat model, JSON) of one line."""
    if pd.isna(line.get("clean")):
        return
    radius = linf_radius(line, eps_255)
    eps = None if radius is None else f"{radius:.10g}/255"
    attacked = _percent(line, attack_column("autoattack", "Linf", eps_255))
    missing = [] if attacked else [f"not measured with AutoAttack at {eps_255:.10g}/255"]
    accuracy = {"autoattack_acc": attacked} if attacked else {}
    yield "Linf", _entry(line, dataset, eps, paper, accuracy, missing)
    if attacked := _percent(line, attack_column("autoattack", "L2", L2_EPS)):
        yield "L2", _entry(line, dataset, f"{L2_EPS:g}", paper, {"autoattack_acc": attacked}, [])
    if mean := _percent(line, CORRUPTIONS_COLUMN):
        source = line["corruption_source"]
        made = [] if source == "released" else [f"not on the released images ({source})"]
        yield "corruptions", _entry(line, dataset, None, paper, {"corruptions_acc": mean}, made)


def _entry(
    line: pd.Series, dataset: str, eps: str | None, paper: Paper, accuracy: dict, remarks: list[str]
) -> dict:
    averaged = f"ensemble of {line['members']}" if line["members"] > 1 else f"mean over {line['seeds']} seeds"
    remarks = [f"n = {line['n_examples']}", *([averaged] if line["seeds"] > 1 else []), *remarks]
    return {
        "link": paper.link,
        "name": paper.name or line["model"],
        "authors": paper.authors,
        "additional_data": paper.additional_data,
        "number_forward_passes": 1,
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
    """An accuracy with two decimals, as text; None if it was not measured."""
    value = line.get(column)
    return None if value is None or pd.isna(value) else f"{value:.2f}"


def _name(line: pd.Series) -> str:
    """The entry's name: RobustBench makes a file name of it, too."""
    parts = [line["model"], line["recipe"], f"x{line['members']}" if line["members"] > 1 else ""]
    name = "_".join(part for part in parts if part)
    return re.sub(r"[^\w.-]+", "-", name).strip("-")

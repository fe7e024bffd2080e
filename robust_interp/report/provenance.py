"""What the report tells beside accuracies: λ of the checkpoints, audits, and how the numbers were made."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from pathlib import Path

import pandas as pd

from robust_interp import zoo
from robust_interp.audit.checks import conclude
from robust_interp.core import environment
from robust_interp.core.blocks import places
from robust_interp.core.errors import DamageWarning, UserError
from robust_interp.core.json_values import read_object
from robust_interp.results.scores import Score
from robust_interp.store import Store
from robust_interp.store.cells import FLOAT32, Perturbation, digest, in_255

AUDIT = "audit.csv"  # in a results folder
_AUDITED = ["model", "recipe", "lambda_init", "train_seed", "members"]


def coefficients(checkpoints: Iterable[zoo.Checkpoint], weights: Iterable[str]) -> pd.DataFrame:
    """act(λ) over depth after training, as train.json records it; only of weights that were measured.

    Args:
        weights: SHA-256 of the weights files.

    Returns:
        One line a checkpoint and block, as figures of coefficients take them: model, train_seed, block,
        stage, depth (from 1), blocks, images (0), mean. Empty if none of them recorded a λ.
    """
    weights, lines = set(weights), []
    for checkpoint in checkpoints:
        try:
            record = checkpoint.record
        except UserError as error:
            warnings.warn(f"{error}; its λ are left out", DamageWarning, stacklevel=2)
            continue
        if record["weights_sha256"] in weights:
            head = {"model": checkpoint.architecture, "recipe": checkpoint.recipe, "images": 0}
            head["train_seed"] = checkpoint.seed
            final = record.get("lambda", {})
            for block, place in places(final).items():
                lines.append(head | place | {"block": block, "mean": final[block]})
    columns = ["model", "recipe", "train_seed", "block", "stage", "depth", "blocks", "images", "mean"]
    table = pd.DataFrame(lines, columns=columns)
    if table["recipe"].nunique() > 1:
        table["model"] += " @" + table["recipe"]
    return table.drop(columns="recipe")


def audits(folders: Sequence[Path], dataset: str) -> pd.DataFrame:
    """The lines of the folders' audit.csv on a dataset, as texts; empty if there are none.

    Raises:
        UserError: if one cannot be read or is none.
    """
    found = []
    for path in (folder / AUDIT for folder in folders if (folder / AUDIT).is_file()):
        try:
            table = pd.read_csv(path, dtype=str, keep_default_na=False)
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read {path}: {error}") from error
        if missing := {*_AUDITED, "dataset", "check", "verdict", "n", "detail"} - set(table):
            raise UserError(f"{path} is not an audit: it lacks {', '.join(sorted(missing))}")
        found.append(table[table["dataset"] == dataset])
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def verdicts(audited: pd.DataFrame) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """What is told of each classifier, and for each its name with that.

    It is what the audit comes to, and then the worst verdict of each check.
    """
    checks = list(dict.fromkeys(audited["check"]))
    rows = []
    for _, lines in audited.groupby(_AUDITED, sort=False):
        worst = {check: _worst(part["verdict"]) for check, part in lines.groupby("check")}
        counts = (int(n) if n.isdigit() else 0 for n in lines["n"])  # as written by a reader's own program
        whole = conclude(zip(lines["check"], lines["verdict"], counts, strict=True))
        rows.append(
            (classifier_name(lines.iloc[0]), [str(whole), *(worst.get(check, "") for check in checks)])
        )
    return ["audit", *checks], rows


def classifier_name(line: pd.Series) -> str:
    if line["members"] not in ("", "1"):
        return f"{line['model']} ×{line['members']}"
    return f"{line['model']} seed {line['train_seed']}" if line["train_seed"] else line["model"]


def _worst(found: Iterable[str]) -> str:
    order = ("pass", "not run", "open", "warn", "fail")
    return max(found, key=lambda verdict: order.index(verdict) if verdict in order else len(order))


def environments(folders: Sequence[Path]) -> pd.DataFrame:
    """What each folder's environment.json tells of the machine and the software, whatever of it is there.

    Returns:
        One line a fact: results (the folder's name), what, value. Empty if no folder has the file.

    Raises:
        UserError: if one cannot be read or holds no object.
    """
    lines = []
    for path in (folder / environment.FILE_NAME for folder in folders):
        if path.is_file():
            facts = {key: _fact(value) for key, value in read_object(path).items()}
            lines += [
                {"results": path.parent.resolve().name, "what": key.replace("_", " "), "value": fact}
                for key, fact in facts.items()
                if fact
            ]
    return pd.DataFrame(lines, columns=["results", "what", "value"])


def _fact(value: object) -> str:
    """A JSON value as a text: lists with commas, objects as `name value`; empty where there is nothing."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_fact(one)}" for name, one in value.items() if _fact(one))
    if isinstance(value, list):
        return ", ".join(map(_fact, value))
    return "" if value is None else str(value)


def fingerprints(folders: Sequence[Path], dataset: str) -> list[str]:
    """SHA-256 of the images and labels that were measured on."""
    found = set()
    for folder in folders:
        with Store(folder, read_only=True) as store:
            found |= {c.fingerprint for plan in store.plans() if plan.dataset == dataset for c in plan.cells}
    return sorted(found)


def samples(results: pd.DataFrame) -> pd.DataFrame:
    """Which images were measured, by which protocol and versions: one line for each combination."""
    columns = ["dataset", "subset_hash", "n", "protocol", "precision", "torch", "device"]
    versions = results["torchattacks"].dropna().unique()
    table = results[columns].drop_duplicates()
    return table.assign(torchattacks=", ".join(sorted(map(str, versions)))).reset_index(drop=True)


def attacks(scored: Iterable[Score]) -> pd.DataFrame:
    """Each attack with its parameters, the largest change of a pixel and share of zero gradients."""
    lines: dict[tuple, dict] = {}
    for score in scored:
        for made in score.perturbations:
            if made.kind == "attack":
                line = lines.setdefault((made.column, digest(made.describe())), _parameters(made))
                if len(score.perturbations) == 1:
                    for name in ("max_delta_255", "zero_grad"):
                        line[name] = max(
                            filter(pd.notna, (line.get(name), score.row.get(name))), default=None
                        )
    return pd.DataFrame(lines.values())


def _parameters(attack: Perturbation) -> dict:
    """Radius and step size in units of 1/255 where the norm is L∞; what has no column of its own in one."""
    params, eps_255 = dict(attack.params), attack.eps_255
    alpha_255 = None
    if eps_255 is not None:
        del params["eps"]
        alpha = attack.number("alpha")
        params.pop("alpha", None)
        alpha_255 = None if alpha is None else in_255(alpha)
    steps = params.pop("steps", None)
    return {
        "column": attack.column,
        "attack": attack.name,
        "eps_255": eps_255,
        "alpha_255": alpha_255,
        "steps": steps,
        "other parameters": ", ".join(f"{name}={value}" for name, value in params.items()) or None,
        "attack_seed": attack.seed,
        "attack_precision": None if attack.precision == FLOAT32 else attack.precision,
    }


def corruptions(results: pd.DataFrame) -> pd.DataFrame:
    """Each corruption, its severities and where its images come from."""
    corrupted = results[results["severity"].notna()]
    groups = corrupted.groupby(["perturbation", "corruption_source"], sort=False)["severity"]
    listed = groups.agg(lambda found: ", ".join(str(severity) for severity in sorted(set(found))))
    return listed.reset_index().rename(columns={"severity": "severities"})


def weights(results: pd.DataFrame) -> pd.DataFrame:
    """Which weights were measured."""
    columns = ["model", "recipe", "lambda_init", "members", "train_seed", "weights_sha256"]
    return results[columns].drop_duplicates().reset_index(drop=True)

"""Tables of the report besides accuracies: λ of the checkpoints, audits, and provenance of the numbers."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path

import pandas as pd

from robust_interp import zoo
from robust_interp.audit.checks import conclude
from robust_interp.core import environment
from robust_interp.core.blocks import places
from robust_interp.core.errors import DamageWarning, UserError
from robust_interp.core.json_values import read_object
from robust_interp.core.unique_names import told_apart
from robust_interp.figures.origin import FigureOrigin
from robust_interp.results.columns import AUDIT_FILE, OF_IMAGES_COLUMNS
from robust_interp.results.frames import whole_numbers
from robust_interp.results.rows import parameters
from robust_interp.results.scores import Score
from robust_interp.store import Store
from robust_interp.store.cells import FLOAT32, Perturbation, digest, labels
from robust_interp.store.verdicts import OF_CHECKS

_AUDITED = ["model", "recipe", "lambda_init", "train_seed", "members"]


def coefficients(checkpoints: Iterable[zoo.Checkpoint], weights: Iterable[str]) -> pd.DataFrame:
    """Return act(λ) over depth after training, as recorded in train.json, for the measured checkpoints.

    Args:
        checkpoints: The checkpoints. Unreadable ones are left out with a warning.
        weights: SHA-256 of the weights files that were measured.

    Returns:
        One row per checkpoint and block, as in `analysis.coefficients.over_depth`: model, train_seed, block,
        stage, depth (from 1), blocks, images (0), mean. Empty if no measured checkpoint has a λ.
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
    """Return the rows for a data set in the audit.csv of all folders, as texts; empty if there are none.

    Raises:
        UserError: if a file cannot be read or is not an audit.
    """
    found = []
    for path in (folder / AUDIT_FILE for folder in folders if (folder / AUDIT_FILE).is_file()):
        try:
            table = pd.read_csv(path, dtype=str, keep_default_na=False)
        except (OSError, ValueError) as error:
            raise UserError(f"cannot read {path}: {error}") from error
        if missing := {*_AUDITED, "dataset", "check", "verdict", "n", "detail"} - set(table):
            raise UserError(f"{path} is not an audit: it lacks {', '.join(sorted(missing))}")
        if "weights_sha256" not in table:
            table["weights_sha256"] = ""  # written by version 0.1
        found.append(table[table["dataset"] == dataset])
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def verdicts(
    audited: pd.DataFrame, names: Mapping[Hashable, str]
) -> tuple[list[str], list[tuple[str, list[str]]]]:
    """Return the verdicts of each audited classifier.

    Args:
        audited: Result of `audits`.
        names: Result of `classifier_names`.

    Returns:
        The column names: ``audit`` for the conclusion, then each check. And a row per classifier: its name,
        the conclusion, and its worst verdict in each check ('' if it lacks the check).
    """
    checks = list(dict.fromkeys(audited["check"]))
    rows = []
    for _, lines in audited.groupby([*_AUDITED, "weights_sha256"], sort=False):
        worst = {check: _worst(part["verdict"]) for check, part in lines.groupby("check")}
        counts = (int(n) if n.isdigit() else 0 for n in lines["n"])  # other programs may write other texts
        radii = map(_radius, lines["eps_255"] if "eps_255" in lines else [""] * len(lines))
        whole = conclude(zip(lines["check"], lines["verdict"], counts, radii, strict=True))
        rows.append((names[lines.index[0]], [str(whole), *(worst.get(check, "") for check in checks)]))
    return ["audit", *checks], rows


def classifier_names(audited: pd.DataFrame) -> dict[Hashable, str]:
    """Return the name of the classifier in each row, with its recipe or weights where several share a name.

    The keys are those of the rows.
    """
    names = [_name(line) for _, line in audited.iterrows()]
    recipes = [f"@{recipe}" if recipe else "" for recipe in audited["recipe"]]
    weights = [f", weights {sha256[:12] or 'not recorded'}" for sha256 in audited["weights_sha256"]]
    return dict(zip(audited.index, told_apart(told_apart(names, recipes), weights), strict=True))


def _name(line: pd.Series) -> str:
    if line["members"] not in ("", "1"):
        return f"{line['model']} ×{line['members']}"
    return f"{line['model']} seed {line['train_seed']}" if line["train_seed"] else line["model"]


def _worst(found: Iterable[str]) -> str:
    """Return the worst verdict; an unknown text counts as worse than all."""
    known = dict(zip(OF_CHECKS, range(len(OF_CHECKS)), strict=True))
    return max(found, key=lambda verdict: known.get(verdict, len(known)))


def _radius(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def environments(folders: Sequence[Path]) -> pd.DataFrame:
    """Return what each folder's environment.json contains about the machine and the software.

    Returns:
        One row per fact: results (name of the folder), what, value. Empty if no folder has the file.

    Raises:
        UserError: if a file cannot be read or does not contain an object.
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
    """Return a JSON value as a text: lists with commas, objects as `name value`; empty for null."""
    if isinstance(value, dict):
        return ", ".join(f"{name} {_fact(one)}" for name, one in value.items() if _fact(one))
    if isinstance(value, list):
        return ", ".join(map(_fact, value))
    return "" if value is None else str(value)


def figure_origin(drawn: Iterable[Score], dataset: str, n: int, shows: str) -> FigureOrigin:
    """Return the origin of a figure that is drawn from stored scores.

    Args:
        drawn: The scores that are drawn, and no others.
        dataset: Name of the data set.
        n: Number of test images.
        shows: What the figure shows, for a caption.
    """
    cards = [score.classifier for score in drawn]
    weights = {name: card.weights_sha256 for name, card in zip(labels(cards), cards, strict=True)}
    return FigureOrigin(dataset, weights, n, shows)


def fingerprints(folders: Sequence[Path], dataset: str) -> list[str]:
    """Return the SHA-256 fingerprints of a data set's images and labels in the stored runs."""
    found = set()
    for folder in folders:
        with Store(folder, read_only=True) as store:
            found |= {c.fingerprint for plan in store.plans() if plan.dataset == dataset for c in plan.cells}
    return sorted(found)


def samples(results: pd.DataFrame) -> pd.DataFrame:
    """Return the measured images, protocols and versions, one row per combination."""
    columns = ["dataset", "subset_hash", "n", "protocol", "precision", "torch", "device"]
    columns += [name for name in OF_IMAGES_COLUMNS if name in results]
    versions = results["torchattacks"].dropna().unique()
    table = results[columns].drop_duplicates()
    return table.assign(torchattacks=", ".join(sorted(map(str, versions)))).reset_index(drop=True)


def attacks(scored: Iterable[Score]) -> pd.DataFrame:
    """Return each attack with its parameters, the largest change of a pixel and share of zero gradients."""
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
    seeds = whole_numbers(line["attack_seed"] for line in lines.values())
    return pd.DataFrame(lines.values()).assign(attack_seed=seeds)


def _parameters(attack: Perturbation) -> dict:
    """Return the table row of an attack, with the columns of results.csv, and all other parameters as one."""
    columns, others = parameters(attack)
    return {
        "column": attack.column,
        "attack": attack.name,
        **{name: columns[name] for name in ("norm", "eps_255", "alpha_255", "steps", "restarts")},
        "other parameters": ", ".join(f"{name}={value}" for name, value in others.items()) or None,
        "attack_seed": columns["attack_seed"],
        "attack_precision": None if attack.precision == FLOAT32 else attack.precision,
    }


def corruptions(results: pd.DataFrame) -> pd.DataFrame:
    """Return each corruption with its severities and the source of its images."""
    corrupted = results[results["severity"].notna()]
    groups = corrupted.groupby(["perturbation", "corruption_source"], sort=False)["severity"]
    listed = groups.agg(lambda found: ", ".join(str(severity) for severity in sorted(set(found))))
    return listed.reset_index().rename(columns={"severity": "severities"})


def weights(results: pd.DataFrame) -> pd.DataFrame:
    """Return the measured weights with model, recipe, λ interval, members and train seed, one row each."""
    columns = ["model", "recipe", "lambda_init", "members", "train_seed", "weights_sha256"]
    return results[columns].drop_duplicates().reset_index(drop=True)

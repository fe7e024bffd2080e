"""Write the report's folder: index.html with its figures and tables."""

from __future__ import annotations

import re
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import pandas as pd
from markupsafe import Markup, escape

from robust_interp import __version__, zoo
from robust_interp.core.csv_text import csv_text
from robust_interp.core.errors import UserError
from robust_interp.core.files import make_folder, write_text
from robust_interp.core.paths import resolved
from robust_interp.core.percent import percent
from robust_interp.core.registry import unknown
from robust_interp.core.work import ProgressCallback, no_progress, part_of_progress
from robust_interp.data import DATASETS
from robust_interp.figures import coefficients, files, landscape, origin, robustness, stability
from robust_interp.report import curves, graphics, provenance
from robust_interp.report.board import MEASURED
from robust_interp.report.board import table as board_table
from robust_interp.report.glossary import anchor, definition
from robust_interp.results import combine, export, paper
from robust_interp.results.column_names import declaration
from robust_interp.results.columns import AUDIT_FILE, STD
from robust_interp.results.folders import runs_in
from robust_interp.results.scores import Score, results_frame
from robust_interp.store import FILE_NAME
from robust_interp.store.verdicts import FAIL, NOT_RUN, OPEN, PASS, WARN

if TYPE_CHECKING:  # optional: `figures` reports its absence
    from matplotlib.figure import Figure

_BAND = (
    "Lines are means over train seeds, bands their 95 % interval (Student’s t, as in the table). A single "
    "run, such as an ensemble, has bars: the 95 % Wilson interval over the images."
)
_READ, _ROBUSTNESS = 0.05, 0.9  # shares of the work finished after each step
_BY_EPS, _BY_SEVERITY = 0.6, 0.9  # likewise, within the figures of robustness
_NAMED = 6  # largest number of models named in a caption
_LANDSCAPES = (landscape.LINE_SHOWS, landscape.PLANE_SHOWS)
_DRAWN = {  # what older figures show, which do not say it themselves, by the names that commands gave them
    "coefficients": coefficients.DEPTH_SHOWS,
    "coefficients_training": coefficients.TRAINING_SHOWS,
    "curve": robustness.EPS_SHOWS,
    "landscape_line": landscape.LINE_SHOWS,
    "landscape_plane": landscape.PLANE_SHOWS,
    "stability": stability.JACOBIAN_SHOWS,
    "stability_growth": stability.GROWTH_SHOWS,
}


@dataclass(frozen=True)
class FolderResults:
    """All results for one data set from the results folders of a report; empty without folders."""

    folders: list[Path]
    dataset: str = ""
    runs: list[list[Score]] = field(default_factory=list)  # oldest first

    @cached_property
    def scored(self) -> list[Score]:
        return [score for run in self.runs for score in run]

    @cached_property
    def results(self) -> pd.DataFrame:
        return results_frame(self.scored).drop_duplicates(ignore_index=True)


@dataclass(frozen=True)
class Section:
    id: str
    heading: str
    figures: list[dict]


def write(
    sources: Sequence[Path],
    out: Path,
    dataset: str | None = None,
    zoo_folder: str | None = None,
    figures: Path | None = None,
    title: str | None = None,
    baseline: str | None = None,
    progress: ProgressCallback = no_progress,
) -> Path:
    """Write the report of results folders and leaderboard CSV files.

    Args:
        sources: Results folders, leaderboard CSV files and names of bundled leaderboards.
        out: Folder of the report.
        dataset: Name of the data set, if the folders have several or the files do not contain it.
        zoo_folder: Folder of further checkpoints. The report shows λ of the measured checkpoints.
        figures: Folder of figures drawn before, whose SVG files are also shown.
        title: Heading of the page; by default it names the data set and the CSV files.
        baseline: Name of the model that differences are shown to; by default that of `curves.usual_baseline`.
        progress: Progress callback.

    Returns:
        Path of the page.

    Raises:
        UserError: if a source is missing or invalid, or if the report cannot be written.
    """
    held = {resolved(path if path.is_dir() else path.parent) for path in sources}
    if resolved(out) in held or (out / FILE_NAME).exists():  # its tables would be replaced
        raise UserError(f"{out} contains results: a report needs a separate folder, set it with --out")
    dataset = combine.dataset_of(sources, dataset)
    progress(0.0, "reading")
    board, sources_named, ranked_by = combine.gather(sources, dataset)
    found = _measured([path for path in sources if path.is_dir()], dataset)
    audited = provenance.audits(found.folders, found.dataset)
    baseline = _baseline(found, baseline)
    checkpoints = zoo.checkpoints(zoo_folder, found.dataset)
    drawn = _drawn(figures, dataset, _weights(found))
    _write_tables(out, board, found, audited)  # not before, so that a refusal leaves an older report whole
    sections = _robustness(found, board, baseline, out, part_of_progress(progress, _READ, _ROBUSTNESS))
    progress(_ROBUSTNESS, "coefficients")
    sections += [*_coefficients(found, checkpoints, out), *drawn]
    page = _render(
        title=title or f"Robustness report: {sources_named}",
        lead=_lead(board),
        board=board_table(board, _corruptions(found), ranked_by),
        has_results=bool(found.scored),
        has_published=(board["source"] != MEASURED).any(),
        has_ensembles=(board["members"] > 1).any() and (board["members"] == 1).any(),
        has_several_seeds=((board["members"] == 1) & (board["seeds"] > 1)).any(),
        figure_sections=sections,
        audit=_audit(audited) if len(audited) else None,
        claims=_claims(board, dataset, out),
        made=_made(found),
        definitions=_definitions(board, found),
    )
    write_text(out / "index.html", page)
    return out / "index.html"


def _write_tables(out: Path, board: pd.DataFrame, found: FolderResults, audited: pd.DataFrame) -> None:
    """Write the tables of a report beside its page, in a folder that is created if it is missing."""
    make_folder(out)
    write_text(out / "leaderboard.csv", export.to_csv(board))
    if found.scored:
        write_text(out / "results.csv", export.results_csv(found.results))
    if len(audited):
        write_text(out / AUDIT_FILE, csv_text(audited))


def _measured(folders: list[Path], dataset: str | None) -> FolderResults:
    if not folders:
        return FolderResults([])
    runs, dataset = runs_in(folders, dataset)
    return FolderResults(folders, dataset, runs)


def _render(**content: Any) -> str:
    loader = jinja2.PackageLoader("robust_interp.report", "")
    environment = jinja2.Environment(loader=loader, autoescape=True, undefined=jinja2.StrictUndefined)
    sections = [("leaderboard", "Leaderboard")]
    sections += [(section.id, section.heading) for section in content["figure_sections"]]
    optional = (("audit", "Audit"), ("claims", "The paper’s claims"), ("made", "How it was made"))
    sections += [(name, heading) for name, heading in optional if content[name]]
    sections.append(("definitions", "Definitions"))
    texts = {
        name: Markup(loader.get_source(environment, f"{name}.{ending}")[0])  # contains no user data
        for name, ending in (("style", "css"), ("script", "js"))
    }
    page = environment.get_template("page.html")
    return page.render(content, **texts, sections=sections, version=__version__) + "\n"


def _lead(board: pd.DataFrame) -> str:
    ns = ", ".join(str(n) for n in sorted(set(board["n_examples"].dropna())))
    protocols = ", ".join(sorted(set(board["protocol"])))
    entries = f"{len(board)} {'entry' if len(board) == 1 else 'entries'}"
    recipes = sorted(set(board["recipe"].dropna()) - {""})
    recipe = f", recipe {recipes[0]}" if board["recipe"].nunique() == 1 and recipes else ""
    return f"{entries}, n = {ns} test images, protocol {protocols}{recipe}"


# The leaderboard


def _weights(found: FolderResults) -> set[str]:
    """Return the SHA-256 of the weights files of measured single models."""
    return {score.row["weights_sha256"] for score in found.scored if score.classifier.members == 1}


def _corruptions(found: FolderResults) -> set[str]:
    return {score.row["perturbation"] for score in found.scored if score.row.get("severity") is not None}


def _definitions(board: pd.DataFrame, found: FolderResults) -> list[dict]:
    """Return a definition per column in the leaderboard's order; all radii of one attack share one."""
    names: dict[str, list[str]] = {}
    for column in map(str, board):
        if declaration(column) is not STD:
            names.setdefault(anchor(column), []).append(column)
    corruptions = _corruptions(found)
    return [
        {"anchor": at, "columns": ", ".join(columns), "text": definition(columns[0], corruptions)}
        for at, columns in names.items()
    ]


# Figures


def _baseline(found: FolderResults, asked: str | None) -> str | None:
    """Return the name of the model that differences are shown to: the given one, or the usual one.

    Raises:
        UserError: if the results folders do not have it.
    """
    models = {score.classifier.model for score in found.scored}
    if asked is not None and asked not in models:
        raise unknown("baseline", asked, models)
    return asked or curves.usual_baseline(score.classifier for score in found.scored)


def _robustness(
    found: FolderResults, board: pd.DataFrame, baseline: str | None, out: Path, progress: ProgressCallback
) -> list[Section]:
    if not found.scored:
        return []
    chance = 100 / DATASETS[found.dataset].classes if found.dataset in DATASETS else None
    points = curves.points(found.runs)
    gains = curves.improvements(found.runs)
    sections = []
    progress(0.0, "accuracy against ε")
    if (points["kind"] == curves.ATTACK).any():
        figure = _by_eps(found, board, points, baseline, chance, out)
        sections.append(Section("eps", "Accuracy against ε", [figure]))
    progress(_BY_EPS, "corruption severity")
    if (points["kind"] == curves.CORRUPTION).any():
        sources = ", ".join(sorted(set(points["corruption_source"]) - {""}))
        table = points[points["kind"] != curves.ATTACK]
        figure = _figure(
            robustness.severity_figure(points),
            out / "accuracy_by_severity",
            table,
            f"Accuracy against the severity of each corruption; 0 is the clean images (corrupted "
            f"images: {sources}). {_BAND} Each panel has its own axis, which may not start at 0. "
            f"{_measured_on(found, table)}",
        )
        sections.append(Section("severity", "Corruption severity", [figure]))
    progress(_BY_SEVERITY, "ensembles")
    if len(gains):
        figure = _figure(
            robustness.improvement_figure(gains),
            out / "ensemble_improvement",
            gains,
            f"Accuracy of each ensemble minus the mean accuracy of its members under the same perturbation; "
            f"“corrupted” is the mean over corruptions and severities. Lines on the bars are 95 % intervals "
            f"over the images; a bar without a line has no known interval. {_measured_on(found, gains)}",
        )
        sections.append(Section("ensembles", "Improvement by ensembles", [figure]))
    return sections


def _by_eps(
    found: FolderResults,
    board: pd.DataFrame,
    points: pd.DataFrame,
    baseline: str | None,
    chance: float | None,
    out: Path,
) -> dict:
    drawn = points[points["kind"] == curves.ATTACK]
    panels = set(zip(drawn["series"], drawn["members"] > 1, strict=True))
    published = curves.published(board, {score.classifier.model for score in found.scored}, panels)
    differences = curves.differences(found.runs, baseline) if baseline else pd.DataFrame()
    caption = f"{robustness.EPS_SHOWS} {_BAND}"
    if len(differences):
        files.write_table(differences, out / "difference_by_eps")
        caption += (
            f" To the right of each: the difference to {baseline} under the same perturbation, single models "
            "with single models, ensembles with ensembles; bars are 95 % intervals (Welch’s over train "
            "seeds, or of paired images between single runs); a difference without an interval has no bar."
        )
    if len(published):
        caption += (
            " Grey lines are published numbers for other images or training; they were not measured here."
        )
    if set(differences.get("baseline", ())) - {baseline}:
        caption += f" The differences are from {', '.join(dict.fromkeys(differences['baseline']))}."
    if chance is not None:
        caption += " The dotted line is the accuracy of guessing."
    figure = robustness.eps_figure(
        points,
        differences if len(differences) else None,
        baseline or "",
        chance,
        published if len(published) else None,
    )
    table = points[points["kind"] != curves.CORRUPTION]
    shown = _figure(figure, out / "accuracy_by_eps", table, f"{caption} {_measured_on(found, table)}")
    return shown | {"files": [*shown["files"], *(["difference_by_eps.csv"] if len(differences) else [])]}


def _measured_on(found: FolderResults, drawn: pd.DataFrame) -> str:
    """Return the data set, the n of what is drawn, and the models with their train seeds, for a caption."""
    if "kind" in drawn:  # of an entry without a curve nothing is drawn
        drawn = drawn[drawn["kind"] != curves.CLEAN]
    ns = ", ".join(f"{n:,}" for n in sorted(set(drawn["n"])))
    seeds: dict[str, set[int]] = {}
    for card in (score.classifier for score in found.scored):
        seeds.setdefault(card.model + (f" @{card.recipe}" if card.recipe else ""), set()).update(card.seeds)
    named = [f"{name} {_seeds(sorted(of))}".strip() for name, of in seeds.items()]
    listed = ", ".join(named) if len(named) <= _NAMED else f"{len(named)} models, all listed under Weights"
    return f"Data set {found.dataset}, n = {ns} test images; {listed}."


def _seeds(of: Sequence[int]) -> str:
    if not of:
        return ""
    return f"(train seed{'s' if len(of) > 1 else ''} {', '.join(map(str, of))})"


def _figure(figure: Figure, stem: Path, table: pd.DataFrame, caption: str) -> dict:
    """Write a figure and its numbers, and return its elements for the page."""
    written = files.with_table(figure, table, stem)
    svg = next(path for path in written if path.suffix == ".svg")
    label = _first_sentence(caption)
    return {
        "svg": Markup(graphics.inline(svg.read_text(encoding="utf-8"), stem.name, escape(label))),
        "png": next(path.name for path in written if path.suffix == ".png"),
        "label": label,
        "caption": caption,
        "files": [path.name for path in written],
    }


def _first_sentence(caption: str) -> str:
    """Return the first sentence without its full stop; a column such as pgd_0.5 may be in it."""
    return re.split(r"\.(?=\s|$)", caption, maxsplit=1)[0]


def _coefficients(found: FolderResults, checkpoints: list[zoo.Checkpoint], out: Path) -> list[Section]:
    if not found.scored:
        return []
    table = provenance.coefficients(checkpoints, _weights(found))
    if table.empty:
        return []
    caption = (
        "act(λ), which damps the skip connection of each block, over depth after training, for the measured "
        "weights. Thin lines are train seeds, bands one standard deviation. Up to 1 the skip connection is "
        "damped, above 1 it is negative, and above 2/Δt forward Euler steps are unstable. "
        f"Data set {found.dataset}; {_checkpoints(table)}."
    )
    figure = _figure(coefficients.depth_figure(table), out / "coefficients", table, caption)
    return [Section("coefficients", "Interpolation coefficients", [figure])]


def _checkpoints(table: pd.DataFrame) -> str:
    seeds = table.groupby("model", sort=False)["train_seed"].unique()
    return ", ".join(f"{model} {_seeds(sorted(of))}" for model, of in seeds.items())


def _drawn(folder: Path | None, dataset: str | None, weights: Collection[str]) -> list[Section]:
    """Return a section with the figures in a folder, as images whose scripts cannot run.

    Args:
        folder: Folder of SVG files; None returns no section.
        dataset: Name of the report's data set; None if it is unknown.
        weights: SHA-256 of the weights of the measured single models.

    Raises:
        UserError: if the folder has no SVG files, or if one is for another data set than the report.
    """
    if folder is None:
        return []
    paths = sorted(folder.glob("*.svg")) if folder.is_dir() else []
    if not paths:
        raise UserError(f"there are no SVG figures in {folder}: draw some with robust-interp plot")
    origins = {path: origin.read(path) for path in paths}
    for path, found in origins.items():
        if found and dataset and found.dataset != dataset:
            raise UserError(
                f"{path} is for {found.dataset}, but the report is for {dataset}: remove it from the figures"
            )
    shown = {path: _shown(path, found) for path, found in origins.items()}
    figures = []
    for path, shows in shown.items():
        caption = f"{shows} {_origin_told(origins[path], weights)}"
        label = _first_sentence(shows)
        address, width = graphics.as_address(path), graphics.width_of(path)
        figures.append({"address": address, "width": width, "label": label, "caption": caption})
    is_landscape = all(shows in _LANDSCAPES for shows in shown.values())
    heading = "Loss landscape" if is_landscape else "More figures"
    return [Section("figures", heading, [figure | {"svg": "", "files": []} for figure in figures])]


def _shown(path: Path, found: origin.FigureOrigin | None) -> str:
    """Return what a figure shows: as its file says, else by its name, else the name alone."""
    if found and found.shows:
        return found.shows
    return _DRAWN.get(path.stem) or _DRAWN.get(re.sub(r"_\d+$", "", path.stem)) or f"{path.stem}."


def _origin_told(found: origin.FigureOrigin | None, weights: Collection[str]) -> str:
    """Return a text on the data and checkpoints of a figure, and which of these were not measured here."""
    if found is None:
        return "The file does not record its source: it may show another data set or checkpoint."
    n = f", n = {found.n} {'image' if found.n == 1 else 'images'}" if found.n else ""
    told = f"Data set {found.dataset}{n}; {', '.join(found.checkpoints)}."
    others = [name for name, sha256 in found.checkpoints.items() if sha256 not in weights]
    if weights and others:
        told += f" Not among the single models of this report: {', '.join(others)}."
    return told


# Audit, claims, provenance


def _audit(audited: pd.DataFrame) -> dict:
    names = provenance.classifier_names(audited)
    checks, rows = provenance.verdicts(audited, names)
    not_passed = audited[~audited["verdict"].isin([PASS, NOT_RUN])]
    is_open = not_passed["verdict"] == OPEN
    whole = [found[0] for _, found in rows]
    return {
        "checks": checks,
        "rows": [
            (
                name,
                [{"text": verdict, "kind": _kind_of(verdict)} for verdict in found],
            )
            for name, found in rows
        ],
        "remark_columns": ["model", "check", "verdict", "eps (1/255)", "value", "at most", "n", "detail"],
        "remarks": _remarks(not_passed[~is_open], names),
        "open": _remarks(not_passed[is_open], names),
        "outcomes": [
            (name, {"text": text, "kind": _kind_of(text)})
            for (name, _), text in zip(rows, whole, strict=True)
        ],
    }


def _remarks(lines: pd.DataFrame, names: Mapping[Hashable, str]) -> list[list[str]]:
    return [
        [names[at], line["check"], line["verdict"]]
        + [_short(line.get(name, "")) for name in ("eps_255", "value", "threshold", "n")]
        + [line["detail"]]
        for at, line in lines.iterrows()
    ]


def _kind_of(verdict: str) -> str:
    """Return the CSS class that colours a verdict."""
    kind = verdict.partition("(")[0]
    return kind if kind in (PASS, WARN, FAIL) else "none"


def _short(number: str) -> str:
    try:
        return f"{float(number):.4g}"
    except ValueError:
        return number


def _claims(board: pd.DataFrame, dataset: str | None, out: Path) -> list[dict]:
    if dataset not in paper.DATASETS:
        return []
    comparison = paper.compare(board, dataset)
    write_text(out / "claims.csv", export.to_csv(comparison.claims))
    write_text(out / "paper.csv", export.to_csv(comparison.cells))
    return [
        {"text": text[0].upper() + text[1:], "rows": [_claim(line) for _, line in lines.iterrows()]}
        for text, lines in (
            (str(claim), lines) for claim, lines in comparison.claims.groupby("claim", sort=False)
        )
    ]


def _claim(line: pd.Series) -> dict[str, str]:
    row = {"whose": {"paper": "the paper’s", "measured": "ours"}[line["source"]], "verdict": line["verdict"]}
    if pd.isna(line["comparisons"]):
        return row | dict.fromkeys(["scope", "comparisons", "smallest", "interval", "needed"], "")
    ends = "" if pd.isna(line["ci_low"]) else f"{_signed(line['ci_low'])} to {_signed(line['ci_high'])}"
    return row | {
        "scope": line["scope"],
        "comparisons": str(line["comparisons"]),
        "smallest": _signed(line["smallest"]),
        "interval": ends,
        "needed": f"> {line['needed']:g}".replace("-", "−"),
    }


def _signed(points: float) -> str:
    return percent(points, signed=True).replace("-", "−")


def _made(found: FolderResults) -> list[dict]:
    if not found.scored:
        return []
    results, prints = found.results, provenance.fingerprints(found.folders, found.dataset)
    parts = [
        _part(
            "Images and versions",
            provenance.samples(results),
            "The first n test images, in the order of subset. subset_hash is a hash of them and n; SHA-256 "
            f"of the images and labels: {', '.join(prints)}.",
        ),
        _part(
            "Attacks",
            provenance.attacks(found.scored).dropna(axis="columns", how="all"),
            "Radii and step sizes in Linf are in units of 1/255. max_delta_255 is the largest actual change "
            "in the norm of the attack: of one pixel for Linf, of a whole image for L2. zero_grad is the "
            "largest share (0 to 1) of images whose gradient was exactly zero: they were not attacked and "
            "are not counted as robust.",
        ),
        _part("Corruptions", provenance.corruptions(results)),
        _part(
            "Weights",
            provenance.weights(results),
            "The SHA-256 of each weights file. An ensemble averages its members’ outputs and is attacked as "
            "one classifier.",
        ),
    ]
    where = provenance.environments(found.folders)
    if where["results"].nunique() < 2:
        where = where.drop(columns="results")
    parts.append(
        _part("Environment", where, "Hardware and software of the newest run of each results folder.")
    )
    return [part for part in parts if part["rows"]]


def _part(heading: str, table: pd.DataFrame, text: str = "") -> dict:
    return {
        "heading": heading,
        "text": text,
        "columns": list(table),
        "rows": [["" if pd.isna(value) else _text(value) for value in row] for row in table.to_numpy(object)],
        "numbers": [name for name in table if pd.api.types.is_numeric_dtype(table[name])],
    }


def _text(value: object) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)

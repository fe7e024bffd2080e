"""Print tables on the terminal."""

from __future__ import annotations

import math
import shlex
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pandas as pd
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from robust_interp import __version__, zoo
from robust_interp.cli.display import duration
from robust_interp.cli.terminal import say
from robust_interp.core.errors import UserError
from robust_interp.core.percent import percent
from robust_interp.core.texts import plain
from robust_interp.results import brief, ranks
from robust_interp.results.classes import MOST_PREDICTED, NOTHING, PREDICTED, by_entry
from robust_interp.results.column_names import MeasuredColumn, parse
from robust_interp.results.columns import is_text
from robust_interp.results.compare import Comparison
from robust_interp.results.paper import PaperComparison
from robust_interp.store import Store
from robust_interp.store.cells import Plan, labels
from robust_interp.zoo import MODELS, Checkpoint

if TYPE_CHECKING:  # it imports torch
    from robust_interp.benchmark.benchmark import Benchmark
    from robust_interp.benchmark.cost import Estimate

PLAIN_WIDTH = 250  # characters, for output that is not a terminal
GAP = 2  # characters between two columns
MOST_IN_BLOCKS = 21  # columns of a confusion matrix, with that of no prediction, that may take several tables
NAMES_SHARE = 4  # in a table that is too wide, a name takes at most 1/NAMES_SHARE of the terminal
CSV_HAS_ALL = "--format csv has all columns"


class _PlainConsole(Console):
    """Console that removes terminal control characters from the text it prints."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=plain(segment.text))

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError for `main` to handle; rich would end the process with status 1."""
        raise BrokenPipeError


def console(stderr: bool = False) -> Console:
    """Return a console; without a terminal, it writes plain lines without wrapping."""
    # A model may be called net:train or net[red].
    literal = partial(_PlainConsole, stderr=stderr, emoji=False, markup=False, highlight=False)
    found = literal()
    return found if found.is_terminal else literal(width=PLAIN_WIDTH, soft_wrap=True)


def print_header(shown: Console, benchmark: Benchmark, store: Store) -> None:
    """Print the device, data set and number of cells of a run, and how many are stored already."""
    from robust_interp.benchmark.pending import missing

    plan, models = benchmark.plan, len(benchmark.targets)
    cells = sum(map(_count, plan.parts))
    stored = cells - sum(len(missing(part, store)) for part in plan.parts)
    order = f" ({subset})" if (subset := benchmark.dataset.metadata.get("subset")) else ""
    facts = [
        f"{benchmark.runner.device}, {benchmark.choose_threads(store)}",
        f"{plan.dataset}: the first {plan.n} test images{order}, protocol {plan.protocol}",
        f"{models} model{'s' * (models > 1)}, {cells} cells, {stored} of them already stored in {store.path}",
    ]
    for fact in facts:
        shown.print(fact)


def print_leaderboard(
    board: pd.DataFrame,
    title: str,
    ranked_by: dict[str, str] | None = None,
    columns: Iterable[str] | None = None,
    arguments: Iterable[str] = (),
    intervals: bool = False,
) -> None:
    """Print one line per entry: accuracies in percent, ± standard deviation if there are several seeds.

    Args:
        board: The leaderboard.
        title: First part of the line above the table.
        ranked_by: Name of the ranking column by protocol; None derives it from the columns of the board.
        columns: Names or globs of the columns to show; None shows those that have values and differ.
        arguments: Arguments of the command that shows the same rows again, with other columns.
        intervals: Whether accuracies of one seed include their 95 % interval over the images.
    """
    ranked_by = ranks.ranked_by(board) if ranked_by is None else ranked_by
    n = ", ".join(str(n) for n in sorted(set(board["n_examples"].dropna())))
    protocol = ", ".join(sorted(set(board["protocol"])))
    texts = brief.for_readers(board, columns, brief.NARROW, intervals)
    order = list(texts)
    if columns is None:
        order = brief.by_importance(board, texts, ranked_by.values())
    marks = {name: f"{name}*" for name in ranked_by.values()} if "rank" in texts else {}
    shown = console()
    spread = brief.INTERVALS if intervals else "± std over seeds"
    shown.print(f"{title}, n = {n}, protocol {protocol}; accuracy in %, {spread}")
    marked = {marks.get(name, name): column for name, column in texts.items()}
    order, gaps = [marks.get(name, name) for name in order], ranks.begins_of_groups(board, ranked_by)
    if "model" in texts:
        _tell_rows_apart(shown, board, marked, order, is_repeated=columns is not None)
    left_out = _print_one(shown, marked, order, gaps=gaps)
    if columns is not None:  # they were asked for
        left_out = _print_below(shown, marked, left_out, "model" if "model" in marked else order[0], gaps)
    if (columns is None or "rank" in texts) and (about := ranks.about_ranks(board, ranked_by)):
        shown.print(f"* {about}" if marks else about)
    choose = shlex.join(["robust-interp", "leaderboard", *arguments, "--columns"])
    mend = CSV_HAS_ALL if columns is not None else f"choose columns with {choose} model,NAMES"
    _tell_left_out(shown, left_out, mend)


def _tell_rows_apart(
    shown: Console, board: pd.DataFrame, columns: dict[str, list[str]], order: list[str], is_repeated: bool
) -> None:
    """Let the names of models say what tells rows apart that would look alike in the columns that fit.

    If the names alone are repeated in further tables, for columns that do not fit, they say all of it.
    """
    kept = set(columns)
    while not kept <= (fitting := _fit(shown, columns, order)[0]):  # longer names leave less room
        kept &= {"model"} if is_repeated else fitting
        columns["model"] = brief.names_apart(board, kept)


def _tell_left_out(shown: Console, names: Iterable[str], mend: str = "") -> None:
    """Print which columns a table did not show, and how to see them; nothing if it showed all."""
    if told := ", ".join(names):
        shown.print("; ".join(filter(None, [f"not shown for lack of space: {told}", mend])))


def _print_one(
    shown: Console,
    columns: dict[str, list[str]],
    order: list[str],
    left: Collection[str] = (),
    gaps: Collection[int] = (),
) -> list[str]:
    """Print one table that fits the terminal, and return the columns that were left out.

    Args:
        order: The columns by priority; the last ones are left out first.
        left: Columns that are aligned to the left beside the descriptive ones of leaderboards.
        gaps: Rows, counted from 0, that an empty line stands above.
    """
    kept, widest = _fit(shown, columns, order)
    shown.print(_table({name: texts for name, texts in columns.items() if name in kept}, widest, left, gaps))
    return [name for name in columns if name not in kept]


def _print_below(
    shown: Console,
    columns: dict[str, list[str]],
    left_out: list[str],
    beside: str,
    gaps: Collection[int] = (),
) -> list[str]:
    """Print columns that a table had no room for in further ones, each beside the column `beside`.

    Returns:
        Those that have no room even there.
    """
    while left_out:
        below = {name: columns[name] for name in (beside, *left_out)}
        if len(_fit(shown, below, below)[0]) < 2:
            break  # not even one of them
        left_out = _print_one(shown, below, list(below), gaps=gaps)
    return left_out


def _fit(
    shown: Console, columns: dict[str, list[str]], order: Iterable[str]
) -> tuple[set[str], dict[str, int]]:
    """Return which columns fit the terminal, and the maximum width of those that are wrapped for it.

    Args:
        shown: The terminal; anything else is made wide enough for all.
        columns: The columns.
        order: The columns by priority; the last ones are left out first.
    """
    need = {name: _width(name, texts) for name, texts in columns.items()}
    if not shown.is_terminal:
        shown.width = max(shown.width, sum(need.values()))
    widest: dict[str, int] = {}
    if sum(need.values()) > shown.width:  # too wide: wrap long names
        most = shown.width // NAMES_SHARE
        widest = {name: max(most, len(name)) for name in columns if is_text(name) and need[name] - GAP > most}
        need |= {name: width + GAP for name, width in widest.items()}
    kept, room = set[str](), shown.width + GAP
    for name in order:
        if need[name] <= room:
            kept.add(name)
            room -= need[name]
    return kept, widest


def print_comparison(comparison: Comparison) -> None:
    """Print one line per column: two accuracies in percent, their difference and its verdict."""
    frame, samples, shown = comparison.frame, comparison.samples, console()
    compared = (
        f"A {comparison.a}, B {comparison.b}: {comparison.dataset}, n = {samples.n}, "
        f"protocol {samples.protocol}; accuracy in %{_averaged(frame)}"
    )
    rest = {
        "A": [percent(value) for value in frame["accuracy_a"]],
        "B": [percent(value) for value in frame["accuracy_b"]],
        "A - B": [percent(value, signed=True) for value in frame["difference"]],
        "only A / B": [f"{a} / {b}" for a, b in frame[["only_a", "only_b"]].to_numpy()],
        "p": [f"{value:.2g}" for value in frame["p"]],
        "p over seeds": ["" if math.isnan(value) else f"{value:.2g}" for value in frame["p_seeds"]],
        "Holm p": [f"{value:.2g}" for value in frame["p_holm"]],
        "95 % over seeds": [_interval(*ends) for ends in frame[["ci_low", "ci_high"]].to_numpy()],
        "verdict": list(frame["verdict"]),
    }
    shown.print(compared)
    columns = {"column": list(frame["column"])}
    columns |= {name: texts for name, texts in rest.items() if any(texts)}  # one seed: nothing over seeds
    order = dict.fromkeys(["column", "A", "B", "A - B", "verdict", "95 % over seeds", "Holm p", "p", *rest])
    left_out = _print_one(shown, columns, [name for name in order if name in columns])
    _tell_left_out(shown, left_out, CSV_HAS_ALL)
    if "only A / B" not in left_out:
        shown.print(
            "only A / B: images that only this one classifies correctly, summed over seeds and "
            "severities; p counts each image once"
        )
    if frame["p_seeds"].isna().any():
        shown.print(
            "without two seeds that differ there is no interval over seeds: significant then means for these "
            "weights, not for others trained in the same way"
        )


def _averaged(frame: pd.DataFrame) -> str:
    """Say over how many train seeds the accuracies of a comparison are averaged."""
    counts = {side: frame[f"seeds_{side.lower()}"] for side in ("A", "B")}
    ends = {side: dict.fromkeys([known.min(), known.max()]) for side, known in counts.items()}
    told = {side: " to ".join(map(str, both)) for side, both in ends.items()}
    if told["A"] == told["B"] != "1":
        return f", means of {told['A']} train seeds"
    return "".join(f", {side} the mean of {said} train seeds" for side, said in told.items() if said != "1")


def _measurements(count: int) -> str:
    return "1 measurement" if count == 1 else f"mean over {count} measurements"


def print_classes(table: pd.DataFrame) -> None:
    """Print one line per entry and class: n, accuracy with interval, and predictions in percent."""
    shown = console()
    for name, part in by_entry(table).items():
        first = part.iloc[0]
        shown.print(
            f"{name}: {first['dataset']}, {first['column']}, n = {part['n'].sum()}, protocol "
            f"{first['protocol']}, {_measurements(first['measurements'])}; in %"
        )
        has_names = any(str(label) != said for label, said in zip(part["label"], part["name"], strict=True))
        columns = {
            "label": list(map(str, part["label"])),
            **({"name": list(part["name"])} if has_names and part["name"].any() else {}),
            "n": list(map(str, part["n"])),
            "accuracy": ["" if math.isnan(value) else percent(value) for value in part["accuracy"]],
            "95 %": [
                "" if math.isnan(low) else f"{percent(low)} to {percent(high)}"
                for low, high in part[["ci_low", "ci_high"]].to_numpy()
            ],
        }
        confusion = part.filter(regex=f"^{PREDICTED}")
        total = confusion.sum(axis=1).clip(lower=1)
        columns |= {
            f"→ {column.removeprefix(PREDICTED)}": [
                f"{share:.0f}" if share else "." for share in 100 * confusion[column] / total
            ]
            for column in map(str, confusion)
        }
        left_out = _print_one(shown, columns, list(columns))
        if len(confusion.columns) <= MOST_IN_BLOCKS:
            left_out = _print_below(shown, columns, left_out, "name" if "name" in columns else "label")
        _tell_left_out(shown, left_out, CSV_HAS_ALL)
    if NOTHING in table and table[NOTHING].any():
        shown.print("→ none: no prediction that counts, as where the gradient was zero")
    if NOTHING not in table:
        many = table["label"].nunique() > MOST_PREDICTED
        why = "under several attacks an image has several predictions"
        why = f"there are more than {MOST_PREDICTED:,} classes" if many else why
        shown.print(f"no confusion matrix: {why}")


def print_paper(comparison: PaperComparison, dataset: str) -> None:
    """Print the tables of the paper next to the measured numbers, then its claims."""
    shown = console()
    shown.print(
        f"{dataset}, accuracy in %: paper / ours; = means within two standard deviations of the paper, ≠ "
        "not. Neither: too few seeds or images, or another depth"
    )
    for line in _measured_as(comparison.cells):
        shown.print(line)
    for name, cells in comparison.cells.groupby("table", sort=False):
        shown.print(f"\n{name}", style="bold")
        if cells["measured"].isna().all():
            shown.print("no entry of this table was measured")
            continue
        _print_fitting(shown, *_paper_table(cells))
    shown.print("\nclaims", style="bold")
    print_claims(comparison.claims)


def _paper_table(cells: pd.DataFrame) -> tuple[dict[str, list[str]], dict[str, list[str]]]:
    """Return the label columns and the number columns of one table of the paper, as texts."""
    keys = ["model", "lambda_init", "members"]
    texts = cells.fillna(dict.fromkeys(["measured_as", "recipe"], ""))
    stand_in = texts["measured_as"].where(texts["measured_as"] != texts["model"], "")
    texts["ours"] = stand_in.str.cat(texts["recipe"], sep="@").str.strip("@")
    lines = [line for _, line in texts.groupby([*keys, "ours"], sort=False)]
    head = {key: [str(line[key].iloc[0]) for line in lines] for key in [*keys, "ours"]}
    by_column = [{cell["column"]: cell for cell in line.to_dict("records")} for line in lines]
    columns = dict.fromkeys(cells["column"])
    return head, {name: [_beside(line.get(name)) for line in by_column] for name in columns}


def _measured_as(cells: pd.DataFrame) -> Iterator[str]:
    """Say of each measured network over how many train seeds and images its numbers are."""
    ours = cells[cells["measured"].notna()].assign(
        kind=(cells["members"] > 1).map({True: " ensemble", False: ""})
    )
    for (model, recipe, kind), of_one in ours.groupby(["measured_as", "recipe", "kind"], sort=False):
        seeds, n = (", ".join(map(str, of_one[name].unique())) for name in ("seeds", "n_examples"))
        yield f"ours: {model} {recipe}{kind}, train seeds: {seeds}, n = {n}"


def _beside(cell: Mapping[Hashable, Any] | None) -> str:
    if cell is None:
        return ""
    paper, measured = cell["paper"], cell["measured"]
    if math.isnan(measured):
        return f"{percent(paper)} /     "
    mark = {"yes": " =", "no": " ≠"}.get(cell["within_2_std"], "")
    return f"{percent(paper)} / {percent(measured)}{mark}"


def print_claims(claims: pd.DataFrame) -> None:
    """Print one line per claim and scope: smallest difference, interval over seeds, verdict."""
    shown = console()
    for claim, lines in claims.groupby("claim", sort=False):
        shown.print(claim)
        published = lines.loc[lines["source"] == "paper", "comparisons"].max()
        for line in lines.to_dict("records"):
            where = f"  {line['source']}: "
            if not pd.isna(line["scope"]):
                interval = _interval(line["ci_low"], line["ci_high"])
                smallest = percent(line["smallest"], signed=True)
                of = f"{_smallest_of(line['comparisons'], published)} {smallest}"
                bound = f", must be above {percent(line['needed'], signed=True)}" if line["needed"] else ""
                where += f"{line['scope']}, {of}{f' ({interval})' if interval else ''}{bound}: "
            shown.print(f"{where}{line['verdict']}")


def _smallest_of(measured: int, published: int) -> str:
    """Say of how many differences, and if these are not all of the paper's."""
    differences = "difference" if measured == 1 else f"smallest of {measured} differences"
    return f"{differences} (the paper has {published})" if measured < published else differences


def _interval(low: float, high: float) -> str:
    return "" if math.isnan(low) else f"{percent(low, signed=True)} to {percent(high, signed=True)}"


def _print_fitting(shown: Console, head: dict[str, list[str]], rest: dict[str, list[str]]) -> None:
    """Print several tables that all begin with `head`. If need be, its widest column is wrapped."""
    widths = {name: _width(name, texts) for name, texts in head.items()}
    lacking = sum(widths.values()) + max(_width(*column) for column in rest.items()) - shown.width
    widest = {}
    if lacking > 0:
        name = max(widths, key=lambda column: widths[column])
        widths[name] = max(widths[name] - lacking, len(name) + GAP)
        widest = {name: widths[name] - GAP}
    for part in _fitting(rest, shown.width - sum(widths.values())):
        shown.print(_table(head | part, widest))


def _table(
    columns: dict[str, list[str]],
    widest: Mapping[str, int] = MappingProxyType({}),
    left: Collection[str] = (),
    gaps: Collection[int] = (),
) -> Table:
    """Build a table of texts; only the columns named in `widest` (maximum width by name) are wrapped.

    Those named in `left`, and descriptive columns of leaderboards, are aligned to the left. An empty line
    stands above the rows in `gaps`.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in columns:
        table.add_column(
            name,
            justify="left" if name in left or is_text(name) else "right",
            no_wrap=name not in widest,
            max_width=widest.get(name),
            overflow="fold",
        )
    for at, row in enumerate(zip(*columns.values(), strict=True)):
        if at in gaps:
            table.add_row()
        table.add_row(*row)
    return table


def _fitting(columns: dict[str, list[str]], width: int) -> list[dict[str, list[str]]]:
    """Split the columns into tables that are at most `width` characters wide."""
    parts: list[dict[str, list[str]]] = [{}]
    left = width
    for name, texts in columns.items():
        need = _width(name, texts)
        if need > left and parts[-1]:
            parts.append({})
            left = width
        parts[-1][name] = texts
        left -= need
    return parts


def _width(name: str, texts: list[str]) -> int:
    return max(map(len, [name, *texts])) + GAP


def print_sweep(table: pd.DataFrame, title: str) -> None:
    """Print one line per network: trained and failed seeds, and results over the trained ones."""
    shown = console()
    shown.print(f"{title}; accuracy in %, ± std over seeds")
    head = {
        name: [str(value) for value in table[name]] for name in ("model", "lambda_init", "seeds", "failed")
    }
    columns = head | brief.numbers_in_short(table)
    _tell_left_out(shown, _print_one(shown, columns, list(columns)), "sweep.csv has all columns")


def print_plan(benchmark: Benchmark, store: Store, estimate: Estimate) -> None:
    """Print what a run would measure, and its estimated time."""
    plan = benchmark.plan
    todo = benchmark.missing(store)
    seconds, is_bound = estimate
    takes = f"{'at most ' if is_bound else ''}about {duration(seconds)}"
    counts = [len(cells) for _, cells in todo]
    names = labels([target.card for target, _ in todo])
    lines = [
        f"{plan.dataset}, n = {plan.n}, protocol {plan.protocol}: {_count(plan)} cells",
        *_measured_lines(f"per model, {len(_columns(plan))} cells", plan),
        *(_measured_lines(f"strong, n = {plan.strong.n}: the worst of", plan.strong) if plan.strong else []),
        *(f"to measure: {count} cells of {name}" for name, count in zip(names, counts, strict=True)),
        f"{(count := sum(counts))} cells to measure, {_count(plan) - count} already stored; "
        f"{takes} on {benchmark.runner.device} in one process",
        *(f"warning: {note}" for note in benchmark.runner.corruptor.notes),
    ]
    for line in lines:
        say(line)


def _count(plan: Plan) -> int:
    """Return the number of different cells; attacks on several parts of an ensemble share some."""
    return len({cell.key for cell in plan.cells})


def _measured_lines(head: str, plan: Plan) -> list[str]:
    return [f"{head}:", *(f"  {line}" for line in _in_groups(_columns(plan)))]


def _columns(plan: Plan) -> list[MeasuredColumn]:
    """Return the columns that a plan measures for a model."""
    made = [cell.perturbation for cell in plan.cells]
    corruptions = {one.name for one in made if one.kind == "corruption"}
    return [parse(name, corruptions) for name in dict.fromkeys(one.column for one in made)]


def _in_groups(columns: Iterable[MeasuredColumn]) -> list[str]:
    """Return one line per group: attacks with the same radii, or corruptions with the same severities."""
    strengths: dict[str, list[str]] = {}
    for column in columns:
        strengths.setdefault(column.series, [])
        if column.radius is not None or column.severity is not None:
            strengths[column.series].append(f"{column.strength:g}")
    unit = {column.series: "eps" if column.is_attack else "severity" for column in columns}
    groups: dict[str, list[str]] = {}
    for series, values in strengths.items():
        groups.setdefault(f" at {unit[series]} {', '.join(values)}" if values else "", []).append(series)
    return [", ".join(alike) + at for at, alike in groups.items()]


def print_models(checkpoints: list[Checkpoint]) -> None:
    """Print the checkpoints of the zoo and the names of the models that can be trained."""
    places: dict[str, list[dict[str, str]]] = {}
    broken = []
    for checkpoint in checkpoints:
        try:
            record = checkpoint.record
        except UserError as error:
            broken.append(str(error))
            continue
        line = {
            "checkpoint": checkpoint.name,
            "clean": f"{record['clean_accuracy']:.2f} % of {record['clean_n']}",
            "lambda_init": zoo.interval_text(record["lambda_init"]),
            "params": f"{record['parameters']:,}",
        }
        places.setdefault(str(checkpoint.folder.parent), []).append(line)
    shown = console()
    shown.print(
        f"robust-interp {__version__}; inputs are pixels in [0, 1]; the mean and std in each config.json "
        "are applied"
    )
    left_out: dict[str, None] = {}
    for place, lines in places.items():
        shown.print(f"in {place}:")
        columns = {name: [line[name] for line in lines] for name in lines[0]}
        left_out |= dict.fromkeys(_print_one(shown, columns, list(columns), left=columns))
    _tell_left_out(shown, left_out)
    shown.print(f"registered: {', '.join(sorted(zoo.OURS))}")
    for name in MODELS:
        origins = " and ".join(origin.name for origin in MODELS.origins(name))
        shown.print(f"plug-in: {name} from {origins}")
    for reason in broken:
        shown.print(reason)

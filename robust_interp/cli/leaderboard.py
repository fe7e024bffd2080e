"""robust-interp leaderboard"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from difflib import get_close_matches
from pathlib import Path

from robust_interp.benchmark.forms import name_list, path_text, positive
from robust_interp.benchmark.request import DEFAULTS
from robust_interp.cli.options import (
    Commands,
    add_chosen,
    add_command,
    add_folders,
    add_out,
    add_sources,
    add_which_dataset,
    select_options,
)
from robust_interp.cli.terminal import say, warn
from robust_interp.core.choices import PROTOCOLS
from robust_interp.core.errors import UserError

_ACTIONS = ("show", "compare", "paper", "classes", "-h", "--help")


def add_to(commands: Commands) -> None:
    parser = add_command(
        commands,
        "leaderboard",
        "show stored results or compare two models; loads no model",
        "robust-interp leaderboard results",
        more="robust-interp leaderboard FOLDER is short for robust-interp leaderboard show FOLDER.",
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    _add_show(actions)
    _add_compare(actions)
    _add_paper(actions)
    _add_classes(actions)


def with_default_action(argv: list[str]) -> list[str]:
    """Insert the default action `show` after `leaderboard` if no action is given, not even a mistyped one."""
    if argv[:1] != ["leaderboard"] or (argv[1:2] and (argv[1] in _ACTIONS or _is_mistyped(argv[1]))):
        return argv
    return ["leaderboard", "show", *argv[1:]]


def _is_mistyped(word: str) -> bool:
    return bool(get_close_matches(word, _ACTIONS, cutoff=0.8)) and not Path(word).exists()


def _add_show(actions: Commands) -> None:
    parser = add_command(
        actions,
        "show",
        "show the leaderboard of results folders and CSV files",
        "robust-interp leaderboard show results --sort pgd_16 --format markdown",
        _show,
    )
    add = parser.add_argument
    add_sources(parser)
    add_which_dataset(parser)
    add_chosen(parser)
    add(
        "--partial",
        action="store_true",
        help="add what is complete of runs that have not finished; the column incomplete says how much "
        "(default: only finished runs)",
    )
    add(
        "--mce",
        metavar="BASELINE",
        help="add mean corruption errors, in %% of the errors of this model; AlexNet: in %% of its published "
        "errors on ImageNet-C; none: absolute errors (default: not added)",
    )
    add(
        "--sort",
        metavar="COLUMN",
        help="sort by this column: accuracies in descending order, others in ascending order (default: "
        "by rank)",
    )
    add("--top", type=positive, metavar="N", help="only the first N rows, after sorting (default: all)")
    add(
        "--columns",
        type=name_list,
        metavar="NAMES",
        help="only these columns, in this order: names or globs, e.g. 'model,clean,pgd_*'; their standard "
        "deviations are included (default: all but empty columns, settings that all rows share, and "
        "corruptions whose mean is shown; csv and json: all)",
    )
    _add_format(parser, "table", "csv", "markdown", "latex", "json")
    add(
        "--plain-numbers",
        action="store_true",
        help="markdown and latex: mean and standard deviation in separate columns, as in csv",
    )
    add(
        "--intervals",
        action="store_true",
        help="table, markdown and latex: add the 95 %% interval over the images to accuracies of one train "
        "seed, except for averages (default: not added)",
    )
    parser.set_defaults(bad_usage=parser.error)


def _add_format(parser: argparse.ArgumentParser, *formats: str) -> None:
    default = formats[0]
    parser.add_argument(
        "--format", choices=formats, default=default, help=f"output format (default: {default})"
    )


def _show(arguments: argparse.Namespace) -> int:
    from robust_interp.cli.console import print_leaderboard
    from robust_interp.results import brief, combine, export

    if arguments.plain_numbers and arguments.format == "table":
        raise UserError("--plain-numbers needs --format markdown or latex")
    if arguments.intervals and (arguments.plain_numbers or arguments.format in ("csv", "json")):
        arguments.bad_usage(
            "--intervals is for tables of texts; as numbers, the intervals are ci_low and ci_high in the "
            "results.csv of each results folder"
        )
    board, title, ranked_by = combine.gather(arguments.sources, arguments.dataset, arguments.partial)
    if arguments.mce:
        from robust_interp.results.mce import with_mce

        board = with_mce(board, arguments.mce)
    if arguments.models is not None:
        board = combine.pick(board, arguments.models)
    if arguments.sort:
        board = combine.sort(board, arguments.sort)
    board = board.head(arguments.top)
    if arguments.format == "table":
        print_leaderboard(board, title, ranked_by, arguments.columns, _again(arguments), arguments.intervals)
        return 0
    if arguments.plain_numbers or arguments.format not in export.FOR_READERS:
        chosen = board if arguments.columns is None else brief.choose(board, arguments.columns)
        say(export.FORMATS[arguments.format](chosen), end="")
        return 0
    columns = brief.for_readers(board, arguments.columns, intervals=arguments.intervals)
    ranking = ranked_by.values() if "rank" in columns else ()
    note = brief.INTERVALS if arguments.intervals else ""
    say(export.FOR_READERS[arguments.format](columns, bold=ranking, note=note), end="")
    return 0


def _again(arguments: argparse.Namespace) -> list[str]:
    """Return the arguments that show the same rows again."""
    words = list(map(str, arguments.sources))
    for name in ("dataset", "models", "mce", "sort", "top"):
        if (value := getattr(arguments, name)) is not None:
            words += [f"--{name}", str(value) if isinstance(value, int | str) else ",".join(value)]
    return words + [f"--{name}" for name in ("partial", "intervals") if getattr(arguments, name)]


def _add_compare(actions: Commands) -> None:
    parser = add_command(
        actions,
        "compare",
        "test which differences between two models are significant",
        "robust-interp leaderboard compare --models in_resnet20,preact_resnet20",
        _compare,
    )
    parser.set_defaults(bad_usage=parser.error)
    add = parser.add_argument
    # Read as text: the old form was two model names without an option, and the folder as --results.
    usual = DEFAULTS["out"]
    add("sources", nargs="*", type=path_text, metavar="FOLDER", help=f"results folders (default: {usual})")
    add("--results", default=usual, type=path_text, help=argparse.SUPPRESS)
    add(
        "--models",
        type=_two_entries,
        dest="entries",
        metavar="A,B",
        help="two entries: NAME is the single models of that name, averaged over their seeds, NAMExK its "
        "ensemble of K members; add @RECIPE or another tag if several entries share a name (required)",
    )
    add_which_dataset(parser)
    add(
        "--protocol",
        choices=PROTOCOLS,
        help="protocol, if both were measured under several (default: the only one)",
    )
    add(
        "--n",
        type=positive,
        metavar="N",
        help="number of images, if both were measured with several numbers (default: the only one)",
    )
    _add_format(parser, "table", "csv", "markdown", "json")


def _two_entries(text: str) -> tuple[str, str]:
    """Parse ``A,B``; commas in a tag such as ``@seeds=0,1`` do not separate entries."""
    found: list[str] = []
    for part in name_list(text):
        if found and re.search(r"@seeds=[\d,]+$", found[-1]) and re.match(r"\d+(@|$)", part):
            found[-1] += f",{part}"
        else:
            found.append(part)
    if len(found) != 2:
        number = "one entry" if len(found) == 1 else f"{len(found)} entries"
        raise argparse.ArgumentTypeError(
            f"{text!r} is {number}, not two with a comma, such as in_resnet20,preact_resnet20"
        )
    return found[0], found[1]


def _entries_and_folders(arguments: argparse.Namespace) -> tuple[Sequence[str], list[str]]:
    if arguments.entries is not None:
        return arguments.entries, arguments.sources or [arguments.results]
    if len(arguments.sources) != 2:
        arguments.bad_usage("name the two entries to compare with --models A,B")
    return arguments.sources, [arguments.results]


def _compare(arguments: argparse.Namespace) -> int:
    (a, b), folders = _entries_and_folders(arguments)
    from robust_interp.cli.console import print_comparison
    from robust_interp.results import compare
    from robust_interp.results.export import FORMATS

    comparison = compare.from_folders(
        list(map(Path, folders)), a, b, **select_options(arguments, "dataset protocol n")
    )
    if arguments.format == "table":
        print_comparison(comparison)
    else:
        say(FORMATS[arguments.format](comparison.frame), end="")
    for line in comparison.left_out:
        warn(f"warning: {line}")
    return 0


def _add_paper(actions: Commands) -> None:
    parser = add_command(
        actions,
        "paper",
        "show measured rows in the layout of the paper's tables, and check the paper's claims",
        "robust-interp leaderboard paper cifar10 --claims",
        _paper,
    )
    add_sources(parser)
    add = parser.add_argument
    add_which_dataset(parser, choices=("cifar10", "cifar100"))
    add("--claims", action="store_true", help="show only the claims")
    _add_format(parser, "table", "csv", "markdown", "json")


def _paper(arguments: argparse.Namespace) -> int:
    from robust_interp.cli import console
    from robust_interp.results import combine, paper
    from robust_interp.results.export import FORMATS

    dataset = combine.dataset_of(arguments.sources, arguments.dataset)
    if dataset is None:
        raise UserError(
            "the data set of a leaderboard file is known only if its name contains it: set it with --dataset"
        )
    board, _, _ = combine.gather(arguments.sources, dataset, newest=True)
    comparison = paper.compare(board, dataset)
    if arguments.format != "table":
        frame = comparison.claims if arguments.claims else comparison.cells
        say(FORMATS[arguments.format](frame), end="")
    elif arguments.claims:
        console.print_claims(comparison.claims)
    else:
        console.print_paper(comparison, dataset)
    return 0


def _add_classes(actions: Commands) -> None:
    parser = add_command(
        actions,
        "classes",
        "show accuracy per class and the confusion matrix of stored predictions; loads no model",
        "robust-interp leaderboard classes results --models in_resnet20 --column pgd_16",
        _classes,
    )
    add = parser.add_argument
    add_folders(parser)
    add_chosen(parser)
    add(
        "--column",
        required=True,
        metavar="COLUMN",
        help="column of the leaderboard, e.g. clean or pgd_16 (required)",
    )
    add_which_dataset(parser)
    _add_format(parser, "table", "csv", "markdown", "json")
    add_out(parser, "draw it, too: ", None)


def _classes(arguments: argparse.Namespace) -> int:
    from robust_interp import data
    from robust_interp.cli.console import print_classes
    from robust_interp.results import classes
    from robust_interp.results.export import FORMATS
    from robust_interp.results.folders import of_models, runs_in

    runs, dataset = runs_in(arguments.folders, arguments.dataset)
    runs = of_models(runs, arguments.models)
    if dataset in data.DATASETS:
        kind = data.DATASETS[dataset]
        table = classes.by_class(runs, arguments.column, kind.classes, kind.class_names)
    else:
        table = classes.by_class(runs, arguments.column)
    if arguments.format == "table":
        print_classes(table)
    else:
        say(FORMATS[arguments.format](table), end="")
    if arguments.out:
        from robust_interp.figures import classes as figures
        from robust_interp.figures import files
        from robust_interp.report import provenance

        called = f"classes_{arguments.column.replace('/', '_')}"  # e.g. pgd(alpha=eps/4)_2
        entries = classes.by_entry(table)
        n = max(int(lines["n"].sum()) for lines in entries.values())
        drawn, shows = classes.scores_of(runs, arguments.column), figures.confusion_shows(arguments.column)
        origin = provenance.figure_origin(drawn, dataset, n, shows)
        figure = figures.confusion_figure(entries)
        written = files.with_table(figure, table, files.stem(arguments.out, called), origin)
        warn(f"wrote {', '.join(map(str, written))}")
    return 0

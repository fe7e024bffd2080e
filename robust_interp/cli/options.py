"""Arguments in the forms that users write, and what several commands share."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from robust_interp.benchmark.forms import SWITCH, dataset_name, name_list, named_path, natural, positive
from robust_interp.benchmark.request import BESIDE, DEFAULTS, SETTINGS
from robust_interp.core.errors import UserError

if TYPE_CHECKING:
    from robust_interp.core.worker_pool import Workers

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # what a command is added to


# What is said of a dataset's images besides their name.
OF_IMAGES = "subset subset_seed class_map resize crop interpolation skip_unreadable decode_workers"


def select_options(arguments: argparse.Namespace, names: str) -> dict:
    return {name: getattr(arguments, name) for name in names.split()}


def add_command(
    commands: Commands, name: str, does: str, example: str, run: Callable | None = None, more: str = ""
) -> argparse.ArgumentParser:
    """A command or an action of one.

    Args:
        does: What it does, in a phrase: its line in the list of commands, and its description.
        example: A command line.
        run: What carries it out; None if its actions do.
        more: What else stands at the end of its help.
    """
    parser = commands.add_parser(
        name,
        help=does,
        description=f"{does[0].upper()}{does[1:]}.",
        epilog="\n".join(filter(None, [f"example: {example}", more])),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    if run:
        parser.set_defaults(run=run)
    return parser


def add_fields(parser: argparse.ArgumentParser, names: str, **otherwise: tuple[Any, str | None]) -> None:
    """An option for each of these fields of a run, as `benchmark.request` declares them.

    Args:
        otherwise: The default that this command has instead, and what stands for it in words.
    """
    for name in names.split():
        add_field(parser, name, *otherwise.get(name, (DEFAULTS[name], None)))


def add_field(
    parser: argparse.ArgumentParser, name: str, default: Any, usual: str | None = None, **more: Any
) -> None:
    """The option of one field: `usual` says its default in words, `more` is as for argparse."""
    about = (SETTINGS | BESIDE)[name]
    option, form = f"--{name.replace('_', '-')}", about.form
    text = about.text(default, usual).replace("%", "%%")
    if form is SWITCH:
        parser.add_argument(option, action="store_true", dest=name, default=default, help=text)
        negated = f"--no-{option[2:]}"
        # Where it is off by default, only to override a file.
        off = f"turn off {option}" if default else argparse.SUPPRESS
        parser.add_argument(negated, action="store_false", dest=name, help=off)
        return
    if form.choices:
        more = {"choices": form.choices} | more
    elif form.read is not str:
        more = {"type": form.read} | more
    if form.bare:
        more = {"nargs": "?", "const": form.bare} | more
    parser.add_argument(option, default=default, metavar=form.metavar, help=text, **more)


def add_plugin(parser: argparse.ArgumentParser) -> None:
    add_field(parser, "plugin", [], type=None, action="append")


def add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def add_measuring(parser: argparse.ArgumentParser) -> None:
    """What every command that measures models takes: which ones, on what, where and how fast."""
    add_fields(parser, f"checkpoint weights_key mean std dataset {OF_IMAGES} eps seeds")
    add_fields(parser, "batch_size device threads")
    add_field(parser, "out", DEFAULTS["out"], type=named_path)
    add_fields(parser, "store_journal zoo only_zoo data_dir")
    add_workers(parser)
    add_quiet(parser)
    add_plugin(parser)


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Worker processes, and where they are."""
    add_fields(parser, "workers ray gpus_per_worker")


def workers_of(arguments: argparse.Namespace) -> Workers | None:
    """The workers that are asked for; None for none.

    Raises:
        UserError: if only their GPUs are.
    """
    from robust_interp.core.worker_pool import Workers

    count, address, gpus = arguments.workers, arguments.ray, arguments.gpus_per_worker
    if count is None and address is None:
        if gpus is not None:
            raise UserError("--gpus-per-worker needs --workers or --ray")
        return None
    return Workers(count, address, gpus)


def use_threads(arguments: argparse.Namespace) -> None:
    """Have torch use as many threads as were asked for, else no more than there are CPUs for."""
    import torch

    from robust_interp.core import threads

    torch.set_num_threads(threads.choose(arguments.threads, None).count)


ALL_CPUS = (None, "$OMP_NUM_THREADS, or all available CPUs")  # of --threads, where nothing is tried


def add_models(parser: argparse.ArgumentParser, what: str, dest: str = "models") -> None:
    """``--models``, which must be given, or the names alone, as some commands took them once.

    Args:
        what: What may be named.
        dest: What the names are kept as; says what the shell completes.
    """
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--models", type=name_list, dest=dest, metavar="NAMES", help=f"{what} (required)")
    # Without a default, that of the option stays where no name stands alone.
    either.add_argument(dest, nargs="*", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def add_chosen(parser: argparse.ArgumentParser) -> None:
    """``--models`` where those that are stored are all meant unless some are named."""
    parser.add_argument(
        "--models", type=name_list, metavar="NAMES", help="only these models: names or globs (default: all)"
    )


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Results folders and leaderboard files."""
    _add_results(parser, "sources", "SOURCE", "results folders and leaderboard CSV files")


def add_folders(parser: argparse.ArgumentParser) -> None:
    """Results folders, whose stored predictions are read."""
    _add_results(parser, "folders", "FOLDER", "results folders")


def _add_results(parser: argparse.ArgumentParser, dest: str, metavar: str, what: str) -> None:
    parser.add_argument(
        dest,
        nargs="*",
        default=[Path("results")],
        type=named_path,
        metavar=metavar,
        help=f"{what} (default: results)",
    )


def add_which_dataset(parser: argparse.ArgumentParser, **more: Any) -> None:
    """The dataset of what is stored already."""
    parser.add_argument(
        "--dataset",
        type=dataset_name,
        help="dataset, if the sources have several (default: the only one)",
        **more,
    )


def load_plugins(arguments: argparse.Namespace) -> None:
    """Register what the files of --plugin declare, for a command that has it."""
    if files := getattr(arguments, "plugin", None):
        from robust_interp import plugins

        for file in files:
            plugins.load(file)


def natural_list(text: str) -> tuple[int, ...]:
    """``2,5`` in the order given, each once."""
    found = tuple(dict.fromkeys(natural(part.strip()) for part in text.split(",") if part.strip()))
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} contains no number")
    return found


def odd(text: str) -> int:
    """So that a symmetric grid of so many points has one in its middle; at least 3."""
    value = natural(text)
    if value % 2 == 0 or value < 3:
        raise argparse.ArgumentTypeError("must be odd and at least 3")
    return value


def positive_number(text: str) -> float:
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def percentage(text: str) -> float:
    value = _number(text)
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage from 0 to 100")
    return value


def _number(text: str) -> float:
    """NaN for what is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def interval(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an interval such as 0.2,0.25") from None
    return low, high


def add_images(parser: argparse.ArgumentParser, use: str, default: int, option: str = "--n") -> None:
    """How many of the first test images are taken.

    Args:
        use: What for, as it ends "number of test images ...".
    """
    said = f"number of test images {use} (default: {default})"
    parser.add_argument(option, type=positive, default=default, metavar="N", help=said)


def add_seed(parser: argparse.ArgumentParser, of: str) -> None:
    """The seed `of` what a command draws."""
    parser.add_argument("--seed", type=natural, default=0, metavar="N", help=f"seed of {of} (default: 0)")


def add_figure_options(parser: argparse.ArgumentParser) -> None:
    """What every command that draws zoo models takes."""
    add = parser.add_argument
    add(
        "--dataset",
        type=dataset_name,
        default="digits",
        help="dataset of the checkpoints and test images (default: digits)",
    )
    add_fields(parser, "zoo only_zoo data_dir")
    add_out(parser)


def add_out(parser: argparse.ArgumentParser, what: str = "", default: str | None = "figures") -> None:
    """Where a figure goes.

    Args:
        what: How the help begins.
        default: The folder; None draws nothing.
    """
    parser.add_argument(
        "-o",
        "--out",
        default=default,
        type=named_path,
        metavar="FOLDER|FILE",
        help=f"{what}output folder, or file name such as fig1.png; PNG and SVG are both written (default: "
        f"{default or 'no figure'})",
    )

"""Options that several commands share, and functions that read the values of options."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from robust_interp.benchmark.forms import SWITCH, dataset_name, name_list, named_path, natural, positive
from robust_interp.benchmark.request import BESIDE, DEFAULTS, SETTINGS, SettingInfo
from robust_interp.core.errors import UserError

if TYPE_CHECKING:
    from robust_interp.core.worker_pool import Workers

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"  # to which commands are added


# The options of a data set's images, besides its name.
OF_IMAGES = "subset subset_seed class_map resize crop interpolation skip_unreadable decode_workers"
# The fields of a run that every command has that classifies images, in two parts; and with the radii.
OF_MODELS = f"checkpoint weights_key mean std dataset {OF_IMAGES}"
OF_RUN = "seeds batch_size device threads zoo only_zoo data_dir"
OF_MEASURING = f"{OF_MODELS} eps {OF_RUN}"


def select_options(arguments: argparse.Namespace, names: str) -> dict:
    return {name: getattr(arguments, name) for name in names.split()}


def add_command(
    commands: Commands, name: str, does: str, example: str, run: Callable | None = None, more: str = ""
) -> argparse.ArgumentParser:
    """Add the parser of a command, or of an action of a command such as ``plot curve``.

    Args:
        commands: The subparsers to which it is added.
        name: Name of the command.
        does: What the command does, as a phrase for the list of commands and for its description.
        example: A command line, shown at the end of the help.
        run: Function that carries out the command; None if it has actions that do.
        more: Further text at the end of the help.
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
    """Add an option for each of the named fields of a run, as declared in `benchmark.request`.

    Args:
        parser: Parser of the command.
        names: Names of the fields, separated by spaces.
        otherwise: For fields with another default in this command: that default, and its description in the
            help, as `usual` of `add_field`.
    """
    for name in names.split():
        add_field(parser, name, *otherwise.get(name, (DEFAULTS[name], None)))


def add_field(
    parser: argparse.ArgumentParser, name: str, default: Any, usual: str | None = None, **more: Any
) -> None:
    """Add the option of one field of a run.

    Args:
        parser: Parser of the command.
        name: Name of the field in `benchmark.request`.
        default: Default value.
        usual: Description of the default in the help; None for the one of the field, or else the value.
        more: Further arguments of `add_argument`.
    """
    add_setting(parser, name, (SETTINGS | BESIDE)[name], default, usual, **more)


def add_setting(
    parser: argparse._ActionsContainer,
    name: str,
    about: SettingInfo,
    default: Any,
    usual: str | None = None,
    option: str | None = None,
    **more: Any,
) -> None:
    """Add the option of a declared setting.

    Args:
        parser: Parser of the command, or a group of its options.
        name: Name of the setting, and of the attribute that holds its value.
        about: Its declaration.
        default: Default value.
        usual: Description of the default in the help, as in `add_field`.
        option: The option as it is written; None for ``--`` and the name with hyphens.
        more: Further arguments of `add_argument`.
    """
    option, form = option or f"--{name.replace('_', '-')}", about.form
    text = about.text(default, usual).replace("%", "%%")
    if form is SWITCH:
        parser.add_argument(option, action="store_true", dest=name, default=default, help=text)
        negated = f"--no-{option[2:]}"
        # If the switch is off by default, --no-... is only needed to override a configuration file.
        off = f"turn off {option}" if default else argparse.SUPPRESS
        parser.add_argument(negated, action="store_false", dest=name, help=off)
        return
    if form.choices:
        more = {"choices": form.choices} | more
    elif form.read is not str:
        more = {"type": form.read} | more
    if form.bare:
        more = {"nargs": "?", "const": form.bare} | more
    parser.add_argument(option, dest=name, default=default, metavar=form.metavar, help=text, **more)


def add_plugin(parser: argparse.ArgumentParser) -> None:
    add_field(parser, "plugin", [], type=None, action="append")


def add_quiet(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--quiet", action="store_true", help="show no progress")


def add_measuring(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that measures models: models, images, radii, device and output."""
    add_fields(parser, OF_MEASURING)
    add_field(parser, "out", DEFAULTS["out"], type=named_path)
    add_fields(parser, "store_journal")
    add_workers(parser)
    add_quiet(parser)
    add_plugin(parser)


def add_workers(parser: argparse.ArgumentParser) -> None:
    """Add the options of worker processes."""
    add_fields(parser, "workers ray gpus_per_worker")


def workers_of(arguments: argparse.Namespace) -> Workers | None:
    """Return the workers that the options ask for, on the device of --device; None without workers.

    Raises:
        UserError: If --gpus-per-worker is given without --workers and --ray, or does not fit --device.
    """
    from robust_interp.core.worker_pool import Workers

    count, address, gpus = arguments.workers, arguments.ray, arguments.gpus_per_worker
    if count is None and address is None:
        if gpus is not None:
            raise UserError("--gpus-per-worker needs --workers or --ray")
        return None
    return Workers(count, address, gpus).on(arguments.device)


def use_threads(arguments: argparse.Namespace) -> None:
    """Set the number of threads of torch: that of --threads, otherwise at most one per available CPU."""
    import torch

    from robust_interp.core import threads

    torch.set_num_threads(threads.choose(arguments.threads, None).count)


# Default of --threads, and its description, in commands that do not test which number is fastest.
ALL_CPUS = (None, "$OMP_NUM_THREADS, or all available CPUs")


def add_models(parser: argparse.ArgumentParser, what: str, dest: str = "models") -> None:
    """Add ``--models``, which is required. Old versions took the names without the option, which still works.

    Args:
        parser: Parser of the command.
        what: Description of the allowed names for the help.
        dest: Attribute that holds the names. Shell completion chooses the kind of names by it.
    """
    either = parser.add_mutually_exclusive_group(required=True)
    either.add_argument("--models", type=_names, dest=dest, metavar="NAMES", help=f"{what} (required)")
    # SUPPRESS, so that an empty list of names does not overwrite the value of the option.
    either.add_argument(dest, nargs="*", metavar="NAME", default=argparse.SUPPRESS, help=argparse.SUPPRESS)


def _names(text: str) -> tuple[str, ...]:
    if not (names := name_list(text)):
        raise argparse.ArgumentTypeError("it names no model")
    return names


def add_chosen(parser: argparse.ArgumentParser) -> None:
    """Add ``--models`` to a command that reads stored results; the default is all stored models."""
    parser.add_argument(
        "--models", type=_names, metavar="NAMES", help="only these models: names or globs (default: all)"
    )


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Add positional arguments for results folders, leaderboard files and bundled leaderboards."""
    what = "results folders, leaderboard CSV files, and names of bundled leaderboards such as robustbench"
    _add_results(parser, "sources", "SOURCE", what)


def add_folders(parser: argparse.ArgumentParser) -> None:
    """Add positional arguments for results folders, whose stored predictions are read."""
    _add_results(parser, "folders", "FOLDER", "results folders")


def _add_results(parser: argparse.ArgumentParser, dest: str, metavar: str, what: str) -> None:
    parser.add_argument(
        dest,
        nargs="*",
        default=[Path(DEFAULTS["out"])],
        type=named_path,
        metavar=metavar,
        help=f"{what} (default: {DEFAULTS['out']})",
    )


def add_which_dataset(parser: argparse.ArgumentParser, **more: Any) -> None:
    """Add ``--dataset`` to a command that reads stored results."""
    parser.add_argument(
        "--dataset",
        type=dataset_name,
        help="data set, if the sources have several (default: the only one)",
        **more,
    )


def load_plugins(arguments: argparse.Namespace) -> None:
    """Load the plug-in files of --plugin, if the command has this option."""
    if files := getattr(arguments, "plugin", None):
        from robust_interp import plugins

        for file in files:
            plugins.load(file)


def natural_list(text: str) -> tuple[int, ...]:
    """Read natural numbers such as ``2,5``; the order is kept, and repeated numbers are dropped."""
    found = tuple(dict.fromkeys(natural(part.strip()) for part in text.split(",") if part.strip()))
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} contains no number")
    return found


def odd(text: str) -> int:
    """Read an odd number of at least 3: a symmetric grid with so many points has one in its middle."""
    value = natural(text)
    if value % 2 == 0 or value < 3:
        raise argparse.ArgumentTypeError("must be odd and at least 3")
    return value


def interval(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an interval such as 0.2,0.25") from None
    return low, high


def add_images(parser: argparse.ArgumentParser, use: str, default: int, option: str = "--n") -> None:
    """Add an option for the number of test images, which are the first ones of the test set.

    Args:
        parser: Parser of the command.
        use: Purpose, as the end of the phrase "number of test images ...".
        default: Default number.
        option: Name of the option.
    """
    said = f"number of test images {use} (default: {default})"
    parser.add_argument(option, type=positive, default=default, metavar="N", help=said)


def add_seed(parser: argparse.ArgumentParser, of: str) -> None:
    """Add ``--seed``; `of` says in the help which random draws it is the seed of."""
    parser.add_argument("--seed", type=natural, default=0, metavar="N", help=f"seed of {of} (default: 0)")


def add_figure_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of every command that draws figures of models in the zoo."""
    add = parser.add_argument
    add(
        "--dataset",
        type=dataset_name,
        default="digits",
        help="data set of the checkpoints and test images (default: digits)",
    )
    add_fields(parser, "zoo only_zoo data_dir")
    add_out(parser)


def add_out(parser: argparse.ArgumentParser, what: str = "", default: str | None = "figures") -> None:
    """Add ``--out``, the folder or file of a figure.

    Args:
        parser: Parser of the command.
        what: Beginning of the help text.
        default: Default folder; None if no figure is drawn by default.
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

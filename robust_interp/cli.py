"""The robust-interp command: reads arguments, calls the package, prints. Help needs no torch."""

from __future__ import annotations

import argparse
import math
import os
import signal
import sys
import warnings
from pathlib import Path
from typing import NoReturn

from robust_interp import __version__
from robust_interp.errors import UserError


def main(argv: list[str] | None = None) -> int:
    """Run one command. Exit status: 0; 1 for a UserError, 2 for bad usage, 130 or 143 if it was stopped."""
    # timm 1.0.9 uses parts of torch.jit that newer torch announces the end of: nothing a user can act on.
    warnings.filterwarnings("ignore", category=FutureWarning, module="torch.jit")
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # λ and ± must not end a run on a terminal that lacks them
            stream.reconfigure(errors="replace")
    arguments = _parser().parse_args(_spelt_out(sys.argv[1:] if argv is None else argv))
    try:
        return arguments.run(arguments)
    except UserError as error:
        print(f"robust-interp: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt as stop:
        print("\nrobust-interp: stopped; what is finished is kept, the same command goes on", file=sys.stderr)
        return 128 + getattr(stop, "signum", signal.SIGINT)
    except BrokenPipeError:  # the reader of a pipe has gone, as with | head
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line for bad usage; argparse would print the whole usage before it."""
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="robust-interp",
        description="Measure how robust image classifiers are: clean, under noise, under attack.",
    )
    parser.add_argument("--version", action="version", version=f"robust-interp {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for add in (_add_bench, _add_leaderboard, _add_train, _add_models, _add_data):
        add(commands)
    return parser


def _add_bench(commands) -> None:
    parser = commands.add_parser("bench", help="measure models into a leaderboard")
    parser.set_defaults(run=_bench)
    add = parser.add_argument
    add("--models", type=_names, metavar="NAMES", help="zoo names, globs, all (default: all, seeds 0,1,2)")
    add("--checkpoint", metavar="FILE", help="weights for the one registered model in --models")
    add("--dataset", default="digits", help="digits (embedded, default), cifar10, cifar100")
    add("--attacks", default="fgsm,ifgsm,pgd", metavar="SPECS", help="e.g. 'fgsm,pgd(steps=50)', or none")
    add("--eps", type=_eps, metavar="LIST", help="Linf radii in units of 1/255, e.g. 1,2,4")
    add("--corruptions", default="noise", metavar="SPECS", help="noise (default), names, or none")
    add("--n", type=_count, metavar="N", help="measure the first N test images, or all")
    add("--seeds", type=_seeds, metavar="SEEDS", help="train seeds: 3 means 0,1,2; 0,4 means those")
    add("--no-ensembles", action="store_true", help="leave out each model's ensemble over its seeds")
    add("--protocol", choices=("final", "worst"), default="final", help="see the README (default: final)")
    add("--batch-size", type=int, metavar="N")
    add("--device", help="cpu, cuda, cuda:1 (default: cuda if there is one)")
    add("--seed", type=_natural, default=0, help="seed of attack starts and generated noise (default: 0)")
    add(
        "--out", default="results", type=Path, metavar="FOLDER", help="store and CSV files (default: results)"
    )
    add("--zoo", metavar="FOLDER", help="more checkpoints, before ./model_zoo and the bundled ones")
    add("--data-dir", metavar="FOLDER", help="default: $ROBUST_INTERP_DATA, then ~/.cache/robust-interp")
    add("--corruptions-dir", metavar="FOLDER", help="released CIFAR-10-C / CIFAR-100-C arrays")
    add("--dry-run", action="store_true", help="print the cells and an estimate of the time")
    add("--quiet", action="store_true", help="no progress")


def _bench(arguments: argparse.Namespace) -> int:
    from robust_interp import leaderboard
    from robust_interp.bench import Benchmark, Request, cost
    from robust_interp.progress import reporter
    from robust_interp.store import FILE_NAME, Store
    from robust_interp.tables import console, print_leaderboard, print_plan

    request = Request(
        ensembles=not arguments.no_ensembles,
        **_picked(arguments, "models checkpoint dataset attacks eps corruptions n seeds protocol batch_size"),
        **_picked(arguments, "device seed zoo data_dir corruptions_dir"),
    )
    benchmark = Benchmark(request)
    if arguments.dry_run:
        # A dry run reads a store that is there, and makes none.
        there = (arguments.out / FILE_NAME).is_file()
        with Store(arguments.out if there else None, read_only=there) as store:
            print_plan(benchmark, store)
        return 0
    errors = console(stderr=True)
    with Store(arguments.out) as store:
        with reporter(errors, benchmark.work(store), cost, arguments.quiet) as watch:
            report = benchmark.run(store, watch)
        leaderboard.write(arguments.out, report.results, report.leaderboard)
    print_leaderboard(report.leaderboard, benchmark.plan.dataset)
    for line in report.warnings:
        errors.print(f"warning: {line}", highlight=False, markup=False)
    print(f"wrote {arguments.out / 'leaderboard.csv'} and {arguments.out / 'results.csv'}")
    return 0


def _add_leaderboard(commands) -> None:
    parser = commands.add_parser(
        "leaderboard",
        help="show what is stored in results folders, or compare two models; needs no model",
        epilog="robust-interp leaderboard FOLDER is robust-interp leaderboard show FOLDER",
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    _add_show(actions)
    _add_compare(actions)


def _spelt_out(argv: list[str]) -> list[str]:
    """`leaderboard` without an action shows."""
    if argv[:1] != ["leaderboard"] or argv[1:2] in (["show"], ["compare"], ["-h"], ["--help"]):
        return argv
    return ["leaderboard", "show", *argv[1:]]


def _add_show(actions) -> None:
    parser = actions.add_parser("show", help="the leaderboard of results folders and CSV files")
    parser.set_defaults(run=_show)
    add = parser.add_argument
    add(
        "sources",
        nargs="*",
        default=[Path("results")],
        type=Path,
        metavar="SOURCE",
        help="results folders and leaderboard CSV files (default: results)",
    )
    add("--dataset", help="which one, if the folders have several")
    add("--models", type=_names, metavar="NAMES", help="only these: names or globs")
    add("--sort", metavar="COLUMN", help="accuracies from the best down, anything else upwards")
    add("--format", choices=("table", "csv", "markdown", "latex", "json"), default="table")


def _show(arguments: argparse.Namespace) -> int:
    from robust_interp import merge
    from robust_interp.formats import FORMATS
    from robust_interp.tables import print_leaderboard

    board, title = merge.gather(arguments.sources, arguments.dataset)
    if arguments.models is not None:
        board = merge.pick(board, arguments.models)
    if arguments.sort:
        board = merge.sort(board, arguments.sort)
    if arguments.format == "table":
        print_leaderboard(board, title)
    else:
        print(FORMATS[arguments.format](board), end="")
    return 0


def _add_compare(actions) -> None:
    parser = actions.add_parser("compare", help="say which differences between two models stand")
    parser.set_defaults(run=_compare)
    add = parser.add_argument
    entry = "a model's name, its single models over their seeds; NAMExK is the ensemble of K"
    add("a", metavar="A", help=entry)
    add("b", metavar="B", help="the same; @RECIPE after a name, or another tag, where several share it")
    add("--results", default="results", type=Path, metavar="FOLDER", help="default: results")
    add("--dataset", help="which one, if the folder has several")
    add("--protocol", choices=("final", "worst"), help="which one, if both were measured in several")
    add("--n", type=_positive, metavar="N", help="which one, if both were measured on several")
    add("--format", choices=("table", "csv", "markdown", "json"), default="table")


def _compare(arguments: argparse.Namespace) -> int:
    from robust_interp import compare
    from robust_interp.formats import FORMATS
    from robust_interp.tables import print_comparison

    comparison = compare.from_folder(arguments.results, **_picked(arguments, "a b dataset protocol n"))
    if arguments.format == "table":
        print_comparison(comparison)
    else:
        print(FORMATS[arguments.format](comparison.frame), end="")
    for line in comparison.left_out:
        print(f"warning: {line}", file=sys.stderr)
    return 0


def _add_train(commands) -> None:
    parser = commands.add_parser("train", help="train a registered model into a zoo folder")
    parser.set_defaults(run=_train)
    add = parser.add_argument
    add("architecture", help="a registered name, e.g. in_resnet20")
    add("--dataset", default="digits")
    add(
        "--recipe",
        help="paper, authors, quick, digits or your own .toml file (default: digits for digits, else quick)",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE,...",
        help="change fields of the recipe, whose name then says so, e.g. lr=0.05,steps=0.6,0.8",
    )
    add("--epochs", type=int, help="another number of epochs; the recipe's name then says so")
    add(
        "--seeds",
        type=_seeds,
        default=(0,),
        metavar="SEEDS",
        help="3 means 0,1,2; 0,4 means those (default: 0)",
    )
    add("--lambda-init", type=_interval, metavar="LOW,HIGH", help="interval of act(λ) at the start")
    add("--out", default="model_zoo", type=Path, metavar="FOLDER", help="zoo folder (default: model_zoo)")
    add("--data-dir", metavar="FOLDER")
    add("--device", help="cpu, cuda, cuda:1 (default: cuda if there is one)")
    add(
        "--save-every",
        type=_positive,
        default=1,
        metavar="N",
        help="keep the unfinished training every N epochs (default: 1)",
    )
    add("--quiet", action="store_true", help="no progress")


def _train(arguments: argparse.Namespace) -> int:
    from robust_interp import recipe as recipes
    from robust_interp import zoo
    from robust_interp.fit import TrainingError
    from robust_interp.tables import console
    from robust_interp.train import destination
    from robust_interp.victim import resolve_device

    recipe = _recipe(arguments)
    if recipe.deviations:
        print(f"recipe {recipe.name}: {recipes.describe(recipe.deviations)}")
    device, failures = resolve_device(arguments.device), 0
    for seed in arguments.seeds:
        folder = destination(arguments.architecture, arguments.dataset, recipe, seed, arguments.out)
        if done := zoo.made_with(folder, recipe.model_args()):
            print(f"{done.folder} is there already, skipped")
            continue
        try:
            _train_seed(arguments, recipe, seed, device)
        except TrainingError as failure:
            failures += 1
            console(stderr=True).print(f"failed: {failure}", highlight=False, markup=False)
    return 1 if failures == len(arguments.seeds) else 0


def _recipe(arguments: argparse.Namespace):
    from robust_interp import recipe as recipes

    usual = "digits" if arguments.dataset == "digits" else "quick"
    named = recipes.load(arguments.recipe or usual, arguments.architecture, arguments.dataset)
    flags = {"epochs": arguments.epochs, "lambda_init": arguments.lambda_init}
    flags = {field: value for field, value in flags.items() if value is not None}
    changes = recipes.settings(arguments.set)
    if twice := flags.keys() & changes.keys():
        raise UserError(f"{', '.join(sorted(twice))} is given twice")
    return recipes.overridden(named, changes | flags)


def _train_seed(arguments: argparse.Namespace, recipe, seed: int, device) -> None:
    from robust_interp.progress import training_reporter
    from robust_interp.tables import console
    from robust_interp.train import train

    label = f"{arguments.architecture} seed {seed}"
    with training_reporter(console(stderr=True), label, arguments.quiet) as report:
        checkpoint = train(
            arguments.architecture,
            arguments.dataset,
            recipe,
            seed,
            arguments.out,
            data_dir=arguments.data_dir,
            device=device,
            report=report,
            save_every=arguments.save_every,
        )
    accuracy = checkpoint.record["clean_accuracy"]
    print(f"wrote {checkpoint.folder}: clean accuracy {accuracy:.2f} %", flush=True)


def _add_models(commands) -> None:
    parser = commands.add_parser("models", help="list the zoo's checkpoints and the registered names")
    parser.set_defaults(run=_models)
    parser.add_argument("--zoo", metavar="FOLDER")
    parser.add_argument("--dataset")


def _models(arguments: argparse.Namespace) -> int:
    from robust_interp import zoo
    from robust_interp.tables import print_models

    print_models(zoo.checkpoints(arguments.zoo, arguments.dataset))
    return 0


def _add_data(commands) -> None:
    parser = commands.add_parser(
        "data", help="say which datasets are there, verified, and how to get the others"
    )
    parser.set_defaults(run=_data)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--data-dir", metavar="FOLDER")
    parser.add_argument("--download", action="store_true", help="fetch the named ones with torchvision")


def _data(arguments: argparse.Namespace) -> int:
    from robust_interp import data

    if arguments.download and not arguments.names:
        raise UserError("name the datasets to download, e.g. robust-interp data cifar10 --download")
    for name in arguments.names:
        data.DATASETS[name]  # an unknown name stops everything before a download starts
    missing = 0
    for name in arguments.names or data.DATASETS:
        if arguments.download:
            data.download(name, arguments.data_dir)
        try:
            test = data.load(name, "test", arguments.data_dir)
            print(f"{name}: ready, {len(test)} test images, fingerprint {test.fingerprint[:12]}")
        except UserError as error:
            missing += 1
            print(error)
    return 1 if missing and arguments.names else 0


def _picked(arguments: argparse.Namespace, names: str) -> dict:
    return {name: getattr(arguments, name) for name in names.split()}


def _names(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _eps(text: str) -> tuple[float, ...]:
    """Radii in units of 1/255 as [0, 1] pixels."""
    try:
        values = [float(part) for part in text.split(",") if part.strip()]
        if not text.isascii() or "_" in text:  # which float would take
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 1,2,4") from None
    if not values:
        raise argparse.ArgumentTypeError("give at least one radius, e.g. 1,2,4")
    if not all(math.isfinite(value) and 0 < value <= 255 for value in values):
        raise argparse.ArgumentTypeError(f"{text}: a radius is in units of 1/255, above 0 and at most 255")
    if all(value < 0.1 for value in values):
        as_255 = ",".join(f"{value * 255:.3g}" for value in values)
        raise argparse.ArgumentTypeError(
            f"{text} looks like [0, 1] pixels; eps is in units of 1/255: did you mean {as_255}?"
        )
    return tuple(value / 255 for value in values)


def _count(text: str) -> int | str:
    return text if text == "all" else _positive(text)


def _positive(text: str) -> int:
    value = _natural(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def _natural(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def _seeds(text: str) -> tuple[int, ...]:
    """``3`` means 0, 1, 2; ``0,4`` means those, and ``4,`` that one."""
    if "," not in text:
        return tuple(range(_positive(text)))
    seeds = {_natural(part.strip()) for part in text.split(",") if part.strip()}
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} names no seed")
    return tuple(sorted(seeds))


def _interval(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an interval such as 0.2,0.25") from None
    return low, high


if __name__ == "__main__":
    sys.exit(main())

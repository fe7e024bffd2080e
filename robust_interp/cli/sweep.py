"""robust-interp sweep"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from robust_interp.benchmark.forms import name_list, named_path, positive
from robust_interp.cli import train as train_command
from robust_interp.cli.options import Commands, add_command, add_fields, interval, select_options, workers_of
from robust_interp.cli.terminal import say, warn
from robust_interp.core.errors import UserError
from robust_interp.core.files import write_text

if TYPE_CHECKING:  # these modules import torch or pandas
    from pandas import DataFrame

    from robust_interp.benchmark.benchmark import Benchmark
    from robust_interp.benchmark.report import Report
    from robust_interp.benchmark.request import Request
    from robust_interp.cli.progress import Bar
    from robust_interp.core.worker_pool import Workers
    from robust_interp.data import ArrayDataset, Dataset
    from robust_interp.store import Store
    from robust_interp.store.cells import Cell
    from robust_interp.training.job import Training
    from robust_interp.training.sweep import Point, RecipeOf, Trained
    from robust_interp.zoo import Checkpoint


class _Ready(NamedTuple):
    """What a sweep starts from.

    Attributes:
        trainings: All trainings of the grid, each with its point.
        done: The checkpoints of the finished trainings.
        training: The training split; None if all trainings are finished.
        test: The data set of the measurements.
    """

    trainings: list[tuple[Point, Training]]
    done: dict[Training, Checkpoint]
    training: ArrayDataset | None
    test: Dataset


def add_to(commands: Commands) -> None:
    parser = add_command(
        commands,
        "sweep",
        "train, measure and tabulate a grid of networks; repeat the command to continue",
        "robust-interp sweep --models in_resnet14,plain_net14 --seeds 2 --n 100",
        run,
    )
    add = parser.add_argument
    add(
        "--grid",
        choices=("initialisation", "variants"),
        help="grid of one of the paper's tables (default: the architectures of --models)",
    )
    add(
        "--depth",
        type=positive,
        metavar="N",
        help="depth of the networks of --grid; 110 in the paper (default: 20)",
    )
    add(
        "--models",
        type=name_list,
        dest="architectures",
        metavar="NAMES",
        help="architectures to train (default: those of --grid)",
    )
    add(
        "--lambda-init",
        type=interval,
        action="append",
        default=[],
        metavar="LOW,HIGH",
        help="with --models: intervals in which act(λ) starts; each is trained separately (default: those of "
        "the models)",
    )
    train_command.add_training(parser, seeds=(0, 1, 2))
    add(
        "--out",
        default="sweep",
        type=named_path,
        metavar="FOLDER",
        help="folder for zoo, store and tables (default: sweep)",
    )
    add_fields(parser, "attacks eps corruptions n store_journal")
    add("--dry-run", action="store_true", help="print the grid and stop")


def run(arguments: argparse.Namespace) -> int:
    _check_names(arguments)
    from robust_interp.cli.console import console
    from robust_interp.cli.progress import progress_bar
    from robust_interp.store import Store
    from robust_interp.training.sweep import tabulate

    points, recipe_of = _points(arguments), partial(train_command.recipe_of, arguments)
    workers = workers_of(arguments)
    ready = _ready(arguments, points, recipe_of)  # before anything is written, and in a dry run, too
    if arguments.dry_run:
        _print_grid(points, recipe_of, len(arguments.seeds))
        return 0
    with (
        Store(arguments.out, journal=arguments.store_journal) as store,
        progress_bar(console(stderr=True), arguments.quiet) as bar,
    ):
        trained = _trained(arguments, ready, store, bar)
        benchmark, report = _measured(arguments, trained, workers, store, bar)
    table = tabulate(points, report.leaderboard, trained.failed, recipe_of)
    _write(arguments, report, table, benchmark.plan.n)
    return int(trained.is_incomplete or benchmark.is_incomplete)


def _check_names(arguments: argparse.Namespace) -> None:
    """Check all names before torch is imported."""
    from robust_interp.cli import names

    names.check_dataset(arguments.dataset)
    names.check_architectures(arguments.architectures or ())
    names.check_attacks(arguments.attacks)
    names.check_corruptions(arguments.corruptions)


def _ready(arguments: argparse.Namespace, points: Sequence[Point], recipe_of: RecipeOf) -> _Ready:
    """Check that a grid can be trained and measured, and read what it needs.

    Raises:
        UserError: If something is missing or invalid, or if a network was trained with another recipe of the
            same name.
    """
    from robust_interp import data
    from robust_interp.benchmark.plan import make_plan
    from robust_interp.benchmark.settings import corruptor_of, device_of, load_dataset
    from robust_interp.classifiers.files import is_path
    from robust_interp.store.cells import ModelCard
    from robust_interp.training import sweep
    from robust_interp.training.job import destinations

    asked, request = sweep.trainings(points, recipe_of, arguments.seeds), _request(arguments)
    trainings = [what for _, what in asked]
    for folder in destinations(trainings, arguments.dataset, _zoo(arguments)).values():
        if is_path(folder.name) and Path(folder.name).resolve() != folder.resolve():
            raise UserError(f"./{folder.name} would be measured in place of the one trained here: rename it")
    done = train_command.finished(arguments, trainings, _zoo(arguments))
    device_of(request)
    test = load_dataset(request)
    make_plan(request, test, corruptor_of(request, test), [ModelCard("", {})])  # checks each measurement
    all_done = len(done) == len(trainings)
    training = None if all_done else data.load(arguments.dataset, "train", arguments.data_dir)
    return _Ready(asked, done, training, test)


def _trained(arguments: argparse.Namespace, ready: _Ready, store: Store, bar: Bar) -> Trained:
    """Train the networks of a grid that are missing, and return what became of all of them.

    Args:
        arguments: The arguments of the command.
        ready: What to train, and what is trained already.
        store: The store of the measurements, which shows how much is left to measure after the training.
        bar: Shows the progress.
    """
    from robust_interp.benchmark.cost import cost
    from robust_interp.cli.progress import total_work
    from robust_interp.training import sweep

    bar.time.expect(total_work(_to_be_measured(ready, _request(arguments), store), cost))
    trainings = [what for _, what in ready.trainings]
    outcomes = train_command.train_missing(arguments, trainings, _zoo(arguments), bar, ready.training)
    return sweep.trained(ready.trainings, outcomes)


def _measured(
    arguments: argparse.Namespace, trained: Trained, workers: Workers | None, store: Store, bar: Bar
) -> tuple[Benchmark, Report]:
    """Measure the trained networks, in this process or in workers."""
    from robust_interp.benchmark.benchmark import Benchmark
    from robust_interp.benchmark.cost import cost
    from robust_interp.cli.progress import Reporter, total_work

    made = tuple(checkpoint.name for checkpoint in trained.checkpoints)
    benchmark = Benchmark(replace(_request(arguments), models=made))
    with benchmark.in_workers(workers, store, arguments.out):
        bar.time.forget()  # the remaining work is now known exactly
        bar.time.expect(total_work(benchmark.work(store), cost))
        benchmark.load(store, lambda _, what: bar.show(f"loading {what}"))
        return benchmark, benchmark.run(store, Reporter(bar, cost))


def _zoo(arguments: argparse.Namespace) -> Path:
    return arguments.out / "zoo"


def _request(arguments: argparse.Namespace) -> Request:
    """Return the request for the measurements, without the models, which are not trained yet."""
    from robust_interp.benchmark.request import Request

    chosen = select_options(arguments, "dataset attacks eps corruptions n device data_dir threads")
    return Request(zoo=str(_zoo(arguments)), ensembles=False, **chosen)


def _write(arguments: argparse.Namespace, report: Report, table: DataFrame, n: int) -> None:
    """Write and print the tables of a sweep, and print the warnings."""
    from robust_interp.cli.console import print_sweep
    from robust_interp.results import export
    from robust_interp.results.folders import write

    write(arguments.out, report.results, report.leaderboard)
    path = arguments.out / "sweep.csv"
    write_text(path, export.to_csv(table))
    print_sweep(table, f"{arguments.dataset}, n = {n}")
    for line in report.warnings:
        warn(f"warning: {line}")
    say(f"wrote {path}")


def _print_grid(points: Sequence[Point], recipe_of: RecipeOf, seeds: int) -> None:
    from robust_interp.training import sweep

    for point in points:
        recipe = recipe_of(point.architecture, point.lambda_init)
        starts = sweep.interval(point.architecture, recipe) or "-"
        say(f"{point.architecture} {starts} {recipe.name}: {seeds} seeds")


def _to_be_measured(ready: _Ready, request: Request, store: Store) -> list[tuple[Cell, int]]:
    """Return the cells that are missing from the store, each with its number of missing images.

    The cells of networks that are not trained yet are included.

    Args:
        ready: What to train, and what is trained already.
        request: The request for the measurements.
        store: The store, which may contain some of the cells.
    """
    from robust_interp.benchmark.cost import expected_work
    from robust_interp.classifiers.zoo_names import from_checkpoint
    from robust_interp.store.cells import ModelCard
    from robust_interp.training.job import work

    missing = [what for _, what in ready.trainings if what not in ready.done]
    sizes = work(missing, ready.training) if ready.training else {}
    cards = [from_checkpoint(checkpoint, ready.test).card for checkpoint in ready.done.values()]
    for what in missing:
        known = {"architecture": what.architecture, "recipe": what.recipe.name, "seed": what.seed}
        cards.append(ModelCard(what.architecture, known, train_seed=what.seed, params_m=sizes[what][0]))
    return expected_work(request, ready.test, cards, store)


def _points(arguments: argparse.Namespace) -> list[Point]:
    from robust_interp.training import sweep

    if bool(arguments.grid) == bool(arguments.architectures):
        raise UserError("no grid given: use --grid initialisation, --grid variants, or --models NAMES")
    if arguments.grid:
        if arguments.lambda_init:
            raise UserError("--lambda-init needs --models")
        return sweep.GRIDS[arguments.grid](arguments.depth or 20)
    if arguments.depth:
        raise UserError("--depth needs --grid: the names of --models have their depths")
    return sweep.grid(arguments.architectures, arguments.lambda_init)

"""robust-interp bench"""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from collections.abc import Set
from contextlib import ExitStack
from typing import TYPE_CHECKING

from robust_interp.benchmark.forms import named_path
from robust_interp.benchmark.request import SETTINGS
from robust_interp.cli.options import (
    OF_MEASURING,
    Commands,
    add_command,
    add_fields,
    add_measuring,
    select_options,
    workers_of,
)
from robust_interp.cli.terminal import say, warn

if TYPE_CHECKING:
    from robust_interp.benchmark.benchmark import Benchmark


def add_to(commands: Commands) -> None:
    parser = add_command(
        commands,
        "bench",
        "measure models into a leaderboard",
        "robust-interp bench --models in_resnet20,preact_resnet20 --attacks pgd --eps 8,16",
        run,
    )
    parser.set_defaults(configured=parser)
    add_fields(parser, " ".join(name for name in SETTINGS if name not in OF_MEASURING.split()))
    add = parser.add_argument
    add(
        "--config",
        type=named_path,
        metavar="FILE",
        help="read options that are not on the command line from a TOML file, as written by --save-config "
        "(default: no file)",
    )
    add(
        "--save-config",
        type=named_path,
        metavar="FILE",
        help="write the options of this run to a TOML file for --config (default: no file)",
    )
    add(
        "--dry-run",
        action="store_true",
        help="print the planned measurements and an estimate of the time, and stop",
    )
    add_measuring(parser)


def run(arguments: argparse.Namespace) -> int:
    _check_names(arguments)
    from robust_interp.benchmark import config
    from robust_interp.benchmark.benchmark import Benchmark
    from robust_interp.benchmark.cost import cost
    from robust_interp.benchmark.request import Request
    from robust_interp.cli.console import console, print_header, print_leaderboard
    from robust_interp.cli.display import duration
    from robust_interp.cli.progress import reporter, tell_start, track
    from robust_interp.core import environment
    from robust_interp.results.folders import write
    from robust_interp.store import Store

    errors, workers = console(stderr=True), workers_of(arguments)
    with track(errors, "reading checkpoints", arguments.quiet) as progress:
        benchmark = Benchmark(Request(**select_options(arguments, " ".join(SETTINGS))), progress)
    if arguments.save_config:
        config.save(arguments.save_config, vars(arguments))
    if arguments.dry_run:
        _print_plan(arguments, benchmark)
        return 0
    tell_start(workers, arguments.quiet)
    with Store(arguments.out, journal=arguments.store_journal) as store, ExitStack() as stack:
        with track(errors, "loading", arguments.quiet) as progress:
            stack.enter_context(benchmark.in_workers(workers, store, arguments.out, progress))
            benchmark.load(store, progress)
        if not arguments.quiet:
            print_header(errors, benchmark, store)
        work, started = benchmark.work(store), time.perf_counter()
        with reporter(errors, work, cost, arguments.quiet) as watch:
            report = benchmark.run(store, watch)
        write(arguments.out, report.results, report.leaderboard)
        typed = ["robust-interp", *sys.argv[1:]]
        environment.write(arguments.out, typed, benchmark.machine(store), measured=bool(work))
        dataset, there = benchmark.plan.dataset, [plan.dataset for plan in store.plans()]
    which = ["--dataset", dataset] if len(set(there)) > 1 else []
    print_leaderboard(report.leaderboard, dataset, arguments=[str(arguments.out), *which])
    for line in report.warnings:
        warn(f"warning: {line}")
    for line in report.notes:
        say(line)
    wrote = "leaderboard.csv, results.csv and environment.json" if work else "leaderboard.csv and results.csv"
    say(f"wrote {wrote} of this run in {arguments.out}")
    if there.count(dataset) > 1:
        command = shlex.join(["robust-interp", "leaderboard", str(arguments.out), *which])
        say(f"{command} has the rows of all finished runs on {dataset} there")
    say(measured(watch.own, watch.others, duration(time.perf_counter() - started)))
    return int(benchmark.is_incomplete)


def _print_plan(arguments: argparse.Namespace, benchmark: Benchmark) -> None:
    """Print the planned measurements; an existing store is read, but none is created."""
    from robust_interp.cli.console import console, print_plan
    from robust_interp.cli.progress import track
    from robust_interp.store import FILE_NAME, Store

    there = (arguments.out / FILE_NAME).is_file()
    with Store(arguments.out if there else None, read_only=there) as store:
        with track(console(stderr=True), "timing", arguments.quiet) as progress:
            estimate = benchmark.estimate(store, progress)
        print_plan(benchmark, store, estimate)


def measured(own: Set[str], others: Set[str], seconds: str) -> str:
    """Describe how many new cells this process and other processes on the same folder have measured.

    Args:
        own: Keys of the cells with images measured by this process or its workers.
        others: Keys of the cells with images measured by another process.
        seconds: Elapsed time, as text.
    """
    if not own | others:
        return "nothing new to measure"
    in_part, more = len(own & others), len(others - own)
    said = f"measured {len(own)} new cell{'s' * (len(own) != 1)} in {seconds}"
    beside = [f"{in_part} of them together with another process"] * bool(in_part)
    beside += [f"{more}{' more' * bool(own)} came from another process"] * bool(more)
    return ", ".join([said, *beside])


def _check_names(arguments: argparse.Namespace) -> None:
    """Check all names before torch is imported."""
    from robust_interp.cli import names

    arguments.dataset = names.dataset_of(arguments.dataset, [*(arguments.models or ()), *arguments.ensemble])
    names.check_models(arguments.models or (), arguments.dataset, arguments.zoo, arguments.only_zoo)
    names.check_attacks(arguments.attacks, arguments.strong)
    names.check_corruptions(arguments.corruptions)

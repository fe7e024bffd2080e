"""robust-interp stability"""

from __future__ import annotations

import argparse
import sys

from robust_interp.benchmark.forms import natural, positive
from robust_interp.cli.options import (
    ALL_CPUS,
    add_command,
    add_fields,
    add_figure_options,
    add_quiet,
    positive_number,
    use_threads,
)


def add_to(commands) -> None:
    parser = add_command(
        commands,
        "stability",
        "measure eigenvalues and norms of the blocks' Jacobians, and the growth of a small change",
        "robust-interp stability in_resnet20 preact_resnet20 --seeds 1 --n 2",
        run,
    )
    add = parser.add_argument
    add("models", nargs="+", metavar="MODEL", help="zoo names or globs of networks with residual blocks")
    add(
        "--n",
        type=positive,
        default=4,
        metavar="N",
        help="how many of the first test images to take for the Jacobians (default: 4)",
    )
    add(
        "--growth-n",
        type=positive,
        default=64,
        metavar="N",
        help="how many of the first test images to take for the growth (default: 64)",
    )
    add(
        "--eps",
        type=positive_number,
        default=1.0,
        metavar="E",
        help="size of the small change, in units of 1/255 (default: 1)",
    )
    add(
        "--seed",
        type=natural,
        default=0,
        metavar="N",
        help="seed of start vectors and random signs (default: 0)",
    )
    add_fields(parser, "seeds device threads", threads=ALL_CPUS)
    add_figure_options(parser)
    add_quiet(parser)


def run(arguments: argparse.Namespace) -> int:
    from robust_interp.cli import names

    names.check_dataset(arguments.dataset)
    names.check_models(arguments.models, arguments.dataset, arguments.zoo)
    import pandas as pd

    from robust_interp import data
    from robust_interp.analysis import inputs, stability
    from robust_interp.cli.console import console
    from robust_interp.cli.progress import track
    from robust_interp.core.devices import resolve_device
    from robust_interp.core.work import portion
    from robust_interp.figures import files
    from robust_interp.figures import stability as figures
    from robust_interp.figures.origin import Origin
    from robust_interp.results import export

    use_threads(arguments)
    device = resolve_device(arguments.device)
    found = inputs.checkpoints(arguments.models, arguments.zoo, arguments.dataset, arguments.seeds)
    test = data.load(arguments.dataset, "test", arguments.data_dir)
    few, many = (range(min(n, len(test))) for n in (arguments.n, arguments.growth_n))
    images, labels = inputs.images(test, many)
    images, seed, eps = images.to(device), arguments.seed, arguments.eps / 255
    tables, growths = [], []
    called = list(zip(found, inputs.labels(found), strict=True))
    with track(console(stderr=True), "stability", arguments.quiet) as tell:
        for at, (checkpoint, label) in enumerate(called):
            classifier = inputs.classifier(checkpoint, device)
            of = {"model": label, "train_seed": checkpoint.seed}
            told = portion(tell, at / len(called), (at + 1) / len(called), checkpoint.name)
            look_at, _ = inputs.images(test, few)
            table = stability.jacobians(classifier, look_at.to(device), few, seed, told)
            tables.append(table.assign(**of))
            growths.append(stability.growth(classifier, images, labels, many, eps, seed).assign(**of))
    table, growth = pd.concat(tables), stability.growth_summary(pd.concat(growths))
    place = files.stem(arguments.out, "stability")
    weights = {checkpoint.name: checkpoint.record["weights_sha256"] for checkpoint in found}
    of_few, of_many = (Origin(arguments.dataset, weights, len(part)) for part in (few, many))
    written = files.with_table(figures.jacobian_figure(table), table, place, of_few)
    figure = figures.growth_figure(growth)
    written += files.with_table(figure, growth, files.extended(place, "_growth"), of_many)
    summary = stability.jacobian_summary(table)
    print(export.to_markdown(summary), end="")
    if lost := summary["not_converged"].sum():
        print(f"warning: {lost} of {3 * summary['n'].sum()} numbers did not converge", file=sys.stderr)
    print(f"wrote {', '.join(map(str, written))}")
    return 0

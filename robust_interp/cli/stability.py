"""robust-interp stability"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from robust_interp.benchmark.forms import positive_number
from robust_interp.cli.options import (
    ALL_CPUS,
    Commands,
    add_command,
    add_fields,
    add_figure_options,
    add_images,
    add_models,
    add_quiet,
    add_seed,
    use_threads,
)
from robust_interp.cli.terminal import say, warn

if TYPE_CHECKING:
    import pandas as pd

    from robust_interp.data import Dataset
    from robust_interp.zoo import Checkpoint


def add_to(commands: Commands) -> None:
    parser = add_command(
        commands,
        "stability",
        "measure eigenvalues and norms of the blocks' Jacobians, and the growth of a small change",
        "robust-interp stability --models in_resnet20,preact_resnet20 --seeds 1 --n 2",
        run,
    )
    add = parser.add_argument
    add_models(parser, "zoo names or globs of networks with residual blocks")
    add_images(parser, "for the Jacobians, from the first on", 4)
    add_images(parser, "for the growth, from the first on", 64, "--growth-n")
    add(
        "--eps",
        type=positive_number,
        default=1.0,
        metavar="E",
        help="size of the small change, in units of 1/255 (default: 1)",
    )
    add_seed(parser, "start vectors and random signs")
    add_fields(parser, "seeds device threads", threads=ALL_CPUS)
    add_figure_options(parser)
    add_quiet(parser)


def run(arguments: argparse.Namespace) -> int:
    from robust_interp.cli import names

    names.check_dataset(arguments.dataset)
    names.check_models(arguments.models, arguments.dataset, arguments.zoo, arguments.only_zoo)
    from robust_interp import data
    from robust_interp.analysis import inputs, stability
    from robust_interp.figures import files
    from robust_interp.figures import stability as figures
    from robust_interp.figures.origin import FigureOrigin
    from robust_interp.results import export

    use_threads(arguments)
    found = inputs.checkpoints(
        arguments.models, arguments.zoo, arguments.dataset, arguments.seeds, arguments.only_zoo
    )
    test = data.load(arguments.dataset, "test", arguments.data_dir)
    few, many = (range(min(n, len(test))) for n in (arguments.n, arguments.growth_n))
    table, growths = _measure(arguments, found, test, few, many)
    growth = stability.growth_summary(growths)
    place = files.stem(arguments.out, "stability")
    weights = {checkpoint.name: checkpoint.record["weights_sha256"] for checkpoint in found}
    origin = FigureOrigin(arguments.dataset, weights, len(few), figures.JACOBIAN_SHOWS)
    written = files.with_table(figures.jacobian_figure(table), table, place, origin)
    figure, origin = figures.growth_figure(growth), replace(origin, n=len(many), shows=figures.GROWTH_SHOWS)
    written += files.with_table(figure, growth, files.extended(place, "_growth"), origin)
    summary = stability.jacobian_summary(table)
    say(export.to_markdown(summary), end="")
    if lost := summary["not_converged"].sum():
        warn(f"warning: {lost} of {3 * summary['n'].sum()} numbers did not converge")
    say(f"wrote {', '.join(map(str, written))}")
    return 0


def _measure(
    arguments: argparse.Namespace, found: Sequence[Checkpoint], test: Dataset, few: range, many: range
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the numbers of the Jacobians on a few images, and of the growth on many, of all networks.

    Args:
        arguments: The arguments of the command.
        found: The networks.
        test: The test set.
        few: Indices of the images for the Jacobians.
        many: Indices of the images for the growth.
    """
    import pandas as pd

    from robust_interp.analysis import inputs, stability
    from robust_interp.cli.console import console
    from robust_interp.cli.progress import track
    from robust_interp.core.devices import resolve_device
    from robust_interp.core.work import part_of_progress

    device = resolve_device(arguments.device)
    images, labels = inputs.images(test, many)
    images, seed, eps = images.to(device), arguments.seed, arguments.eps / 255
    tables, growths = [], []
    called = list(zip(found, inputs.labels(found), strict=True))
    with track(console(stderr=True), "stability", arguments.quiet) as progress:
        for at, (checkpoint, label) in enumerate(called):
            classifier = inputs.classifier(checkpoint, device)
            part = part_of_progress(progress, at / len(called), (at + 1) / len(called), checkpoint.name)
            look_at, _ = inputs.images(test, few)
            table = stability.jacobians(classifier, look_at.to(device), few, seed, part)
            tables.append(table.assign(model=label, train_seed=checkpoint.seed))
            growth = stability.growth(classifier, images, labels, many, eps, seed)
            growths.append(growth.assign(model=label, train_seed=checkpoint.seed))
    return pd.concat(tables), pd.concat(growths)

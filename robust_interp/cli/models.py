"""robust-interp models"""

from __future__ import annotations

import argparse

from robust_interp.benchmark.forms import dataset_name
from robust_interp.cli.options import Commands, add_command, add_fields, add_plugin


def add_to(commands: Commands) -> None:
    parser = add_command(
        commands,
        "models",
        "list the checkpoints of the zoo and the registered model names",
        "robust-interp models --dataset digits",
        run,
    )
    add_fields(parser, "zoo only_zoo")
    parser.add_argument(
        "--dataset", type=dataset_name, help="list only the checkpoints for this data set (default: all)"
    )
    add_plugin(parser)


def run(arguments: argparse.Namespace) -> int:
    from robust_interp import zoo
    from robust_interp.cli.console import print_models
    from robust_interp.cli.names import check_dataset

    found = zoo.checkpoints(arguments.zoo, arguments.dataset, arguments.only_zoo)
    if arguments.dataset and not found:  # there may be checkpoints for a data set that is not registered here
        check_dataset(arguments.dataset)
    print_models(found)
    return 0

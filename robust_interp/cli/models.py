"""robust-interp models"""

from __future__ import annotations

import argparse

from robust_interp.cli.options import add_plugin


def add_to(commands) -> None:
    parser = commands.add_parser("models", help="list the zoo's checkpoints and the registered names")
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("--zoo", metavar="FOLDER", help="more checkpoints, before ./model_zoo and the bundled ones")
    add("--only-zoo", action="store_true", help="those of --zoo alone")
    add("--dataset", help="only those for this one (default: all)")
    add_plugin(parser)


def run(arguments: argparse.Namespace) -> int:
    from robust_interp import data, zoo
    from robust_interp.cli.console import print_models

    dataset = data.named(arguments.dataset) if arguments.dataset else None
    print_models(zoo.checkpoints(arguments.zoo, dataset, arguments.only_zoo))
    return 0

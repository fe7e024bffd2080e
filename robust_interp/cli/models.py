"""robust-interp models"""

from __future__ import annotations

import argparse

from robust_interp.cli.options import add_plugin


def add_to(commands) -> None:
    parser = commands.add_parser("models", help="list the zoo's checkpoints and the registered names")
    parser.set_defaults(run=run)
    parser.add_argument("--zoo", metavar="FOLDER")
    parser.add_argument("--dataset")
    add_plugin(parser)


def run(arguments: argparse.Namespace) -> int:
    from robust_interp import zoo
    from robust_interp.cli.console import print_models

    print_models(zoo.checkpoints(arguments.zoo, arguments.dataset))
    return 0

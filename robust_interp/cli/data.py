"""robust-interp data"""

from __future__ import annotations

import argparse

from robust_interp.cli.options import Commands, add_command, add_fields, add_plugin
from robust_interp.cli.terminal import say
from robust_interp.core.errors import UserError


def add_to(commands: Commands) -> None:
    parser = add_command(
        commands,
        "data",
        "check which datasets are available, and say how to get the others",
        "robust-interp data cifar10 --download",
        run,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="datasets (default: all)")
    add_fields(parser, "data_dir")
    parser.add_argument(
        "--download", action="store_true", help="download the named datasets with torchvision"
    )
    add_plugin(parser)


def run(arguments: argparse.Namespace) -> int:
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
            say(f"{name}: ready, {len(test)} test images, fingerprint {test.fingerprint[:12]}")
        except UserError as error:
            missing += 1
            say(error)
    return 1 if missing and arguments.names else 0

"""robust-interp data"""

from __future__ import annotations

import argparse
from pathlib import Path

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
    add_fields(parser, "data_dir cache")
    parser.add_argument(
        "--download", action="store_true", help="download the named datasets with torchvision"
    )
    parser.add_argument(
        "--clear-cache", action="store_true", help="remove the generated corruptions that are kept on disk"
    )
    add_plugin(parser)


def run(arguments: argparse.Namespace) -> int:
    from robust_interp import data
    from robust_interp.corruptions.cache import cache_folder

    if arguments.clear_cache:
        return _clear(cache_folder(arguments.cache))
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
    _tell_of_cache(cache_folder(arguments.cache))
    return 1 if missing and arguments.names else 0


def _tell_of_cache(folder: Path | None) -> None:
    from robust_interp.corruptions.cache import size_of

    if folder is None:
        say("generated corruptions: not kept on disk")
    else:
        say(f"generated corruptions: {_amount(size_of(folder))} in {folder}; --clear-cache removes them")


def _clear(folder: Path | None) -> int:
    from robust_interp.corruptions.cache import clear

    if folder is None:
        raise UserError("generated corruptions are not kept on disk: there is nothing to clear")
    say(f"removed {_amount(clear(folder))} of generated corruptions from {folder}")
    return 0


def _amount(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"

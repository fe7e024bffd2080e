"""robust-interp data"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from robust_interp.cli.options import Commands, add_command, add_fields, add_plugin, select_options
from robust_interp.cli.terminal import say
from robust_interp.core.errors import UserError

SHOWN = 5  # number of unreadable files that are listed


def add_to(commands: Commands) -> None:
    parser = add_command(
        commands,
        "data",
        "check which data sets are available, and say how to get the others",
        "robust-interp data cifar10 --download",
        run,
    )
    parser.add_argument(
        "names",
        nargs="*",
        metavar="NAME",
        help="data sets, or sources of your own images, such as folder:PATH (default: all data sets)",
    )
    add_fields(parser, "data_dir cache class_map resize crop interpolation skip_unreadable decode_workers")
    parser.add_argument(
        "--download",
        action="store_true",
        help="download the named data sets with torchvision, and hf:NAME from Hugging Face's hub",
    )
    parser.add_argument(
        "--clear-cache", action="store_true", help="remove the generated corruptions that are kept on disk"
    )
    add_plugin(parser)


def run(arguments: argparse.Namespace) -> int:
    from robust_interp import data
    from robust_interp.corruptions.cache import cache_folder

    if arguments.clear_cache:
        if arguments.names or arguments.download:
            raise UserError("--clear-cache is for all data sets: give it without names and --download")
        return _clear(cache_folder(arguments.cache))
    if arguments.download and not arguments.names:
        raise UserError("name the data sets to download, e.g. robust-interp data cifar10 --download")
    for name in arguments.names:  # an unknown name stops everything before a download starts
        _ = data.is_source(name) or data.DATASETS[name]
    missing = 0
    for name in arguments.names or data.DATASETS:
        if arguments.download:
            data.download(name, arguments.data_dir)
        try:
            for line in _describe(name, arguments):
                say(line)
        except UserError as error:
            missing += 1
            say(error)
    if not arguments.names:
        for kind, source in data.SOURCES.items():
            say(f"{kind}:{source.what}")
    _tell_of_cache(cache_folder(arguments.cache))
    return 1 if missing and arguments.names else 0


def _describe(name: str, arguments: argparse.Namespace) -> Iterator[str]:
    """Yield the lines that describe a data set or a source.

    Raises:
        UserError: If it cannot be used; the message says why.
    """
    import numpy as np

    from robust_interp.benchmark.request import Request
    from robust_interp.benchmark.settings import load_dataset

    names = "data_dir class_map resize crop interpolation skip_unreadable decode_workers"
    found = load_dataset(Request(dataset=name, subset="first", **select_options(arguments, names)))
    trouble = found.problems()
    classes = f"{found.classes} classes"
    if (there := len(np.unique(found.labels))) < found.classes:
        classes += f" ({there} of them have images)"
    yield (
        f"{name}: {'not ready' if trouble else 'ready'}, {len(found)} test images of {found.sizes}, "
        f"{classes}, fingerprint {found.fingerprint[:12]}"
    )
    yield from found.notes
    if trouble:
        more = f"; {len(trouble) - SHOWN} more" if len(trouble) > SHOWN else ""
        raise UserError("; ".join(trouble[:SHOWN]) + more)


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

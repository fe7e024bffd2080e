"""robust-interp store"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path

from robust_interp.benchmark.forms import named_path
from robust_interp.benchmark.request import DEFAULTS
from robust_interp.cli.options import Commands, add_command
from robust_interp.cli.terminal import say


def add_to(commands: Commands) -> None:
    parser = add_command(
        commands,
        "store",
        "check the store of a results folder for damage, or repair it; loads no model",
        "robust-interp store check results",
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    _add(
        actions,
        "check",
        "read the whole store and say what is damaged or missing",
        _check,
        "Exit status: 0 if nothing is damaged or missing, 1 otherwise.",
    )
    _add(
        actions,
        "repair",
        "write a new store with everything that is undamaged in a damaged one",
        _repair,
        "The damaged file is kept beside the new one. Exit status: 0 if the store is undamaged afterwards.",
    )


def _add(
    actions: Commands, name: str, does: str, run: Callable[[argparse.Namespace], int], more: str
) -> None:
    parser = add_command(actions, name, does, f"robust-interp store {name} results", run, more)
    parser.add_argument(
        "folder",
        nargs="?",
        default=Path(DEFAULTS["out"]),
        type=named_path,
        metavar="FOLDER",
        help=f"results folder (default: {DEFAULTS['out']})",
    )


def _check(arguments: argparse.Namespace) -> int:
    from robust_interp.store import FILE_NAME, check

    damage = check.check(arguments.folder)
    path = arguments.folder / FILE_NAME
    say("\n".join(damage.lines(path)) if damage else f"{path} is sound")
    return int(bool(damage))


def _repair(arguments: argparse.Namespace) -> int:
    from robust_interp.store import FILE_NAME, check

    done = check.repair(arguments.folder)
    path = arguments.folder / FILE_NAME
    for line in done.damage.lines(path):
        say(line)
    if done.old:
        names = {"waiting": "waiting chunks"}
        kept = ", ".join(f"{count} {names.get(table, table)}" for table, count in done.kept.items() if count)
        kept = kept or "nothing, since no row is left"
        say(f"{path} is built anew with {kept}; the damaged file is {done.old}")
        for line in done.left.lines(path):
            say(line)
    elif not done.damage:
        say(f"{path} is sound: there is nothing to repair")
    return int(done.left.beyond(*check.NOT_IN_THE_FILE))

"""Shell completion of names with argcomplete, which the extra ``completion`` installs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterable, Iterator
from typing import Any

from robust_interp.cli.leaderboard import with_default_action

# Maps the destination of an option or argument to the kind of names it takes.
TAKES = {
    "models": "models",
    "entries": "models",
    "source": "models",
    "architectures": "architectures",
    "attacks": "attacks",
    "attack": "attacks",
    "strong": "attacks",
    "strongest": "attacks",
    "black_box": "attacks",
    "corruptions": "corruptions",
    "corruption": "corruptions",
    "dataset": "datasets",
    "names": "datasets",
}


def answer(parser: argparse.ArgumentParser) -> None:
    """Print completions for the shell and end the process; do nothing without argcomplete or a request."""
    try:
        import argcomplete
    except ImportError:
        return

    class Names(argcomplete.completers.FilesCompleter):
        def __call__(self, prefix: str, **asked: Any) -> list[str]:
            kind = TAKES.get(asked["action"].dest)
            return continued(prefix, known(kind)) if kind else super().__call__(prefix)

    _insert_default_action()
    argcomplete.autocomplete(parser, default_completer=Names())


def _insert_default_action() -> None:
    """Let argcomplete see ``leaderboard FOLDER --so`` as it will be parsed, with the action `show`."""
    line = os.environ.get("COMP_LINE", "")
    before, command, after = line.partition(" leaderboard ")
    whole = after.split()[: None if after.endswith(" ") else -1]  # the last word is being typed
    if whole and len(before.split()) == 1 and with_default_action(["leaderboard", *whole])[1] != whole[0]:
        os.environ["COMP_LINE"] = f"{before}{command}show {after}"
        os.environ["COMP_POINT"] = str(int(os.environ["COMP_POINT"]) + len("show "))


def continued(prefix: str, names: Iterable[str]) -> list[str]:
    """Return the completions of the last name in a comma-separated list such as ``fgsm,pg``."""
    done, comma, last = prefix.rpartition(",")
    return [f"{done}{comma}{name}" for name in names if name.startswith(last)]


def known(kind: str) -> Iterator[str]:
    """Yield the known names of a kind, without importing torch."""
    from robust_interp import attacks, corruptions, data, zoo

    if kind == "models":
        yield from dict.fromkeys(checkpoint.architecture for checkpoint in zoo.checkpoints())
    if kind == "architectures":
        yield from (*zoo.OURS, *zoo.MODELS)
    if kind == "attacks":
        yield from (*attacks.ATTACKS, "none")
    if kind == "corruptions":
        yield from (*corruptions.GROUPS, *corruptions.CORRUPTIONS, "none")
    if kind == "datasets":
        yield from data.DATASETS

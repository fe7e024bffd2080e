"""Shell completion of names with argcomplete, which the extra ``completion`` installs."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Any

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

    argcomplete.autocomplete(parser, default_completer=Names())


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

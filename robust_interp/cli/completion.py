"""Names for the shell's completion: argcomplete asks the command itself, with the extra ``completion``."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator
from typing import Any

# Destination of an option or argument -> the kind of names that it takes.
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
    """Answer the shell that asks what may stand at the cursor, and end the process; nothing otherwise."""
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
    """What a list that is begun, such as ``fgsm,pg``, may go on as."""
    done, comma, last = prefix.rpartition(",")
    return [f"{done}{comma}{name}" for name in names if name.startswith(last)]


def known(kind: str) -> Iterator[str]:
    """The names of a kind, without torch."""
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

"""Arguments in the forms that users write, and what several commands share."""

from __future__ import annotations

import argparse
import math
from pathlib import Path

from robust_interp.core.specs import split_specs


def picked(arguments: argparse.Namespace, names: str) -> dict:
    return {name: getattr(arguments, name) for name in names.split()}


def add_threads(parser: argparse.ArgumentParser, otherwise: str = "all CPUs that it may use") -> None:
    parser.add_argument(
        "--threads",
        type=positive,
        metavar="N",
        help=f"CPU threads of one operation (default: $OMP_NUM_THREADS, else {otherwise})",
    )


def use_threads(arguments: argparse.Namespace) -> None:
    """Have torch use as many threads as were asked for, else no more than there are CPUs for."""
    import torch

    from robust_interp.core import threads

    torch.set_num_threads(threads.choose(arguments.threads, None).count)


def add_plugin(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE.py",
        help="attacks, corruptions, datasets and models of your own (may be given several times)",
    )


def add_sources(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "sources",
        nargs="*",
        default=[Path("results")],
        type=Path,
        metavar="SOURCE",
        help="results folders and leaderboard CSV files (default: results)",
    )


def add_measuring(parser: argparse.ArgumentParser) -> None:
    """What every command that measures models takes: which ones, on what, where and how fast."""
    add = parser.add_argument
    add("--checkpoint", metavar="FILE", help="weights for the one timm:NAME or factory that is named")
    add(
        "--mean", type=per_channel, metavar="LIST", help="normalise models not from the zoo, in [0, 1] pixels"
    )
    add("--std", type=per_channel, metavar="LIST", help="likewise")
    add("--dataset", default="digits", help="digits (embedded, default), cifar10, cifar100")
    add("--eps", type=eps_list, metavar="LIST", help="Linf radii in units of 1/255, e.g. 1,2,4")
    add("--seeds", type=seed_list, metavar="SEEDS", help="train seeds: 3 means 0,1,2; 0,4 means those")
    add("--batch-size", type=int, metavar="N")
    add("--device", help="cpu, cuda, cuda:1 (default: cuda if there is one)")
    add_threads(parser, "the fastest number in a short test")
    add(
        "--out", default="results", type=Path, metavar="FOLDER", help="store and CSV files (default: results)"
    )
    add("--zoo", metavar="FOLDER", help="more checkpoints, before ./model_zoo and the bundled ones")
    add("--data-dir", metavar="FOLDER", help="default: $ROBUST_INTERP_DATA, then ~/.cache/robust-interp")
    add("--quiet", action="store_true", help="no progress")
    add_plugin(parser)


def load_plugins(arguments: argparse.Namespace) -> None:
    """Register what the files of --plugin declare, for a command that has it."""
    if files := getattr(arguments, "plugin", None):
        from robust_interp import plugins

        for file in files:
            plugins.load(file)


def name_list(text: str) -> tuple[str, ...]:
    """Names, each perhaps with arguments in brackets: commas in those separate no names."""
    return tuple(split_specs(text))


def per_channel(text: str) -> tuple[float, ...]:
    """A mean or std: one number a channel."""
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number a channel such as 0.5,0.5,0.5") from None


def eps_list(text: str) -> tuple[float, ...]:
    """Radii in units of 1/255 as [0, 1] pixels."""
    try:
        values = [float(part) for part in text.split(",") if part.strip()]
        if not text.isascii() or "_" in text:  # which float would take
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of numbers such as 1,2,4") from None
    if not values:
        raise argparse.ArgumentTypeError("give at least one radius, e.g. 1,2,4")
    if not all(math.isfinite(value) and 0 < value <= 255 for value in values):
        raise argparse.ArgumentTypeError(f"{text}: a radius is in units of 1/255, above 0 and at most 255")
    if all(value < 0.1 for value in values):
        as_255 = ",".join(f"{value * 255:.3g}" for value in values)
        raise argparse.ArgumentTypeError(
            f"{text} looks like [0, 1] pixels; eps is in units of 1/255: did you mean {as_255}?"
        )
    return tuple(value / 255 for value in values)


def sample_count(text: str) -> int | str:
    return text if text == "all" else positive(text)


def positive(text: str) -> int:
    value = natural(text)
    if value == 0:
        raise argparse.ArgumentTypeError("must be at least 1")
    return value


def natural(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0")
    return int(text)


def natural_list(text: str) -> tuple[int, ...]:
    """``2,5`` in the order given, each once."""
    found = tuple(dict.fromkeys(natural(part.strip()) for part in text.split(",") if part.strip()))
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} names no number")
    return found


def odd(text: str) -> int:
    """So that a symmetric grid of so many points has one in its middle; at least 3."""
    value = natural(text)
    if value % 2 == 0 or value < 3:
        raise argparse.ArgumentTypeError("must be odd and at least 3")
    return value


def positive_number(text: str) -> float:
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def percentage(text: str) -> float:
    value = _number(text)
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage from 0 to 100")
    return value


def _number(text: str) -> float:
    """NaN for what is no number."""
    try:
        return float(text)
    except ValueError:
        return math.nan


def seed_list(text: str) -> tuple[int, ...]:
    """``3`` means 0, 1, 2; ``0,4`` means those, and ``4,`` that one."""
    if "," not in text:
        return tuple(range(positive(text)))
    seeds = {natural(part.strip()) for part in text.split(",") if part.strip()}
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} names no seed")
    return tuple(sorted(seeds))


def interval(text: str) -> tuple[float, float]:
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not an interval such as 0.2,0.25") from None
    return low, high


def add_figure_options(parser: argparse.ArgumentParser) -> None:
    """What every command that draws zoo models takes."""
    add = parser.add_argument
    add("--dataset", default="digits", help="of the checkpoints and test images (default: digits)")
    add("--zoo", metavar="FOLDER", help="more checkpoints, before ./model_zoo and the bundled ones")
    add("--data-dir", metavar="FOLDER", help="default: $ROBUST_INTERP_DATA, then ~/.cache/robust-interp")
    add(
        "-o",
        "--out",
        default="figures",
        type=Path,
        metavar="FOLDER|FILE",
        help="a folder, or the figure's own name, e.g. fig1.png: both PNG and SVG (default: figures)",
    )

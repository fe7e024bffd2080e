"""robust-interp verify"""

from __future__ import annotations

import argparse
from dataclasses import replace

from robust_interp.benchmark.forms import name_list, named_path
from robust_interp.benchmark.request import DEFAULTS
from robust_interp.cli.options import (
    OF_MODELS,
    OF_RUN,
    Commands,
    add_command,
    add_field,
    add_fields,
    add_plugin,
    add_quiet,
    select_options,
    use_threads,
)
from robust_interp.cli.terminal import say, warn
from robust_interp.core.errors import UserError


def add_to(commands: Commands) -> None:
    parser = add_command(
        commands,
        "verify",
        "measure models on adversarial images that were made elsewhere, after checking range and radius",
        "robust-interp verify adv.npz --models in_resnet20 --eps 8 --dataset digits",
        run,
    )
    add = parser.add_argument
    add(
        "file",
        type=named_path,
        metavar="FILE.npz",
        help="file with the arrays images, (N, C, H, W), uint8 or floats in [0, 1], and indices, (N,): the "
        "test image that each was made from (without indices: the first N test images)",
    )
    add(
        "--models",
        type=name_list,
        required=True,
        metavar="NAMES",
        help="models to measure, named as in bench (required)",
    )
    add(
        "--eps",
        required=True,
        metavar="E",
        help="largest allowed distance to the test images: Linf in units of 1/255, L2 in [0, 1] pixels "
        "(required)",
    )
    add("--norm", choices=("Linf", "L2"), default="Linf", help="norm of the radius (default: Linf)")
    add_fields(parser, f"{OF_MODELS} {OF_RUN}")
    add_field(parser, "out", DEFAULTS["out"], type=named_path)
    add_quiet(parser)
    add_plugin(parser)


def run(arguments: argparse.Namespace) -> int:
    from robust_interp.cli import names

    eps = _radius(arguments.eps, arguments.norm)
    arguments.dataset = names.dataset_of(arguments.dataset, arguments.models)
    names.check_models(arguments.models, arguments.dataset, arguments.zoo, arguments.only_zoo)
    from robust_interp.benchmark import external
    from robust_interp.benchmark.request import Request
    from robust_interp.benchmark.runner import Runner
    from robust_interp.benchmark.settings import load_dataset, resolve_options
    from robust_interp.classifiers.selection import Selection
    from robust_interp.cli.console import console
    from robust_interp.cli.progress import track
    from robust_interp.core.work import with_progress
    from robust_interp.data.subset import FIRST
    from robust_interp.results import export

    use_threads(arguments)
    request = Request(**select_options(arguments, f"models {OF_MODELS} {OF_RUN}"))
    request = replace(request, subset=request.subset or FIRST)  # indices count in the data set's own order
    dataset = load_dataset(request)
    with track(console(stderr=True), "verify", arguments.quiet) as progress:
        selection = Selection(request.models, resolve_options(request), dataset)
        whole = Runner.for_request(request, dataset)
        selection.load(whole.load)
        targets = selection.targets
        runner = whole.for_dataset(external.common_images(targets))
        found = external.read(arguments.file, runner.dataset, arguments.norm, eps)
        table = external.write(
            arguments.out,
            [external.judge(found, target, runner) for target in with_progress(targets, progress)],
        )
    shown = ["model", "train_seed", "members", "n", "clean", "accuracy", "ci_low", "ci_high", "asr"]
    say(f"{dataset.name}, {found.column}: made elsewhere, never ranked; in %")
    say(export.to_markdown(table[shown]), end="")
    for line in dict.fromkeys(line for target in targets for line in target.remarks):
        warn(f"warning: {line}")
    say(f"wrote {arguments.out / external.FILE_NAME}")
    return int(selection.is_incomplete)


def _radius(text: str, norm: str) -> float:
    """Read the radius, and return it in [0, 1] pixels.

    Args:
        text: Value of --eps: for Linf in units of 1/255 or as a fraction, for L2 in [0, 1] pixels.
        norm: "Linf" or "L2".

    Raises:
        UserError: If the text is not one radius, or an Linf radius is 0.
    """
    from robust_interp.core.units import read_eps

    try:
        if norm == "L2":
            return float(text)
        if text.strip() and float(text.partition("/")[0]) == 0:
            raise UserError(
                "--eps 0 allows the clean images alone, whose accuracy stands beside that of every radius: "
                "give the one that the images were made for"
            )
        (eps,) = read_eps(text)
    except UserError:  # its message is more precise than the one below
        raise
    except ValueError:
        raise UserError(f"--eps {text!r} is not one radius, such as 8 (Linf) or 0.5 (L2)") from None
    return eps

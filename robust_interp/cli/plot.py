"""robust-interp plot"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from robust_interp.benchmark.forms import name_list, positive, positive_number
from robust_interp.cli.options import (
    ALL_CPUS,
    Commands,
    add_chosen,
    add_command,
    add_fields,
    add_figure_options,
    add_folders,
    add_images,
    add_models,
    add_out,
    add_quiet,
    add_seed,
    add_which_dataset,
    natural_list,
    odd,
    use_threads,
)
from robust_interp.cli.terminal import say
from robust_interp.core.errors import UserError
from robust_interp.core.paths import expanded

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from torch import Tensor

    from robust_interp.classifiers.classifier import Classifier
    from robust_interp.core.work import ProgressCallback
    from robust_interp.zoo import Checkpoint


def add_to(commands: Commands) -> None:
    parser = add_command(
        commands,
        "plot",
        "draw a figure as PNG and SVG, with its numbers in a CSV or NPZ file",
        "robust-interp plot coefficients --models in_resnet20",
    )
    actions = parser.add_subparsers(required=True, metavar="FIGURE")
    _add_coefficients(actions)
    _add_landscape(actions)
    _add_curve(actions)


def _add_coefficients(actions: Commands) -> None:
    parser = add_command(
        actions,
        "coefficients",
        "draw act(λ) over depth and over training, and print the share of its values in each range",
        "robust-interp plot coefficients --models in_resnet20,lambda_in_resnet20 -o figures/lambda.png",
        _coefficients,
    )
    add_models(parser, "zoo names or globs; all seeds of a name are drawn as one band")
    add_images(parser, "for networks with a gated λ", 64)
    add_figure_options(parser)
    add_quiet(parser)


def _coefficients(arguments: argparse.Namespace) -> int:
    from robust_interp.cli import names

    names.check_dataset(arguments.dataset)
    names.check_models(arguments.models, arguments.dataset, arguments.zoo, arguments.only_zoo)
    from robust_interp import data
    from robust_interp.analysis import coefficients, inputs
    from robust_interp.cli.console import console
    from robust_interp.cli.progress import track
    from robust_interp.figures import coefficients as figures
    from robust_interp.figures import files
    from robust_interp.figures.origin import FigureOrigin
    from robust_interp.results import export

    found = inputs.checkpoints(arguments.models, arguments.zoo, arguments.dataset, only=arguments.only_zoo)
    pixels = None
    if any(coefficients.is_gated(checkpoint.architecture) for checkpoint in found):
        test = data.load(arguments.dataset, "test", arguments.data_dir)
        pixels, _ = inputs.images(test, range(min(arguments.n, len(test))))
    with track(console(stderr=True), "coefficients", arguments.quiet) as progress:
        table = coefficients.over_depth(found, pixels, progress)
    training = coefficients.over_training(found)
    shares = coefficients.shares(table)
    place = files.stem(arguments.out, "coefficients")
    weights = {checkpoint.name: checkpoint.record["weights_sha256"] for checkpoint in found}
    origin = FigureOrigin(arguments.dataset, weights, int(table["images"].max()), figures.DEPTH_SHOWS)
    written = files.with_table(figures.depth_figure(table), table, place, origin)
    written.append(files.write_table(shares, files.extended(place, "_shares")))
    if len(training):
        figure, origin = figures.training_figure(training), replace(origin, shows=figures.TRAINING_SHOWS)
        written += files.with_table(figure, training, files.extended(place, "_training"), origin)
    say(export.to_markdown(shares), end="")
    say(f"wrote {', '.join(map(str, written))}")
    return 0


def _add_landscape(actions: Commands) -> None:
    parser = add_command(
        actions,
        "landscape",
        "draw loss and predicted class around test images, along the FGSM direction",
        "robust-interp plot landscape --models preact_resnet20,in_resnet20 --sample 0,3",
        _landscape,
    )
    add = parser.add_argument
    add_models(parser, "zoo names; the first seed of each is used")
    add(
        "--sample",
        type=natural_list,
        default=(0,),
        metavar="IDS",
        help="ids of test images, from 0 (default: 0)",
    )
    add_images(parser, "to average the loss along the line over", 64)
    add(
        "--corruption",
        metavar="NAME",
        help="corrupt the image first, e.g. shot_noise (default: clean image)",
    )
    add("--severity", type=positive, metavar="1..5", help="severity of the corruption (default: 5)")
    add(
        "--radius",
        type=positive_number,
        metavar="R",
        help="half-width of each axis, in units of 1/255 (default: twice the largest eps of the data set)",
    )
    add(
        "--points", type=odd, default=61, metavar="N", help="number of points on each axis, odd (default: 61)"
    )
    add(
        "--directions",
        choices=("shared", "own"),
        default="own",
        help="own: the FGSM direction of each model; shared: that of the first model, weaker for the others "
        "(default: own)",
    )
    add_seed(parser, "the orthogonal direction and of generated corruptions")
    add_fields(parser, "device threads corruptions_dir", threads=ALL_CPUS)
    add_figure_options(parser)
    add_quiet(parser)


def _landscape(arguments: argparse.Namespace) -> int:
    from robust_interp.cli import names

    names.check_dataset(arguments.dataset)
    names.check_models(arguments.models, arguments.dataset, arguments.zoo, arguments.only_zoo)
    names.check_corruptions(arguments.corruption)
    from robust_interp.analysis import inputs

    if arguments.severity is not None and arguments.corruption is None:
        raise UserError("--severity needs --corruption")
    use_threads(arguments)
    checkpoints = inputs.singles(arguments.models, arguments.zoo, arguments.dataset, arguments.only_zoo)
    planes, lines, averaged = _around_images(arguments, checkpoints)
    weights = {checkpoint.name: checkpoint.record["weights_sha256"] for checkpoint in checkpoints.values()}
    written = _draw_landscapes(arguments, planes, lines, weights)
    for name, checkpoint in checkpoints.items():
        say(f"{name}: {checkpoint.name}")
    if left_out := averaged - lines["sample"].nunique():
        say(f"{left_out} of {averaged} images left out of the line: zero or non-finite gradient")
    say(f"wrote {', '.join(map(str, written))}")
    return 0


def _around_images(
    arguments: argparse.Namespace, checkpoints: Mapping[str, Checkpoint]
) -> tuple[dict[int, dict[str, np.ndarray]], pd.DataFrame, int]:
    """Return the planes of --sample, the lines of --n images, and the number of these images.

    Args:
        arguments: The arguments of the command.
        checkpoints: The checkpoints by the names of their models.
    """
    from robust_interp import data
    from robust_interp.analysis import inputs, landscape
    from robust_interp.cli.console import console
    from robust_interp.cli.progress import track
    from robust_interp.core.devices import resolve_device
    from robust_interp.core.work import part_of_progress

    device, shared = resolve_device(arguments.device), arguments.directions == "shared"
    classifiers = {name: inputs.classifier(checkpoint, device) for name, checkpoint in checkpoints.items()}
    test = data.load(arguments.dataset, "test", arguments.data_dir)
    corruption = arguments.corruption and (arguments.corruption, arguments.severity or 5)
    released = expanded(arguments.corruptions_dir) if arguments.corruptions_dir else None
    images, labels = inputs.images(test, arguments.sample, corruption, arguments.seed, released)
    radii_255, many = _radii(arguments), range(min(arguments.n, len(test)))
    in_planes = len(arguments.sample) * arguments.points**2  # points in planes; points on lines are extra
    drawn_from = in_planes / (in_planes + len(many) * arguments.points)
    with track(console(stderr=True), "landscape", arguments.quiet) as progress:
        what = " ".join(map(str, corruption or ["clean"]))
        part = part_of_progress(progress, 0.0, drawn_from)
        planes = _planes(arguments, classifiers, images.to(device), labels.tolist(), what, radii_255, part)
        images, labels = inputs.images(test, many, corruption, arguments.seed, released)
        part = part_of_progress(progress, drawn_from, 1.0, "line at")
        lines = landscape.lines(
            classifiers, images.to(device), labels.tolist(), many, radii_255, shared, arguments.seed, part
        )
    return planes, lines, len(many)


def _radii(arguments: argparse.Namespace) -> np.ndarray:
    """Return the distances along an axis, in units of 1/255."""
    import numpy as np

    from robust_interp import data

    reach = arguments.radius or 2 * max(data.DATASETS[arguments.dataset].eps_255)
    return np.linspace(-reach, reach, arguments.points)


def _planes(
    arguments: argparse.Namespace,
    classifiers: Mapping[str, Classifier],
    images: Tensor,
    labels: Sequence[int],
    what: str,
    radii_255: np.ndarray,
    progress: ProgressCallback,
) -> dict[int, dict[str, np.ndarray]]:
    """Return, for each image index of --sample, the arrays of its plane and where they come from.

    Args:
        arguments: The arguments of the command.
        classifiers: The classifiers by name.
        images: The images (N, C, H, W) in [0, 1], on the device of the classifiers.
        labels: Their N labels.
        what: What was done to the images: ``clean``, or the corruption and its severity.
        radii_255: Distances from the image along both directions, in units of 1/255.
        progress: Progress callback.
    """
    import numpy as np

    from robust_interp import data
    from robust_interp.analysis import landscape
    from robust_interp.core.work import part_of_progress

    shared, planes = arguments.directions == "shared", {}
    direction_of = next(iter(classifiers)) if shared else ""
    looked_at = list(zip(arguments.sample, images, labels, strict=True))
    for at, (sample, image, label) in enumerate(looked_at):
        moves = landscape.directions(classifiers, image, label, sample, shared, arguments.seed)
        start, stop = (done / len(looked_at) for done in (at, at + 1))
        part = part_of_progress(progress, start, stop, f"plane at image {sample}")
        arrays = landscape.plane(classifiers, image, label, moves, radii_255, direction_of, part)
        planes[sample] = arrays | {
            "image": image.cpu().numpy(),
            "sample": np.array(sample),
            "seed": np.array(arguments.seed),
            "what": np.array(what),
            "eps_255": np.array(data.DATASETS[arguments.dataset].eps_255, dtype=float),
        }
    return planes


def _draw_landscapes(
    arguments: argparse.Namespace, planes: dict[int, dict], lines: pd.DataFrame, weights: dict[str, str]
) -> list[Path]:
    """Draw the figures, write them, and return the paths of all files.

    Args:
        arguments: The arguments of the command.
        planes: For each image index, the arrays of its plane, from `analysis.landscape.plane`.
        lines: The losses along the lines of many images, from `analysis.landscape.lines`.
        weights: SHA-256 of the weights of each checkpoint, by its name.
    """
    from robust_interp import data
    from robust_interp.figures import files
    from robust_interp.figures import landscape as figures
    from robust_interp.figures.origin import FigureOrigin

    place, written = files.stem(arguments.out, "landscape"), []
    for sample, plane in planes.items():
        figure = figures.plane_figure(plane, data.DATASETS[arguments.dataset].class_names or None)
        origin = FigureOrigin(arguments.dataset, weights, 1, figures.PLANE_SHOWS)
        written += files.with_arrays(figure, plane, files.extended(place, f"_plane_{sample}"), origin)
    origin = FigureOrigin(arguments.dataset, weights, lines["sample"].nunique(), figures.LINE_SHOWS)
    figure = figures.line_figure(lines)
    return written + files.with_table(figure, lines, files.extended(place, "_line"), origin)


def _add_curve(actions: Commands) -> None:
    parser = add_command(
        actions,
        "curve",
        "draw stored accuracies against eps, with their intervals; loads no model",
        "robust-interp plot curve results --models in_resnet20 --attack pgd -o figures/pgd.png",
        _curve,
    )
    add = parser.add_argument
    add_folders(parser)
    add_chosen(parser)
    add(
        "--attack",
        type=name_list,
        dest="series",
        metavar="NAMES",
        help="only these attacks, with any parameters, or globs, e.g. 'pgd,worst' (default: all)",
    )
    add_which_dataset(parser)
    add_out(parser)


def _curve(arguments: argparse.Namespace) -> int:
    from robust_interp import data
    from robust_interp.figures import files, robustness
    from robust_interp.report import curves, provenance
    from robust_interp.results import export
    from robust_interp.results.folders import of_models, runs_in
    from robust_interp.results.newest import by_age

    runs, dataset = runs_in(arguments.folders, arguments.dataset)
    age = by_age(runs)  # of all models: one that is not drawn may be a member of an ensemble that is
    chosen = {score.classifier.model for run in of_models(runs, arguments.models) for score in run}
    runs = [[score for score in run if score.classifier.model in chosen] for run in age.newest]
    table = curves.under_attack(curves.points(runs), arguments.series)
    drawn = curves.scores_of(runs, table)
    origin = provenance.figure_origin(drawn, dataset, int(table["n"].max()), robustness.EPS_SHOWS)
    chance = 100 / data.DATASETS[dataset].classes if dataset in data.DATASETS else None
    figure = robustness.eps_figure(table, chance=chance)
    written = files.with_table(figure, table, files.stem(arguments.out, "curve"), origin)
    shown = ["entry", "series", "x", "norm", "n", "seeds", "accuracy", "band_low", "band_high"]
    say(export.to_markdown(table[shown]), end="")
    if old := age.trained_again(chosen):
        say(f"of models that were trained again, only the newest weights are drawn: {', '.join(old)}")
    say(f"wrote {', '.join(map(str, written))}")
    return 0

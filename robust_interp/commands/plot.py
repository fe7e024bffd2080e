"""robust-interp plot"""

from __future__ import annotations

import argparse
from pathlib import Path

from robust_interp.commands.options import name_list, natural, natural_list, odd, positive, positive_number
from robust_interp.errors import UserError

_IMAGE_TYPES = (".png", ".svg")


def add_to(commands) -> None:
    parser = commands.add_parser("plot", help="draw a figure, as PNG and SVG with its numbers beside it")
    actions = parser.add_subparsers(required=True, metavar="FIGURE")
    _add_coefficients(actions)
    _add_landscape(actions)


def add_shared(parser) -> None:
    """What every command that draws takes."""
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
        help="a folder, or the name of the figure, e.g. fig1.png; PNG and SVG are written (default: figures)",
    )


def stem(out: Path, name: str) -> Path:
    """Where a figure goes, without its ending: `out` itself if that ends as an image, else `name` in it."""
    return out.with_suffix("") if out.suffix.lower() in _IMAGE_TYPES else out / name


def write_table(frame, path: Path) -> Path:
    """A table as CSV, numbers with six significant digits.

    Raises:
        UserError: if it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        frame.to_csv(path, index=False, float_format="%.6g", lineterminator="\n")
    except OSError as error:
        raise UserError(f"cannot write {path}: {error}") from error
    return path


def write_arrays(arrays, path: Path) -> Path:
    """Named arrays as .npz.

    Raises:
        UserError: if it cannot be written.
    """
    import numpy as np

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(path, **arrays)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error}") from error
    return path


def _add_coefficients(actions) -> None:
    parser = actions.add_parser("coefficients", help="act(λ) over depth and over training, and its shares")
    parser.set_defaults(run=_coefficients)
    add = parser.add_argument
    add("models", nargs="+", metavar="MODEL", help="zoo names or globs; all seeds of a name are one band")
    add("--n", type=positive, default=64, help="test images that gated λ are read at (default: 64)")
    add_shared(parser)


def _coefficients(arguments: argparse.Namespace) -> int:
    from robust_interp import data, formats
    from robust_interp.analysis import chosen, coefficients
    from robust_interp.figures import coefficients as figures
    from robust_interp.figures import style

    found = chosen.checkpoints(arguments.models, arguments.zoo, arguments.dataset)
    pixels = None
    if any(coefficients.is_gated(checkpoint.architecture) for checkpoint in found):
        test = data.load(arguments.dataset, "test", arguments.data_dir)
        pixels, _ = chosen.images(test, range(min(arguments.n, len(test))))
    table = coefficients.over_depth(found, pixels)
    training = coefficients.over_training(found)
    shares = coefficients.shares(table)
    place = stem(arguments.out, "coefficients")
    written = [
        *style.save(figures.depth_figure(table), place),
        write_table(table, place.with_name(f"{place.name}.csv")),
    ]
    written.append(write_table(shares, place.with_name(f"{place.name}_shares.csv")))
    if len(training):
        place = place.with_name(f"{place.name}_training")
        written += style.save(figures.training_figure(training), place)
        written.append(write_table(training, place.with_name(f"{place.name}.csv")))
    print(formats.to_markdown(shares), end="")
    print(f"wrote {', '.join(map(str, written))}")
    return 0


def _add_landscape(actions) -> None:
    parser = actions.add_parser(
        "landscape", help="loss and predicted class around test images, along the FGSM direction"
    )
    parser.set_defaults(run=_landscape)
    add = parser.add_argument
    add("--models", type=name_list, required=True, metavar="NAMES", help="zoo names; the first seed of each")
    add(
        "--sample",
        type=natural_list,
        default=(0,),
        metavar="IDS",
        help="ids of test images, from 0 (default: 0)",
    )
    add("--corruption", metavar="NAME", help="look at the corrupted image, e.g. shot_noise")
    add("--severity", type=positive, metavar="1..5", help="of the corruption (default: 5)")
    add("--radius", type=positive_number, metavar="R", help="in 1/255 (default: twice the largest usual eps)")
    add("--points", type=odd, default=61, metavar="N", help="on each axis, an odd number (default: 61)")
    add(
        "--directions",
        choices=("shared", "own"),
        default="own",
        help="each model's own (default), or those of the first for all, which spares the others",
    )
    add(
        "--seed", type=natural, default=0, help="of the orthogonal direction and generated noise (default: 0)"
    )
    add("--device", help="cpu, cuda, cuda:1 (default: cuda if there is one)")
    add("--corruptions-dir", type=Path, metavar="FOLDER", help="released CIFAR-10-C / CIFAR-100-C arrays")
    add_shared(parser)


def _landscape(arguments: argparse.Namespace) -> int:
    import numpy as np
    import pandas as pd

    from robust_interp import data
    from robust_interp.analysis import chosen, landscape
    from robust_interp.figures import landscape as figures
    from robust_interp.figures import style
    from robust_interp.victim import resolve_device

    if arguments.severity is not None and arguments.corruption is None:
        raise UserError("--severity goes with --corruption")
    device = resolve_device(arguments.device)
    checkpoints = chosen.checkpoints(arguments.models, arguments.zoo, arguments.dataset)
    checkpoints = chosen.first_seeds(checkpoints)
    names = chosen.labels(checkpoints)
    victims = {name: chosen.victim(c, device) for name, c in zip(names, checkpoints, strict=True)}
    test = data.load(arguments.dataset, "test", arguments.data_dir)
    corruption = arguments.corruption and (arguments.corruption, arguments.severity or 5)
    images, labels = chosen.images(
        test, arguments.sample, corruption, arguments.seed, arguments.corruptions_dir
    )
    reach = arguments.radius or 2 * max(data.DATASETS[arguments.dataset].eps_255)
    radii_255 = np.linspace(-reach, reach, arguments.points)
    shared = names[0] if arguments.directions == "shared" else ""
    what = " ".join(map(str, corruption)) if corruption else "clean"
    place, lines, written = stem(arguments.out, "landscape"), {}, []
    for sample, image, label in zip(arguments.sample, images.to(device), labels.tolist(), strict=True):
        moves = landscape.directions(victims, image, label, sample, bool(shared), arguments.seed)
        lines[sample] = landscape.line(victims, image, label, moves, radii_255)
        arrays = landscape.plane(victims, image, label, moves, radii_255, shared)
        part = place.with_name(f"{place.name}_plane_{sample}")
        figure = figures.plane_figure(arrays, figures.CLASSES.get(arguments.dataset))
        written += [*style.save(figure, part), write_arrays(arrays, part.with_name(f"{part.name}.npz"))]
    part = place.with_name(f"{place.name}_line")
    titled = {f"test image {sample}, {what}": table for sample, table in lines.items()}
    written += style.save(figures.line_figure(titled, shared), part)
    table = pd.concat(lines, names=["sample"]).reset_index("sample")
    written.append(write_table(table, part.with_name(f"{part.name}.csv")))
    print(f"wrote {', '.join(map(str, written))}")
    return 0

"""robust-interp report"""

from __future__ import annotations

import argparse

from robust_interp.benchmark.forms import named_path
from robust_interp.cli.options import (
    Commands,
    add_command,
    add_fields,
    add_quiet,
    add_sources,
    add_which_dataset,
    select_options,
)
from robust_interp.cli.terminal import say


def add_to(commands: Commands) -> None:
    parser = add_command(
        commands,
        "report",
        "write an HTML page with leaderboard, figures and provenance; loads no model",
        "robust-interp report results -o report",
        run,
    )
    add_sources(parser)
    add = parser.add_argument
    add_which_dataset(parser)
    add(
        "--figures",
        type=named_path,
        metavar="FOLDER",
        help="folder of SVG figures to include, e.g. loss landscapes (default: none)",
    )
    add_fields(parser, "zoo")
    add(
        "--baseline",
        metavar="MODEL",
        help="model that the others are compared with (default: the first by name without λ)",
    )
    add("--title", metavar="TEXT", help="heading of the page (default: made from the names of the sources)")
    add(
        "-o",
        "--out",
        default="report",
        type=named_path,
        metavar="FOLDER",
        help="folder to write index.html to (default: report)",
    )
    add_quiet(parser)


def run(arguments: argparse.Namespace) -> int:
    from robust_interp.cli.console import console
    from robust_interp.cli.progress import track
    from robust_interp.report import page

    with track(console(stderr=True), "report", arguments.quiet) as progress:
        written = page.write(
            **select_options(arguments, "sources out dataset figures title baseline"),
            zoo_folder=arguments.zoo,
            progress=progress,
        )
    say(f"wrote {written}")
    return 0

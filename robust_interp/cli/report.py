"""robust-interp report"""

from __future__ import annotations

import argparse
from pathlib import Path

from robust_interp.cli.options import (
    add_command,
    add_fields,
    add_quiet,
    add_sources,
    add_which_dataset,
    picked,
)


def add_to(commands) -> None:
    parser = add_command(
        commands,
        "report",
        "write a page with the leaderboard, figures and how the numbers were made; needs no model",
        "robust-interp report results -o report",
        run,
    )
    add_sources(parser)
    add = parser.add_argument
    add_which_dataset(parser)
    add(
        "--figures",
        type=Path,
        metavar="FOLDER",
        help="show the SVG figures in it too, e.g. loss landscapes (default: none)",
    )
    add_fields(parser, "zoo")
    add("--baseline", metavar="MODEL", help="differences are to this model (default: one without λ)")
    add("--title", metavar="TEXT", help="the page's heading (default: what it is a report of)")
    add(
        "-o",
        "--out",
        default="report",
        type=Path,
        metavar="FOLDER",
        help="folder of the page, index.html (default: report)",
    )
    add_quiet(parser)


def run(arguments: argparse.Namespace) -> int:
    from robust_interp.cli.console import console
    from robust_interp.cli.progress import track
    from robust_interp.report import page

    with track(console(stderr=True), "report", arguments.quiet) as tell:
        written = page.write(
            **picked(arguments, "sources out dataset figures title baseline"),
            zoo_folder=arguments.zoo,
            tell=tell,
        )
    print(f"wrote {written}")
    return 0

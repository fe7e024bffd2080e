"""robust-interp report"""

from __future__ import annotations

import argparse
from pathlib import Path

from robust_interp.cli.options import add_sources, picked


def add_to(commands) -> None:
    parser = commands.add_parser(
        "report",
        help="write a page with the leaderboard, figures and how the numbers were made; needs no model",
    )
    parser.set_defaults(run=run)
    add_sources(parser)
    add = parser.add_argument
    add("--dataset", help="which one, if the folders have several")
    add("--figures", type=Path, metavar="FOLDER", help="show the SVG figures in it too, e.g. loss landscapes")
    add("--zoo", metavar="FOLDER", help="more checkpoints, before ./model_zoo and the bundled ones")
    add("--baseline", metavar="MODEL", help="differences are to it (default: one without λ)")
    add("--title", metavar="TEXT", help="the page's heading (default: what it is a report of)")
    add("-o", "--out", default="report", type=Path, metavar="FOLDER", help="default: report")


def run(arguments: argparse.Namespace) -> int:
    from robust_interp.report import page

    written = page.write(
        **picked(arguments, "sources out dataset figures title baseline"), zoo_folder=arguments.zoo
    )
    print(f"wrote {written}")
    return 0

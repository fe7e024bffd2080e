"""robust-interp audit"""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from robust_interp.audit.thresholds import Thresholds
from robust_interp.benchmark.forms import positive
from robust_interp.cli.options import (
    OF_IMAGES,
    Commands,
    add_command,
    add_fields,
    add_measuring,
    add_models,
    percentage,
    select_options,
    workers_of,
)
from robust_interp.cli.terminal import say
from robust_interp.core.csv_text import csv_text
from robust_interp.core.files import write_text

STATUS_OF_FAIL = 3  # exit status; 1 and 2 mean errors


def add_to(commands: Commands) -> None:
    parser = add_command(
        commands,
        "audit",
        "check whether a model's robust accuracy can be believed",
        "robust-interp audit --models in_resnet20 --eps 16 --seeds 1",
        run,
        more="It looks for masked gradients and for attacks that are too weak.\n"
        f"Exit status: 0 if no check failed, {STATUS_OF_FAIL} if one did; warn and open are not failures.",
    )
    add, usual = parser.add_argument, Thresholds()
    add_models(parser, "models to audit, named as in bench")
    add_fields(parser, "n ensembles seed", n=(None, "200"), ensembles=(False, None))
    add(
        "--attack",
        default="pgd",
        metavar="SPEC",
        help="attack to check (default: pgd)",
    )
    add(
        "--strongest",
        default="apgd_ce",
        metavar="SPEC",
        help="stronger attack that must not break many more images: apgd_ce, autoattack, none (default: "
        "apgd_ce)",
    )
    add(
        "--black-box",
        default="square",
        metavar="SPEC",
        help="attack that uses only logits and must not be stronger: square, none (default: square)",
    )
    add(
        "--source",
        metavar="MODEL",
        help="model to transfer attacks from (default: another model of the run)",
    )
    limit = parser.add_argument_group("thresholds").add_argument
    limit(
        "--large-eps",
        type=float,
        default=usual.large_eps_255,
        metavar="E",
        help=f"Linf radius at which nearly all images must be broken, in units of 1/255 "
        f"(default: {usual.large_eps_255:g})",
    )
    limit(
        "--more",
        type=positive,
        default=usual.more,
        metavar="K",
        help="factor for the number of steps, and number of restarts, of the longer attacks (default: "
        f"{usual.more})",
    )
    for name, what in (
        ("standing", "largest %% of images that may be correct at the large eps"),
        ("gain", "largest gain in points from more steps, restarts or a stronger attack"),
        ("blind", "largest %% of images with a zero or non-finite gradient"),
        ("saturated", "largest %% of images that start with a probability of 1 in float32"),
        ("flat", "largest %% of images whose loss does not increase from start to end"),
        ("falls", "largest %% of steps in which the loss falls"),
    ):
        default = getattr(usual, name)
        limit(
            f"--max-{name}",
            type=percentage,
            default=default,
            metavar="X",
            help=f"{what} (default: {default:g})",
        )
    add("--all", action="store_true", help="also show the details of checks that pass")
    add_measuring(parser)


def run(arguments: argparse.Namespace) -> int:
    from robust_interp.cli import names

    arguments.dataset = names.dataset_of(arguments.dataset, arguments.models)
    names.check_models(arguments.models, arguments.dataset, arguments.zoo, arguments.only_zoo)
    names.check_attacks(arguments.attack, arguments.strongest, arguments.black_box)
    from robust_interp.audit.parts import Options
    from robust_interp.audit.run import Audit
    from robust_interp.audit.table import all_in
    from robust_interp.benchmark.cost import cost
    from robust_interp.benchmark.request import Request
    from robust_interp.cli.audit_table import print_audit
    from robust_interp.cli.console import console
    from robust_interp.cli.progress import reporter, tell_start, track
    from robust_interp.store import Store
    from robust_interp.store.verdicts import FAIL

    limits = {
        name: getattr(arguments, f"max_{name}")
        for name in ("standing", "gain", "blind", "saturated", "flat", "falls")
    }
    request = Request(
        **select_options(arguments, f"models checkpoint dataset {OF_IMAGES} eps n seeds ensembles"),
        **select_options(arguments, "batch_size device seed"),
        **select_options(arguments, "zoo only_zoo data_dir mean std weights_key threads"),
    )
    options = Options(
        **select_options(arguments, "attack strongest black_box source"),
        thresholds=Thresholds(large_eps_255=arguments.large_eps, more=arguments.more, **limits),
    )
    errors, workers = console(stderr=True), workers_of(arguments)
    with track(errors, "reading checkpoints", arguments.quiet) as progress:
        audit = Audit(request, options, progress)
    tell_start(workers, arguments.quiet)
    with Store(arguments.out, journal=arguments.store_journal) as store, ExitStack() as stack:
        with track(errors, "loading", arguments.quiet) as progress:
            audit.load(progress)
            executor = stack.enter_context(audit.in_workers(workers, arguments.plugin, arguments.out))
        with reporter(errors, audit.work(store), cost, arguments.quiet) as watch:
            audited = audit.run(store, watch, executor)
        table = all_in(store, audit.refused, audit.dataset.name)
    text = csv_text(table, "%.10g")
    write_text(arguments.out / "audit.csv", text)
    print_audit(audited, audit.dataset.name, arguments.all)
    for line in audit.warnings:
        console(stderr=True).print(f"warning: {line}", highlight=False, markup=False)
    say(f"wrote {arguments.out / 'audit.csv'}")
    if any(one.verdict == FAIL for one in audited):
        return STATUS_OF_FAIL
    return int(audit.is_incomplete)

"""robust-interp bench"""

from __future__ import annotations

import argparse

from robust_interp.cli.options import add_measuring, name_list, natural, picked, positive, sample_count
from robust_interp.results.folders import write

ATTACKS_HELP = (
    "e.g. 'fgsm,pgd(alpha=eps/4,steps=50,restarts=5),pgd_l2(eps=0.5)': fgsm, ifgsm, mifgsm, pgd, pgd_l2, "
    "apgd_ce, apgd_dlr, apgd_t, square, cw, deepfool, autoattack, a torchattacks class such as "
    "NIFGSM(steps=10), or none"
)


def add_to(commands) -> None:
    parser = commands.add_parser("bench", help="measure models into a leaderboard")
    parser.set_defaults(run=run)
    add = parser.add_argument
    add(
        "--models",
        type=name_list,
        metavar="NAMES",
        help="zoo names, globs, all (default: all, seeds 0,1,2), timm:NAME, package.module:factory, "
        "checkpoint folders; freely mixed",
    )
    add("--attacks", default="fgsm,ifgsm,pgd", metavar="SPECS", help=ATTACKS_HELP)
    add(
        "--corruptions", default="noise", metavar="SPECS", help="noise (default), common, all, names, or none"
    )
    add("--n", type=sample_count, metavar="N", help="measure the first N test images, or all")
    add("--no-ensembles", action="store_true", help="leave out each model's ensemble over its seeds")
    add(
        "--ensemble",
        type=name_list,
        default=(),
        metavar="NAMES",
        help="more ensembles of the models measured, such as in_resnet20+preact_resnet20, or all",
    )
    add("--ensemble-average", choices=("probabilities", "logits"), help="default: probabilities")
    add(
        "--ensemble-attack",
        type=name_list,
        metavar="WAYS",
        help="what attacks are made on: white-box (the ensemble, default), member:0, mean-gradient",
    )
    add(
        "--protocol",
        choices=("final", "worst"),
        default="final",
        help="final (default): each attack on all samples; worst: cheap ones first, then what still stands",
    )
    add(
        "--strong",
        nargs="?",
        const="apgd_ce,apgd_t",
        metavar="SPECS",
        help="add columns strong_<eps>: the worst of pgd and these attacks (alone: apgd_ce,apgd_t)",
    )
    add("--strong-n", type=positive, metavar="N", help="the samples of --strong (default: 200)")
    add("--seed", type=natural, default=0, help="seed of attack starts and generated noise (default: 0)")
    add("--corruptions-dir", metavar="FOLDER", help="released CIFAR-10-C / CIFAR-100-C arrays")
    add("--dry-run", action="store_true", help="print the cells and an estimate of the time")
    add_measuring(parser)


def run(arguments: argparse.Namespace) -> int:
    from robust_interp.benchmark.benchmark import Benchmark
    from robust_interp.benchmark.cost import cost
    from robust_interp.benchmark.request import Request
    from robust_interp.cli.console import console, print_header, print_leaderboard, print_plan
    from robust_interp.cli.progress import reporter
    from robust_interp.store import FILE_NAME, Store

    request = Request(
        ensembles=not arguments.no_ensembles,
        **picked(arguments, "ensemble ensemble_average ensemble_attack"),
        **picked(
            arguments,
            "models checkpoint mean std dataset attacks eps corruptions n seeds protocol batch_size",
        ),
        **picked(arguments, "device seed zoo data_dir corruptions_dir strong strong_n threads"),
    )
    benchmark = Benchmark(request)
    if arguments.dry_run:
        # A dry run reads a store that is there, and makes none.
        there = (arguments.out / FILE_NAME).is_file()
        with Store(arguments.out if there else None, read_only=there) as store:
            print_plan(benchmark, store)
        return 0
    errors = console(stderr=True)
    with Store(arguments.out) as store:
        if not arguments.quiet:
            print_header(errors, benchmark, store)
        with reporter(errors, benchmark.work(store), cost, arguments.quiet) as watch:
            report = benchmark.run(store, watch)
        write(arguments.out, report.results, report.leaderboard)
    print_leaderboard(report.leaderboard, benchmark.plan.dataset)
    for line in report.warnings:
        errors.print(f"warning: {line}", highlight=False, markup=False)
    for line in report.notes:
        print(line)
    print(f"wrote {arguments.out / 'leaderboard.csv'} and {arguments.out / 'results.csv'}")
    return 0

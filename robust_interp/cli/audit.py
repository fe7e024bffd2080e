"""robust-interp audit"""

from __future__ import annotations

import argparse

from robust_interp.audit.thresholds import Thresholds
from robust_interp.cli.options import add_measuring, natural, percentage, picked, positive, sample_count
from robust_interp.core.files import write_text
from robust_interp.store.verdicts import FAIL

STATUS_OF_FAIL = 3  # exit status; 1 and 2 are those of errors


def add_to(commands) -> None:
    parser = commands.add_parser(
        "audit",
        help="check whether a model's robust accuracy can be believed",
        description="Look for masked gradients and for attacks that are tuned too weakly.",
        epilog="Exit status: 0 if no check failed, 3 if one did; neither warn nor open is a failure.",
    )
    parser.set_defaults(run=run)
    add, usual = parser.add_argument, Thresholds()
    add("models", nargs="+", metavar="MODEL", help="as for bench --models")
    add("--n", type=sample_count, metavar="N", help="the first N test images (default: 200)")
    add("--ensembles", action="store_true", help="audit each model's ensemble over its seeds too")
    add("--attack", default="pgd", metavar="SPEC", help="the attack in question (default: pgd)")
    add(
        "--strongest",
        default="apgd_ce",
        metavar="SPEC",
        help="must not find much more: apgd_ce (default), autoattack, none",
    )
    add(
        "--black-box",
        default="square",
        metavar="SPEC",
        help="sees logits alone and must not be stronger: square (default), none",
    )
    add("--source", metavar="MODEL", help="transfer attacks from this one (default: another one of the run)")
    limit = parser.add_argument_group("thresholds").add_argument
    limit("--large-eps", type=float, default=usual.large_eps_255, metavar="E", help="in 1/255 (default: 64)")
    limit(
        "--more",
        type=positive,
        default=usual.more,
        metavar="K",
        help=f"so many times the steps, and so many restarts (default: {usual.more})",
    )
    for name, what in (
        ("standing", "%% of the samples that may stand at the large eps"),
        ("gain", "points that more steps, restarts or a stronger attack may gain"),
        ("blind", "%% of the samples whose gradient may be zero or not finite"),
        ("flat", "%% of the samples whose loss may end no higher than it began"),
        ("falls", "%% of the steps in which the loss may fall"),
    ):
        default = getattr(usual, name)
        limit(
            f"--max-{name}",
            type=percentage,
            default=default,
            metavar="X",
            help=f"{what} (default: {default:g})",
        )
    add("--seed", type=natural, default=0, help="seed of attack starts (default: 0)")
    add_measuring(parser)


def run(arguments: argparse.Namespace) -> int:
    from robust_interp.audit.parts import Options
    from robust_interp.audit.run import Audit
    from robust_interp.audit.table import all_in
    from robust_interp.benchmark.cost import cost
    from robust_interp.benchmark.request import Request
    from robust_interp.cli.console import console, print_audit
    from robust_interp.cli.progress import reporter
    from robust_interp.store import Store

    limits = {
        name: getattr(arguments, f"max_{name}") for name in ("standing", "gain", "blind", "flat", "falls")
    }
    audit = Audit(
        Request(
            **picked(arguments, "models checkpoint dataset eps n seeds ensembles batch_size device seed"),
            **picked(arguments, "zoo data_dir mean std threads"),
        ),
        Options(
            **picked(arguments, "attack strongest black_box source"),
            thresholds=Thresholds(large_eps_255=arguments.large_eps, more=arguments.more, **limits),
        ),
    )
    with (
        Store(arguments.out) as store,
        reporter(console(stderr=True), audit.work(store), cost, arguments.quiet) as watch,
    ):
        audited = audit.run(store, watch)
        table = all_in(store, audit.refused, audit.dataset.name)
    text = table.to_csv(index=False, float_format="%.10g", lineterminator="\n")
    write_text(arguments.out / "audit.csv", text)
    print_audit(audited, audit.dataset.name)
    print(f"wrote {arguments.out / 'audit.csv'}")
    return STATUS_OF_FAIL if any(one.verdict == FAIL for one in audited) else 0

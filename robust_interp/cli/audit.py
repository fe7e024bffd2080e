"""robust-interp audit"""

from __future__ import annotations

import argparse

from robust_interp.audit.thresholds import Thresholds
from robust_interp.benchmark.forms import positive
from robust_interp.cli.options import add_command, add_fields, add_measuring, percentage, picked
from robust_interp.core.files import write_text

STATUS_OF_FAIL = 3  # exit status; 1 and 2 are those of errors


def add_to(commands) -> None:
    parser = add_command(
        commands,
        "audit",
        "check whether a model's robust accuracy can be believed",
        "robust-interp audit in_resnet20 --eps 16 --seeds 1",
        run,
        more="It looks for masked gradients and for attacks that are tuned too weakly.\n"
        f"Exit status: 0 if no check failed, {STATUS_OF_FAIL} if one did; warn and open are no failures.",
    )
    add, usual = parser.add_argument, Thresholds()
    add("models", nargs="+", metavar="MODEL", help="what to audit, named as for bench --models")
    add_fields(parser, "n ensembles seed", n=(None, "200"), ensembles=(False, None))
    add(
        "--attack",
        default="pgd",
        metavar="SPEC",
        help="the attack whose accuracy is in question (default: pgd)",
    )
    add(
        "--strongest",
        default="apgd_ce",
        metavar="SPEC",
        help="attack that must not find much more: apgd_ce, autoattack, none (default: apgd_ce)",
    )
    add(
        "--black-box",
        default="square",
        metavar="SPEC",
        help="attack that sees logits alone and must not be stronger: square, none (default: square)",
    )
    add(
        "--source",
        metavar="MODEL",
        help="model that attacks are transferred from (default: another one of the run)",
    )
    limit = parser.add_argument_group("thresholds").add_argument
    limit(
        "--large-eps",
        type=float,
        default=usual.large_eps_255,
        metavar="E",
        help=f"Linf radius at which nearly nothing may stand, in units of 1/255 "
        f"(default: {usual.large_eps_255:g})",
    )
    limit(
        "--more",
        type=positive,
        default=usual.more,
        metavar="K",
        help=f"how many times the steps, and how many restarts, are tried besides (default: {usual.more})",
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
    add("--all", action="store_true", help="show the checks that pass in full, too")
    add_measuring(parser)


def run(arguments: argparse.Namespace) -> int:
    from robust_interp.cli import names

    names.check_dataset(arguments.dataset)
    names.check_models(arguments.models, arguments.dataset, arguments.zoo)
    names.check_attacks(arguments.attack, arguments.strongest, arguments.black_box)
    from robust_interp.audit.parts import Options
    from robust_interp.audit.run import Audit
    from robust_interp.audit.table import all_in
    from robust_interp.benchmark.cost import cost
    from robust_interp.benchmark.request import Request
    from robust_interp.cli.audit_table import print_audit
    from robust_interp.cli.console import console
    from robust_interp.cli.progress import reporter, track
    from robust_interp.store import Store
    from robust_interp.store.verdicts import FAIL

    limits = {
        name: getattr(arguments, f"max_{name}") for name in ("standing", "gain", "blind", "flat", "falls")
    }
    request = Request(
        **picked(arguments, "models checkpoint dataset eps n seeds ensembles batch_size device seed"),
        **picked(arguments, "zoo data_dir mean std threads"),
    )
    options = Options(
        **picked(arguments, "attack strongest black_box source"),
        thresholds=Thresholds(large_eps_255=arguments.large_eps, more=arguments.more, **limits),
    )
    errors = console(stderr=True)
    with track(errors, "reading checkpoints", arguments.quiet) as tell:
        audit = Audit(request, options, tell)
    with (
        Store(arguments.out) as store,
        reporter(errors, audit.work(store), cost, arguments.quiet) as watch,
    ):
        audited = audit.run(store, watch)
        table = all_in(store, audit.refused, audit.dataset.name)
    text = table.to_csv(index=False, float_format="%.10g", lineterminator="\n")
    write_text(arguments.out / "audit.csv", text)
    print_audit(audited, audit.dataset.name, arguments.all)
    print(f"wrote {arguments.out / 'audit.csv'}")
    return STATUS_OF_FAIL if any(one.verdict == FAIL for one in audited) else 0

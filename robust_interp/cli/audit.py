"""robust-interp audit"""

from __future__ import annotations

import argparse
from contextlib import ExitStack

from robust_interp.audit.options import Options
from robust_interp.audit.thresholds import Thresholds
from robust_interp.benchmark.request import Request, settings_of
from robust_interp.cli.options import (
    OF_MEASURING,
    Commands,
    add_command,
    add_fields,
    add_measuring,
    add_models,
    add_setting,
    select_options,
    workers_of,
)
from robust_interp.cli.terminal import say, warn
from robust_interp.core.csv_text import csv_text
from robust_interp.core.files import write_text

STATUS_OF_FAIL = 3  # exit status; 1 and 2 mean errors
_OPTIONS = {"large_eps_255": "--large-eps", "more": "--more"}  # of the thresholds that are not --max-NAME


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
    add_models(parser, "models to audit, named as in bench")
    add_fields(parser, "n ensembles seed", n=(None, "200"), ensembles=(False, None))
    for name, about in settings_of(Options).items():
        add_setting(parser, name, about, getattr(Options(), name))
    limits = parser.add_argument_group("thresholds")
    for name, about in settings_of(Thresholds).items():
        default, option = getattr(Thresholds(), name), _OPTIONS.get(name, f"--max-{name}")
        add_setting(limits, name, about, default, f"{default:g}", option)
    parser.add_argument("--all", action="store_true", help="also show the details of checks that pass")
    add_measuring(parser)


def run(arguments: argparse.Namespace) -> int:
    from robust_interp.cli import names

    arguments.dataset = names.dataset_of(arguments.dataset, arguments.models)
    names.check_models(arguments.models, arguments.dataset, arguments.zoo, arguments.only_zoo)
    names.check_attacks(arguments.attack, arguments.strongest, arguments.black_box)
    from robust_interp.audit.run import Audit
    from robust_interp.audit.table import all_in
    from robust_interp.benchmark.cost import cost
    from robust_interp.cli.audit_table import print_audit
    from robust_interp.cli.console import console
    from robust_interp.cli.progress import reporter, tell_start, track
    from robust_interp.results.columns import AUDIT_FILE
    from robust_interp.store import Store
    from robust_interp.store.verdicts import FAIL

    request = Request(**select_options(arguments, f"models n ensembles seed {OF_MEASURING}"))
    options = Options(
        **select_options(arguments, " ".join(settings_of(Options))),
        thresholds=Thresholds(**select_options(arguments, " ".join(settings_of(Thresholds)))),
    )
    errors, workers = console(stderr=True), workers_of(arguments)
    with track(errors, "reading checkpoints", arguments.quiet) as progress:
        audit = Audit(request, options, progress)
    tell_start(workers, arguments.quiet)
    with Store(arguments.out, journal=arguments.store_journal) as store, ExitStack() as stack:
        with track(errors, "loading", arguments.quiet) as progress:
            audit.load(progress)
            executor = stack.enter_context(audit.in_workers(workers, arguments.out))
        with reporter(errors, audit.work(store), cost, arguments.quiet) as watch:
            audited = audit.run(store, watch, executor)
        table = all_in(store, audit.refused, audit.dataset.name)
    text = csv_text(table, "%.10g")
    path = arguments.out / AUDIT_FILE
    write_text(path, text)
    print_audit(audited, audit.dataset.name, arguments.all)
    for line in audit.warnings:
        warn(f"warning: {line}")
    say(f"wrote {path}")
    if any(one.verdict == FAIL for one in audited):
        return STATUS_OF_FAIL
    return int(audit.is_incomplete)

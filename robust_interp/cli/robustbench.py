"""robust-interp robustbench"""

from __future__ import annotations

import argparse

from robust_interp.benchmark.forms import dataset_name, eps_list, named_path
from robust_interp.cli.options import (
    Commands,
    add_chosen,
    add_command,
    add_folders,
    add_models,
    add_which_dataset,
    select_options,
)
from robust_interp.cli.terminal import say, warn


def add_to(commands: Commands) -> None:
    parser = add_command(
        commands,
        "robustbench",
        "write measured rows as RobustBench JSON, or download RobustBench weights",
        "robust-interp robustbench export results --eps 8",
    )
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    _add_export(actions)
    _add_download(actions)


def _add_export(actions: Commands) -> None:
    parser = add_command(
        actions,
        "export",
        "write one JSON file per entry and threat model, as in RobustBench's model_info",
        "robust-interp robustbench export results --eps 8 --authors 'A. Author'",
        _export,
        more="Only rows measured with AutoAttack get autoattack_acc.",
    )
    add = parser.add_argument
    add_folders(parser)
    add(
        "--out",
        default="model_info",
        type=named_path,
        metavar="FOLDER",
        help="folder for the JSON files (default: model_info)",
    )
    add_which_dataset(parser)
    add_chosen(parser)
    add(
        "--eps",
        default="8",
        type=_radius,
        metavar="E",
        help="Linf radius in units of 1/255 (default: 8); rows that were not attacked at "
        "it are written with the radius of their own attacks",
    )
    add("--name", default="", metavar="TITLE", help="title of the paper (default: empty)")
    add("--authors", default="", metavar="NAMES", help="authors of the paper (default: empty)")
    add("--link", default="", metavar="URL", help="URL of the paper (default: empty)")
    add("--venue", default="", help="venue of the paper (default: empty)")
    add("--additional-data", action="store_true", help="the models were trained on additional data")


def _radius(text: str) -> float:
    """Read one radius in units of 1/255."""
    from robust_interp.store.cells import in_255  # imported here to keep --help fast

    if len(found := eps_list(text)) > 1:
        raise argparse.ArgumentTypeError(f"{text} is more than one radius")
    return in_255(found[0])


def _export(arguments: argparse.Namespace) -> int:
    from robust_interp.results import combine, leaderboard, robustbench_json
    from robust_interp.results.folders import runs_in

    runs, dataset = runs_in(arguments.folders, arguments.dataset)
    # Accuracy under a transfer attack is not a robust accuracy.
    runs = [[score for score in run if not score.classifier.attacked_as] for run in runs]
    board = leaderboard.entries_frame(*runs)
    if arguments.models is not None:
        board = combine.pick(board, arguments.models)
    paper = robustbench_json.Paper(**select_options(arguments, "name authors link venue additional_data"))
    scored = [score for run in runs for score in run]
    files = robustbench_json.write(board, dataset, arguments.out, arguments.eps, paper, scored)
    for path in files:
        say(path)
    without: dict[str, list[str]] = {}
    for path, entry in files.items():
        if path.parent.name == "Linf" and "autoattack_acc" not in entry:
            without.setdefault(robustbench_json.last_remark(entry), []).append(path.stem)
    for why, names in without.items():
        warn(
            f"warning: no autoattack_acc for {', '.join(names)}: {why} (robust-interp bench "
            f"--attacks autoattack --eps {arguments.eps:.10g} --protocol worst, into a folder of its own)"
        )
    return 0


def _add_download(actions: Commands) -> None:
    parser = add_command(
        actions,
        "download",
        "download the weights of RobustBench models",
        "robust-interp robustbench download --models Standard --dataset cifar10",
        _download,
    )
    add_models(parser, "model names in RobustBench, such as Standard", dest="of_robustbench")
    add = parser.add_argument
    add(
        "--dataset",
        type=dataset_name,
        default="cifar10",
        help="data set of the model (default: cifar10)",
    )
    add("--threat-model", default="Linf", help="Linf, L2 or corruptions (default: Linf)")
    add(
        "--folder",
        metavar="FOLDER",
        help="folder for the weights (default: $ROBUSTBENCH_MODEL_DIR, or models)",
    )


def _download(arguments: argparse.Namespace) -> int:
    from robust_interp import robustbench_bridge as bridge

    chosen = select_options(arguments, "dataset threat_model folder")
    for name in arguments.of_robustbench:
        bridge.load(name, **chosen, download=True)
        for path in bridge.weights(name, **chosen):
            say(path)
    return 0

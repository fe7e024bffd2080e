"""robust-interp train"""

from __future__ import annotations

import argparse
from pathlib import Path

from robust_interp.commands.options import add_plugin, interval, positive, seed_list
from robust_interp.errors import UserError


def add_to(commands) -> None:
    parser = commands.add_parser("train", help="train a registered model into a zoo folder")
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("architecture", help="a registered name, e.g. in_resnet20")
    add("--dataset", default="digits")
    add(
        "--recipe",
        help="paper, authors, quick, digits or your own .toml file (default: digits for digits, else quick)",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE,...",
        help="change fields of the recipe, whose name then says so, e.g. lr=0.05,steps=0.6,0.8",
    )
    add("--epochs", type=int, help="another number of epochs; the recipe's name then says so")
    add(
        "--seeds",
        type=seed_list,
        default=(0,),
        metavar="SEEDS",
        help="3 means 0,1,2; 0,4 means those (default: 0)",
    )
    add("--lambda-init", type=interval, metavar="LOW,HIGH", help="interval of act(λ) at the start")
    add("--out", default="model_zoo", type=Path, metavar="FOLDER", help="zoo folder (default: model_zoo)")
    add("--data-dir", metavar="FOLDER")
    add("--device", help="cpu, cuda, cuda:1 (default: cuda if there is one)")
    add(
        "--save-every",
        type=positive,
        default=1,
        metavar="N",
        help="keep the unfinished training every N epochs (default: 1)",
    )
    add("--quiet", action="store_true", help="no progress")
    add_plugin(parser)


def run(arguments: argparse.Namespace) -> int:
    from robust_interp import recipe as recipes
    from robust_interp import zoo
    from robust_interp.fit import TrainingError
    from robust_interp.tables import console
    from robust_interp.train import destination
    from robust_interp.victim import resolve_device

    recipe = _recipe(arguments)
    if recipe.deviations:
        print(f"recipe {recipe.name}: {recipes.describe(recipe.deviations)}")
    device, failures = resolve_device(arguments.device), 0
    for seed in arguments.seeds:
        folder = destination(arguments.architecture, arguments.dataset, recipe, seed, arguments.out)
        if done := zoo.made_with(folder, recipe.model_args()):
            print(f"{done.folder} is there already, skipped")
            continue
        try:
            _train_seed(arguments, recipe, seed, device)
        except TrainingError as failure:
            failures += 1
            console(stderr=True).print(f"failed: {failure}", highlight=False, markup=False)
    return 1 if failures == len(arguments.seeds) else 0


def _recipe(arguments: argparse.Namespace):
    from robust_interp import recipe as recipes

    usual = "digits" if arguments.dataset == "digits" else "quick"
    named = recipes.load(arguments.recipe or usual, arguments.architecture, arguments.dataset)
    flags = {"epochs": arguments.epochs, "lambda_init": arguments.lambda_init}
    flags = {field: value for field, value in flags.items() if value is not None}
    changes = recipes.settings(arguments.set)
    if twice := flags.keys() & changes.keys():
        raise UserError(f"{', '.join(sorted(twice))} is given twice")
    return recipes.overridden(named, changes | flags)


def _train_seed(arguments: argparse.Namespace, recipe, seed: int, device) -> None:
    from robust_interp.progress import training_reporter
    from robust_interp.tables import console
    from robust_interp.train import train

    label = f"{arguments.architecture} seed {seed}"
    with training_reporter(console(stderr=True), label, arguments.quiet) as report:
        checkpoint = train(
            arguments.architecture,
            arguments.dataset,
            recipe,
            seed,
            arguments.out,
            data_dir=arguments.data_dir,
            device=device,
            report=report,
            save_every=arguments.save_every,
        )
    accuracy = checkpoint.record["clean_accuracy"]
    print(f"wrote {checkpoint.folder}: clean accuracy {accuracy:.2f} %", flush=True)

"""robust-interp train"""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path

from robust_interp.commands.options import add_plugin, interval, positive, seed_list
from robust_interp.errors import UserError


def add_to(commands) -> None:
    parser = commands.add_parser("train", help="train a registered model into a zoo folder")
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("architecture", help="a registered name, e.g. in_resnet20")
    add_training(parser, seeds=(0,))
    add("--lambda-init", type=interval, metavar="LOW,HIGH", help="interval of act(λ) at the start")
    add("--out", default="model_zoo", type=Path, metavar="FOLDER", help="zoo folder (default: model_zoo)")


def add_training(parser: argparse.ArgumentParser, seeds: tuple[int, ...]) -> None:
    """The arguments that say how networks are trained, whichever they are."""
    add = parser.add_argument
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
        default=seeds,
        metavar="SEEDS",
        help=f"3 means 0,1,2; 0,4 means those (default: {','.join(map(str, seeds))})",
    )
    add("--data-dir", metavar="FOLDER")
    add("--device", help="cpu, cuda, cuda:1 (default: cuda if there is one)")
    add(
        "--save-every",
        type=positive,
        default=1,
        metavar="N",
        help="keep the unfinished training every N epochs (default: 1)",
    )
    add("--tensorboard", type=Path, metavar="FOLDER", help="write the curve there, one run a seed")
    add("--quiet", action="store_true", help="no progress")
    add_plugin(parser)


def run(arguments: argparse.Namespace) -> int:
    from robust_interp import recipe as recipes
    from robust_interp import zoo
    from robust_interp.fit import TrainingError
    from robust_interp.tables import console
    from robust_interp.train import destination
    from robust_interp.victim import resolve_device

    recipe = recipe_of(arguments, arguments.architecture, arguments.lambda_init)
    if recipe.deviations:
        print(f"recipe {recipe.name}: {recipes.describe(recipe.deviations)}")
    device, failures = resolve_device(arguments.device), 0
    for seed in arguments.seeds:
        folder = destination(arguments.architecture, arguments.dataset, recipe, seed, arguments.out)
        if done := zoo.made_with(folder, recipe.model_args()):
            print(f"{done.folder} is there already, skipped")
            continue
        try:
            train_seed(arguments, arguments.architecture, recipe, seed, arguments.out, device)
        except TrainingError as failure:
            failures += 1
            console(stderr=True).print(f"failed: {failure}", highlight=False, markup=False)
    return 1 if failures == len(arguments.seeds) else 0


def recipe_of(arguments: argparse.Namespace, architecture: str, lambda_init: tuple[float, float] | None):
    """The recipe that the arguments of `add_training` ask for, with the interval that act(λ) starts in."""
    from robust_interp import recipe as recipes

    usual = "digits" if arguments.dataset == "digits" else "quick"
    named = recipes.load(arguments.recipe or usual, architecture, arguments.dataset)
    flags = {"epochs": arguments.epochs, "lambda_init": lambda_init}
    flags = {field: value for field, value in flags.items() if value is not None}
    changes = recipes.settings(arguments.set)
    if twice := flags.keys() & changes.keys():
        raise UserError(f"{', '.join(sorted(twice))} is given twice")
    return recipes.overridden(named, changes | flags)


def train_seed(arguments: argparse.Namespace, architecture: str, recipe, seed: int, out: Path, device):
    """Train one network with one seed into the zoo folder `out`, showing how far it is."""
    from robust_interp.progress import training_reporter
    from robust_interp.tables import console
    from robust_interp.train import destination, train

    with ExitStack() as stack:
        label = f"{architecture} seed {seed}"
        reports = [stack.enter_context(training_reporter(console(stderr=True), label, arguments.quiet))]
        if arguments.tensorboard:
            from robust_interp.tensorboard import curve_writer

            name = destination(architecture, arguments.dataset, recipe, seed, out).name
            reports.append(stack.enter_context(curve_writer(arguments.tensorboard / name)))
        checkpoint = train(
            architecture,
            arguments.dataset,
            recipe,
            seed,
            out,
            data_dir=arguments.data_dir,
            device=device,
            report=lambda status: [report(status) for report in reports],
            save_every=arguments.save_every,
        )
    accuracy = checkpoint.record["clean_accuracy"]
    print(f"wrote {checkpoint.folder}: clean accuracy {accuracy:.2f} %", flush=True)
    return checkpoint

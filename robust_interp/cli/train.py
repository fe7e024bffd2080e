"""robust-interp train"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext
from pathlib import Path

from robust_interp.benchmark.forms import dataset_name, positive, seed_list
from robust_interp.cli.options import (
    ALL_CPUS,
    add_command,
    add_fields,
    add_plugin,
    add_quiet,
    interval,
    use_threads,
)
from robust_interp.core.errors import UserError

AT_ONCE_ON_CUDA = 5  # the paper's number of seeds


def add_to(commands) -> None:
    parser = add_command(
        commands,
        "train",
        "train a registered model into a zoo folder",
        "robust-interp train in_resnet20 --dataset digits --seeds 3",
        run,
    )
    add = parser.add_argument
    add("architecture", help="a registered name, e.g. in_resnet20")
    add_training(parser, seeds=(0,))
    add(
        "--lambda-init",
        type=interval,
        metavar="LOW,HIGH",
        help="interval of act(λ) at the start, each from 0 to 1 (default: the architecture's, e.g. 0.2,0.25)",
    )
    add("--out", default="model_zoo", type=Path, metavar="FOLDER", help="zoo folder (default: model_zoo)")


def add_training(parser: argparse.ArgumentParser, seeds: tuple[int, ...]) -> None:
    """The arguments that say how networks are trained, whichever they are."""
    add = parser.add_argument
    add(
        "--dataset",
        type=dataset_name,
        default="digits",
        help="what to train on: digits, cifar10, cifar100 (default: digits)",
    )
    add(
        "--recipe",
        help="paper, authors, quick, digits or your own .toml file (default: digits for digits, else quick)",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE,...",
        help="change fields of the recipe, whose name then says so, e.g. lr=0.05,steps=0.6,0.8 "
        "(default: none)",
    )
    add(
        "--epochs",
        type=int,
        metavar="N",
        help="another number of epochs; the recipe's name then says so (default: the recipe's)",
    )
    add(
        "--seeds",
        type=seed_list,
        default=seeds,
        metavar="SEEDS",
        help=f"train seeds: 3 means 0,1,2; 0,4 means those (default: {','.join(map(str, seeds))})",
    )
    add_fields(parser, "data_dir device threads", threads=ALL_CPUS)
    add(
        "--at-once",
        type=positive,
        metavar="N",
        help=f"networks trained side by side (default: {AT_ONCE_ON_CUDA} on CUDA, 1 on the CPU)",
    )
    add(
        "--save-every",
        type=positive,
        default=1,
        metavar="N",
        help="keep the unfinished training every N epochs (default: 1)",
    )
    add(
        "--compile",
        action="store_true",
        help="compile the training step with torch.compile, which takes about a minute first (default: no)",
    )
    add(
        "--tensorboard",
        type=Path,
        metavar="FOLDER",
        help="write the curve there, one run a seed (default: not written)",
    )
    add_quiet(parser)
    add_plugin(parser)


def run(arguments: argparse.Namespace) -> int:
    from robust_interp.cli import names

    names.check_dataset(arguments.dataset)
    names.check_architectures([arguments.architecture])
    from robust_interp.training import recipe as recipes
    from robust_interp.training.train import Training
    from robust_interp.training.trainer import TrainingError

    recipe = recipe_of(arguments, arguments.architecture, arguments.lambda_init)
    if recipe.deviations:
        print(f"recipe {recipe.name}: {recipes.describe(recipe.deviations)}")
    trainings = [Training(arguments.architecture, recipe, seed) for seed in arguments.seeds]
    outcomes = train_missing(arguments, trainings, arguments.out)
    return 1 if all(isinstance(outcome, TrainingError) for outcome in outcomes) else 0


def recipe_of(arguments: argparse.Namespace, architecture: str, lambda_init: tuple[float, float] | None):
    """The recipe that the arguments of `add_training` ask for, with the interval that act(λ) starts in."""
    from robust_interp.training import recipe as recipes

    usual = "digits" if arguments.dataset == "digits" else "quick"
    named = recipes.load(arguments.recipe or usual, architecture, arguments.dataset)
    flags = {"epochs": arguments.epochs, "lambda_init": lambda_init}
    flags = {field: value for field, value in flags.items() if value is not None}
    changes = recipes.settings(arguments.set)
    if twice := flags.keys() & changes.keys():
        raise UserError(f"{', '.join(sorted(twice))} is given twice")
    return recipes.overridden(named, changes | flags)


def train_missing(arguments: argparse.Namespace, trainings: Sequence, out: Path) -> list:
    """Train those that have no checkpoint in the zoo folder `out` yet, showing how far they are.

    Returns:
        For each its checkpoint, or the TrainingError that says why it failed.
    """
    from robust_interp import zoo
    from robust_interp.core.devices import resolve_device
    from robust_interp.training.train import destination

    use_threads(arguments)
    device, outcomes, missing = resolve_device(arguments.device), {}, []
    for what in trainings:
        folder = destination(what.architecture, arguments.dataset, what.recipe, what.seed, out)
        if done := zoo.made_with(folder, what.recipe.model_args()):
            print(f"{done.folder} is there already, skipped")
            outcomes[what] = done
        else:
            missing.append(what)
    compiled = arguments.compile and bool(missing) and _can_compile()
    side_by_side = arguments.at_once or (AT_ONCE_ON_CUDA if device.type == "cuda" else 1)
    for at in range(0, len(missing), side_by_side):
        outcomes |= _train(arguments, missing[at : at + side_by_side], out, device, compiled)
    return [outcomes[what] for what in trainings]


def _can_compile() -> bool:
    """Whether torch.compile works here; if not, a note says why."""
    from robust_interp.cli.console import console
    from robust_interp.training.compilation import why_not

    if reason := why_not():
        note = f"note: --compile is left out, torch.compile does not work here: {reason}"
        console(stderr=True).print(note, highlight=False, markup=False)
    return not reason


def _train(arguments: argparse.Namespace, trainings: Sequence, out: Path, device, compiled: bool) -> dict:
    """Train these side by side, and say what became of each."""
    from robust_interp.cli.console import console
    from robust_interp.cli.progress import training_reporter
    from robust_interp.training.train import train_together
    from robust_interp.training.trainer import TrainingError

    errors, labels = console(stderr=True), _labels(trainings)
    with ExitStack() as stack:
        show = stack.enter_context(training_reporter(errors, arguments.quiet))
        curves = {what: stack.enter_context(_curve_writer(arguments, what, out)) for what in trainings}

        def report(what, status) -> None:
            show(labels[what], status)
            curves[what](status)

        outcomes = train_together(
            trainings,
            arguments.dataset,
            out,
            data_dir=arguments.data_dir,
            device=device,
            report=report,
            save_every=arguments.save_every,
            compiled=compiled,
        )
    for outcome in outcomes.values():
        if isinstance(outcome, TrainingError):
            errors.print(f"failed: {outcome}", highlight=False, markup=False)
        else:
            accuracy = outcome.record["clean_accuracy"]
            print(f"wrote {outcome.folder}: clean accuracy {accuracy:.2f} %", flush=True)
    return outcomes


def _labels(trainings: Sequence) -> dict:
    """A name for each, with its recipe where they differ in that, as in a sweep of intervals."""
    one_recipe = len({what.recipe.name for what in trainings}) == 1
    recipe = {what: "" if one_recipe else f" {what.recipe.name}" for what in trainings}
    return {what: f"{what.architecture}{recipe[what]} seed {what.seed}" for what in trainings}


def _curve_writer(arguments: argparse.Namespace, what, out: Path):
    """What writes a training's curve for TensorBoard, or nothing without --tensorboard."""
    from robust_interp.training.train import destination

    if not arguments.tensorboard:
        return nullcontext(lambda status: None)
    from robust_interp.training.tensorboard import curve_writer

    name = destination(what.architecture, arguments.dataset, what.recipe, what.seed, out).name
    return curve_writer(arguments.tensorboard / name)

"""robust-interp train"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from robust_interp.benchmark.forms import dataset_name, named_path, positive, seed_list
from robust_interp.cli.options import (
    ALL_CPUS,
    Commands,
    add_command,
    add_fields,
    add_models,
    add_plugin,
    add_quiet,
    add_workers,
    interval,
    use_threads,
    workers_of,
)
from robust_interp.cli.terminal import say, warn
from robust_interp.core.errors import UserError

if TYPE_CHECKING:  # these modules take long to import
    import torch

    from robust_interp.cli.progress import Bar, Trainings
    from robust_interp.core.worker_pool import Workers
    from robust_interp.data import ArrayDataset
    from robust_interp.training.job import Training
    from robust_interp.training.recipe import Recipe
    from robust_interp.training.trainer import Status, TrainingError
    from robust_interp.training.workers import Outcomes, Setting
    from robust_interp.zoo import Checkpoint

AT_ONCE_ON_CUDA = 5  # the paper's number of seeds


def add_to(commands: Commands) -> None:
    parser = add_command(
        commands,
        "train",
        "train registered models and save them in a zoo folder",
        "robust-interp train --models in_resnet20 --dataset digits --seeds 3",
        run,
    )
    add_models(parser, "registered names, e.g. in_resnet20", dest="architectures")
    add_training(parser, seeds=(0,))
    add = parser.add_argument
    add(
        "--lambda-init",
        type=interval,
        metavar="LOW,HIGH",
        help="interval in which act(λ) starts, 0 <= LOW <= HIGH, for a sigmoid strictly between 0 and 1 "
        "(default: set by the architecture, e.g. 0.2,0.25)",
    )
    add(
        "--out",
        default="model_zoo",
        type=named_path,
        metavar="FOLDER",
        help="zoo folder (default: model_zoo)",
    )


def add_training(parser: argparse.ArgumentParser, seeds: tuple[int, ...]) -> None:
    """Add the options for the training of networks, which `train` and `sweep` share."""
    _add_what(parser, seeds)
    add_fields(parser, "data_dir device threads", threads=ALL_CPUS)
    add_workers(parser)
    _add_how(parser)
    add_quiet(parser)
    add_plugin(parser)


def _add_what(parser: argparse.ArgumentParser, seeds: tuple[int, ...]) -> None:
    """Add the options on which the trained networks depend."""
    add = parser.add_argument
    add(
        "--dataset",
        type=dataset_name,
        default="digits",
        help="training data set: digits, cifar10, cifar100 (default: digits)",
    )
    add(
        "--recipe",
        help="paper, authors, quick, digits or a .toml file (default: digits for the data set digits, "
        "otherwise quick)",
    )
    add(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE,...",
        help="change fields of the recipe, e.g. lr=0.05,steps=0.6,0.8; the recipe name then contains them "
        "(default: none)",
    )
    add(
        "--epochs",
        type=int,
        metavar="N",
        help="number of epochs; the recipe name then contains it (default: set by the recipe)",
    )
    add(
        "--seeds",
        type=seed_list,
        default=seeds,
        metavar="SEEDS",
        help="train seeds: 3 means 0,1,2; 0,4 means 0 and 4; '1,' means 1 alone "
        f"(default: {','.join(map(str, seeds))})",
    )


def _add_how(parser: argparse.ArgumentParser) -> None:
    """Add the options of how the trainings are carried out."""
    add = parser.add_argument
    add(
        "--at-once",
        type=positive,
        metavar="N",
        help=f"number of networks trained side by side (default: {AT_ONCE_ON_CUDA} on CUDA, 1 on the CPU)",
    )
    add(
        "--save-every",
        type=positive,
        default=1,
        metavar="N",
        help="save the unfinished training every N epochs (default: 1)",
    )
    add(
        "--compile",
        action="store_true",
        help="compile the training step with torch.compile, which takes about a minute at the start "
        "(default: no)",
    )
    add(
        "--tensorboard",
        type=named_path,
        metavar="FOLDER",
        help="folder for TensorBoard curves, one run per seed (default: not written)",
    )


def run(arguments: argparse.Namespace) -> int:
    from robust_interp.cli import names

    names.check_dataset(arguments.dataset)
    names.check_architectures(arguments.architectures)
    from robust_interp.cli.console import console
    from robust_interp.cli.progress import progress_bar
    from robust_interp.training import recipe as recipes
    from robust_interp.training.job import Training
    from robust_interp.training.trainer import DamagedError, TrainingError

    recipe_for = {name: recipe_of(arguments, name, arguments.lambda_init) for name in arguments.architectures}
    deviations = {recipe.name: recipe.deviations for recipe in recipe_for.values() if recipe.deviations}
    for name, deviating in deviations.items():
        say(f"recipe {name}: {recipes.describe(deviating)}")
    trainings = [
        Training(name, recipe, seed) for name, recipe in recipe_for.items() for seed in arguments.seeds
    ]
    with progress_bar(console(stderr=True), arguments.quiet) as bar:
        outcomes = train_missing(arguments, trainings, arguments.out, bar)
    all_failed = all(isinstance(outcome, TrainingError) for outcome in outcomes)
    return int(all_failed or any(isinstance(outcome, DamagedError) for outcome in outcomes))


def recipe_of(
    arguments: argparse.Namespace, architecture: str, lambda_init: tuple[float, float] | None
) -> Recipe:
    """Return the recipe for an architecture, with the changes that the options of `add_training` make.

    Args:
        arguments: The arguments of the command.
        architecture: The architecture, for which a recipe may have other values.
        lambda_init: (low, high), the interval of the initial act(λ); None to leave the recipe's.

    Raises:
        UserError: If the recipe or a change is not valid, or a field is given twice.
    """
    from robust_interp.training import recipe as recipes

    usual = "digits" if arguments.dataset == "digits" else "quick"
    named = recipes.load(arguments.recipe or usual, architecture, arguments.dataset)
    flags = {"epochs": arguments.epochs, "lambda_init": lambda_init}
    flags = {field: value for field, value in flags.items() if value is not None}
    changes = recipes.settings(arguments.set)
    if twice := flags.keys() & changes.keys():
        raise UserError(f"{', '.join(sorted(twice))} is given twice")
    return recipes.overridden(named, changes | flags)


def train_missing(
    arguments: argparse.Namespace,
    trainings: Sequence[Training],
    out: Path,
    bar: Bar,
    training: ArrayDataset | None = None,
) -> list[Checkpoint | TrainingError]:
    """Run the trainings that have no checkpoint in the zoo folder yet.

    Args:
        arguments: The arguments of the command.
        trainings: All trainings, including finished ones.
        out: The zoo folder.
        bar: Shows the progress.
        training: The training split; None to load it if a training is missing.

    Returns:
        The outcome of each of `trainings`: its checkpoint, or a TrainingError if it failed.

    Raises:
        UserError: As in `finished` and `check_as_before`; or if a training cannot run.
    """
    from robust_interp import data
    from robust_interp.cli.progress import Trainings
    from robust_interp.core.devices import resolve_device
    from robust_interp.training.job import check, work
    from robust_interp.training.resume import forget

    workers = workers_of(arguments)
    use_threads(arguments)
    ready = finished(arguments, trainings, out)
    for done in ready.values():
        forget(done.folder)  # a kill after the checkpoint was written may leave the state file
        say(f"{done.folder} exists already, skipped")
    outcomes: dict[Training, Checkpoint | TrainingError] = {**ready}
    missing = [what for what in trainings if what not in outcomes]
    check(missing, arguments.dataset, out)
    if missing:
        compiled = arguments.compile and _can_compile()
        training = training or data.load(arguments.dataset, "train", arguments.data_dir)
        for done in ready.values():
            check_as_before(done, {"data_fingerprint": training.fingerprint})
        device = resolve_device(arguments.device)
        tried_on = None if workers else device  # that of the workers may be another one
        units = {what: passes for what, (_, passes) in work(missing, training, tried_on).items()}
        course = _Course(arguments, out, compiled, training, lambda groups: Trainings(bar, groups, units))
        outcomes |= course.in_workers(missing, workers) if workers else course.here(missing, device)
    return [outcomes[what] for what in trainings]


def _can_compile() -> bool:
    """Return whether torch.compile works here; print a note with the reason if not."""
    from robust_interp.core.compiler import why_not

    if reason := why_not():
        warn(f"note: --compile is left out, torch.compile does not work here: {reason}")
    return not reason


def finished(
    arguments: argparse.Namespace, trainings: Sequence[Training], out: Path
) -> dict[Training, Checkpoint]:
    """Return the checkpoints of the trainings that have one in the zoo folder `out`. Nothing is written.

    Raises:
        UserError: If a checkpoint was trained by a recipe of the same name with other values, or with other
            code of a plug-in.
    """
    from robust_interp import zoo
    from robust_interp.training import recipe as recipes
    from robust_interp.training.job import code, destination

    found = {}
    for what in trainings:
        folder = destination(what, arguments.dataset, out)
        if done := zoo.made_with(folder, what.recipe.model_args()):
            if changed := recipes.changed(what.recipe, done.record.get("recipe", {})):
                raise UserError(
                    f"{folder} was trained with another {what.recipe.name}, and now it says "
                    f"{recipes.describe(changed)}: rename the recipe, or choose another --out"
                )
            check_as_before(done, code(what.architecture, arguments.dataset))
            found[what] = done
    return found


def check_as_before(done: Checkpoint, now: dict) -> None:
    """Check that a finished network was trained with what its other train seeds are trained with now.

    Args:
        done: The checkpoint.
        now: Settings of the training; those that its record lacks are not compared.

    Raises:
        UserError: If one differs.
    """
    if differing := [name for name in now if done.record.get(name, now[name]) != now[name]]:
        raise UserError(
            f"{done.folder} was trained with another {' and another '.join(differing)}: choose another "
            "--out, or remove it to train it again"
        )


@dataclass(frozen=True)
class _Course:
    """Trains the missing networks, in this process or in workers.

    Attributes:
        arguments: The arguments of the command.
        out: The zoo folder.
        compiled: Whether the training step is compiled.
        training: The training split.
        watch: Returns the progress display for groups of trainings.
    """

    arguments: argparse.Namespace
    out: Path
    compiled: bool
    training: ArrayDataset
    watch: Callable[[Sequence[Sequence[Training]]], Trainings]

    def _at_once(self, device: str) -> int:
        return self.arguments.at_once or (AT_ONCE_ON_CUDA if device == "cuda" else 1)

    def here(self, missing: Sequence[Training], device: torch.device) -> Outcomes:
        """Train in this process, and return the outcome of each."""
        from robust_interp.training.train import train_together
        from robust_interp.training.workers import split_into_groups

        groups = split_into_groups(missing, self._at_once(device.type), 1)
        watch = self.watch(groups)
        outcomes: Outcomes = {}
        for group in groups:
            with ExitStack() as stack:
                report = self._reporting(group, watch, stack)
                watch.begin()
                found = train_together(
                    group,
                    self.arguments.dataset,
                    self.out,
                    data_dir=self.arguments.data_dir,
                    device=device,
                    report=report,
                    resumed=watch.resumed,
                    save_every=self.arguments.save_every,
                    compiled=self.compiled,
                    training=self.training,
                )
            _tell(found, watch)
            outcomes |= found
        return outcomes

    def in_workers(self, missing: Sequence[Training], workers: Workers) -> Outcomes:
        """Train in worker processes, and return the outcome of each."""
        from robust_interp.cli.progress import tell_start
        from robust_interp.core.worker_pool import cluster, log_in
        from robust_interp.training.workers import split_into_groups, train_groups

        workers = replace(
            workers,
            count=workers.count and min(workers.count, len(missing)),
            threads=self.arguments.threads,
        )
        outcomes: Outcomes = {}
        tell_start(workers, self.arguments.quiet)
        with cluster(workers) as filled, ExitStack() as stack:
            groups = split_into_groups(missing, self._at_once(filled.device), filled.count or 1)
            watch = self.watch(groups)
            setting = self._setting(filled.device)
            report = self._reporting(missing, watch, stack)
            for found in train_groups(filled, groups, setting, report, watch, log_in(self.out)):
                _tell(found, watch)
                outcomes |= found
        return outcomes

    def _setting(self, device: str) -> Setting:
        from robust_interp import data
        from robust_interp.plugins import loaded
        from robust_interp.training.workers import Setting

        return Setting(
            self.arguments.dataset,
            self.training.fingerprint,
            self.out,
            data.root_for_workers(self.arguments.data_dir),
            device,
            self.arguments.save_every,
            self.compiled,
            loaded(),
        )

    def _reporting(
        self, trainings: Sequence[Training], watch: Trainings, stack: ExitStack
    ) -> Callable[[Training, Status], None]:
        """Return a function that shows statuses and writes curves; `stack` closes the curves."""
        curves = {
            what: stack.enter_context(_curve_writer(self.arguments, what, self.out)) for what in trainings
        }

        def report(what: Training, status: Status) -> None:
            watch(what, status)
            curves[what](status)

        return report


def _tell(outcomes: Outcomes, watch: Trainings) -> None:
    """Print the outcome of each training."""
    from robust_interp.training.trainer import TrainingError

    for what, outcome in outcomes.items():
        if isinstance(outcome, TrainingError):
            watch.failed(what)
            warn(f"failed: {outcome}")
        else:
            accuracy = outcome.record["clean_accuracy"]
            say(f"wrote {outcome.folder}: clean accuracy {accuracy:.2f} %")


def _curve_writer(
    arguments: argparse.Namespace, what: Training, out: Path
) -> AbstractContextManager[Callable[[Status], None]]:
    """Return a context with a function that writes a training's curve for TensorBoard, if requested."""
    from robust_interp.training.job import destination

    if not arguments.tensorboard:
        return nullcontext(lambda status: None)
    from robust_interp.training.tensorboard import curve_writer

    name = destination(what, arguments.dataset, out).name
    return curve_writer(arguments.tensorboard / name)

"""Train networks by recipe and seed, and write checkpoint folders. Trainings can be resumed.

A seed determines initialisation, order of the images and augmentation, independent of the other networks that
are trained side by side. On a CPU it thus determines the weights. The state of an unfinished training is
saved next to its checkpoint folder; the same call resumes it.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from robust_interp import data, zoo
from robust_interp.core.devices import by_default
from robust_interp.core.errors import Stopped
from robust_interp.core.torch_internals import compilation_limit
from robust_interp.training import resume
from robust_interp.training.compilation import MOST_COMPILATIONS
from robust_interp.training.files import check_learning, check_not_failed, restore, save
from robust_interp.training.job import Job, Start, Training, check
from robust_interp.training.recipe import describe
from robust_interp.training.side_by_side import TrainerGroup
from robust_interp.training.trainer import Status, Trainer, TrainingError


def train_together(
    trainings: Sequence[Training],
    dataset: str,
    out: Path,
    *,
    data_dir: str | None = None,
    device: str | torch.device = "cpu",
    report: Callable[[Training, Status], None] = lambda what, status: None,
    resumed: Callable[[Training, Start], None] = lambda what, start: None,
    stopping: Callable[[], bool] = lambda: False,
    save_every: int = 1,
    compiled: bool = False,
    training: data.ArrayDataset | None = None,
) -> dict[Training, zoo.Checkpoint | TrainingError]:
    """Train networks side by side and write their checkpoint folders; on a CPU as if each were trained alone.

    Args:
        trainings: The networks to train, without duplicates.
        dataset: Name of a registered data set, for all networks.
        out: The folder for the checkpoint folders.
        data_dir: The data folder, see `data.data_root`.
        device: Device to train on.
        report: Called with each training and its status at the end of an epoch, and about every half second.
        resumed: Called with each training that continues from a saved state, and where.
        stopping: Called after each step; returns whether to stop, as a signal does.
        save_every: Number of epochs between two saves of the state.
        compiled: Whether to compile the training step (`compilation.compile_blocks`). It rounds differently,
            so the weights differ slightly. A training may be resumed with or without it.
        training: The training split of the data set; None reads it.

    Returns:
        The checkpoint of each training, or the error if it failed, now or before, or if its saved state is
        damaged. A failure is recorded in a file. Neither stops the others.

    Raises:
        Stopped: after Ctrl-C, SIGTERM or SIGHUP. The states are saved, and the same call resumes the
            trainings.
        UserError: if a checkpoint exists already or cannot be written, a split of the data set cannot be
            read, there is an unfinished training with other settings, another process is training one of the
            networks, or two trainings are the same.
    """
    folders = check(trainings, dataset, out)
    with ExitStack() as stack:
        stack.enter_context(by_default(torch.device("cpu")))  # another device draws other weights from a seed
        for folder in folders.values():
            stack.enter_context(resume.lock(folder))
        check(trainings, dataset, out)  # again: another process may have finished one before it was locked
        if compiled:
            stack.enter_context(compilation_limit(MOST_COMPILATIONS))
        training = training or data.load(dataset, "train", data_dir)
        test = data.load(dataset, "test", data_dir)  # now, so that mistakes are found before the training
        jobs = _jobs(folders, training, device, compiled)
        outcomes, caught = _outcomes(jobs, test, report, resumed, stopping, save_every)
    if caught:  # these trainings are finished; stop what the caller does next
        raise Stopped(caught)
    return outcomes


def _outcomes(
    jobs: Sequence[Job],
    test: data.ArrayDataset,
    report: Callable[[Training, Status], None],
    resumed: Callable[[Training, Start], None],
    stopping: Callable[[], bool],
    save_every: int,
) -> tuple[dict[Training, zoo.Checkpoint | TrainingError], int | None]:
    """Return the outcomes for `train_together`, and a signal that came too late to stop them, or None."""
    outcomes: dict[Training, zoo.Checkpoint | TrainingError] = {}
    trainers: dict[Trainer, Job] = {}
    for job in jobs:
        try:
            check_not_failed(job)
            trainer = job.trainer()
            is_restored = restore(job, trainer)
        except TrainingError as failure:
            outcomes[job.what] = failure
            continue
        changed = describe(trainer.begin_session(job.session))
        if is_restored:
            epochs = job.recipe.epochs
            epoch = min(len(trainer.curve) + 1, epochs)
            resumed(job.what, Start(trainer.step, trainer.steps, epoch, epochs, changed))
        trainers[trainer] = job
    caught = _run(trainers, outcomes, report, stopping, save_every)
    for trainer, job in trainers.items():
        if job.what not in outcomes:
            outcomes[job.what] = save(job, trainer, test)
            resume.forget(job.folder)
    return outcomes, caught


def _jobs(
    folders: dict[Training, Path],
    training: data.ArrayDataset,
    device: str | torch.device,
    compiled: bool,
) -> list[Job]:
    jobs = []
    for what, folder in folders.items():
        recipe = what.recipe.filled(data.DATASETS[training.name])
        jobs.append(Job(what, recipe, recipe.model_args(), training, folder, device, compiled))
    return jobs


def _run(
    jobs: dict[Trainer, Job],
    outcomes: dict[Training, zoo.Checkpoint | TrainingError],
    report: Callable[[Training, Status], None],
    stopping: Callable[[], bool],
    save_every: int,
) -> int | None:
    """Train to the end, save the states, and add failed trainings to `outcomes`.

    Returns:
        A signal that came too late to stop the trainings, or None.

    Raises:
        Stopped: if a signal stopped unfinished trainings.
    """
    group = TrainerGroup(list(jobs))
    with resume.StopSignals() as stop:
        for trainer, line in group.epochs(
            lambda trainer, status: report(jobs[trainer].what, status), lambda: bool(stop) or stopping()
        ):
            job = jobs[trainer]
            try:
                if line:
                    check_learning(job, trainer)
            except TrainingError as failure:
                outcomes[job.what] = failure
                group.drop(trainer)
                continue
            if line is None or line["epoch"] % save_every == 0 or line["epoch"] == job.recipe.epochs:
                tensors, values = trainer.state()
                resume.write(resume.state_file(job.folder), tensors, {"of": job.identity, "fit": values})
        if group.trainers and (stop or stopping()):
            raise Stopped(stop.caught or signal.SIGTERM)
    return stop.caught

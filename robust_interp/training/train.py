"""Train networks by recipe and seed, and write checkpoint folders. Trainings can be resumed.

A seed determines initialisation, order of the images and augmentation, independent of the other networks that
are trained side by side. The state of an unfinished training is saved next to its checkpoint folder; the same
call resumes it.
"""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

import robust_interp
from robust_interp import data, zoo
from robust_interp.classifiers.isolation import measurement_mode
from robust_interp.core.devices import by_default
from robust_interp.core.errors import Stopped, UserError
from robust_interp.core.files import write_text
from robust_interp.core.json_values import check as check_form
from robust_interp.core.json_values import is_object, is_text, read_object
from robust_interp.core.normalize import Normalize
from robust_interp.core.torch_internals import compilation_limit
from robust_interp.models import default_lambda_init
from robust_interp.training import resume
from robust_interp.training.compilation import MOST_COMPILATIONS, compile_blocks
from robust_interp.training.loader import Loader
from robust_interp.training.recipe import Recipe, changed, describe
from robust_interp.training.side_by_side import Group
from robust_interp.training.trainer import DamagedError, Status, Trainer, TrainingError, coefficients

PASSES = 3  # cost of a training step in forward passes: a backward pass costs two
LONGEST_NAME = 255 - 40  # bytes of a checkpoint's name; file names have 255, and that of a state is longer
HALF_MAY_CHANGE = 1 / 1000  # share of the predictions that may change with weights in half precision


def destination(architecture: str, dataset: str, recipe: Recipe, seed: int, out: Path) -> Path:
    """Return the path of the checkpoint folder of a training.

    Args:
        architecture: A timm name without a tag.
        dataset: Name of the data set.
        recipe: The recipe; its name is a part of the folder's name.
        seed: Train seed.
        out: The folder that contains the checkpoint folders.

    Raises:
        UserError: if the name is not a checkpoint's, as for an architecture with a tag, or is too long for a
            file system.
    """
    folder = Path(out) / f"{architecture}.{dataset}_{recipe.name}_seed{seed}"
    if (size := len(os.fsencode(folder.name))) > LONGEST_NAME:
        raise UserError(
            f"{folder.name[:40]}...: the name of this checkpoint would have {size} bytes, and may have "
            f"{LONGEST_NAME}: give the recipe a file and a name of its own, or rename the architecture"
        )
    try:
        folder.exists()
    except OSError as error:
        raise UserError(f"cannot write into {out}: {error.strerror}") from error
    if zoo.Checkpoint.at(folder) is None:
        raise UserError(f"{folder.name} is not a checkpoint name: train an architecture without a tag")
    return folder


def failure_file(folder: Path) -> Path:
    """Return the path of the record of a failed training. It does not look like a checkpoint."""
    return folder.with_name(f"{folder.name}.failed.json")


@dataclass(frozen=True, eq=False)
class Training:
    """A network to train.

    Attributes:
        architecture: Name of a registered architecture.
        recipe: The recipe.
        seed: Train seed.
    """

    architecture: str
    recipe: Recipe
    seed: int


@dataclass(frozen=True)
class Start:
    """Point at which a training is resumed.

    Attributes:
        step: Number of finished steps.
        steps: Number of all steps.
        epoch: Epoch, counted from 1.
        epochs: Number of all epochs.
    """

    step: int
    steps: int
    epoch: int
    epochs: int


@dataclass(frozen=True, eq=False)
class _Job:
    """A training with all that it needs: the filled recipe, the data and the destination."""

    what: Training
    recipe: Recipe
    model_args: dict
    training: data.ArrayDataset
    folder: Path
    device: str | torch.device
    compiled: bool
    data_dir: str | None

    @property
    def kind(self) -> data.DatasetType:
        return data.DATASETS[self.training.name]

    @property
    def identity(self) -> dict:
        """All settings that determine the result, as JSON values."""
        facts = {
            "recipe": dataclasses.asdict(self.recipe),
            "seed": self.what.seed,
            "dataset": self.training.name,
            "data_fingerprint": self.training.fingerprint,
            "model_args": self.model_args,
        }
        return json.loads(json.dumps(facts))

    def model(self) -> nn.Module:
        """Build the network with its initial weights."""
        torch.manual_seed(self.what.seed)
        model = zoo.create(
            self.what.architecture,
            num_classes=self.kind.classes,
            in_chans=self.kind.shape[0],
            **self.model_args,
        )
        return model.to(self.device).to(memory_format=torch.channels_last)

    def trainer(self) -> Trainer:
        """Make the training at step 0."""
        model, images = self.model(), self.training.images
        if self.compiled:
            compile_blocks(model)
        flip, seed = self.kind.flip, self.what.seed
        loader = Loader(images, self.training.labels, self.recipe, flip, seed, self.device)
        return Trainer(model, loader, self.recipe)

    def record(self, trainer: Trainer) -> dict:
        """Return the record of the training for train.json."""
        interval = self.model_args.get("lambda_init") or default_lambda_init(self.what.architecture)
        return self.identity | {
            "checkpoint": "last",  # the last epoch: the test set is used only once, after training
            "lambda_init": list(interval) if interval else None,
            "parameters": sum(p.numel() for p in trainer.model.parameters()),
            "lambda": coefficients(trainer.model),
            "versions": {"robust_interp": robust_interp.__version__, "torch": str(torch.__version__)},
            "curve": trainer.curve,
            "seconds": round(trainer.seconds, 1),
            "device": str(self.device),
            "compiled": self.compiled,
        }


def check(trainings: Sequence[Training], dataset: str, out: Path) -> dict[Training, Path]:
    """Check that trainings can run, before any data are read.

    Args:
        trainings: The trainings.
        dataset: Name of the data set.
        out: The folder for the checkpoint folders.

    Returns:
        The checkpoint folder of each training.

    Raises:
        UserError: if a checkpoint exists already or cannot be written, a recipe does not fit the data set, or
            two trainings would write the same checkpoint.
    """
    for what in trainings:
        what.recipe.filled(data.DATASETS[dataset])
    folders = {
        what: destination(what.architecture, dataset, what.recipe, what.seed, out) for what in trainings
    }
    if len(set(folders.values())) < len(trainings):
        raise UserError("two trainings would write the same checkpoint")
    for folder in folders.values():
        zoo.check_writable(folder)
    return folders


def work(trainings: Sequence[Training], training: data.Dataset) -> dict[Training, tuple[float, float]]:
    """Estimate the cost of each training.

    Args:
        trainings: The trainings.
        training: The training split of a registered data set.

    Returns:
        For each training, the parameters in millions, and the number of forward passes of single images times
        that number.
    """
    kind, images = data.DATASETS[training.name], len(training)
    params_m: dict[str, float] = {}
    sizes = {}
    for what in trainings:
        recipe = what.recipe.filled(kind)
        if what.architecture not in params_m:
            arguments = {"num_classes": kind.classes, "in_chans": kind.shape[0]} | recipe.model_args()
            model = zoo.create(what.architecture, **arguments)
            params_m[what.architecture] = sum(p.numel() for p in model.parameters()) / 1e6
        size = params_m[what.architecture]
        sizes[what] = size, recipe.epochs * images * PASSES * size
    return sizes


def train(
    architecture: str,
    dataset: str,
    recipe: Recipe,
    seed: int,
    out: Path,
    model_args: dict | None = None,
    data_dir: str | None = None,
    device: str | torch.device = "cpu",
    report: Callable[[Status], None] = lambda status: None,
    save_every: int = 1,
    compiled: bool = False,
) -> zoo.Checkpoint:
    """Train one network and write its checkpoint folder.

    Args:
        architecture: A registered timm name without a tag.
        dataset: Name of a registered data set. Its test split is used only once, at the end.
        recipe: The recipe; it is filled for the data set.
        seed: Train seed; it determines initialisation, order and augmentation.
        out: The folder for the checkpoint folder.
        model_args: See `train_together`.
        data_dir: See `train_together`.
        device: See `train_together`.
        report: Called with the status at the end of each epoch, and about every half second.
        save_every: See `train_together`.
        compiled: See `train_together`.

    Raises:
        TrainingError: if the training fails, which is recorded, or failed before.
        Stopped: see `train_together`.
        UserError: see `train_together`.
    """
    what = Training(architecture, recipe, seed)
    (outcome,) = train_together(
        [what],
        dataset,
        out,
        model_args=model_args,
        data_dir=data_dir,
        device=device,
        report=lambda _, status: report(status),
        save_every=save_every,
        compiled=compiled,
    ).values()
    if isinstance(outcome, TrainingError):
        raise outcome
    return outcome


def train_together(
    trainings: Sequence[Training],
    dataset: str,
    out: Path,
    *,
    model_args: dict | None = None,
    data_dir: str | None = None,
    device: str | torch.device = "cpu",
    report: Callable[[Training, Status], None] = lambda what, status: None,
    resumed: Callable[[Training, Start], None] = lambda what, start: None,
    stopping: Callable[[], bool] = lambda: False,
    save_every: int = 1,
    compiled: bool = False,
    training: data.ArrayDataset | None = None,
) -> dict[Training, zoo.Checkpoint | TrainingError]:
    """Train networks side by side and write their checkpoint folders. The results are as if trained alone.

    Args:
        trainings: The networks to train, without duplicates.
        dataset: Name of a registered data set, for all networks.
        out: The folder for the checkpoint folders.
        model_args: Arguments of the architectures in addition to those of the recipes.
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
        UserError: if a checkpoint exists already or cannot be written, there is an unfinished training with
            other settings, another process is training one of the networks, or two trainings are the same.
    """
    folders = check(trainings, dataset, out)
    with ExitStack() as stack:
        stack.enter_context(by_default(torch.device("cpu")))  # another device draws other weights from a seed
        for folder in folders.values():
            stack.enter_context(resume.lock(folder))
        if compiled:
            stack.enter_context(compilation_limit(MOST_COMPILATIONS))
        training = training or data.load(dataset, "train", data_dir)
        jobs = _jobs(folders, training, model_args or {}, data_dir, device, compiled)
        outcomes, caught = _outcomes(jobs, report, resumed, stopping, save_every)
    if caught:  # these trainings are finished; stop what the caller does next
        raise Stopped(caught)
    return outcomes


def _outcomes(
    jobs: Sequence[_Job],
    report: Callable[[Training, Status], None],
    resumed: Callable[[Training, Start], None],
    stopping: Callable[[], bool],
    save_every: int,
) -> tuple[dict[Training, zoo.Checkpoint | TrainingError], int | None]:
    """Return the outcomes for `train_together`, and a signal that came too late to stop them, or None."""
    outcomes: dict[Training, zoo.Checkpoint | TrainingError] = {}
    trainers: dict[Trainer, _Job] = {}
    for job in jobs:
        try:
            _check_not_failed(job)
            trainer = job.trainer()
            is_restored = _restore(job, trainer)
        except TrainingError as failure:
            outcomes[job.what] = failure
            continue
        if is_restored:
            epochs = job.recipe.epochs
            resumed(job.what, Start(trainer.step, trainer.steps, min(len(trainer.curve) + 1, epochs), epochs))
        trainers[trainer] = job
    caught = _run(trainers, outcomes, report, stopping, save_every)
    for trainer, job in trainers.items():
        if job.what not in outcomes:
            outcomes[job.what] = _save(job, trainer, data.load(job.training.name, "test", job.data_dir))
            resume.forget(job.folder)
    return outcomes, caught


def _jobs(
    folders: dict[Training, Path],
    training: data.ArrayDataset,
    model_args: dict,
    data_dir: str | None,
    device: str | torch.device,
    compiled: bool,
) -> list[_Job]:
    jobs = []
    for what, folder in folders.items():
        recipe = what.recipe.filled(data.DATASETS[training.name])
        args = recipe.model_args() | model_args
        jobs.append(_Job(what, recipe, args, training, folder, device, compiled, data_dir))
    return jobs


def _run(
    jobs: dict[Trainer, _Job],
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
    group = Group(list(jobs))
    with resume.StopSignals() as stop:
        for trainer, line in group.epochs(
            lambda trainer, status: report(jobs[trainer].what, status), lambda: bool(stop) or stopping()
        ):
            job = jobs[trainer]
            try:
                if line:
                    _check_learning(job, trainer)
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


def _restore(job: _Job, trainer: Trainer) -> bool:
    """Restore the saved state of a job, and return whether there was one.

    Raises:
        DamagedError: if the state cannot be read, or is not complete.
        UserError: if the state has other settings than the job.
    """
    path = resume.state_file(job.folder)
    try:
        found = resume.read(path)
    except UserError as error:
        raise DamagedError(str(error)) from error
    if not found:
        return False
    tensors, values = found
    try:
        identity, state = values["of"], values["fit"]
        differing = [key for key, value in job.identity.items() if identity.get(key) != value]
        if not differing:
            trainer.restore(tensors, state)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:  # as of another version
        reason = " ".join(str(error).split())
        raise DamagedError(f"cannot resume from {path}: {reason}; remove it to start over") from error
    if differing:
        raise UserError(
            f"{path} is an unfinished training with different {', '.join(differing)}; remove it to start over"
        )
    return True


def _check_not_failed(job: _Job) -> None:
    """Check that there is no record of a failure of this training.

    Raises:
        TrainingError: if the training failed before.
        DamagedError: if the record cannot be read.
        UserError: if the record is of a training with other settings.
    """
    path = failure_file(job.folder)
    if not path.exists():
        return
    try:
        record = read_object(path)
        check_form(path, record, {"failed": is_text}, {"recipe": is_object})
    except UserError as error:
        raise DamagedError(f"{error}; remove it to train again") from error
    differing = [describe(changed(job.recipe, record["recipe"]))] if "recipe" in record else []
    differing += [
        f"another {key}"
        for key, value in job.identity.items()
        if key != "recipe" and record.get(key, value) != value
    ]
    if told := ", ".join(filter(None, differing)):
        raise UserError(f"{path} is of a failed training with other values, {told}: remove it to train again")
    raise TrainingError(f"{job.folder.name} failed before: {record['failed']} (remove {path} to try again)")


def _check_learning(job: _Job, trainer: Trainer) -> None:
    """Check whether the training has failed, and record the failure.

    Raises:
        TrainingError: if it has failed.
    """
    try:
        trainer.check(job.kind.classes)
    except TrainingError as failure:
        path = failure_file(job.folder)
        record = {"failed": str(failure)} | job.record(trainer)
        write_text(path, json.dumps(_finite(record), indent=1, allow_nan=False) + "\n")
        resume.state_file(job.folder).unlink(missing_ok=True)
        raise TrainingError(f"{job.folder.name}: {failure}; recorded in {path}") from None


def _finite(value: Any) -> Any:
    """Replace numbers that are not finite, which JSON lacks, by None."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _save(job: _Job, trainer: Trainer, test: data.Dataset) -> zoo.Checkpoint:
    """Write the checkpoint folder, in half precision if at most HALF_MAY_CHANGE of the predictions change."""
    model, record = job.model(), job.record(trainer)  # a compiled model would be recompiled
    model.load_state_dict(trainer.model.state_dict())
    full = predictions(model, test, *job.recipe.normalisation, job.device)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    model.load_state_dict({k: v.half() if v.is_floating_point() else v for k, v in state.items()})
    shipped = predictions(model, test, *job.recipe.normalisation, job.device)
    half = float((full != shipped).mean()) <= HALF_MAY_CHANGE
    if not half:
        model.load_state_dict(state)
        shipped = full
    record["precision"] = "float16" if half else "float32"
    record["clean_accuracy"] = round(100 * float((shipped == test.labels).mean()), 4)
    record["clean_n"] = len(test)
    cfg = _pretrained_cfg(model, job)
    return zoo.save(model, job.folder, cfg, job.model_args, record, half, {"curve.csv": _csv(trainer.curve)})


def predictions(
    model: nn.Module,
    test: data.Dataset,
    mean: Sequence[float],
    std: Sequence[float],
    device: str | torch.device,
) -> np.ndarray:
    """Return the labels (N,) that a model predicts in eval mode for normalised images.

    Args:
        model: The model, on `device`; it is restored.
        test: The data set.
        mean: Per-channel mean of the normalisation, in [0, 1] pixels.
        std: Per-channel standard deviation of the normalisation.
        device: Device of the model.
    """
    normalize = Normalize(mean, std, device)
    with measurement_mode(model), torch.no_grad():
        found = [
            model(normalize(torch.from_numpy(test.pixels(at, at + 500)).to(device))).argmax(1).cpu()
            for at in range(0, len(test), 500)
        ]
    return torch.cat(found).numpy()


def _csv(curve: list[dict]) -> str:
    """Format the curve as CSV: a row per epoch, and a column ``lambda.<block>`` for each λ."""
    text = io.StringIO()
    lines = [
        {key: value for key, value in line.items() if key != "lambda"}
        | {f"lambda.{block}": value for block, value in line["lambda"].items()}
        for line in curve
    ]
    writer = csv.DictWriter(text, lines[0], lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _pretrained_cfg(model: nn.Module, job: _Job) -> dict:
    cfg: Any = model.pretrained_cfg
    kind = job.kind
    mean, std = job.recipe.normalisation
    return {
        "tag": job.folder.name.partition(".")[2],
        "num_classes": kind.classes,
        "input_size": list(kind.shape),
        "pool_size": [max(1, kind.shape[1] // 4), max(1, kind.shape[2] // 4)],
        "crop_pct": 1.0,
        "interpolation": "bilinear",
        "mean": list(mean),
        "std": list(std),
        "first_conv": cfg["first_conv"],
        "classifier": cfg["classifier"],
    }

"""The files of a training: its checkpoint, the state that it is resumed from, the record of its failure."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from robust_interp import data, zoo
from robust_interp.classifiers.isolation import measurement_mode
from robust_interp.core.errors import UserError
from robust_interp.core.files import write_text
from robust_interp.core.json_values import check as check_form
from robust_interp.core.json_values import is_object, is_text, read_object
from robust_interp.core.memory import retry_with_smaller_batch
from robust_interp.core.normalize import Normalize
from robust_interp.core.texts import reason_of
from robust_interp.training import resume
from robust_interp.training.job import Job, failure_file
from robust_interp.training.recipe import changed, describe
from robust_interp.training.trainer import DamagedError, Trainer, TrainingError

TEST_BATCH = 500  # images at once, where memory suffices
HALF_MAY_CHANGE = 1 / 1000  # share of the predictions that may change with weights in half precision


def restore(job: Job, trainer: Trainer) -> bool:
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
        differing = _differing(job.identity, identity)
        if not differing:
            trainer.restore(tensors, state)
    except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:  # as of another version
        reason = reason_of(error)
        raise DamagedError(f"cannot resume from {path}: {reason}; remove it to start over") from error
    if differing:
        raise UserError(
            f"{path} is an unfinished training with different {', '.join(differing)}; remove it to start over"
        )
    return True


def _differing(now: dict, then: dict) -> list[str]:
    """Return the settings of a training that a record of it has otherwise, or that only one of them has."""
    return [key for key in now | then if key not in now or key not in then or now[key] != then[key]]


def check_not_failed(job: Job) -> None:
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
    then = {key: record[key] for key in (*job.identity, "plugin") if key in record}
    if differing := _differing(job.identity, then):
        told = {key: f"another {key}" for key in differing}
        if fields := describe(changed(job.recipe, record.get("recipe", {}))):
            told["recipe"] = fields
        others = ", ".join(told.values())
        raise UserError(
            f"{path} is of a failed training with other values, {others}: remove it to train again"
        )
    raise TrainingError(f"{job.folder.name} failed before: {record['failed']} (remove {path} to try again)")


def check_learning(job: Job, trainer: Trainer) -> None:
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


def save(job: Job, trainer: Trainer, test: data.Dataset) -> zoo.Checkpoint:
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

    def in_batches(size: int) -> np.ndarray:
        found = [
            model(normalize(torch.from_numpy(test.pixels(at, at + size)).to(device))).argmax(1).cpu()
            for at in range(0, len(test), size)
        ]
        return torch.cat(found).numpy()

    with measurement_mode(model), torch.no_grad():
        return retry_with_smaller_batch(in_batches, TEST_BATCH, device)


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


def _pretrained_cfg(model: nn.Module, job: Job) -> dict:
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

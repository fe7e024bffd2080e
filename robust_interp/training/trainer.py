"""Train one network with SGD with momentum and a step schedule of the learning rate, resumable.

Source: Yang et al., *Interpolation between Residual and Non-Residual Networks*, ICML 2020, section 5.1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import takewhile

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from robust_interp.core import precision
from robust_interp.core.errors import UserError
from robust_interp.core.percent import percent
from robust_interp.models.merges import Coefficient
from robust_interp.training.loader import Loader
from robust_interp.training.recipe import Recipe

FEW_STEPS = 20  # shorter trainings may still be at chance level at their end
_VALUES = ("curve", "step", "seconds", "epoch_seconds")  # attributes in a saved state, besides the tensors


class TrainingError(UserError):
    """Raised for a training that failed: it diverged, or learns nothing."""


class DamagedError(TrainingError):
    """Raised for a training whose saved state or record of a failure cannot be read. It has not failed."""


@dataclass(frozen=True)
class Status:
    """Progress of a training.

    Attributes:
        epoch: Current epoch, counted from 1.
        epochs: Number of epochs of the training.
        loss: Mean loss over the epoch so far.
        accuracy: Mean accuracy in percent over the epoch so far.
        lr: Learning rate of the last step.
        images_per_second: Mean speed over the epoch so far.
        share: Share of all steps that are done, in [0, 1].
        line: Record of the epoch, at its end; None within an epoch.
    """

    epoch: int
    epochs: int
    loss: float
    accuracy: float
    lr: float
    images_per_second: float
    share: float
    line: dict | None


def patience(epochs: int) -> int:
    """Return the number of epochs in a row at chance level after which a training has failed.

    It is a share of all epochs, because a deep network may start at chance level and learn later.
    """
    return max(5, epochs // 8)


def learning_rate(recipe: Recipe, step: int, steps_per_epoch: int) -> float:
    """Return the learning rate of a recipe at a step, counted from 0."""
    rate = recipe.lr
    for share in recipe.steps:  # in steps, not epochs, so that half of 11 epochs is 5.5 epochs
        rate *= 0.1 if step >= round(share * recipe.epochs * steps_per_epoch) else 1.0
    warmup = recipe.warmup_epochs * steps_per_epoch
    return rate * min(1.0, (step + 1) / warmup) if warmup else rate


@contextmanager
def arithmetic(device: str, tf32: bool) -> Iterator[None]:
    """Compute in float32 or TF32 inside, independent of torch's settings outside.

    Args:
        device: Type of the device, such as ``cuda``.
        tf32: Whether to use TF32.
    """
    with precision.float32(tf32=tf32, deterministic=False), torch.autocast(device, enabled=False):
        yield


def coefficients(model: nn.Module) -> dict[str, float]:
    """Return act(λ) by block; empty for a model without λ, or if λ depends on the input."""
    read = getattr(model, "interpolation_coefficients", None)
    if read is None:
        return {}
    try:
        found = read()
    except ValueError:  # λ depends on the input
        return {}
    return {name: round(value.item(), 6) for name, value in found.items()}


def _parameter_groups(model: nn.Module, recipe: Recipe) -> list[dict]:
    """Return one group of all parameters; without lambda_decay, those of λ in a second one without decay."""
    of_lambda = {
        p for module in model.modules() if isinstance(module, Coefficient) for p in module.parameters()
    }
    if recipe.lambda_decay or not of_lambda:
        return [{"params": list(model.parameters())}]
    others = [p for p in model.parameters() if p not in of_lambda]
    return [
        {"params": others},
        {"params": [p for p in model.parameters() if p in of_lambda], "weight_decay": 0.0},
    ]


def logits_of(model: nn.Module, images: Tensor, recipe: Recipe) -> Tensor:
    """Return the logits in float32, or in the model's own type if that is more precise.

    Raises:
        UserError: if the model does not return one tensor.
        Exception: any exception of the model.
    """
    bf16 = recipe.precision == "bf16"
    # The cache of cast weights would not be updated when a CUDA graph is replayed.
    with torch.autocast(images.device.type, torch.bfloat16, enabled=bf16, cache_enabled=False):
        logits = model(images)
    if not isinstance(logits, Tensor):
        raise UserError(f"for {len(images)} images it returns {type(logits).__name__}, not logits")
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


class Trainer:
    """A training of one model: model, optimizer, batches and progress.

    Args:
        model: The model to train.
        loader: Batches of the training set, on the model's device.
        recipe: The recipe, filled for the data set.

    Attributes:
        curve: Record of each finished epoch.
        step: Number of finished steps.
        seconds: Time of the finished epochs.
        epoch_seconds: Time of the current epoch so far.

    Raises:
        UserError: if the precision is tf32 and the device is not CUDA.
    """

    def __init__(self, model: nn.Module, loader: Loader, recipe: Recipe) -> None:
        if recipe.precision == "tf32" and not loader.labels.is_cuda:
            raise UserError("precision tf32 needs a CUDA device: use float32 or bf16")
        self.model, self.loader, self.recipe = model, loader, recipe
        self.optimizer = torch.optim.SGD(
            _parameter_groups(model, recipe),
            lr=recipe.lr,
            momentum=recipe.momentum,
            weight_decay=recipe.weight_decay,
        )
        self.curve: list[dict] = []
        self.sessions: list[dict] = []
        self.step = 0
        self.seconds = self.epoch_seconds = 0.0
        device = loader.labels.device
        self.loss_sum, self.correct = torch.zeros((), device=device), torch.zeros((), device=device)
        self.rng = torch.get_rng_state()  # of torch's CPU generator, used by dropout
        self._before = 0, 0.0  # images of this epoch, and its seconds, before this session

    @property
    def steps(self) -> int:
        """Number of steps of the whole training."""
        return self.recipe.epochs * len(self.loader)

    @property
    def lr(self) -> float:
        """Learning rate of the next step."""
        return learning_rate(self.recipe, self.step, len(self.loader))

    @property
    def unfinished(self) -> bool:
        """Whether there are epochs left."""
        return len(self.curve) < self.recipe.epochs

    @property
    def at_epoch_end(self) -> bool:
        """Whether all images of the epoch have been used."""
        return not len(self.loader.left)

    def begin(self) -> None:
        """Set the model to train mode, and measure the speed from here on."""
        self.model.train()
        self._before = self._seen, self.epoch_seconds

    def train_step(self, images: Tensor, labels: Tensor) -> None:
        """Do one training step. The model must be in train mode.

        It runs only on the device: it reads nothing back and counts nothing, so that a CUDA graph can record
        it. The caller must add 1 to `step`.

        Args:
            images: Normalised images (n, C, H, W).
            labels: Class indices (n,).
        """
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr
        with arithmetic(images.device.type, tf32=self.recipe.precision == "tf32"):
            logits = logits_of(self.model, images, self.recipe)
            loss = F.cross_entropy(logits, labels)
            self.optimizer.zero_grad(set_to_none=True)
            loss.backward()
            self.optimizer.step()
        self.loss_sum += loss.detach() * len(labels)
        self.correct += (logits.detach().argmax(1) == labels).sum()

    def begin_session(self, made: dict) -> dict[str, tuple]:
        """Record what the next steps are computed with, if it differs from the last session's.

        Args:
            made: The session, as JSON values.

        Returns:
            What differs: (value before, value now) by name.
        """
        last = {name: value for name, value in (self.sessions or [made])[-1].items() if name != "step"}
        if not self.sessions or last != made:
            self.sessions.append({"step": self.step} | made)
        return {
            name: (last.get(name), made.get(name)) for name in last | made if last.get(name) != made.get(name)
        }

    def end_epoch(self) -> Status:
        """Add the record of the epoch to the curve, and reset the sums for the next one."""
        status = self.status()
        line = {
            "epoch": status.epoch,
            "lr": learning_rate(self.recipe, self.step - len(self.loader), len(self.loader)),
            "loss": round(status.loss, 6),
            "accuracy": round(status.accuracy, 3),
            "images_per_second": round(status.images_per_second, 1),
            "lambda": coefficients(self.model),
        }
        self.curve.append(line)
        self.seconds += self.epoch_seconds
        self.epoch_seconds = 0.0
        self._before = 0, 0.0
        self.loss_sum.zero_()
        self.correct.zero_()
        return replace(status, line=line)

    @property
    def _seen(self) -> int:
        """Number of images of the current epoch that were used."""
        return len(self.loader.labels) - len(self.loader.left)

    @property
    def _rate(self) -> float:
        """Images per second in the current epoch, since the training was resumed if that was within it."""
        seen, seconds = self._before if self._seen > self._before[0] else (0, 0.0)
        return (self._seen - seen) / (self.epoch_seconds - seconds)

    def status(self) -> Status:
        """Return the progress. At least one step of the epoch must be done. Waits for the device."""
        seen = self._seen
        return Status(
            epoch=len(self.curve) + 1,
            epochs=self.recipe.epochs,
            loss=self.loss_sum.item() / seen,
            accuracy=100 * self.correct.item() / seen,
            lr=self.optimizer.param_groups[0]["lr"],
            images_per_second=self._rate,
            share=self.step / self.steps,
            line=None,
        )

    def check(self, classes: int) -> None:
        """Check that the training has not failed.

        Args:
            classes: Number of classes of the data set.

        Raises:
            TrainingError: if the loss of the last epoch is not finite, if the last `patience` epochs are at
                chance level, or if the training is over and its last epoch is at chance level. A training
                of one epoch, of the warm-up alone, or of less than `FEW_STEPS` is not judged by its end.
        """
        loss, epochs = self.curve[-1]["loss"], self.recipe.epochs
        if not math.isfinite(loss):
            raise TrainingError(f"training diverged: the loss of epoch {len(self.curve)} is {loss}")
        stuck = list(takewhile(lambda line: _at_chance(line, classes), reversed(self.curve)))
        if len(stuck) >= patience(epochs):
            raise TrainingError(f"training does not progress: {_described(stuck, classes)}")
        # A mean that includes the first steps of the untrained network is no evidence.
        is_judged = epochs > max(1, self.recipe.warmup_epochs) and self.step >= FEW_STEPS
        if stuck and len(self.curve) == epochs and is_judged:
            raise TrainingError(f"training ended at chance level: {_described(stuck, classes)}")

    def state(self) -> tuple[dict[str, Tensor], dict]:
        """Return tensors and JSON values for `restore`, which on a CPU continues bit for bit."""
        tensors = {
            "sums.loss": self.loss_sum,
            "sums.correct": self.correct,
            "rng.cpu": self.rng,
            **{f"loader.{name}": value for name, value in self.loader.state().items()},
            **{f"model.{name}": value for name, value in self.model.state_dict().items()},
        }
        if self.loss_sum.is_cuda:
            tensors["rng.cuda"] = torch.cuda.get_rng_state(self.loss_sum.device)
        for name, parameter in self.model.named_parameters():
            momentum = self.optimizer.state[parameter].get("momentum_buffer")
            if momentum is not None:
                tensors[f"momentum.{name}"] = momentum
        values = {name: getattr(self, name) for name in _VALUES}
        return tensors, values | {"sessions": self.sessions}

    def restore(self, tensors: dict[str, Tensor], values: dict) -> None:
        """Continue from a result of `state`.

        Raises exceptions such as KeyError or RuntimeError if the state is not of such a training.
        """
        device = self.loss_sum.device
        self.model.load_state_dict(_below("model.", tensors))
        self.loader.restore(_below("loader.", tensors))
        for name, momentum in _below("momentum.", tensors).items():
            parameter = self.model.get_parameter(name)
            buffer = torch.empty_like(parameter).copy_(momentum)  # in the parameter's memory format
            self.optimizer.state[parameter]["momentum_buffer"] = buffer
        self.loss_sum.copy_(tensors["sums.loss"])
        self.correct.copy_(tensors["sums.correct"])
        self.rng = tensors["rng.cpu"]
        if self.loss_sum.is_cuda and "rng.cuda" in tensors:
            torch.cuda.set_rng_state(tensors["rng.cuda"], device)
        for name in _VALUES:
            setattr(self, name, values[name])
        self.sessions = values.get("sessions", [])  # states of version 0.1 have none


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def _at_chance(line: dict, classes: int) -> bool:
    above = min(50 / classes, 5)  # of two classes, 65 % is no guess even if some errors make the loss large
    return line["loss"] > math.log(classes) - 0.01 and line["accuracy"] < 100 / classes + above


def _described(lines: Sequence[dict], classes: int) -> str:
    """Describe epochs at chance level, of which the last comes first."""
    last, first = lines[0], lines[-1]
    when, was, at = f"epoch {last['epoch']}", "was", ""
    if len(lines) > 1:
        when, was, at = f"epochs {first['epoch']} to {last['epoch']}", "stayed at", "at "
    return (
        f"in {when} the loss {was} {last['loss']:.3f} (chance: {math.log(classes):.3f}) and the accuracy "
        f"{at}{percent(last['accuracy'])} %"
    )

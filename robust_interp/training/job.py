"""A training before it runs: what is trained, where its checkpoint goes, and what it costs."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import robust_interp
from robust_interp import data, zoo
from robust_interp.core.errors import UserError
from robust_interp.core.random_state import preserved_rng_state
from robust_interp.core.texts import first_line_of
from robust_interp.models import default_lambda_init
from robust_interp.training.compilation import compile_blocks
from robust_interp.training.loader import Loader
from robust_interp.training.recipe import Recipe
from robust_interp.training.trainer import Trainer, arithmetic, coefficients, logits_of

PASSES = 3  # cost of a training step in forward passes: a backward pass costs two
LONGEST_NAME = 255 - 40  # bytes of a checkpoint's name; file names have 255, and that of a state is longer


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


def destination(what: Training, dataset: str, out: Path) -> Path:
    """Return the path of the checkpoint folder of a training.

    Args:
        what: The training; the name of its recipe is a part of the folder's name.
        dataset: Name of the data set.
        out: The folder that contains the checkpoint folders.

    Raises:
        UserError: if the name is not a checkpoint's, as for an architecture with a tag, or is too long for a
            file system.
    """
    folder = Path(out) / f"{what.architecture}.{dataset}_{what.recipe.name}_seed{what.seed}"
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


def code(architecture: str, dataset: str) -> dict:
    """Return what the plug-ins of a training decide: a hash of the network's code, and if images are flipped.

    It is empty for our networks on built-in data sets, which always flip images or never do.
    """
    flip = {"flip": data.DATASETS[dataset].flip} if data.DATASETS.code(dataset) else {}
    return flip | zoo.MODELS.code(architecture)


def failure_file(folder: Path) -> Path:
    """Return the path of the record of a failed training. It does not look like a checkpoint."""
    return folder.with_name(f"{folder.name}.failed.json")


@dataclass(frozen=True)
class Start:
    """Point at which a training is resumed.

    Attributes:
        step: Number of finished steps.
        steps: Number of all steps.
        epoch: Epoch, counted from 1.
        epochs: Number of all epochs.
        changed: What rounds otherwise than before, such as ``threads 1 instead of 2``; empty if nothing does.
    """

    step: int
    steps: int
    epoch: int
    epochs: int
    changed: str = ""


@dataclass(frozen=True, eq=False)
class Job:
    """A training with all that it needs: the filled recipe, the data and the destination."""

    what: Training
    recipe: Recipe
    model_args: dict
    training: data.ArrayDataset
    folder: Path
    device: str | torch.device
    compiled: bool

    @property
    def kind(self) -> data.DatasetType:
        return data.DATASETS[self.training.name]

    @property
    def identity(self) -> dict:
        """All settings that determine the result, as JSON values.

        They include what is known of the code of plug-ins, see `code`.
        """
        facts = {
            "recipe": dataclasses.asdict(self.recipe),
            "seed": self.what.seed,
            "dataset": self.training.name,
            "data_fingerprint": self.training.fingerprint,
            "model_args": self.model_args,
        }
        return json.loads(json.dumps(facts | code(self.what.architecture, self.training.name)))

    def model(self) -> nn.Module:
        """Build the network with its initial weights.

        Raises:
            UserError: if it cannot be built, or its checkpoint could not be written.
        """
        torch.manual_seed(self.what.seed)
        model = _network(self.what.architecture, self.kind, self.model_args)
        return model.to(self.device).to(memory_format=torch.channels_last)

    def trainer(self) -> Trainer:
        """Make the training at step 0.

        Raises:
            UserError: as `model`, or if the network does not return logits with a gradient for the images.
        """
        with preserved_rng_state():
            _check_step(self.model(), self.what.architecture, self.training, self.recipe, self.device)
        model, images = self.model(), self.training.rows(0, len(self.training))
        if self.compiled:
            compile_blocks(model)
        flip, seed = self.kind.flip, self.what.seed
        loader = Loader(images, self.training.labels, self.recipe, flip, seed, self.device)
        return Trainer(model, loader, self.recipe)

    @property
    def session(self) -> dict:
        """What the rounding depends on, and so the weights: device, threads, compilation and PyTorch."""
        threads = {"threads": torch.get_num_threads()} if torch.device(self.device).type == "cpu" else {}
        told = {"compiled": self.compiled, "torch": str(torch.__version__)}
        return {"device": str(self.device)} | threads | told

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
            "sessions": trainer.sessions,  # the others are of the last one
        }


def _network(architecture: str, kind: data.DatasetType, model_args: dict) -> nn.Module:
    """Build the network of a training, and check that its checkpoint can be written."""
    model = zoo.create(architecture, num_classes=kind.classes, in_chans=kind.shape[0], **model_args)
    zoo.check_savable(model, architecture, model_args)
    try:
        is_known = zoo.are_coefficients(coefficients(model))
    except Exception:  # of a plug-in's network
        is_known = False
    if not is_known:
        raise UserError(
            f"{architecture}: interpolation_coefficients must give a tensor with one number for each block, "
            "under names such as stages.0.1"
        )
    return model


def _check_step(
    model: nn.Module, architecture: str, training: data.Dataset, recipe: Recipe, device: str | torch.device
) -> None:
    """Check a forward and a backward pass of a network, which is changed, as in a step of the training."""
    kind = data.DATASETS[training.name]
    try:
        _try_step(model, kind, 2, recipe, device)
    except Exception as error:  # models may raise anything
        raise UserError(f"cannot train {architecture} on {kind.name}: {first_line_of(error)}") from error
    if 1 not in (recipe.batch_size, len(training) % recipe.batch_size):
        return
    try:
        _try_step(model, kind, 1, recipe, device)
    except Exception as error:
        raise UserError(
            f"cannot train {architecture} on {kind.name} with batch_size {recipe.batch_size}, which leaves a "
            f"batch of one image: {first_line_of(error)}"
        ) from error


def _try_step(
    model: nn.Module, kind: data.DatasetType, n: int, recipe: Recipe, device: str | torch.device
) -> None:
    channels, height, width = kind.shape
    images = torch.zeros(n, height, width, channels, dtype=torch.float32, device=device).permute(0, 3, 1, 2)
    with arithmetic(images.device.type, tf32=False):
        logits = logits_of(model.train(), images, recipe)
        if logits.shape != (n, kind.classes):
            shapes = f"shape {tuple(logits.shape)}, not logits ({n}, {kind.classes})"
            raise UserError(f"for {n} images it returns {shapes}")
        if not logits.requires_grad:
            raise UserError("its logits have no gradient")
        F.cross_entropy(logits, torch.zeros(n, dtype=torch.int64, device=device)).backward()


def destinations(trainings: Sequence[Training], dataset: str, out: Path) -> dict[Training, Path]:
    """Return the checkpoint folder of each training. Nothing is written.

    Args:
        trainings: The trainings.
        dataset: Name of the data set.
        out: The folder for the checkpoint folders.

    Raises:
        UserError: as `destination`; or if a recipe does not fit the data set, or two trainings would write
            the same checkpoint.
    """
    for what in trainings:
        what.recipe.filled(data.DATASETS[dataset])
    folders = {what: destination(what, dataset, out) for what in trainings}
    if len(set(folders.values())) < len(trainings):
        raise UserError("two trainings would write the same checkpoint")
    return folders


def check(trainings: Sequence[Training], dataset: str, out: Path) -> dict[Training, Path]:
    """Check that trainings can run, before any data are read.

    Args:
        trainings: The trainings.
        dataset: Name of the data set.
        out: The folder for the checkpoint folders.

    Returns:
        The checkpoint folder of each training.

    Raises:
        UserError: as `destinations`; or if a checkpoint exists already or cannot be written.
    """
    folders = destinations(trainings, dataset, out)
    for folder in folders.values():
        zoo.check_writable(folder)
    return folders


def work(
    trainings: Sequence[Training], training: data.Dataset, device: str | torch.device | None = None
) -> dict[Training, tuple[float, float]]:
    """Estimate the cost of each training.

    Args:
        trainings: The trainings.
        training: The training split of a registered data set.
        device: Device on which each network is checked, as by `Job.trainer`; None does not check it.

    Returns:
        For each training, the parameters in millions, and the number of forward passes of single images times
        that number.

    Raises:
        UserError: if a network cannot be built or trained, or its checkpoint could not be written.
    """
    kind, images = data.DATASETS[training.name], len(training)
    params_m: dict[tuple, float] = {}  # by architecture and its arguments
    sizes = {}
    for what in trainings:
        recipe = what.recipe.filled(kind)
        network = what.architecture, *recipe.model_args().items()
        if network not in params_m:
            with preserved_rng_state():
                model = _network(what.architecture, kind, recipe.model_args())
                if device is not None:
                    model = model.to(device).to(memory_format=torch.channels_last)
                    _check_step(model, what.architecture, training, recipe, device)
            params_m[network] = sum(p.numel() for p in model.parameters()) / 1e6
        size = params_m[network]
        sizes[what] = size, recipe.epochs * images * PASSES * size
    return sizes

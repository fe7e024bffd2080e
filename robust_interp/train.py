"""Training by the paper's recipe: plain SGD with momentum, steps of the learning rate, crops and flips.

A seed fixes everything: initialisation, order of the samples and augmentation. The whole training set stays
in memory as pixels, a batch is cut and flipped by one indexing operation, and its padding is added before
the normalisation, as torchvision's transforms would.
Source: Yang et al., *Interpolation between Residual and Non-Residual Networks*, ICML 2020, section 5.1.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import robust_interp
from robust_interp import data, zoo
from robust_interp.errors import UserError
from robust_interp.models import default_lambda_init
from robust_interp.registry import Registry

HALF_MAY_CHANGE = 1 / 1000  # predictions that storing half-precision weights may change


@dataclass(frozen=True)
class Recipe:
    """How a network is trained.

    Attributes:
        steps: Shares of the epochs after which the learning rate is divided by 10.
        weight_decay: On every parameter that is stored, λ included, as torch.optim.SGD applies it.
    """

    name: str
    epochs: int
    lr: float = 0.1
    steps: tuple[float, ...] = (0.5, 0.75)
    momentum: float = 0.9
    weight_decay: float = 1e-4
    batch_size: int = 128


RECIPES: Registry[Recipe] = Registry("recipe")
RECIPES.add("paper", Recipe("paper", epochs=160))
RECIPES.add("quick", Recipe("quick", epochs=22))
RECIPES.add("digits", Recipe("digits", epochs=60))


def with_epochs(recipe: Recipe, epochs: int | None) -> Recipe:
    """The same recipe on another number of epochs, which then stands in its name."""
    if epochs is None or epochs == recipe.epochs:
        return recipe
    if epochs < 1:
        raise UserError(f"epochs must be at least 1, not {epochs}")
    return dataclasses.replace(recipe, name=f"{recipe.name}_{epochs}epochs", epochs=epochs)


class Loader:
    """Shuffled, augmented, normalised batches of a training set, drawn from a generator of its own.

    Args:
        images: (N, C, H, W), uint8 or float32 in [0, 1].
        kind: Says how far a random crop may move an image, whether it may be mirrored, and how to normalise.
        seed: Of the order, the crops and the flips.
    """

    def __init__(self, images, labels, kind: data.DatasetType, batch_size: int, seed: int, device) -> None:
        padding = kind.crop_padding
        pixels = F.pad(torch.from_numpy(images), (padding,) * 4)
        self.padded = pixels.permute(0, 2, 3, 1).contiguous().to(device)  # a batch is then channels_last
        self.labels = torch.from_numpy(labels).to(device)
        self.scale = 255.0 if images.dtype == np.uint8 else 1.0
        self.mean = torch.tensor(kind.mean, device=device)
        self.std = torch.tensor(kind.std, device=device)
        self.padding, self.flip, self.batch_size = padding, kind.flip, batch_size
        self.generator = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return math.ceil(len(self.labels) / self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.labels), generator=self.generator)
        for index in order.split(self.batch_size):  # the last, smaller batch is kept
            yield self._batch(index.to(self.labels.device))

    def _batch(self, index: Tensor) -> tuple[Tensor, Tensor]:
        n, side = len(index), self.padded.shape[1] - 2 * self.padding
        top, left = torch.randint(2 * self.padding + 1, (2, n, 1), generator=self.generator)
        mirrored = torch.rand(n, 1, generator=self.generator) < (0.5 if self.flip else 0.0)
        across = torch.arange(side)
        rows = (top + across).to(index.device)
        columns = (left + torch.where(mirrored, across.flip(0), across)).to(index.device)
        pixels = self.padded[index[:, None, None], rows[:, :, None], columns[:, None, :]]
        normalised = (pixels.float() / self.scale - self.mean) / self.std
        return normalised.permute(0, 3, 1, 2), self.labels[index]


def destination(architecture: str, dataset: str, recipe: Recipe, seed: int, out: Path) -> Path:
    """The checkpoint folder of one training."""
    return Path(out) / f"{architecture}.{dataset}_{recipe.name}_seed{seed}"


def train(
    architecture: str,
    dataset: str,
    recipe: Recipe,
    seed: int,
    out: Path,
    model_args: dict | None = None,
    data_dir: str | None = None,
    device: str | torch.device = "cpu",
    report: Callable[[dict], None] = lambda epoch: None,
) -> zoo.Checkpoint:
    """Train one network with one seed and write its checkpoint folder below `out`.

    Args:
        model_args: Arguments of the architecture, e.g. ``{"lambda_init": (0.1, 0.2)}``.
        report: Called after each epoch with its line of the curve.

    Raises:
        UserError: if the checkpoint is there already, or the training diverges.
    """
    model_args = model_args or {}
    kind = data.DATASETS[dataset]
    folder = destination(architecture, dataset, recipe, seed, out)
    zoo.check_writable(folder)
    training = data.load(dataset, "train", data_dir)
    torch.manual_seed(seed)
    model = zoo.create(architecture, num_classes=kind.classes, in_chans=kind.shape[0], **model_args)
    model = model.to(device, memory_format=torch.channels_last)
    loader = Loader(training.images, training.labels, kind, recipe.batch_size, seed, device)
    started = time.perf_counter()
    curve = list(_fit(model, loader, recipe, report))
    seconds = time.perf_counter() - started
    record = _record(recipe, seed, training, model, architecture, model_args) | {
        "curve": curve,
        "seconds": round(seconds, 1),
        "device": str(device),
    }
    return _save(model, folder, kind, model_args, record, data.load(dataset, "test", data_dir), device)


def _fit(model: nn.Module, loader: Loader, recipe: Recipe, report) -> Iterator[dict]:
    optimizer = torch.optim.SGD(
        model.parameters(), lr=recipe.lr, momentum=recipe.momentum, weight_decay=recipe.weight_decay
    )
    # in steps, not epochs, so that half of 11 epochs is half of them
    milestones = [round(share * recipe.epochs * len(loader)) for share in recipe.steps]
    schedule = torch.optim.lr_scheduler.MultiStepLR(optimizer, milestones)
    for epoch in range(1, recipe.epochs + 1):
        started = time.perf_counter()
        lr = schedule.get_last_lr()[0]
        loss, accuracy = _epoch(model, loader, optimizer, schedule)
        line = {
            "epoch": epoch,
            "lr": lr,
            "loss": round(loss, 6),
            "accuracy": round(accuracy, 3),
            "images_per_second": round(len(loader.labels) / (time.perf_counter() - started), 1),
            "lambda": coefficients(model),
        }
        report(line)
        if not math.isfinite(loss):
            raise UserError(f"training diverged: the loss of epoch {epoch} is {loss}; nothing was written")
        yield line


def _epoch(model: nn.Module, loader: Loader, optimizer, schedule) -> tuple[float, float]:
    """One pass over the data; mean loss and accuracy in percent, of the weights as they moved."""
    model.train()
    loss_sum = correct = torch.zeros((), device=loader.labels.device)
    for images, labels in loader:
        logits = model(images)
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        loss_sum = loss_sum + loss.detach() * len(labels)
        correct = correct + (logits.detach().argmax(1) == labels).sum()
    return loss_sum.item() / len(loader.labels), 100 * correct.item() / len(loader.labels)


def coefficients(model: nn.Module) -> dict[str, float]:
    """act(λ) per block; empty for a model without λ, or whose λ depends on the input."""
    try:
        found = model.interpolation_coefficients()
    except (AttributeError, ValueError):
        return {}
    return {name: round(value.item(), 6) for name, value in found.items()}


def _record(recipe: Recipe, seed: int, training: data.Dataset, model, architecture: str, model_args) -> dict:
    interval = model_args.get("lambda_init") or default_lambda_init(architecture)
    return {
        "recipe": dataclasses.asdict(recipe),
        "seed": seed,
        "dataset": training.name,
        "data_fingerprint": training.fingerprint,
        "checkpoint": "last",  # no epoch is chosen: the test set is read once, after training
        "lambda_init": list(interval) if interval else None,
        "parameters": sum(p.numel() for p in model.parameters()),
        "lambda": coefficients(model),
        "versions": {"robust_interp": robust_interp.__version__, "torch": str(torch.__version__)},
    }


def _save(model, folder: Path, kind: data.DatasetType, model_args, record, test: data.Dataset, device):
    full = predictions(model, test, kind, device)
    state = {key: value.clone() for key, value in model.state_dict().items()}
    model.load_state_dict({k: v.half() if v.is_floating_point() else v for k, v in state.items()})
    shipped = predictions(model, test, kind, device)
    half = float((full != shipped).mean()) <= HALF_MAY_CHANGE
    if not half:
        model.load_state_dict(state)
        shipped = full
    record["precision"] = "float16" if half else "float32"
    record["clean_accuracy"] = round(100 * float((shipped == test.labels).mean()), 4)
    record["clean_n"] = len(test)
    return zoo.save(model, folder, _pretrained_cfg(model, folder, kind), model_args, record, half)


@torch.no_grad()
def predictions(model: nn.Module, test: data.Dataset, kind: data.DatasetType, device) -> np.ndarray:
    """Predicted labels (N,) of a model that takes normalised images, in eval mode."""
    mean, std = (torch.tensor(values, device=device).view(-1, 1, 1) for values in (kind.mean, kind.std))
    model.eval()
    found = [
        model((torch.from_numpy(test.pixels(at, at + 500)).to(device) - mean) / std).argmax(1).cpu()
        for at in range(0, len(test), 500)
    ]
    return torch.cat(found).numpy()


def _pretrained_cfg(model, folder: Path, kind: data.DatasetType) -> dict:
    cfg = model.pretrained_cfg
    return {
        "tag": folder.name.partition(".")[2],
        "num_classes": kind.classes,
        "input_size": list(kind.shape),
        "pool_size": [max(1, kind.shape[1] // 4), max(1, kind.shape[2] // 4)],
        "crop_pct": 1.0,
        "interpolation": "bilinear",
        "mean": list(kind.mean),
        "std": list(kind.std),
        "first_conv": cfg["first_conv"],
        "classifier": cfg["classifier"],
    }

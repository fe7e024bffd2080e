"""How fast `train` is: the plain loop a user would write against ours, in one process, on any device.

    python benchmarks/train_throughput.py [--architecture in_resnet20] [--batch 128] [--steps 10]
        [--threads 1] [--device cpu] [--workers 0] [--repeats 3] [--seeds 1] [--precision float32] [--compile]

The plain loop takes torchvision's transforms in a DataLoader and the timm model as it comes, one seed, in
PyTorch's own settings (on CUDA its convolutions are TF32); ours is what `robust-interp train` runs, by the
same recipe, all seeds side by side. Both train on random CIFAR-sized images, whose content does not change
the work, in turn, after ours had two epochs to warm up (on CUDA: to be recorded). Prints images/s of all
seeds together, seconds that an epoch of 50,000 images takes for each seed, and the median ratio. The aims:
1.3 on two CPU cores; 12 on one H100 or H200 with `--device cuda --architecture in_resnet110 --seeds 5
--precision bf16 --steps 50`, which has not been measured yet.
First both are fed the same batches, and the losses of all steps compared: in float64, because at this
learning rate the rounding of float32 alone grows to 1e-3 within ten steps.

Measured on two cores of an AMD EPYC with AVX512-BF16, PyTorch 2.14, in_resnet20, batch 128, `--threads 2
--steps 8 --repeats 5`: float32 521 images/s against 367, ratio 1.40 (1.33 to 1.57); bf16 809 against 393,
ratio 1.94 (1.91 to 2.24).
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace

import numpy as np
import timm
import torch
from PIL import Image
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision import transforms

from robust_interp import data
from robust_interp.training import recipe
from robust_interp.training.compilation import compile_blocks
from robust_interp.training.loader import Loader
from robust_interp.training.side_by_side import TrainerGroup
from robust_interp.training.trainer import Trainer

KIND = data.DATASETS["cifar10"]
EPOCH = 50_000  # images


class PlainImages(torch.utils.data.Dataset):
    """What torchvision.datasets.CIFAR10 does for each image, with the paper's transforms."""

    def __init__(self, images: np.ndarray, labels: np.ndarray) -> None:
        self.images, self.labels = images.transpose(0, 2, 3, 1), labels
        self.transform = transforms.Compose(
            [
                transforms.RandomCrop(32, padding=4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(KIND.mean, KIND.std),
            ]
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return self.transform(Image.fromarray(self.images[index])), int(self.labels[index])


class Plain:
    """Model, optimiser and step as a user would write them."""

    def __init__(self, arguments: argparse.Namespace, rule: recipe.Recipe) -> None:
        torch.manual_seed(0)
        self.device = arguments.device
        self.model = timm.create_model(arguments.architecture, num_classes=10).to(self.device).train()
        self.optimizer = torch.optim.SGD(
            self.model.parameters(), lr=rule.lr, momentum=rule.momentum, weight_decay=rule.weight_decay
        )
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [10**6])

    def step(self, images: torch.Tensor, labels: torch.Tensor) -> float:
        images, labels = images.to(self.device), labels.to(self.device)
        loss = F.cross_entropy(self.model(images), labels)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.schedule.step()
        return loss.item()

    def epoch(self, images: np.ndarray, labels: np.ndarray, batch: int, workers: int) -> None:
        loader = DataLoader(
            PlainImages(images, labels), batch, shuffle=True, num_workers=workers, persistent_workers=False
        )
        for batch_images, batch_labels in loader:
            self.step(batch_images, batch_labels)


def ours(arguments: argparse.Namespace, rule: recipe.Recipe, images, labels, seed: int = 0) -> Trainer:
    torch.manual_seed(seed)
    model = timm.create_model(arguments.architecture, num_classes=10)
    model = model.to(arguments.device, memory_format=torch.channels_last)
    if arguments.compile:
        compile_blocks(model)
    return Trainer(model, Loader(images, labels, rule, KIND.flip, seed, arguments.device), rule)


def largest_difference(arguments: argparse.Namespace, rule: recipe.Recipe, images, labels) -> float:
    """Of the losses, relative, when both take the same batches in float64."""
    rule = replace(rule, precision="float32")
    arguments = argparse.Namespace(**vars(arguments) | {"compile": False})  # the same arithmetic is meant
    plain, trainer = Plain(arguments, rule), ours(arguments, rule, images, labels)
    for model in (plain.model, trainer.model):
        model.double().train()
    trainer.loss_sum = trainer.loss_sum.double()
    differences = []
    for _ in range(len(trainer.loader)):
        batch, targets = trainer.loader.cut(trainer.loader.draw().to(arguments.device))
        batch = batch.double()
        expected = plain.step(batch.contiguous(), targets)
        trainer.loss_sum.zero_()
        trainer.train_step(batch, targets)
        differences.append(abs(trainer.loss_sum.item() / len(targets) - expected) / expected)
    return max(differences)


class Ours:
    """All seeds in training; called, an epoch of each."""

    def __init__(self, arguments: argparse.Namespace, rule: recipe.Recipe, images, labels) -> None:
        trainers = [ours(arguments, rule, images, labels, seed) for seed in range(arguments.seeds)]
        self.seeds, self.lines = len(trainers), TrainerGroup(trainers).epochs(lambda *_: None, lambda: False)

    def __call__(self) -> None:
        for _ in range(self.seeds):
            next(self.lines)


def seconds(function, *arguments) -> float:
    started = time.perf_counter()
    function(*arguments)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--architecture", default="in_resnet20")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=0, help="of the plain loop's DataLoader")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1, help="of ours, side by side")
    parser.add_argument("--precision", default="float32", help="of ours: float32, tf32 or bf16")
    parser.add_argument("--compile", action="store_true", help="ours")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rng, n = np.random.default_rng(0), arguments.steps * arguments.batch
    images = rng.integers(0, 256, (n, *KIND.shape), dtype=np.uint8)
    labels = rng.integers(0, 10, n)
    # no step of the learning rate: every epoch is the same work
    rule = recipe.load("paper", arguments.architecture, "cifar10")
    changes = {"epochs": arguments.repeats + 3, "steps": (), "batch_size": arguments.batch}
    rule = recipe.overridden(rule, changes | {"precision": arguments.precision})
    difference = largest_difference(arguments, rule, images, labels)
    print(f"same batches, {arguments.steps} steps: losses differ by at most {difference:.0e}, relative")
    plain, train_all, ratios = Plain(arguments, rule), Ours(arguments, rule, images, labels), []
    plain.epoch(images[: arguments.batch], labels[: arguments.batch], arguments.batch, 0)  # warm-up
    train_all()
    train_all()
    for _ in range(arguments.repeats):
        slow = seconds(plain.epoch, images, labels, arguments.batch, arguments.workers)
        fast = seconds(train_all) / arguments.seeds
        ratios.append(slow / fast)
        rates = "; ".join(
            f"{name} {n / taken:.0f} images/s, {taken * EPOCH / n:.1f} s/epoch"
            for name, taken in (("plain", slow), ("ours", fast))
        )
        print(f"{rates}; ratio {slow / fast:.2f}")
    print(
        f"median ratio {statistics.median(ratios):.2f}: {arguments.architecture}, batch {arguments.batch}, "
        f"{arguments.device}, {torch.get_num_threads()} threads, {arguments.workers} workers, "
        f"{arguments.seeds} seeds in {arguments.precision}"
    )


if __name__ == "__main__":
    main()

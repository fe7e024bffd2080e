"""How fast `train` is: the plain loop a user would write against ours, in one process, on any device.

    python benchmarks/train_throughput.py [--architecture in_resnet20] [--batch 128] [--steps 10]
        [--threads 1] [--device cpu] [--workers 0] [--repeats 3]

The plain loop takes torchvision's transforms in a DataLoader and the timm model as it comes; ours is what
`robust-interp train` runs, by the same recipe. Both train on random CIFAR-sized images, whose content does
not change the work, in turn. Prints images/s, seconds for an epoch of 50,000 images and the median ratio;
1.3 is the aim on two CPU cores. First both are fed the same batches, and the losses of all steps compared:
in float64, because at this learning rate the rounding of float32 alone grows to 1e-3 within ten steps.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np
import timm
import torch
from PIL import Image
from torch.nn import functional as F
from torch.utils.data import DataLoader
from torchvision import transforms

from robust_interp import data, recipe
from robust_interp.batches import Loader
from robust_interp.fit import Fit

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


def ours(arguments: argparse.Namespace, rule: recipe.Recipe, images, labels) -> Fit:
    torch.manual_seed(0)
    model = timm.create_model(arguments.architecture, num_classes=10)
    model = model.to(arguments.device, memory_format=torch.channels_last)
    return Fit(model, Loader(images, labels, rule, KIND.flip, 0, arguments.device), rule)


def largest_difference(arguments: argparse.Namespace, rule: recipe.Recipe, images, labels) -> float:
    """Of the losses, relative, when both take the same batches in float64."""
    plain, fit = Plain(arguments, rule), ours(arguments, rule, images, labels)
    for model in (plain.model, fit.model):
        model.double().train()
    differences, before = [], 0.0
    for batch, targets in fit.loader:
        batch = batch.double()
        expected = plain.step(batch.contiguous(), targets)
        fit.train_step(batch, targets)
        found = (fit.loss_sum.item() - before) / len(targets)
        before = fit.loss_sum.item()
        differences.append(abs(found - expected) / expected)
    return max(differences)


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
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rng, n = np.random.default_rng(0), arguments.steps * arguments.batch
    images = rng.integers(0, 256, (n, *KIND.shape), dtype=np.uint8)
    labels = rng.integers(0, 10, n)
    # one epoch, and no step of the learning rate: that is the same work
    rule = recipe.load("paper", arguments.architecture, "cifar10")
    rule = recipe.overridden(rule, {"epochs": 1, "steps": (), "batch_size": arguments.batch})
    difference = largest_difference(arguments, rule, images, labels)
    print(f"same batches, {arguments.steps} steps: losses differ by at most {difference:.0e}, relative")
    plain, ratios = Plain(arguments, rule), []
    plain.epoch(images[: arguments.batch], labels[: arguments.batch], arguments.batch, 0)  # warm-up
    for _ in range(arguments.repeats):
        slow = seconds(plain.epoch, images, labels, arguments.batch, arguments.workers)
        fit = ours(arguments, rule, images, labels)
        fast = seconds(lambda fit=fit: list(fit.epochs(lambda status: None, lambda: False)))
        ratios.append(slow / fast)
        rates = "; ".join(
            f"{name} {n / taken:.0f} images/s, {taken * EPOCH / n:.1f} s/epoch"
            for name, taken in (("plain", slow), ("ours", fast))
        )
        print(f"{rates}; ratio {slow / fast:.2f}")
    print(
        f"median ratio {statistics.median(ratios):.2f}: {arguments.architecture}, batch {arguments.batch}, "
        f"{arguments.device}, {torch.get_num_threads()} threads, {arguments.workers} workers"
    )


if __name__ == "__main__":
    main()

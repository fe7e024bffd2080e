"""What the harness costs: `bench` against a bare torchattacks loop over the same model, batches and attacks.

    python benchmarks/bench_overhead.py [--architecture preact_resnet20] [--n 250] [--repeats 3]

Both run in this process, in turn, on random CIFAR-sized images and an untrained network (whose weights do
not change the work), from images in memory to predicted labels. The harness also keys the random start,
checks every result and stores it durably. Prints seconds of each and the median ratio; below 1.05 is the aim.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torchattacks

from robust_interp import data, zoo
from robust_interp.benchmark.benchmark import Benchmark
from robust_interp.benchmark.request import Request
from robust_interp.classifiers.classifier import Classifier
from robust_interp.store import Store

EPS = (1 / 255, 2 / 255, 4 / 255)
BATCH = 250


def bare(classifier: torch.nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    """What a user would write: each attack over each batch, then the predictions."""
    for eps in EPS:
        for attack in (
            torchattacks.FGSM(classifier, eps=eps),
            torchattacks.BIM(classifier, eps=eps, alpha=2 / 255, steps=20),
            torchattacks.PGD(classifier, eps=eps, alpha=2 / 255, steps=20),
        ):
            for batch, target in zip(images.split(BATCH), labels.split(BATCH), strict=True):
                adversarial = attack(batch, target)
                with torch.no_grad():
                    classifier(adversarial).argmax(1)


def harness(classifier: Classifier, dataset: data.Dataset) -> None:
    request = Request(
        modules={"model": classifier}, dataset=dataset, eps=EPS, corruptions="none", batch_size=BATCH
    )
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder)) as store:
        Benchmark(request).run(store)


def seconds(function, *arguments) -> float:
    started = time.perf_counter()
    function(*arguments)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--architecture", default="preact_resnet20")
    parser.add_argument("--n", type=int, default=250)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    kind, rng = data.DATASETS["cifar10"], np.random.default_rng(0)
    images = rng.integers(0, 256, (arguments.n, *kind.shape), dtype=np.uint8)
    dataset = data.from_arrays(images, rng.integers(0, 10, arguments.n), classes=10)
    torch.manual_seed(0)
    classifier = Classifier(zoo.create(arguments.architecture, num_classes=10), kind.mean, kind.std).eval()
    pixels, labels = torch.from_numpy(dataset.pixels(0, arguments.n)), torch.from_numpy(dataset.labels)
    bare(classifier, pixels[:50], labels[:50])  # warm-up
    ratios = []
    for _ in range(arguments.repeats):
        plain, ours = seconds(bare, classifier, pixels, labels), seconds(harness, classifier, dataset)
        ratios.append(ours / plain)
        print(f"bare torchattacks {plain:.2f} s, harness {ours:.2f} s, ratio {ours / plain:.3f}")
    print(f"median ratio {statistics.median(ratios):.3f} on {torch.get_num_threads()} threads")


if __name__ == "__main__":
    main()

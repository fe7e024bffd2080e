"""How fast `bench` is beside a bare torchattacks loop and foolbox, on the same model, images and attacks.

    python benchmarks/bench_speed.py [--model in_resnet20@quick_12epochs_bf16] [--n 100] [--repeats 3]

FGSM, IFGSM and PGD (alpha 2/255, 20 steps) at 1, 2 and 4/255 on CIFAR-10, from images in memory to predicted
labels, all in this process and in turn. Prints the seconds of each round, the median over rounds of the bare
loop's time divided by each one's, and accuracies under PGD. `final bf16` takes part where the CPU has units
for it. In `bench` a model that came as an object is also checked, and every result is stored durably.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import foolbox
import torch
import torchattacks
from torch import Tensor, nn

from robust_interp import data
from robust_interp.attacks import precision
from robust_interp.benchmark.benchmark import Benchmark
from robust_interp.benchmark.request import Request
from robust_interp.classifiers.resolve import ResolveOptions, resolve
from robust_interp.store import Store

EPS = (1 / 255, 2 / 255, 4 / 255)
ALPHA, STEPS, BATCH = 2 / 255, 20, 250
BASE = "torchattacks"

Found = list[float]  # accuracy in percent under PGD at each radius


def with_torchattacks(model: nn.Module, images: Tensor, labels: Tensor) -> Found:
    """What a user would write."""
    return [
        _accuracies(
            model,
            images,
            labels,
            [
                torchattacks.FGSM(model, eps=eps),
                torchattacks.BIM(model, eps=eps, alpha=ALPHA, steps=STEPS),
                torchattacks.PGD(model, eps=eps, alpha=ALPHA, steps=STEPS),
            ],
        )[-1]
        for eps in EPS
    ]


def with_foolbox(model: nn.Module, images: Tensor, labels: Tensor) -> Found:
    """The same attacks by foolbox, whose own judgement is not used."""
    wrapped = foolbox.PyTorchModel(model, bounds=(0, 1))
    made = [
        foolbox.attacks.LinfFastGradientAttack(),
        foolbox.attacks.LinfBasicIterativeAttack(abs_stepsize=ALPHA, steps=STEPS),
        foolbox.attacks.LinfPGD(abs_stepsize=ALPHA, steps=STEPS),
    ]

    def bound(attack: foolbox.Attack, eps: float) -> Callable[[Tensor, Tensor], Tensor]:
        return lambda batch, target: attack.run(wrapped, batch, target, epsilon=eps)

    return [_accuracies(model, images, labels, [bound(attack, eps) for attack in made])[-1] for eps in EPS]


def _accuracies(model: nn.Module, images: Tensor, labels: Tensor, attacks: list[Callable]) -> Found:
    found = []
    for attack in attacks:
        right = 0
        for batch, target in zip(images.split(BATCH), labels.split(BATCH), strict=True):
            adversarial = attack(batch, target)
            with torch.no_grad():
                right += int((model(adversarial).argmax(1) == target).sum())
        found.append(100 * right / len(images))
    return found


def with_bench(model: nn.Module, dataset: data.Dataset, n: int, attack_precision: str) -> Found:
    """The harness, protocol `final`."""
    request = Request(
        modules={"model": model},
        dataset=dataset,
        eps=EPS,
        corruptions="none",
        n=n,
        batch_size=BATCH,
        attack_precision=attack_precision,
        threads=torch.get_num_threads(),
    )
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder)) as store:
        results = Benchmark(request).run(store).results
    return results[results["perturbation"] == "pgd"]["accuracy"].tolist()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="in_resnet20@quick_12epochs_bf16")
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    dataset, n = data.load("cifar10", "test"), arguments.n
    target = resolve((arguments.model,), ResolveOptions(seeds=(0,), ensembles=False), dataset)[0]
    # As a user has it: the layout that a zoo model is loaded in is one of the things that are compared.
    model = target.load("cpu").to(memory_format=torch.contiguous_format).eval().requires_grad_(False)
    images, labels = torch.from_numpy(dataset.pixels(0, n)), torch.from_numpy(dataset.labels[:n]).long()
    contenders: dict[str, Callable[[], Found]] = {
        BASE: lambda: with_torchattacks(model, images, labels),
        "foolbox": lambda: with_foolbox(model, images, labels),
        "bench, final, float32": lambda: with_bench(model, dataset, n, "float32"),
    }
    if (slowdown := precision.slowdown()) < 1:
        contenders["bench, final, bf16"] = lambda: with_bench(model, dataset, n, "bf16")
    print(f"bf16 takes {slowdown:.2f} times as long as float32 for a convolution")
    with_torchattacks(model, images[:8], labels[:8])  # warm-up
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    accuracies: dict[str, Found] = {}
    for _ in range(arguments.repeats):
        for name, work in contenders.items():
            started = time.perf_counter()
            accuracies[name] = work()
            seconds[name].append(time.perf_counter() - started)
        print(", ".join(f"{name} {taken[-1]:.2f} s" for name, taken in seconds.items()), flush=True)
    print(f"n = {n}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for name, taken in seconds.items():
        ratio = statistics.median(base / own for base, own in zip(seconds[BASE], taken, strict=True))
        shown = ", ".join(f"{accuracy:.1f}" for accuracy in accuracies[name])
        print(f"{name}: {ratio:.2f} times as fast as {BASE}; PGD at 1, 2, 4/255: {shown} %")


if __name__ == "__main__":
    main()

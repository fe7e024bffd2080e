"""How fast `bench` is beside a bare torchattacks loop, foolbox and ART, on one model, images and attacks.

    python benchmarks/bench_speed.py [--model in_resnet20@quick_12epochs_bf16] [--n 100] [--repeats 2]
        [--device cuda] [--profile]

FGSM, IFGSM and PGD (alpha 2/255, 20 steps) at 1, 2 and 4/255 on CIFAR-10, from images in memory to predicted
labels, all in this process and in turn. `bench` runs with networks as they are, and compiled; under the
protocols `final` and `worst`, in float32 and, where the device has units for it, in bf16. ART takes part if
installed. Prints the seconds of each, the median over rounds of the bare loop's time divided by each one's,
and accuracies under PGD; for `worst`, those under all attacks. On a CPU the seconds are those that this
process had a core, so that other work beside it matters less. Compiling is done before, and its time told
apart. In `bench` a model that came as an object is also checked, and every result is stored.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import foolbox
import torch
import torchattacks
from torch import Tensor, nn

from robust_interp import data
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


def with_art(model: nn.Module, images: Tensor, labels: Tensor) -> Found:
    """The same attacks by the Adversarial Robustness Toolbox."""
    from art.attacks.evasion import FastGradientMethod, ProjectedGradientDescentPyTorch
    from art.estimators.classification import PyTorchClassifier

    wrapped = PyTorchClassifier(
        model, nn.CrossEntropyLoss(), input_shape=tuple(images.shape[1:]), nb_classes=10, clip_values=(0, 1)
    )

    def made(eps: float) -> list[Callable[[Tensor, Tensor], Tensor]]:
        steps = {"eps": eps, "eps_step": ALPHA, "max_iter": STEPS, "batch_size": BATCH, "verbose": False}
        attacks = [
            FastGradientMethod(wrapped, eps=eps, batch_size=BATCH),
            ProjectedGradientDescentPyTorch(wrapped, num_random_init=0, **steps),
            ProjectedGradientDescentPyTorch(wrapped, num_random_init=1, **steps),
        ]
        return [
            lambda x, y, one=one: torch.from_numpy(one.generate(x.cpu().numpy(), y.cpu().numpy())).to(x)
            for one in attacks
        ]

    return [_accuracies(model, images, labels, made(eps))[-1] for eps in EPS]


def with_bench(
    model: nn.Module,
    dataset: data.Dataset,
    n: int,
    protocol: str,
    precision: str,
    compiled: str,
    attacks: str = "fgsm,ifgsm,pgd",
) -> Found:
    """The harness; under the protocol `worst` the accuracies are those under all attacks of a radius."""
    request = Request(
        modules={"model": model},
        dataset=dataset,
        attacks=attacks,
        eps=EPS,
        corruptions="none",
        n=n,
        batch_size=BATCH,
        protocol=protocol,
        attack_precision=precision,
        compile=compiled,
        threads=torch.get_num_threads(),
    )
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder)) as store:
        report = Benchmark(request).run(store)
    for line in report.warnings:
        if "compiled" in line:
            print(line)
    told = report.results["perturbation"]
    return report.results[told.str.startswith("pgd" if protocol == "final" else "worst(")][
        "accuracy"
    ].tolist()


def profiled(work: Callable[[], Found]) -> str:
    """Where the time of this goes: the operations that take most of it themselves."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
        work()
    return found.key_averages().table(sort_by="self_cpu_time_total", row_limit=12, max_name_column_width=50)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="in_resnet20@quick_12epochs_bf16")
    parser.add_argument("--n", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--profile", action="store_true", help="print where the time of `bench` goes")
    arguments = parser.parse_args()
    dataset, n, device = data.load("cifar10", "test"), arguments.n, arguments.device
    target = resolve((arguments.model,), ResolveOptions(seeds=(0,), ensembles=False), dataset)[0]
    # As a user has it: the layout that a zoo model is loaded in is one of the things that are compared.
    model = target.load(device).to(memory_format=torch.contiguous_format).eval().requires_grad_(False)
    images = torch.from_numpy(dataset.pixels(0, n)).to(device)
    labels = torch.from_numpy(dataset.labels[:n]).long().to(device)
    contenders: dict[str, Callable[[], Found]] = {
        BASE: lambda: with_torchattacks(model, images, labels),
        "foolbox": lambda: with_foolbox(model, images, labels),
    }
    if importlib.util.find_spec("art"):
        contenders["ART"] = lambda: with_art(model, images, labels)
    precisions = ("float32", "bf16")
    for protocol in ("final", "worst"):
        for kind in precisions:
            for compiled, told in (("off", "uncompiled"), ("on", "compiled")):
                contenders[f"bench, {protocol}, {kind}, {told}"] = partial(
                    with_bench, model, dataset, n, protocol, kind, compiled
                )
    with_torchattacks(model, images[:8], labels[:8])  # warm-up
    for kind in precisions:  # of FGSM alone: what is compiled is the same
        started = time.perf_counter()
        with_bench(model, dataset, n, "final", kind, "on", "fgsm")
        print(f"compiling for {kind}: {time.perf_counter() - started:.1f} s, with FGSM", flush=True)
    clock = time.process_time if device == "cpu" else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    accuracies: dict[str, Found] = {}
    for _ in range(arguments.repeats):
        for name, work in contenders.items():
            started = clock()
            accuracies[name] = work()
            seconds[name].append(clock() - started)
            print(f"{name}: {seconds[name][-1]:.2f} s", flush=True)
    print(f"n = {n}, {device}, {torch.get_num_threads()} threads, torch {torch.__version__}")
    for name, taken in seconds.items():
        ratio = statistics.median(base / own for base, own in zip(seconds[BASE], taken, strict=True))
        shown = ", ".join(f"{accuracy:.1f}" for accuracy in accuracies[name])
        print(f"{name}: {ratio:.2f} times as fast as {BASE}; accuracy at 1, 2, 4/255: {shown} %")
    if arguments.profile:
        for name in ("bench, final, float32, uncompiled", "bench, final, float32, compiled"):
            print(f"{name}\n{profiled(contenders[name])}")


if __name__ == "__main__":
    main()

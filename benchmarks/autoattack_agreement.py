"""Whether `--attacks autoattack` gives the robust accuracy of AutoAttack's own loop, image by image.

    python benchmarks/autoattack_agreement.py [--models in_resnet20.digits_digits_seed0 --eps 8/255] [--n 200]
        [--norm L2 --eps 0.25] [--seeds 0,1]

Both attack the first n test images: `evaluate` under the protocol `worst`, and pyautoattack's
`run_standard_evaluation` (version "standard"), once for each of `--seeds`, on the network as timm creates it
behind its normalisation. Prints both accuracies with Wilson's interval, on how many images they disagree, and
the CPU time of AutoAttack's own loop divided by that of `evaluate`. Further seeds are also compared with the
first: AutoAttack may disagree with itself, too.

Measured with in_resnet20, train seed 0 and seed 0 of both, on one thread of an AMD EPYC (busy), PyTorch 2.14,
pyautoattack 0.2.0; no image differs:
- digits, 8/255, n = 200 (199 right when clean): both 97.5 % (94.3 to 98.9), time ratio 1.20
- digits, 32/255, n = 30 (30): both 13.3 % (5.3 to 29.7), 0.90
- CIFAR-10, 1/255, n = 10 (9): both 10.0 % (1.8 to 40.4), 0.91; 84 s of CPU time in all
"""

from __future__ import annotations

import argparse
import tempfile
import time
from fractions import Fraction
from pathlib import Path

import pyautoattack
import timm
import torch
from torch import Tensor, nn

import robust_interp
from robust_interp import data, zoo
from robust_interp.core.normalize import Normalize
from robust_interp.core.statistics import wilson
from robust_interp.results.folders import runs_in

NETWORKS = "in_resnet20.cifar10_quick_12epochs_bf16_seed0,preact_resnet20.cifar10_quick_12epochs_bf16_seed0"


def by_evaluate(name: str, norm: str, eps: str, n: int) -> Tensor:
    """Which images are still right under `autoattack`, (n,) bool."""
    with tempfile.TemporaryDirectory() as folder:
        robust_interp.evaluate(
            name,
            attacks=f"autoattack(norm={norm}, eps={eps})",
            corruptions="none",
            n=n,
            protocol="worst",
            compile="off",
            threads=torch.get_num_threads(),
            out=folder,
        )
        (scores,), _ = runs_in([Path(folder)])
    return torch.from_numpy(next(score.right for score in scores if score.is_attack))


def by_its_own_loop(
    model: nn.Module, norm: str, eps: str, images: Tensor, labels: Tensor, seed: int
) -> Tensor:
    """Which images are still right under AutoAttack as its package runs it, (n,) bool."""
    radius = float(Fraction(eps))
    attack = pyautoattack.AutoAttack(
        model, norm=norm, eps=radius, version="standard", seed=seed, device="cpu"
    )
    _, predicted = attack.run_standard_evaluation(images, labels)
    return predicted == labels


def line(what: str, right: Tensor, seconds: float) -> str:
    n, count = len(right), int(right.sum())
    low, high = wilson(count, n)
    return (
        f"  {what}: {100 * count / n:.1f} % ({low:.1f} to {high:.1f}; n = {n}), {seconds:.0f} s of CPU time"
    )


def disagreements(one: Tensor, other: Tensor) -> str:
    return f"{int((one & ~other).sum())} right here alone, {int((other & ~one).sum())} right there alone"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=NETWORKS, help="bundled checkpoints by their full names")
    parser.add_argument("--norm", default="Linf", choices=("Linf", "L2"))
    parser.add_argument("--eps", default="1/255", help="in [0, 1] pixels")
    parser.add_argument("--n", type=int, default=200)
    parser.add_argument("--seeds", default="0", help="seeds of AutoAttack's own loop")
    arguments = parser.parse_args()
    norm, eps, n = arguments.norm, arguments.eps, arguments.n

    for name in arguments.models.split(","):
        test = data.load(zoo.implied_dataset([name]), "test")
        images, labels = torch.from_numpy(test.pixels(0, n)), torch.from_numpy(test.labels[:n]).long()
        network = timm.create_model(name, pretrained=True)
        cfg = network.pretrained_cfg
        model = nn.Sequential(Normalize(cfg["mean"], cfg["std"]), network).eval()
        with torch.no_grad():
            clean = int((model(images).argmax(1) == labels).sum())
        print(f"{name}, {norm} {eps}: {clean} of {n} images are right when clean", flush=True)

        started = time.process_time()
        ours = by_evaluate(name, norm, eps, n)
        taken = time.process_time() - started
        print(line("evaluate", ours, taken), flush=True)
        first = None
        for seed in map(int, arguments.seeds.split(",")):
            started = time.process_time()
            own = by_its_own_loop(model, norm, eps, images, labels, seed)
            own_taken = time.process_time() - started
            print(line(f"its own loop, seed {seed}", own, own_taken))
            print(f"    time divided by that of evaluate: {own_taken / taken:.2f}")
            print(f"    against evaluate: {disagreements(own, ours)}", flush=True)
            if first is not None:
                print(f"    against its first seed: {disagreements(own, first)}", flush=True)
            first = own if first is None else first


if __name__ == "__main__":
    main()

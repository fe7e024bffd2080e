"""What channels last, folded BatchNorm and torch.compile bring to the gradient that an attack's step takes.

    python benchmarks/bench_step.py [--model in_resnet20@quick_12epochs_bf16] [--n 64] [--profile]

CIFAR-10, float32, on the CPU, in one process and in turn; each form builds on the one before it. Prints, for
each round, the median over four passes of the plain model's time divided by each form's, in seconds that this
process had a core.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time

import torch

from robust_interp import data
from robust_interp.classifiers.classifier import with_gradient
from robust_interp.classifiers.engine import Pass, compile_model, with_folded_norms
from robust_interp.classifiers.isolation import measurement_mode
from robust_interp.classifiers.resolve import ResolveOptions, resolve

PASSES = 4


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="in_resnet20@quick_12epochs_bf16")
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--profile", action="store_true", help="print where the time goes")
    arguments = parser.parse_args()
    dataset = data.load("cifar10", "test")
    images = torch.from_numpy(dataset.pixels(0, arguments.n))
    target = resolve((arguments.model,), ResolveOptions(seeds=(0,), ensembles=False), dataset)[0]
    last = target.load("cpu")
    plain = copy.deepcopy(last).to(memory_format=torch.contiguous_format).eval().requires_grad_(False)
    with measurement_mode(last):
        folded = with_folded_norms(last, images[:16])
        fast, took = compile_model(folded, images, [Pass(gradient=True)])
        print(f"compiling took {took.seconds:.0f} s")
        forms = {"plain": plain, "channels last": last, "and folded": folded, "and compiled": fast}
        for _ in range(arguments.rounds):
            seconds: dict[str, list[float]] = {name: [] for name in forms}
            for _ in range(PASSES):
                for name, model in forms.items():
                    started = time.process_time()
                    with_gradient(model, images)
                    seconds[name].append(time.process_time() - started)
            for name, own in seconds.items():
                ratio = statistics.median(a / b for a, b in zip(seconds["plain"], own, strict=True))
                print(f"{name}: {ratio:.2f} ({statistics.median(own):.3f} s)")
        for name in ("and folded", "and compiled") if arguments.profile else ():
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as found:
                with_gradient(forms[name], images)
            print(f"{name}\n{found.key_averages().table(sort_by='self_cpu_time_total', row_limit=8)}")


if __name__ == "__main__":
    main()

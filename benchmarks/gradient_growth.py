"""How much the gradient grows from block to block towards the input, in networks with initial weights.

    python benchmarks/gradient_growth.py [--models in_resnet110,preact_resnet110] [--seeds 3]

One backward pass of the cross-entropy over the first 128 training images of CIFAR-10. For each stage, prints
the root mean square of the gradient at the input of its second block and at its output, and the factor per
block between the two (geometric mean). All these blocks have an identity as shortcut.

The factor that one expects of wide blocks with He initialisation, by calculation: after BN and ReLU a channel
has the second moment 1/2 and the variance (1 - 1/π)/2, so a convolution with weights of variance 2/fan gives
v = 1 - 1/π. The first block of a stage has no λ, and after it the variance V of x is about 2 v. With
x' = k x + f(x), k = 1 - λ, each further block turns V into k² V + v, which tends to v / (1 - k²) for λ > 0
and grows without bound for λ = 0. Backward, convolution and ReLU together keep the mean square, and BN
divides it by the variance of its input: by V at the front of f, and by v inside. So a block multiplies the
mean square of the gradient by k² + 1 / (v V). The BN behind a stage divides it by V, too. Numbers:
docs/mechanism.md.
"""

from __future__ import annotations

import argparse
import math

import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from robust_interp import data
from robust_interp.core.normalize import Normalize
from robust_interp.models.network import InterpolationNet

BLOCKS = 18  # of a stage at depth 110; the first has no λ
STAGES = 3


def expected(damping: float) -> tuple[float, float]:
    """The factor per block of the root mean square (geometric mean), and V after a stage, for one λ."""
    keep, v = 1 - damping, 1 - 1 / math.pi
    variance, product = 2 * v, 1.0
    for _ in range(BLOCKS - 1):
        product *= keep**2 + 1 / (v * variance)
        variance = keep**2 * variance + v
    return product ** (1 / (2 * (BLOCKS - 1))), variance


def tell_expected(damping: float) -> None:
    """Print what is expected for one λ, and relative to λ = 0."""
    (factor, variance), (plain, undamped) = expected(damping), expected(0.0)
    by_blocks = (factor / plain) ** (STAGES * (BLOCKS - 1))
    by_norms = (undamped / variance) ** (STAGES / 2)
    print(
        f"expected for λ = {damping}: {factor:.3f} a block; relative to λ = 0, {by_blocks:.3g} by the blocks"
        f" and {by_norms:.3g} by the BNs behind the stages, {by_blocks * by_norms:.3g} in all"
    )


def gradients(
    model: InterpolationNet, images: Tensor, labels: Tensor
) -> dict[nn.Module, tuple[float, float]]:
    """Root mean square of the gradient at each block's (input, output)."""
    found = {}

    def note(block: nn.Module, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...]) -> None:
        at_input, at_output = (grad.square().mean().sqrt().item() for grad in (inputs[0], outputs[0]))
        found[block] = at_input, at_output

    for _, block in model.named_blocks():
        block.register_full_backward_hook(note)
    cross_entropy(model(images), labels).backward()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="in_resnet110,preact_resnet110")
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    train = data.load("cifar10", "train")
    kind = data.DATASETS["cifar10"]
    images = Normalize(kind.mean, kind.std)(torch.from_numpy(train.images[:128]).float() / 255)
    labels = torch.from_numpy(train.labels[:128]).long()

    for damping in (0.0, 0.05, 0.15, 0.2, 0.225, 0.25, 0.275, 0.35):
        tell_expected(damping)
    for name in arguments.models.split(","):
        for seed in range(arguments.seeds):
            torch.manual_seed(seed)
            model = timm.create_model(name).train()
            found = gradients(model, images, labels)
            for number, stage in enumerate(model.stages, 1):
                first, last = found[stage[1]][0], found[stage[-1]][1]
                factor = (first / last) ** (1 / (len(stage) - 1))
                print(
                    f"{name}, seed {seed}, stage {number}: {last:.3g} at the output, {first:.3g} at block 2, "
                    f"{factor:.3f} a block",
                    flush=True,
                )


if __name__ == "__main__":
    main()

"""How much the gradient grows from block to block towards the input, in networks with initial weights.

    python benchmarks/gradient_growth.py [--models in_resnet110,preact_resnet110] [--seeds 3]

One backward pass of the cross-entropy over the first 128 training images of CIFAR-10. For each stage, prints
the root mean square of the gradient at the input of its second block and at its output, and the factor per
block between the two (geometric mean). All these blocks have an identity as shortcut.

The factor that one expects of wide damped blocks with He initialisation, by calculation: after BN and ReLU a
channel has the second moment 1/2 and the variance (1 - 1/π)/2, so a convolution with weights of variance
2/fan gives v = 1 - 1/π. With x' = k x + f(x), k = 1 - λ, the variance of x tends to v / (1 - k²). Backward,
convolution and ReLU together keep the mean square, and BN divides it by the variance of its input: by v
inside f, and by v / (1 - k²) at the front. So a block multiplies the mean square of the gradient by
k² + (1 - k²) / v². Without damping, the variance of x is about j v before block j of a stage, and the factor
is 1 + 1 / (j v²). Numbers: docs/findings.md.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence

import timm
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from robust_interp import data
from robust_interp.core.normalize import Normalize
from robust_interp.models.network import InterpolationNet


def expected(damping: float) -> float:
    """The factor per block of the root mean square, for a constant λ above 0."""
    keep, v = 1 - damping, 1 - 1 / math.pi
    return math.sqrt(keep**2 + (1 - keep**2) / v**2)


def expected_without_damping(blocks: Sequence[int]) -> float:
    """The geometric mean of the factors of these blocks of a stage, from 1, for λ = 0."""
    v = 1 - 1 / math.pi
    return math.prod(1 + 1 / (j * v**2) for j in blocks) ** (1 / (2 * len(blocks)))


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

    for damping in (0.2, 0.225, 0.25):
        print(f"expected for λ = {damping}: {expected(damping):.3f} a block")
    print(f"expected without damping: {expected_without_damping(range(2, 19)):.3f} a block, blocks 2 to 18")
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

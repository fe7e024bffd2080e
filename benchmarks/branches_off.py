"""What the branches f(x) of a bundled CIFAR-10 network do: their size, and the accuracy without them.

    python benchmarks/branches_off.py [--models in_resnet20,preact_resnet20] [--off 1:2-18] [--pgd 200]

By default, the models are the four of depth 110 in the repository's model_zoo.

For each block, prints the standard deviation of x, and that of f(x) divided by that of the block's output,
over the first 50 test images. Then sets f(x) = 0 in the blocks of `--off` (stage:first-last, from 1; one item
at a time) and prints the accuracy on the first n clean test images, after that of the whole network. With
`--pgd M`, prints the accuracy on the first M images under PGD of torchattacks, too: radius and step 2/255, 20
steps. Numbers: docs/mechanism.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import timm
import torch
import torchattacks
from torch import Tensor, nn

from robust_interp import data
from robust_interp.core.normalize import Normalize
from robust_interp.models.network import Block, InterpolationNet

RECIPES = ("quick_bf16", "quick", "quick_warmup_epochs_1_bf16")
DEPTH_110 = ",".join([*(f"in_resnet110.cifar10_{recipe}_seed0" for recipe in RECIPES), "preact_resnet110"])

Variant = tuple[int, int, int]  # stage, first and last block, from 1


def variant(text: str) -> Variant:
    stage, blocks = text.split(":")
    first, last = blocks.split("-")
    return int(stage), int(first), int(last)


def zero(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return torch.zeros_like(output)


@contextmanager
def forward_hooks(modules: Mapping[nn.Module, Callable[..., Tensor | None]]) -> Iterator[None]:
    """Call each function with (module, inputs, output) after its module; what it returns is the output."""
    hooks = [module.register_forward_hook(function) for module, function in modules.items()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def share(name: str, block: Block, inputs: tuple[Tensor, ...], output: Tensor) -> None:
    (x,) = inputs
    print(
        f"  {name}: x {x.std().item():.3g}, f(x) / output {(block.branch(x).std() / output.std()).item():.3g}"
    )


def of_pixels(network: InterpolationNet) -> nn.Module:
    """The network behind its normalisation: it takes pixels in [0, 1]."""
    cfg = network.pretrained_cfg
    return nn.Sequential(Normalize(cfg["mean"], cfg["std"]), network).eval()


@torch.enable_grad()
def pgd(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    torch.manual_seed(0)
    attack = torchattacks.PGD(model, eps=2 / 255, alpha=2 / 255, steps=20)
    batches = zip(images.split(100), labels.split(100), strict=True)
    return torch.cat([attack(*batch) for batch in batches])


def print_accuracy(what: str, model: nn.Module, images: Tensor, labels: Tensor, attacked: int) -> None:
    inputs = {"clean": images}
    if attacked:
        inputs["PGD 2/255"] = pgd(model, images[:attacked], labels[:attacked])
    for kind, given in inputs.items():
        right = (model(given).argmax(1) == labels[: len(given)]).float().mean().item()
        print(f"  {what}: {kind} {100 * right:.1f} % (n = {len(given)})", flush=True)


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=DEPTH_110)
    parser.add_argument("--off", default="1:2-18,1:5-18,2:2-18,3:2-18")
    parser.add_argument("--n", type=int, default=500, help="clean test images")
    parser.add_argument("--pgd", type=int, default=0, help="attacked test images, at most n")
    arguments = parser.parse_args()
    test = data.load("cifar10", "test")
    images, labels = (torch.from_numpy(array[: arguments.n]) for array in (test.images, test.labels))
    images = images.float() / 255

    for name in arguments.models.split(","):
        print(name)
        network = timm.create_model(name, pretrained=True)
        model = of_pixels(network)
        shares = {
            block: partial(share, f"{s}:{b}")
            for s, stage in enumerate(network.stages, 1)
            for b, block in enumerate(stage, 1)
        }
        with forward_hooks(shares):
            model(images[:50])
        print_accuracy("whole network", model, images, labels, arguments.pgd)
        for text in arguments.off.split(","):
            stage, first, last = variant(text)
            off = list(network.stages[stage - 1])[first - 1 : last]
            with forward_hooks({block.branch: zero for block in off}):
                print_accuracy(f"f(x) = 0 in {text}", model, images, labels, arguments.pgd)


if __name__ == "__main__":
    main()

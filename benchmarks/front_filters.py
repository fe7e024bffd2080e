"""What the first layers of networks do with high frequencies: their filters, and their response to waves.

    python benchmarks/front_filters.py [--models in_resnet110,preact_resnet110] [--blocks 4] [--n 200]
        [--zoo FOLDER] [--plugin FILE.py]

The models are names of CIFAR-10 checkpoints, or globs; by default In-ResNet and ResNet of depth 110. For the
stem and for both convolutions of each of the first blocks, prints the Frobenius norm of the weights, and the
share of their squares that is in the mean of each 3x3 filter: 1 for a box blur, 0 for an edge, 1/9 = 0.11 on
average for random weights.

Then adds waves of 2/255 root mean square to the first n clean test images, and prints how much the output of
the last of these blocks changes: the root mean square of the change, each channel in units of its own
standard deviation over the clean images. The waves are white noise in one band of spatial frequencies: the
largest of the horizontal and the vertical one, in cycles a pixel (a pixel grid has up to 0.5).
Numbers: docs/mechanism.md.
"""

from __future__ import annotations

import argparse
from itertools import pairwise

import torch
from torch import Tensor, nn

from robust_interp import data, plugins, zoo
from robust_interp.core.normalize import Normalize
from robust_interp.models.network import InterpolationNet

EDGES = (0.0, 0.125, 0.25, 0.375, 0.501)  # cycles a pixel
SIZE = 2 / 255  # of the waves, in [0, 1] pixels


def mean_share(weight: Tensor) -> float:
    """The share of the squares of (O, I, h, w) filters that is in the mean of each."""
    means = weight.mean((2, 3), keepdim=True).expand_as(weight)
    return (means.square().sum() / weight.square().sum()).item()


def waves(like: Tensor, low: float, high: float) -> Tensor:
    """White noise of the shape (N, C, H, W) in the band [low, high), each image of the size SIZE."""
    noise = torch.randn(like.shape, generator=torch.Generator().manual_seed(0))
    vertical = torch.fft.fftfreq(like.shape[-2]).abs()[:, None]
    horizontal = torch.fft.fftfreq(like.shape[-1]).abs()[None, :]
    frequency = torch.maximum(vertical, horizontal)
    inside = (frequency >= low) & (frequency < high)
    wave = torch.fft.ifft2(torch.fft.fft2(noise) * inside).real
    return SIZE * wave / wave.square().mean((1, 2, 3), keepdim=True).sqrt()


def print_filters(model: InterpolationNet, blocks: int) -> None:
    branches = {f"block {i}": model.stages[0][i - 1].branch for i in range(1, blocks + 1)}
    for name, module in {"stem": model.stem, **branches}.items():
        convs = [layer.weight for layer in module.modules() if isinstance(layer, nn.Conv2d)]
        facts = (f"norm {w.norm().item():.3g}, mean's share {mean_share(w):.2f}" for w in convs)
        print(f"  {name}: {'; '.join(facts)}")


def print_response(model: InterpolationNet, cfg: dict, blocks: int, images: Tensor) -> None:
    front = nn.Sequential(Normalize(cfg["mean"], cfg["std"]), model.stem, model.stages[0][:blocks])
    clean = front(images)
    unit = clean.std((0, 2, 3), keepdim=True)
    for low, high in pairwise(EDGES):
        change = (front(images + waves(images, low, high)) - clean) / unit
        print(f"  {low:.3f} to {high:.3f} cycles a pixel: {change.square().mean().sqrt().item():.3f}")


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default="in_resnet110,preact_resnet110")
    parser.add_argument("--blocks", type=int, default=4, help="blocks of the first stage")
    parser.add_argument("--n", type=int, default=200, help="clean test images")
    parser.add_argument("--zoo", help="additional folder of checkpoints")
    parser.add_argument("--plugin", action="append", default=[], metavar="FILE.py")
    arguments = parser.parse_args()
    for file in arguments.plugin:
        plugins.load(file)
    images = torch.from_numpy(data.load("cifar10", "test").images[: arguments.n]).float() / 255
    candidates = zoo.checkpoints(arguments.zoo, "cifar10")
    for checkpoint in zoo.select(arguments.models.split(","), candidates):
        print(checkpoint.name)
        model = checkpoint.load()
        print_filters(model, arguments.blocks)
        print_response(model, checkpoint.config["pretrained_cfg"], arguments.blocks, images)


if __name__ == "__main__":
    main()

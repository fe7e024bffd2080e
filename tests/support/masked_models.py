"""Models that look robust to gradient attacks and are not, made of an honest one. All take [0, 1] pixels."""

from __future__ import annotations

import torch
from torch import nn


class Quantised(nn.Module):
    """An input layer that rounds pixels: its derivative is zero everywhere."""

    def __init__(self, net: nn.Module, levels: int = 32):
        super().__init__()
        self.net, self.levels = net, levels

    def forward(self, images):
        return self.net(torch.round(images * self.levels) / self.levels)


class SignSaturated(nn.Module):
    """An input layer that squeezes pixels to black or white, so steeply that float32 knows no slope."""

    def __init__(self, net: nn.Module, steepness: float = 1e4, threshold: float = 0.47):
        super().__init__()
        self.net, self.steepness, self.threshold = net, steepness, threshold

    def forward(self, images):
        return self.net((torch.tanh(self.steepness * (images - self.threshold)) + 1) / 2)


class HugeLogits(nn.Module):
    """The same predictions with logits so large that the softmax rounds to 0 and 1."""

    def __init__(self, net: nn.Module, factor: float):
        super().__init__()
        self.net, self.factor = net, factor

    def forward(self, images):
        return self.factor * self.net(images)


class Random(nn.Module):
    """Noise on the input, drawn anew at every pass."""

    def __init__(self, net: nn.Module, sigma: float = 0.1):
        super().__init__()
        self.net, self.sigma = net, sigma

    def forward(self, images):
        return self.net(images + self.sigma * torch.randn_like(images))


class Blocked(nn.Module):
    """No gradient reaches the input at all."""

    def __init__(self, net: nn.Module):
        super().__init__()
        self.net = net

    def forward(self, images):
        return self.net(images.detach())


def trained_on_digits(width: int, seed: int) -> nn.Module:
    """An honest network with one hidden layer, trained in a moment: about 96 % of the digits test set."""
    from robust_interp import data

    digits = data.load("digits", "train")
    images, labels = torch.from_numpy(digits.pixels(0, len(digits))), torch.from_numpy(digits.labels)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
    for _ in range(150):
        gradients = torch.autograd.grad(
            nn.functional.cross_entropy(net(images), labels), tuple(net.parameters())
        )
        with torch.no_grad():
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter -= gradient
    return net.eval().requires_grad_(False)

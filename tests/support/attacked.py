"""Small networks, and attacks on them as the benchmark runs them."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from robust_interp import attacks
from robust_interp.attacks import AttackRunner
from robust_interp.classifiers.classifier import Classifier

EPS = 16 / 255
AGREEMENT = 0.999  # share of samples that must get the same predicted label


def perturbation(spec, eps=EPS, seed=0):
    (found,) = attacks.parse_attacks(spec, [eps], {}, seed)
    return found


def attack(classifier, spec, images, labels, ids=None, **kwargs):
    bound = AttackRunner(perturbation(spec, **kwargs), classifier)
    return bound(images, labels, range(len(images)) if ids is None else ids)


@torch.no_grad()
def predict(classifier, images):
    return classifier(images).argmax(1)


def same_share(first, second):
    return (first == second).float().mean().item()


class Tiny(nn.Module):
    """conv, BN, dropout, linear; its BN statistics are those of a trained net: not mean 0, variance 1."""

    def __init__(self, channels=3, classes=5):
        super().__init__()
        self.conv = nn.Conv2d(channels, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.dropout = nn.Dropout(0.5)
        self.head = nn.Linear(6, classes)
        nn.init.uniform_(self.norm.running_mean, -0.5, 0.5)
        nn.init.uniform_(self.norm.running_var, 0.5, 2)

    def forward(self, images):
        return self.head(self.dropout(F.relu(self.norm(self.conv(images))).mean((2, 3)))) * 10


def tiny(seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Classifier(Tiny(), name="tiny").eval()


def tiny_batch(n, seed=0):
    rng = np.random.default_rng(seed)
    images = torch.from_numpy(rng.random((n, 3, 6, 6), dtype=np.float32))
    return images, torch.from_numpy(rng.integers(0, 5, n))


class Through(nn.Module):
    """The mean pixel of two halves as two logits; the gradient that comes back is changed by `change`."""

    def __init__(self, change):
        super().__init__()
        self.change = change

    def forward(self, images):
        if images.requires_grad:
            images = images.view_as(images)
            images.register_hook(lambda gradient: self.change(gradient.clone(), images.detach()))
        halves = images.flatten(1).chunk(2, dim=1)
        return torch.stack([half.mean(1) for half in halves], dim=1)


class FirstPixel(nn.Module):
    """Says 1 where the first pixel is above a half."""

    def forward(self, images):
        pixel = images.flatten(1)[:, 0] - 0.5
        return torch.stack([-pixel, pixel], dim=1)

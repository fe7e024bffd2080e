"""A dataset of one-pixel images and a network whose numbers on it are worked out by hand."""

import numpy as np
import torch
from torch import nn

import robust_interp

# One-pixel images of two classes, class 1 above one half; the nearest are 0.05 from it, the next 0.15.
PIXELS = (0.05, 0.95, 0.15, 0.85, 0.25, 0.75, 0.35, 0.65, 0.45, 0.55)
IMAGES = np.array(PIXELS, dtype=np.float32).reshape(-1, 1, 1, 1)
LABELS = (IMAGES.ravel() > 0.5).astype(np.int64)
QUICK = {"attacks": "fgsm", "eps": (0.1,), "corruptions": "none"}


class Net(nn.Module):
    """Class 1 where `above` of the pixel is positive: by default, where the pixel is above one half."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(4.0))

    def above(self, pixels):
        return pixels - 0.5

    def forward(self, images):
        signed = self.scale * self.above(images.flatten(1))
        return torch.cat([-signed, signed], dim=1)


def evaluate(models, dataset=(IMAGES, LABELS), **options):
    return robust_interp.evaluate(models, dataset, **QUICK | options)


def numbers(table):
    """The accuracies of each model, in the order of the table."""
    return {name: tuple(lines["accuracy"]) for name, lines in table.groupby("model", sort=False)}


def measured(table):
    """All that a table says, without what differs from run to run or by name."""
    return table.drop(columns=["seconds", "model", "weights_sha256"])

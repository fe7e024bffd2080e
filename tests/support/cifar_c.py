"""The names of CIFAR-C, and images to corrupt."""

import numpy as np

from robust_interp import data

COMMON15 = [
    "gaussian_noise",
    "shot_noise",
    "impulse_noise",
    "defocus_blur",
    "glass_blur",
    "motion_blur",
    "zoom_blur",
    "snow",
    "frost",
    "fog",
    "brightness",
    "contrast",
    "elastic_transform",
    "pixelate",
    "jpeg_compression",
]
EXTRA4 = ["speckle_noise", "gaussian_blur", "spatter", "saturate"]
ALL19 = COMMON15 + EXTRA4
DETERMINISTIC = [
    "gaussian_blur",
    "defocus_blur",
    "zoom_blur",
    "brightness",
    "contrast",
    "saturate",
    "pixelate",
    "jpeg_compression",
]
SEVERITIES = (1, 2, 3, 4, 5)
COLOUR_ONLY = {"frost", "saturate", "spatter"}
FROST_COLOURS = [(250, 250, 250), (200, 200, 200), (150, 150, 150), (100, 100, 100), (50, 50, 50)]


def some_images(n=4, shape=(3, 32, 32), seed=0):
    return np.random.default_rng(seed).integers(0, 256, (n, *shape), dtype=np.uint8)


def all_of(value, n=1, shape=(3, 32, 32)):
    return np.full((n, *shape), value, np.uint8)


def fake_cifar10(n=20):
    return data.from_arrays(some_images(n), np.arange(n) * 7 % 10, 10, name="cifar10")

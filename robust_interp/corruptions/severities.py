"""Constants of the five severities of each corruption in CIFAR-C, Tiny-ImageNet-C and ImageNet-C.

The three benchmarks corrupt images of 32, 64 and 224 pixels by the same procedures with different constants.
For images of other sizes, the constants of the nearest size are used.

Source: the public generators of Hendrycks & Dietterich, ICLR 2019.
"""

from __future__ import annotations

from typing import Any

CIFAR_C, TINY_IMAGENET_C, IMAGENET_C = "CIFAR-C", "Tiny-ImageNet-C", "ImageNet-C"

# Largest shorter side, in pixels, for which each is used: the geometric means of 32 and 64, and 64 and 224.
UP_TO = {CIFAR_C: 45, TINY_IMAGENET_C: 119}


def constants_of(shape: tuple[int, ...]) -> str:
    """Return the name of the benchmark whose constants are used for images of a shape (..., H, W)."""
    side = min(shape[-2:])
    return next((name for name, largest in UP_TO.items() if side <= largest), IMAGENET_C)


def level(corruption: str, severity: int, shape: tuple[int, ...]) -> Any:
    """Return the constants of a severity, 1 to 5, for images of a shape (..., H, W).

    This is a number, or a tuple whose parts are named in the function of the corruption.
    """
    return LEVELS[corruption][constants_of(shape)][severity - 1]


WATER, MUD = "water", "mud"

LEVELS: dict[str, dict[str, tuple]] = {
    "gaussian_noise": {
        CIFAR_C: (0.04, 0.06, 0.08, 0.09, 0.10),
        TINY_IMAGENET_C: (0.04, 0.08, 0.12, 0.15, 0.18),
        IMAGENET_C: (0.08, 0.12, 0.18, 0.26, 0.38),
    },
    "shot_noise": {
        CIFAR_C: (500, 250, 100, 75, 50),
        TINY_IMAGENET_C: (250, 100, 50, 30, 15),
        IMAGENET_C: (60, 25, 12, 5, 3),
    },
    "impulse_noise": {
        CIFAR_C: (0.01, 0.02, 0.03, 0.05, 0.07),
        TINY_IMAGENET_C: (0.01, 0.02, 0.05, 0.08, 0.14),
        IMAGENET_C: (0.03, 0.06, 0.09, 0.17, 0.27),
    },
    "speckle_noise": {
        CIFAR_C: (0.06, 0.1, 0.12, 0.16, 0.2),
        TINY_IMAGENET_C: (0.15, 0.2, 0.25, 0.3, 0.35),
        IMAGENET_C: (0.15, 0.2, 0.35, 0.45, 0.6),
    },
    "gaussian_blur": {
        CIFAR_C: (0.4, 0.6, 0.7, 0.8, 1),
        TINY_IMAGENET_C: (0.5, 0.75, 1, 1.25, 1.5),
        IMAGENET_C: (1, 2, 3, 4, 6),
    },
    "defocus_blur": {
        CIFAR_C: ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
        TINY_IMAGENET_C: ((0.5, 0.6), (1, 0.1), (1.5, 0.1), (2.5, 0.01), (3, 0.1)),
        IMAGENET_C: ((3, 0.1), (4, 0.5), (6, 0.5), (8, 0.5), (10, 0.5)),
    },
    "glass_blur": {
        CIFAR_C: ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2)),
        TINY_IMAGENET_C: ((0.1, 1, 1), (0.5, 1, 1), (0.6, 1, 2), (0.7, 2, 1), (0.9, 2, 2)),
        IMAGENET_C: ((0.7, 1, 2), (0.9, 2, 1), (1, 2, 3), (1.1, 3, 2), (1.5, 4, 2)),
    },
    "motion_blur": {
        CIFAR_C: ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5)),
        TINY_IMAGENET_C: ((10, 1), (10, 1.5), (10, 2), (10, 2.5), (12, 3)),
        IMAGENET_C: ((10, 3), (15, 5), (15, 8), (15, 12), (20, 15)),
    },
    "zoom_blur": {
        CIFAR_C: ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        TINY_IMAGENET_C: ((1.06, 0.01), (1.11, 0.01), (1.16, 0.01), (1.21, 0.01), (1.26, 0.01)),
        IMAGENET_C: ((1.11, 0.01), (1.16, 0.01), (1.21, 0.02), (1.26, 0.02), (1.31, 0.03)),
    },
    "snow": {
        CIFAR_C: (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.95),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.8),
        ),
        TINY_IMAGENET_C: (
            (0.1, 0.2, 1, 0.6, 8, 3, 0.8),
            (0.1, 0.2, 1, 0.5, 10, 4, 0.8),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.7),
            (0.25, 0.3, 2.25, 0.6, 12, 6, 0.65),
            (0.3, 0.3, 1.25, 0.65, 14, 12, 0.6),
        ),
        IMAGENET_C: (
            (0.1, 0.3, 3, 0.5, 10, 4, 0.8),
            (0.2, 0.3, 2, 0.5, 12, 4, 0.7),
            (0.55, 0.3, 4, 0.9, 12, 8, 0.7),
            (0.55, 0.3, 4.5, 0.85, 12, 8, 0.65),
            (0.55, 0.3, 2.5, 0.85, 12, 12, 0.55),
        ),
    },
    "frost": {
        CIFAR_C: ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45)),
        TINY_IMAGENET_C: ((1, 0.3), (0.9, 0.4), (0.8, 0.45), (0.75, 0.5), (0.7, 0.55)),
        IMAGENET_C: ((1, 0.4), (0.8, 0.6), (0.7, 0.7), (0.65, 0.7), (0.6, 0.75)),
    },
    "fog": {
        CIFAR_C: ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75)),
        TINY_IMAGENET_C: ((0.4, 3), (0.7, 3), (1, 2.5), (1.5, 2), (2, 1.75)),
        IMAGENET_C: ((1.5, 2), (2, 2), (2.5, 1.7), (2.5, 1.5), (3, 1.4)),
    },
    "brightness": {
        CIFAR_C: (0.05, 0.1, 0.15, 0.2, 0.3),
        TINY_IMAGENET_C: (0.1, 0.2, 0.3, 0.4, 0.5),
        IMAGENET_C: (0.1, 0.2, 0.3, 0.4, 0.5),
    },
    "contrast": {
        CIFAR_C: (0.75, 0.5, 0.4, 0.3, 0.15),
        TINY_IMAGENET_C: (0.4, 0.3, 0.2, 0.1, 0.05),
        IMAGENET_C: (0.4, 0.3, 0.2, 0.1, 0.05),
    },
    "saturate": {
        CIFAR_C: ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2)),
        TINY_IMAGENET_C: ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (30, 0.2)),
        IMAGENET_C: ((0.3, 0), (0.1, 0), (2, 0), (5, 0.1), (20, 0.2)),
    },
    "elastic_transform": {  # in shares of the image's shorter side
        CIFAR_C: ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
        TINY_IMAGENET_C: (
            (0, 0, 0.08),
            (0.05, 0.3, 0.06),
            (0.1, 0.08, 0.06),
            (0.1, 0.03, 0.03),
            (0.16, 0.03, 0.02),
        ),
        IMAGENET_C: (
            (2, 0.7, 0.1),
            (2, 0.08, 0.2),
            (0.05, 0.01, 0.02),
            (0.07, 0.01, 0.02),
            (0.12, 0.01, 0.02),
        ),
    },
    "spatter": {
        CIFAR_C: (
            (0.62, 0.1, 0.7, 0.7, 0.5, WATER),
            (0.65, 0.1, 0.8, 0.7, 0.5, WATER),
            (0.65, 0.3, 1, 0.69, 0.5, WATER),
            (0.65, 0.1, 0.7, 0.69, 0.6, MUD),
            (0.65, 0.1, 0.5, 0.68, 0.6, MUD),
        ),
        TINY_IMAGENET_C: (
            (0.62, 0.1, 0.7, 0.7, 0.6, WATER),
            (0.65, 0.1, 0.8, 0.7, 0.6, WATER),
            (0.65, 0.3, 1, 0.69, 0.6, WATER),
            (0.65, 0.1, 0.7, 0.68, 0.6, MUD),
            (0.65, 0.1, 0.5, 0.67, 0.6, MUD),
        ),
        IMAGENET_C: (
            (0.65, 0.3, 4, 0.69, 0.6, WATER),
            (0.65, 0.3, 3, 0.68, 0.6, WATER),
            (0.65, 0.3, 2, 0.68, 0.5, WATER),
            (0.65, 0.3, 1, 0.65, 1.5, MUD),
            (0.67, 0.4, 1, 0.65, 1.5, MUD),
        ),
    },
    "pixelate": {
        CIFAR_C: (0.95, 0.9, 0.85, 0.75, 0.65),
        TINY_IMAGENET_C: (0.9, 0.8, 0.7, 0.6, 0.5),
        IMAGENET_C: (0.6, 0.5, 0.4, 0.3, 0.25),
    },
    "jpeg_compression": {
        CIFAR_C: (80, 65, 58, 50, 40),
        TINY_IMAGENET_C: (65, 58, 50, 40, 25),
        IMAGENET_C: (25, 18, 15, 10, 7),
    },
}

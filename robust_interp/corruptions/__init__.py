"""CIFAR-C corruptions: generated with the CIFAR parameters (not ImageNet-C's), or read as released.

A generated image depends only on the seed, the corruption, the severity and the id of the image, so the
first n images are the same for every n and batch size. As in the released arrays, the result is clipped
to [0, 1], scaled by 255 and truncated to uint8. Corruptions without random draws reproduce the released
arrays from CIFAR-10's test images bit for bit (JPEG only with libjpeg 9); the others match in distribution.
Source: Hendrycks & Dietterich, *Benchmarking Neural Network Robustness to Common Corruptions and
Perturbations*, ICLR 2019, and its CIFAR-10-C generator's constants.
"""

from __future__ import annotations

# The order of the registry is the order of these imports.
# isort: off
from robust_interp.corruptions import noise, blur, weather, digital  # noqa: F401

# isort: on
from robust_interp.corruptions.images import Corruptor, parse_corruptions
from robust_interp.corruptions.names import GROUPS, MEANS, RELEASED_LABELS_MD5, RELEASED_MD5, SEVERITIES
from robust_interp.corruptions.table import CORRUPTIONS, check_name, corrupt

__all__ = [
    "CORRUPTIONS",
    "GROUPS",
    "MEANS",
    "RELEASED_LABELS_MD5",
    "RELEASED_MD5",
    "SEVERITIES",
    "Corruptor",
    "check_name",
    "corrupt",
    "parse_corruptions",
]

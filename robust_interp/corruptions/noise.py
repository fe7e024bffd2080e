"""The four noise corruptions."""

from __future__ import annotations

import numpy as np

from robust_interp.corruptions.severities import level
from robust_interp.corruptions.table import corruption


@corruption
def gaussian_noise(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Normal noise, the same everywhere."""
    sd = level("gaussian_noise", severity, image.shape)
    return image + rng.normal(scale=sd, size=image.shape)


@corruption
def shot_noise(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Poisson noise, as of counted photons."""
    photons = level("shot_noise", severity, image.shape)
    return rng.poisson(image * photons) / photons


@corruption
def impulse_noise(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Salt and pepper.

    A share of the values, drawn independently per channel, is replaced: half by 0 and half by 1.
    """
    share = level("impulse_noise", severity, image.shape)
    draw = rng.random(image.shape)
    return np.where(draw < share / 2, 0.0, np.where(draw < share, 1.0, image))


@corruption
def speckle_noise(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Normal noise in proportion to brightness."""
    sd = level("speckle_noise", severity, image.shape)
    return image + image * rng.normal(scale=sd, size=image.shape)

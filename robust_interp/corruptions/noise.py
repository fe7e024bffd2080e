"""The four noises."""

from __future__ import annotations

import numpy as np

from robust_interp.corruptions.table import corruption


@corruption
def gaussian_noise(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Normal noise, the same everywhere."""
    sd = (0.04, 0.06, 0.08, 0.09, 0.10)[severity - 1]
    return image + rng.normal(scale=sd, size=image.shape)


@corruption
def shot_noise(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Poisson noise, as of counted photons."""
    photons = (500, 250, 100, 75, 50)[severity - 1]
    return rng.poisson(image * photons) / photons


@corruption
def impulse_noise(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Salt and pepper.

    A share of the values (per channel), half of them set to 0 and half to 1.
    """
    share = (0.01, 0.02, 0.03, 0.05, 0.07)[severity - 1]
    draw = rng.random(image.shape)
    return np.where(draw < share / 2, 0.0, np.where(draw < share, 1.0, image))


@corruption
def speckle_noise(image: np.ndarray, severity: int, rng: np.random.Generator) -> np.ndarray:
    """Normal noise in proportion to brightness."""
    sd = (0.06, 0.1, 0.12, 0.16, 0.2)[severity - 1]
    return image + image * rng.normal(scale=sd, size=image.shape)

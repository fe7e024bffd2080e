"""Dead columns, as a damaged sensor gives."""

import numpy as np

from robust_interp.plugins import corruption


@corruption
def example_stripes(image, severity, rng):
    """A share of the columns, 5 to 25 %, is black in all channels."""
    dead = rng.random(image.shape[2]) < 0.05 * severity
    return np.where(dead, 0.0, image)

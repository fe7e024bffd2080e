"""The random numbers of attacks by the keys under which results are stored: plain NumPy, nothing of ours."""

import zlib

import numpy as np


def generators(ids, seed=0, number=0, call=0):
    """A generator for each image; the first draw of the first round is keyed by seed and image alone.

    Args:
        ids: Ids of the images.
        seed: The attack seed.
        number: Number of the round, from 0.
        call: Number of the draw within the round, from 0.
    """
    start = zlib.crc32(b"attack start")
    later = (number, call) if (number, call) != (0, 0) else ()
    return [np.random.default_rng((seed, start, int(each), *later)) for each in ids]


def uniform(ids, shape, seed=0, number=0, call=0):
    """In [0, 1), float32 of shape (N, *shape)."""
    return np.stack([one.random(shape, dtype=np.float32) for one in generators(ids, seed, number, call)])


def normal(ids, shape, seed=0, number=0, call=0):
    """Standard normal, float32 of shape (N, *shape)."""
    return np.stack(
        [one.standard_normal(shape, dtype=np.float32) for one in generators(ids, seed, number, call)]
    )


def shared(shape, seed=0, number=0, call=0):
    """In [0, 1), float32 of this shape, for a draw that is not one of (N, C, H, W)."""
    return np.random.default_rng((seed, zlib.crc32(b"attack shared"), number, call)).random(
        shape, dtype=np.float32
    )

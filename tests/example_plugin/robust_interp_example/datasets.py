"""Grey 8x8 images of bright bars, drawn when they are asked for: nothing to download."""

import numpy as np

from robust_interp.plugins import OfEps, dataset

CLASSES = ("nothing", "a row", "a column", "a row and a column")


@dataset(
    classes=len(CLASSES),
    shape=(1, 8, 8),
    mean=(0.2253,),
    std=(0.0895,),
    eps_255=(8, 16),
    attack_defaults={"alpha": OfEps(0.25)},
    default_n=100,
)
def bars(split, root):
    count, seed = {"train": (400, 0), "test": (100, 1)}[split]
    rng = np.random.default_rng(seed)
    images = rng.uniform(0.1, 0.3, (count, 1, 8, 8))
    labels = np.arange(count) % len(CLASSES)
    for image, label in zip(images, labels, strict=True):
        row, column = rng.integers(0, 8, 2)
        image[0, row] += 0.2 * (label in (1, 3))
        image[0, :, column] += 0.2 * (label in (2, 3))
    return images.astype(np.float32), labels

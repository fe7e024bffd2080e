"""Images of a user's own: small ones made on the spot, written as files."""

import io

import numpy as np
from PIL import Image


def pictures(n=12, size=(8, 8), classes=3, seed=0):
    """(images, labels): uint8 (n, 3, H, W), and the classes in turn."""
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (n, 3, *size), dtype=np.uint8), np.arange(n) % classes


def picture(image):
    """An image (C, H, W) as Pillow has it."""
    return Image.fromarray(image[0] if len(image) == 1 else image.transpose(1, 2, 0))


def encoded(image, kind="PNG", **options):
    held = io.BytesIO()
    picture(image).save(held, kind, **options)
    return held.getvalue()


def write_folder(root, images, labels, names="abcdefghij", suffix="png"):
    """One folder a class; the files are numbered as the images are."""
    for at, (image, label) in enumerate(zip(images, labels, strict=True)):
        folder = root / names[label]
        folder.mkdir(parents=True, exist_ok=True)
        picture(image).save(folder / f"{at:05}.{suffix}")
    return root


def by_class(images, labels):
    """As a folder has them: class by class."""
    order = np.argsort(labels, kind="stable")
    return images[order], labels[order]

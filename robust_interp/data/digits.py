"""The digits that are part of scikit-learn: 1,797 real images of 8 x 8 pixels."""

from __future__ import annotations

import functools
import gzip
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from robust_interp.core.specs import OfEps
from robust_interp.data.dataset import DATASETS, Arrays, DatasetType


def _load_digits(split: str, root: Path) -> Arrays:
    values, labels = _all_digits()
    # RandomState's stream is frozen, so no library update can move a training image into the test set.
    order = np.random.RandomState(0).permutation(len(labels))
    rank_in_class = np.empty(len(order), dtype=int)
    for digit in range(10):
        of_class = labels[order] == digit
        rank_in_class[of_class] = np.arange(of_class.sum())
    chosen = order[(rank_in_class < 45) == (split == "test")]
    images = (values[chosen] / 16).astype(np.float32)
    return images[:, None], labels[chosen]


@functools.cache
def _all_digits() -> tuple[np.ndarray, np.ndarray]:
    """Return all images (1797, 8, 8) in [0, 16] and labels (1797,) in scikit-learn's order."""
    spec = find_spec("sklearn")
    for folder in (spec and spec.submodule_search_locations) or ():
        file = Path(folder) / "datasets" / "data" / "digits.csv.gz"
        if file.is_file():  # importing scikit-learn takes over a second
            with gzip.open(file) as lines:
                table = np.loadtxt(lines, delimiter=",")
            return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(int)
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return bunch.images, bunch.target


DATASETS.add(
    "digits",
    DatasetType(
        name="digits",
        load=_load_digits,
        classes=10,
        shape=(1, 8, 8),
        mean=(0.3054,),
        std=(0.3763,),
        eps_255=(8, 16, 32),
        attack_defaults={"alpha": OfEps(0.25)},
        default_n=200,
        crop_padding=1,
        flip=False,
        class_names=tuple("0123456789"),
    ),
)

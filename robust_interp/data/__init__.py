"""Datasets: images in [0, 1], labels and sample ids, in one fixed order.

`digits` ships with scikit-learn and needs no download. CIFAR-10 and CIFAR-100 are read from files that are
there; nothing is downloaded unless `robust-interp data --download` is asked to.
"""

from robust_interp.data import digits  # noqa: F401, registers it
from robust_interp.data.cifar import download, missing_data
from robust_interp.data.dataset import (
    DATASETS,
    SPLITS,
    Dataset,
    DatasetType,
    as_pixels,
    data_root,
    from_arrays,
    load,
    named,
)

__all__ = [
    "DATASETS",
    "SPLITS",
    "Dataset",
    "DatasetType",
    "as_pixels",
    "data_root",
    "download",
    "from_arrays",
    "load",
    "missing_data",
    "named",
]

"""Datasets: images in [0, 1], labels and sample ids, in one fixed order.

`digits` ships with scikit-learn and needs no download. CIFAR-10 and CIFAR-100 are read from files that are
there; nothing is downloaded unless `robust-interp data --download` is asked to. `sources` are
a user's own images.
"""

from robust_interp.data import digits  # noqa: F401, registers it
from robust_interp.data.batches import from_batches, is_source_of_batches
from robust_interp.data.cifar import download, missing_data
from robust_interp.data.dataset import (
    DATASETS,
    SPLITS,
    ArrayDataset,
    Dataset,
    DatasetType,
    as_pixels,
    data_root,
    from_arrays,
    load,
    named,
)
from robust_interp.data.options import SourceOptions
from robust_interp.data.sources import SOURCES, is_source, open_source
from robust_interp.data.subset import SUBSETS, in_subset

__all__ = [
    "DATASETS",
    "SOURCES",
    "SPLITS",
    "SUBSETS",
    "ArrayDataset",
    "Dataset",
    "DatasetType",
    "SourceOptions",
    "as_pixels",
    "data_root",
    "download",
    "from_arrays",
    "from_batches",
    "in_subset",
    "is_source",
    "is_source_of_batches",
    "load",
    "missing_data",
    "named",
    "open_source",
]

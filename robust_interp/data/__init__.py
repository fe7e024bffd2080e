"""Data sets: images in [0, 1] and labels in a fixed order; an image's id is its position.

`digits` is part of scikit-learn and needs no download. CIFAR-10 and CIFAR-100 are read from local files; only
`robust-interp data --download` downloads them. `sources` reads a user's own images.
"""

from robust_interp.data import digits  # noqa: F401, registers the data set
from robust_interp.data.batches import from_batches, has_length, is_source_of_batches
from robust_interp.data.cifar import download
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
    read_split,
    root_for_workers,
)
from robust_interp.data.options import SourceOptions
from robust_interp.data.sources import SOURCES, is_source, open_source
from robust_interp.data.subset import in_subset

__all__ = [
    "DATASETS",
    "SOURCES",
    "SPLITS",
    "ArrayDataset",
    "Dataset",
    "DatasetType",
    "SourceOptions",
    "as_pixels",
    "data_root",
    "download",
    "from_arrays",
    "from_batches",
    "has_length",
    "in_subset",
    "is_source",
    "is_source_of_batches",
    "load",
    "named",
    "open_source",
    "read_split",
    "root_for_workers",
]

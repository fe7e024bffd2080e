"""Find, check, load and save checkpoints.

A checkpoint is a folder ``<architecture>.<dataset>_<recipe>_seed<k>/`` with ``config.json`` and
``model.safetensors`` in timm's format, and ``train.json``, the record of its training. Checkpoints are
searched in the given folder, then in ./model_zoo, then in the package; the first one with a name is used.
"""

from robust_interp.core.architectures import OURS
from robust_interp.zoo.catalogue import (
    bundled,
    check_known,
    checkpoints,
    checkpoints_for,
    checkpoints_that_fit,
    implied_dataset,
    select,
    select_seeds,
)
from robust_interp.zoo.checkpoint import (
    CONFIG,
    RECORD,
    WEIGHTS,
    Checkpoint,
    are_coefficients,
    check_savable,
    check_writable,
    default_of,
    interval_text,
    load_weights,
    made_with,
    save,
)
from robust_interp.zoo.registered import (
    MODELS,
    check_registered,
    create,
    is_model,
    known_names,
    may_be_registered,
)

__all__ = [
    "CONFIG",
    "MODELS",
    "OURS",
    "RECORD",
    "WEIGHTS",
    "Checkpoint",
    "are_coefficients",
    "bundled",
    "check_known",
    "check_registered",
    "check_savable",
    "check_writable",
    "checkpoints",
    "checkpoints_for",
    "checkpoints_that_fit",
    "create",
    "default_of",
    "implied_dataset",
    "interval_text",
    "is_model",
    "known_names",
    "load_weights",
    "made_with",
    "may_be_registered",
    "save",
    "select",
    "select_seeds",
]

"""Checkpoints: timm's folder format plus train.json, found by name, checked, loaded, saved.

A checkpoint is a folder ``<architecture>.<dataset>_<recipe>_seed<k>/`` with ``config.json`` and
``model.safetensors`` as timm writes them and ``train.json``, which says how it was made. Folders are looked
for in the folder given, then in ./model_zoo, then in the package; the first of a name wins.
"""

from robust_interp.zoo.catalogue import bundled, checkpoints, checkpoints_for, select
from robust_interp.zoo.checkpoint import (
    CONFIG,
    RECORD,
    WEIGHTS,
    Checkpoint,
    check_writable,
    interval_text,
    load_weights,
    made_with,
    save,
)
from robust_interp.zoo.registered import MODELS, check_registered, create, is_model

__all__ = [
    "CONFIG",
    "MODELS",
    "RECORD",
    "WEIGHTS",
    "Checkpoint",
    "bundled",
    "check_registered",
    "check_writable",
    "checkpoints",
    "checkpoints_for",
    "create",
    "interval_text",
    "is_model",
    "load_weights",
    "made_with",
    "save",
    "select",
]

"""Reject unknown names before torch is loaded, which takes seconds.

A name accepted here may still be rejected where it is used, with the same message.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from robust_interp import attacks, corruptions, data, zoo
from robust_interp.core.errors import UserError
from robust_interp.core.registry import MODEL_PREFIXES, unknown, unknown_module
from robust_interp.core.specs import parse_spec, split_specs

_OF_THE_ZOO = re.compile(r"[\w*?\[\]!-]+(\.[a-z0-9*?]+_[a-z0-9_*?]+_seed[\d*?]+)?", re.ASCII)
_OF_A_MODULE = re.compile(r"([A-Za-z_]\w+)(?:\.\w+)*:[A-Za-z_]", re.ASCII)
_WITHOUT_COLON = re.compile(
    r"([A-Za-z_]\w*(?:\.\w+)*)\.(?!(?:py|safetensors|pth?|bin|ckpt|onnx)$)([A-Za-z_]\w*)", re.ASCII
)
_OF_TIMM = re.compile(r"timm:(\w+)", re.ASCII)


def dataset_of(name: str | None, models: Iterable[str]) -> str:
    """Return the data set or source of a run: the given name, or else that of the named checkpoints.

    Raises:
        UserError: If there is no such data set, or the checkpoints belong to several.
    """
    name = name or zoo.implied_dataset(models)
    if not data.is_source(name):
        check_dataset(name)
    return name


def check_dataset(name: str) -> None:
    """Raise UserError if a data set is not registered."""
    if name not in data.DATASETS:
        raise unknown("data set", name, data.DATASETS)


def check_attacks(*lists: str | None) -> None:
    """Raise UserError for an unknown attack in lists of specs."""
    for name in _names(lists):
        attacks.check_name(name)


def check_corruptions(*lists: str | None) -> None:
    """Raise UserError for an unknown corruption in lists of specs."""
    for name in _names(lists):
        corruptions.check_name(name)


def check_models(names: Iterable[str], dataset: str, folder: str | None = None, only: bool = False) -> None:
    """Raise UserError for an unknown model; paths and importable factories are accepted.

    Args:
        names: Names or globs of models.
        dataset: Data set of the checkpoints.
        folder: Additional zoo folder.
        only: Whether to search only `folder` for checkpoints.
    """
    candidates = zoo.checkpoints(folder, dataset, only)
    for name in names:
        if of_timm := _OF_TIMM.fullmatch(name):
            check_architectures([of_timm[1]])
        elif candidates and _OF_THE_ZOO.fullmatch(name) and not Path(name).exists():
            zoo.check_known(name, candidates)
        elif (of_module := _OF_A_MODULE.match(name)) and not Path(name).exists():
            _check_module(name, of_module[1])
        elif (without_colon := _WITHOUT_COLON.fullmatch(name)) and not zoo.may_be_registered(name):
            _check_colon(*without_colon.groups())


def _check_colon(module: str, factory: str) -> None:
    """Raise UserError for ``module.factory`` in place of ``module:factory``."""
    if _is_found(module.partition(".")[0]):
        raise UserError(f"unknown model {f'{module}.{factory}'!r}; did you mean {module}:{factory}?")


def _check_module(name: str, top: str) -> None:
    """Raise UserError if the top-level module of a factory does not exist; nothing is imported."""
    if top not in MODEL_PREFIXES and not _is_found(top):
        raise unknown_module(name, top)


def _is_found(module: str) -> bool:
    return bool(find_spec(module) or PathFinder.find_spec(module, [os.getcwd()]))


def check_architectures(names: Iterable[str]) -> None:
    """Raise UserError for a name that no registered model has."""
    for name in names:
        if not zoo.may_be_registered(name):
            raise unknown("model", name, zoo.known_names())


def _names(lists: Iterable[str | None]) -> Iterator[str]:
    """Yield the names in lists of specs; invalid specs are skipped and reported where they are used."""
    for part in (part for text in lists for part in split_specs(text or "")):
        with suppress(UserError):
            name = parse_spec(part.removeprefix("torchattacks.")).name
            if name != "none":
                yield name

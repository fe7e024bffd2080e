"""Names of models registered with timm: ours, timm's own and those of plug-ins."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robust_interp.core.architectures import OURS
from robust_interp.core.errors import UserError
from robust_interp.core.registry import Registry, unknown
from robust_interp.core.texts import first_line_of

if TYPE_CHECKING:  # listing names must not import torch
    from torch import nn

# Plug-in models by timm name. Importing a plug-in registers its model with timm.
MODELS: Registry[Callable] = Registry("model", group="robust_interp.models", holds=Callable)


def create(architecture: str, **arguments: Any) -> nn.Module:
    """Build a model by its timm name. It is untrained unless `pretrained` is true.

    Args:
        architecture: The timm name.
        arguments: Arguments of `timm.create_model`, such as num_classes and in_chans.

    Raises:
        UserError: if the name is unknown, its plug-in is broken, or the arguments do not fit.
    """
    import timm

    check_registered(architecture)
    try:
        return timm.create_model(architecture, **arguments)
    except Exception as error:  # constructors and downloads may raise anything
        reason = first_line_of(error)
        raise UserError(f"cannot build {architecture}: {reason}") from error


def check_registered(architecture: str) -> None:
    """Refuse a name that is not registered, because timm would read a path as a model with random weights.

    Raises:
        UserError: if the name is unknown; the message suggests similar names.
    """
    import timm  # also registers our models

    if not is_model(architecture):
        hidden = timm.list_models(module="robustbench_names")
        raise unknown("model", architecture, {*timm.list_models(), *MODELS} - set(hidden))


def is_model(name: str) -> bool:
    """Whether a name is registered with timm. The plug-in that provides it is imported first.

    Raises:
        UserError: if that plug-in is broken, or another model has the same name.
    """
    import timm  # also registers our models

    name = name.partition(".")[0]  # without the tag
    if name not in MODELS:
        return timm.is_model(name)
    origin = MODELS.origins(name)[0].name
    there = timm.model_entrypoint(name) if timm.is_model(name) else None
    try:
        entry = MODELS[name]
    except UserError:
        if there is None:
            raise
        entry = None
    if there not in (None, entry):
        raise UserError(f"model {name!r} is declared by {origin} and by {there.__module__}")
    if not timm.is_model(name):
        raise UserError(f"model {name!r} of {origin} is not registered with timm")
    return True


def may_be_registered(name: str) -> bool:
    """Whether a name may be registered; False is certain. Reads timm's source instead of importing it."""
    name = name.partition(".")[0]
    # Names that timm registers in other ways, such as deprecated ones, also occur in its source.
    return name in OURS or name in MODELS or name in _timm_words()


def known_names() -> set[str]:
    """Return the registered names, as from `timm.list_models`, without importing timm."""
    decorated = r"^@register_model\b.*\n(?:@.*\n)*def (\w+)\("
    return {*OURS, *MODELS, *re.findall(decorated, _timm_source(), re.MULTILINE)}


@cache
def _timm_words() -> frozenset[str]:
    return frozenset(re.findall(r"\w+", _timm_source()))


@cache
def _timm_source() -> str:
    spec = find_spec("timm")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("timm is not installed")
    folder = Path(spec.submodule_search_locations[0]) / "models"
    return "\n".join(file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.py")))

"""The names that timm knows: ours, its own and those of plug-ins."""

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

if TYPE_CHECKING:  # listing names needs no torch
    from torch import nn

# Plug-in models, by timm name: importing one registers it with timm.
MODELS: Registry[Callable] = Registry("model", group="robust_interp.models", holds=Callable)


def create(architecture: str, **arguments: Any) -> nn.Module:
    """An untrained model of any registered timm name, ours and those of plug-ins among them.

    Args:
        architecture: The name.
        arguments: Of its constructor, such as num_classes and in_chans.

    Raises:
        UserError: if the name is unknown, its plug-in is broken, or the arguments do not fit.
    """
    import timm

    check_registered(architecture)
    try:
        return timm.create_model(architecture, **arguments)
    except Exception as error:  # constructors refuse their arguments in any way; a download fails in as many
        reason = first_line_of(error)
        raise UserError(f"cannot build {architecture}: {reason}") from error


def check_registered(architecture: str) -> None:
    """Refuse a name that timm does not know; it would build a model of random weights for a path.

    Raises:
        UserError: if it is unknown; the message suggests similar names.
    """
    import timm  # which registers our models, too

    if not is_model(architecture):
        hidden = timm.list_models(module="robustbench_names")
        raise unknown("model", architecture, {*timm.list_models(), *MODELS} - set(hidden))


def is_model(name: str) -> bool:
    """Whether timm knows this name, once the plug-in that provides it, if one does, is imported.

    Raises:
        UserError: if that plug-in is broken, or the name is another model's.
    """
    import timm  # which registers our models, too

    name = name.partition(".")[0]  # the rest is a tag
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
    """False for a name that surely no registered model has; timm is read, and not imported."""
    name = name.partition(".")[0]
    # What timm registers otherwise, such as an old name for a new one, stands somewhere in its source, too.
    return name in OURS or name in MODELS or name in _timm_words()


def known_names() -> set[str]:
    """What `check_registered` takes, as `timm.list_models` lists it, without importing timm."""
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

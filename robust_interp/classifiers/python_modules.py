"""Make a target of ``package.module:factory``: a function that returns a model, or a model in a module."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from types import ModuleType

from torch import nn

from robust_interp.classifiers.prefixes import PREFIXES, parse_call
from robust_interp.classifiers.target import Context, Target, from_module, replaced_note
from robust_interp.classifiers.weights import with_weights
from robust_interp.core.errors import UserError
from robust_interp.core.model_errors import place_of
from robust_interp.core.registry import cause, similar, unknown_module


def from_python(text: str, context: Context) -> Target:
    """Make a target of the model that a factory returns, or of a torch module that a Python module contains.

    Args:
        text: ``package.module:factory``, with optional arguments in brackets, or ``package.module:object``.
        context: The data set and the other settings. A factory with the parameters `num_classes` or
            `in_chans` gets those of the data set.

    Raises:
        UserError: if the module cannot be imported, or there is no model that can be measured.
    """
    module_name, _, call = text.partition(":")
    attribute, arguments = parse_call(call)
    made: object = _imported(module_name, text)
    for part in attribute.split("."):
        if not hasattr(made, part):
            near = similar(part, [name for name in dir(made) if not name.startswith("_")])
            meant = f"; did you mean {', '.join(near)}?" if near else ""
            raise UserError(f"{text}: {module_name} has no {attribute}{meant}")
        made = getattr(made, part)
    if not isinstance(made, nn.Module):
        made = _made(text, made, arguments, context)
    elif arguments:
        raise UserError(f"{text}: {attribute} is already a model and takes no arguments")
    if context.checkpoint:
        return with_weights(text, made, context.checkpoint, context)
    return from_module(text, made, context, notes=replaced_note(text, made, context))


def _imported(module_name: str, text: str) -> ModuleType:
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())  # as with python -m
    try:
        return importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # importing runs foreign code
        missing = getattr(error, "name", None) if isinstance(error, ModuleNotFoundError) else None
        if missing and f"{module_name}.".startswith(f"{missing}."):
            raise unknown_module(text, missing, PREFIXES) from error
        raise UserError(f"{text}: cannot import {module_name}: {cause(error)}{place_of(error)}") from error


def _made(text: str, factory: object, arguments: dict, context: Context) -> nn.Module:
    if not callable(factory):
        kind = type(factory).__name__
        raise UserError(f"{text} is a {kind}, not a torch module or a function that returns one")
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # some built-ins have no signature
        signature = inspect.Signature()
    from_dataset = {"num_classes": context.dataset.classes, "in_chans": context.channels}
    arguments = {key: value for key, value in from_dataset.items() if key in signature.parameters} | arguments
    try:
        signature.bind(**arguments)
    except TypeError as error:
        hint = "write arguments in brackets, such as module:factory(depth=20)"
        raise UserError(f"{text}: {error}; {hint}") from error
    try:
        made = factory(**arguments)
    except (Exception, SystemExit) as error:
        raise UserError(f"{text} failed: {cause(error)}{place_of(error)}") from error
    if not isinstance(made, nn.Module):
        raise UserError(f"{text} returned a {type(made).__name__}, not a torch module")
    return made

"""Texts of the attributes of modules that torch does not count as state: dicts, arrays and small objects."""

from __future__ import annotations

import functools
import hashlib
import sys
import types
from argparse import Namespace
from collections.abc import Iterable, Iterator, Mapping
from enum import Enum
from pathlib import PurePath

import numpy as np
import torch
from torch import Tensor, nn

MOST = 10_000  # values that are read per model, so that a data set in a list is not copied into a text

LIBRARIES = {"torch", "torchvision", "timm", "robust_interp"}  # the repr and state of their modules suffice
_OF_TORCH = frozenset(vars(nn.Module()))
_VALUES = (type(None), bool, int, float, complex, str, bytes, range, slice, torch.dtype, PurePath, Enum)
_OPAQUE = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_HOLDERS = (types.SimpleNamespace, Namespace)  # standard library classes that only hold values


def describe_attributes(model: nn.Module, known: Iterable[str] = ()) -> str:
    """Return the attributes of a model's modules, other than state and submodules, as one text.

    Dicts, lists, sets, arrays, tensors, numbers, strings and objects of these are read, private ones too.
    So is the state of modules that are not registered as submodules. Functions and open files are not.

    Args:
        model: The model. Modules of torch, torchvision, timm and this package in it are skipped.
        known: Names ``module.attribute`` to leave out.

    Returns:
        One line per attribute; '' if there is none.
    """
    return "\n".join(f"{name}={text}" for name, text in attributes(model, known).items())


def attributes(model: nn.Module, known: Iterable[str] = ()) -> dict[str, str]:
    """Return the attributes that `describe_attributes` reads, each as a text by its ``module.attribute``."""
    reader = _Reader(model)
    known = set(known)
    parts = {}
    for name, module in model.named_modules():
        if type(module).__module__.partition(".")[0] not in LIBRARIES:
            for key, value in sorted(vars(module).items()):
                own = key not in _OF_TORCH and key != "name" and f"{name}.{key}" not in known
                if own and (text := reader.text(value)):
                    parts[f"{name}.{key}"] = text
    return parts


class _Reader:
    """Turns values into texts. Equal values have equal texts; a value that cannot be read is ''."""

    def __init__(self, model: nn.Module) -> None:
        self._inside = {id(module) for module in model.modules()}  # and what is being read: no cycles
        self._left = MOST

    def text(self, value: object) -> str:
        if self._left <= 0 or id(value) in self._inside:
            return ""
        self._left -= 1
        if isinstance(value, _VALUES):
            return f"{type(value).__qualname__}:{value!r}"
        if isinstance(value, np.ndarray | np.generic | Tensor):
            return _array(value)
        self._inside.add(id(value))
        parts = list(self._parts(value))
        self._inside.discard(id(value))
        return f"{type(value).__qualname__}({','.join(parts)})" if parts else ""

    def _parts(self, value: object) -> Iterator[str]:
        """Yield the texts of the values in a container, partial, module or plain object."""
        if isinstance(value, Mapping):
            yield from (f"{self.text(key)}:{self.text(each)}" for key, each in value.items())
        elif isinstance(value, tuple | list):
            yield from map(self.text, value)
        elif isinstance(value, set | frozenset):
            yield from sorted(map(self.text, value))
        elif isinstance(value, functools.partial):
            yield from map(self.text, (value.args, value.keywords))
        elif isinstance(value, nn.Module):
            for name, tensor in [*value.named_parameters(), *value.named_buffers()]:
                yield f"{name}={_array(tensor)}"
            yield describe_attributes(value)
        elif _is_plain_object(value):
            for key, each in sorted(vars(value).items()):
                yield f"{key}={self.text(each)}"


def _is_plain_object(value: object) -> bool:
    """Whether an object's class is the user's, so not a logger, lock or file of the standard library."""
    if isinstance(value, _OPAQUE) or not hasattr(value, "__dict__"):
        return False
    library = type(value).__module__.partition(".")[0]
    foreign = library in {*sys.stdlib_module_names, "torch", "numpy"} - {"__main__"}
    return isinstance(value, _HOLDERS) or not foreign


def _array(value: np.ndarray | np.generic | Tensor) -> str:
    """Return type, shape and SHA-256 of the bytes of an array or tensor; '' if the bytes cannot be read."""
    try:
        array = value.detach().cpu().contiguous() if isinstance(value, Tensor) else np.asarray(value)
        if isinstance(array, Tensor):
            content = array.view(-1).view(torch.uint8).numpy().tobytes()
        else:
            content = b"" if array.dtype.hasobject else array.tobytes()
    except (RuntimeError, TypeError, NotImplementedError):  # sparse tensors, tensors on the meta device
        return ""
    return f"{array.dtype}{tuple(array.shape)}{hashlib.sha256(content).hexdigest()}"

"""What a module keeps as attributes that are no state of torch's: dicts, arrays and small objects."""

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

MOST = 10_000  # values that are looked at in one model: a data set in a list is not copied into a text

LIBRARIES = {"torch", "torchvision", "timm", "robust_interp"}  # whose settings are in their repr and state
_OF_TORCH = frozenset(vars(nn.Module()))
_VALUES = (type(None), bool, int, float, complex, str, bytes, range, slice, torch.dtype, PurePath, Enum)
_OPAQUE = (type, types.ModuleType, types.FunctionType, types.MethodType, types.BuiltinFunctionType)
_HOLDERS = (types.SimpleNamespace, Namespace)  # those of Python's own library that only hold values


def held(model: nn.Module, known: Iterable[str] = ()) -> str:
    """What the modules of a model keep besides state and submodules, as a text; '' for nothing of the kind.

    Looked at are dicts, lists, sets, arrays, tensors, numbers and texts, private ones too, and objects of
    these; modules that are not registered, with their state. Functions and open files are not.

    Args:
        model: Modules of torch and timm in it are passed over.
        known: Names ``module.attribute`` of what is known of it otherwise.
    """
    return "\n".join(f"{name}={text}" for name, text in attributes(model, known).items())


def attributes(model: nn.Module, known: Iterable[str] = ()) -> dict[str, str]:
    """The same, each attribute as a text under its name ``module.attribute``."""
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
    """Values as texts that are equal where the values are; '' for what cannot be seen into."""

    def __init__(self, model: nn.Module) -> None:
        self._inside = {id(module) for module in model.modules()}  # or being read: a value may hold itself
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
        """Those of a value that holds others."""
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
            yield held(value)
        elif _is_plain_object(value):
            for key, each in sorted(vars(value).items()):
                yield f"{key}={self.text(each)}"


def _is_plain_object(value: object) -> bool:
    """Whether an object is of a class of the user's, not a logger, lock or file of Python's library."""
    if isinstance(value, _OPAQUE) or not hasattr(value, "__dict__"):
        return False
    library = type(value).__module__.partition(".")[0]
    foreign = library in {*sys.stdlib_module_names, "torch", "numpy"} - {"__main__"}
    return isinstance(value, _HOLDERS) or not foreign


def _array(value: np.ndarray | np.generic | Tensor) -> str:
    """Type, shape and SHA-256 of the bytes of an array or a tensor; '' where there are none to read."""
    try:
        array = value.detach().cpu().contiguous() if isinstance(value, Tensor) else np.asarray(value)
        if isinstance(array, Tensor):
            content = array.view(-1).view(torch.uint8).numpy().tobytes()
        else:
            content = b"" if array.dtype.hasobject else array.tobytes()
    except (RuntimeError, TypeError, NotImplementedError):  # sparse ones, those on no device
        return ""
    return f"{array.dtype}{tuple(array.shape)}{hashlib.sha256(content).hexdigest()}"

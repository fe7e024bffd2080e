"""Fold BatchNorm layers into the preceding convolutions: the same function up to rounding, with fewer layers.

Only a copy of the model is changed. torch.fx is used to read the order of the layers, but the copy runs the
model's own code, so that nothing else can differ.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from robust_interp.core.torch_internals import has_hooks

_FOLDED = {nn.BatchNorm1d: nn.Conv1d, nn.BatchNorm2d: nn.Conv2d, nn.BatchNorm3d: nn.Conv3d}


def fold_batch_norm(model: nn.Module) -> nn.Module | None:
    """Return a copy of a model in which each BatchNorm directly after a convolution is folded into it.

    Args:
        model: The model, in eval mode.

    Returns:
        The copy; None if there is no such BatchNorm, or the order of the layers cannot be read.
    """
    kinds = {type(module) for module in model.modules()}
    if not any(norm in kinds and conv in kinds for norm, conv in _FOLDED.items()):
        return None
    try:
        pairs = list(_pairs(copy.deepcopy(model)))  # a copy, as tracing runs the model's code
        copied = copy.deepcopy(model) if pairs else model
    except Exception:  # foreign code may fail in any way when traced or copied
        return None
    for conv, norm in pairs:
        layers: Any = copied.get_submodule(conv), copied.get_submodule(norm)
        copied.set_submodule(conv, fuse_conv_bn_eval(*layers))
        copied.set_submodule(norm, nn.Identity())
    return copied if pairs else None


def _pairs(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Yield the names of each convolution and the BatchNorm that is its only user, both called just once."""
    graph = fx.Tracer().trace(model)
    modules = dict(model.named_modules(remove_duplicate=False))
    named = Counter(map(id, modules.values()))
    called = Counter(id(modules[str(node.target)]) for node in graph.nodes if node.op == "call_module")
    read = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}

    def is_plain(name: str) -> bool:
        module = modules[name]
        once = named[id(module)] == called[id(module)] == 1
        return once and name not in read and not has_hooks(module)

    for node in graph.nodes:
        before = node.args[0] if node.op == "call_module" and node.args else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) > 1:
            continue
        norm, conv = modules[node.target], modules[str(before.target)]
        if _FOLDED.get(type(norm)) is not type(conv) or norm.training or norm.running_mean is None:
            continue
        if is_plain(node.target) and is_plain(str(before.target)):
            yield str(before.target), node.target

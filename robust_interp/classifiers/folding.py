"""BatchNorm folded into the convolutions before it: the same function but for rounding, in fewer passes.

Only a copy is changed. The order of its layers is read by torch.fx; the copy itself runs the model's own
code, so that nothing else about it can differ.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator
from typing import Any

from torch import fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

_FOLDED = {nn.BatchNorm1d: nn.Conv1d, nn.BatchNorm2d: nn.Conv2d, nn.BatchNorm3d: nn.Conv3d}


def folded(model: nn.Module) -> nn.Module | None:
    """A copy of a model in which each BatchNorm that directly follows a convolution is part of that.

    Args:
        model: In eval mode.

    Returns:
        None where there is none, or where the order of the layers cannot be read.
    """
    kinds = {type(module) for module in model.modules()}
    if not any(norm in kinds and conv in kinds for norm, conv in _FOLDED.items()):
        return None
    try:
        pairs = list(_pairs(copy.deepcopy(model)))  # a copy: the model's code runs, and may note what it sees
        copied = copy.deepcopy(model) if pairs else model
    except Exception:  # code of others, on what it was not written for
        return None
    for conv, norm in pairs:
        layers: Any = copied.get_submodule(conv), copied.get_submodule(norm)
        copied.set_submodule(conv, fuse_conv_bn_eval(*layers))
        copied.set_submodule(norm, nn.Identity())
    return copied if pairs else None


def _pairs(model: nn.Module) -> Iterator[tuple[str, str]]:
    """Names of convolutions and of the BatchNorm that alone gets what they give, both met once in a pass."""
    graph = fx.Tracer().trace(model)
    modules = dict(model.named_modules(remove_duplicate=False))
    named = Counter(map(id, modules.values()))
    called = Counter(id(modules[str(node.target)]) for node in graph.nodes if node.op == "call_module")
    read = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}

    def is_plain(name: str) -> bool:
        module = modules[name]
        hooks = module._forward_hooks or module._forward_pre_hooks or module._backward_hooks
        return named[id(module)] == called[id(module)] == 1 and name not in read and not hooks

    for node in graph.nodes:
        before = node.args[0] if node.op == "call_module" and node.args else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) > 1:
            continue
        norm, conv = modules[node.target], modules[str(before.target)]
        if _FOLDED.get(type(norm)) is not type(conv) or norm.training or norm.running_mean is None:
            continue
        if is_plain(node.target) and is_plain(str(before.target)):
            yield str(before.target), node.target

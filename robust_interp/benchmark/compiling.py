"""Which networks are worth compiling, and what is compiled of them."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from robust_interp import attacks
from robust_interp.attacks.table import type_of
from robust_interp.classifiers.engine import Pass
from robust_interp.core.compiler import CompileTime, learned
from robust_interp.store.cells import Cell, ModelCard, Perturbation, digest

LEAST_WORK = 1e5  # forward passes of an image: fewer take less time than any compilation
SECONDS_A_LAYER, GAIN = 2.0, 1.4  # before a network was compiled here: of its first compilation, and by it

Architecture = tuple[str, float]  # networks of one share a compilation


def architecture(card: ModelCard) -> Architecture:
    """What a network has in common with those of other train seeds and recipes, and with their ensembles."""
    return card.model, round((card.params_m or 0.0) / card.members, 6)


def passes_of(perturbation: Perturbation) -> set[Pass]:
    """The kinds of passes that an attack gains by if compiled: none where it takes one sample at a time."""
    if perturbation.kind != "attack" or attacks.is_alone(perturbation):
        return set()
    kind = type_of(perturbation.name)
    found = {Pass(True, perturbation.precision == "bf16")} if kind.differentiates else set()
    return found if kind.gradient else found | {Pass(False)}


def can_be_compiled(cell: Cell) -> bool:
    """Whether a cell gains by a compiled network.

    A random model draws outside of what is compiled, and what a plug-in's attack does with it is not known.
    """
    known = "plugin" not in cell.environment and not cell.classifier.eot
    return known and bool(passes_of(cell.perturbation))


def key(card: ModelCard, passes: Iterable[Pass], images: torch.Tensor) -> str:
    """What a compilation is known by: the network, the kinds of passes, the batch, and torch.

    Args:
        card: Of the network.
        passes: That are compiled.
        images: A batch (N, C, H, W), on the device where it is compiled for.
    """
    kinds = sorted(map(list, passes))
    parts = [*architecture(card), kinds, list(images.shape), images.device.type, str(torch.__version__)]
    return f"{card.model} {digest(parts)[:16]}"


def expected(
    card: ModelCard, passes: Iterable[Pass], images: torch.Tensor, network: nn.Module
) -> CompileTime:
    """What a compilation will take, as it did before, or by the number of layers."""
    layers = sum(hasattr(module, "weight") and module.weight is not None for module in network.modules())
    return learned(key(card, passes, images)) or CompileTime(SECONDS_A_LAYER * layers / card.members, GAIN)


def pays(seconds: float, seen: CompileTime) -> bool:
    """Whether attacks that take so many seconds uncompiled take less with a compilation."""
    return seconds * (1 - 1 / seen.gain) > seen.seconds

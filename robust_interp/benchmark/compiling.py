"""Decide which networks are compiled for attacks, and which of their passes."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from robust_interp import attacks
from robust_interp.attacks.table import type_of
from robust_interp.classifiers.engine import Pass
from robust_interp.core.compiler import CompileTime, recorded_compile_time
from robust_interp.store.cells import Cell, ModelCard, Perturbation, digest

LEAST_WORK = 1e5  # forward passes of one image: fewer take less time than any compilation
SECONDS_A_LAYER, GAIN = 2.0, 1.4  # assumed compile time and speed-up of a network not compiled here before

Architecture = tuple[str, float]  # networks of the same architecture share a compilation


def architecture(card: ModelCard) -> Architecture:
    """Return name and parameters per member in millions: equal for all train seeds, recipes and ensembles."""
    return card.model, round((card.params_m or 0.0) / card.members, 6)


def passes_of(perturbation: Perturbation) -> set[Pass]:
    """Return the kinds of passes of an attack to compile: those on batches, not on one image at a time."""
    if perturbation.kind != "attack" or attacks.is_alone(perturbation):
        return set()
    kind = type_of(perturbation.name)
    found = {Pass(True, perturbation.precision == "bf16")} if kind.differentiates else set()
    in_batches = not kind.gradient and not attacks.passes_alone(perturbation)
    return found | {Pass(False)} if in_batches else found


def can_be_compiled(cell: Cell) -> bool:
    """Return whether a compiled network can make a cell faster.

    Random models are excluded since they draw outside of the compiled code. Attacks of plug-ins are excluded
    since it is unknown how they use the network.
    """
    known = "plugin" not in cell.environment and not cell.classifier.eot
    return known and bool(passes_of(cell.perturbation))


def key(card: ModelCard, passes: Iterable[Pass], images: torch.Tensor) -> str:
    """Return the key of a compilation: a hash of the network, the kinds of passes, the batch, and torch.

    Args:
        card: The model card of the network.
        passes: The kinds of passes that are compiled.
        images: A batch (N, C, H, W) on the device to compile for.
    """
    kinds = sorted(map(list, passes))
    parts = [*architecture(card), kinds, list(images.shape), images.device.type, str(torch.__version__)]
    return f"{card.model} {digest(parts)[:16]}"


def expected_compile_time(
    card: ModelCard, passes: Iterable[Pass], images: torch.Tensor, network: nn.Module
) -> CompileTime:
    """Return the expected time and gain of a compilation: as measured before, or by the number of layers."""
    layers = sum(hasattr(module, "weight") and module.weight is not None for module in network.modules())
    return recorded_compile_time(key(card, passes, images)) or CompileTime(
        SECONDS_A_LAYER * layers / card.members, GAIN
    )


def saves_time(seconds: float, seen: CompileTime) -> bool:
    """Return whether compiling saves time for attacks that take `seconds` without it."""
    return seconds * (1 - 1 / seen.gain) > seen.seconds
